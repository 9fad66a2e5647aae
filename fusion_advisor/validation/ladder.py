"""The validation ladder: rung after rung, from the text to the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fusion_advisor.errors import FusionAdvisorError, MissingDependencyError, ValidationError
from fusion_advisor.ops import is_added
from fusion_advisor.quantities import percent_text, plain_number, time_text, times_text
from fusion_advisor.records import (
    Ceilings,
    FusionCandidate,
    KernelSource,
    OpGraph,
    Resources,
    Rung,
    Status,
    Target,
    TimingPair,
    ValidationResult,
)
from fusion_advisor.validation import (
    aten,
    benchmark,
    contractions,
    cuda_compiler,
    in_process,
    isolated,
    process_state,
    resources,
)
from fusion_advisor.validation.bits import same_bytes
from fusion_advisor.validation.budgets import table_budget
from fusion_advisor.validation.ceilings import measure_again
from fusion_advisor.validation.contractions import Disassembly
from fusion_advisor.validation.inputs import captured_case
from fusion_advisor.validation.intervals import ulp
from fusion_advisor.validation.native_module import UnsupportedKernelError, translate
from fusion_advisor.validation.program_check import check_kernel
from fusion_advisor.validation.session import PreparedCase, Reference, Session, Tally

Progress = Callable[[str], None]


_WIDE_ELEMENTS = 1 << 13  # its text is the same: enough for several blocks and a tail


class NotRun(Exception):  # noqa: N818 - not an error: a rung that has nothing to stand on
    """Why a rung was not run."""


@dataclass
class _Ladder:
    """Rungs so far; after a failed one the later ones are not run."""

    progress: Progress | None
    rungs: list[Rung] = field(default_factory=list)
    failed: str = ""

    def step(self, name: str, run: Callable[[], str]) -> None:
        """Run one rung.  ``run`` returns what it saw, or raises what was wrong."""
        if self.failed:
            self._add(name, "not run", f"{self.failed} failed", 0.0)
            return
        if self.progress is not None:
            self.progress(name)
        started = time.perf_counter()
        status: Status
        try:
            detail = run()
            status = "passed"
        except NotRun as reason:
            status, detail = "not run", str(reason)
        except (MissingDependencyError, UnsupportedKernelError) as reason:
            status, detail = "not run", str(reason)
        except FusionAdvisorError as error:
            status, detail = "failed", str(error)
        except Exception as error:
            # Whatever goes wrong while a kernel is judged, it has not passed.
            status, detail = "failed", f"{type(error).__name__}: {str(error)[:400]}"
        if status == "failed":
            self.failed = name
        self._add(name, status, detail, time.perf_counter() - started)

    def _add(self, name: str, status: Status, detail: str, seconds: float) -> None:
        self.rungs.append(Rung(name=name, status=status, detail=detail, seconds=seconds))


@dataclass
class _Findings:
    """What the rungs measured, for the result."""

    tallies: list[Tally] = field(default_factory=list)
    resources: list[Resources] = field(default_factory=list)
    timings: list[TimingPair] = field(default_factory=list)
    compiled: list[cuda_compiler.CompiledKernel] = field(default_factory=list)
    disassembly: Disassembly | None = None


def validate(
    kernel: KernelSource,
    graph: OpGraph,
    candidate: FusionCandidate,
    *,
    reference: Reference,
    reference64: Reference,
    captured: Mapping[str, torch.Tensor] | None,
    ceilings: Ceilings | None,
    targets: Sequence[Target] = ("cpu", "cuda"),
    measure: bool = True,
    predicted_us: float = 0.0,
    proven: ValidationResult | None = None,
    progress: Progress | None = None,
) -> ValidationResult:
    """Find out whether ``kernel`` computes what ``candidate`` does, and how fast.

    ``reference`` and ``reference64`` run the recorded ops on tensors in
    ``candidate.inputs`` order, as recorded and in float64.  ``captured`` holds the
    real inputs by value id, where they were kept.  ``progress`` is told each
    rung's name as it starts.

    ``proven`` is the result of this very kernel without its timing; where it passed, the rungs
    up to the timing are not climbed again.

    Every rung is passed, failed, or not run with the reason; after a failed rung
    the later ones are not run.  Nothing outside the result is changed, also when
    interrupted.  Asked for under ``torch.inference_mode``, the rungs run without it: gradients
    are checked too.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return validate(
                kernel, graph, candidate, reference=reference, reference64=reference64,
                captured=captured, ceilings=ceilings, targets=targets, measure=measure,
                predicted_us=predicted_us, proven=proven, progress=progress,
            )  # fmt: skip
    session = Session(kernel, graph, candidate, reference, reference64, captured)
    ladder, findings = _Ladder(progress), _Findings()
    with process_state.preserved():
        if measure and proven is not None and proven.status == "passed":
            return _timed(proven, ladder, session, findings, ceilings, targets, predicted_us)
        try:
            _climb(ladder, session, findings, ceilings, targets, measure, predicted_us)
        finally:
            if findings.disassembly is not None:
                findings.disassembly.close()
    return _result(kernel, ladder, findings)


