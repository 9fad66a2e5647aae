import { forceLinting } from '@codemirror/lint';
import { EditorState } from '@codemirror/state';
import { EditorView } from '@codemirror/view';
import type { YCodeCell, YNotebook } from '@jupyter/ydoc';
import { ybinding } from '@jupyterlab/codemirror/lib/extensions/ybinding';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { diagnostics, fusionMarks } from '../src/diagnostics';
import { editCell } from '../src/edits';
import type { IFinding } from '../src/protocol';
import { FindingsStore } from '../src/store';
import { finding, markOf, notebook } from './helpers';

const SOURCE = '# 🚀\ny = x * 2 + 1\nz = y - 3';

let store: FindingsStore;
let shared: YNotebook;
let cell: YCodeCell;
let view: EditorView;
let acted: [string, string][];
let revision: number;

const handlers = {
  act: (_: unknown, entry: IFinding, action: string) => acted.push([entry.id, action]),
  showPanel: () => acted.push(['', 'panel'])
};

beforeEach(() => {
  store = new FindingsStore();
  shared = notebook(SOURCE);
  cell = shared.cells[0] as YCodeCell;
  store.open(shared, 'demo.ipynb');
  acted = [];
  revision = 0;
  view = new EditorView({
    parent: document.body,
    state: EditorState.create({
      doc: SOURCE,
      extensions: [
        ybinding({ ytext: cell.ysource, undoManager: cell.undoManager ?? undefined }),
        fusionMarks(cell, store, handlers)
      ]
    })
  });
});

afterEach(() => view.destroy());

/** Time for what must not happen. */
async function settle(): Promise<void> {
  await new Promise(resolve => setTimeout(resolve, 20));
  forceLinting(view);
  await new Promise(resolve => setTimeout(resolve, 20));
}

/** The marks become these, and the gutter goes with them; a loaded machine takes its time. */
async function shows(expected: string[]): Promise<void> {
  await vi.waitFor(
    () => {
      expect(marks()).toEqual(expected);
      expect(hasGutter()).toBe(expected.length > 0);
    },
    { timeout: 10_000, interval: 20 }
  );
}

function tell(...findings: IFinding[]): void {
  const message = { revision: ++revision, busy: false, profiles: [], findings };
  store.dispatch(shared, { kind: 'findings', message });
}

const one = finding({ id: 'F1', mark: markOf(SOURCE, 'x * 2 + 1') });
const two = finding({ id: 'F2', mark: markOf(SOURCE, 'y - 3') });

const marks = (): string[] =>
  [...view.contentDOM.querySelectorAll('.fusion-mark')].map(mark => mark.textContent ?? '');
const hasGutter = (): boolean => view.dom.querySelector('.cm-gutter-lint') !== null;

describe('marks in an editor bound to a shared cell', () => {
  it('stand under the expressions, with a gutter only while there are some', async () => {
    await settle();
    expect(hasGutter()).toBe(false);
    tell(one, two);
    await shows(['x * 2 + 1', 'y - 3']);
    tell();
    await shows([]);
  });

  it('move with text put before, vanish when edited, come back when that is undone', async () => {
    tell(one);
    await shows(['x * 2 + 1']);
    cell.updateSource(0, 0, 'import torch\n\n');
    await settle();
    await shows(['x * 2 + 1']);
    cell.undoManager?.stopCapturing();
    const at = cell.getSource().indexOf('x * 2');
    cell.updateSource(at, at + 1, 'xx');
    await shows([]);
    cell.undo();
    await shows(['x * 2 + 1']);
  });

  it('vanish for applied, ignored and switched-off findings', async () => {
    tell(one, two);
    store.dispatch(shared, { kind: 'local', finding: 'F1', state: 'applied', reason: '' });
    await shows(['y - 3']);
    cell.updateSource(SOURCE.length, SOURCE.length, '  # fuse: ignore[FUS001]');
    await shows([]);
    tell(one);
    await shows(['x * 2 + 1']);
    store.marks = false;
    await shows([]);
  });

  it('an edit through the shared cell reaches the editor, and one undo takes it back', () => {
    editCell(cell, [
      { start: 0, end: 0, new: '@cuda.jit\n' },
      { start: 9, end: 18, new: 'fused(x)' }
    ]);
    expect(view.state.doc.toString()).toBe('@cuda.jit\n# 🚀\ny = fused(x)\nz = y - 3');
    cell.undo();
    expect(view.state.doc.toString()).toBe(SOURCE);
  });

  it('do not react to another notebook with the same cell id', async () => {
    const copy = notebook(SOURCE);
    store.open(copy, 'copy.ipynb');
    const message = { revision: 1, busy: false, profiles: [], findings: [one] };
    store.dispatch(copy, { kind: 'findings', message });
    await settle();
    expect(marks()).toEqual([]);
  });

  it('are silent after the editor is gone', async () => {
    view.destroy();
    tell(one);
    await settle();
    expect(marks()).toEqual([]);
  });
});

describe('diagnostics', () => {
  it('offer the finding’s actions, and carry them out', () => {
    const [diagnostic] = diagnostics(shared, shownOf(one), handlers);
    expect(diagnostic.actions?.map(action => action.name)).toEqual([
      'Fuse in place',
      'Explain',
      'Ignore'
    ]);
    diagnostic.actions?.[2].apply(view, 0, 0);
    expect(acted).toEqual([['F1', 'ignore']]);
  });

  it('say what, how much, how safe and how often', () => {
    const [diagnostic] = diagnostics(
      shared,
      shownOf({ ...one, occurrences: 12, fusable: false, reason: 'random op' }),
      handlers
    );
    const text = (diagnostic.renderMessage?.(view) as HTMLElement).textContent;
    expect(text).toContain('5 kernels only shuttle memory');
    expect(text).toContain('12 % of the run · saves 120 µs–310 µs · safe · ×12');
    expect(text).toContain('random op');
    expect(diagnostic.severity).toBe('info');
  });

  it('show hostile names as text, and not a megabyte of them', () => {
    const title = `<img src=x onerror=alert(1)>${'x'.repeat(1_000_000)}`;
    const [diagnostic] = diagnostics(shared, shownOf({ ...one, title }), handlers);
    const node = diagnostic.renderMessage?.(view) as HTMLElement;
    expect(node.querySelector('img')).toBeNull();
    expect(node.textContent).toContain('<img src=x');
    expect(node.textContent?.length).toBeLessThan(2_000);
  });

  it('leave the fourth and later findings of one place to the panel', () => {
    const many = ['F1', 'F2', 'F3', 'F4', 'F5'].map(id => ({ ...one, id }));
    const all = diagnostics(shared, many.flatMap(shownOf), handlers);
    expect(all).toHaveLength(4);
    expect(all[3].message).toBe('2 more findings here.');
    all[3].actions?.[0].apply(view, 0, 0);
    expect(acted).toEqual([['', 'panel']]);
  });
});

function shownOf(entry: IFinding): ReturnType<FindingsStore['marked']> {
  const scratch = new FindingsStore();
  scratch.open(shared, 'demo.ipynb');
  const message = { revision: 1, busy: false, profiles: [], findings: [entry] };
  scratch.dispatch(shared, { kind: 'findings', message });
  return scratch.marked(shared, 'cell-0', SOURCE);
}
