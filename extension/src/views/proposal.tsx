/** The look at a fused cell before it goes in: verdict, proof by rung, times, the diff. */

import * as React from 'react';
import { diffLines, IDiffLine, withContext } from '../diff';
import { speedup } from '../format';
import type { IProposal, IRung } from '../protocol';

const STATUS_SIGNS = { passed: '✓', failed: '✗', 'not run': '–' };

export function RungTable({ rungs }: { rungs: readonly IRung[] }): JSX.Element | null {
  if (rungs.length === 0) {
    return null;
  }
  return (
    <table className="fusion-rungs">
      <caption>Validation</caption>
      <thead>
        <tr>
          <th scope="col">Check</th>
          <th scope="col">Result</th>
          <th scope="col">Detail</th>
          <th scope="col">Time</th>
        </tr>
      </thead>
      <tbody>
        {rungs.map((rung, index) => (
          <tr key={index} data-status={rung.status}>
            <th scope="row">{rung.name}</th>
            <td className="fusion-rung-status">
              <span aria-hidden="true">{STATUS_SIGNS[rung.status]}</span> {rung.status}
            </td>
            <td>{rung.detail}</td>
            <td className="fusion-number">
              {rung.seconds === null ? '' : `${rung.seconds.toFixed(1)} s`}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

const SIGNS = { same: ' ', removed: '-', added: '+', skipped: '⋯' };
const SPOKEN = { same: '', removed: 'removed: ', added: 'added: ', skipped: '' };

function DiffLine({ line }: { line: IDiffLine }): JSX.Element {
  return (
    <tr className={`fusion-diff-${line.kind}`}>
      <td className="fusion-diff-number" aria-hidden="true">
        {line.before ?? ''}
      </td>
      <td className="fusion-diff-number" aria-hidden="true">
        {line.after ?? ''}
      </td>
      <td className="fusion-diff-sign" aria-hidden="true">
        {SIGNS[line.kind]}
      </td>
      <td className="fusion-diff-text">
        <span className="fusion-visually-hidden">{SPOKEN[line.kind]}</span>
        {line.text}
      </td>
    </tr>
  );
}

export function DiffView({ before, after }: { before: string; after: string }): JSX.Element {
  const lines = React.useMemo(() => withContext(diffLines(before, after)), [before, after]);
  const box = React.useRef<HTMLDivElement>(null);
  React.useLayoutEffect(() => {
    // The kernel's text comes first and is long; what becomes of the person's own line is shown.
    const first = box.current?.querySelector<HTMLElement>('.fusion-diff-removed');
    if (box.current && first) {
      box.current.scrollTop = first.offsetTop - box.current.clientHeight / 2;
    }
  }, [lines]);
  const removed = lines.filter(line => line.kind === 'removed').length;
  const added = lines.filter(line => line.kind === 'added').length;
  return (
    <div className="fusion-diff-box">
      <div className="fusion-diff-summary">
        {`Change of the cell: ${added} lines added (+), ${removed} removed (-)`}
      </div>
      {/* Scrolls by keyboard: focusable, with a name. */}
      <div
        ref={box}
        className="fusion-diff"
        role="region"
        aria-label="Diff of the cell"
        tabIndex={0}
      >
        <table>
          <tbody>
            {lines.map((line, index) => (
              <DiffLine key={index} line={line} />
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}

function CudaLines({ cuda }: { cuda: IProposal['cuda'] }): JSX.Element | null {
  if (!cuda.compile && !cuda.native_ir) {
    return null;
  }
  return (
    <dl className="fusion-cuda">
      {cuda.compile ? (
        <>
          <dt>CUDA kernel, compiled</dt>
          <dd>{cuda.compile}</dd>
        </>
      ) : null}
      {cuda.native_ir ? (
        <>
          <dt>CUDA kernel, its own IR run natively</dt>
          <dd>{cuda.native_ir}</dd>
        </>
      ) : null}
    </dl>
  );
}

function verdict({ passed, message }: IProposal): string {
  if (!passed) {
    return '✗ Validation failed; nothing is edited.';
  }
  // The kernel's sentence mostly begins with the word itself.
  return message.startsWith('Validated') ? '✓' : '✓ Validated.';
}

export interface IProposalProps {
  proposal: IProposal;
  /** The cell's text that the proposal was made for. */
  source: string;
}

export function ProposalView({ proposal, source }: IProposalProps): JSX.Element {
  return (
    <div className="fusion-proposal">
      <p className={proposal.passed ? 'fusion-verdict' : 'fusion-verdict fusion-verdict-failed'}>
        <strong>{verdict(proposal)}</strong> {proposal.message}
      </p>
      {proposal.passed && proposal.timing ? (
        <p className="fusion-timing">{speedup(proposal.timing)}</p>
      ) : null}
      {proposal.passed ? <DiffView before={source} after={proposal.new_source} /> : null}
      <CudaLines cuda={proposal.cuda} />
      <RungTable rungs={proposal.rungs} />
      {proposal.kernel ? (
        <details className="fusion-kernel">
          <summary>Text of the kernel</summary>
          <pre tabIndex={0}>{proposal.kernel}</pre>
        </details>
      ) : null}
    </div>
  );
}
