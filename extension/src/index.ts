/** The plugin: wires store, links, marks, panel and commands into JupyterLab or Notebook 7. */

import {
  ILabShell,
  type JupyterFrontEnd,
  type JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { EditorExtensionRegistry, IEditorExtensionRegistry } from '@jupyterlab/codemirror';
import type { ISharedCodeCell } from '@jupyter/ydoc';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Actions } from './actions';
import { addCommands, CommandIDs } from './commands';
import { fusionMarks } from './diagnostics';
import { OpenNotebooks } from './open_notebooks';
import { FindingsPanel } from './panel';
import { showReport } from './report_view';
import { IJobSource, Screen } from './screen';
import { Settings } from './settings';
import type { IJob } from './state';
import { FindingsStore } from './store';

const PLUGIN_ID = 'fusion-advisor:plugin';

/** Jobs by their request's name, wherever they run: what the dialogs follow. */
function jobSource(store: FindingsStore, notebooks: OpenNotebooks): IJobSource {
  const job = (req: string): IJob | null =>
    store.notebooks
      .flatMap(notebook => store.get(notebook)?.jobs ?? [])
      .find(candidate => candidate.req === req) ?? null;
  return {
    job,
    follow: callback => {
      const slot = (): void => callback();
      store.changed.connect(slot);
      return () => store.changed.disconnect(slot);
    },
    // The link that does not know the request ignores it.
    cancel: req => notebooks.all.forEach(open => open.link.cancel(req))
  };
}

function activate(
  app: JupyterFrontEnd,
  tracker: INotebookTracker,
  editorExtensions: IEditorExtensionRegistry,
  rendermime: IRenderMimeRegistry | null,
  settingRegistry: ISettingRegistry | null,
  palette: ICommandPalette | null,
  labShell: ILabShell | null
): void {
  const store = new FindingsStore();
  const settings = new Settings();
  const notebooks = new OpenNotebooks(tracker, store, () => settings.values);
  const screen: Screen = new Screen(jobSource(store, notebooks), rendermime, () => panel.isVisible);
  const actions = new Actions({
    app,
    store,
    notebooks,
    screen,
    showReport: (title, html) => showReport(app, labShell !== null, title, html)
  });
  addCommands({ app, store, notebooks, actions, settings, screen, palette });

  const panel: FindingsPanel = new FindingsPanel(store, notebooks, {
    jump: (notebook, finding) => void actions.jump(notebook, finding),
    act: (notebook, finding, action) => void actions.act(notebook, finding, action),
    review: (notebook, finding) => void actions.review(notebook, finding),
    details: (notebook, finding) => void actions.details(notebook, finding),
    measure: (notebook, finding) => void actions.measure(notebook, finding),
    canUndo: (notebook, finding) => actions.canUndo(notebook, finding),
    cancel: (notebook, req) => notebooks.get(notebook)?.link.cancel(req),
    report: notebook => {
      const open = notebooks.get(notebook);
      if (open) {
        void actions.report(open);
      }
    }
  });
  app.shell.add(panel, 'right', { rank: 900, type: 'Fusion Advisor' });

  editorExtensions.addExtension({
    name: 'fusion-advisor:marks',
    factory: options => {
      const cell = options.model.sharedModel as ISharedCodeCell;
      if (cell.cell_type !== 'code') {
        return null;
      }
      const extension = fusionMarks(cell, store, {
        act: (notebook, finding, action) => void actions.act(notebook, finding, action),
        showPanel: () => void app.commands.execute(CommandIDs.showPanel)
      });
      return EditorExtensionRegistry.createImmutableExtension(extension);
    }
  });

  settings.changed.connect((_, values) => {
    store.marks = values.marks;
    app.commands.notifyCommandChanged(CommandIDs.toggleMarks);
    notebooks.all.forEach(({ link }) => link.tell({ type: 'settings', values }));
  });
  if (settingRegistry) {
    settings.load(settingRegistry, PLUGIN_ID).catch(error => {
      console.error('Fusion Advisor goes on with default settings', error);
    });
  }
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: PLUGIN_ID,
  description: 'Marks fusable PyTorch chains and puts validated kernels in place.',
  autoStart: true,
  requires: [INotebookTracker, IEditorExtensionRegistry],
  optional: [IRenderMimeRegistry, ISettingRegistry, ICommandPalette, ILabShell],
  activate
};

export default plugin;
