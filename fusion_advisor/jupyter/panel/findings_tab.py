"""The Findings tab: a sortable table, the chosen finding's evidence, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets

from fusion_advisor.jupyter.panel.markup import note, plain, short, tag
from fusion_advisor.jupyter.panel.paging import Pager, button, search_box, words_of
from fusion_advisor.quantities import time_text
from fusion_advisor.report.view import FindingView

ROWS = 10  # on a page: the details stand below


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its head, what its cells say (HTML), and what they are sorted by."""

    head: str
    about: str
    width: str
    cell: Callable[[FindingView], str]
    order: Callable[[FindingView], Any]
    largest_first: bool = False


def _number_of(view: FindingView) -> tuple[str, int]:
    """F10 comes after F2."""
    digits = "".join(one for one in view.id if one.isdigit())
    return view.id.rstrip("0123456789"), int(digits[:18] or 0)


def _place_of(view: FindingView) -> tuple[str, int, str, int]:
    """Line 17 comes after line 4."""
    span = view.finding.span
    if span is None:
        return ("none", 0, "", 0)
    return (
        span.kind,
        span.execution_count or 0,
        span.file if span.kind == "file" else "",
        span.line,
    )


def _where(view: FindingView) -> str:
    return f'{short(view.finding.title)}<br><span class="fadv-soft">{short(view.place)}</span>'


def _saving(view: FindingView) -> str:
    low, high = view.estimate.saved_low_us, view.estimate.saved_high_us
    return f"{short(time_text(low))} – {short(time_text(high))}"


def _ops(view: FindingView) -> int:
    if not view.finding.occurrences:
        return 0
    first = view.finding.occurrences[0]
    return len(first.nodes) - len(first.views)


COLUMNS = (
    Column(head="Finding", about="its name", width="5.4em",
           cell=lambda view: short(view.id), order=_number_of),
    Column(head="Rule", about="rule", width="5em",
           cell=lambda view: short(view.finding.rule, 20), order=lambda view: view.finding.rule),
    Column(head="What and where", about="where it is", width="minmax(11em,1fr)",
           cell=_where, order=_place_of),
    Column(head="Ops", about="number of ops in the group", width="3.4em",
           cell=lambda view: f"{_ops(view):,}", order=_ops, largest_first=True),
    Column(head="× N", about="how often it runs", width="3.4em",
           cell=lambda view: f"{view.count:,}", order=lambda view: view.count,
           largest_first=True),
    Column(head="Share", about="share of the run that it saves", width="4.6em",
           cell=lambda view: short(view.share), order=lambda view: view.finding.share,
           largest_first=True),
    Column(head="Saves", about="time it saves per run, low to high", width="9.8em",
           cell=_saving, order=lambda view: view.estimate.saved_mid_us, largest_first=True),
    Column(head="Bound", about="what limits it", width="8em",
           cell=lambda view: short(view.estimate.bound, 20),
           order=lambda view: view.estimate.bound),
    Column(head="State", about="how far it has come", width="10.4em",
           cell=lambda view: tag(view.state), order=lambda view: view.state),
)  # fmt: skip
_TEMPLATE = " ".join(column.width for column in COLUMNS[1:])


def sorted_views(
    views: tuple[FindingView, ...], column: Column, *, reverse: bool
) -> tuple[FindingView, ...]:
    """By a column, best first among equals; ``reverse`` turns the column's own direction."""
    descending = column.largest_first is not reverse
    return tuple(sorted(views, key=column.order, reverse=descending))


def matching_views(views: tuple[FindingView, ...], text: str) -> tuple[FindingView, ...]:
    """Findings that hold every word of ``text``."""
    words = words_of(text)
    if not words:
        return views
    return tuple(view for view in views if all(word in _searched(view) for word in words))


def _searched(view: FindingView) -> str:
    pieces = (view.id, view.finding.rule, view.finding.title, view.place, view.state,
              view.estimate.bound, " ".join(view.ops), view.finding.message)  # fmt: skip
    return " ".join(piece[:2_000] for piece in pieces).lower()


class _Row:
    """One line of the table: a button that chooses the finding, and its cells."""

    def __init__(self, pressed: Callable[[], None], narrow: Any, wide: Any) -> None:
        self.button = button("", "", pressed, layout=narrow)
        self.cells = ipywidgets.HTML(layout=wide)
        self.box = ipywidgets.HBox([self.button, self.cells])
        self.box.add_class("fadv-row")
        self._chosen = False

    def show(self, view: FindingView | None, *, chosen: bool) -> None:
        self.box.layout.display = "none" if view is None else None
        if view is None:
            return
        self.button.description = ("▸ " if chosen else "") + plain(view.id)
        self.button.tooltip = (
            f"{plain(view.id)}: {plain(view.finding.title)}. "
            f"{'Its details are shown below' if chosen else 'Show its details'}"
        )
        if chosen is not self._chosen:
            self._chosen = chosen
            (self.box.add_class if chosen else self.box.remove_class)("fadv-chosen")
        self.cells.value = _cells(view)


