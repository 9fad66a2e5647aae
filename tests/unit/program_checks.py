"""Everything that is held about one random program, from its recording to its kernels' results.

A check that does not hold raises; what was compared is counted in a ``Tally``.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from drawn_programs import MOST_STEPS, Program, random_program
from slow_checker import problems, schedule

from fusion_advisor.analysis import find_candidates, why_not
from fusion_advisor.errors import CaptureError, UnsupportedOpError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, Recording, record, replay
from fusion_advisor.recorder.program import Program as Replay
from fusion_advisor.recorder.program import undisturbed
from fusion_advisor.recorder.replay import fresh_inputs
from fusion_advisor.records import FusionCandidate, KernelSource, OpGraph
from fusion_advisor.runtime import FusedFunction, load_kernel
from fusion_advisor.validation import in_process, isolated
from fusion_advisor.validation.bits import same_bits, same_bytes
from fusion_advisor.validation.budgets import OutputBudget
from fusion_advisor.validation.compare import CANCELLED_ULP, Comparison
from fusion_advisor.validation.cuda_compiler import compile_cuda
from fusion_advisor.validation.in_process import metadata_problem
from fusion_advisor.validation.inputs import Case
from fusion_advisor.validation.intervals import ulp
from fusion_advisor.validation.native_module import translate
from fusion_advisor.validation.session import WHOLE_BUDGET_ELEMENTS, Session

ARCHITECTURE = (9, 0)  # whose IR is run natively
# Calls of ops with a recipe that it does not take, each with its own reason (regular expressions).
KNOWN_REFUSALS = (
    "a reduction needs the whole of its input before its first result",
    "it (sums its elements up|averages its elements); reduction='none' does not",
    "in training it draws random numbers",
    "native_dropout.* gave .* where its recipe gives",
    "its operands are .* and ",
    "no recipe for dtype (bool|u?int)",
    "it pins memory",
    "power -?[0-9]+ raises in eager",
)
# Why an op with a recipe stays eager, or apart from its neighbour: about its surroundings.
KNOWN_CODES = (
    "view", "copy", "factory", "shape", "output-shape", "layout", "mutated-input", "aliasing",
    "mutated-between", "non-convex", "registers",
)  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """What is done beyond the serial kernel on the recorded inputs."""

    parallel: bool = False
    calls: bool = False  # as a person calls: through the guards and the entry by addresses
    cuda: bool = False
    gradients: bool = False
    guards: bool = False
    other_cases: int = 3
    other_elements: int = 6000  # at most, of each operand


@dataclass
class Tally:
    """What was done and compared; elements are counted once for every run of a kernel."""

    programs: int = 0
    ops: int = 0
    views: int = 0
    in_place: int = 0
    with_kernel: int = 0
    fused_ops: int = 0
    kernels: int = 0
    kernels_with_views: int = 0
    kernel_runs: int = 0
    runs_by: Counter[str] = field(default_factory=Counter)
    whole_runs: int = 0
    gradients: int = 0
    outputs: int = 0
    elements: int = 0
    exact: int = 0  # elements that must equal eager to the bit
    within_budget: int = 0  # elements that have room around eager's value
    wide: int = 0  # of these, with more than CANCELLED_ULP of room
    discontinuous: int = 0  # elements whose budget reaches a jump: each fits one of its sides
    other_side: int = 0  # of these, not equal to eager
    unspecified: int = 0  # behind a float cast to an integer that does not hold it
    not_finite: int = 0  # elements that are infinite or NaN in eager
    worst_share: float = 0.0
    used: Counter[str] = field(default_factory=Counter)  # calls by overload
    refused: Counter[str] = field(default_factory=Counter)  # ops or pairs of ops, by reason

    def add(self, other: Tally) -> None:
        """Count another tally's in."""
        for name, value in vars(other).items():
            if name == "worst_share":
                self.worst_share = max(self.worst_share, value)
            else:
                setattr(self, name, getattr(self, name) + value)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Tally:
        """The tally that ``plain`` gave this for."""
        made = cls()
        for name, value in plain.items():
            setattr(made, name, Counter(value) if isinstance(value, dict) else value)
        return made

    def plain(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            name: dict(sorted(value.items())) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }


