/** Notebooks, findings and proposals for the tests. */

import { YNotebook } from '@jupyter/ydoc';
import { applyToText } from '../src/edits';
import { sha256 } from '../src/hash';
import type { IEdit, IFinding, IMark, IProposal } from '../src/protocol';

/** A notebook as JupyterLab makes it: each cell has its own undo. */
export function notebook(...sources: string[]): YNotebook {
  const shared = new YNotebook({ disableDocumentWideUndoRedo: true });
  sources.forEach((source, index) =>
    shared.insertCell(index, { cell_type: 'code', source, id: `cell-${index}` })
  );
  return shared;
}

export function markOf(source: string, expression: string, cellId = 'cell-0'): IMark {
  const start = source.indexOf(expression);
  return {
    cell_id: cellId,
    start,
    end: start + expression.length,
    text: expression,
    source_hash: sha256(source)
  };
}

export function finding(change: Partial<IFinding> = {}): IFinding {
  return {
    id: 'F1',
    advice: 1,
    rule: 'FUS001',
    rule_title: 'Elementwise chain',
    title: '5 kernels only shuttle memory',
    message: 'Fused they read once and write once.',
    state: 'open',
    state_reason: '',
    share: 0.124,
    saved_us: { low: 120, mid: 200, high: 310 },
    occurrences: 1,
    safety: 'safe',
    fusable: true,
    reason: '',
    place: 'cell',
    mark: null,
    inside: null,
    actions: ['fuse', 'explain', 'ignore'],
    ...change
  };
}

export function proposal(
  source: string,
  edits: IEdit[],
  change: Partial<IProposal> = {}
): IProposal {
  return {
    finding: 'F1',
    source_hash: sha256(source),
    edits,
    new_source: applyToText(source, edits),
    passed: true,
    message: '24 of 24 cases within budget',
    rungs: [],
    cuda: { compile: '', native_ir: '' },
    timing: null,
    kernel: '',
    ...change
  };
}
