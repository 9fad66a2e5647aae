"""Random programs: recorded, fused, and the kernels held against eager within their budgets.

Operands are transposed, sliced, offset, expanded, broadcast, empty, 0-dim and of mixed dtypes;
the cases of the validator add other sizes, special values and other layouts to the recorded ones.
A kernel that differs is a fault of the product; so is a right one that the validator refuses.
"""

from __future__ import annotations

import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from random_programs import Program, programs, viewed_programs
from slow_checker import problems

from fusion_advisor.analysis import find_candidates
from fusion_advisor.errors import CaptureError, UnsupportedOpError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, Recording, record, replay
from fusion_advisor.records import FusionCandidate, KernelSource
from fusion_advisor.validation import in_process, validate
from fusion_advisor.validation.session import Session

PLAIN = settings(
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=not os.environ.get("FUSION_ADVISOR_RANDOM"),  # set: other programs every time
    phases=[Phase.generate],  # programs are small already, and every smaller one is compiled
    suppress_health_check=list(HealthCheck),
)
REFUSALS = ("leave this op eager",)  # of calls that no kernel can repeat


def _recorded(program: Program) -> Recording | None:
    inputs = program.inputs()
    if not program.run(program.inputs()):
        return None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of casts and the like
        try:
            recording = record(lambda: program.run(inputs), CaptureOptions())
        except CaptureError as error:
            if "no torch op" not in str(error):
                raise
            return None
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message
    return recording


def _kernels(recording: Recording) -> list[tuple[FusionCandidate, KernelSource]]:
    found = []
    for candidate in find_candidates(recording.graph):
        try:
            found.append((candidate, generate_kernel(recording.graph, candidate)))
        except UnsupportedOpError as error:
            if not any(reason in str(error) for reason in REFUSALS):
                raise
    return found


def _session(recording: Recording, candidate: FusionCandidate, kernel: KernelSource) -> Session:
    graph = recording.graph
    names = tuple(operand.value for operand in candidate.inputs)
    return Session(
        kernel,
        graph,
        candidate,
        replay.subgraph(graph, candidate.computed, names, candidate.outputs),
        replay.subgraph(graph, candidate.computed, names, candidate.outputs, high_precision=True),
        replay.materialize(graph, recording.store, names),
    )


def _check_kernels(program: Program) -> int:
    """Hold every kernel of a program against eager; how many of them have views."""
    recording = _recorded(program)
    if recording is None:
        return 0
    viewed = 0
    for candidate, kernel in _kernels(recording):
        viewed += bool(candidate.regions)
        session = _session(recording, candidate, kernel)
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
    return viewed


@settings(PLAIN, max_examples=40)
@given(programs())
def test_kernels_of_random_programs_are_right(program: Program) -> None:
    _check_kernels(program)


def test_kernels_of_random_programs_with_views_are_right() -> None:
    viewed: list[int] = []

    @settings(PLAIN, max_examples=60)
    @given(viewed_programs())
    def check(program: Program) -> None:
        viewed.append(_check_kernels(program))

    check()
    assert sum(viewed) >= 10  # views between members are really met


@settings(PLAIN, max_examples=300)
@given(viewed_programs())
def test_candidates_of_random_programs_with_views_are_legal(program: Program) -> None:
    recording = _recorded(program)
    if recording is not None:
        assert problems(recording.graph, find_candidates(recording.graph)) == []


def _check_ladder(program: Program) -> None:
    recording = _recorded(program)
    if recording is None:
        return
    for candidate, kernel in _kernels(recording):
        session = _session(recording, candidate, kernel)
        result = validate(
            kernel,
            recording.graph,
            candidate,
            reference=session.reference,
            reference64=session.reference64,
            captured=session.captured,
            ceilings=None,
            measure=False,
        )
        failed = [f"{rung.name}: {rung.detail}" for rung in result.rungs if rung.status == "failed"]
        assert result.status == "passed", f"{failed}\n{kernel.text}"
        assert result.mismatches == 0


@pytest.mark.slow
@settings(PLAIN, max_examples=8)
@given(programs())
def test_the_whole_ladder_accepts_random_programs(program: Program) -> None:
    _check_ladder(program)


@pytest.mark.slow
@settings(PLAIN, max_examples=16)
@given(viewed_programs())
def test_the_whole_ladder_accepts_random_programs_with_views(program: Program) -> None:
    _check_ladder(program)
