/**
 * The states of all open notebooks.
 *
 * The key is the shared notebook object, never its path or its cells' ids: a copied notebook has
 * the same cell ids, and two views of one notebook share the object.
 */

import type { ISharedCodeCell, ISharedNotebook } from '@jupyter/ydoc';
import { ISignal, Signal } from '@lumino/signaling';
import { sha256 } from './hash';
import type { IFinding } from './protocol';
import {
  emptyState,
  INotebookState,
  IShownFinding,
  NotebookEvent,
  reduce,
  shownFinding
} from './state';

/** What findings need of a notebook's shared model. */
export type SharedNotebook = Pick<ISharedNotebook, 'cells'>;

export class FindingsStore {
  private readonly _states = new Map<SharedNotebook, INotebookState>();
  private readonly _changed = new Signal<this, SharedNotebook>(this);
  private _marks = true;

  /** Emitted with the notebook that changed. */
  get changed(): ISignal<this, SharedNotebook> {
    return this._changed;
  }

  /** Whether cells show marks. */
  get marks(): boolean {
    return this._marks;
  }

  set marks(value: boolean) {
    if (value !== this._marks) {
      this._marks = value;
      this.notebooks.forEach(notebook => this._changed.emit(notebook));
    }
  }

  get notebooks(): SharedNotebook[] {
    return [...this._states.keys()];
  }

  open(notebook: SharedNotebook, title: string): void {
    if (!this._states.has(notebook)) {
      this._states.set(notebook, emptyState(title));
      this._changed.emit(notebook);
    }
  }

  close(notebook: SharedNotebook): void {
    if (this._states.delete(notebook)) {
      this._changed.emit(notebook);
    }
  }

  get(notebook: SharedNotebook): INotebookState | null {
    return this._states.get(notebook) ?? null;
  }

  /** Change a notebook's state; nothing happens for one that is closed. */
  dispatch(notebook: SharedNotebook, event: NotebookEvent): void {
    const before = this._states.get(notebook);
    if (!before) {
      return;
    }
    const after = reduce(before, this._withCells(notebook, event));
    if (after !== before) {
      this._states.set(notebook, after);
      this._changed.emit(notebook);
    }
  }

  /**
   * Findings whose cell the kernel cannot name get the one cell that has the recorded text now.
   * Once: later edits of that cell are then followed like those of any other.
   */
  private _withCells(notebook: SharedNotebook, event: NotebookEvent): NotebookEvent {
    if (event.kind !== 'findings' || event.message.findings.every(named)) {
      return event;
    }
    const ids = new Map<string, string[]>();
    for (const cell of notebook.cells.filter(candidate => candidate.cell_type === 'code')) {
      const hash = sha256(cell.getSource());
      ids.set(hash, [...(ids.get(hash) ?? []), cell.getId()]);
    }
    const findings = event.message.findings.map(finding => {
      const found = finding.mark ? (ids.get(finding.mark.source_hash) ?? []) : [];
      return named(finding) || !finding.mark || found.length !== 1
        ? finding
        : { ...finding, mark: { ...finding.mark, cell_id: found[0] } };
    });
    return { ...event, message: { ...event.message, findings } };
  }

  cell(notebook: SharedNotebook, cellId: string): ISharedCodeCell | null {
    const found = notebook.cells.find(cell => cell.getId() === cellId);
    return found?.cell_type === 'code' ? (found as ISharedCodeCell) : null;
  }

  /** All findings of a notebook as its cells' present text shows them, in the kernel's order. */
  shown(notebook: SharedNotebook): IShownFinding[] {
    const state = this._states.get(notebook);
    if (!state) {
      return [];
    }
    const sources = new Map<string, string>();
    for (const cell of notebook.cells) {
      if (cell.cell_type === 'code') {
        sources.set(cell.getId(), cell.getSource());
      }
    }
    return state.findings.map(finding =>
      shownFinding(
        finding,
        state.local[finding.id],
        finding.mark ? (sources.get(finding.mark.cell_id) ?? null) : null
      )
    );
  }

  shownById(notebook: SharedNotebook, id: string): IShownFinding | null {
    const state = this._states.get(notebook);
    const finding = state?.findings.find(candidate => candidate.id === id);
    if (!state || !finding) {
      return null;
    }
    const cell = finding.mark ? this.cell(notebook, finding.mark.cell_id) : null;
    return shownFinding(finding, state.local[id], cell?.getSource() ?? null);
  }

  /** The findings to mark in one cell with this text: those still to be decided on. */
  marked(notebook: SharedNotebook, cellId: string, source: string): IShownFinding[] {
    const state = this._states.get(notebook);
    if (!state || !this._marks || state.marksOff) {
      return [];
    }
    return state.findings
      .filter(finding => finding.mark?.cell_id === cellId)
      .map(finding => shownFinding(finding, state.local[finding.id], source))
      .filter(shown => shown.state === 'open' && shown.span !== null);
  }
}

function named(finding: IFinding): boolean {
  return !finding.mark || finding.mark.cell_id !== '';
}
