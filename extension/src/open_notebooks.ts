/**
 * The notebooks that are open in this page. Two views of one notebook share its model, its
 * session, and so one link to the kernel.
 */

import type { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISignal, Signal } from '@lumino/signaling';
import { FusedCells } from './fused_cells';
import { KernelLink } from './link';
import type { ISettings } from './protocol';
import type { FindingsStore, SharedNotebook } from './store';

/** After the last change of a cell's text the panel is drawn again: typing must stay quick. */
const TEXT_SETTLES_MS = 250;

export interface IOpenNotebook {
  notebook: SharedNotebook;
  panels: Set<NotebookPanel>;
  link: KernelLink;
  fused: FusedCells;
  dispose(): void;
}

export class OpenNotebooks {
  private readonly _open = new Map<SharedNotebook, IOpenNotebook>();

  private readonly _currentChanged = new Signal<this, void>(this);

  constructor(
    private readonly _tracker: INotebookTracker,
    private readonly _store: FindingsStore,
    private readonly _settings: () => ISettings
  ) {
    _tracker.widgetAdded.connect((_, panel) => this._add(panel));
    _tracker.forEach(panel => this._add(panel));
    _tracker.currentChanged.connect(() => this._currentChanged.emit());
    _tracker.activeCellChanged.connect(() => this._currentChanged.emit());
  }

  /** Another notebook or cell is in front, or the one in front has become ready. */
  get currentChanged(): ISignal<this, void> {
    return this._currentChanged;
  }

  get all(): IOpenNotebook[] {
    return [...this._open.values()];
  }

  get(notebook: SharedNotebook): IOpenNotebook | null {
    return this._open.get(notebook) ?? null;
  }

  /** The notebook in front, with the view of it that is in front. */
  get current(): { open: IOpenNotebook; panel: NotebookPanel } | null {
    const panel = this._tracker.currentWidget;
    const notebook = panel?.content.model?.sharedModel;
    const open = notebook ? this._open.get(notebook) : undefined;
    return panel && open ? { open, panel } : null;
  }

  /** A view of the notebook: the one in front when it shows it. */
  panel(notebook: SharedNotebook): NotebookPanel | null {
    const panels = this._open.get(notebook)?.panels;
    const current = this._tracker.currentWidget;
    return panels ? (current && panels.has(current) ? current : [...panels][0]) : null;
  }

  private _add(panel: NotebookPanel): void {
    void panel.context.ready.then(() => {
      const model = panel.content.model;
      if (!panel.isDisposed && model) {
        this._register(panel, model.sharedModel);
      }
    });
  }

  private _register(panel: NotebookPanel, notebook: SharedNotebook): void {
    const known = this._open.get(notebook);
    const open = known ?? this._create(panel, notebook);
    open.panels.add(panel);
    this._currentChanged.emit();
    panel.disposed.connect(() => {
      open.panels.delete(panel);
      if (open.panels.size === 0) {
        this._open.delete(notebook);
        open.dispose();
        this._store.close(notebook);
      }
    });
  }

  private _create(panel: NotebookPanel, notebook: SharedNotebook): IOpenNotebook {
    const { context } = panel;
    this._store.open(notebook, basename(context.path));
    const link = new KernelLink({
      store: this._store,
      notebook,
      session: panel.sessionContext,
      settings: this._settings
    });
    const fused = new FusedCells(notebook, this._store, link);
    let lastFindings = this._store.get(notebook)?.findings;
    const onStore = (_: FindingsStore, changed: SharedNotebook): void => {
      const findings = this._store.get(notebook)?.findings;
      if (changed === notebook && findings && findings !== lastFindings) {
        lastFindings = findings;
        fused.keepOnly({ findings: [...findings] });
      }
    };
    this._store.changed.connect(onStore);
    let timer = 0;
    context.model.contentChanged.connect(() => {
      fused.textChanged();
      window.clearTimeout(timer);
      timer = window.setTimeout(
        () => this._store.dispatch(notebook, { kind: 'text changed' }),
        TEXT_SETTLES_MS
      );
    });
    context.pathChanged.connect((_, path) =>
      this._store.dispatch(notebook, { kind: 'title', title: basename(path) })
    );
    const dispose = (): void => {
      window.clearTimeout(timer);
      this._store.changed.disconnect(onStore);
      link.dispose();
    };
    const open = { notebook, panels: new Set<NotebookPanel>(), link, fused, dispose };
    this._open.set(notebook, open);
    return open;
  }
}

function basename(path: string): string {
  return path.split('/').pop() ?? path;
}
