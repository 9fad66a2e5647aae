"""Random programs: recorded, fused, and the kernels held against eager within their budgets.

Operands are transposed, sliced, offset, expanded, broadcast, empty, 0-dim and of mixed dtypes; ops
are all that have a kernel, views and in-place writes among them.  A kernel that differs is a fault
of the product; so is a right one that the validator refuses.  ``make programs`` draws many more.
"""

from __future__ import annotations

import os
from random import Random

import pytest
import torch
from drawn_programs import programs, random_program
from hypothesis import HealthCheck, Phase, given, settings
from program_checks import (
    Tally,
    check_chains,
    check_numbered,
    check_refusals,
    recorded,
    session_of,
)
from slow_checker import problems

from fusion_advisor.analysis import find_candidates
from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.validation import validate

SEED = int(os.environ.get("FUSION_ADVISOR_SEED", "5"))  # a failure names it with its number
LEGAL_PROGRAMS = 240  # without kernels: they cost 30 ms each


@pytest.mark.parametrize("number", range(24))
def test_kernels_of_a_random_program_are_right(number: int) -> None:
    check_numbered(SEED, number)


def test_groups_of_random_programs_are_legal_and_refusals_have_known_reasons() -> None:
    fused = 0
    for number in range(LEGAL_PROGRAMS):
        program = random_program(Random(f"legal {SEED}:{number}"))
        recording = recorded(program)
        if recording is None:
            continue
        candidates = find_candidates(recording.graph)
        found = problems(recording.graph, candidates)
        assert not found, f"seed {SEED}, number {number}: {found}\n{program.text()}"
        check_refusals(recording.graph, candidates, Tally())
        check_chains(recording, candidates)
        fused += bool(candidates)
    assert fused >= 0.85 * LEGAL_PROGRAMS


def test_drawn_programs_are_as_promised() -> None:
    """2 to 30 ops, and every kind of step and of operand among them."""
    drawn = [random_program(Random(f"promised {SEED}:{number}")) for number in range(150)]
    lengths = [len(program.steps) for program in drawn]
    assert min(lengths) >= 2 and 25 <= max(lengths) <= 30
    kinds = {step.kind for program in drawn for step in program.steps}
    assert kinds == {"op", "view", "in place"}
    layouts = {operand.layout for program in drawn for operand in program.operands}
    assert {"plain", "transposed", "sliced", "expanded", "offset", "channels_last"} <= layouts
    dtypes = {operand.dtype for program in drawn for operand in program.operands}
    assert len(dtypes) == 10
    assert max(len(program.kept) for program in drawn) >= 4
    again = random_program(Random(f"promised {SEED}:0"))
    assert again.text() == drawn[0].text()
    for one, two in zip(again.inputs(), drawn[0].inputs(), strict=True):
        assert torch.equal(one, two) or one.is_floating_point()


@pytest.mark.slow
@settings(
    max_examples=20,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=not os.environ.get("FUSION_ADVISOR_RANDOM"),  # set: other programs every time
    phases=[Phase.generate],  # programs are small already, and every smaller one is compiled
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_the_whole_ladder_accepts_random_programs(program) -> None:
    recording = recorded(program)
    if recording is None:
        return
    for candidate in find_candidates(recording.graph):
        try:
            kernel = generate_kernel(recording.graph, candidate)
        except UnsupportedOpError:
            continue
        session = session_of(recording, candidate, kernel, Tally())
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
