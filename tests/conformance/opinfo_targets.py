"""Runs checks on a target: the Numba CPU kernel, or the CUDA kernel's own IR on this CPU.

Kernels whose code is the same are compiled once per process, whatever shapes they are for.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numba
import opinfo_sass
import torch
from opinfo_kernels import Check, same_layout
from opinfo_twin import BareTwin

from fusion_advisor.errors import FusionAdvisorError
from fusion_advisor.runtime import load_kernel
from fusion_advisor.validation import arrays, contractions
from fusion_advisor.validation.bits import same_bits
from fusion_advisor.validation.compare import compare
from fusion_advisor.validation.contractions import CudaContractions, MachineContractions
from fusion_advisor.validation.cuda_compiler import CompiledKernel, compile_cuda
from fusion_advisor.validation.execution import native_variants, run_cases
from fusion_advisor.validation.native_module import NativeKernel, translate

Target = Literal["cpu", "cuda"]
TARGETS: tuple[Target, ...] = ("cpu", "cuda")
ARCHITECTURE = (9, 0)  # whose IR is run natively
MOST_FAULTS = 12  # kept of one tally

Results = tuple[torch.Tensor, ...]


@dataclass
class Tally:
    """What the calls of one entry and dtype on one target came to.

    ``samples`` counts the calls that ran in kernels whole, by form; ``idle`` those that compute
    nothing.  ``kernels`` are runs that were compared; ``parallel`` those also run by the parallel
    twin, ``called`` those also called as a person would.  ``contracted`` are kernels whose code
    holds a fused multiply-add that no op asked for; those of SASS are counted apart.
    """

    samples: Counter[str] = field(default_factory=Counter)
    idle: int = 0
    kernels: int = 0
    groups: int = 0  # of the kernels, those of several ops
    parallel: int = 0
    called: int = 0
    elements: int = 0
    mismatches: int = 0
    discontinuous: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # calls, by form and reason
    worst_ulp: dict[str, float] = field(default_factory=dict)  # by op
    worst_share: dict[str, float] = field(default_factory=dict)  # of its budget, by op
    nan_differs: dict[str, str] = field(default_factory=dict)  # accepted: by op, the first of them
    faults: list[str] = field(default_factory=list)
    compiled: dict[str, list[str]] = field(default_factory=dict)  # digests by what was looked at
    contracted: int = 0

    def look(self, kind: str, digest: str) -> None:
        """Note that a kernel's ``kind`` of code was looked through for contractions."""
        known = self.compiled.setdefault(kind, [])
        if digest not in known:
            known.append(digest)

    def fault(self, text: str, elements: int = 1) -> None:
        """Count what is wrong; the first few are kept in words."""
        self.mismatches += elements
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)

    def as_json(self) -> dict[str, Any]:
        """Plain dicts and lists."""
        # Not asdict: it makes a Counter of pairs of one.
        return {**vars(self), "samples": dict(self.samples), "refused": dict(self.refused)}


def code_of(check: Check, decorator: str) -> str:
    """A kernel's own code without comments, and the types of what it is given."""
    text = check.kernel.text
    start = text.index(f"@{decorator}")
    code = re.sub(r"\s*#.*", "", text[start : text.index("\n\n\n", start)])
    program = check.kernel.program
    types = [(entry.kind, entry.dtype, entry.layout, entry.groups) for entry in program.inputs]
    return f"{code}\n{types} {[entry.dtype for entry in program.outputs]}"


def judge(check: Check, actual: Results, tally: Tally) -> None:
    """Hold a kernel's results against what they may be, and against where eager puts them."""
    tally.kernels += 1
    tally.groups += " + " in check.what
    if len(actual) != len(check.allowed):
        tally.fault(f"{check.label}: {len(actual)} results instead of {len(check.allowed)}")
        return
    for result, allowed, layout in zip(actual, check.allowed, check.layouts, strict=True):
        comparison = compare(result, allowed)
        tally.elements += comparison.elements
        tally.discontinuous += comparison.ambiguous
        if math.isfinite(comparison.worst_ulp):
            worst = max(tally.worst_ulp.get(check.what, 0.0), comparison.worst_ulp)
            tally.worst_ulp[check.what] = worst
        elif check.what not in tally.nan_differs:  # a number of ULP from a NaN is none
            tally.nan_differs[check.what] = _nan_difference(check, result, allowed.eager)
        if math.isfinite(comparison.worst_share):
            share = max(tally.worst_share.get(check.what, 0.0), comparison.worst_share)
            tally.worst_share[check.what] = share
        if comparison.mismatches:
            tally.fault(f"{check.label}: {comparison.first}", comparison.mismatches)
        elif not same_layout(result, *layout):
            tally.fault(
                f"{check.label}: laid out as {tuple(result.shape)} {result.stride()}, "
                f"eager as {layout[0]} {layout[1]}"
            )


