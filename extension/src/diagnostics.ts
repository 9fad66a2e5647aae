/**
 * The marks in a cell: lint diagnostics with actions, and a gutter sign while there are any.
 *
 * A lint *source* of our own, never `setDiagnostics`: that would replace other tools' marks.
 */

import { Diagnostic, forceLinting, linter, lintGutter } from '@codemirror/lint';
import { Compartment, EditorState, Extension, StateEffect } from '@codemirror/state';
import { EditorView, ViewPlugin } from '@codemirror/view';
import type { ISharedCodeCell } from '@jupyter/ydoc';
import { actionLabel, figures, label, whereInside } from './format';
import type { Action, IFinding } from './protocol';
import type { IShownFinding } from './state';
import type { FindingsStore, SharedNotebook } from './store';

/** Time after the last key before marks are looked up again. */
const DELAY_MS = 300;

/** Findings of one place beyond these are left to the panel: a tooltip must fit the screen. */
const MAX_PER_PLACE = 3;

export interface IMarkHandlers {
  /** Carry out an action of a finding. */
  act(notebook: SharedNotebook, finding: IFinding, action: Action): void;
  showPanel(): void;
}

const refresh = StateEffect.define<null>();

export function fusionMarks(
  cell: ISharedCodeCell,
  store: FindingsStore,
  handlers: IMarkHandlers
): Extension {
  const gutter = new Compartment();
  const marked = (state: EditorState): [SharedNotebook, IShownFinding[]] | null =>
    // A cell that was moved or pasted gets its notebook late: ask each time.
    cell.notebook
      ? [cell.notebook, store.marked(cell.notebook, cell.getId(), state.doc.toString())]
      : null;
  const source = (view: EditorView): Diagnostic[] => {
    const found = marked(view.state);
    return found ? diagnostics(found[0], found[1], handlers) : [];
  };
  const follower = ViewPlugin.define(view => {
    let destroyed = false;
    let scheduled = false;
    let hasGutter = false;
    const draw = (): void => {
      scheduled = false;
      if (destroyed) {
        return;
      }
      const wanted = (marked(view.state)?.[1].length ?? 0) > 0;
      const effects: StateEffect<unknown>[] = [refresh.of(null)];
      if (wanted !== hasGutter) {
        hasGutter = wanted;
        effects.push(gutter.reconfigure(wanted ? lintGutter() : []));
      }
      view.dispatch({ effects });
      forceLinting(view);
    };
    const schedule = (): void => {
      if (!scheduled) {
        scheduled = true;
        // A view must not be changed while it updates, and a burst of events is one redraw.
        window.setTimeout(draw, 0);
      }
    };
    const onChanged = (_: FindingsStore, notebook: SharedNotebook): void => {
      if (notebook === cell.notebook && (hasGutter || marked(view.state)?.[1].length)) {
        schedule();
      }
    };
    store.changed.connect(onChanged);
    if (marked(view.state)?.[1].length) {
      schedule();
    }
    return {
      update: update => {
        // An edit may drop the last mark, or bring it back: the gutter follows.
        if (update.docChanged) {
          const wanted = (marked(update.state)?.[1].length ?? 0) > 0;
          if (wanted !== hasGutter) {
            schedule();
          }
        }
      },
      destroy: () => {
        destroyed = true;
        store.changed.disconnect(onChanged);
      }
    };
  });
  return [
    linter(source, {
      delay: DELAY_MS,
      needsRefresh: update =>
        update.transactions.some(transaction =>
          transaction.effects.some(effect => effect.is(refresh))
        )
    }),
    gutter.of([]),
    follower
  ];
}

export function diagnostics(
  notebook: SharedNotebook,
  shown: readonly IShownFinding[],
  handlers: IMarkHandlers
): Diagnostic[] {
  const places = new Map<string, IShownFinding[]>();
  for (const entry of shown) {
    if (entry.span) {
      const place = `${entry.span.from}:${entry.span.to}`;
      places.set(place, [...(places.get(place) ?? []), entry]);
    }
  }
  return [...places.values()].flatMap(entries => {
    const all = entries.slice(0, MAX_PER_PLACE).map(entry => diagnostic(notebook, entry, handlers));
    return entries.length > MAX_PER_PLACE
      ? [...all, remainder(entries.slice(MAX_PER_PLACE), handlers)]
      : all;
  });
}

function diagnostic(
  notebook: SharedNotebook,
  { finding, span }: IShownFinding,
  handlers: IMarkHandlers
): Diagnostic {
  return {
    from: span?.from ?? 0,
    to: span?.to ?? 0,
    severity: finding.fusable ? 'warning' : 'info',
    source: `Fusion Advisor ${finding.rule}`,
    markClass: 'fusion-mark',
    message: `${label(finding)}. ${figures(finding)}`,
    renderMessage: () => message(finding),
    actions: finding.actions
      .filter(action => action !== 'undo')
      .map(action => ({
        name: actionLabel(action),
        apply: () => handlers.act(notebook, finding, action)
      }))
  };
}

function remainder(entries: readonly IShownFinding[], handlers: IMarkHandlers): Diagnostic {
  const { span } = entries[0];
  return {
    from: span?.from ?? 0,
    to: span?.to ?? 0,
    severity: 'info',
    source: 'Fusion Advisor',
    markClass: 'fusion-mark',
    message: `${entries.length} more findings here.`,
    actions: [{ name: 'Show all in the panel', apply: () => handlers.showPanel() }]
  };
}

/** The tooltip's text. Built from text nodes: names come from people's code. */
function message(finding: IFinding): Node {
  const box = document.createElement('div');
  box.className = 'fusion-tooltip';
  const add = (className: string, content: string): void => {
    if (content) {
      const line = document.createElement('div');
      line.className = className;
      line.textContent = shortened(content);
      box.append(line);
    }
  };
  add('fusion-tooltip-title', label(finding));
  add('fusion-tooltip-figures', figures(finding));
  add('fusion-tooltip-where', whereInside(finding));
  add('fusion-tooltip-message', finding.message === finding.title ? '' : finding.message);
  add('fusion-tooltip-reason', finding.fusable ? '' : finding.reason);
  return box;
}

// A hostile or generated name may be a megabyte long; the panel's report has it whole.
const MAX_TEXT = 600;

function shortened(content: string): string {
  return content.length > MAX_TEXT ? `${content.slice(0, MAX_TEXT)}…` : content;
}
