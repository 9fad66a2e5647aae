/** A line diff of two texts, for showing: what goes, what comes, and what stands around it. */

export interface IDiffLine {
  kind: 'same' | 'removed' | 'added' | 'skipped';
  text: string;
  /** Line numbers from 1; null on the side where the line is not. */
  before: number | null;
  after: number | null;
}

// Above this the table of common subsequences is not made (a cell of 3,000 changed lines): the
// whole middle is then shown as replaced, which is right, only longer.
const MAX_TABLE_CELLS = 4_000_000;

const CONTEXT_LINES = 3;

type Step = { kind: 'same' | 'removed' | 'added'; text: string };

/** Lengths of the longest common subsequences of all pairs of tails. */
function tailLengths(before: string[], after: string[]): Uint32Array {
  const width = after.length + 1;
  const table = new Uint32Array((before.length + 1) * width);
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      table[i * width + j] =
        before[i] === after[j]
          ? table[(i + 1) * width + j + 1] + 1
          : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    }
  }
  return table;
}

function middleSteps(before: string[], after: string[]): Step[] {
  const steps: Step[] = [];
  let i = 0;
  let j = 0;
  if (before.length * after.length <= MAX_TABLE_CELLS) {
    const width = after.length + 1;
    const table = tailLengths(before, after);
    while (i < before.length && j < after.length) {
      if (before[i] === after[j]) {
        steps.push({ kind: 'same', text: before[i] });
        i++;
        j++;
      } else if (table[(i + 1) * width + j] >= table[i * width + j + 1]) {
        steps.push({ kind: 'removed', text: before[i++] });
      } else {
        steps.push({ kind: 'added', text: after[j++] });
      }
    }
  }
  before.slice(i).forEach(line => steps.push({ kind: 'removed', text: line }));
  after.slice(j).forEach(line => steps.push({ kind: 'added', text: line }));
  return steps;
}

function numbered(steps: Step[]): IDiffLine[] {
  let before = 0;
  let after = 0;
  return steps.map(({ kind, text }) => ({
    kind,
    text,
    before: kind === 'added' ? null : ++before,
    after: kind === 'removed' ? null : ++after
  }));
}

/** Every line of both texts, in order. */
export function diffLines(before: string, after: string): IDiffLine[] {
  const a = before.split('\n');
  const b = after.split('\n');
  const shorter = Math.min(a.length, b.length);
  let head = 0;
  while (head < shorter && a[head] === b[head]) {
    head++;
  }
  let tail = 0;
  while (tail < shorter - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) {
    tail++;
  }
  const same = (text: string): Step => ({ kind: 'same', text });
  return numbered([
    ...a.slice(0, head).map(same),
    ...middleSteps(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same)
  ]);
}

/** The diff with long unchanged stretches replaced by one line that counts them. */
export function withContext(lines: IDiffLine[], context = CONTEXT_LINES): IDiffLine[] {
  const near = new Array<boolean>(lines.length).fill(false);
  lines.forEach((line, index) => {
    if (line.kind !== 'same') {
      near.fill(true, Math.max(0, index - context), index + context + 1);
    }
  });
  const shown: IDiffLine[] = [];
  for (let index = 0; index < lines.length;) {
    let end = index;
    while (end < lines.length && !near[end]) {
      end++;
    }
    // One hidden line would be replaced by one line: show it instead.
    if (end - index > 1) {
      const text = `${end - index} unchanged lines`;
      shown.push({ kind: 'skipped', text, before: null, after: null });
      index = end;
    } else {
      shown.push(lines[index]);
      index++;
    }
  }
  return shown;
}