def _nan_difference(check: Check, result: torch.Tensor, eager: torch.Tensor) -> str:
    """The first element that is NaN on one side only, with its operands, in words."""
    differs = torch.isnan(result) != torch.isnan(eager)
    if not bool(differs.any()):
        return f"{check.label}: no NaN"
    place = tuple(torch.nonzero(differs)[0].tolist())
    fitting = [operand for operand in check.operands if operand.shape in ((), result.shape)]
    operands = [operand.expand(result.shape)[place].item() for operand in fitting]
    return (
        f"{check.label}: {int(differs.sum())} elements, of {operands} the kernel gives "
        f"{result[place].item()}, eager {eager[place].item()}"
    )


def spoil(output: torch.Tensor, eager: torch.Tensor) -> None:
    """Fill fresh memory with wrong values: it may hold eager's own result, freed a moment ago."""
    if output.dtype.is_floating_point:
        output.copy_(torch.where(torch.isnan(eager), 0.0, torch.nan))
    else:
        output.copy_(torch.bitwise_not(eager))


def digest_of(code: str) -> str:
    """A short name of a kernel's code."""
    return hashlib.sha256(code.encode()).hexdigest()[:16]


class CpuTarget:
    """The fused function's CPU kernel."""

    def __init__(self) -> None:
        self._kernels: dict[str, Any] = {}
        self._twins: dict[Any, tuple[BareTwin, MachineContractions]] = {}

    def run(self, check: Check, tally: Tally, *, call: bool, threads: bool) -> None:
        """Run and judge; ``call`` also calls it as a person would, ``threads`` on many of them."""
        kernel = check.kernel
        fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
        code = code_of(check, "cpu_kernel")
        fused.cpu = self._kernels.setdefault(code, fused.cpu)
        if check.empty and (refusal := fused.why_not(*check.operands)):
            # Nothing to compute, yet eager may have to look at what it would compute with.
            tally.refused[f"{check.form}: guard: {refusal}"] += 1
            return
        results = self._run_bare(fused, check, code, tally)
        judge(check, results, tally)
        if any(result.storage_offset() for result in results):
            tally.fault(f"{check.label}: a result that starts inside its memory")
        if call:
            tally.called += 1
            self._compare(check, results, _called(fused, check), "called", tally)
        if threads:
            tally.parallel += 1
            team = torch.get_num_threads()  # of OpenMP, which both share
            again = fused.run_cpu(check.operands, parallel=True)
            torch.set_num_threads(team)
            self._compare(check, results, again, "on many threads", tally)

    def _run_bare(self, fused: Any, check: Check, code: str, tally: Tally) -> Results:
        """By the kernel's own machine code; what is compiled is looked through."""
        launch = fused.prepare(check.operands, "cpu")
        if launch.elements:
            types = tuple(map(numba.typeof, launch.arguments))
            if (code, types) not in self._twins:
                twin = BareTwin(fused.cpu.py_func, launch.arguments)
                self._twins[code, types] = (twin, twin.contractions())
            twin, seen = self._twins[code, types]
            digest = digest_of(f"{code}{types}")
            tally.look("machine code", digest)
            if seen.products:
                tally.look("machine code with products", digest)
            if seen.problem:
                tally.contracted += 1
                tally.fault(f"{check.label}: {seen.problem}")
            for output, allowed in zip(launch.outputs, check.allowed, strict=True):
                spoil(output, allowed.eager)
            twin(*launch.arguments)
            if launch.met_zero_divisor:
                raise FusionAdvisorError("the kernel met a zero divisor, where eager raises")
            launch.finish()
        return launch.outputs  # type: ignore[no-any-return]

    def _compare(
        self, check: Check, serial: Results, other: Results, how: str, tally: Tally
    ) -> None:
        """Ways of running one kernel must agree to the bit."""
        for one, two in zip(serial, other, strict=True):
            if one.stride() != two.stride() or not bool(same_bits(one, two).all()):
                tally.fault(f"{check.label}: {how}, it gives something else")


