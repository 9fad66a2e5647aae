import type { YCodeCell, YNotebook } from '@jupyter/ydoc';
import { PromiseDelegate } from '@lumino/coreutils';
import { beforeEach, describe, expect, it } from 'vitest';
import { fuseInPlace, IFuseContext, IFuseScreen, review } from '../src/fuse';
import { FusedCells } from '../src/fused_cells';
import { sha256 } from '../src/hash';
import type { IProposal, Message } from '../src/protocol';
import { RequestEnded } from '../src/requests';
import { FindingsStore } from '../src/store';
import { finding, markOf, notebook, proposal } from './helpers';

const SOURCE = '# 🚀\ny = x * 2 + 1';
const FINDING = finding({ mark: markOf(SOURCE, 'x * 2 + 1') });
const EDITS = [
  { start: 0, end: 0, new: '@cuda.jit\ndef fused(x): ...\n' },
  { start: 9, end: 18, new: 'fused(x)' }
];
const FUSED = '@cuda.jit\ndef fused(x): ...\n# 🚀\ny = fused(x)';

let store: FindingsStore;
let shared: YNotebook;
let cell: YCodeCell;
let sent: Message[];
let answer: PromiseDelegate<Message>;
let refused: string[];
let informed: string[];
let context: IFuseContext;
let screen: IFuseScreen & { watched: 'shown' | 'hidden' };
/** What the person does while the preview is open; the result is Accept or not. */
let decide: (proposal: IProposal, source: string) => boolean;

beforeEach(() => {
  store = new FindingsStore();
  shared = notebook(SOURCE, 'z = 0');
  cell = shared.cells[0] as YCodeCell;
  store.open(shared, 'demo.ipynb');
  store.dispatch(shared, {
    kind: 'findings',
    message: { revision: 1, busy: false, profiles: [], findings: [FINDING] }
  });
  sent = [];
  refused = [];
  informed = [];
  answer = new PromiseDelegate();
  decide = () => true;
  screen = {
    watched: 'shown',
    watch: async ({ ended }) => {
      await ended;
      return screen.watched;
    },
    preview: (_, offered, source) => Promise.resolve(decide(offered, source)),
    refuse: (_, message) => refused.push(message),
    inform: message => informed.push(message)
  };
  const link = {
    state: 'ready' as const,
    request: (data: Message) => {
      sent.push(data);
      const done = Promise.resolve<Message>({ type: 'done', message: '' });
      return { req: 'r1', answer: data.type === 'fuse' ? answer.promise : done };
    }
  };
  context = {
    store,
    notebook: shared,
    link,
    fused: new FusedCells(shared, store, link),
    screen,
    readOnly: () => ''
  };
});

const offer = (change: Partial<IProposal> = {}): void =>
  answer.resolve({ type: 'proposal', ...proposal(SOURCE, EDITS, change) });
const kinds = (): string[] => sent.map(message => message.type);
const shownState = (): string | undefined => store.shownById(shared, 'F1')?.state;

