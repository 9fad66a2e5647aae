"""Long tables of which one page exists at a time: the pager, and a table with its filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets


def button(text: str, tooltip: str, pressed: Callable[[], None], **more: Any) -> Any:
    """A button that calls ``pressed()``."""
    made = ipywidgets.Button(description=text, tooltip=tooltip, **more)
    made.on_click(lambda _: pressed())
    return made


class Pager:
    """Buttons and a number for the page; ``turned()`` is called when a person turns it."""

    def __init__(self, noun: str, *, rows: int, turned: Callable[[], None]) -> None:
        self.noun, self.rows, self.total = noun, rows, 0
        self._turned = turned
        self._quiet = False
        narrow = ipywidgets.Layout(width="2.6em")
        self._back = [
            button("«", "First page", lambda: self._go(1), layout=narrow),
            button("‹", "Previous page", lambda: self._go(self.page - 1), layout=narrow),
        ]
        self._on = [
            button("›", "Next page", lambda: self._go(self.page + 1), layout=narrow),
            button("»", "Last page", lambda: self._go(self.pages), layout=narrow),
        ]
        self._number = ipywidgets.BoundedIntText(
            value=1, min=1, max=1, description="Page", tooltip="Number of the page to show",
            layout=ipywidgets.Layout(width="11em"), style={"description_width": "3em"},
        )  # fmt: skip
        self._number.observe(self._typed, "value")
        self._said = ipywidgets.HTML()
        self._buttons = ipywidgets.HBox([*self._back, self._number, *self._on])
        self.box = ipywidgets.HBox(
            [self._said, self._buttons],
            layout=ipywidgets.Layout(justify_content="space-between", flex_flow="row wrap"),
        )

    @property
    def page(self) -> int:
        return int(self._number.value)

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.rows))

    @property
    def span(self) -> range:
        """Positions of the rows on this page."""
        first = (self.page - 1) * self.rows
        return range(first, min(first + self.rows, self.total))

    def resize(self, total: int, *, of: int, page: int | None = None) -> None:
        """``total`` of ``of`` rows pass the filters; stay on the page if it exists."""
        self.total = total
        self._quiet = True
        try:
            self._number.max = self.pages
            self._number.value = min(page or self.page, self.pages)
        finally:
            self._quiet = False
        self._buttons.layout.display = None if self.pages > 1 else "none"
        self._tell(of)

    def _tell(self, of: int) -> None:
        for one in self._back:
            one.disabled = self.page <= 1
        for one in self._on:
            one.disabled = self.page >= self.pages
        shown = self.span
        text = f"{self.noun}: none" if not self.total else (
            f"{self.noun}: {shown.start + 1:,} to {shown.stop:,} of {self.total:,}"
        )  # fmt: skip
        if of != self.total:
            text += f" that match ({of:,} in all)"
        self._said.value = f'<span role="status" class="fadv-soft">{text}</span>'

    def _go(self, page: int) -> None:
        self._number.value = max(1, min(page, self.pages))

    def _typed(self, _: Any) -> None:
        if not self._quiet:
            self._turned()


class LongTable:
    """One page of a table, as HTML, under its filters.

    ``matching()`` gives the rows that the filters let through, in order; ``render(rows)`` the
    HTML of a page of them.  ``controls`` are the filters.
    """

    def __init__(
        self,
        noun: str,
        *,
        matching: Callable[[], Sequence[Any]],
        render: Callable[[Sequence[Any]], str],
        controls: Sequence[Any] = (),
        rows: int = 50,
    ) -> None:
        self._matching, self._render = matching, render
        self._found: Sequence[Any] = ()
        self._of = 0
        self.pager = Pager(noun, rows=rows, turned=self._show)
        self.page_html = ipywidgets.HTML()
        for control in controls:
            control.observe(self._filtered, "value")
        self.box = ipywidgets.VBox([*_one_line(controls), self.pager.box, self.page_html])

    def refresh(self, of: int) -> None:
        """The rows themselves, ``of`` of them, are new: filter again and stay on the page."""
        self._of = of
        self._found = self._matching()
        self._show()

    def _filtered(self, _: Any) -> None:
        self._found = self._matching()
        self._show(page=1)

    def _show(self, page: int | None = None) -> None:
        self.pager.resize(len(self._found), of=self._of, page=page)
        span = self.pager.span
        self.page_html.value = self._render(self._found[span.start : span.stop])


def _one_line(controls: Sequence[Any]) -> list[Any]:
    """The filters beside each other, where there are any."""
    if not controls:
        return []
    return [ipywidgets.HBox(list(controls), layout=ipywidgets.Layout(flex_flow="row wrap"))]


def search_box(placeholder: str) -> Any:
    """A labelled field that filters as a person types."""
    return ipywidgets.Text(
        description="Filter", placeholder=placeholder, layout=ipywidgets.Layout(width="24em"),
        style={"description_width": "3.5em"},
    )  # fmt: skip


def choice(label: str, options: Sequence[str], *, width: str = "17em") -> Any:
    """A labelled drop-down; each option is its text and, as value, its position."""
    return ipywidgets.Dropdown(
        description=label,
        options=[(text, position) for position, text in enumerate(options)],
        value=0,
        layout=ipywidgets.Layout(width=width),
        style={"description_width": "initial"},
    )


def words_of(text: str) -> tuple[str, ...]:
    """What a filter asks for: every word must be there, in any case."""
    return tuple(text.lower().split())
