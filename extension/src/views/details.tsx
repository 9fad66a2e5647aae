/** All that the kernel tells of one finding: text, why not, proof, kernel. */

import * as React from 'react';
import type { IRung } from '../protocol';
import { RungTable } from './proposal';

export interface IDetails {
  text: string;
  rungs: readonly IRung[];
  kernel: string;
  why_not: readonly { code: string; message: string }[];
}

export function DetailsView({ details }: { details: IDetails }): JSX.Element {
  return (
    <div className="fusion-proposal">
      {details.text ? (
        <pre className="fusion-text" tabIndex={0} role="region" aria-label="Finding">
          {details.text}
        </pre>
      ) : null}
      {details.why_not.length > 0 ? (
        <>
          <h4>Why not</h4>
          <ul className="fusion-why-not">
            {details.why_not.map((reason, index) => (
              <li key={index}>
                <code>{reason.code}</code> {reason.message}
              </li>
            ))}
          </ul>
        </>
      ) : null}
      {/* The text has the checks too; the table stands in where there is no text. */}
      {details.text ? null : <RungTable rungs={details.rungs} />}
      {details.kernel ? (
        <details className="fusion-kernel">
          <summary>Text of the kernel</summary>
          <pre tabIndex={0}>{details.kernel}</pre>
        </details>
      ) : null}
    </div>
  );
}
