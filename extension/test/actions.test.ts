import type { YCodeCell, YNotebook } from '@jupyter/ydoc';
import { beforeEach, describe, expect, it } from 'vitest';
import { Actions } from '../src/actions';
import { FusedCells } from '../src/fused_cells';
import type { IOpenNotebook } from '../src/open_notebooks';
import type { IFinding, Message } from '../src/protocol';
import { IRequestOptions, RequestEnded } from '../src/requests';
import { FindingsStore } from '../src/store';
import { finding, markOf, notebook, proposal } from './helpers';

const SOURCE = 'y = x * 2 + 1';
const MODEL = 'out = model(x)';
const ONE = finding({ mark: markOf(SOURCE, 'x * 2 + 1') });
const INSTALLED = finding({
  id: 'F2',
  place: 'installed',
  mark: markOf(MODEL, 'model(x)', 'cell-1'),
  actions: ['apply_live', 'reapply_cell', 'export_module', 'explain']
});

let shared: YNotebook;
let store: FindingsStore;
let open: IOpenNotebook;
let actions: Actions;
let model: { readOnly: boolean; sharedModel: YNotebook };
let sent: Message[];
let options: IRequestOptions[];
let shown: string[];
let path: string | null;
/** What the kernel answers, by the request's type; an error refuses. */
let answers: Record<string, Message | RequestEnded>;

beforeEach(() => {
  shared = notebook(SOURCE, MODEL, 'z = 0');
  store = new FindingsStore();
  store.open(shared, 'demo.ipynb');
  const message = { revision: 1, busy: false, profiles: [], findings: [ONE, INSTALLED] };
  store.dispatch(shared, { kind: 'findings', message });
  [sent, options, shown, answers, path] = [[], [], [], {}, 'fused_f2.py'];
  model = { readOnly: false, sharedModel: shared };
  const link = {
    state: 'ready' as const,
    request: (data: Message, how: IRequestOptions) => {
      sent.push(data);
      options.push(how);
      const answer = answers[data.type] ?? { type: 'done', message: `${data.type} done` };
      const promise =
        answer instanceof RequestEnded ? Promise.reject(answer) : Promise.resolve(answer);
      promise.catch(() => undefined);
      return { req: 'r1', answer: promise };
    }
  };
  const fused = new FusedCells(shared, store, link);
  open = { notebook: shared, panels: new Set(), link, fused } as unknown as IOpenNotebook;
  // The view shows no cells: what is tested is the document.
  const content = { widgets: cellWidgets(), activeCellIndex: 2, model };
  actions = new Actions({
    app: { shell: { activateById: () => undefined } } as never,
    store,
    notebooks: { get: () => open, panel: () => ({ content }) as never },
    screen: {
      watch: async ({ ended }) => {
        await ended;
        return 'shown';
      },
      preview: () => Promise.resolve(true),
      refuse: (_, said) => shown.push(`refused: ${said}`),
      inform: said => shown.push(`informed: ${said}`),
      details: (title, details) => shown.push(`details: ${title} ${details.why_not[0].code}`),
      markdown: (title, text) => Promise.resolve(void shown.push(`page: ${title} | ${text}`)),
      askPath: () => Promise.resolve(path)
    },
    showReport: (title, html) => shown.push(`report: ${title} ${html}`)
  });
});

function cellWidgets(): unknown[] {
  return shared.cells.map(cell => ({ model: { id: cell.getId() } }));
}

const act = (entry: IFinding, action: IFinding['actions'][number]): Promise<void> =>
  actions.act(shared, entry, action);
const sources = (): string[] => shared.cells.map(cell => cell.getSource());
const notice = (): string | undefined => store.get(shared)?.notice?.text;

describe('ignore', () => {
  it('writes the comment as one undo step, without asking the kernel', async () => {
    await act(ONE, 'ignore');
    expect(sources()[0]).toBe(`${SOURCE}  # fuse: ignore[FUS001]`);
    expect(store.shownById(shared, 'F1')?.state).toBe('ignored');
    expect(sent).toEqual([]);
    (shared.cells[0] as YCodeCell).undo();
    expect(sources()[0]).toBe(SOURCE);
    expect(store.shownById(shared, 'F1')?.state).toBe('open');
  });

  it('edits no cell that is marked as not editable, and no expression that has gone', async () => {
    shared.cells[0].setMetadata('editable', false);
    await act(ONE, 'ignore');
    shared.cells[0].setMetadata('editable', true);
    shared.cells[0].setSource('y = 3');
    await act(ONE, 'ignore');
    expect(shown[0]).toContain('not editable');
    expect(shown[1]).toContain('not in the notebook any more');
    expect(sources()[0]).toBe('y = 3');
  });
});

