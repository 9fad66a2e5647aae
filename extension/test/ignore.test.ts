import { describe, expect, it } from 'vitest';
import { applyToText } from '../src/edits';
import { ignoreEdit, isIgnored } from '../src/ignore';

function spanOf(source: string, expression: string): { from: number; to: number } {
  const from = source.indexOf(expression);
  expect(from).toBeGreaterThanOrEqual(0);
  return { from, to: from + expression.length };
}

function ignored(source: string, expression: string, rule = 'FUS001'): string {
  const span = spanOf(source, expression);
  const edit = ignoreEdit(source, span, rule);
  if (typeof edit === 'string') {
    return edit;
  }
  const result = applyToText(source, [edit]);
  // Whatever is written must be read back.
  expect(isIgnored(result, spanOf(result, expression), rule)).toBe(true);
  return result;
}

describe('ignoreEdit', () => {
  it('appends the comment to the line', () => {
    expect(ignored('y = x * 2 + 1\nz = 3', 'x * 2 + 1')).toBe(
      'y = x * 2 + 1  # fuse: ignore[FUS001]\nz = 3'
    );
  });

  it('goes to the last line of an expression over several', () => {
    const expression = '(x * 2\n     + 1)';
    expect(ignored(`y = ${expression}\nz = 3`, expression)).toBe(
      `y = ${expression}  # fuse: ignore[FUS001]\nz = 3`
    );
  });

  it('goes behind a comment that is there, and extends a list of rules', () => {
    expect(ignored('y = x + 1  # note', 'x + 1')).toBe('y = x + 1  # note  # fuse: ignore[FUS001]');
    expect(ignored('y = x + 1  # fuse: ignore[FUS002]', 'x + 1')).toBe(
      'y = x + 1  # fuse: ignore[FUS002, FUS001]'
    );
  });

  it('does not take a # in a string for a comment', () => {
    expect(ignored('y = f(x + 1, "# fuse: ignore")', 'x + 1')).toBe(
      'y = f(x + 1, "# fuse: ignore")  # fuse: ignore[FUS001]'
    );
  });

  it('waits for the end of a backslash continuation', () => {
    expect(ignored('y = x + 1 \\\n    + 2\nz = 0', 'x + 1')).toBe(
      'y = x + 1 \\\n    + 2  # fuse: ignore[FUS001]\nz = 0'
    );
  });

  it('waits for the end of a string that opens after the expression', () => {
    const source = 'y = f(x + 1, """a\n# b\'\n""")\nz = 0';
    expect(ignored(source, 'x + 1')).toBe(
      'y = f(x + 1, """a\n# b\'\n""")  # fuse: ignore[FUS001]\nz = 0'
    );
  });

  it('leaves magic and shell lines alone', () => {
    expect(ignored('%timeit x + 1', 'x + 1')).toMatch(/magic/);
    expect(ignored('!echo x + 1', 'x + 1')).toMatch(/magic/);
  });

  it('refuses where no comment can stand', () => {
    expect(ignored('y = x + 1 \\', 'x + 1')).toMatch(/backslash/);
  });

  it('is not led astray by an apostrophe in a comment or a magic', () => {
    expect(ignored("%%fuse_profile --note it's\n# don't\ny = x + 1", 'x + 1')).toBe(
      "%%fuse_profile --note it's\n# don't\ny = x + 1  # fuse: ignore[FUS001]"
    );
  });

  it('counts UTF-16 units after an emoji', () => {
    expect(ignored('s = "🚀🚀"; y = x + 1\n', 'x + 1')).toBe(
      's = "🚀🚀"; y = x + 1  # fuse: ignore[FUS001]\n'
    );
  });

  it('stays before a carriage return', () => {
    expect(ignored('y = x + 1\r\nz = 0', 'x + 1')).toBe(
      'y = x + 1  # fuse: ignore[FUS001]\r\nz = 0'
    );
  });
});

describe('isIgnored', () => {
  const at = (source: string, rule: string): boolean =>
    isIgnored(source, spanOf(source, 'x + 1'), rule);

  it('reads a bare comment for every rule, a list for its own', () => {
    expect(at('y = x + 1  # fuse: ignore', 'FUS009')).toBe(true);
    expect(at('y = x + 1  # fuse:ignore [FUS002,FUS001]', 'FUS001')).toBe(true);
    expect(at('y = x + 1  # fuse: ignore[FUS002]', 'FUS001')).toBe(false);
    expect(at('y = x + 1  # fuse: ignore[]', 'FUS001')).toBe(false);
  });

  it('does not read longer words, other lines or strings', () => {
    expect(at('y = x + 1  # fuse: ignored', 'FUS001')).toBe(false);
    expect(at('# fuse: ignore\ny = x + 1\nz = 0  # fuse: ignore', 'FUS001')).toBe(false);
    expect(at('y = f(x + 1, "# fuse: ignore")', 'FUS001')).toBe(false);
  });

  it('reads the comment on any line of the expression', () => {
    const source = 'y = (a  # fuse: ignore[FUS001]\n     + b)';
    expect(isIgnored(source, spanOf(source, source.slice(4)), 'FUS001')).toBe(true);
  });
});
