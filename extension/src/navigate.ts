/** Going to findings: by a click in the panel, to the next and previous one, at the cursor. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { Cell } from '@jupyterlab/cells';
import type { CodeEditor } from '@jupyterlab/codeeditor';
import type { NotebookPanel } from '@jupyterlab/notebook';
import type { ISpan } from './anchor';
import type { IShownFinding } from './state';
import type { FindingsStore, SharedNotebook } from './store';

/** A windowed notebook makes the editor when the cell scrolls into view. */
const EDITOR_LIMIT_MS = 3_000;

export function cellIndex(panel: NotebookPanel, cellId: string): number {
  return panel.content.widgets.findIndex(cell => cell.model.id === cellId);
}

/** Bring a cell into view, and select the span in it. */
export async function reveal(
  app: Pick<JupyterFrontEnd, 'shell'>,
  panel: NotebookPanel,
  cellId: string,
  span: ISpan | null
): Promise<void> {
  const index = cellIndex(panel, cellId);
  if (index < 0) {
    return;
  }
  app.shell.activateById(panel.id);
  const { content } = panel;
  content.deselectAll();
  content.activeCellIndex = index;
  await content.scrollToItem(index, 'smart');
  const cell = content.widgets[index];
  const editor = await editorOf(cell);
  if (!editor || !span) {
    return;
  }
  if (cell.inputHidden) {
    cell.inputHidden = false;
  }
  content.mode = 'edit';
  editor.focus();
  const start = editor.getPositionAt(span.from);
  const end = editor.getPositionAt(span.to);
  if (start && end) {
    editor.setSelection({ start, end });
    editor.revealSelection({ start, end });
  }
}

async function editorOf(cell: Cell): Promise<CodeEditor.IEditor | null> {
  const limit = Date.now() + EDITOR_LIMIT_MS;
  while (!cell.editor && !cell.isDisposed && Date.now() < limit) {
    await new Promise(resolve => window.setTimeout(resolve, 30));
  }
  return cell.isDisposed ? null : cell.editor;
}

interface IPlace {
  cell: number;
  offset: number;
}

/** The place of the cursor: the active cell and the start of its selection. */
export function cursor(panel: NotebookPanel): IPlace {
  const { activeCell, activeCellIndex } = panel.content;
  const editor = activeCell?.editor;
  const selection = editor?.getSelection();
  return {
    cell: activeCellIndex,
    offset: editor && selection ? editor.getOffsetAt(selection.start) : 0
  };
}

/** Open findings with a mark, in the notebook's order. */
export function inOrder(
  store: FindingsStore,
  notebook: SharedNotebook
): { shown: IShownFinding; place: IPlace; span: ISpan }[] {
  const order = new Map(notebook.cells.map((cell, index) => [cell.getId(), index]));
  return store
    .shown(notebook)
    .flatMap(shown => {
      const cell = order.get(shown.finding.mark?.cell_id ?? '');
      return shown.state === 'open' && shown.span && cell !== undefined
        ? [{ shown, span: shown.span, place: { cell, offset: shown.span.from } }]
        : [];
    })
    .sort((a, b) => compare(a.place, b.place));
}

function compare(a: IPlace, b: IPlace): number {
  return a.cell - b.cell || a.offset - b.offset;
}

/** The next place after the cursor (or before it), going round at the end. */
export function neighbour<T extends { place: IPlace }>(
  entries: readonly T[],
  from: IPlace,
  direction: 1 | -1
): T | null {
  const ahead = entries.filter(entry => direction * compare(entry.place, from) > 0);
  if (direction > 0) {
    return ahead[0] ?? entries[0] ?? null;
  }
  return ahead[ahead.length - 1] ?? entries[entries.length - 1] ?? null;
}

/** The finding that the cursor is in: the narrowest; else the only one of the cell. */
export function atCursor(
  entries: readonly { shown: IShownFinding; place: IPlace; span: ISpan }[],
  at: IPlace
): IShownFinding | null {
  const here = entries.filter(entry => entry.place.cell === at.cell);
  const within = here
    .filter(({ span }) => span.from <= at.offset && at.offset <= span.to)
    .sort((a, b) => a.span.to - a.span.from - (b.span.to - b.span.from));
  return within[0]?.shown ?? (here.length === 1 ? here[0].shown : null);
}
