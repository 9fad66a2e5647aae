"""The panel's buttons on real models: generate, validate, apply, undo, cancel; nothing leaks."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ipywidgets.widgets import widget as widget_module

sys.path.insert(0, str(Path(__file__).parent))
from panel_support import WrittenOutGelu, ended, new_runner, real_advice, watched

from fusion_advisor.errors import UsageError
from fusion_advisor.jupyter.jobs import JobRunner
from fusion_advisor.jupyter.panel.desk import WAITING
from fusion_advisor.jupyter.panel.panel import Panel


@pytest.fixture(scope="module")
def profiled() -> Any:
    return real_advice()


@pytest.fixture
def runner() -> Iterator[JobRunner]:
    made = new_runner()
    yield made
    made.close()


@pytest.fixture
def panel(profiled: Any, runner: JobRunner) -> Iterator[Panel]:
    made = Panel(profiled[2], lambda: runner)
    yield made
    made.close()


def choose(panel: Panel, finding: str) -> None:
    panel.findings._rows[panel.findings.shown_ids.index(finding)].button.click()


def of_class(advice: Any, name: str) -> str:
    """The finding in a module of this class."""
    return str(next(one.id for one in advice.report.findings if one.title.startswith(name)))


def state(panel: Panel, finding: str) -> str:
    return next(view.state for view in panel._views if view.id == finding)


@pytest.mark.essential
@pytest.mark.slow
def test_from_generate_to_undo(profiled: Any, panel: Panel, runner: JobRunner):
    model, x, advice = profiled
    finding = of_class(advice, "WrittenOutGelu")
    before, unfused = model(x).detach().clone(), WrittenOutGelu.forward.__code__
    other = Panel(advice, lambda: runner)
    try:
        choose(panel, finding)
        press = panel.actions.buttons
        press["generate"].click()
        assert "was generated" in ended(panel, finding).message
        assert [state(one, finding) for one in (panel, other)] == ["kernel generated"] * 2
        assert press["generate"].disabled and not press["validate"].disabled
        assert panel.kernel._finding.value == finding

        fractions, rungs = [], []
        panel.actions.bar.observe(lambda change: fractions.append(change["new"]), "value")
        press["validate"].click()
        with watched(panel, lambda _: rungs.append(tuple(panel._desk.work_on(finding).rungs))):
            work = ended(panel, finding)
        assert work.message.startswith("Validated: 0 mismatches in ")
        climbed = [rung.name for rung in dict(advice.report.validations)[finding].rungs
                   if rung.status == "passed"]  # fmt: skip
        assert set(climbed) <= set(work.rungs) and work.rungs[0] == climbed[0]
        assert max(map(len, rungs)) == len(work.rungs)  # one after the other was shown
        assert fractions == sorted(fractions) and fractions[-1] == 1.0
        assert state(other, finding) == "validated"
        assert all(name in panel.actions.checks.value for name in climbed)
        assert "Measured beside eager" in panel.actions.checks.value

        press["apply"].click()
        message = ended(panel, finding).message
        assert message.startswith(f"{finding} in place: whole call "), message
        assert WrittenOutGelu.forward.__code__ is not unfused
        model(x)
        assert advice.stats()["fused_calls"].sum() >= 1
        assert [state(one, finding) for one in (panel, other)] == ["in place"] * 2
        assert press["apply"].disabled and not press["undo"].disabled
        assert f"{finding} in place" in other.summary.value

        press["undo"].click()
        assert ended(panel, finding).message.startswith("taken out: ")
        assert WrittenOutGelu.forward.__code__ is unfused
        assert torch.equal(model(x), before)
        assert [state(one, finding) for one in (panel, other)] == ["taken out"] * 2
    finally:
        other.close()
        advice.undo()


def test_what_is_applied_and_undone_elsewhere_shows_at_once(profiled: Any, panel: Panel):
    _, _, advice = profiled
    finding = of_class(advice, "WrittenOutGelu")
    choose(panel, finding)
    try:
        advice.apply(finding)
        assert state(panel, finding) == "in place"
        assert f"{finding} in place: whole call" in panel.actions.said.value
        assert panel.actions.buttons["apply"].disabled
        assert (
            "in place" in panel.findings._rows[panel.findings.shown_ids.index(finding)].cells.value
        )
    finally:
        advice.undo()
    assert state(panel, finding) == "taken out"
    assert "is not in place: undone" in panel.actions.said.value
    assert not panel.actions.buttons["apply"].disabled


@pytest.mark.essential
def test_a_wrong_kernel_fails_validation_is_shown_and_not_applied(profiled: Any, panel: Panel):
    _, _, advice = profiled
    finding = of_class(advice, "WrittenOutGelu")
    good = advice.fuse(finding)
    wrong = good.text.replace("0.044715", "0.044716")
    assert wrong != good.text
    planted = dataclasses.replace(good, text=wrong, hash=hashlib.sha256(wrong.encode()).hexdigest())
    report, unfused = advice.report, WrittenOutGelu.forward.__code__
    try:
        advice._keep(
            lambda now: {"kernels": ((finding, planted),), "validations": (), "applied": ()}
        )
        choose(panel, finding)
        panel.actions.buttons["validate"].click()
        work = ended(panel, finding)
        assert work.message.startswith("Not safe, not applied: validation failed: ")
        assert state(panel, finding) == "failed validation"
        assert 'class="fadv-tag bad">failed' in panel.actions.checks.value
        assert panel.actions.buttons["apply"].disabled
        assert "Apply: its kernel failed validation" in panel.actions.reasons.value
        # asked for all the same, as by a click that was on its way, nothing is changed
        panel._desk.start(finding, "apply")
        assert "is not in place: not applied" in ended(panel, finding).message
        assert WrittenOutGelu.forward.__code__ is unfused
    finally:
        advice.report = report
        advice._notify()


def test_a_job_is_cancelled_in_its_child_process(profiled: Any, panel: Panel):
    _, _, advice = profiled
    finding = of_class(advice, "WrittenOutGelu")
    report = advice.report
    advice._keep(lambda now: {"validations": ()})
    choose(panel, finding)
    begun = threading.Event()
    try:
        panel.actions.buttons["validate"].click()
        with watched(panel, lambda _: panel._desk.work_on(finding).rungs and begun.set()):
            assert begun.wait(120)
        assert not panel.actions.cancel.disabled
        assert all(one.disabled for one in panel.actions.buttons.values())
        assert "running" in panel.actions.checks.value
        panel.actions.cancel.click()
        asked = time.monotonic()
        work = ended(panel, finding)
        assert time.monotonic() - asked < 30
        assert work.outcome.status == "cancelled"
        assert work.message == f"validate {finding}: cancelled; nothing was changed"
        assert dict(advice.report.validations).get(finding) is None
        assert not panel.actions.buttons["validate"].disabled and panel.actions.cancel.disabled
    finally:
        advice.report = report


def test_several_at_once_are_queued_and_a_waiting_one_can_be_cancelled(
    profiled: Any, panel: Panel, runner: JobRunner
):
    _, _, advice = profiled
    first, second = (one.id for one in advice.report.findings)
    hold = threading.Event()
    runner.submit(lambda job: hold.wait(60))  # something of another panel is under way
    for finding in (first, second):
        choose(panel, finding)
        panel.actions.buttons["undo" if state(panel, finding) == "in place" else "apply"].click()
        assert WAITING in panel.actions.said.value
    panel._desk.start(second, "generate")  # one action at a time on one finding
    assert panel._desk.working(second) == "apply"
    panel.actions.cancel.click()
    assert ended(panel, second).outcome.status == "cancelled"
    choose(panel, first)
    assert WAITING in panel.actions.said.value  # the other one goes on waiting
    panel.actions.cancel.click()
    ended(panel, first)
    hold.set()


def test_closing_the_advice_turns_the_buttons_off(runner: JobRunner):
    _, _, advice = real_advice()
    panel = Panel(advice, lambda: runner)
    try:
        finding = panel.findings.chosen
        assert not panel.actions.buttons["validate"].disabled
        advice.close()
        assert panel.actions.buttons["validate"].tooltip == "Not possible: closed: profile again"
        panel._desk.start(finding, "validate")  # a click that was on its way
        assert "this advice was closed" in ended(panel, finding).message
    finally:
        panel.close()


@pytest.mark.essential
def test_a_closed_panel_keeps_neither_advice_nor_widgets_alive(runner: JobRunner):
    before = set(widget_module._instances)
    model, x, advice = real_advice()
    panel, second = Panel(advice, lambda: runner), Panel(advice, lambda: runner)
    finding = panel.findings.chosen
    panel.actions.buttons["generate"].click()
    ended(panel, finding)
    alive = weakref.ref(advice)
    parts = [weakref.ref(one) for one in (panel.findings, panel.actions, panel.ops)]
    panel.close()
    assert len(set(widget_module._instances) - before) > 100  # the second one is still open
    assert state(second, finding) == "kernel generated"
    second.close()
    assert set(widget_module._instances) == before
    del model, x, advice, second
    deadline = time.monotonic() + 10  # the job's thread lets go a moment after its job has ended
    while (alive() is not None or any(part() for part in parts)) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert alive() is None
    assert [part() for part in parts] == [None, None, None]
    assert panel.children == ()  # the panel itself may be kept: it holds nothing


def test_outside_a_kernel_the_message_says_what_to_use(profiled: Any, shell: Any):
    _, _, advice = profiled
    with pytest.raises(UsageError, match=r"no notebook kernel here: print\(advice\)"):
        advice.widget()
    shell.run_line_magic("load_ext", "fusion_advisor")
    shell.run_cell("def unseen():\n    global ran\n    ran = True\n%fuse_profile --panel unseen()")
    assert "ran" not in shell.user_ns  # refused before the code ran


def test_an_observer_is_told_until_it_ends(profiled: Any):
    _, _, advice = profiled
    told: list[int] = []
    end = advice.observe(lambda: told.append(len(advice.report.notes)))
    report = advice.report
    advice._keep(lambda now: {"notes": (*now.notes, "one more")})
    assert told == [len(report.notes) + 1]  # the new report is there when it is told
    end()
    end()
    advice._keep(lambda now: {"notes": report.notes})
    assert len(told) == 1
