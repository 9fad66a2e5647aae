import type { YCodeCell, YNotebook } from '@jupyter/ydoc';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { KernelLink } from '../src/link';
import type { ISettings } from '../src/protocol';
import { RequestEnded } from '../src/requests';
import { FindingsStore } from '../src/store';
import { FakeKernel, FakeSession } from './fake_kernel';
import { finding, notebook } from './helpers';

const SETTINGS: ISettings = {
  target: 'auto',
  device: '',
  top: 5,
  min_saving_us: 2,
  marks: true
};

let kernel: FakeKernel;
let session: FakeSession;
let store: FindingsStore;
let shared: YNotebook;
let link: KernelLink;

beforeEach(() => {
  vi.useFakeTimers();
  kernel = new FakeKernel();
  store = new FindingsStore();
  shared = notebook('y = x + 1');
  store.open(shared, 'demo.ipynb');
});

afterEach(() => {
  link.dispose();
  vi.useRealTimers();
});

async function connect(): Promise<void> {
  session = new FakeSession(kernel);
  link = new KernelLink({
    store,
    notebook: shared,
    session: session.asSession(),
    settings: () => SETTINGS
  });
  await vi.advanceTimersByTimeAsync(0);
}

async function ready(): Promise<void> {
  kernel.load({ revision: 1, profiles: [], findings: [finding()] });
  await connect();
  expect(link.state).toBe('ready');
}

function request(type = 'fuse'): { req: string; answer: Promise<unknown> } {
  return link.request({ type, finding: 'F1' }, { label: 'Fuse', finding: 'F1', cancellable: true });
}

async function ended(answer: Promise<unknown>): Promise<RequestEnded> {
  const error = await answer.then(
    () => null,
    (reason: unknown) => reason
  );
  expect(error).toBeInstanceOf(RequestEnded);
  return error as RequestEnded;
}

const state = (): NonNullable<ReturnType<FindingsStore['get']>> => {
  const found = store.get(shared);
  if (!found) {
    throw new Error('The notebook is not open');
  }
  return found;
};

describe('opening', () => {
  it('greets with versions and settings, and takes the findings', async () => {
    await ready();
    expect(kernel.comm.opened).toMatchObject({
      type: 'hello',
      protocol: 1,
      package: '0.1.0',
      settings: SETTINGS
    });
    expect(state().findings.map(entry => entry.id)).toEqual(['F1']);
    expect(state().link).toBe('ready');
  });

  it('says "not loaded" when the kernel closes, and opens again when it announces itself', async () => {
    kernel.unload();
    await connect();
    expect(state().link).toBe('not loaded');
    expect(state().linkMessage).toContain('%load_ext fusion_advisor');
    kernel.load();
    kernel.announce();
    await vi.advanceTimersByTimeAsync(0);
    expect(state().link).toBe('ready');
    expect(kernel.comms).toHaveLength(2);
  });

  it('does not open a second comm when a kernel that is ready announces itself', async () => {
    await ready();
    kernel.announce();
    await vi.advanceTimersByTimeAsync(0);
    expect(kernel.comms).toHaveLength(1);
  });

  it('gives up after ten idle seconds, but waits as long as a cell runs', async () => {
    await connect();
    session.status('busy');
    await vi.advanceTimersByTimeAsync(25_000);
    expect(state().link).toBe('connecting');
    expect(state().linkMessage).toContain('running cell');
    session.status('idle');
    await vi.advanceTimersByTimeAsync(10_000);
    expect(state().link).toBe('not loaded');
  });

  it('explains a mismatch in the kernel’s words, and serves nothing after it', async () => {
    kernel.onOpen = comm => comm.tell({ type: 'mismatch', message: 'Upgrade to 0.2.' });
    await connect();
    expect(state()).toMatchObject({ link: 'mismatch', linkMessage: 'Upgrade to 0.2.' });
    kernel.comm.tell({ type: 'findings', revision: 1, profiles: [], findings: [finding()] });
    expect(state().findings).toEqual([]);
    expect((await ended(request().answer)).message).toBe('Upgrade to 0.2.');
    kernel.comm.closeByKernel();
    expect(state().link).toBe('mismatch');
  });

  it('sees a mismatch in a greeting: another protocol or minor version, not another patch', async () => {
    for (const [protocol, version, expected] of [
      [2, '0.1.0', 'mismatch'],
      [1, '0.2.0', 'mismatch'],
      [1, '0.1.7', 'ready']
    ] as const) {
      kernel = new FakeKernel();
      kernel.onOpen = comm => comm.tell({ type: 'hello', protocol, package: version });
      await connect();
      expect(state().link).toBe(expected);
      link.dispose();
    }
  });

  it('waits for the subshell where there are some, but not for ever', async () => {
    Object.assign(kernel, { supportsSubshells: true });
    const create = kernel.createComm.bind(kernel);
    kernel.createComm = () => Object.assign(create(), { subshellStarted: new Promise(() => {}) });
    kernel.load();
    await connect();
    expect(kernel.comm.opened).toBeNull();
    await vi.advanceTimersByTimeAsync(1_000);
    expect(state().link).toBe('ready');
  });

  it('hides the marks when %config switched them off', async () => {
    kernel.onOpen = comm =>
      comm.tell({ type: 'hello', protocol: 1, package: '0.1.0', config: { marks: false } });
    await connect();
    expect(state().marksOff).toBe(true);
  });
});

