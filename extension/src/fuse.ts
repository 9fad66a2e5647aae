/** Fuse in place: ask the kernel, watch it, look at the proposal, edit the cell. */

import { editCell, refusal } from './edits';
import type { FusedCells } from './fused_cells';
import { label } from './format';
import type { KernelLink } from './link';
import { IFinding, IProposal, readProposal } from './protocol';
import { RequestEnded } from './requests';
import type { FindingsStore, SharedNotebook } from './store';

/** What the flow needs of the screen. */
export interface IFuseScreen {
  /**
   * Show the job until `ended` settles. Resolves 'hidden' when the person put it aside, 'shown'
   * when it was on the screen to the end (or ended before it had to be shown).
   */
  watch(job: { req: string; title: string; ended: Promise<unknown> }): Promise<'shown' | 'hidden'>;
  /** Show the proposal; true when the person accepts it. Failed ones cannot be accepted. */
  preview(title: string, proposal: IProposal, source: string): Promise<boolean>;
  /** Say why nothing was done. */
  refuse(title: string, message: string, ended?: RequestEnded): void;
  /** Say that something was done. */
  inform(message: string): void;
}

export interface IFuseContext {
  store: FindingsStore;
  notebook: SharedNotebook;
  link: Pick<KernelLink, 'request'>;
  fused: FusedCells;
  screen: IFuseScreen;
  /** Reason why the notebook must not be edited; empty when it may. */
  readOnly(cellId: string): string;
}

/** Why the finding cannot be fused in place now; empty when it can. */
function whyNot(context: IFuseContext, finding: IFinding): string {
  const shown = context.store.shownById(context.notebook, finding.id);
  if (!shown || !finding.mark) {
    return 'The finding is not known any more. Profile the cell again.';
  }
  if (shown.state !== 'open') {
    return `The finding is ${shown.state}. ${shown.reason}`;
  }
  if (!finding.actions.includes('fuse')) {
    return finding.reason || 'There is no edit of this cell for it.';
  }
  return context.readOnly(finding.mark.cell_id);
}

export async function fuseInPlace(context: IFuseContext, finding: IFinding): Promise<void> {
  const { store, notebook, link, screen } = context;
  const title = `Fuse in place: ${label(finding)}`;
  const reason = whyNot(context, finding);
  const cell = finding.mark ? store.cell(notebook, finding.mark.cell_id) : null;
  if (reason || !cell) {
    screen.refuse(title, reason || 'The cell is not in the notebook any more.');
    return;
  }
  const source = cell.getSource();
  const { req, answer } = link.request(
    { type: 'fuse', finding: finding.id, source },
    { label: title, finding: finding.id, cancellable: true }
  );
  const watched = screen.watch({ req, title, ended: answer.catch(() => undefined) });
  let proposal: IProposal;
  try {
    const message = await answer;
    if (message.type !== 'proposal') {
      throw new RequestEnded('failed', `The kernel answered with “${message.type}”.`);
    }
    proposal = readProposal(message);
  } catch (error) {
    await watched;
    const said = error instanceof Error ? error.message : String(error);
    const isError = !(error instanceof RequestEnded && error.kind === 'cancelled');
    store.dispatch(notebook, { kind: 'notice', text: said, isError });
    refuseEnded(screen, title, error);
    return;
  }
  if ((await watched) === 'hidden') {
    store.dispatch(notebook, { kind: 'proposal', finding: finding.id, proposal, source });
    const said = `“${label(finding)}”: the fused cell is ready for review in the side panel.`;
    store.dispatch(notebook, { kind: 'notice', text: said, isError: false });
    screen.inform(said);
    return;
  }
  await review(context, finding, proposal, source);
}

export function refuseEnded(screen: IFuseScreen, title: string, error: unknown): void {
  if (error instanceof RequestEnded) {
    if (error.kind === 'cancelled') {
      screen.inform(error.message);
    } else {
      screen.refuse(title, error.message, error);
    }
  } else {
    screen.refuse(title, String(error));
  }
}

/** Show a proposal, and on Accept put it into the cell if the text is still the same. */
export async function review(
  context: IFuseContext,
  finding: IFinding,
  proposal: IProposal,
  source: string
): Promise<void> {
  const { store, notebook, screen, fused } = context;
  const title = `Fuse in place: ${label(finding)}`;
  const accepted = await screen.preview(title, proposal, source);
  store.dispatch(notebook, { kind: 'proposal', finding: finding.id, proposal: null, source });
  if (!accepted || !proposal.passed || !finding.mark) {
    return;
  }
  const cellId = finding.mark.cell_id;
  const cell = store.cell(notebook, cellId);
  if (!cell) {
    screen.refuse(title, 'The cell is not in the notebook any more; nothing was edited.');
    return;
  }
  const reason = context.readOnly(cellId) || refusal(cell.getSource(), proposal);
  if (reason) {
    screen.refuse(title, reason);
    return;
  }
  editCell(cell, proposal.edits);
  // Another kernel, or a restarted one, may give the name to another expression.
  if (isSame(store.shownById(notebook, finding.id)?.finding, finding)) {
    fused.accepted(finding, cellId, source, proposal.new_source);
  }
  screen.inform('The fused kernel is in the cell. Run it; one Ctrl-Z in the cell takes it back.');
}

function isSame(known: IFinding | undefined, finding: IFinding): boolean {
  return (
    known?.advice === finding.advice &&
    known.mark?.cell_id === finding.mark?.cell_id &&
    known.mark?.source_hash === finding.mark?.source_hash &&
    known.mark?.start === finding.mark?.start &&
    known.mark?.end === finding.mark?.end
  );
}
