/** Profile this cell: load the extension in the kernel, run the cell under the magic. */

import type { CodeCell } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { OutputArea } from '@jupyterlab/outputarea';
import { loadExtension, profiledCode } from './extension_loading';
import type { IOpenNotebook } from './open_notebooks';

/** After `%load_ext` the kernel announces itself at once; the link then needs a moment. */
const READY_LIMIT_MS = 10_000;

/**
 * Run the cell under `%%fuse_profile`. Its text stays as it is; its outputs are shown as those of
 * any run. Returns what is wrong, or an empty text; errors of the cell's own code are outputs.
 */
export async function profileCell(open: IOpenNotebook, panel: NotebookPanel): Promise<string> {
  const cell = panel.content.activeCell;
  if (!cell || cell.model.type !== 'code') {
    return 'Select a code cell first: only code can be profiled.';
  }
  const code = cell as CodeCell;
  if (!code.model.sharedModel.getSource().trim()) {
    return 'The cell is empty: there is nothing to profile.';
  }
  // Right after a page was opened its kernel is still starting.
  await panel.sessionContext.ready;
  const kernel = panel.sessionContext.session?.kernel;
  if (!kernel) {
    return 'The notebook has no kernel: choose one first.';
  }
  if (open.link.state !== 'ready') {
    const problem = await loadExtension(kernel);
    if (problem) {
      return problem;
    }
    open.link.reopen();
    await open.link.whenReady(READY_LIMIT_MS);
  }
  await execute(open, panel, code);
  // The magic works without the link; that no marks come needs its reason.
  return open.link.state === 'mismatch' ? open.link.explanation : '';
}

async function execute(open: IOpenNotebook, panel: NotebookPanel, cell: CodeCell): Promise<void> {
  const { model } = cell;
  const { code, addedLines } = profiledCode(model.sharedModel.getSource());
  const cellId = model.sharedModel.getId();
  open.link.tell({ type: 'profiling', cell_id: cellId, added_lines: addedLines });
  // As JupyterLab runs a cell; its own function takes the code from the cell's text.
  model.sharedModel.transact(() => {
    model.clearExecution();
    cell.outputHidden = false;
  }, false);
  setRunning(cell, true);
  model.trusted = true;
  const metadata = { ...model.metadata, cellId };
  try {
    const reply = await OutputArea.execute(code, cell.outputArea, panel.sessionContext, metadata);
    model.executionCount = reply?.content.execution_count ?? null;
  } catch (error) {
    // The kernel went, or the outputs were cleared: the cell must not look as if it ran on.
    if (!cell.isDisposed) {
      setRunning(cell, false);
    }
    console.debug('Profiling ended without a reply', error);
  }
}

/** The prompt; where the model has the state (since JupyterLab 4.3), "edited since run" needs it. */
function setRunning(cell: CodeCell, running: boolean): void {
  if ('executionState' in cell.model) {
    cell.model.executionState = running ? 'running' : 'idle';
  }
  cell.setPrompt(running ? '*' : '');
}