describe('a kernel that goes', () => {
  it('clears findings and ends requests at a restart, then asks again', async () => {
    await ready();
    const { answer } = request();
    kernel.unload();
    session.status('restarting');
    expect(state()).toMatchObject({ link: 'restarting', findings: [], jobs: [] });
    expect(state().notice?.text).toContain('restarted');
    expect((await ended(answer)).kind).toBe('kernel gone');
    session.status('idle');
    await vi.advanceTimersByTimeAsync(0);
    expect(state().link).toBe('not loaded');
  });

  it('takes the first list of the next kernel, though there was nothing to clear', async () => {
    kernel.load({ revision: 40, profiles: [], findings: [] });
    await connect();
    session.status('restarting');
    kernel.load({ revision: 1, profiles: [], findings: [finding()] });
    session.status('idle');
    await vi.advanceTimersByTimeAsync(0);
    expect(state().findings).toHaveLength(1);
  });

  it('says that it is dead', async () => {
    await ready();
    const { answer } = request();
    session.status('dead');
    expect(state().link).toBe('dead');
    expect((await ended(answer)).message).toContain('died');
  });

  it('leaves the old kernel and turns to the new one', async () => {
    await ready();
    const [old, oldComm] = [kernel, kernel.comm];
    const next = new FakeKernel();
    next.load({ revision: 0, profiles: [], findings: [] });
    session.change(next);
    await vi.advanceTimersByTimeAsync(0);
    expect(oldComm.closedByPage).toBe(true);
    expect(old.target).toBeNull();
    // The new kernel counts its revisions anew: its first list counts.
    expect(state()).toMatchObject({ link: 'ready', findings: [], revision: 0 });
    oldComm.tell({ type: 'findings', revision: 9, profiles: [], findings: [finding()] });
    expect(state().findings).toEqual([]);
  });

  it('has nothing to ask without a kernel', async () => {
    session = new FakeSession(null);
    link = new KernelLink({
      store,
      notebook: shared,
      session: session.asSession(),
      settings: () => SETTINGS
    });
    await vi.advanceTimersByTimeAsync(0);
    expect(state().link).toBe('no kernel');
    expect((await ended(request().answer)).message).toBe('The notebook has no kernel.');
  });

  it('asks for the list again after a lost connection', async () => {
    await ready();
    session.connectionStatusChanged.emit('connecting');
    session.connectionStatusChanged.emit('connected');
    expect(kernel.comm.last('list').req).toBeTruthy();
  });
});