describe('what the kernel does', () => {
  it('is told by its message, and kept as the notice', async () => {
    answers.apply_live = { type: 'done', message: 'whole call 301 → 281 ms', applied: true };
    await act(INSTALLED, 'apply_live');
    expect(sent).toEqual([{ type: 'apply_live', finding: 'F2' }]);
    expect(options[0]).toMatchObject({ finding: 'F2', cancellable: true });
    expect(shown).toEqual(['informed: whole call 301 → 281 ms']);
    expect(notice()).toBe('whole call 301 → 281 ms');
  });

  it('is no success when nothing was applied', async () => {
    answers.apply_live = { type: 'done', message: 'not in place: slower', applied: false };
    await act(INSTALLED, 'apply_live');
    expect(shown).toEqual(['refused: not in place: slower']);
    expect(store.get(shared)?.notice?.isError).toBe(true);
  });

  it('shows a failure, but a cancel only in passing', async () => {
    answers.undo = new RequestEnded('failed', 'F2 is not in place.');
    await act(INSTALLED, 'undo');
    answers.undo = new RequestEnded('cancelled', 'Cancelled.');
    await act(INSTALLED, 'undo');
    expect(shown).toEqual(['refused: F2 is not in place.', 'informed: Cancelled.']);
    expect(store.get(shared)?.notice).toEqual({ text: 'Cancelled.', isError: false });
  });

  it('edits a file by the same request with its place', async () => {
    await act(INSTALLED, 'edit_file');
    expect(sent).toEqual([{ type: 'apply_live', finding: 'F2', where: 'file' }]);
  });

  it('exports to the path given, and asks nothing without one', async () => {
    await act(INSTALLED, 'export_module');
    expect(sent).toEqual([{ type: 'export', path: 'fused_f2.py', finding: 'F2' }]);
    path = null;
    await act(INSTALLED, 'export_module');
    await actions.exportTo(open, 'demo_fusion.html');
    expect(sent).toHaveLength(1);
  });

  it('explains a rule, gives details and the report', async () => {
    answers.explain = { type: 'rule', title: 'Chain', markdown: '# Chain' };
    answers.show = {
      type: 'finding',
      text: 't',
      why_not: [{ code: 'mutated-input', message: 'm' }]
    };
    answers.report = { type: 'report', title: 'Cell 2', html: '<p>' };
    await act(ONE, 'explain');
    await actions.details(shared, ONE);
    await actions.report(open);
    expect(shown).toEqual([
      'page: FUS001: Chain | # Chain',
      'details: 5 kernels only shuttle memory mutated-input',
      'report: Cell 2 <p>'
    ]);
  });
});

describe('the cell that applies a fix again', () => {
  beforeEach(() => {
    answers.reapply_cell = {
      type: 'cell',
      source: 'import fused_f2\nfused_f2.apply(model)',
      path: 'fused_f2.py'
    };
  });

  it('comes below the cell of the call, as a code cell', async () => {
    await act(INSTALLED, 'reapply_cell');
    expect(sources()).toEqual([SOURCE, MODEL, 'import fused_f2\nfused_f2.apply(model)', 'z = 0']);
    expect(shared.cells[2].cell_type).toBe('code');
    expect(shown).toEqual([expect.stringContaining('fused_f2.py')]);
  });

  it('is not put into a read-only notebook', async () => {
    model.readOnly = true;
    await act(INSTALLED, 'reapply_cell');
    expect(sources()).toEqual([SOURCE, MODEL, 'z = 0']);
    expect(shown).toEqual([expect.stringContaining('read-only')]);
    // Nor is the module written that nothing would use.
    expect(sent).toEqual([]);
  });
});

describe('undo', () => {
  it('takes an edit of the cell back itself, and asks the kernel for the rest', async () => {
    const offered = proposal(SOURCE, [{ start: 4, end: 13, new: 'fused(x)' }]);
    answers.fuse = { type: 'proposal', ...offered };
    await act(ONE, 'fuse');
    expect(sources()[0]).toBe('y = fused(x)');
    expect(actions.canUndo(shared, ONE)).toBe(true);
    await actions.undo(open, null);
    expect(sources()[0]).toBe(SOURCE);
    expect(sent.map(message => message.type)).toEqual(['fuse', 'accepted', 'reverted']);
    await actions.undo(open, null);
    expect(sent[3]).toEqual({ type: 'undo', finding: null });
  });
});