def _cells(view: FindingView) -> str:
    inside = "".join(
        f'<div class="{"fadv-num" if column.largest_first and column.head != "Saves" else ""}">'
        f'<span class="fadv-hidden">{short(column.head)} </span>{column.cell(view)}</div>'
        for column in COLUMNS[1:]
    )
    return f'<div class="fadv-cells" style="grid-template-columns:{_TEMPLATE}">{inside}</div>'


class FindingsTable:
    """The table.  ``chose(finding)`` is called when a person chooses a row."""

    def __init__(self, chose: Callable[[str], None]) -> None:
        self._views: tuple[FindingView, ...] = ()
        self._shown: tuple[FindingView, ...] = ()
        self.chosen: str | None = None
        self._chose = chose
        self._column: Column | None = None  # best first, as ranked
        self._reverse = False
        self._filter = search_box("finding, rule, op, place, state …")
        self._filter.observe(lambda _: self._refill(page=1), "value")
        narrow = ipywidgets.Layout(width=COLUMNS[0].width, flex="0 0 auto")
        wide = ipywidgets.Layout(flex="1 1 auto", min_width="0")
        self._heads = [
            button(column.head, "", partial(self._sort_by, column),
                   layout=narrow if column is COLUMNS[0] else ipywidgets.Layout(width="auto"))
            for column in COLUMNS
        ]  # fmt: skip
        head = ipywidgets.HBox(
            [
                self._heads[0],
                ipywidgets.GridBox(
                    self._heads[1:],
                    layout=ipywidgets.Layout(
                        grid_template_columns=_TEMPLATE, grid_gap="0 8px", flex="1 1 auto",
                        min_width="0", overflow="hidden",
                    ),
                ),
            ]
        )  # fmt: skip
        head.add_class("fadv-head")
        self._rows = [_Row(partial(self._press, number), narrow, wide) for number in range(ROWS)]
        self.pager = Pager("Findings", rows=ROWS, turned=self._fill)
        self._nothing = ipywidgets.HTML()
        self._grid = ipywidgets.VBox(
            [head, *(row.box for row in self._rows)],
            layout=ipywidgets.Layout(min_width="60em"),
        )
        self.box = ipywidgets.VBox(
            [
                self._filter,
                self.pager.box,
                ipywidgets.Box([self._grid], layout=ipywidgets.Layout(overflow="auto")),
                self._nothing,
            ]
        )

    @property
    def shown_ids(self) -> list[str]:
        """The findings on the page, in order."""
        span = self.pager.span
        return [view.id for view in self._shown[span.start : span.stop]]

    def refresh(self, views: tuple[FindingView, ...]) -> None:
        """New findings, or the same in a new state; order, filter and page stay."""
        self._views = views
        if self.chosen is None and views:
            self.chosen = views[0].id
        self._refill()

    def choose(self, finding: str) -> None:
        """Mark a row as the chosen one."""
        self.chosen = finding
        self._fill()

    def _press(self, row: int) -> None:
        ids = self.shown_ids
        if row < len(ids):
            self.choose(ids[row])
            self._chose(ids[row])

    def _sort_by(self, column: Column) -> None:
        self._reverse = not self._reverse if column is self._column else False
        self._column = column
        self._refill(page=1)

    def _refill(self, page: int | None = None) -> None:
        found = matching_views(self._views, self._filter.value)
        if self._column is not None:
            found = sorted_views(found, self._column, reverse=self._reverse)
        self._shown = found
        self.pager.resize(len(found), of=len(self._views), page=page)
        self._label_heads()
        self._nothing.value = "" if found else note(
            "No finding matches." if self._views else "Nothing is worth fusing here: see Summary."
        )  # fmt: skip
        self._fill()

    def _fill(self) -> None:
        span = self.pager.span
        page = self._shown[span.start : span.stop]
        self.pager.resize(len(self._shown), of=len(self._views))
        for number, row in enumerate(self._rows):
            view = page[number] if number < len(page) else None
            row.show(view, chosen=view is not None and view.id == self.chosen)

    def _label_heads(self) -> None:
        for column, head in zip(COLUMNS, self._heads, strict=True):
            descending = column.largest_first is not self._reverse
            sorted_by = column is self._column
            head.description = column.head + (f" {'▾' if descending else '▴'}" if sorted_by else "")
            now = f"; sorted by it now, {'largest' if descending else 'smallest'} first"
            head.tooltip = f"Sort by {column.about}{now if sorted_by else ''}"
