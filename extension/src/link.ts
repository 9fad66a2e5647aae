/**
 * The comm between one notebook and its kernel: opened on attach, opened again when the kernel
 * announces the extension, dropped with a reason when the kernel restarts, dies or changes.
 */

import type { ISharedCodeCell } from '@jupyter/ydoc';
import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject, UUID } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';
import { asMessage, ISettings, Message, readFindings, text } from './protocol';
import { IRequest, IRequestOptions, RequestEnded, Requests, START_LIMIT_MS } from './requests';
import type { LinkState } from './state';
import type { FindingsStore, SharedNotebook } from './store';
import { COMM_TARGET, PACKAGE_VERSION, PROTOCOL } from './version';

/** A kernel that can run comms beside a cell has its subshell within this, or goes without. */
const SUBSHELL_LIMIT_MS = 1_000;

const NOT_LOADED = 'Run %load_ext fusion_advisor in the notebook, or “Profile this cell”.';

export type Session = Pick<
  ISessionContext,
  'session' | 'kernelChanged' | 'statusChanged' | 'connectionStatusChanged' | 'ready' | 'disposed'
>;

export interface ILinkOptions {
  store: FindingsStore;
  notebook: SharedNotebook;
  session: Session;
  settings: () => ISettings;
}

export class KernelLink implements IDisposable {
  private readonly _client = UUID.uuid4();
  private readonly _requests: Requests;
  private readonly _stateChanged = new Signal<this, LinkState>(this);
  private _kernel: Kernel.IKernelConnection | null = null;
  private _comm: Kernel.IComm | null = null;
  private _state: LinkState = 'no kernel';
  private _helloTimer = 0;
  private _opening = 0;
  private _isDisposed = false;

