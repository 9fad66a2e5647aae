/**
 * As much of Python's lexing as a comment at a line's end needs: where comments begin, and which
 * line ends lie inside a string or after a backslash.
 */

export interface ILine {
  start: number;
  /** Offset of the line break, or of the text's end. */
  end: number;
  /** Offset of the comment's `#`, or -1. */
  comment: number;
  /** A comment cannot be appended: the line ends in a backslash or inside a string. */
  open: boolean;
  /** An IPython magic or shell line: a comment would become part of its argument. */
  magic: boolean;
}

const TRIPLE = /^("""|''')/;

/** End of the string that is open at `at`, within `line`; null when it goes on past it. */
function closeString(line: string, at: number, quote: string): number | null {
  for (let i = at; i < line.length; i++) {
    if (line[i] === '\\') {
      i++;
    } else if (line.startsWith(quote, i)) {
      return i + quote.length;
    }
  }
  return null;
}

interface ILineScan {
  comment: number;
  open: boolean;
  /** The quote that the next line begins in, or ''. */
  quote: string;
}

function scanLine(line: string, inherited: string): ILineScan {
  let quote = inherited;
  let at = 0;
  while (at < line.length || quote) {
    if (quote) {
      const closed = closeString(line, at, quote);
      if (closed === null) {
        // A one-line string goes on only after a backslash; else it is an error and ends here.
        const goesOn = quote.length === 3 || endsInBackslash(line);
        return { comment: -1, open: goesOn, quote: goesOn ? quote : '' };
      }
      at = closed;
      quote = '';
      continue;
    }
    const triple = TRIPLE.exec(line.slice(at, at + 3));
    if (triple) {
      quote = triple[1];
      at += 3;
    } else if (line[at] === '"' || line[at] === "'") {
      quote = line[at];
      at += 1;
    } else if (line[at] === '#') {
      return { comment: at, open: false, quote: '' };
    } else {
      at += 1;
    }
  }
  return { comment: -1, open: line.endsWith('\\'), quote: '' };
}

function endsInBackslash(line: string): boolean {
  const slashes = /\\*$/.exec(line)?.[0].length ?? 0;
  return slashes % 2 === 1;
}

export function scanLines(source: string): ILine[] {
  const lines: ILine[] = [];
  let start = 0;
  let quote = '';
  for (const line of source.split('\n')) {
    const scan = scanLine(line, quote);
    lines.push({
      start,
      end: start + line.length,
      comment: scan.comment < 0 ? -1 : start + scan.comment,
      open: scan.open,
      magic: !quote && /^\s*[%!]/.test(line)
    });
    quote = scan.quote;
    start += line.length + 1;
  }
  return lines;
}