class CountingSession(Session):
    """A session that counts what is compared, once for every run of a kernel."""

    tally = Tally()  # of sessions that the guards rung makes of this one: not looked at
    target: str = ""
    effort = Effort()
    random: Random | None = None

    def _cases(self) -> list[Case]:
        """The recorded inputs, and some of the other sizes, values and alignments."""
        cases = super()._cases()
        rest = [
            case
            for case in cases
            if not case.captured
            and all(one.numel() <= self.effort.other_elements for one in case.tensors)
        ]
        random = self.random or Random(0)
        wanted = min(self.effort.other_cases, len(rest))
        return [case for case in cases if case.captured] + random.sample(rest, wanted)

    def judge(self, index: int, actual: Sequence[torch.Tensor]) -> list[Comparison]:
        found = super().judge(index, actual)
        self.tally.kernel_runs += 1
        self.tally.runs_by[self.target] += 1
        if self.prepared[index].elements <= WHOLE_BUDGET_ELEMENTS:
            for allowed, comparison in zip(self.budgets(index), found, strict=True):
                _count(self.tally, allowed, comparison)
        return found


def _count(tally: Tally, allowed: OutputBudget, comparison: Comparison) -> None:
    """What may be where, in one compared output."""
    eager = allowed.eager
    nothing = torch.zeros(eager.shape, dtype=torch.bool)
    unspecified = nothing if allowed.unspecified is None else allowed.unspecified
    jumps = nothing if allowed.ambiguous is None else allowed.ambiguous & ~unspecified
    loose, wide = nothing, nothing
    if allowed.ways:
        way = allowed.ways[0]
        loose = way.loose & ~unspecified & ~jumps
        if eager.is_floating_point():
            room = (way.high - way.low) / ulp(eager.double(), eager.dtype)
            wide = loose & ~(room <= CANCELLED_ULP) & torch.isfinite(eager)
    tally.outputs += 1
    tally.elements += eager.numel()
    tally.unspecified += int(unspecified.sum())
    tally.discontinuous += int(jumps.sum())
    tally.other_side += comparison.ambiguous
    tally.within_budget += int(loose.sum())
    tally.wide += int(wide.sum())
    tally.exact += int((~unspecified & ~jumps & ~loose).sum())
    if eager.is_floating_point():
        tally.not_finite += int((~torch.isfinite(eager)).sum())
    tally.worst_share = max(tally.worst_share, comparison.worst_share)


def effort_of(number: int) -> Effort:
    """What is done with a numbered program: the dearer checks by turns."""
    turn = number % 16
    return Effort(
        parallel=turn == 0,
        cuda=turn in (1, 9),
        gradients=turn in (2, 10),
        guards=turn in (3, 11),
        calls=turn in (4, 12, 15),
        other_elements=10**6 if turn in (0, 8) else 6000,
    )


def check_numbered(seed: int, number: int, most_steps: int = MOST_STEPS) -> Tally:
    """Hold all about the program of a seed and number; what raises says how to see it again."""
    random = Random(f"{seed}:{number}")
    program = random_program(random, most_steps)
    try:
        return check_program(program, effort_of(number), random)
    except Exception as error:
        error.add_note(f"seed {seed}, program {number}, at most {most_steps} ops:")
        error.add_note(program.text())
        raise


def check_program(program: Program, effort: Effort, random: Random) -> Tally:
    """Hold all about one program; raises where something does not.  ``random`` picks cases."""
    tally = Tally(programs=1, used=Counter(step.op for step in program.steps))
    kinds = Counter(step.kind for step in program.steps)
    tally.ops, tally.views, tally.in_place = len(program.steps), kinds["view"], kinds["in place"]
    recording = recorded(program)
    if recording is None:
        return tally
    graph = recording.graph
    candidates = find_candidates(graph)
    found = problems(graph, candidates)
    assert not found, found
    check_refusals(graph, candidates, tally)
    sessions = []
    for candidate in candidates:
        try:
            kernel = generate_kernel(graph, candidate)
        except UnsupportedOpError as error:
            _refuse(tally, "generation", str(error))
            continue
        session = session_of(recording, candidate, kernel, tally)
        session.effort, session.random = effort, random
        sessions.append(session)
    tally.with_kernel = int(bool(sessions))
    for session in sessions:
        _check_kernel(session)
    calls = [_exact_call(session) for session in sessions]
    _check_whole(recording, [session.candidate for session in sessions], calls)
    tally.whole_runs += 1
    return tally