def _climb(
    ladder: _Ladder,
    session: Session,
    findings: _Findings,
    ceilings: Ceilings | None,
    targets: Sequence[Target],
    measure: bool,
    predicted_us: float,
) -> None:
    """All rungs in order."""
    kernel, candidate = session.kernel, session.candidate

    def alone(run: Callable[[], str]) -> Callable[[], str]:
        def rung() -> str:
            with process_state.one_thread(math.prod(candidate.shape)):
                return run()

        return rung

    ladder.step("program", lambda: check_kernel(kernel, candidate))
    ladder.step("inputs", alone(lambda: _prepare(session)))
    _cuda_rungs(ladder, session, findings, wanted="cuda" in targets)
    ladder.step("eager text", alone(lambda: in_process.check_eager_text(session)))
    ladder.step(
        "no stray FMA, CPU", lambda: _cpu_contraction(session.kernel, wanted="cpu" in targets)
    )
    ladder.step("CPU kernel", lambda: _cpu_kernel(session, findings, wanted="cpu" in targets))
    ladder.step("float64 reference", alone(lambda: _against_float64(session)))
    runnable = "cpu" in targets and bool(kernel.cpu_name)
    ladder.step("fused call", lambda: _calls(session, findings, runnable))
    ladder.step("gradients", alone(lambda: _gradients(session, runnable)))
    ladder.step("guards", alone(lambda: _guards(session, runnable)))
    ladder.step(
        "timing", lambda: _timing(session, findings, ceilings, predicted_us, measure and runnable)
    )
    ladder.step("after timing", lambda: _after_timing(session, measure and runnable))
    ladder.step("machine code", lambda: _machine_code(findings))


def _timed(
    proven: ValidationResult,
    ladder: _Ladder,
    session: Session,
    findings: _Findings,
    ceilings: Ceilings | None,
    targets: Sequence[Target],
    predicted_us: float,
) -> ValidationResult:
    """A passed result with its last rungs, on inputs that are made anew."""
    wanted = "cpu" in targets and bool(session.kernel.cpu_name)
    ladder.step("inputs", lambda: _prepare(session))
    ladder.step("timing", lambda: _timing(session, findings, ceilings, predicted_us, wanted))
    ladder.step("after timing", lambda: _after_timing(session, wanted))
    climbed = {
        rung.name: rung for rung in ladder.rungs if rung.name != "inputs" or rung.status != "passed"
    }
    return replace(
        proven,
        status="failed" if ladder.failed else "passed",
        rungs=tuple(climbed.get(rung.name, rung) for rung in proven.rungs),
        timings=tuple(findings.timings),
    )


