import { describe, expect, it } from 'vitest';
import { diffLines, withContext } from '../src/diff';

function written(before: string, after: string): string[] {
  const signs = { same: ' ', removed: '-', added: '+', skipped: '~' };
  return diffLines(before, after).map(line => signs[line.kind] + line.text);
}

describe('diffLines', () => {
  it('keeps what both have, in order', () => {
    expect(written('a\nb\nc\nd', 'k\na\nB\nc\nd\ne')).toEqual([
      '+k',
      ' a',
      '-b',
      '+B',
      ' c',
      ' d',
      '+e'
    ]);
  });

  it('numbers the lines of each side', () => {
    expect(diffLines('a\nb', 'k\na').map(line => [line.before, line.after])).toEqual([
      [null, 1],
      [1, 2],
      [2, null]
    ]);
  });

  it('finds the longest common part, not the first', () => {
    const result = written('x\na\nb\nc', 'a\nb\nc\nx');
    expect(result.filter(line => line.startsWith(' '))).toEqual([' a', ' b', ' c']);
  });

  it('shows repeated lines once each', () => {
    expect(written('a\na\na', 'a\na')).toEqual([' a', ' a', '-a']);
  });

  it('always gives both texts back', () => {
    // A small generator of its own: the same texts at every run.
    let seed = 7;
    const random = (n: number): number => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
    for (let round = 0; round < 300; round++) {
      const text = (): string =>
        Array.from({ length: random(9) }, () => 'abc'[random(3)]).join('\n');
      const [before, after] = [text(), text()];
      const lines = diffLines(before, after);
      const side = (skip: string): string =>
        lines
          .filter(line => line.kind !== skip)
          .map(line => line.text)
          .join('\n');
      expect(side('added')).toBe(before);
      expect(side('removed')).toBe(after);
    }
  });

  it('survives a text too long for the table: everything replaced, nothing lost', () => {
    const many = (letter: string): string =>
      Array.from({ length: 2100 }, (_, i) => `${letter}${i}`).join('\n');
    const lines = diffLines(many('a'), many('b'));
    expect(lines.filter(line => line.kind === 'removed')).toHaveLength(2100);
    expect(lines.filter(line => line.kind === 'added')).toHaveLength(2100);
  });
});

describe('withContext', () => {
  const long = Array.from({ length: 20 }, (_, i) => `line ${i}`);

  it('folds what is far from a change, and counts it', () => {
    const after = [...long];
    after[10] = 'changed';
    const shown = withContext(diffLines(long.join('\n'), after.join('\n')));
    expect(shown.map(line => line.kind)).toEqual([
      'skipped',
      'same',
      'same',
      'same',
      'removed',
      'added',
      'same',
      'same',
      'same',
      'skipped'
    ]);
    expect(shown[0].text).toBe('7 unchanged lines');
    expect(shown[9].text).toBe('6 unchanged lines');
  });

  it('shows a single far line instead of counting it', () => {
    const after = ['x', ...long.slice(1, 5)];
    const shown = withContext(diffLines(long.slice(0, 5).join('\n'), after.join('\n')));
    expect(shown[shown.length - 1].text).toBe('line 4');
  });
});
