/** The side panel's content: notebooks, their headline, their jobs, their findings. */

import * as React from 'react';
import {
  actionLabel,
  figures,
  label,
  microseconds,
  percent,
  savingRange,
  whereInside
} from '../format';
import { buttons, grouped, IGroup } from '../panel_model';
import type { Action, IFinding, IProfile } from '../protocol';
import type { IJob, INotebookState, IShownFinding, LinkState } from '../state';
import type { SharedNotebook } from '../store';
import { JobView } from './job';

/** More are listed on request: a thousand findings must not hold up the page. */
const SHOWN_AT_FIRST = 100;

export interface IPanelHandlers {
  jump(notebook: SharedNotebook, finding: IFinding): void;
  act(notebook: SharedNotebook, finding: IFinding, action: Action): void;
  review(notebook: SharedNotebook, finding: IFinding): void;
  details(notebook: SharedNotebook, finding: IFinding): void;
  measure(notebook: SharedNotebook, finding: IFinding): void;
  canUndo(notebook: SharedNotebook, finding: IFinding): boolean;
  cancel(notebook: SharedNotebook, req: string): void;
  report(notebook: SharedNotebook): void;
}

export interface IPanelProps {
  groups: readonly IGroup<SharedNotebook>[];
  current: SharedNotebook | null;
  handlers: IPanelHandlers;
}

const LINK_LABELS: Record<LinkState, string> = {
  'no kernel': 'No kernel',
  connecting: 'Connecting',
  ready: 'Ready',
  'not loaded': 'Not loaded',
  mismatch: 'Versions differ',
  restarting: 'Restarting',
  dead: 'Kernel dead'
};

const STATE_LABELS = {
  open: '○ open',
  applied: '● applied',
  ignored: '⊘ ignored',
  stale: '◌ stale'
};

function Headline({ profile }: { profile: IProfile }): JSX.Element {
  const title = profile.title || 'Profiled run';
  return (
    <div className="fusion-headline">
      <div className="fusion-headline-title">
        {title} <span className="fusion-quiet">{microseconds(profile.wall_us)}</span>
      </div>
      {profile.nothing ? (
        <div className="fusion-nothing">{`Nothing worth fusing: ${profile.nothing}`}</div>
      ) : (
        <dl>
          <div>
            <dt>Fused ops</dt>
            <dd>{`${percent(profile.ratio_now)} → ${percent(profile.ratio_plan)}`}</dd>
          </div>
          <div>
            <dt>Saves</dt>
            <dd>{savingRange(profile.saved_us)}</dd>
          </div>
          <div>
            <dt>Bytes less</dt>
            <dd>{percent(profile.bytes_saved_share)}</dd>
          </div>
        </dl>
      )}
    </div>
  );
}

interface IFindingProps {
  notebook: SharedNotebook;
  entry: IShownFinding;
  hasProposal: boolean;
  handlers: IPanelHandlers;
}

function FindingItem({ notebook, entry, hasProposal, handlers }: IFindingProps): JSX.Element {
  const { finding, state, reason } = entry;
  const actions = buttons(finding, state);
  if (state === 'applied' && !actions.includes('undo') && handlers.canUndo(notebook, finding)) {
    actions.push('undo');
  }
  const name = label(finding);
  const inside = whereInside(finding);
  return (
    <li className="fusion-finding" data-finding={finding.id} data-state={state}>
      <div className="fusion-finding-head">
        <button
          type="button"
          className="fusion-jump"
          disabled={!entry.span}
          title={entry.span ? 'Go to the expression' : 'The expression is not in the notebook'}
          onClick={() => handlers.jump(notebook, finding)}
        >
          {name}
        </button>
        <span className={`fusion-badge fusion-badge-${state}`}>{STATE_LABELS[state]}</span>
      </div>
      <div className="fusion-figures">{figures(finding)}</div>
      {inside ? <div className="fusion-where">{inside}</div> : null}
      {finding.mark ? <code className="fusion-code">{finding.mark.text}</code> : null}
      {finding.message && finding.message !== name ? (
        <div className="fusion-message">{finding.message}</div>
      ) : null}
      {reason ? <div className="fusion-reason">{reason}</div> : null}
      {!finding.fusable && finding.reason ? (
        <div className="fusion-reason">{`No kernel: ${finding.reason}`}</div>
      ) : null}
      <div className="fusion-buttons" role="group" aria-label={`Actions for ${finding.id}`}>
        {hasProposal ? (
          <button
            type="button"
            className="fusion-button fusion-button-main"
            onClick={() => handlers.review(notebook, finding)}
          >
            Review the fused cell
          </button>
        ) : null}
        {actions.map(action => (
          <button
            type="button"
            key={action}
            data-action={action}
            className={action === 'fuse' ? 'fusion-button fusion-button-main' : 'fusion-button'}
            onClick={() => handlers.act(notebook, finding, action)}
          >
            {actionLabel(action)}
          </button>
        ))}
        {state === 'applied' ? (
          <button
            type="button"
            className="fusion-button"
            data-action="measure"
            onClick={() => handlers.measure(notebook, finding)}
          >
            Measure
          </button>
        ) : null}
        <button
          type="button"
          className="fusion-button"
          data-action="details"
          onClick={() => handlers.details(notebook, finding)}
        >
          Details
        </button>
      </div>
    </li>
  );
}

