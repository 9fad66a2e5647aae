/** Edits of a cell's text: all or nothing, one undo step, refused when the text has changed. */

import type { ISharedCodeCell } from '@jupyter/ydoc';
import { sha256 } from './hash';
import type { IEdit, IProposal } from './protocol';

/** The part of a shared cell that an edit needs. */
export type EditableCell = Pick<ISharedCodeCell, 'getSource' | 'updateSource' | 'transact'>;

export function applyToText(source: string, edits: readonly IEdit[]): string {
  return descending(edits).reduce(
    (result, edit) => result.slice(0, edit.start) + edit.new + result.slice(edit.end),
    source
  );
}

function descending(edits: readonly IEdit[]): IEdit[] {
  // Of two insertions at one place the first in the list comes first in the text.
  return edits
    .map((edit, index) => ({ edit, index }))
    .sort((a, b) => b.edit.start - a.edit.start || b.index - a.index)
    .map(({ edit }) => edit);
}

function fits(source: string, edits: readonly IEdit[]): boolean {
  const ascending = [...edits].sort((a, b) => a.start - b.start || a.end - b.end);
  return ascending.every(
    (edit, i) =>
      edit.start >= 0 &&
      edit.end >= edit.start &&
      edit.end <= source.length &&
      (i === 0 || ascending[i - 1].end <= edit.start)
  );
}

/** Why the proposal cannot be put into a cell with this text; empty when it can. */
export function refusal(source: string, proposal: IProposal): string {
  if (!proposal.passed) {
    return 'The fused kernel did not pass its validation; nothing was edited.';
  }
  if (proposal.edits.length === 0) {
    return 'The kernel proposed no edit; nothing was edited.';
  }
  if (sha256(source) !== proposal.source_hash) {
    return (
      'The cell’s text has changed since the fused kernel was made; nothing was edited. ' +
      'Profile the cell again, then fuse.'
    );
  }
  const fitting = fits(source, proposal.edits);
  if (!fitting || applyToText(source, proposal.edits) !== proposal.new_source) {
    return 'The proposed edits do not give the text that was validated; nothing was edited.';
  }
  return '';
}

/**
 * Make the edits as one undo step of their own.
 *
 * The undo manager joins what is typed within half a second into one step: without the two
 * boundaries one Ctrl-Z could take back typing as well, or leave part of the edit.
 */
export function editCell(cell: EditableCell, edits: readonly IEdit[]): void {
  stopCapturing(cell);
  cell.transact(() => {
    for (const edit of descending(edits)) {
      cell.updateSource(edit.start, edit.end, edit.new);
    }
  });
  stopCapturing(cell);
}

function stopCapturing(cell: EditableCell): void {
  // Not on the shared cell's interface, on its class since @jupyter/ydoc 1.
  const manager = (cell as { undoManager?: { stopCapturing?: () => void } | null }).undoManager;
  manager?.stopCapturing?.();
}

/** The smallest single edit that turns `before` into `after`; never splits a surrogate pair. */
export function smallestEdit(before: string, after: string): IEdit | null {
  if (before === after) {
    return null;
  }
  const shorter = Math.min(before.length, after.length);
  let start = 0;
  while (start < shorter && before[start] === after[start]) {
    start++;
  }
  if (start > 0 && isHighSurrogate(before.charCodeAt(start - 1))) {
    start--;
  }
  let tail = 0;
  while (
    tail < shorter - start &&
    before[before.length - 1 - tail] === after[after.length - 1 - tail]
  ) {
    tail++;
  }
  if (tail > 0 && isLowSurrogate(before.charCodeAt(before.length - tail))) {
    tail--;
  }
  return { start, end: before.length - tail, new: after.slice(start, after.length - tail) };
}

function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff;
}

function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff;
}
