/**
 * The cells that this front end put fused kernels into: notices when undo brings the original
 * text back (and redo the fused one), and tells the kernel, whose list everybody reads.
 */

import { smallestEdit, editCell } from './edits';
import { sha256 } from './hash';
import type { IFinding, IFindingsMessage } from './protocol';
import type { KernelLink } from './link';
import type { FindingsStore, SharedNotebook } from './store';

interface IFusedCell {
  finding: IFinding;
  cellId: string;
  original: string;
  fused: string;
  applied: boolean;
}

export class FusedCells {
  private _records: IFusedCell[] = [];

  constructor(
    private readonly _notebook: SharedNotebook,
    private readonly _store: FindingsStore,
    private readonly _link: Pick<KernelLink, 'request' | 'state'>
  ) {}

  /** The person accepted: the cell now has the text `fused`. */
  accepted(finding: IFinding, cellId: string, original: string, fused: string): void {
    this._records = this._records.filter(record => record.finding.id !== finding.id);
    this._records.push({ finding, cellId, original, fused, applied: true });
    this._tell(this._records[this._records.length - 1]);
  }

  /** Look at the cells' texts after a change. */
  textChanged(): void {
    for (const record of this._records) {
      const source = this._store.cell(this._notebook, record.cellId)?.getSource();
      if (record.applied && source === record.original) {
        record.applied = false;
        this._tell(record);
      } else if (!record.applied && source === record.fused) {
        record.applied = true;
        this._tell(record);
      }
    }
  }

  /** A new profile numbers its findings anew: forget what is not in the kernel's list. */
  keepOnly(message: Pick<IFindingsMessage, 'findings'>): void {
    const known = new Set(message.findings.map(finding => `${finding.advice}:${finding.id}`));
    this._records = this._records.filter(({ finding }) =>
      known.has(`${finding.advice}:${finding.id}`)
    );
  }

  canUndo(finding: IFinding): boolean {
    return this._find(finding)?.applied ?? false;
  }

  /** The finding applied last in this notebook, for an undo that names none. */
  get last(): IFinding | null {
    const applied = this._records.filter(record => record.applied);
    return applied.length > 0 ? applied[applied.length - 1].finding : null;
  }

  /** Put the original text back, as one undo step. Returns why not, or an empty text. */
  undo(finding: IFinding): string {
    const record = this._find(finding);
    const cell = record ? this._store.cell(this._notebook, record.cellId) : null;
    if (!record || !cell) {
      return 'The cell is not in the notebook any more.';
    }
    const source = cell.getSource();
    if (source !== record.fused) {
      return 'The cell was edited since it was fused: undo those edits first (Ctrl-Z).';
    }
    const edit = smallestEdit(source, record.original);
    if (edit) {
      editCell(cell, [edit]);
    }
    this.textChanged();
    return '';
  }

  private _find(finding: IFinding): IFusedCell | null {
    return (
      this._records.find(
        ({ finding: own }) => own.id === finding.id && own.advice === finding.advice
      ) ?? null
    );
  }

  private _tell(record: IFusedCell): void {
    const { finding, applied, fused } = record;
    this._store.dispatch(this._notebook, {
      kind: 'local',
      finding: finding.id,
      state: applied ? 'applied' : 'open',
      reason: applied ? 'The fused kernel is in the cell.' : ''
    });
    const text = applied
      ? 'The fused kernel is in the cell. Run it; one Ctrl-Z in the cell takes it back.'
      : 'The original text is back in the cell.';
    this._store.dispatch(this._notebook, { kind: 'notice', text, isError: false });
    if (this._link.state !== 'ready') {
      return;
    }
    const message = applied
      ? { type: 'accepted', finding: finding.id, new_source_hash: sha256(fused) }
      : { type: 'reverted', finding: finding.id };
    this._link
      .request(message, { label: 'Telling the kernel', silent: true })
      .answer.catch((error: Error) => {
        const said = `The cell is as shown, but the kernel was not told: ${error.message}`;
        this._store.dispatch(this._notebook, { kind: 'notice', text: said, isError: true });
      });
  }
}