def recorded(program: Program) -> Recording | None:
    """The recording, proven by its replay and by eager's own results; None where it is empty."""
    expected = program.run(program.inputs())
    inputs = program.inputs()
    results: list[torch.Tensor] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of casts and the like

        def run() -> tuple[torch.Tensor, ...]:
            results[:] = program.run(inputs)
            return tuple(results)

        try:
            recording = record(run, CaptureOptions(with_source=False))
        except CaptureError as error:
            if "no torch op" not in str(error):
                raise
            return None
    for one, two in zip(results, expected, strict=True):
        assert bool(same_bits(one, two).all()), "the run that was recorded gave something else"
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message
    return recording


def session_of(
    recording: Recording, candidate: FusionCandidate, kernel: KernelSource, tally: Tally
) -> CountingSession:
    """A kernel with its references and real inputs."""
    graph = recording.graph
    names = tuple(operand.value for operand in candidate.inputs)
    session = CountingSession(
        kernel,
        graph,
        candidate,
        replay.subgraph(graph, candidate.computed, names, candidate.outputs),
        replay.subgraph(graph, candidate.computed, names, candidate.outputs, high_precision=True),
        replay.materialize(graph, recording.store, names),
    )
    session.tally = tally
    return session


# --- refusals -------------------------------------------------------------------------------------


def check_refusals(graph: OpGraph, candidates: Sequence[FusionCandidate], tally: Tally) -> None:
    """Every op or pair that is not fused has a reason of the list."""
    tally.fused_ops += sum(len(one.nodes) - len(one.views) for one in candidates)
    for blocker in why_not(graph, candidates):
        if blocker.code in KNOWN_CODES:
            tally.refused[blocker.code] += 1
        else:
            _refuse(tally, blocker.code, blocker.message)


def _refuse(tally: Tally, code: str, message: str) -> None:
    reason = next((reason for reason in KNOWN_REFUSALS if re.search(reason, message)), None)
    assert reason is not None, f"refused for a reason that is on no list: {code}: {message}"
    tally.refused[f"{code}: {reason}"] += 1


# --- kernels --------------------------------------------------------------------------------------


def _check_kernel(session: CountingSession) -> None:
    tally, effort = session.tally, session.effort
    session.prepare()
    recorded_ones = [one for one in session.prepared if one.case.captured]
    assert recorded_ones, "eager refuses the recorded inputs"
    tally.kernels += 1
    tally.kernels_with_views += bool(session.candidate.regions)
    in_process.check_eager_text(session)
    _check_twin(session, parallel=False)
    if effort.parallel:
        _check_twin(session, parallel=True)
    if effort.calls:
        session.target = "fused call"
        _hold(in_process.check_calls(session), session)
    if effort.cuda:
        session.target = "CUDA IR"
        compiled = compile_cuda(session.kernel, ARCHITECTURE)
        host = translate(compiled.modules, compiled.name, compiled.architecture)
        _hold(isolated.run_native(session, host), session)
    if effort.gradients:
        try:
            in_process.check_gradients(session)
            tally.gradients += 1
        except LookupError:
            pass  # nothing to differentiate
    if effort.guards:
        in_process.check_guards(session)


def _hold(tally: Any, session: CountingSession) -> None:
    assert tally.cases > 0
    assert tally.mismatches == 0, f"{session.target}: {tally.first}\n{session.kernel.text}"


