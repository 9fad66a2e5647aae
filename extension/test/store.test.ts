import { describe, expect, it } from 'vitest';
import { emptyState, reduce, shownFinding } from '../src/state';
import { FindingsStore } from '../src/store';
import { finding, markOf, notebook } from './helpers';

const SOURCE = 'y = x * 2 + 1';
const marked = (change = {}): ReturnType<typeof finding> =>
  finding({ mark: markOf(SOURCE, 'x * 2 + 1'), ...change });

function withFindings(
  ...findings: ReturnType<typeof finding>[]
): [FindingsStore, ReturnType<typeof notebook>] {
  const store = new FindingsStore();
  const shared = notebook(SOURCE);
  store.open(shared, 'demo.ipynb');
  store.dispatch(shared, {
    kind: 'findings',
    message: { revision: 1, busy: false, profiles: [], findings }
  });
  return [store, shared];
}

describe('reduce', () => {
  const list = (revision: number, id: string): Parameters<typeof reduce>[1] => ({
    kind: 'findings',
    message: { revision, busy: false, profiles: [], findings: [finding({ id })] }
  });

  it('keeps the newer list when the older one comes late', () => {
    const state = reduce(reduce(emptyState('a'), list(5, 'F2')), list(4, 'F1'));
    expect(state.findings[0].id).toBe('F2');
  });

  it('lets the kernel’s next word replace what the page assumed', () => {
    let state = reduce(emptyState('a'), list(1, 'F1'));
    state = reduce(state, { kind: 'local', finding: 'F1', state: 'applied', reason: '' });
    expect(state.local.F1.state).toBe('applied');
    expect(reduce(state, list(2, 'F1')).local).toEqual({});
  });

  it('clears everything of a kernel that has gone, except who it was', () => {
    const state = reduce(reduce(emptyState('a'), list(7, 'F1')), {
      kind: 'cleared',
      reason: 'Gone'
    });
    expect(state).toEqual({ ...emptyState('a'), notice: { text: 'Gone', isError: false } });
    // The next kernel begins to count at nought.
    expect(reduce(state, list(0, 'F9')).findings[0].id).toBe('F9');
  });
});

describe('shownFinding', () => {
  it('is stale when the expression was edited or the cell is gone', () => {
    expect(shownFinding(marked(), undefined, SOURCE)).toMatchObject({
      state: 'open',
      span: { from: 4, to: 13 }
    });
    expect(shownFinding(marked(), undefined, 'y = x * 3 + 1')).toMatchObject({
      state: 'stale',
      span: null
    });
    expect(shownFinding(marked(), undefined, null)).toMatchObject({ state: 'stale', span: null });
  });

  it('is ignored by a comment at once, for its own rule', () => {
    const text = `${SOURCE}  # fuse: ignore[FUS001]`;
    expect(shownFinding(marked(), undefined, text).state).toBe('ignored');
    expect(shownFinding(marked({ rule: 'FUS002' }), undefined, text).state).toBe('open');
  });

  it('stays applied though the expression has gone: that is what applying does', () => {
    expect(shownFinding(marked({ state: 'applied' }), undefined, 'y = fused(x)').state).toBe(
      'applied'
    );
  });

  it('needs no expression when it has none', () => {
    expect(shownFinding(finding(), undefined, null).state).toBe('open');
  });
});

describe('FindingsStore', () => {
  it('tells copied notebooks with equal cell ids apart', () => {
    const [store, shared] = withFindings(marked());
    const copy = notebook(SOURCE);
    store.open(copy, 'demo-Copy1.ipynb');
    expect(copy.cells[0].getId()).toBe(shared.cells[0].getId());
    expect(store.marked(shared, 'cell-0', SOURCE)).toHaveLength(1);
    expect(store.marked(copy, 'cell-0', SOURCE)).toEqual([]);
  });

  it('marks only what is open: not the applied, ignored, stale', () => {
    const [store, shared] = withFindings(
      marked({ id: 'F1' }),
      marked({ id: 'F2', state: 'applied' }),
      marked({ id: 'F3', state: 'ignored' }),
      marked({ id: 'F4', state: 'stale' })
    );
    expect(store.marked(shared, 'cell-0', SOURCE).map(entry => entry.finding.id)).toEqual(['F1']);
    expect(store.marked(shared, 'cell-0', 'y = 0')).toEqual([]);
    store.dispatch(shared, { kind: 'local', finding: 'F1', state: 'applied', reason: '' });
    expect(store.marked(shared, 'cell-0', SOURCE)).toEqual([]);
  });

  it('hides marks by setting and by the kernel’s configuration, and keeps the findings', () => {
    const [store, shared] = withFindings(marked());
    let changes = 0;
    store.changed.connect(() => changes++);
    store.marks = false;
    expect(changes).toBe(1);
    expect(store.marked(shared, 'cell-0', SOURCE)).toEqual([]);
    expect(store.shown(shared)).toHaveLength(1);
    store.marks = true;
    store.dispatch(shared, { kind: 'marks off', off: true });
    expect(store.marked(shared, 'cell-0', SOURCE)).toEqual([]);
  });

  it('follows a cell that moves, and notices one that is deleted', () => {
    const [store, shared] = withFindings(marked());
    shared.insertCell(0, { cell_type: 'markdown', source: '# Title' });
    expect(store.shown(shared)[0].state).toBe('open');
    shared.deleteCell(1);
    expect(store.shown(shared)[0]).toMatchObject({ state: 'stale', span: null });
  });

  it('finds the cell that the kernel cannot name by its text, and follows it from then on', () => {
    const [store, shared] = withFindings(marked({ mark: markOf(SOURCE, 'x * 2 + 1', '') }));
    expect(store.shown(shared)[0]).toMatchObject({ state: 'open', span: { from: 4, to: 13 } });
    shared.cells[0].updateSource(0, 0, '# note\n');
    expect(store.shown(shared)[0]).toMatchObject({ state: 'open', span: { from: 11, to: 20 } });
  });

  it('does not guess between two cells of the recorded text', () => {
    const store = new FindingsStore();
    const shared = notebook(SOURCE, SOURCE);
    store.open(shared, 'demo.ipynb');
    const unnamed = marked({ mark: markOf(SOURCE, 'x * 2 + 1', '') });
    const message = { revision: 1, busy: false, profiles: [], findings: [unnamed] };
    store.dispatch(shared, { kind: 'findings', message });
    expect(store.shown(shared)[0]).toMatchObject({ state: 'stale', span: null });
  });

  it('forgets a closed notebook, and drops what still comes for it', () => {
    const [store, shared] = withFindings(marked());
    store.close(shared);
    store.dispatch(shared, { kind: 'notice', text: 'late', isError: false });
    expect(store.get(shared)).toBeNull();
    expect(store.notebooks).toEqual([]);
  });
});
