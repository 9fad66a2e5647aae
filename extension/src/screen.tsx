/** The dialogs: progress with Cancel, preview with Accept, explanations, questions. */

import { Dialog, InputDialog, Notification, ReactWidget } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Panel, Widget } from '@lumino/widgets';
import * as React from 'react';
import { announce } from './announce';
import type { IFuseScreen } from './fuse';
import type { IProposal } from './protocol';
import type { RequestEnded } from './requests';
import type { IJob } from './state';
import { DetailsView, IDetails } from './views/details';
import { jobLine, JobView } from './views/job';
import { ProposalView, RungTable } from './views/proposal';

/** A job that ends sooner needs no dialog: it would only flash. */
const SHOW_PROGRESS_AFTER_MS = 250;

export interface IJobSource {
  job(req: string): IJob | null;
  /** Call back at each change; returns how to stop. */
  follow(callback: () => void): () => void;
  cancel(req: string): void;
}

class JobBody extends ReactWidget {
  private readonly _unfollow: () => void;
  private _last: IJob | null = null;
  private _spoken = '';

  constructor(
    private readonly _req: string,
    private readonly _source: IJobSource
  ) {
    super();
    this.addClass('fusion-dialog-body');
    this._unfollow = _source.follow(() => this.update());
  }

  override dispose(): void {
    this._unfollow();
    super.dispose();
  }

  protected override render(): JSX.Element {
    // A job that has ended leaves its last picture until the dialog closes.
    this._last = this._source.job(this._req) ?? this._last;
    if (!this._last) {
      return <div />;
    }
    const line = jobLine(this._last);
    if (line !== this._spoken) {
      this._spoken = line;
      announce(line);
    }
    return <JobView job={this._last} allStages={true} />;
  }
}

function body(element: JSX.Element): Widget {
  const widget = ReactWidget.create(element);
  widget.addClass('fusion-dialog-body');
  return widget;
}

async function show(
  title: string,
  content: Widget,
  buttons: Dialog.IButton[],
  wide: boolean
): Promise<boolean> {
  // The first button closes or cancels. It has the focus: a dialog comes when the kernel answers,
  // and an Enter that was meant for something else must not edit a cell.
  const dialog = new Dialog({ title, body: content, buttons, defaultButton: 0, hasClose: true });
  dialog.addClass('fusion-dialog');
  if (wide) {
    dialog.addClass('fusion-dialog-wide');
  }
  const result = await dialog.launch();
  return result.button.accept;
}

const closeButton = (): Dialog.IButton[] => [Dialog.cancelButton({ label: 'Close' })];

/** What the actions need of the screen. */
export interface IScreen extends IFuseScreen {
  details(title: string, details: IDetails): void;
  markdown(title: string, markdown: string): Promise<void>;
  /** A path, or null when the person would rather not. */
  askPath(title: string, label: string, proposed: string): Promise<string | null>;
}

export class Screen implements IScreen {
  constructor(
    private readonly _jobs: IJobSource,
    private readonly _rendermime: IRenderMimeRegistry | null,
    /** The side panel is open: it shows what was done, and a toast would cover it. */
    private readonly _panelIsOpen: () => boolean
  ) {}

  async watch(job: {
    req: string;
    title: string;
    ended: Promise<unknown>;
  }): Promise<'shown' | 'hidden'> {
    let over = false;
    const ended = job.ended.then(() => {
      over = true;
    });
    await Promise.race([
      ended,
      new Promise(resolve => window.setTimeout(resolve, SHOW_PROGRESS_AFTER_MS))
    ]);
    if (over) {
      return 'shown';
    }
    const dialog = new Dialog({
      title: job.title,
      body: new JobBody(job.req, this._jobs),
      buttons: [
        Dialog.cancelButton({ label: 'Cancel the job' }),
        Dialog.okButton({ label: 'Hide', caption: 'The job goes on; the side panel shows it' })
      ],
      hasClose: false
    });
    dialog.addClass('fusion-dialog');
    let byPerson = true;
    void ended.then(() => {
      byPerson = false;
      dialog.resolve(0);
    });
    const result = await dialog.launch();
    if (!byPerson) {
      return 'shown';
    }
    if (result.button.accept) {
      return 'hidden';
    }
    this._jobs.cancel(job.req);
    await ended;
    return 'shown';
  }

  preview(title: string, proposal: IProposal, source: string): Promise<boolean> {
    const buttons = proposal.passed
      ? [Dialog.cancelButton(), Dialog.okButton({ label: 'Accept' })]
      : closeButton();
    return show(title, body(<ProposalView proposal={proposal} source={source} />), buttons, true);
  }

  refuse(title: string, message: string, ended?: RequestEnded): void {
    announce(message);
    const element = (
      <div className="fusion-proposal">
        <p className="fusion-verdict">{message}</p>
        <RungTable rungs={ended?.rungs ?? []} />
      </div>
    );
    void show(title, body(element), closeButton(), (ended?.rungs.length ?? 0) > 0);
  }

  inform(message: string): void {
    announce(message);
    if (!this._panelIsOpen()) {
      Notification.info(message, { autoClose: 5000 });
    }
  }

  details(title: string, details: IDetails): void {
    void show(title, body(<DetailsView details={details} />), closeButton(), true);
  }

  /** A rule's page; JupyterLab's renderer sanitises it. */
  async markdown(title: string, markdown: string): Promise<void> {
    const panel = new Panel();
    panel.addClass('fusion-dialog-body');
    panel.addClass('fusion-rule-page');
    panel.node.tabIndex = 0;
    if (this._rendermime) {
      const renderer = this._rendermime.createRenderer('text/markdown');
      panel.addWidget(renderer);
      await renderer.renderModel(
        this._rendermime.createModel({ data: { 'text/markdown': markdown }, trusted: false })
      );
    } else {
      const plain = new Widget({ node: document.createElement('pre') });
      plain.node.textContent = markdown;
      panel.addWidget(plain);
    }
    await show(title, panel, closeButton(), true);
  }

  async askPath(title: string, label: string, proposed: string): Promise<string | null> {
    const result = await InputDialog.getText({ title, label, text: proposed });
    const path = result.value?.trim();
    return result.button.accept && path ? path : null;
  }
}