describe('fuse in place', () => {
  it('sends the text, edits on Accept, and tells the kernel the new text’s hash', async () => {
    offer();
    await fuseInPlace(context, FINDING);
    expect(sent[0]).toEqual({ type: 'fuse', finding: 'F1', source: SOURCE });
    expect(cell.getSource()).toBe(FUSED);
    expect(sent[1]).toEqual({ type: 'accepted', finding: 'F1', new_source_hash: sha256(FUSED) });
    expect(shownState()).toBe('applied');
  });

  it('changes nothing on Cancel', async () => {
    decide = () => false;
    offer();
    await fuseInPlace(context, FINDING);
    expect(cell.getSource()).toBe(SOURCE);
    expect(cell.canUndo()).toBe(false);
    expect(kinds()).toEqual(['fuse']);
  });

  it('refuses when the text changed while the preview was open', async () => {
    decide = () => {
      cell.updateSource(SOURCE.length, SOURCE.length, '  ');
      return true;
    };
    offer();
    await fuseInPlace(context, FINDING);
    expect(cell.getSource()).toBe(`${SOURCE}  `);
    expect(refused[0]).toContain('has changed');
    expect(kinds()).toEqual(['fuse']);
  });

  it('takes a restarted kernel’s finding of the same name for another one', async () => {
    const OTHER = 'z = 0';
    decide = () => {
      store.dispatch(shared, { kind: 'cleared', reason: 'The kernel restarted.' });
      const mark = markOf(OTHER, '0', 'cell-1');
      store.dispatch(shared, {
        kind: 'findings',
        message: { revision: 1, busy: false, profiles: [], findings: [finding({ mark })] }
      });
      return true;
    };
    offer();
    await fuseInPlace(context, FINDING);
    expect(cell.getSource()).toBe(FUSED);
    expect(kinds()).toEqual(['fuse']);
    expect(shownState()).toBe('open');
    expect(context.fused.last).toBeNull();
  });

  it('edits nothing after a failed validation, even when accepted', async () => {
    offer({ passed: false, message: 'nan_tail differs' });
    await fuseInPlace(context, FINDING);
    expect(cell.getSource()).toBe(SOURCE);
    expect(kinds()).toEqual(['fuse']);
  });

  it('does not ask for what is stale, ignored or read-only, and says why', async () => {
    cell.setSource('y = x * 3 + 1');
    await fuseInPlace(context, FINDING);
    cell.setSource(`${SOURCE}  # fuse: ignore`);
    await fuseInPlace(context, FINDING);
    cell.setSource(SOURCE);
    context.readOnly = () => 'The notebook is read-only; nothing was edited.';
    await fuseInPlace(context, FINDING);
    expect(refused).toHaveLength(3);
    expect(refused[0]).toContain('stale');
    expect(refused[1]).toContain('ignored');
    expect(refused[2]).toContain('read-only');
    expect(sent).toEqual([]);
  });

  it('does not edit a cell deleted while the preview was open', async () => {
    decide = () => {
      shared.deleteCell(0);
      return true;
    };
    offer();
    await fuseInPlace(context, FINDING);
    expect(refused[0]).toContain('not in the notebook');
    expect(shared.cells.map(other => other.getSource())).toEqual(['z = 0']);
  });

  it('shows the reason of a failure, and only informs of a cancel', async () => {
    answer.reject(new RequestEnded('failed', 'No kernel: random op.'));
    await fuseInPlace(context, FINDING);
    expect(refused).toEqual(['No kernel: random op.']);
    answer = new PromiseDelegate();
    answer.reject(new RequestEnded('cancelled', 'Cancelled; nothing was edited.'));
    await fuseInPlace(context, FINDING);
    expect(refused).toHaveLength(1);
    expect(informed).toEqual(['Cancelled; nothing was edited.']);
  });

  it('keeps a proposal whose dialog was hidden for review, and drops it once reviewed', async () => {
    screen.watched = 'hidden';
    offer();
    await fuseInPlace(context, FINDING);
    expect(cell.getSource()).toBe(SOURCE);
    const waiting = store.get(shared)?.proposals.F1;
    expect(waiting?.source).toBe(SOURCE);
    if (waiting) {
      await review(context, FINDING, waiting.proposal, waiting.source);
    }
    expect(cell.getSource()).toBe(FUSED);
    expect(store.get(shared)?.proposals).toEqual({});
  });
});

describe('after the edit', () => {
  beforeEach(async () => {
    offer();
    await fuseInPlace(context, FINDING);
    sent = [];
  });

  it('one undo in the cell reverts, one redo accepts again', () => {
    cell.undo();
    context.fused.textChanged();
    expect(cell.getSource()).toBe(SOURCE);
    expect(sent).toEqual([{ type: 'reverted', finding: 'F1' }]);
    expect(shownState()).toBe('open');
    cell.redo();
    context.fused.textChanged();
    expect(kinds()).toEqual(['reverted', 'accepted']);
    expect(shownState()).toBe('applied');
  });

  it('typing in the fused cell tells nothing', () => {
    cell.updateSource(0, 0, '# note\n');
    context.fused.textChanged();
    expect(sent).toEqual([]);
    expect(context.fused.canUndo(FINDING)).toBe(true);
  });

  it('undo by command restores the original, and is itself one undo step', () => {
    expect(context.fused.last?.id).toBe('F1');
    expect(context.fused.undo(FINDING)).toBe('');
    expect(cell.getSource()).toBe(SOURCE);
    expect(kinds()).toEqual(['reverted']);
    cell.undo();
    expect(cell.getSource()).toBe(FUSED);
  });

  it('undo by command refuses a cell edited since, and changes nothing', () => {
    cell.updateSource(0, 0, '# note\n');
    expect(context.fused.undo(FINDING)).toContain('edited since');
    expect(cell.getSource()).toBe(`# note\n${FUSED}`);
  });

  it('a new profile’s F1 is not the old one’s', () => {
    const next = finding({ advice: 2 });
    context.fused.keepOnly({ findings: [next] });
    expect(context.fused.canUndo(next)).toBe(false);
    cell.undo();
    context.fused.textChanged();
    expect(sent).toEqual([]);
  });
});
