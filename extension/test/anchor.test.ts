import { describe, expect, it } from 'vitest';
import { locate } from '../src/anchor';

describe('locate', () => {
  const text = 'x * 2 + 1';

  it('takes the recorded offset when the text stands there, though it occurs twice', () => {
    const source = `a = ${text}\nb = ${text}\n`;
    const second = source.lastIndexOf(text);
    expect(locate(source, { start: second, text })).toEqual({
      from: second,
      to: second + text.length
    });
  });

  it('follows the one occurrence when lines were put before it', () => {
    expect(locate(`import torch\n\na = ${text}`, { start: 4, text })).toEqual({ from: 18, to: 27 });
  });

  it('gives up when the text is ambiguous, edited or gone', () => {
    expect(locate(`\na = ${text}\nb = ${text}`, { start: 4, text })).toBeNull();
    expect(locate('a = x * 3 + 1', { start: 4, text })).toBeNull();
    expect(locate('', { start: 0, text })).toBeNull();
  });

  it('does not take a part of another expression for it', () => {
    const sum = 'x + 1';
    for (const edited of ['y = xx + 1', 'y = a.x + 1', 'y = x + 10', 'y = x + 1.5', 'y = θx + 1']) {
      expect(locate(edited, { start: edited.indexOf(sum), text: sum })).toBeNull();
    }
    // An attribute of the whole, or a call of it, leaves it whole.
    expect(locate('y = f(x).loss', { start: 4, text: 'f(x)' })).toEqual({ from: 4, to: 8 });
    expect(locate('y = x.T', { start: 4, text: 'x' })).toEqual({ from: 4, to: 5 });
  });

  it('does not count parts of other expressions as further occurrences', () => {
    expect(locate('\na = xx + 1\nb = x + 1', { start: 4, text: 'x + 1' })).toEqual({
      from: 16,
      to: 21
    });
  });

  it('sees overlapping occurrences as ambiguous', () => {
    expect(locate('z = (())(())(())', { start: 0, text: '(())(())' })).toBeNull();
  });

  it('counts UTF-16 units: an emoji is two', () => {
    const source = '# 🚀\ny = x + 1';
    expect(locate(source, { start: 9, text: 'x + 1' })).toEqual({ from: 9, to: 14 });
    expect(source.slice(9, 14)).toBe('x + 1');
  });

  it('never marks an empty text', () => {
    expect(locate('x', { start: 0, text: '' })).toBeNull();
  });

  it('does not read before the beginning for an offset that is not one', () => {
    expect(locate('x', { start: -1, text: 'x' })).toEqual({ from: 0, to: 1 });
  });
});
