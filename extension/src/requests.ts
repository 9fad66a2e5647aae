/**
 * Requests to the kernel that wait for their answer: told apart by `req`, watched for silence,
 * cancelled by message, and all of them ended with a reason when the kernel goes.
 */

import { PromiseDelegate, UUID } from '@lumino/coreutils';
import { IRung, Message, readRungs, text } from './protocol';
import type { IJob } from './state';

/** A busy kernel that has not begun after this long has our request behind the running cell. */
export const QUEUED_AFTER_MS = 400;
/** An idle kernel begins a request at once; after this long it is not going to. */
export const START_LIMIT_MS = 10_000;
/** Compiling a large kernel takes a minute; silence of two is worth saying. */
export const STALLED_AFTER_MS = 120_000;
/** A kernel that can hear a cancel answers it at once; one that runs a cell may not. */
export const CANCEL_LIMIT_MS = 5_000;

export type EndKind = 'failed' | 'cancelled' | 'no answer' | 'kernel gone';

export class RequestEnded extends Error {
  constructor(
    readonly kind: EndKind,
    message: string,
    readonly rungs: IRung[] = []
  ) {
    super(message);
  }
}

export interface IRequestOptions {
  label: string;
  finding?: string | null;
  cancellable?: boolean;
  /** Not shown as a job: answered at once, of no interest while it runs. */
  silent?: boolean;
}

export interface IRequest {
  req: string;
  answer: Promise<Message>;
}

/** What requests need of the link that carries them. */
export interface ICarrier {
  send(data: Record<string, unknown>): void;
  isBusy(): boolean;
  jobChanged(job: IJob): void;
  jobEnded(req: string): void;
}

interface IPending {
  job: IJob;
  silent: boolean;
  started: boolean;
  answer: PromiseDelegate<Message>;
  timers: Partial<Record<'queued' | 'start' | 'stalled' | 'cancel', number>>;
}

export class Requests {
  private readonly _pending = new Map<string, IPending>();

  constructor(private readonly _carrier: ICarrier) {}

  send(data: Message, options: IRequestOptions): IRequest {
    const req = UUID.uuid4();
    const job: IJob = {
      req,
      label: options.label,
      finding: options.finding ?? null,
      phase: 'waiting',
      stages: [],
      message: '',
      cancellable: options.cancellable ?? false
    };
    const pending: IPending = {
      job,
      silent: options.silent ?? false,
      started: false,
      answer: new PromiseDelegate<Message>(),
      timers: {}
    };
    this._pending.set(req, pending);
    // The caller may look at the answer later; until then a refusal is no unhandled error.
    pending.answer.promise.catch(() => undefined);
    try {
      this._carrier.send({ ...data, req });
    } catch (error) {
      this._end(pending, new RequestEnded('kernel gone', String(error)));
      return { req, answer: pending.answer.promise };
    }
    this._watchStart(pending);
    this._show(pending, {});
    return { req, answer: pending.answer.promise };
  }

  cancel(req: string): void {
    const pending = this._pending.get(req);
    if (!pending || pending.job.phase === 'cancelling') {
      return;
    }
    try {
      this._carrier.send({ type: 'cancel', req });
    } catch (error) {
      this._end(pending, new RequestEnded('kernel gone', String(error)));
      return;
    }
    this._clearTimers(pending);
    this._show(pending, { phase: 'cancelling', message: 'Cancelling.' });
    pending.timers.cancel = window.setTimeout(() => {
      const busy = this._carrier.isBusy() ? ' It is running a cell and may do so afterwards.' : '';
      const said = `Cancel was asked for; the kernel has not confirmed it.${busy}`;
      this._end(pending, new RequestEnded('cancelled', said));
    }, CANCEL_LIMIT_MS);
  }

