/** What the side panel lists: filtered, ranked, grouped by notebook. Pure. */

import { label, whereInside } from './format';
import type { Action, IFinding } from './protocol';
import type { INotebookState, IShownFinding } from './state';

export interface IGroup<Key> {
  key: Key;
  /** Stays the same while the notebook is open. */
  id: string;
  state: INotebookState;
  shown: readonly IShownFinding[];
}

function haystack({ finding, state }: IShownFinding, notebook: string): string {
  return [
    finding.id,
    finding.rule,
    label(finding),
    finding.message,
    finding.mark?.text ?? '',
    whereInside(finding),
    finding.safety,
    state,
    notebook
  ]
    .join('\n')
    .toLowerCase();
}

/** Each word of the filter must occur somewhere in the finding. */
export function matches(entry: IShownFinding, notebook: string, filter: string): boolean {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) {
    return true;
  }
  const text = haystack(entry, notebook);
  return words.every(word => text.includes(word));
}

const STATE_ORDER = { open: 0, applied: 1, stale: 2, ignored: 3 };

/** By share of the run, what is still open first; equals keep the kernel's order. */
export function ranked(shown: readonly IShownFinding[]): IShownFinding[] {
  return [...shown].sort(
    (a, b) => STATE_ORDER[a.state] - STATE_ORDER[b.state] || b.finding.share - a.finding.share
  );
}

/** Groups with what the filter leaves; the notebook in front first. */
export function grouped<Key>(
  groups: readonly IGroup<Key>[],
  filter: string,
  current: Key | null
): IGroup<Key>[] {
  return groups
    .map(group => ({
      ...group,
      shown: ranked(group.shown.filter(entry => matches(entry, group.state.title, filter)))
    }))
    .sort((a, b) => Number(b.key === current) - Number(a.key === current));
}

/** The buttons of a finding in its present state. */
export function buttons(finding: IFinding, state: IShownFinding['state']): Action[] {
  switch (state) {
    case 'open':
      return finding.actions.filter(action => action !== 'undo');
    case 'applied':
      return finding.actions.filter(
        action => !['fuse', 'apply_live', 'edit_file', 'ignore'].includes(action)
      );
    case 'ignored':
    case 'stale':
      return finding.actions.filter(action => action === 'explain');
  }
}
