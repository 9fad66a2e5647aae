/**
 * The messages between the kernel and this front end (docs/notebook-protocol.md).
 *
 * Whatever arrives is checked here once: the rest of the package works with typed values and
 * never meets a missing field. Offsets are UTF-16 code units into a cell's text.
 */

export interface IRange {
  low: number;
  mid: number;
  high: number;
}

export interface IProfile {
  advice: number;
  cell_id: string | null;
  title: string;
  wall_us: number;
  ratio_now: number;
  ratio_plan: number;
  bytes_saved_share: number;
  saved_us: IRange;
  /** Why nothing is worth fusing; empty when something is. */
  nothing: string;
}

export interface IMark {
  /** Empty when the kernel does not know it: the cell ran before the extension was loaded. */
  cell_id: string;
  start: number;
  end: number;
  text: string;
  source_hash: string;
}

export interface IInside {
  file: string;
  line: number;
  function: string;
  text: string;
}

export const STATES = ['open', 'applied', 'ignored', 'stale'] as const;
export type FindingState = (typeof STATES)[number];

export const PLACES = ['cell', 'file', 'installed', 'none'] as const;
export type Place = (typeof PLACES)[number];

export const SAFETIES = ['safe', 'unsafe', 'display-only'] as const;
export type Safety = (typeof SAFETIES)[number];

export const ACTIONS = [
  'fuse',
  'apply_live',
  'reapply_cell',
  'export_module',
  'edit_file',
  'explain',
  'ignore',
  'undo'
] as const;
export type Action = (typeof ACTIONS)[number];

export interface IFinding {
  id: string;
  advice: number;
  rule: string;
  rule_title: string;
  title: string;
  message: string;
  state: FindingState;
  state_reason: string;
  /** Part of the whole run, 0 to 1. */
  share: number;
  saved_us: IRange;
  occurrences: number;
  safety: Safety;
  fusable: boolean;
  /** Why there is no kernel or no edit. */
  reason: string;
  place: Place;
  mark: IMark | null;
  inside: IInside | null;
  actions: Action[];
}

export interface IFindingsMessage {
  revision: number;
  busy: boolean;
  profiles: IProfile[];
  findings: IFinding[];
}

export interface IRung {
  name: string;
  status: 'passed' | 'failed' | 'not run';
  detail: string;
  seconds: number | null;
}

export interface IEdit {
  start: number;
  end: number;
  new: string;
}

export interface ITiming {
  eager_us: number;
  fused_us: number;
}

export interface IProposal {
  finding: string;
  source_hash: string;
  edits: IEdit[];
  new_source: string;
  passed: boolean;
  message: string;
  rungs: IRung[];
  cuda: { compile: string; native_ir: string };
  timing: ITiming | null;
  kernel: string;
}

export interface ISettings {
  target: string;
  device: string;
  top: number;
  min_saving_us: number;
  marks: boolean;
}

/** A message as it comes: an object with a `type`, everything else unchecked. */
export type Message = Record<string, unknown> & { type: string };

export function asMessage(data: unknown): Message | null {
  const record = asRecord(data);
  return record && typeof record.type === 'string' ? (record as Message) : null;
}

export function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function asRecord(value: unknown): Record<string, unknown> | null {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
    ? (value as Record<string, unknown>)
    : null;
}

function number(value: unknown, otherwise = 0): number {
  return typeof value === 'number' && Number.isFinite(value) ? value : otherwise;
}

function list<T>(value: unknown, read: (entry: Record<string, unknown>) => T | null): T[] {
  if (!Array.isArray(value)) {
    return [];
  }
  return value
    .map(entry => {
      const record = asRecord(entry);
      return record ? read(record) : null;
    })
    .filter((entry): entry is T => entry !== null);
}

function oneOf<T extends string>(value: unknown, allowed: readonly T[], otherwise: T): T {
  return allowed.includes(value as T) ? (value as T) : otherwise;
}

function range(value: unknown): IRange {
  const record = asRecord(value) ?? {};
  return { low: number(record.low), mid: number(record.mid), high: number(record.high) };
}

function mark(value: unknown): IMark | null {
  const record = asRecord(value);
  if (!record || !text(record.text)) {
    return null;
  }
  const start = number(record.start, -1);
  return {
    cell_id: text(record.cell_id),
    start,
    end: number(record.end, -1),
    text: text(record.text),
    source_hash: text(record.source_hash)
  };
}

function inside(value: unknown): IInside | null {
  const record = asRecord(value);
  return record
    ? {
        file: text(record.file),
        line: number(record.line),
        function: text(record.function),
        text: text(record.text)
      }
    : null;
}

function finding(record: Record<string, unknown>): IFinding | null {
  if (!text(record.id)) {
    return null;
  }
  const actions = Array.isArray(record.actions) ? record.actions : [];
  return {
    id: text(record.id),
    advice: number(record.advice),
    rule: text(record.rule),
    rule_title: text(record.rule_title),
    title: text(record.title),
    message: text(record.message),
    state: oneOf(record.state, STATES, 'open'),
    state_reason: text(record.state_reason),
    share: number(record.share),
    saved_us: range(record.saved_us),
    occurrences: number(record.occurrences, 1),
    // An unknown safety must never read as safe.
    safety: oneOf(record.safety, SAFETIES, 'display-only'),
    fusable: record.fusable === true,
    reason: text(record.reason),
    place: oneOf(record.place, PLACES, 'none'),
    mark: mark(record.mark),
    inside: inside(record.inside),
    actions: ACTIONS.filter(action => actions.includes(action))
  };
}

function profile(record: Record<string, unknown>): IProfile {
  return {
    advice: number(record.advice),
    cell_id: text(record.cell_id) || null,
    title: text(record.title),
    wall_us: number(record.wall_us),
    ratio_now: number(record.ratio_now),
    ratio_plan: number(record.ratio_plan),
    bytes_saved_share: number(record.bytes_saved_share),
    saved_us: range(record.saved_us),
    nothing: text(record.nothing)
  };
}

export function readFindings(message: Message): IFindingsMessage {
  return {
    revision: number(message.revision),
    busy: message.busy === true,
    profiles: list(message.profiles, profile),
    findings: list(message.findings, finding)
  };
}

export function readRungs(value: unknown): IRung[] {
  return list(value, record => ({
    name: text(record.name),
    status: oneOf(record.status, ['passed', 'failed', 'not run'] as const, 'not run'),
    detail: text(record.detail),
    seconds: typeof record.seconds === 'number' ? record.seconds : null
  }));
}

function timing(value: unknown): ITiming | null {
  const record = asRecord(value);
  return record && number(record.fused_us) > 0
    ? { eager_us: number(record.eager_us), fused_us: number(record.fused_us) }
    : null;
}

export function readProposal(message: Message): IProposal {
  const cuda = asRecord(message.cuda) ?? {};
  return {
    finding: text(message.finding),
    source_hash: text(message.source_hash),
    edits: list(message.edits, record =>
      Number.isInteger(record.start) && Number.isInteger(record.end)
        ? { start: number(record.start), end: number(record.end), new: text(record.new) }
        : null
    ),
    new_source: text(message.new_source),
    passed: message.passed === true,
    message: text(message.message),
    rungs: readRungs(message.rungs),
    cuda: { compile: text(cuda.compile), native_ir: text(cuda.native_ir) },
    timing: timing(message.timing),
    kernel: text(message.kernel)
  };
}
