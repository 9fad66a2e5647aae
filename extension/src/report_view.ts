/** The report page in a frame of its own origin: its scripts run, and reach nothing of ours. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog, MainAreaWidget } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';
import { fusionIcon } from './icon';

let count = 0;

export class ReportFrame extends Widget {
  constructor(title: string, html: string) {
    super();
    this.addClass('fusion-report');
    const frame = document.createElement('iframe');
    // No allow-same-origin: the page's texts come from people's code, and a script in it must
    // not reach the notebook server with the person's rights.
    frame.setAttribute('sandbox', 'allow-scripts');
    frame.title = title;
    frame.srcdoc = html;
    this.node.append(frame);
  }
}

/**
 * Open the report beside the notebook. Notebook 7's main area holds one document only: there it
 * is shown in a dialog.
 */
export function showReport(
  app: JupyterFrontEnd,
  hasTabs: boolean,
  title: string,
  html: string
): void {
  const content = new ReportFrame(title, html);
  if (!hasTabs) {
    const dialog = new Dialog({
      title,
      body: content,
      buttons: [Dialog.cancelButton({ label: 'Close' })],
      hasClose: true
    });
    dialog.addClass('fusion-dialog');
    dialog.addClass('fusion-dialog-wide');
    void dialog.launch();
    return;
  }
  const widget = new MainAreaWidget({ content });
  widget.id = `fusion-advisor-report-${++count}`;
  widget.title.label = title;
  widget.title.icon = fusionIcon;
  widget.title.closable = true;
  app.shell.add(widget, 'main', { mode: 'split-right' });
  app.shell.activateById(widget.id);
}
