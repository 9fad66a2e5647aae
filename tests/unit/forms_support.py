"""Records a call, makes kernels of its groups and holds them against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusion_advisor.analysis import find_candidates
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, Recording, record, replay
from fusion_advisor.records import FusionCandidate, KernelSource
from fusion_advisor.validation import in_process
from fusion_advisor.validation.session import Session


def recorded(function: Callable[..., Any], *args: Any, grad: bool = False) -> Recording:
    """A recording of one call."""
    with torch.set_grad_enabled(grad):
        return record(lambda: function(*args), CaptureOptions())


def checked(recording: Recording, candidate: FusionCandidate) -> KernelSource:
    """The candidate's kernel, held to eager on the recorded inputs, adversarial ones, gradients."""
    graph = recording.graph
    kernel = generate_kernel(graph, candidate)
    names = tuple(operand.value for operand in candidate.inputs)
    part = (graph, candidate.computed, names, candidate.outputs)
    session = Session(
        kernel,
        graph,
        candidate,
        replay.subgraph(*part),
        replay.subgraph(*part, high_precision=True),
        replay.materialize(graph, recording.store, names),
    )
    session.prepare()
    in_process.check_eager_text(session)
    tally = in_process.check_calls(session)
    assert tally.mismatches == 0, f"{tally.first}\n{kernel.text}"
    assert tally.cases > 0
    try:
        in_process.check_gradients(session)
    except LookupError:
        pass  # nothing to differentiate
    in_process.check_guards(session)
    return kernel


def one_group(
    function: Callable[..., Any], *args: Any, grad: bool = False
) -> tuple[Recording, FusionCandidate, KernelSource]:
    """The only group of a call, with its kernel, checked."""
    recording = recorded(function, *args, grad=grad)
    (candidate,) = find_candidates(recording.graph)
    return recording, candidate, checked(recording, candidate)
