"""Advices and panels for the panel's tests: a ready report, and real small models."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from report_fixture import rich_report

import fusion_advisor as fa
from fusion_advisor.jupyter.jobs import JobRunner
from fusion_advisor.jupyter.panel.panel import Panel
from fusion_advisor.records import Report
from fusion_advisor.validation import measure_again


class WrittenOutGelu(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 3.0 + 1.0) * x - 0.5


class Model(torch.nn.Module):
    """Nearly all of its time is its two chains': their savings stand out of any machine's noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 2048)
        self.gelu = WrittenOutGelu()
        self.middle = torch.nn.Sequential(torch.nn.Linear(2048, 16), torch.nn.Linear(16, 2048))
        self.scaled = Scaled()
        self.last = torch.nn.Linear(2048, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.scaled(self.middle(self.gelu(self.first(x)))))


def real_advice() -> tuple[Model, torch.Tensor, fa.Advice]:
    """A model with two chains of elementwise ops, and what profiling it found.

    Ceilings measured while others used the machine promise too little: they are measured again.
    """
    torch.manual_seed(0)
    model, x = Model(), torch.randn(512, 32)
    for _ in range(3):
        advice = fa.profile(model, (x,), isolated=False, target="cpu")
        if len(advice.report.findings) == 2:
            return model, x, advice
        measure_again()
    report = advice.report
    raise AssertionError((report.nothing, report.notes, report.capture.times, report.estimates))


class ReadyAdvice:
    """An advice that holds a ready report; what is asked of it is remembered or planned."""

    def __init__(self, report: Report | None = None) -> None:
        self.report = report or rich_report()
        self.closed = False
        self.observers: list[Callable[[], None]] = []
        self.on_fuse: Callable[[str], Any] | None = None

    def observe(self, observer: Callable[[], None]) -> Callable[[], None]:
        self.observers.append(observer)
        return lambda: self.observers.remove(observer)

    def fuse(self, finding: str) -> Any:
        assert self.on_fuse is not None
        return self.on_fuse(finding)


def many_findings(count: int) -> Report:
    """The ready report with ``count`` findings F1, F2 … whose shares fall."""
    report = rich_report()
    first = report.findings[0]
    findings = tuple(
        dataclasses.replace(
            first, id=f"F{number}", share=1.0 / (number + 1), rule=f"FUS{number % 3 + 1:03d}"
        )
        for number in range(1, count + 1)
    )
    return dataclasses.replace(report, findings=findings, applied=(), validations=(), kernels=())


def ended(panel: Panel, finding: str, timeout_s: float = 120.0) -> Any:
    """The work on a finding, once it is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        work = panel._desk.work_on(finding)
        if work is not None and work.job is not None and work.job._ended.wait(0.02):
            return work  # and everybody was told
        time.sleep(0.02)
    raise AssertionError(f"{finding} is still being worked on: {panel.actions.said.value}")


def all_html(panel: Panel) -> list[str]:
    """The HTML of every HTML widget of a panel."""
    import ipywidgets

    return [one.value for one in widgets_of(panel) if isinstance(one, ipywidgets.HTML)]


def widgets_of(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from widgets_of(child)


@contextlib.contextmanager
def watched(panel: Panel, watcher: Callable[[str], Any]) -> Iterator[None]:
    """Have ``watcher`` told of the work on the panel's findings."""
    desk = panel._desk
    assert desk is not None
    desk.watch(watcher)
    try:
        yield
    finally:
        desk.leave(watcher)


class _NoEvents:
    def register(self, *_: Any) -> None: ...

    unregister = register


class QuietShell:
    """What a job runner needs of a shell without a kernel."""

    events = _NoEvents()


def new_runner() -> JobRunner:
    return JobRunner(QuietShell())