def _check_twin(session: CountingSession, *, parallel: bool) -> None:
    """One twin of the CPU kernel on all cases: values, strides, and operands left alone."""
    session.target = "CPU parallel" if parallel else "CPU serial"
    fused, _ = in_process.load(session)
    for index, prepared in enumerate(session.prepared):
        label = f"{session.target}, {prepared.case.name}"
        tensors = prepared.case.tensors
        refusal = fused.why_not(*tensors, *prepared.case.scalars)
        if refusal and not any(one.numel() for one in prepared.expected):
            # (native_dropout's mask of nothing has another dtype.)
            session.tally.refused[f"empty: {refusal}"] += 1
            continue
        before = [tensor.clone() for tensor in tensors]
        actual = fused.run_cpu(tensors, parallel=parallel)
        for number, (old, new) in enumerate(zip(before, tensors, strict=True)):
            assert same_bytes(old, new), f"{label}: changed its operand {number}"
        for number, (one, two) in enumerate(zip(actual, prepared.expected, strict=True)):
            problem = metadata_problem(one, two)
            assert not problem, f"{label}: result {number} {problem}\n{session.kernel.text}"
        for comparison in session.judge(index, actual):
            assert not comparison.mismatches, f"{label}: {comparison.first}\n{session.kernel.text}"


# --- the whole program ----------------------------------------------------------------------------


def check_chains(recording: Recording, candidates: Sequence[FusionCandidate]) -> None:
    """The whole program with the eager chain of every group's kernel in its place."""
    graph = recording.graph
    able, calls = [], []
    for candidate in candidates:
        try:
            kernel = generate_kernel(graph, candidate, targets=("cpu",))
        except UnsupportedOpError:
            continue
        names = load_kernel(kernel.text, kernel.entry, kernel.hash)
        able.append(candidate)
        calls.append(names[kernel.eager_name])
    _check_whole(recording, able, calls)


def _check_whole(
    recording: Recording,
    candidates: Sequence[FusionCandidate],
    calls: Sequence[Callable[..., Any]],
) -> None:
    """The program with its groups as single calls, in an order that is as different as allowed.

    Results, their strides, and what was written into the operands are eager's to the bit.
    """
    graph = recording.graph
    order = schedule(graph, candidates)
    assert order is not None
    eager, eager_given = _run(recording, [node.id for node in graph.nodes], [], [])
    fused, fused_given = _run(recording, order, candidates, calls)
    for value, one, two in zip(graph.outputs, fused, eager, strict=True):
        problem = metadata_problem(one, two)
        assert not problem, f"in the whole program {value} {problem}"
        assert bool(same_bits(one, two).all()), f"in the whole program {value} differs"
    for value in eager_given:
        assert bool(same_bits(fused_given[value], eager_given[value]).all()), (
            f"in the whole program the operand {value} ends otherwise"
        )


def _exact_call(session: CountingSession) -> Callable[..., Any]:
    """The kernel where it must equal eager to the bit, else its eager chain."""
    fused, eager = in_process.load(session)
    budgets = session.budgets(0)
    exact = all(not one.ways and one.unspecified is None for one in budgets)
    return _never_eager(fused) if exact else eager


def _never_eager(fused: FusedFunction) -> Callable[..., Any]:
    def call(*arguments: torch.Tensor) -> Any:
        refusal = fused.why_not(*arguments)
        assert not refusal, f"its own guards refuse what was recorded: {refusal}"
        return fused(*arguments)

    return call


def _run(
    recording: Recording,
    order: Sequence[object],
    candidates: Sequence[FusionCandidate],
    calls: Sequence[Callable[..., Any]],
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Run ops by id and groups by number; the outputs, and the operands as they are then."""
    graph, store = recording.graph, recording.store
    replayed = Replay(graph, keep=graph.outputs)
    steps = {step.node.id: step for step in replayed.steps}
    with undisturbed(store.settings):
        environment = fresh_inputs(graph, store, replayed.needed(), replayed)
        given = dict(environment)
        for one in order:
            if not isinstance(one, int):
                replayed.run_step(steps[str(one)], environment, {})
                continue
            candidate = candidates[one]
            operands = [environment[replayed.resolve(o.value)] for o in candidate.inputs]
            result = calls[one](*operands)
            results = result if isinstance(result, tuple) else (result,)
            environment.update(zip(candidate.outputs, results, strict=True))
        outputs = [environment[replayed.resolve(value)] for value in graph.outputs]
    return outputs, given
