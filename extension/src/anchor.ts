/** Where a finding's expression stands in the text that a cell has now. */

import type { IMark } from './protocol';

export interface ISpan {
  from: number;
  to: number;
}

const WORD = /[\p{L}\p{N}_]/u;

/**
 * Whether the text at `from` is whole: `x + 1` is not the expression in `xx + 1`, `a.x + 1`,
 * `x + 10` or `x + 1.5`.
 */
function isWhole(source: string, text: string, from: number): boolean {
  const [before] = [...source.slice(Math.max(0, from - 2), from)].slice(-1);
  const [after] = [...source.slice(from + text.length, from + text.length + 2)];
  const [first] = [...text];
  const [last] = [...text.slice(-2)].slice(-1);
  if (before && WORD.test(first) && (WORD.test(before) || before === '.')) {
    return false;
  }
  return !(after && WORD.test(last) && (WORD.test(after) || (after === '.' && /\d/.test(last))));
}

/**
 * The mark's place in `source`: its exact text at the recorded offset, else at the one place
 * where that text occurs. An edited or ambiguous expression has no place: a mark on the wrong
 * expression would be worse than none.
 */
export function locate(source: string, mark: Pick<IMark, 'start' | 'text'>): ISpan | null {
  const { start, text } = mark;
  if (!text) {
    return null;
  }
  if (start >= 0 && source.startsWith(text, start) && isWhole(source, text, start)) {
    return { from: start, to: start + text.length };
  }
  let found: ISpan | null = null;
  for (let from = source.indexOf(text); from >= 0; from = source.indexOf(text, from + 1)) {
    if (isWhole(source, text, from)) {
      if (found) {
        return null;
      }
      found = { from, to: from + text.length };
    }
  }
  return found;
}
