/** A kernel connection that speaks the protocol: what it was sent is kept, answers are told. */

import type { Kernel } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import type { Session } from '../src/link';
import { PACKAGE_VERSION } from '../src/version';

export type Data = Record<string, unknown>;

export class FakeComm {
  isDisposed = false;
  opened: Data | null = null;
  sent: Data[] = [];
  closedByPage = false;
  onMsg: (message: unknown) => void = () => undefined;
  onClose: (message: unknown) => void = () => undefined;

  constructor(private readonly _kernel: FakeKernel) {}

  open(data: Data): void {
    this.opened = data;
    this._kernel.onOpen(this);
  }

  send(data: Data): void {
    this.sent.push(data);
  }

  close(): void {
    this.closedByPage = true;
    this.dispose();
  }

  dispose(): void {
    this.isDisposed = true;
  }

  /** The kernel sends. */
  tell(data: Data): void {
    this.onMsg({ content: { data } });
  }

  /** The kernel closes. */
  closeByKernel(): void {
    this.onClose({});
    this.dispose();
  }

  last(type: string): Data {
    const found = [...this.sent].reverse().find(data => data.type === type);
    if (!found) {
      throw new Error(`Nothing of type ${type} was sent`);
    }
    return found;
  }
}

export class FakeKernel {
  status: Kernel.Status = 'idle';
  comms: FakeComm[] = [];
  target: ((comm: FakeComm) => void) | null = null;
  info = Promise.resolve({ language_info: { name: 'python' } });
  /** What the kernel does when a comm is opened; by default nothing yet. */
  onOpen: (comm: FakeComm) => void = () => undefined;

  createComm(): FakeComm {
    const comm = new FakeComm(this);
    this.comms.push(comm);
    return comm;
  }

  registerCommTarget(_: string, target: (comm: FakeComm) => void): void {
    this.target = target;
  }

  removeCommTarget(_: string, target: (comm: FakeComm) => void): void {
    if (this.target === target) {
      this.target = null;
    }
  }

  get comm(): FakeComm {
    return this.comms[this.comms.length - 1];
  }

  /** The extension is loaded: whoever opens is greeted and told. */
  load(findings: Data = { revision: 1, profiles: [], findings: [] }): void {
    this.onOpen = comm => {
      comm.tell({ type: 'hello', protocol: 1, package: PACKAGE_VERSION, config: { marks: true } });
      comm.tell({ type: 'findings', ...findings });
    };
  }

  /** The extension is not there: the kernel closes what is opened. */
  unload(): void {
    this.onOpen = comm => comm.closeByKernel();
  }

  announce(): void {
    this.target?.(new FakeComm(this));
  }
}

export class FakeSession {
  session: { kernel: FakeKernel | null } = { kernel: null };
  ready = Promise.resolve();
  disposed = new Signal<this, void>(this);
  kernelChanged = new Signal<this, { newValue: FakeKernel | null }>(this);
  statusChanged = new Signal<this, Kernel.Status>(this);
  connectionStatusChanged = new Signal<this, Kernel.ConnectionStatus>(this);

  constructor(kernel: FakeKernel | null) {
    this.session.kernel = kernel;
  }

  status(status: Kernel.Status): void {
    if (this.session.kernel) {
      this.session.kernel.status = status;
    }
    this.statusChanged.emit(status);
  }

  change(kernel: FakeKernel | null): void {
    this.session.kernel = kernel;
    this.kernelChanged.emit({ newValue: kernel });
  }

  asSession(): Session {
    return this as unknown as Session;
  }
}