function Jobs({
  jobs,
  onCancel
}: {
  jobs: readonly IJob[];
  onCancel: (req: string) => void;
}): JSX.Element | null {
  if (jobs.length === 0) {
    return null;
  }
  return (
    <ul className="fusion-jobs" aria-label="Running jobs">
      {jobs.map(job => (
        <li key={job.req}>
          <div className="fusion-job-head">
            <span>{job.label}</span>
            {job.cancellable ? (
              <button
                type="button"
                className="fusion-button"
                disabled={job.phase === 'cancelling'}
                onClick={() => onCancel(job.req)}
              >
                Cancel
              </button>
            ) : null}
          </div>
          <JobView job={job} allStages={false} />
        </li>
      ))}
    </ul>
  );
}

function countLine(all: number, shown: number): string {
  const findings = all === 1 ? '1 finding' : `${all} findings`;
  return shown === all ? findings : `${shown} of ${findings}`;
}

function emptyLine(state: INotebookState): string {
  return state.link === 'ready' && state.profiles.length === 0
    ? 'No cell was profiled yet. Use “Profile this cell” or %%fuse_profile.'
    : '';
}

interface INotebookProps {
  group: IGroup<SharedNotebook>;
  total: number;
  handlers: IPanelHandlers;
}

function NotebookSection({ group, total, handlers }: INotebookProps): JSX.Element {
  const { key: notebook, state, shown } = group;
  const [all, setAll] = React.useState(false);
  const listed = all ? shown : shown.slice(0, SHOWN_AT_FIRST);
  const empty = emptyLine(state);
  return (
    <section className="fusion-notebook" aria-label={state.title}>
      <header className="fusion-notebook-head">
        <h3>{state.title}</h3>
        <span className={`fusion-link fusion-link-${state.link.replace(' ', '-')}`}>
          {LINK_LABELS[state.link]}
        </span>
      </header>
      {state.linkMessage ? <div className="fusion-link-message">{state.linkMessage}</div> : null}
      {state.notice ? (
        <div
          className={state.notice.isError ? 'fusion-notice fusion-notice-error' : 'fusion-notice'}
        >
          {state.notice.isError ? <strong>Problem: </strong> : null}
          {state.notice.text}
        </div>
      ) : null}
      <Jobs jobs={state.jobs} onCancel={req => handlers.cancel(notebook, req)} />
      {state.profiles.map(profile => (
        <Headline key={profile.advice} profile={profile} />
      ))}
      {empty ? <div className="fusion-empty">{empty}</div> : null}
      {state.profiles.length > 0 ? (
        <div className="fusion-count">
          <span>{countLine(total, shown.length)}</span>
          <button type="button" className="fusion-button" onClick={() => handlers.report(notebook)}>
            Open report
          </button>
        </div>
      ) : null}
      <ul className="fusion-findings">
        {listed.map(entry => (
          <FindingItem
            key={`${entry.finding.advice}:${entry.finding.id}`}
            notebook={notebook}
            entry={entry}
            hasProposal={entry.finding.id in state.proposals}
            handlers={handlers}
          />
        ))}
      </ul>
      {listed.length < shown.length ? (
        <button type="button" className="fusion-button" onClick={() => setAll(true)}>
          {`Show ${shown.length - listed.length} more`}
        </button>
      ) : null}
    </section>
  );
}

export function FindingsView({ groups, current, handlers }: IPanelProps): JSX.Element {
  const [filter, setFilter] = React.useState('');
  const shown = grouped(groups, filter, current);
  const totals = new Map(groups.map(group => [group.key, group.shown.length]));
  return (
    <div className="fusion-findings-view">
      <div className="fusion-search">
        <input
          type="search"
          className="fusion-filter"
          aria-label="Filter findings"
          placeholder="Filter: rule, text, file, state"
          value={filter}
          onChange={event => setFilter(event.target.value)}
        />
      </div>
      {groups.length === 0 ? <div className="fusion-empty">No notebook is open.</div> : null}
      {shown.map(group => (
        <NotebookSection
          key={group.id}
          group={group}
          total={totals.get(group.key) ?? 0}
          handlers={handlers}
        />
      ))}
    </div>
  );
}
