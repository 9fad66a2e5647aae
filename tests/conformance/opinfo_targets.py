"""Runs checks on a target: the Numba CPU kernel, or the CUDA kernel's own IR on this CPU.

Kernels whose code is the same are compiled once per process, whatever shapes they are for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from opinfo_kernels import Check, same_layout

from fusion_advisor.errors import FusionAdvisorError
from fusion_advisor.runtime import load_kernel
from fusion_advisor.validation import arrays, contractions
from fusion_advisor.validation.bits import same_bits
from fusion_advisor.validation.compare import compare
from fusion_advisor.validation.cuda_compiler import compile_cuda
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
    twin, ``called`` those also called as a person would.
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
    nan_differs: list[str] = field(default_factory=list)  # ops: eager's own loops differ in it
    faults: list[str] = field(default_factory=list)

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
        _note_worst(check.what, comparison.worst_ulp, tally)
        if comparison.mismatches:
            tally.fault(f"{check.label}: {comparison.first}", comparison.mismatches)
        elif not same_layout(result, *layout):
            tally.fault(
                f"{check.label}: laid out as {tuple(result.shape)} {result.stride()}, "
                f"eager as {layout[0]} {layout[1]}"
            )


def _note_worst(what: str, ulp: float, tally: Tally) -> None:
    if math.isfinite(ulp):
        tally.worst_ulp[what] = max(tally.worst_ulp.get(what, 0.0), ulp)
    elif what not in tally.nan_differs:
        tally.nan_differs.append(what)  # a number of ULP from a NaN is none


class CpuTarget:
    """The fused function's CPU kernel."""

    def __init__(self) -> None:
        self._kernels: dict[str, Any] = {}

    def run(self, check: Check, tally: Tally, *, call: bool, threads: bool) -> None:
        """Run and judge; ``call`` also calls it as a person would, ``threads`` on many of them."""
        kernel = check.kernel
        fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
        fused.cpu = self._kernels.setdefault(code_of(check, "cpu_kernel"), fused.cpu)
        if check.empty and (refusal := fused.why_not(*check.operands)):
            # Nothing to compute, yet eager may have to look at what it would compute with.
            tally.refused[f"{check.form}: guard: {refusal}"] += 1
            return
        results = fused.run_cpu(check.operands, parallel=False)
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

    def __init__(self) -> None:
        self._kernels: dict[str, NativeKernel] = {}

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
            contracted = contractions.cuda_contractions(compiled).problem
            if contracted:
                tally.fault(f"{check.label}: {contracted}")
            host = translate(compiled.modules, compiled.name, compiled.architecture)
            self._kernels[key] = NativeKernel(host, effort=1)
        return self._kernels[key]


def make_target(target: Target) -> CpuTarget | CudaTarget:
    """A target with nothing compiled yet."""
    return CpuTarget() if target == "cpu" else CudaTarget()


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
