"""Runs kernels on prepared cases in a child process, and judges what came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusion_advisor import workers
from fusion_advisor.errors import ValidationError
from fusion_advisor.validation import arrays
from fusion_advisor.validation.execution import CaseOutcome, ExecutionRequest
from fusion_advisor.validation.native_module import HostModule
from fusion_advisor.validation.session import Session, Tally

TIMEOUT_S = 180.0


def run_native(session: Session, host: HostModule, most_elements: int | None = None) -> Tally:
    """Execute the CUDA kernel's own IR on this CPU for every case (of at most so many elements).

    Raises ``ValidationError`` on a crash, a trespass or a wrong value.
    """
    return _judged(session, _request(session, most_elements, host=host))


def run_cpu(session: Session) -> Tally:
    """Execute both twins of the CPU kernel for every case; raises as ``run_native``."""
    kernel = session.kernel
    request = _request(
        session,
        text=kernel.text,
        entry=kernel.entry,
        text_hash=kernel.hash,
        cpu_name=kernel.cpu_name,
    )
    return _judged(session, request)


def _request(session: Session, most_elements: int | None = None, **kernel: Any) -> ExecutionRequest:
    program = session.kernel.program
    specs = []
    cases = [
        prepared.case
        for prepared in session.prepared
        if most_elements is None or prepared.elements <= most_elements
    ]
    for case in (*cases, *(raising.case for raising in session.raising)):
        seen = arrays.seen_regions(session.graph, session.candidate, case.tensors)
        spec = arrays.launch_spec(program, seen, case.scalars)
        specs.append((case.name, spec))
    return ExecutionRequest(cases=tuple(specs), **kernel)


def _judged(session: Session, request: ExecutionRequest) -> Tally:
    last: list[str] = []
    try:
        outcomes: list[CaseOutcome] = workers.run_isolated(
            "fusion_advisor.validation.execution:execute",
            request,
            timeout_s=TIMEOUT_S,
            on_progress=lambda message: last.append(str(message)),
        )
    except workers.WorkerTimeout as error:
        raise ValidationError(f"did not end within {TIMEOUT_S:g} s {_at(last)}") from error
    except workers.WorkerCrash as error:
        if error.exit_code is not None and error.exit_code < 0:
            raise ValidationError(
                f"died by signal {-error.exit_code} {_at(last)}: it reached memory that is not "
                "its own"
            ) from error
        raise ValidationError(f"raised {_at(last)}: {_last_line(error)}") from error
    return tally(session, outcomes)


def _at(messages: Sequence[str]) -> str:
    return f"at {messages[-1]}" if messages else "before the first case"


def _last_line(error: workers.WorkerCrash) -> str:
    lines = [line for line in error.stderr_tail.strip().splitlines() if line.strip()]
    return (lines[-1] if lines else str(error))[:400]


def tally(session: Session, outcomes: Sequence[CaseOutcome]) -> Tally:
    """Judge what the child reports.  Raises ``ValidationError`` at the first wrong case."""
    result = Tally()
    index = {prepared.case.name: place for place, prepared in enumerate(session.prepared)}
    program = session.kernel.program
    raising = {one.case.name for one in session.raising}
    for outcome in outcomes:
        label = f"{outcome.variant}, {outcome.case}"
        if outcome.trespasses:
            raise ValidationError(f"{label}: {'; '.join(outcome.trespasses)}")
        if outcome.zero_divisor is False and outcome.case in raising:
            raise ValidationError(f"{label}: an integer was divided by 0 and nobody was told")
        if outcome.case in raising:
            result.cases += 1
            continue
        if outcome.zero_divisor:
            raise ValidationError(f"{label}: tells of a zero divisor where there is none")
        place = index[outcome.case]
        shapes = session.prepared[place].shapes
        actual = [
            arrays.output_tensor(
                program.spaces[output.region], output.dtype, shapes[output.region], data
            )
            for output, data in zip(program.outputs, outcome.outputs, strict=True)
        ]
        for comparison in session.judge(place, actual):
            result.add(label, comparison)
        result.cases += 1
    return result
