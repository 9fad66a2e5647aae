/** The comment `# fuse: ignore[FUS001]`: reading it, and writing it where Python allows one. */

import type { ISpan } from './anchor';
import type { IEdit } from './protocol';
import { ILine, scanLines } from './python_text';

const IGNORE = /#\s*fuse:\s*ignore(?![\w-])(?:\s*\[([^\]]*)\])?/;

/**
 * The lines whose comments speak for an expression: from its first line to its last, and on to
 * the first line end that can carry a comment (not after a backslash, not inside a string).
 */
function linesOf(source: string, span: ISpan): ILine[] {
  const lines = scanLines(source);
  const first = lines.findIndex(line => span.from <= line.end);
  let last = lines.findIndex(line => span.to <= line.end);
  while (last < lines.length - 1 && lines[last].open) {
    last++;
  }
  return lines.slice(first, last + 1);
}

function codes(inBrackets: string): string[] {
  return inBrackets
    .split(',')
    .map(code => code.trim())
    .filter(code => code !== '');
}

function comment(source: string, line: ILine): string {
  return line.comment < 0 ? '' : source.slice(line.comment, line.end);
}

export function isIgnored(source: string, span: ISpan, rule: string): boolean {
  return linesOf(source, span).some(line => {
    const match = IGNORE.exec(comment(source, line));
    return match !== null && (match[1] === undefined || codes(match[1]).includes(rule));
  });
}

/** The edit that has `rule` ignored for the expression, or the reason why there is none. */
export function ignoreEdit(source: string, span: ISpan, rule: string): IEdit | string {
  const lines = linesOf(source, span);
  const line = lines[lines.length - 1];
  if (line.magic) {
    return 'The line is a magic or shell command: a comment would become part of it.';
  }
  if (line.open) {
    return 'The line ends inside a string or after a backslash: no comment can follow there.';
  }
  const match = IGNORE.exec(comment(source, line));
  if (match && match[1] !== undefined) {
    const start = line.comment + match.index;
    const all = [...codes(match[1]), rule].join(', ');
    return { start, end: start + match[0].length, new: `# fuse: ignore[${all}]` };
  }
  const carriageReturn = source[line.end - 1] === '\r' ? 1 : 0;
  const end = line.end - carriageReturn;
  return { start: end, end, new: `  # fuse: ignore[${rule}]` };
}
