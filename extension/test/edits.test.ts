import type { YCodeCell } from '@jupyter/ydoc';
import { describe, expect, it } from 'vitest';
import { applyToText, editCell, refusal, smallestEdit } from '../src/edits';
import { notebook, proposal } from './helpers';

const SOURCE = '# 🚀 start\ny = x * 2 + 1\nprint("θ", y)';
const KERNEL = '@cuda.jit\ndef fused(x): ...\n\n';
const at = SOURCE.indexOf('x * 2 + 1');
const EDITS = [
  { start: 0, end: 0, new: KERNEL },
  { start: at, end: at + 9, new: 'fused(x)' }
];
const FUSED = `${KERNEL}# 🚀 start\ny = fused(x)\nprint("θ", y)`;

describe('editCell', () => {
  it('makes all edits, by UTF-16 offsets, and one undo takes all of them back', () => {
    const cell = notebook(SOURCE).cells[0];
    editCell(cell, EDITS);
    expect(cell.getSource()).toBe(FUSED);
    cell.undo();
    expect(cell.getSource()).toBe(SOURCE);
    cell.redo();
    expect(cell.getSource()).toBe(FUSED);
  });

  it('does not depend on the order in which edits are listed', () => {
    const cell = notebook(SOURCE).cells[0];
    editCell(cell, [...EDITS].reverse());
    expect(cell.getSource()).toBe(FUSED);
  });

  it('is a step of its own between typing just before and just after it', () => {
    const cell = notebook(SOURCE).cells[0];
    cell.updateSource(SOURCE.length, SOURCE.length, '\n# typed');
    editCell(cell, EDITS);
    const fused = cell.getSource();
    cell.updateSource(0, 0, '# more\n');
    cell.undo();
    expect(cell.getSource()).toBe(fused);
    cell.undo();
    expect(cell.getSource()).toBe(`${SOURCE}\n# typed`);
    cell.undo();
    expect(cell.getSource()).toBe(SOURCE);
  });

  it('tells listeners once, and leaves other cells alone', () => {
    const shared = notebook(SOURCE, SOURCE);
    const [cell, other] = shared.cells as YCodeCell[];
    let changes = 0;
    cell.changed.connect(() => changes++);
    editCell(cell, EDITS);
    expect(changes).toBe(1);
    expect(other.getSource()).toBe(SOURCE);
    expect(other.canUndo()).toBe(false);
  });

  it('puts two insertions at one place in the order listed', () => {
    const cell = notebook('x').cells[0];
    editCell(cell, [
      { start: 0, end: 0, new: 'first\n' },
      { start: 0, end: 0, new: 'second\n' }
    ]);
    expect(cell.getSource()).toBe('first\nsecond\nx');
  });
});

describe('refusal', () => {
  it('lets a fitting proposal pass', () => {
    expect(refusal(SOURCE, proposal(SOURCE, EDITS))).toBe('');
  });

  it('refuses a text that has changed, be it by one space', () => {
    expect(refusal(`${SOURCE} `, proposal(SOURCE, EDITS))).toMatch(/has changed/);
  });

  it('refuses what failed its validation, whatever edits it brings', () => {
    expect(refusal(SOURCE, proposal(SOURCE, EDITS, { passed: false }))).toMatch(/validation/);
  });

  it('refuses edits that give another text than the validated one', () => {
    expect(refusal(SOURCE, proposal(SOURCE, EDITS, { new_source: 'y = 1' }))).toMatch(/validated/);
  });

  it('refuses offsets counted in code points: they miss by one after an emoji', () => {
    const points = EDITS.map(edit => (edit.start ? { ...edit, start: at - 1, end: at + 8 } : edit));
    const wrong = proposal(SOURCE, points, { new_source: FUSED });
    expect(refusal(SOURCE, wrong)).toMatch(/validated/);
  });

  it('refuses edits that overlap or reach past the end', () => {
    const overlapping = [
      { start: at, end: at + 9, new: 'a' },
      { start: at + 4, end: at + 12, new: 'b' }
    ];
    const past = [{ start: SOURCE.length, end: SOURCE.length + 1, new: '' }];
    expect(refusal(SOURCE, proposal(SOURCE, overlapping))).toMatch(/validated/);
    expect(refusal(SOURCE, proposal(SOURCE, past))).toMatch(/validated/);
  });

  it('refuses a proposal without an edit', () => {
    expect(refusal(SOURCE, proposal(SOURCE, []))).toMatch(/no edit/);
  });
});

describe('smallestEdit', () => {
  it('turns one text into the other by what differs', () => {
    const edit = smallestEdit('a = 1\nb = 2', 'a = 1\nb = 3');
    expect(edit).toEqual({ start: 10, end: 11, new: '3' });
    expect(smallestEdit('same', 'same')).toBeNull();
  });

  it('never cuts a surrogate pair in two', () => {
    // 🚀 is d83d de80, 🙀 is d83d de40, 🪀 is d83e de80: halves in common on either side.
    for (const [before, after] of [
      ['a🚀b', 'a🙀b'],
      ['a🚀b', 'a🪀b'],
      ['🚀🚀', '🚀'],
      ['', '🚀']
    ]) {
      const edit = smallestEdit(before, after);
      expect(edit).not.toBeNull();
      expect(applyToText(before, edit ? [edit] : [])).toBe(after);
      // A lone surrogate would be replaced on the way to UTF-8.
      expect(edit?.new).toBe(Buffer.from(edit?.new ?? '', 'utf8').toString('utf8'));
    }
  });
});