def _called(fused: Any, check: Check) -> Results:
    fused.reset_stats()
    with torch.no_grad():
        result = fused(*check.operands)
    if fused.stats.fused != 1:
        raise FusionAdvisorError(f"the call ran eager: {fused.stats}")
    return result if isinstance(result, tuple) else (result,)


class CudaTarget:
    """The CUDA kernel's NVVM IR, compiled for this CPU and run in guarded memory."""

    def __init__(self, known: dict[str, str] | None = None) -> None:
        self._kernels: dict[str, tuple[NativeKernel, CompiledKernel, CudaContractions]] = {}
        self._programs: dict[str, str] = {}  # digest of a program → that of its kernel's SASS
        self.disassembler = opinfo_sass.Disassembler({} if known is None else known)

    def run(self, check: Check, tally: Tally, *, call: bool, threads: bool) -> None:
        """Run and judge; what is compiled is looked through for contractions."""
        native = self._kernel(check, tally)
        graph, candidate = check.recording.graph, check.candidate
        seen = arrays.seen_regions(graph, candidate, check.operands)
        program = check.kernel.program
        case = (check.label, arrays.launch_spec(program, seen, ()))
        results: list[Results] = []
        for outcome in run_cases(native_variants(native), [case]):
            if outcome.trespasses:
                tally.fault(f"{check.label}: {'; '.join(outcome.trespasses)}")
            results.append(
                tuple(
                    arrays.output_tensor(
                        program.spaces[output.region],
                        output.dtype,
                        seen[output.region].shape,
                        data,
                    )
                    for output, data in zip(program.outputs, outcome.outputs, strict=True)
                )
            )
        judge(check, results[0], tally)
        for other in results[1:]:
            same = (same_bits(a, b).all() for a, b in zip(results[0], other, strict=True))
            if not all(map(bool, same)):
                tally.fault(f"{check.label}: depends on the grid it is launched with")

    def _kernel(self, check: Check, tally: Tally) -> NativeKernel:
        key = code_of(check, "cuda.jit")
        if key not in self._kernels:
            compiled = compile_cuda(check.kernel, ARCHITECTURE)
            seen = contractions.cuda_contractions(compiled)
            host = translate(compiled.modules, compiled.name, compiled.architecture)
            self._kernels[key] = (NativeKernel(host, effort=0), compiled, seen)
        native, compiled, seen = self._kernels[key]
        digest = digest_of(key)
        tally.look("PTX", digest)
        if seen.problem:
            tally.contracted += 1
            tally.fault(f"{check.label}: {seen.problem}")
        if seen.uncontracted != compiled.ptx:  # else no float is multiplied or added
            tally.look("PTX with sums", digest)
            program = digest_of(program_text(check))
            if program not in self._programs:
                self._programs[program] = self.disassembler.add(compiled.ptx, seen.uncontracted)
            tally.look("SASS", self._programs[program])
        return native


def program_text(check: Check) -> str:
    """What a kernel computes per element: its dtypes and statements, whatever its layouts."""
    program = check.kernel.program
    dtypes = [entry.dtype for entry in (*program.inputs, *program.outputs)]
    return f"{dtypes} {program.statements}"


def make_target(target: Target, known: dict[str, str] | None = None) -> CpuTarget | CudaTarget:
    """A target with nothing compiled yet; ``known`` SASS need not be looked through again."""
    return CpuTarget() if target == "cpu" else CudaTarget(known)


def run_checks(
    target: CpuTarget | CudaTarget,
    checks: Iterable[Check],
    tally: Tally,
    *,
    thoroughly: bool,
    before: Callable[[Check], None] = lambda check: None,
) -> None:
    """Run each check, an error of it being a fault; ``before`` is told which comes.

    ``thoroughly`` has one of them called as a person would, and a long one run on many threads.
    """
    call = threads = thoroughly
    for check in checks:
        before(check)
        long = check.form == "long"
        try:
            target.run(check, tally, call=call, threads=threads and long)
        except FusionAdvisorError as error:
            tally.fault(f"{check.label}: {type(error).__name__}: {error}")
        call, threads = False, threads and not long
