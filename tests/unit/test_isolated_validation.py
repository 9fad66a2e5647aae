"""Validation in another process, on any thread: same verdict, nothing here touched."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

import pytest
import torch

import fusion_advisor as fa
from fusion_advisor.errors import UsageError
from fusion_advisor.recorder import parcel
from fusion_advisor.workers import WorkerCancelled

pytestmark = pytest.mark.essential


def chain(x, y):
    return torch.relu(x * y + 1) * 0.5


def profiled(function=chain, *, target="cpu", **tensors):
    torch.manual_seed(3)
    inputs = tuple(tensors.values()) or (torch.randn(2048, 512), torch.randn(512))
    for _ in range(4):  # a burst of load from elsewhere may hide what fusing would save
        advice = fa.profile(function, inputs, target=target)
        if advice.report.findings:
            break
    return advice, advice.report.findings[0].id


def rungs(result):
    """What was found, without the size of the machine code: it holds names of the process."""
    sizes = re.compile(r"\d+ bytes of machine code")
    return [(rung.name, rung.status, sizes.sub("", rung.detail)) for rung in result.rungs]


def test_another_process_comes_to_the_same_verdict():
    advice, finding = profiled(target="both")
    before = torch.get_rng_state()
    steps: list[str] = []
    isolated = advice.validate(
        finding, measure=False, isolated=True, progress=lambda stage, _: steps.append(stage)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert isolated.status == "passed"
    assert any("captured" in rung.detail or rung.name == "inputs" for rung in isolated.rungs)
    assert "synthetic only" not in {r.name: r.detail for r in isolated.rungs}["inputs"]
    assert [step.removeprefix(f"validating {finding}: ") for step in steps] == [
        rung.name for rung in isolated.rungs
    ]
    other, again = profiled(target="both")
    here = other.validate(again, measure=False)
    assert rungs(isolated) == rungs(here)
    assert advice.validate(finding, measure=False) is isolated  # known, and not run again


def test_a_measurement_completes_what_was_proven():
    advice, finding = profiled()
    proven = advice.validate(finding, measure=False, isolated=True)
    assert proven.timings == ()
    steps: list[str] = []
    timed = advice.validate(finding, progress=lambda stage, _: steps.append(stage))
    assert [step.partition(": ")[2] for step in steps] == ["inputs", "timing", "after timing"]
    assert timed.timings[0].eager_us > 0 and timed.timings[0].inputs == "captured"
    assert [rung.name for rung in timed.rungs] == [rung.name for rung in proven.rungs]
    changed = {
        new.name for old, new in zip(proven.rungs, timed.rungs, strict=True) if old != new
    }  # fmt: skip
    assert changed == {"timing", "after timing"}
    assert all(rung.status == "passed" for rung in timed.rungs if rung.name in changed)
    assert (timed.status, timed.cases, timed.worst_ulp) == (
        proven.status, proven.cases, proven.worst_ulp
    )  # fmt: skip


def test_a_measurement_of_a_kernel_that_failed_is_not_made():
    advice, finding = profiled()
    kernel = advice.fuse(finding)
    failed = replace(
        advice.validate(finding, measure=False, isolated=True), status="failed", timings=()
    )
    advice._keep(lambda now: {"validations": ((finding, failed),)})
    assert advice.fuse(finding) is kernel
    again = advice.validate(finding)  # climbs the whole ladder
    assert again.status == "passed" and again.timings


def test_asking_for_a_measurement_elsewhere_says_why_not():
    advice, finding = profiled()
    with pytest.raises(UsageError, match="measure=False"):
        advice.validate(finding, isolated=True)


def test_stopping_ends_the_process_and_keeps_nothing():
    advice, finding = profiled(target="both")
    stop, stages = threading.Event(), []

    def progress(stage, _):
        stages.append(stage)
        if len(stages) == 3:
            stop.set()

    began = time.monotonic()
    with pytest.raises(WorkerCancelled):
        advice.validate(finding, measure=False, isolated=True, progress=progress, stop=stop.is_set)
    assert len(stages) <= 4
    assert time.monotonic() - began < 60
    assert advice.report.validations == ()
    assert advice.validate(finding, measure=False, isolated=True).status == "passed"


def test_the_settings_of_this_process_hold_in_the_other():
    """Integers divided by integers give the default dtype, which is another one here."""

    def divided(x, y):
        return (x / y) * 2 + 1

    torch.set_default_dtype(torch.float64)
    try:
        advice, finding = profiled(
            divided, x=torch.randint(1, 99, (2048, 512)), y=torch.randint(1, 99, (2048, 512))
        )
        nodes = {node.id: node for node in advice.report.capture.graph.nodes}
        last = nodes[advice.finding(finding).occurrences[0].nodes[-1]]
        values = {value.id: value.dtype for value in advice.report.capture.graph.values}
        assert values[last.outputs[0]] == "float64"
        result = advice.validate(finding, measure=False, isolated=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.status == "passed", rungs(result)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(512))

    def forward(self, x):
        return torch.tanh(x * self.weight + 1) * 2


def test_parameters_that_are_trained_meanwhile_are_not_called_captured(monkeypatch):
    model = Scaled()
    advice, finding = profiled(model, x=torch.randn(2048, 512))
    real = torch.save

    def save(*args, **kwargs):
        real(*args, **kwargs)
        with torch.no_grad():  # a step of the person's on another thread
            model.weight.mul_(2)

    monkeypatch.setattr(parcel.torch, "save", save)
    result = advice.validate(finding, measure=False, isolated=True)
    assert result.status == "passed"
    assert "synthetic only" in {r.name: r.detail for r in result.rungs}["inputs"]


def test_no_change_of_a_report_is_lost_between_threads():
    advice, _ = profiled()
    notes = advice.report.notes

    def add(number):
        for step in range(200):
            advice._keep(lambda now, s=step: {"notes": (*now.notes, f"{number}-{s}")})

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    added = advice.report.notes[len(notes) :]
    assert len(added) == len(set(added)) == 1600