  /** Take a message that carries a `req`. False when no request waits for it. */
  receive(message: Message): boolean {
    const pending = this._pending.get(text(message.req));
    if (!pending) {
      return false;
    }
    pending.started = true;
    window.clearTimeout(pending.timers.queued);
    window.clearTimeout(pending.timers.start);
    switch (message.type) {
      case 'started':
        this._watchSilence(pending);
        this._show(pending, {
          message: '',
          phase: message.where === 'between-cells' && this._carrier.isBusy() ? 'queued' : 'running'
        });
        return true;
      case 'queued':
        this._watchSilence(pending);
        this._show(pending, { phase: 'queued', message: text(message.message) });
        return true;
      case 'progress':
        this._watchSilence(pending);
        this._progress(pending, text(message.stage), Number(message.fraction) || 0);
        return true;
      case 'failed':
        this._end(
          pending,
          new RequestEnded('failed', text(message.message), readRungs(message.rungs))
        );
        return true;
      case 'cancelled':
        this._end(pending, new RequestEnded('cancelled', text(message.message) || 'Cancelled.'));
        return true;
      default:
        this._end(pending, message);
        return true;
    }
  }

  /** The kernel has become idle: what was behind the running cell must begin now. */
  kernelIdle(): void {
    for (const pending of this._pending.values()) {
      if (!pending.started && pending.timers.cancel === undefined) {
        window.clearTimeout(pending.timers.start);
        this._watchStart(pending);
      }
    }
  }

  /** End every request with a reason. */
  endAll(reason: string, kind: EndKind = 'kernel gone'): void {
    for (const pending of [...this._pending.values()]) {
      this._end(pending, new RequestEnded(kind, reason));
    }
  }

  private _watchStart(pending: IPending): void {
    window.clearTimeout(pending.timers.queued);
    pending.timers.queued = window.setTimeout(() => {
      if (this._carrier.isBusy()) {
        this._show(pending, { phase: 'queued', message: 'Queued behind the running cell.' });
      }
    }, QUEUED_AFTER_MS);
    pending.timers.start = window.setTimeout(() => {
      // While a cell runs there is nothing to wait for; `kernelIdle` starts the clock again.
      if (!this._carrier.isBusy()) {
        const said = 'The kernel did not answer. Run %load_ext fusion_advisor and try again.';
        this._end(pending, new RequestEnded('no answer', said));
      }
    }, START_LIMIT_MS);
  }

  private _watchSilence(pending: IPending): void {
    window.clearTimeout(pending.timers.stalled);
    pending.timers.stalled = window.setTimeout(() => {
      if (pending.job.phase !== 'queued') {
        const said = 'No word from the kernel for two minutes. It may still be compiling.';
        this._show(pending, { phase: 'stalled', message: said });
      }
    }, STALLED_AFTER_MS);
  }

  private _progress(pending: IPending, name: string, fraction: number): void {
    const stages = [...pending.job.stages];
    const present = { name, fraction: Math.min(1, Math.max(0, fraction)) };
    if (stages.length > 0 && stages[stages.length - 1].name === name) {
      stages.pop();
    }
    const phase = pending.job.phase === 'cancelling' ? 'cancelling' : 'running';
    this._show(pending, { phase, stages: [...stages, present], message: '' });
  }

  private _show(pending: IPending, change: Partial<IJob>): void {
    const cancelling = pending.job.phase === 'cancelling';
    pending.job = { ...pending.job, ...change };
    if (cancelling) {
      // What still arrives on the way out does not undo the person's word.
      pending.job = { ...pending.job, phase: 'cancelling', message: 'Cancelling.' };
    }
    if (!pending.silent && this._pending.has(pending.job.req)) {
      this._carrier.jobChanged(pending.job);
    }
  }

  private _end(pending: IPending, result: Message | RequestEnded): void {
    if (!this._pending.delete(pending.job.req)) {
      return;
    }
    this._clearTimers(pending);
    if (!pending.silent) {
      this._carrier.jobEnded(pending.job.req);
    }
    if (result instanceof RequestEnded) {
      pending.answer.reject(result);
    } else {
      pending.answer.resolve(result);
    }
  }

  private _clearTimers(pending: IPending): void {
    Object.values(pending.timers).forEach(timer => window.clearTimeout(timer));
    pending.timers = {};
  }
}
