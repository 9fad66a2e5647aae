/** What a person can do with a finding; each action is one request or one edit, and its answer. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { editCell } from './edits';
import { label } from './format';
import { fuseInPlace, IFuseContext, refuseEnded, review } from './fuse';
import { ignoreEdit } from './ignore';
import { cellIndex, reveal } from './navigate';
import type { IOpenNotebook, OpenNotebooks } from './open_notebooks';
import { Action, IFinding, Message, readRungs, text } from './protocol';
import { IRequestOptions, RequestEnded } from './requests';
import type { IScreen } from './screen';
import type { FindingsStore, SharedNotebook } from './store';

export interface IActionsOptions {
  app: Pick<JupyterFrontEnd, 'shell'>;
  store: FindingsStore;
  notebooks: Pick<OpenNotebooks, 'get' | 'panel'>;
  screen: IScreen;
  showReport(title: string, html: string): void;
}

export class Actions {
  constructor(private readonly _options: IActionsOptions) {}

  /** Carry out an action; every refusal is shown, none is thrown. */
  async act(notebook: SharedNotebook, finding: IFinding, action: Action): Promise<void> {
    const open = this._options.notebooks.get(notebook);
    if (!open) {
      return;
    }
    switch (action) {
      case 'fuse':
        return fuseInPlace(this._fuseContext(open), finding);
      case 'apply_live':
        return this._apply(open, finding, undefined);
      case 'edit_file':
        return this._apply(open, finding, 'file');
      case 'reapply_cell':
        return this._reapplyCell(open, finding);
      case 'export_module':
        return this.exportTo(open, `fused_${finding.id.toLowerCase()}.py`, finding);
      case 'explain':
        return this._explain(open, finding);
      case 'ignore':
        return this._ignore(open, finding);
      case 'undo':
        return this.undo(open, finding);
    }
  }

  async review(notebook: SharedNotebook, finding: IFinding): Promise<void> {
    const open = this._options.notebooks.get(notebook);
    const waiting = this._options.store.get(notebook)?.proposals[finding.id];
    if (open && waiting) {
      await review(this._fuseContext(open), finding, waiting.proposal, waiting.source);
    }
  }

  async jump(notebook: SharedNotebook, finding: IFinding): Promise<void> {
    const panel = this._options.notebooks.panel(notebook);
    const shown = this._options.store.shownById(notebook, finding.id);
    if (panel && finding.mark) {
      await reveal(this._options.app, panel, finding.mark.cell_id, shown?.span ?? null);
    }
  }

  canUndo(notebook: SharedNotebook, finding: IFinding): boolean {
    return this._options.notebooks.get(notebook)?.fused.canUndo(finding) ?? false;
  }

  /** Take a fusion back: the cell's text when it is ours to restore, else in the kernel. */
  async undo(open: IOpenNotebook, finding: IFinding | null): Promise<void> {
    const target = finding ?? open.fused.last;
    if (target && open.fused.canUndo(target)) {
      const problem = open.fused.undo(target);
      if (problem) {
        this._options.screen.refuse('Undo fusion', problem);
      } else {
        this._say(open, 'The original text is back in the cell.');
      }
      return;
    }
    const request = { type: 'undo', finding: finding?.id ?? null };
    await this._done(open, request, { label: 'Undo fusion', finding: finding?.id });
  }

  async measure(notebook: SharedNotebook, finding: IFinding): Promise<void> {
    const open = this._options.notebooks.get(notebook);
    if (open) {
      const request = { type: 'measure', finding: finding.id };
      const title = `Measure: ${label(finding)}`;
      await this._done(open, request, { label: title, finding: finding.id, cancellable: true });
    }
  }

  async details(notebook: SharedNotebook, finding: IFinding): Promise<void> {
    const open = this._options.notebooks.get(notebook);
    const request = { type: 'show', finding: finding.id };
    const answer = open ? await this._ask(open, request, { label: 'Details' }) : null;
    if (answer) {
      this._options.screen.details(label(finding), {
        text: text(answer.text),
        rungs: readRungs(answer.rungs),
        kernel: text(answer.kernel),
        why_not: reasons(answer.why_not)
      });
    }
  }

  async report(open: IOpenNotebook): Promise<void> {
    const answer = await this._ask(open, { type: 'report' }, { label: 'Report' });
    if (answer) {
      const title = text(answer.title) || 'Fusion report';
      this._options.showReport(title, text(answer.html));
    }
  }

  /** Ask for a path, and have the kernel write there; the suffix chooses the format. */
  async exportTo(
    open: IOpenNotebook,
    proposed: string,
    finding: IFinding | null = null
  ): Promise<void> {
    const path = await this._options.screen.askPath(
      finding ? 'Export the fused module' : 'Export the report',
      'Path for the kernel to write, from its working directory. The suffix chooses the format: ' +
        (finding ? '.py' : '.html, .md, .json, .csv, .sarif, or .py for the fused module'),
      proposed
    );
    if (path) {
      const request: Message = { type: 'export', path };
      if (finding) {
        request.finding = finding.id;
      }
      await this._done(open, request, { label: `Export ${path}`, cancellable: true });
    }
  }

  private async _apply(
    open: IOpenNotebook,
    finding: IFinding,
    where: 'file' | undefined
  ): Promise<void> {
    const request: Message = { type: 'apply_live', finding: finding.id };
    if (where) {
      request.where = where;
    }
    const title = `${where ? 'Edit file' : 'Apply live'}: ${label(finding)}`;
    await this._done(open, request, { label: title, finding: finding.id, cancellable: true }, true);
  }

  private async _reapplyCell(open: IOpenNotebook, finding: IFinding): Promise<void> {
    const title = `Insert re-apply cell: ${label(finding)}`;
    if (this._options.notebooks.panel(open.notebook)?.content.model?.readOnly) {
      this._options.screen.refuse(title, 'The notebook is read-only; no cell was inserted.');
      return;
    }
    const request = { type: 'reapply_cell', finding: finding.id };
    const options = { label: title, finding: finding.id, cancellable: true };
    const answer = await this._ask(open, request, options, true);
    const panel = this._options.notebooks.panel(open.notebook);
    const model = panel?.content.model;
    if (!answer || !panel || !model) {
      return;
    }
    const at = finding.mark ? cellIndex(panel, finding.mark.cell_id) : -1;
    const index = (at < 0 ? panel.content.activeCellIndex : at) + 1;
    const cell = model.sharedModel.insertCell(index, {
      cell_type: 'code',
      source: text(answer.source),
      metadata: { trusted: true }
    });
    this._say(open, `The cell below re-applies it after a restart; it uses ${text(answer.path)}.`);
    await reveal(this._options.app, panel, cell.getId(), null);
  }

  private async _explain(open: IOpenNotebook, finding: IFinding): Promise<void> {
    const request = { type: 'explain', rule: finding.rule };
    const answer = await this._ask(open, request, { label: `Explain ${finding.rule}` });
    if (answer) {
      const title = `${finding.rule}: ${text(answer.title) || finding.rule_title}`;
      await this._options.screen.markdown(title, text(answer.markdown));
    }
  }

  private _ignore(open: IOpenNotebook, finding: IFinding): void {
    const { store, screen } = this._options;
    const title = `Ignore: ${label(finding)}`;
    const shown = store.shownById(open.notebook, finding.id);
    const cell = finding.mark ? store.cell(open.notebook, finding.mark.cell_id) : null;
    if (!cell || !finding.mark || !shown?.span) {
      screen.refuse(title, 'The expression is not in the notebook any more; nothing was edited.');
      return;
    }
    const readOnly = this._readOnly(open, finding.mark.cell_id);
    const edit = readOnly || ignoreEdit(cell.getSource(), shown.span, finding.rule);
    if (typeof edit === 'string') {
      screen.refuse(title, edit);
      return;
    }
    editCell(cell, [edit]);
    this._say(open, `${finding.rule} is ignored there by a comment; one Ctrl-Z takes it back.`);
  }

  private _fuseContext(open: IOpenNotebook): IFuseContext {
    const { store, screen } = this._options;
    return {
      store,
      notebook: open.notebook,
      link: open.link,
      fused: open.fused,
      screen,
      readOnly: cellId => this._readOnly(open, cellId)
    };
  }

  private _readOnly(open: IOpenNotebook, cellId: string): string {
    const cell = this._options.store.cell(open.notebook, cellId);
    const model = this._options.notebooks.panel(open.notebook)?.content.model;
    if (model?.readOnly) {
      return 'The notebook is read-only; nothing was edited.';
    }
    return cell?.getMetadata('editable') === false
      ? 'The cell is marked as not editable; nothing was edited.'
      : '';
  }

  /** A request whose answer is a message to the person. */
  private async _done(
    open: IOpenNotebook,
    request: Message,
    options: IRequestOptions,
    watched = false
  ): Promise<void> {
    const { screen, store } = this._options;
    const answer = await this._ask(open, request, options, watched);
    if (answer && answer.applied === false) {
      // Done, but to no effect: the reason must not pass by as a success.
      store.dispatch(open.notebook, { kind: 'notice', text: text(answer.message), isError: true });
      screen.refuse(options.label, text(answer.message));
    } else if (answer) {
      this._say(open, text(answer.message) || 'Done.');
    }
  }

  /** The answer, or null after its refusal was shown. */
  private async _ask(
    open: IOpenNotebook,
    request: Message,
    options: IRequestOptions,
    watched = false
  ): Promise<Message | null> {
    const { screen, store } = this._options;
    const { req, answer } = open.link.request(request, options);
    if (watched) {
      void screen.watch({ req, title: options.label, ended: answer.catch(() => undefined) });
    }
    try {
      return await answer;
    } catch (error) {
      const said = error instanceof Error ? error.message : String(error);
      const isError = !(error instanceof RequestEnded && error.kind === 'cancelled');
      store.dispatch(open.notebook, { kind: 'notice', text: said, isError });
      refuseEnded(screen, options.label, error);
      return null;
    }
  }

  private _say(open: IOpenNotebook, message: string): void {
    this._options.store.dispatch(open.notebook, { kind: 'notice', text: message, isError: false });
    this._options.screen.inform(message);
  }
}

function reasons(value: unknown): { code: string; message: string }[] {
  return Array.isArray(value)
    ? value.map((entry: { code?: unknown; message?: unknown } | null) => ({
        code: text(entry?.code),
        message: text(entry?.message)
      }))
    : [];
}