  constructor(private readonly _options: ILinkOptions) {
    const { notebook, session, store } = _options;
    this._requests = new Requests({
      send: data => this._send(data),
      isBusy: () => this.isBusy,
      jobChanged: job => store.dispatch(notebook, { kind: 'job', job }),
      jobEnded: req => store.dispatch(notebook, { kind: 'job ended', req })
    });
    session.kernelChanged.connect(this._onKernelChanged, this);
    session.statusChanged.connect(this._onStatus, this);
    session.connectionStatusChanged.connect(this._onConnection, this);
    // Before the session goes: a kernel that lives on must hear that nobody waits any more.
    session.disposed.connect(this.dispose, this);
    void session.ready.then(() => {
      if (!this._isDisposed) {
        this._attach(session.session?.kernel ?? null);
      }
    });
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get state(): LinkState {
    return this._state;
  }

  /** Why the link is not ready, and what to do. */
  get explanation(): string {
    const state = this._options.store.get(this._options.notebook);
    return state?.linkMessage || 'The kernel is not connected.';
  }

  get stateChanged(): ISignal<this, LinkState> {
    return this._stateChanged;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel;
  }

  /**
   * Whether a cell runs. The kernel's status alone does not tell: each message that a subshell
   * handles beside the cell ends with an "idle".
   */
  get isBusy(): boolean {
    return (
      this._kernel?.status === 'busy' ||
      this._options.notebook.cells.some(
        cell => cell.cell_type === 'code' && (cell as ISharedCodeCell).executionState === 'running'
      )
    );
  }

  /** Send a request. Its answer is refused with `RequestEnded` when it comes to nothing. */
  request(data: Message, options: IRequestOptions): IRequest {
    if (this._state !== 'ready') {
      const answer = Promise.reject(new RequestEnded('kernel gone', this.explanation));
      answer.catch(() => undefined);
      return { req: '', answer };
    }
    return this._requests.send(data, options);
  }

  /** Send what has no answer; nothing happens while no kernel listens. */
  tell(data: Message): void {
    if (this._state === 'ready') {
      this._send(data);
    }
  }

  cancel(req: string): void {
    this._requests.cancel(req);
  }

  /** Ask the kernel again, unless it is being asked or has answered. */
  reopen(): void {
    if (this._kernel && !['ready', 'connecting', 'mismatch'].includes(this._state)) {
      void this._open(this._kernel);
    }
  }

  /** Resolves true when the kernel's side is ready, false when it is not within the time. */
  whenReady(limitMs: number): Promise<boolean> {
    if (this._state === 'ready') {
      return Promise.resolve(true);
    }
    return new Promise(resolve => {
      const finish = (ready: boolean): void => {
        window.clearTimeout(timer);
        this._stateChanged.disconnect(look);
        resolve(ready);
      };
      const look = (_: KernelLink, state: LinkState): void => {
        if (state === 'ready' || state === 'mismatch' || state === 'dead') {
          finish(state === 'ready');
        }
      };
      const timer = window.setTimeout(() => finish(false), limitMs);
      this._stateChanged.connect(look);
    });
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    this._requests.endAll('The notebook was closed; the job was cancelled.', 'cancelled');
    this._detach('The notebook was closed.');
    Signal.clearData(this);
  }

  private _onKernelChanged(
    _: unknown,
    change: { newValue: Kernel.IKernelConnection | null | undefined }
  ): void {
    this._attach(change.newValue ?? null);
  }

  private _onStatus(_: unknown, status: Kernel.Status): void {
    if (status === 'restarting' || status === 'autorestarting') {
      this._drop('The kernel restarted: profile again.');
      this._setState('restarting', 'The kernel is restarting.');
    } else if (status === 'dead') {
      this._drop('The kernel died.');
      this._setState('dead', 'The kernel is dead. Restart it, then profile again.');
    } else if (status === 'idle') {
      this._requests.kernelIdle();
      // After a restart the extension may be loaded by the person's IPython configuration.
      if ((this._state === 'restarting' || this._state === 'dead') && this._kernel) {
        void this._open(this._kernel);
      }
    }
  }

  private _onConnection(_: unknown, status: Kernel.ConnectionStatus): void {
    // Broadcasts sent while the connection was down are lost: ask for the present state.
    if (status === 'connected' && this._state === 'ready') {
      this.request({ type: 'list' }, { label: 'Findings', silent: true });
    }
  }

  private _attach(kernel: Kernel.IKernelConnection | null): void {
    if (this._isDisposed || (kernel && this._kernel === kernel)) {
      return;
    }
    const lost = kernel ? 'The notebook has another kernel now.' : 'The kernel was shut down.';
    this._detach(this._kernel ? lost : '');
    this._kernel = kernel;
    if (!kernel) {
      this._setState('no kernel', 'The notebook has no kernel.');
      return;
    }
    kernel.registerCommTarget(COMM_TARGET, this._onAnnounce);
    void this._open(kernel);
  }

  private _detach(reason: string): void {
    const comm = this._comm;
    this._comm = null;
    this._drop(reason);
    this._kernel?.removeCommTarget(COMM_TARGET, this._onAnnounce);
    if (comm && !comm.isDisposed) {
      comm.onClose = () => undefined;
      try {
        comm.close();
      } catch {
        comm.dispose();
      }
    }
    this._kernel = null;
  }

  /** Forget the comm and what it told, and end all requests. */
  private _drop(reason: string): void {
    const { notebook, store } = this._options;
    this._opening++;
    window.clearTimeout(this._helloTimer);
    this._leaveComm();
    this._requests.endAll(reason || 'The kernel has gone.');
    const known = store.get(notebook);
    const lost = known && (known.findings.length > 0 || known.profiles.length > 0);
    // Also without findings: the next kernel counts its revisions from the beginning.
    store.dispatch(notebook, { kind: 'cleared', reason: lost ? reason : '' });
  }

  /**
   * Forget the comm without disposing of it: the kernel may still close it, and JupyterLab logs an
   * error for the closing of a comm that it does not know. A kernel's end disposes of all of them.
   */
  private _leaveComm(): void {
    if (this._comm) {
      this._comm.onMsg = () => undefined;
      this._comm.onClose = () => undefined;
      this._comm = null;
    }
  }

  /** The kernel has loaded the extension: whatever was opened before had no listener. */
  private _onAnnounce = (comm: Kernel.IComm): void => {
    comm.onClose = () => undefined;
    if (this._kernel && this._state !== 'ready' && !this._isDisposed) {
      void this._open(this._kernel);
    }
  };

  private async _open(kernel: Kernel.IKernelConnection): Promise<void> {
    const opening = ++this._opening;
    this._leaveComm();
    this._setState('connecting', 'Asking the kernel for findings.');
    const comm = kernel.createComm(COMM_TARGET);
    await subshell(kernel, comm);
    if (opening !== this._opening || this._isDisposed || comm.isDisposed) {
      comm.dispose();
      return;
    }
    this._comm = comm;
    comm.onMsg = message => this._onMessage(comm, message);
    comm.onClose = () => this._onClosed(comm);
    try {
      comm.open(this._hello());
    } catch {
      this._onClosed(comm);
      return;
    }
    this._watchHello();
  }

  private _hello(): JSONObject {
    return {
      type: 'hello',
      protocol: PROTOCOL,
      package: PACKAGE_VERSION,
      client: this._client,
      settings: { ...this._options.settings() }
    };
  }

  private _watchHello(): void {
    window.clearTimeout(this._helloTimer);
    this._helloTimer = window.setTimeout(() => {
      if (this._state !== 'connecting') {
        return;
      }
      if (this.isBusy) {
        this._setState('connecting', 'Waiting for the running cell.');
        this._watchHello();
      } else {
        this._setState('not loaded', NOT_LOADED);
      }
    }, START_LIMIT_MS);
  }

  private _onClosed(comm: Kernel.IComm): void {
    if (this._comm !== comm) {
      return;
    }
    this._comm = null;
    window.clearTimeout(this._helloTimer);
    this._requests.endAll('The kernel unloaded Fusion Advisor.');
    // A mismatch has been explained; that the kernel then closes adds nothing.
    if (this._state !== 'mismatch') {
      this._setState('not loaded', NOT_LOADED);
    }
  }

  private _onMessage(comm: Kernel.IComm, message: KernelMessage.ICommMsgMsg): void {
    const data = asMessage(message.content.data);
    if (!data || this._comm !== comm) {
      return;
    }
    const { notebook, store } = this._options;
    if (data.type === 'hello') {
      this._onHello(data);
    } else if (data.type === 'mismatch') {
      this._mismatch(text(data.message));
    } else if (this._state !== 'mismatch') {
      if (data.type === 'findings') {
        store.dispatch(notebook, { kind: 'findings', message: readFindings(data) });
      }
      if (data.req !== undefined) {
        this._requests.receive(data);
      }
    }
  }

  private _onHello(data: Message): void {
    window.clearTimeout(this._helloTimer);
    const theirs = text(data.package);
    if (data.protocol !== PROTOCOL || !sameMinor(theirs, PACKAGE_VERSION)) {
      this._mismatch('');
      return;
    }
    const config = data.config as { marks?: boolean } | null | undefined;
    const off = config?.marks === false && this._options.settings().marks;
    this._options.store.dispatch(this._options.notebook, { kind: 'marks off', off });
    this._setState('ready', '');
  }

  private _mismatch(message: string): void {
    window.clearTimeout(this._helloTimer);
    this._requests.endAll('The kernel has another version of Fusion Advisor.');
    this._setState(
      'mismatch',
      message ||
        `The kernel’s fusion_advisor does not match this page’s ${PACKAGE_VERSION}. Install the ` +
          'same version where the kernel and where Jupyter run, then reload the page.'
    );
  }

  private _send(data: Record<string, unknown>): void {
    if (!this._comm || this._comm.isDisposed) {
      throw new Error(this.explanation);
    }
    this._comm.send(data as JSONObject);
  }

  private _setState(link: LinkState, message: string): void {
    this._state = link;
    this._options.store.dispatch(this._options.notebook, { kind: 'link', link, message });
    this._stateChanged.emit(link);
  }
}

function sameMinor(one: string, other: string): boolean {
  const minor = (version: string): string => version.split('.').slice(0, 2).join('.');
  return minor(one) === minor(other);
}

/** Wait for the comm's subshell where kernel and JupyterLab have them (since 4.4). */
async function subshell(kernel: Kernel.IKernelConnection, comm: Kernel.IComm): Promise<void> {
  const started = (comm as { subshellStarted?: Promise<void> }).subshellStarted;
  if (!started) {
    return;
  }
  let timer = 0;
  const limit = new Promise<void>(resolve => {
    timer = window.setTimeout(resolve, SUBSHELL_LIMIT_MS);
  });
  const ready = kernel.info.then(() =>
    (kernel as { supportsSubshells?: boolean }).supportsSubshells ? started : undefined
  );
  // A kernel that cannot be asked goes without, like one that is slow.
  await Promise.race([ready.catch(() => undefined), limit]);
  window.clearTimeout(timer);
}