describe('requests', () => {
  beforeEach(ready);

  it('go out with a name, show their stages, and resolve with the answer', async () => {
    const { req, answer } = request();
    expect(kernel.comm.last('fuse')).toEqual({ type: 'fuse', finding: 'F1', req });
    const { comm } = kernel;
    comm.tell({ type: 'started', req, where: 'child' });
    comm.tell({ type: 'progress', req, stage: 'compile sm_80', fraction: 0.5 });
    comm.tell({ type: 'progress', req, stage: 'compile sm_80', fraction: 0.9 });
    comm.tell({ type: 'progress', req, stage: 'native IR', fraction: 7 });
    expect(state().jobs[0]).toMatchObject({
      phase: 'running',
      stages: [
        { name: 'compile sm_80', fraction: 0.9 },
        { name: 'native IR', fraction: 1 }
      ]
    });
    comm.tell({ type: 'proposal', req, finding: 'F1' });
    await expect(answer).resolves.toMatchObject({ type: 'proposal' });
    expect(state().jobs).toEqual([]);
  });

  it('take only the answer with their own name', async () => {
    const first = request();
    const second = request('measure');
    kernel.comm.tell({ type: 'done', req: second.req, message: 'second' });
    await expect(second.answer).resolves.toMatchObject({ message: 'second' });
    expect(state().jobs.map(job => job.req)).toEqual([first.req]);
    kernel.comm.tell({ type: 'done', req: 'of-another-page', message: '' });
    expect(state().jobs).toHaveLength(1);
  });

  it('carry the rungs of a failure', async () => {
    const { req, answer } = request();
    const rungs = [{ name: 'native IR', status: 'failed', detail: 'nan_tail', seconds: 1 }];
    kernel.comm.tell({ type: 'failed', req, message: 'Wrong.', rungs });
    const error = await ended(answer);
    expect(error).toMatchObject({ kind: 'failed', message: 'Wrong.', rungs });
  });

  it('end after ten idle seconds without a start', async () => {
    const { answer } = request();
    await vi.advanceTimersByTimeAsync(9_999);
    expect(state().jobs).toHaveLength(1);
    await vi.advanceTimersByTimeAsync(1);
    expect((await ended(answer)).kind).toBe('no answer');
    expect(state().jobs).toEqual([]);
  });

  it('show that they are behind a running cell, wait for it, and then have ten seconds', async () => {
    session.status('busy');
    const { answer } = request();
    await vi.advanceTimersByTimeAsync(399);
    expect(state().jobs[0].phase).toBe('waiting');
    await vi.advanceTimersByTimeAsync(1);
    expect(state().jobs[0]).toMatchObject({
      phase: 'queued',
      message: 'Queued behind the running cell.'
    });
    await vi.advanceTimersByTimeAsync(60_000);
    expect(state().jobs).toHaveLength(1);
    session.status('idle');
    await vi.advanceTimersByTimeAsync(10_000);
    expect((await ended(answer)).kind).toBe('no answer');
  });

  it('know a running cell though the kernel says idle, as after each message of a subshell', async () => {
    const cell = shared.cells[0] as YCodeCell;
    cell.executionState = 'running';
    const { req, answer } = request('apply_live');
    await vi.advanceTimersByTimeAsync(60_000);
    expect(state().jobs[0].phase).toBe('queued');
    kernel.comm.tell({ type: 'started', req, where: 'between-cells' });
    expect(state().jobs[0].phase).toBe('queued');
    cell.executionState = 'idle';
    kernel.comm.tell({ type: 'progress', req, stage: 'swapping', fraction: 0 });
    expect(state().jobs[0].phase).toBe('running');
    kernel.comm.tell({ type: 'done', req, message: '' });
    await answer;
  });

  it('say so after two minutes of silence, and go on', async () => {
    const { req, answer } = request();
    kernel.comm.tell({ type: 'started', req, where: 'child' });
    await vi.advanceTimersByTimeAsync(119_000);
    kernel.comm.tell({ type: 'progress', req, stage: 'compile', fraction: 0 });
    await vi.advanceTimersByTimeAsync(119_000);
    expect(state().jobs[0].phase).toBe('running');
    await vi.advanceTimersByTimeAsync(1_000);
    expect(state().jobs[0]).toMatchObject({ phase: 'stalled', cancellable: true });
    kernel.comm.tell({ type: 'progress', req, stage: 'compile', fraction: 1 });
    expect(state().jobs[0].phase).toBe('running');
    kernel.comm.tell({ type: 'done', req, message: 'late' });
    await expect(answer).resolves.toMatchObject({ message: 'late' });
  });

  it('do not call a job between cells stalled while the cell runs', async () => {
    const { req } = request('apply_live');
    kernel.comm.tell({ type: 'queued', req, message: 'queued behind the running cell' });
    await vi.advanceTimersByTimeAsync(600_000);
    expect(state().jobs[0]).toMatchObject({
      phase: 'queued',
      message: 'queued behind the running cell'
    });
  });

  it('are cancelled by message, never by interrupt, and end with the kernel’s word', async () => {
    const { req, answer } = request();
    kernel.comm.tell({ type: 'started', req, where: 'child' });
    link.cancel(req);
    link.cancel(req);
    expect(kernel.comm.sent.filter(data => data.type === 'cancel')).toEqual([
      { type: 'cancel', req }
    ]);
    kernel.comm.tell({ type: 'progress', req, stage: 'compile', fraction: 0.5 });
    expect(state().jobs[0].phase).toBe('cancelling');
    kernel.comm.tell({ type: 'cancelled', req, message: 'Cancelled; nothing was edited.' });
    expect(await ended(answer)).toMatchObject({
      kind: 'cancelled',
      message: 'Cancelled; nothing was edited.'
    });
  });

  it('do not claim a cancel that the kernel has not confirmed', async () => {
    session.status('busy');
    const { req, answer } = request();
    link.cancel(req);
    await vi.advanceTimersByTimeAsync(5_000);
    const error = await ended(answer);
    expect(error.message).toContain('has not confirmed');
    expect(error.message).toContain('running a cell');
  });

  it('end when the kernel unloads the extension', async () => {
    const { answer } = request();
    kernel.comm.closeByKernel();
    expect((await ended(answer)).message).toContain('unloaded');
    expect(state().link).toBe('not loaded');
  });

  it('leave messages without sense alone', () => {
    kernel.comm.tell({ nonsense: 1 });
    kernel.comm.onMsg({ content: { data: null } });
    kernel.comm.tell({ type: 'findings', revision: 2, profiles: 3, findings: [null, { id: 7 }] });
    expect(state().findings).toEqual([]);
    expect(state().link).toBe('ready');
  });
});

describe('whenReady', () => {
  it('resolves at once, when ready comes, or after its time', async () => {
    kernel.unload();
    await connect();
    const waiting = link.whenReady(1_000);
    kernel.load();
    kernel.announce();
    await vi.advanceTimersByTimeAsync(0);
    await expect(waiting).resolves.toBe(true);
    await expect(link.whenReady(0)).resolves.toBe(true);
    session.status('dead');
    const late = link.whenReady(1_000);
    await vi.advanceTimersByTimeAsync(1_000);
    await expect(late).resolves.toBe(false);
  });
});

describe('the end of the session', () => {
  it('closes the comm while the kernel can hear it, and counts as a cancel', async () => {
    await ready();
    const { answer } = request();
    session.disposed.emit();
    expect(kernel.comm.closedByPage).toBe(true);
    session.change(null);
    const error = await ended(answer);
    expect(error.kind).toBe('cancelled');
    expect(error.message).toContain('notebook was closed');
  });

  it('does not take a kernel that was shut down for a change of kernels', async () => {
    await ready();
    const { answer } = request();
    session.change(null);
    expect((await ended(answer)).message).toBe('The kernel was shut down.');
    expect(state().link).toBe('no kernel');
  });
});