def _result(kernel: KernelSource, ladder: _Ladder, findings: _Findings) -> ValidationResult:
    executed = {"CUDA kernel, run natively", "CPU kernel", "CUDA device"}
    passed = any(rung.status == "passed" and rung.name in executed for rung in ladder.rungs)
    status: Status = "failed" if ladder.failed else "passed" if passed else "not run"
    tallies = findings.tallies
    worst = max(tallies, key=lambda tally: tally.worst_ulp, default=Tally())
    return ValidationResult(
        kernel_hash=kernel.hash,
        status=status,
        rungs=tuple(ladder.rungs),
        cases=sum(tally.cases for tally in tallies),
        mismatches=sum(tally.mismatches for tally in tallies),
        discontinuous=sum(tally.ambiguous for tally in tallies),
        worst_ulp=worst.worst_ulp,
        budget_ulp=worst.budget_ulp,
        worst_share=max((tally.worst_share for tally in tallies), default=0.0),
        resources=tuple(findings.resources),
        timings=tuple(findings.timings),
    )


def _prepare(session: Session) -> str:
    session.prepare()
    for index, prepared in enumerate(session.prepared):
        if prepared.elements <= 1 << 16:
            session.budgets(index)
    detail = f"{len(session.prepared)} cases"
    if not any(prepared.case.captured for prepared in session.prepared):
        detail += ", synthetic only: the captured inputs were not kept"
    if session.skipped:
        detail += f"; eager refuses {', '.join(session.skipped)}"
    if session.beyond:
        detail += f"; left to the guards {', '.join(case.name for case in session.beyond)}"
    return detail


# --- CUDA -----------------------------------------------------------------------------


def _cuda_rungs(ladder: _Ladder, session: Session, findings: _Findings, *, wanted: bool) -> None:
    asked = wanted and bool(session.kernel.cuda_name)

    def guard() -> None:
        if not asked:
            raise NotRun("the CUDA target was not asked for")
        missing = cuda_compiler.toolchain_missing()
        if missing:
            raise NotRun(missing)

    for architecture in cuda_compiler.ARCHITECTURES:
        name = f"compile for sm_{architecture[0]}{architecture[1]}"

        def compile_one(architecture: tuple[int, int] = architecture) -> str:
            guard()
            return _compile(session, findings, architecture)

        ladder.step(name, compile_one)

    def contraction() -> str:
        guard()
        return _contraction(session.kernel, findings)

    def native() -> str:
        guard()
        return _native(session, findings)

    def wide() -> str:
        guard()
        return _wide(session, findings)

    ladder.step("no stray FMA", contraction)
    ladder.step("CUDA kernel, run natively", native)
    ladder.step("CUDA kernel, 64-bit indices", wide)
    ladder.step("CUDA device", lambda: _device(session, findings, asked))


def _compile(session: Session, findings: _Findings, architecture: tuple[int, int]) -> str:
    compiled = cuda_compiler.compile_cuda(session.kernel, architecture)
    report = resources.link_report(compiled)
    findings.compiled.append(compiled)
    findings.resources.append(report)
    if report.spill_bytes:
        raise ValidationError(
            f"spills {report.spill_bytes} bytes with {report.registers} registers: split the group"
        )
    return f"{report.registers} registers, no spills, {report.cubin_bytes} bytes of machine code"


def _contraction(kernel: KernelSource, findings: _Findings) -> str:
    details = []
    problem = contractions.asked_for_problem(kernel, kernel.cuda_name)
    if problem:
        raise ValidationError(problem)
    for compiled in findings.compiled:
        seen = contractions.cuda_contractions(compiled)
        if seen.problem:
            raise ValidationError(f"{compiled.architecture_name}: {seen.problem}")
        details.append(f"{compiled.architecture_name}: {seen}")
    tool = resources.disassembler()
    if tool is not None:
        findings.disassembly = Disassembly(findings.compiled[-1], seen, tool)
    return "; ".join(details)


