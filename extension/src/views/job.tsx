/** How far a request is: stage by stage, with a bar for the present one. */

import * as React from 'react';
import type { IJob } from '../state';

const PHASES = {
  waiting: 'Asking the kernel.',
  queued: 'Queued behind the running cell.',
  running: '',
  stalled: 'No word from the kernel for two minutes.',
  cancelling: 'Cancelling.'
};

/** One line that says where a job is. */
export function jobLine(job: IJob): string {
  const stage = job.stages[job.stages.length - 1];
  return job.message || PHASES[job.phase] || stage?.name || 'Running.';
}

export function JobView({ job, allStages }: { job: IJob; allStages: boolean }): JSX.Element {
  const present = job.stages[job.stages.length - 1];
  const past = allStages ? job.stages.slice(0, -1) : [];
  return (
    <div className="fusion-job" data-phase={job.phase}>
      {past.length > 0 ? (
        <ul className="fusion-stages">
          {past.map((stage, index) => (
            <li key={index}>
              <span aria-hidden="true">✓</span> {stage.name}
            </li>
          ))}
        </ul>
      ) : null}
      <div className="fusion-job-line">{jobLine(job)}</div>
      {job.phase === 'running' && present ? (
        <progress aria-label={job.label} max={1} value={present.fraction} />
      ) : (
        <progress aria-label={job.label} />
      )}
    </div>
  );
}
