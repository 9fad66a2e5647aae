/** Figures and labels as people read them; the same words in tooltip, panel and dialog. */

import type { Action, IFinding, IRange, ITiming } from './protocol';

/** Three significant digits, the unit that fits. */
export function microseconds(us: number): string {
  const [value, unit] =
    Math.abs(us) >= 1e6 ? [us / 1e6, 's'] : Math.abs(us) >= 1e3 ? [us / 1e3, 'ms'] : [us, 'µs'];
  return `${significant(value)} ${unit}`;
}

function significant(value: number): string {
  const magnitude = Math.abs(value);
  const digits = magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : 2;
  return value.toFixed(digits).replace(/\.0+$/, '');
}

export function percent(share: number): string {
  const value = 100 * share;
  return `${value >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

export function savingRange(saved: IRange): string {
  return `${microseconds(saved.low)}–${microseconds(saved.high)}`;
}

export function speedup(timing: ITiming): string {
  const factor = timing.eager_us / timing.fused_us;
  return (
    `${microseconds(timing.eager_us)} eager, ${microseconds(timing.fused_us)} fused ` +
    `(${factor.toFixed(2)}×)`
  );
}

/** One line of figures: share of the run, saving, safety, how often. */
export function figures(finding: IFinding): string {
  const parts = [
    `${percent(finding.share)} of the run`,
    `saves ${savingRange(finding.saved_us)}`,
    finding.safety
  ];
  if (finding.occurrences > 1) {
    parts.push(`×${finding.occurrences}`);
  }
  return parts.join(' · ');
}

/** Where the chain itself is, when that is not in the cell. */
export function whereInside(finding: IFinding): string {
  if (!finding.inside) {
    return '';
  }
  const { file, line, function: name } = finding.inside;
  // The tail of an installed file's path tells which package; its head only where Python is.
  const tail = file.split(/[\\/]/).slice(-3).join('/');
  return `${tail}:${line}${name ? ` in ${name}` : ''}`;
}

const ACTION_LABELS: Record<Action, string> = {
  fuse: 'Fuse in place',
  apply_live: 'Apply live',
  reapply_cell: 'Insert re-apply cell',
  export_module: 'Export module',
  edit_file: 'Edit file',
  explain: 'Explain',
  ignore: 'Ignore',
  undo: 'Undo'
};

export function actionLabel(action: Action): string {
  return ACTION_LABELS[action];
}

export function label(finding: IFinding): string {
  return finding.title || finding.rule_title || finding.rule;
}