def _machine_code(findings: _Findings) -> str:
    if not findings.compiled:
        raise NotRun("the kernel was not compiled for CUDA")
    if findings.disassembly is None:
        raise NotRun("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    return f"{findings.compiled[-1].architecture_name}: {findings.disassembly.report()}"


def _native(session: Session, findings: _Findings) -> str:
    compiled = findings.compiled[-1]
    host = translate(compiled.modules, compiled.name, compiled.architecture)
    return _judged(isolated.run_native(session, host), findings)


def _wide(session: Session, findings: _Findings) -> str:
    """The variant for offsets beyond 32 bits, on inputs that both can take."""
    architecture = cuda_compiler.ARCHITECTURES[-1]
    compiled = cuda_compiler.compile_cuda(session.kernel, architecture, wide=True)
    report = resources.link_report(compiled)
    if report.spill_bytes:
        raise ValidationError(f"spills {report.spill_bytes} bytes: split the group")
    host = translate(compiled.modules, compiled.name, architecture)
    detail = _judged(isolated.run_native(session, host, _WIDE_ELEMENTS), findings)
    return f"{detail}; {report.registers} registers"


def _device(session: Session, findings: _Findings, asked: bool) -> str:
    if not asked:
        raise NotRun("the CUDA target was not asked for")
    if not torch.cuda.is_available():
        raise NotRun("no GPU here: equality with eager on CUDA is not claimed")
    fused, _ = in_process.load(session)
    tally = Tally()
    for prepared in session.prepared:
        if not prepared.recorded_numbers:
            continue
        tensors = [tensor.cuda() for tensor in prepared.case.tensors]
        expected = session.run_reference(tensors)
        with torch.no_grad():
            actual = in_process.results(fused(*tensors, *prepared.case.scalars))
        case = replace(prepared.case, tensors=tuple(tensors), scalars=())
        for comparison in session.judge_apart(case, expected, actual):
            tally.add(f"CUDA device, {case.name}", comparison)
        tally.cases += 1
    return _judged(tally, findings)


# --- running --------------------------------------------------------------------------


def _judged(tally: Tally, findings: _Findings) -> str:
    findings.tallies.append(tally)
    if tally.mismatches:
        raise ValidationError(f"{tally.mismatches} wrong elements; {tally.first}")
    if not tally.worst_ulp and not tally.worst_share:
        detail = f"{tally.cases} runs, bit-equal to eager"
    else:
        detail = (
            f"{tally.cases} runs, 0 mismatches, worst error {percent_text(tally.worst_share)} of "
            f"its budget; worst {plain_number(tally.worst_ulp)} ULP where nothing cancels, "
            f"{plain_number(tally.budget_ulp)} allowed there"
        )
    if tally.ambiguous:
        detail += f"; {tally.ambiguous} elements at a jump, each on one of its sides"
    return detail


def _cpu_contraction(kernel: KernelSource, *, wanted: bool) -> str:
    if not wanted or not kernel.cpu_name:
        raise NotRun("the CPU target was not asked for")
    problem = contractions.contraction_problem(kernel, "cpu")
    if problem:
        raise ValidationError(problem)
    return "its machine code holds none that neither an op nor maths asks for"


def _cpu_kernel(session: Session, findings: _Findings, *, wanted: bool) -> str:
    if not wanted or not session.kernel.cpu_name:
        raise NotRun("the CPU target was not asked for")
    return _judged(isolated.run_cpu(session), findings)


def _calls(session: Session, findings: _Findings, runnable: bool) -> str:
    if not runnable:
        raise NotRun("the CPU target was not asked for")
    return _judged(in_process.check_calls(session), findings)


def _gradients(session: Session, runnable: bool) -> str:
    if not runnable:
        raise NotRun("the CPU target was not asked for")
    try:
        return in_process.check_gradients(session)
    except LookupError as reason:
        raise NotRun(str(reason)) from None


def _guards(session: Session, runnable: bool) -> str:
    if not runnable:
        raise NotRun("the CPU target was not asked for")
    return in_process.check_guards(session)


# Different results: half of fewer may all be in gelu's tail, where eager itself is off, and an
# expanded operand gives one result many times.
MEDIAN_OF = 32


def _against_float64(session: Session) -> str:
    """Eager and kernel agree within budgets; is eager itself anywhere near the truth?

    It is measured in ULP of the coarsest dtype that the chain rounds to on its way.
    """
    passed = _float_dtypes(session)
    allowance = 8.0 + 4 * sum(table_budget(node) for node in session.graph.nodes
                              if node.id in session.candidate.nodes)  # fmt: skip
    worst = 0.0
    compared = amplified = 0
    for prepared in session.prepared:
        if not 0 < prepared.elements <= 1 << 16 or "special" in prepared.case.name:
            continue
        if not prepared.recorded_numbers or _rounds_integers(prepared.case.tensors, passed):
            continue
        wide = [
            tensor.double() if tensor.dtype.is_floating_point else tensor
            for tensor in prepared.case.tensors
        ]
        truth = _in_float64(session, wide)
        for place, (one, two) in enumerate(zip(prepared.expected, truth, strict=True)):
            if not one.dtype.is_floating_point or one.dtype == torch.float64:
                continue
            exact = two.to(torch.float64)
            unit = ulp(exact, one.dtype)
            for dtype in passed:
                unit = torch.fmax(unit, ulp(exact, dtype))
            error = (one.to(torch.float64) - exact).abs() / unit
            finite = torch.isfinite(error) & torch.isfinite(one)
            error = error[finite]
            if exact[finite].unique().numel() >= MEDIAN_OF:
                compared += 1
                median = float(error.quantile(0.5))
                if median > allowance and _explained(session, prepared, place, exact, finite):
                    amplified += 1
                else:
                    worst = max(worst, median)
    if not compared:
        raise NotRun(f"no float output below float64 has {MEDIAN_OF} different values")
    if worst > allowance:
        raise ValidationError(
            f"half of the elements are more than {worst:.3g} ULP from the float64 result; "
            f"this chain's ops explain {allowance:.3g}"
        )
    detail = f"median distance from float64 at most {worst:.3g} ULP"
    if amplified:
        detail += f"; in {amplified} of {compared} results its ops' roundings are amplified further"
    return detail


def _explained(
    session: Session,
    prepared: PreparedCase,
    place: int,
    exact: torch.Tensor,
    finite: torch.Tensor,
) -> bool:
    """Whether roundings of the single ops carry most of eager's results that far from float64's.

    Digits that cancel later (``1 - tanh(x) ** 2``) make much of a rounding.  So the chain is run in
    float64 a few times more, every op's result moved up or down by an ULP of its own dtype.
    """
    nodes = aten.needed_nodes(session.graph, session.candidate)
    dtypes = {spec.id: getattr(torch, spec.dtype) for spec in session.graph.values}
    wide = {
        name: tensor.double() if tensor.dtype.is_floating_point else tensor
        for name, tensor in session.named(prepared.case.tensors).items()
    }
    generator = torch.Generator().manual_seed(0)

    def run(*, moving: bool) -> torch.Tensor:
        values = dict(wide)
        for node in nodes:
            with torch.no_grad():
                made = aten.bind_outputs(node, aten.call(node, values, wide=True))
            for name, tensor in made.items():
                if moving and tensor.dtype.is_floating_point and dtypes[name].is_floating_point:
                    sides = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                    step = (2 * sides - 1).sign() * torch.finfo(dtypes[name]).eps
                    made[name] = tensor * (1 + step)
            values.update(made)
        return values[session.candidate.outputs[place]].double()

    unmoved = run(moving=False)
    moved = torch.zeros_like(unmoved)
    for _ in range(8):
        moved = torch.fmax(moved, (run(moving=True) - unmoved).abs())
    error = (prepared.expected[place].double() - exact).abs()
    return 2 * int((error <= 4 * moved)[finite].sum()) >= int(finite.sum())


def _rounds_integers(tensors: Sequence[torch.Tensor], dtypes: set[torch.dtype]) -> bool:
    """Whether an integer operand does not fit into the floating-point dtypes of a chain.

    Eager then goes on with another number, which float64 does not see: no measure of the chain.
    """
    most = min((2.0 / torch.finfo(dtype).eps for dtype in dtypes), default=math.inf)
    return any(
        bool((tensor.to(torch.float64).abs() > most).any())
        for tensor in tensors
        if not tensor.dtype.is_floating_point
    )


def _float_dtypes(session: Session) -> set[torch.dtype]:
    """Those of all values that the chain's ops make."""
    members = set(session.candidate.nodes)
    made = {v for node in session.graph.nodes if node.id in members for v in node.outputs}
    dtypes = {getattr(torch, spec.dtype) for spec in session.graph.values if spec.id in made}
    return {dtype for dtype in dtypes if dtype.is_floating_point}


def _in_float64(session: Session, wide: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The chain in float64, which an op from outside may not know."""
    try:
        with torch.no_grad():
            return in_process.results(session.reference64(*wide))
    except RuntimeError as error:
        added = [
            node.op
            for node in session.graph.nodes
            if node.id in session.candidate.nodes and is_added(node.op)
        ]
        if not added:
            raise
        raise NotRun(f"an op from outside does not take float64: {str(error)[:160]}") from error


# --- timing ---------------------------------------------------------------------------


def _timing_case(session: Session) -> tuple[PreparedCase, str]:
    for prepared in session.prepared:
        if prepared.case.captured:
            return prepared, "captured"
    largest = max(session.prepared, key=lambda prepared: prepared.elements)
    return largest, "synthetic"


def _timing(
    session: Session,
    findings: _Findings,
    ceilings: Ceilings | None,
    predicted_us: float,
    wanted: bool,
) -> str:
    if not wanted:
        raise NotRun("timing was not asked for")
    fused, eager = in_process.load(session)
    prepared, origin = _timing_case(session)
    arguments = (*prepared.case.tensors, *prepared.case.scalars)
    with torch.no_grad():
        first, second = benchmark.interleaved(lambda: eager(*arguments), lambda: fused(*arguments))
    moved = session.bytes_moved(prepared)
    again = ""
    findings.timings.append(
        TimingPair(
            target="cpu",
            eager_us=first.median_us,
            eager_spread_us=first.spread_us,
            fused_us=second.median_us,
            fused_spread_us=second.spread_us,
            predicted_us=predicted_us,
            bytes=moved,
            inputs=origin,
        )
    )
    if ceilings is not None and ceilings.device == "cpu":
        reason = benchmark.impossible(second.median_us, moved, ceilings)
        if reason:
            # The ceilings may be those of a busy machine: the kernel fails by new ones as well.
            reason = benchmark.impossible(second.median_us, moved, measure_again())
            again = "; the stored ceilings were too low and have been measured again"
        if reason:
            raise ValidationError(reason)
    return (
        f"{origin} inputs: eager {time_text(first.median_us)} ± {time_text(first.spread_us)}, "
        f"fused {time_text(second.median_us)} ± {time_text(second.spread_us)}: "
        f"{times_text(first.median_us, second.median_us)}{again}"
    )


def _after_timing(session: Session, wanted: bool) -> str:
    """The kernel must still be right after many calls."""
    if not wanted:
        raise NotRun("timing was not asked for")
    tally = in_process.check_calls(session)
    if tally.mismatches:
        raise ValidationError(f"{tally.mismatches} wrong elements; {tally.first}")
    case = captured_case(session.kernel.program, session.candidate, session.captured)
    if case is not None:
        before = next(one.case for one in session.prepared if one.case.captured)
        for one, two in zip(case.tensors, before.tensors, strict=True):
            if not same_bytes(one, two):
                raise ValidationError("the captured inputs were changed")
    return f"{tally.cases} cases still right"
