/** The commands: for the palette, the keys (schema/plugin.json) and the notebook toolbar. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { ICommandPalette } from '@jupyterlab/apputils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { Menu } from '@lumino/widgets';
import type { Actions } from './actions';
import { announce } from './announce';
import { actionLabel, figures, label } from './format';
import { fusionIcon } from './icon';
import { atCursor, cursor, inOrder, neighbour, reveal } from './navigate';
import type { IOpenNotebook, OpenNotebooks } from './open_notebooks';
import { PANEL_ID } from './panel';
import { buttons } from './panel_model';
import { profileCell } from './profile';
import { Action, ACTIONS, IFinding, text } from './protocol';
import type { Screen } from './screen';
import type { Settings } from './settings';
import type { FindingsStore } from './store';

export const CommandIDs = {
  profile: 'fusion-advisor:profile-cell',
  next: 'fusion-advisor:next-finding',
  previous: 'fusion-advisor:previous-finding',
  fuse: 'fusion-advisor:fuse-at-cursor',
  actions: 'fusion-advisor:actions-at-cursor',
  act: 'fusion-advisor:act',
  undo: 'fusion-advisor:undo-fusion',
  report: 'fusion-advisor:open-report',
  exportReport: 'fusion-advisor:export-report',
  toggleMarks: 'fusion-advisor:toggle-marks',
  showPanel: 'fusion-advisor:show-panel'
} as const;

const CATEGORY = 'Fusion Advisor';

export interface ICommandsOptions {
  app: JupyterFrontEnd;
  store: FindingsStore;
  notebooks: OpenNotebooks;
  actions: Actions;
  settings: Settings;
  screen: Screen;
  palette: ICommandPalette | null;
}

type Current = { open: IOpenNotebook; panel: NotebookPanel };

export function addCommands(options: ICommandsOptions): void {
  const { app, notebooks, palette } = options;
  const add = (
    id: string,
    words: string,
    caption: string,
    execute: (current: Current) => Promise<void> | void
  ): void => {
    app.commands.addCommand(id, {
      label: words,
      caption,
      isEnabled: () => notebooks.current !== null,
      execute: async () => {
        const { current } = notebooks;
        if (current) {
          await execute(current);
        }
      }
    });
    palette?.addItem({ command: id, category: CATEGORY });
  };
  addProfile(options);
  add(CommandIDs.next, 'Next Finding', 'Go to the next fusion finding', current =>
    step(options, current, 1)
  );
  add(CommandIDs.previous, 'Previous Finding', 'Go to the fusion finding before', current =>
    step(options, current, -1)
  );
  add(CommandIDs.fuse, 'Fuse at Cursor', 'Fuse the expression at the cursor in place', current =>
    fuseAtCursor(options, current)
  );
  add(CommandIDs.actions, 'Actions at Cursor', 'Actions of the finding at the cursor', current =>
    showActions(options, current)
  );
  add(CommandIDs.undo, 'Undo Fusion', 'Take the last fusion of the notebook back', current =>
    options.actions.undo(current.open, null)
  );
  add(CommandIDs.report, 'Open Report', 'Open the fusion report of the notebook', current =>
    options.actions.report(current.open)
  );
  add(CommandIDs.exportReport, 'Export Report…', 'Have the kernel write the report', current => {
    const stem =
      current.panel.context.path
        .split('/')
        .pop()
        ?.replace(/\.ipynb$/, '') ?? 'report';
    return options.actions.exportTo(current.open, `${stem}_fusion.html`);
  });
  addPageCommands(options);
  notebooks.currentChanged.connect(() => app.commands.notifyCommandChanged());
}

function addProfile({ app, notebooks, screen, palette }: ICommandsOptions): void {
  app.commands.addCommand(CommandIDs.profile, {
    // A toolbar item shows the icon alone; palette and menus the words.
    label: args => (args.toolbar ? '' : 'Profile This Cell'),
    caption: 'Profile this cell with Fusion Advisor',
    icon: fusionIcon,
    isEnabled: () => notebooks.current?.panel.content.activeCell?.model.type === 'code',
    execute: async () => {
      const { current } = notebooks;
      const problem = current ? await profileCell(current.open, current.panel) : '';
      if (problem) {
        screen.refuse('Profile this cell', problem);
      }
    }
  });
  palette?.addItem({ command: CommandIDs.profile, category: CATEGORY });
}

function addPageCommands(options: ICommandsOptions): void {
  const { app, settings, actions, notebooks, palette, store } = options;
  app.commands.addCommand(CommandIDs.toggleMarks, {
    label: 'Show Fusion Marks',
    caption: 'Show or hide the marks of fusion findings in cells',
    isToggled: () => settings.values.marks,
    execute: () => settings.setMarks(!settings.values.marks)
  });
  app.commands.addCommand(CommandIDs.showPanel, {
    label: 'Show Fusion Findings',
    caption: 'Show the side panel with the findings of all open notebooks',
    execute: () => {
      app.shell.activateById(PANEL_ID);
      document.querySelector<HTMLInputElement>(`#${PANEL_ID} .fusion-filter`)?.focus();
    }
  });
  // An entry of the menu of actions; it names its finding.
  app.commands.addCommand(CommandIDs.act, {
    label: args => actionLabel(asAction(args.action)),
    execute: async args => {
      const open = notebooks.current?.open;
      const shown = open ? store.shownById(open.notebook, text(args.finding)) : null;
      if (open && shown) {
        await actions.act(open.notebook, shown.finding, asAction(args.action));
      }
    }
  });
  palette?.addItem({ command: CommandIDs.toggleMarks, category: CATEGORY });
  palette?.addItem({ command: CommandIDs.showPanel, category: CATEGORY });
}

function asAction(value: unknown): Action {
  return ACTIONS.find(action => action === value) ?? 'explain';
}

/** Go to a neighbouring finding, and have the screen reader say which. */
async function step(
  { app, store }: ICommandsOptions,
  { open, panel }: Current,
  direction: 1 | -1
): Promise<void> {
  const entries = inOrder(store, open.notebook);
  const target = neighbour(entries, cursor(panel), direction);
  if (!target) {
    announce('The notebook has no open fusion finding.');
    return;
  }
  const { finding, span } = target.shown;
  await reveal(app, panel, finding.mark?.cell_id ?? '', span);
  const position = `Finding ${entries.indexOf(target) + 1} of ${entries.length}`;
  announce(`${position}: ${label(finding)}. ${figures(finding)}`);
}

function findingAtCursor(
  { store, screen }: ICommandsOptions,
  { open, panel }: Current
): IFinding | null {
  const shown = atCursor(inOrder(store, open.notebook), cursor(panel));
  if (!shown) {
    screen.inform('There is no fusion finding at the cursor.');
  }
  return shown?.finding ?? null;
}

async function fuseAtCursor(options: ICommandsOptions, current: Current): Promise<void> {
  const finding = findingAtCursor(options, current);
  if (finding) {
    await options.actions.act(current.open.notebook, finding, 'fuse');
  }
}

/** The tooltip needs a mouse; this menu offers the same by keyboard. */
function showActions(options: ICommandsOptions, current: Current): void {
  const finding = findingAtCursor(options, current);
  if (!finding) {
    return;
  }
  const menu = new Menu({ commands: options.app.commands });
  for (const action of buttons(finding, 'open')) {
    menu.addItem({ command: CommandIDs.act, args: { action, finding: finding.id } });
  }
  const editor = current.panel.content.activeCell?.editor;
  const at = editor?.getCoordinateForPosition(editor.getCursorPosition());
  menu.aboutToClose.connect(() => editor?.focus());
  menu.open(at?.left ?? 0, at?.bottom ?? 0);
}
