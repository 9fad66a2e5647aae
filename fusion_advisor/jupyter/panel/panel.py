"""The panel: tabs over one advice, kept up to date while it changes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import ipywidgets

from fusion_advisor.jupyter.jobs import JobRunner
from fusion_advisor.jupyter.panel.action_bar import ActionBar
from fusion_advisor.jupyter.panel.desk import Desk
from fusion_advisor.jupyter.panel.detail import evidence_html, heading_html
from fusion_advisor.jupyter.panel.findings_tab import FindingsTable
from fusion_advisor.jupyter.panel.kernels_tab import KernelTab
from fusion_advisor.jupyter.panel.paging import LongTable
from fusion_advisor.jupyter.panel.style import ROOT_CLASS, style_sheet
from fusion_advisor.jupyter.panel.summary import (
    finding_traffic_html,
    run_traffic_html,
    summary_html,
)
from fusion_advisor.jupyter.panel.tables import OpsTab, RooflineTab, WhyNotTab
from fusion_advisor.jupyter.progress import show
from fusion_advisor.report import notebook_html, render_text
from fusion_advisor.report.view import FindingView, finding_views, headline

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice

TITLES = ("Summary", "Findings", "Roofline", "Ops", "Traffic", "Kernel", "Why not")
WIDGET_TYPE = "application/vnd.jupyter.widget-view+json"
_numbers = itertools.count(1)  # no two panels of a page share an id
_desks: dict[int, Desk] = {}  # by advice, while a panel shows it


class Panel(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """``advice.widget()``: a widget like any other; ``close()`` releases it and the advice."""

    def __init__(self, advice: Advice, runner: Callable[[], JobRunner]) -> None:
        desk = _desks.setdefault(id(advice), Desk(advice, runner))
        self._lock = threading.RLock()  # jobs report from their own thread
        self._name = f"fusion-panel-{next(_numbers)}"
        self._desk: Desk | None = desk
        self._views: tuple[FindingView, ...] = ()
        report = advice.report
        self.summary = ipywidgets.HTML()
        self.findings = FindingsTable(self._chose)
        self.actions = ActionBar(desk)
        self._heading, self._evidence = ipywidgets.HTML(), ipywidgets.HTML()
        self.kernel = KernelTab()
        self.ops, self.why_not = OpsTab(report), WhyNotTab(report)
        self.roofline = RooflineTab(report, name=f"{self._name}-roofline")
        self.traffic = LongTable(
            "Findings", matching=lambda: self._views, render=finding_traffic_html, rows=10
        )
        findings = ipywidgets.VBox(
            [self.findings.box, self._heading, self.actions.box, self._evidence]
        )
        traffic = ipywidgets.VBox([ipywidgets.HTML(run_traffic_html(report)), self.traffic.box])
        self.tabs = ipywidgets.Tab(
            [self.summary, findings, self.roofline.box, self.ops.box, traffic, self.kernel.box,
             self.why_not.box],
            titles=TITLES,
        )  # fmt: skip
        super().__init__([ipywidgets.HTML(style_sheet()), self.tabs])
        self.add_class(ROOT_CLASS)
        desk.watch(self._work_moved)
        self._end_observing = advice.observe(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the advice as it is now; order, filters, pages and the chosen finding stay."""
        with self._lock:
            desk = self._desk
            if desk is None:
                return  # closed meanwhile
            report = desk.advice.report
            self._views = finding_views(report)
            self.summary.value = summary_html(report)
            self.findings.refresh(self._views)
            self.traffic.refresh(len(self._views))
            self._show_chosen()

    def close(self) -> None:
        """Take the panel off the page; what is in place stays, and jobs run to their end."""
        with self._lock:
            desk, self._desk = self._desk, None
            if desk is None:
                return
            self._end_observing()
            if desk.leave(self._work_moved):
                _desks.pop(id(desk.advice), None)
            for widget in tuple(_tree(self)):
                if widget is not self:
                    widget.close()
            super().close()
            self._forget()

    def _forget(self) -> None:
        """Let go of everything: whoever keeps the closed panel keeps nothing else alive."""
        self.children = ()
        for name in ("summary", "findings", "actions", "kernel", "ops", "why_not", "roofline",
                     "traffic", "tabs", "_heading", "_evidence", "_end_observing"):  # fmt: skip
            delattr(self, name)
        self._views = ()

    # -- what a person does ------------------------------------------------------------------

    def _chose(self, finding: str) -> None:
        with self._lock:
            self._show_chosen()

    def _view(self) -> FindingView | None:
        return next((one for one in self._views if one.id == self.findings.chosen), None)

    def _show_chosen(self) -> None:
        view = self._view()
        self.actions.refresh(view)
        self.kernel.refresh(self._views, self.findings.chosen)
        if view is None or self._desk is None:
            self._heading.value = self._evidence.value = ""
            return
        self._heading.value = heading_html(view)
        self._evidence.value = evidence_html(
            self._desk.advice.report, view, name=f"{self._name}-flow"
        )

    def _work_moved(self, finding: str) -> None:
        with self._lock:
            if self._desk is None or finding != self.findings.chosen:
                return
            view = self._view()
            if view is not None:
                self.actions.refresh(view)

    # -- how it is shown -----------------------------------------------------------------------

    def _ipython_display_(self, **_: Any) -> None:
        """The static report, folded, as an output of its own, then the widget.

        A notebook that is opened again, or exported, has no widget models: the report is there.
        """
        if self._desk is None:
            print("This panel was closed; advice.widget() opens another one.")
            return
        report = self._desk.advice.report
        show(
            {
                "text/plain": render_text(report),
                "text/html": '<details><summary style="cursor:pointer">The report as it was when '
                "this panel was opened (it stays in the saved notebook)</summary>"
                f"{notebook_html(report)}</details>",
            }
        )
        show(self.bundle())

    def bundle(self) -> dict[str, Any]:
        """The widget alone, with a line for front ends that show no widgets."""
        said = headline(self._desk.advice.report) if self._desk is not None else "closed"
        return {
            "text/plain": f"Fusion Advisor panel: {said}  (This front end shows no widgets, or the "
            "kernel is gone: the report stands above.)",
            WIDGET_TYPE: {"version_major": 2, "version_minor": 0, "model_id": self.model_id},
        }


def _tree(widget: Any) -> Iterator[Any]:
    """A widget and every model that came with it."""
    yield widget
    for name in ("layout", "style"):
        part = getattr(widget, name, None)
        if isinstance(part, ipywidgets.Widget):
            yield part
    for child in getattr(widget, "children", ()):
        yield from _tree(child)
