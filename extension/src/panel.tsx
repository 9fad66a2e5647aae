/** The side panel: draws the findings view whenever the store or the notebook in front changes. */

import { ReactWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';
import { fusionIcon } from './icon';
import type { OpenNotebooks } from './open_notebooks';
import type { FindingsStore, SharedNotebook } from './store';
import { FindingsView, IPanelHandlers } from './views/findings';

export const PANEL_ID = 'fusion-advisor-panel';

export class FindingsPanel extends ReactWidget {
  private readonly _ids = new WeakMap<SharedNotebook, string>();
  private _count = 0;

  constructor(
    private readonly _store: FindingsStore,
    private readonly _notebooks: OpenNotebooks,
    private readonly _handlers: IPanelHandlers
  ) {
    super();
    this.id = PANEL_ID;
    this.title.icon = fusionIcon;
    this.title.caption = 'Fusion Advisor';
    this.addClass('fusion-panel');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'Fusion Advisor findings');
    _store.changed.connect(this._redraw, this);
    _notebooks.currentChanged.connect(this._redraw, this);
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.update();
  }

  protected override render(): JSX.Element {
    const groups = this._store.notebooks.flatMap(notebook => {
      const state = this._store.get(notebook);
      return state
        ? [{ key: notebook, id: this._id(notebook), state, shown: this._store.shown(notebook) }]
        : [];
    });
    const current = this._notebooks.current?.open.notebook ?? null;
    return <FindingsView groups={groups} current={current} handlers={this._handlers} />;
  }

  private _id(notebook: SharedNotebook): string {
    const id = this._ids.get(notebook) ?? `notebook-${++this._count}`;
    this._ids.set(notebook, id);
    return id;
  }

  private _redraw(): void {
    // A closed panel draws when it is opened: a thousand findings cost nothing until then.
    if (this.isVisible) {
      this.update();
    }
  }
}
