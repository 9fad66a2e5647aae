"""The buttons under a finding: generate, validate, apply, undo, and cancel, with their progress."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ipywidgets

from fusion_advisor.jupyter.panel.desk import ACTIONS, Action, Desk, obstacles
from fusion_advisor.jupyter.panel.detail import checks_html, standing_html
from fusion_advisor.jupyter.panel.markup import note, short
from fusion_advisor.jupyter.panel.paging import button
from fusion_advisor.report.view import FindingView

_ABOUT: dict[Action, str] = {
    "generate": "Write the fused kernel; nothing is run or changed",
    "validate": "Prove the kernel on captured, random and adversarial inputs, rung by rung",
    "apply": "Validate, put the kernel in place live, check and time the whole call",
    "undo": "Take the kernel out again, exactly",
}
PLACES = (
    ("in the live function", "function"),
    ("in this model's modules", "module"),
    ("in your source file", "file"),
)
CANCEL_TOOLTIP = (
    "Stop this job; the kernel and your cells are not interrupted.  While a cell runs, a click "
    "waits for its end, as on every widget"
)


class ActionBar:
    """Acts on the chosen finding."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._finding: str | None = None
        self.buttons = {
            action: button(
                action.capitalize(), _ABOUT[action], self._guarded(partial(self._start, action)),
                layout=ipywidgets.Layout(width="7.5em"),
            )
            for action in ACTIONS
        }  # fmt: skip
        self.buttons["apply"].button_style = "primary"
        self.cancel = button(
            "Cancel", CANCEL_TOOLTIP, self._guarded(self._cancel),
            layout=ipywidgets.Layout(width="7.5em"),
        )  # fmt: skip
        self.place = ipywidgets.Dropdown(
            description="Where to apply", options=PLACES, value="function",
            layout=ipywidgets.Layout(width="23em"), style={"description_width": "initial"},
        )  # fmt: skip
        self.bar = ipywidgets.FloatProgress(
            min=0.0, max=1.0, tooltip="Progress of this job",
            layout=ipywidgets.Layout(width="100%", display="none"),
        )  # fmt: skip
        self.reasons = ipywidgets.HTML()
        self.said = ipywidgets.HTML()
        self.trouble = ipywidgets.HTML()
        self.checks = ipywidgets.HTML()
        self._line = ipywidgets.HBox(
            [*self.buttons.values(), self.place, self.cancel],
            layout=ipywidgets.Layout(flex_flow="row wrap"),
        )
        self.box = ipywidgets.VBox(
            [self._line, self.reasons, self.bar, self.said, self.trouble, self.checks]
        )

    def refresh(self, view: FindingView | None) -> None:
        """Show the buttons as they are for this finding, in its state."""
        self.box.layout.display = "none" if view is None else None
        if view is None:
            return
        if view.id != self._finding:
            self._finding = view.id
            self.trouble.value = ""
        working = self._desk.working(view.id)
        reasons = obstacles(view, closed=self._desk.advice.closed, working=working)
        for action, reason in reasons.items():
            one = self.buttons[action]
            one.disabled = bool(reason)
            one.tooltip = f"Not possible: {reason}" if reason else _ABOUT[action]
        self.place.disabled = bool(reasons["apply"])
        self.cancel.disabled = not working
        self.cancel.tooltip = CANCEL_TOOLTIP if working else "Not possible: nothing is under way"
        self.reasons.value = "" if working else _reasons_html(reasons)
        self.refresh_work(view)

    def refresh_work(self, view: FindingView) -> None:
        """Show how far the job on this finding is."""
        work = self._desk.work_on(view.id)
        running = work is not None and work.outcome is None
        self.bar.layout.display = None if running else "none"
        if work is not None:
            self.bar.value = work.fraction if running else 1.0
        self.said.value = standing_html(work, view)
        self.checks.value = checks_html(view.validation, work)

    def _start(self, action: Action) -> None:
        if self._finding is not None and not self.buttons[action].disabled:
            self._desk.start(self._finding, action, where=self.place.value)

    def _cancel(self) -> None:
        if self._finding is not None:
            self._desk.cancel(self._finding)

    def _guarded(self, function: Callable[[], None]) -> Callable[[], None]:
        """An error is shown here; in a callback it would end in the server's log."""

        def call() -> None:
            try:
                self.trouble.value = ""
                function()
            except Exception as error:
                said = short(f"{type(error).__name__}: {error}", 2_000)
                self.trouble.value = f'<div role="alert">{note(said, "bad")}</div>'

        return call


def _reasons_html(reasons: dict[Action, str]) -> str:
    """Why buttons are off, for those whom no tooltip reaches."""
    by_reason: dict[str, list[str]] = {}
    for action, reason in reasons.items():
        if reason:
            by_reason.setdefault(reason, []).append(action.capitalize())
    said = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    return f'<p class="fadv-soft">Not possible now. {short(said, 2_000)}.</p>' if said else ""
