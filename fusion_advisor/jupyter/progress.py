"""Progress in words: one display that is updated in place; plain lines in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

SHOWN_AFTER_S = 1.0  # a terminal is told nothing about what is over sooner
UPDATE_EVERY_S = 0.1


def show(data: dict[str, str], *, updatable: bool = False) -> Any:
    """Display a bundle of representations; ``updatable`` returns a handle to change it later."""
    from IPython import display

    handle: Any = display.display(data, raw=True, display_id=True if updatable else None)  # type: ignore[no-untyped-call]
    return handle


class Progress:
    """Follows the stages of one job.

    In a kernel it is a display handle: its updates are kept in the saved notebook, so that a
    headless run ends on the last line, not on a stale first one.
    """

    def __init__(self, *, in_kernel: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self._in_kernel = in_kernel
        self._clock = clock
        self._started = self._stage_started = self._updated = clock()
        self._stages: list[tuple[str, float]] = []
        self._stage = ""
        self._handle: Any = None

    def __call__(self, stage: str, fraction: float) -> None:
        """``stage`` is under way; ``fraction`` of the whole (0..1) lies behind it."""
        now = self._clock()
        changed = stage != self._stage
        if changed:
            self._close_stage(now)
            self._stage = stage
        if changed or now - self._updated >= UPDATE_EVERY_S:
            self._updated = now
            self._show(
                f"Fusion Advisor: {stage} ({min(max(fraction, 0.0), 1.0):.0%})", now, changed
            )

    def finish(self, problem: str = "") -> None:
        """The job is over; the line now says how long each part took."""
        now = self._clock()
        self._close_stage(now)
        if self._handle is None:
            return
        parts: dict[str, float] = {}
        for name, spent in self._stages:  # "validating F1: timing" counts for "validating F1"
            part = name.partition(":")[0]
            parts[part] = parts.get(part, 0.0) + spent
        took = " · ".join(f"{name} {spent:.1f} s" for name, spent in parts.items() if spent >= 0.05)
        total = f"{now - self._started:.1f} s"
        text = f"Fusion Advisor: {problem or 'done'} after {total}" + (f" ({took})" if took else "")
        self._handle.update({"text/plain": text}, raw=True)

    def _close_stage(self, now: float) -> None:
        if self._stage and self._stage != "done":
            self._stages.append((self._stage, now - self._stage_started))
        self._stage, self._stage_started = "", now

    def _show(self, text: str, now: float, changed: bool) -> None:
        if not self._in_kernel:
            if changed and now - self._started >= SHOWN_AFTER_S:
                print(text, file=sys.stderr, flush=True)
            return
        if self._handle is None:
            self._handle = show({"text/plain": text}, updatable=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)
