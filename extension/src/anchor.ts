/** Where a finding's expression stands in the text that a cell has now. */

import type { IMark } from './protocol';

export interface ISpan {
  from: number;
  to: number;
}

/**
 * The mark's place in `source`: its exact text at the recorded offset, else at the one place
 * where that text occurs. An edited or ambiguous expression has no place: a mark on the wrong
 * expression would be worse than none.
 */
export function locate(source: string, mark: Pick<IMark, 'start' | 'text'>): ISpan | null {
  if (!mark.text) {
    return null;
  }
  if (mark.start >= 0 && source.startsWith(mark.text, mark.start)) {
    return { from: mark.start, to: mark.start + mark.text.length };
  }
  const first = source.indexOf(mark.text);
  if (first < 0 || source.indexOf(mark.text, first + 1) >= 0) {
    return null;
  }
  return { from: first, to: first + mark.text.length };
}
