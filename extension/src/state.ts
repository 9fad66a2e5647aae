/**
 * What is known of one notebook, and how events change it. Pure: the store holds these records,
 * the link and the actions send events, and every view draws from the result.
 */

import { ISpan, locate } from './anchor';
import { isIgnored } from './ignore';
import type { FindingState, IFinding, IFindingsMessage, IProfile, IProposal } from './protocol';

export const LINK_STATES = [
  'no kernel',
  'connecting',
  'ready',
  'not loaded',
  'mismatch',
  'restarting',
  'dead'
] as const;
export type LinkState = (typeof LINK_STATES)[number];

export type JobPhase = 'waiting' | 'queued' | 'running' | 'stalled' | 'cancelling';

/** A request that is under way. */
export interface IJob {
  req: string;
  label: string;
  finding: string | null;
  phase: JobPhase;
  /** The stages seen so far, the last one the present; each with how far it is, 0 to 1. */
  stages: readonly { name: string; fraction: number }[];
  message: string;
  cancellable: boolean;
}

export interface INotebookState {
  title: string;
  link: LinkState;
  /** Why the link is not ready, and what to do. */
  linkMessage: string;
  /** `%config` in this kernel switches the marks off, whatever the settings say. */
  marksOff: boolean;
  revision: number;
  profiles: readonly IProfile[];
  findings: readonly IFinding[];
  /** What this front end did since the kernel's last word, by finding id. */
  local: Readonly<Record<string, { state: FindingState; reason: string }>>;
  jobs: readonly IJob[];
  /** Validated cells that wait for the person's look, by finding id. */
  proposals: Readonly<Record<string, { proposal: IProposal; source: string }>>;
  /** The last thing that happened, for the panel and the screen reader. */
  notice: { text: string; isError: boolean } | null;
}

export type NotebookEvent =
  | { kind: 'title'; title: string }
  | { kind: 'link'; link: LinkState; message: string }
  | { kind: 'marks off'; off: boolean }
  | { kind: 'findings'; message: IFindingsMessage }
  | { kind: 'cleared'; reason: string }
  | { kind: 'local'; finding: string; state: FindingState; reason: string }
  | { kind: 'job'; job: IJob }
  | { kind: 'job ended'; req: string }
  | { kind: 'proposal'; finding: string; proposal: IProposal | null; source: string }
  | { kind: 'notice'; text: string; isError: boolean }
  | { kind: 'text changed' };

export function emptyState(title: string): INotebookState {
  return {
    title,
    link: 'no kernel',
    linkMessage: '',
    marksOff: false,
    revision: -1,
    profiles: [],
    findings: [],
    local: {},
    jobs: [],
    proposals: {},
    notice: null
  };
}

function without<T>(record: Readonly<Record<string, T>>, key: string): Record<string, T> {
  const copy = { ...record };
  delete copy[key];
  return copy;
}

function withFindings(state: INotebookState, message: IFindingsMessage): INotebookState {
  // Two of the kernel's threads send: an older list may come after a newer one.
  if (message.revision < state.revision) {
    return state;
  }
  const known = new Set(message.findings.map(finding => finding.id));
  const proposals = Object.entries(state.proposals).filter(([id]) => known.has(id));
  return {
    ...state,
    revision: message.revision,
    profiles: message.profiles,
    findings: message.findings,
    local: {},
    proposals: Object.fromEntries(proposals)
  };
}

export function reduce(state: INotebookState, event: NotebookEvent): INotebookState {
  switch (event.kind) {
    case 'title':
      return { ...state, title: event.title };
    case 'link':
      return { ...state, link: event.link, linkMessage: event.message };
    case 'marks off':
      return { ...state, marksOff: event.off };
    case 'findings':
      return withFindings(state, event.message);
    case 'cleared':
      return {
        ...emptyState(state.title),
        link: state.link,
        linkMessage: state.linkMessage,
        notice: event.reason ? { text: event.reason, isError: false } : null
      };
    case 'local': {
      const entry = { state: event.state, reason: event.reason };
      return { ...state, local: { ...state.local, [event.finding]: entry } };
    }
    case 'job': {
      const at = state.jobs.findIndex(job => job.req === event.job.req);
      const jobs = [...state.jobs];
      jobs.splice(at < 0 ? jobs.length : at, 1, event.job);
      return { ...state, jobs };
    }
    case 'job ended':
      return { ...state, jobs: state.jobs.filter(job => job.req !== event.req) };
    case 'proposal':
      return {
        ...state,
        proposals: event.proposal
          ? {
              ...state.proposals,
              [event.finding]: { proposal: event.proposal, source: event.source }
            }
          : without(state.proposals, event.finding)
      };
    case 'notice':
      return { ...state, notice: { text: event.text, isError: event.isError } };
    case 'text changed':
      return { ...state };
  }
}

/** A finding with the state that the cells' present text gives it. */
export interface IShownFinding {
  finding: IFinding;
  state: FindingState;
  reason: string;
  /** Where its mark stands now; null when it has none to show. */
  span: ISpan | null;
}

/**
 * @param source text of the marked cell now; null when the notebook has no such cell.
 */
export function shownFinding(
  finding: IFinding,
  local: { state: FindingState; reason: string } | undefined,
  source: string | null
): IShownFinding {
  const state = local?.state ?? finding.state;
  const reason = local?.reason ?? finding.state_reason;
  const base = { finding, state, reason };
  if (!finding.mark) {
    return { ...base, span: null };
  }
  if (source === null) {
    return stillOpen(base, 'Its cell is not in this notebook any more.');
  }
  const span = locate(source, finding.mark);
  if (!span) {
    return stillOpen(base, 'The expression was edited. Profile the cell again.');
  }
  if (state === 'open' && isIgnored(source, span, finding.rule)) {
    return { finding, state: 'ignored', reason: 'A comment in the cell ignores it.', span };
  }
  return { ...base, span };
}

/** What is open needs its expression; what is applied or ignored stays what it is. */
function stillOpen(base: Omit<IShownFinding, 'span'>, reason: string): IShownFinding {
  return base.state === 'open'
    ? { ...base, state: 'stale', reason, span: null }
    : { ...base, span: null };
}
