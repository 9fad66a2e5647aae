"""Runs kernels on guarded memory.  The functions here are called in a child process.

``execute`` compiles one kernel (the CUDA kernel's own IR for this CPU, or the
CPU kernel), launches it twice per case on differently poisoned outputs, and
reports outputs and every trespass; judging is the parent's.  The second launch
has its arrays at the other end of their pages, and operands that may not be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusion_advisor.errors import ValidationError
from fusion_advisor.validation.arrays import ArraySpec, LaunchSpec, numpy_dtype
from fusion_advisor.validation.guarded import POISONS, GuardedArray
from fusion_advisor.validation.native_module import HostModule, NativeKernel

THREADS_PER_BLOCK = 256
# Address space a kernel may take beside its arrays: compiling needs some hundred MiB, and a kernel
# that hoards memory must not take the machine with it.
SPARE_MEMORY_BYTES = 4 << 30
# A CUDA kernel's IR is compiled in a fifth of the time without LLVM's dearer passes; they pay from
# about this many elements on, all cases together.
OPTIMISED_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class ExecutionRequest:
    """What to run: a translated CUDA kernel, or the text of a module with a CPU kernel."""

    cases: tuple[tuple[str, LaunchSpec], ...]
    host: HostModule | None = None
    text: str = ""
    entry: str = ""
    text_hash: str = ""
    cpu_name: str = ""


@dataclass(frozen=True)
class CaseOutcome:
    """What one kernel did with one case.  ``trespasses`` are sentences; empty when clean.

    ``zero_divisor``: whether it told that it divided an integer by 0, None where it tells nothing.
    """

    case: str
    variant: str
    outputs: tuple[np.ndarray, ...]
    trespasses: tuple[str, ...] = field(default=())
    zero_divisor: bool | None = None


# Gives whether an integer was divided by 0, or None where the kernel does not tell.
Launch = Callable[
    [LaunchSpec, list[GuardedArray], list[GuardedArray], list[np.ndarray]], bool | None
]


def execute(request: ExecutionRequest) -> list[CaseOutcome]:
    """Run every case on every variant of the requested kernel, in case order."""
    _limit_memory(request)
    return run_cases(_variants(request), request.cases)


def run_cases(
    variants: Sequence[tuple[str, Launch]], cases: Sequence[tuple[str, LaunchSpec]]
) -> list[CaseOutcome]:
    """Launch every case by every variant, in guarded memory of this process."""
    outcomes: list[CaseOutcome] = []
    first: dict[str, CaseOutcome] = {}
    for variant, launch in variants:
        for name, spec in cases:
            _announce(f"{variant}: {name}")
            outcome = _run_case(name, variant, launch, spec)
            # Variants mostly agree to the bit; the same arrays then travel once.
            earlier = first.setdefault(name, outcome)
            if all(map(_same_bytes, earlier.outputs, outcome.outputs)):
                outcome = replace(outcome, outputs=earlier.outputs)
            outcomes.append(outcome)
    return outcomes


def _limit_memory(request: ExecutionRequest) -> None:
    """Make allocations fail that no honest kernel needs; no limit where the system has none."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        return
    largest = max(
        (sum(operand.data.nbytes for operand in spec.operands) for _, spec in request.cases),
        default=0,
    )
    wanted = pages * resource.getpagesize() + SPARE_MEMORY_BYTES + 32 * largest
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _same_bytes(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.view(np.uint8), right.view(np.uint8))


def _announce(message: str) -> None:
    """Tell the parent what is about to run, so that a crash can be placed."""
    from fusion_advisor import worker_template

    worker_template.report_progress(message)


def native_variants(kernel: NativeKernel) -> list[tuple[str, Launch]]:
    """The grids that a CUDA kernel's IR is launched with."""

    def launch_exact(spec: LaunchSpec, *buffers: Any) -> None:
        _launch_native(kernel, spec, *buffers, block=THREADS_PER_BLOCK, ragged=False)

    def launch_ragged(spec: LaunchSpec, *buffers: Any) -> None:
        # Another block size, a block too many (only the bounds check saves the tail) and the
        # last thread first.
        _launch_native(kernel, spec, *buffers, block=96, ragged=True)

    return [("CUDA IR", launch_exact), ("CUDA IR, ragged grid", launch_ragged)]


def _variants(request: ExecutionRequest) -> list[tuple[str, Launch]]:
    if request.host is not None:
        elements = sum(spec.elements for _, spec in request.cases)
        effort = 3 if elements >= OPTIMISED_ELEMENTS else 1
        return native_variants(NativeKernel(request.host, effort=effort))
    from fusion_advisor.runtime import load_kernel

    namespace = load_kernel(request.text, request.entry, request.text_hash)
    if request.cpu_name not in namespace:
        raise ValidationError(f"the module holds no CPU kernel named {request.cpu_name!r}")
    cpu = namespace[request.cpu_name]
    return [
        ("CPU serial", _cpu_launcher(cpu.serial)),
        ("CPU parallel", _cpu_launcher(cpu.parallel)),
    ]


def _cpu_launcher(kernel: Callable[..., None]) -> Launch:
    def launch(
        spec: LaunchSpec,
        operands: list[GuardedArray],
        outputs: list[GuardedArray],
        views: list[np.ndarray],
    ) -> bool | None:
        arrays = [
            output.array.reshape(sizes or (1,))
            for output, sizes in zip(outputs, spec.output_sizes, strict=True)
        ]
        if not spec.checks_divisors:
            kernel(*views, *arrays, *spec.scalars)
            return None
        flag = GuardedArray(1, np.dtype(np.bool_), 0).array
        kernel(*views, *arrays, flag, *spec.scalars)
        return bool(flag[0])

    return launch


def _launch_native(
    kernel: NativeKernel,
    spec: LaunchSpec,
    operands: list[GuardedArray],
    outputs: list[GuardedArray],
    views: list[np.ndarray],
    *,
    block: int,
    ragged: bool,
) -> None:
    strides = [stride for operand in spec.operands if operand.strided for stride in operand.strides]
    arguments: list[Any] = [buffer.array for buffer in (*operands, *outputs)]
    arguments += [*spec.sizes, *strides, *spec.scalars]
    if spec.elements:  # an empty launch is not made on a GPU either
        grid = (spec.elements + block - 1) // block + int(ragged)
        kernel.launch(grid, block, arguments, backwards=ragged)


def _run_case(name: str, variant: str, launch: Launch, spec: LaunchSpec) -> CaseOutcome:
    trespasses: list[str] = []
    results: list[list[np.ndarray]] = []
    told: set[bool | None] = set()
    for poison in POISONS:
        again = bool(results)
        operands = [_guarded_copy(operand, at_start=again) for operand in spec.operands]
        outputs = [
            GuardedArray(count, numpy_dtype(dtype), poison, at_start=again)
            for count, (_, dtype) in zip(spec.output_elements, spec.outputs, strict=True)
        ]
        views = [
            buffer.strided(operand.sizes, operand.strides)
            for buffer, operand in zip(operands, spec.operands, strict=True)
        ]
        if again:
            for buffer in operands:
                buffer.forbid_writing()
        zero_divisor = launch(spec, operands, outputs, views)
        trespasses += _changed_inputs(spec, operands)
        trespasses += [
            f"wrote {buffer.trespass()} of output {label}"
            for (label, _), buffer in zip(spec.outputs, outputs, strict=True)
            if buffer.trespass()
        ]
        told.add(zero_divisor)
        results.append([buffer.array.copy() for buffer in outputs])
        if trespasses:  # the second launch might die before this is told
            break
    if not trespasses:
        for (label, _), first, second in zip(spec.outputs, *results, strict=True):
            trespasses += _unwritten(label, first, second)
    if len(told) > 1:
        trespasses.append("tells of a zero divisor in one of two equal runs")
    return CaseOutcome(
        case=name,
        variant=variant,
        outputs=tuple(results[0]),
        trespasses=tuple(dict.fromkeys(trespasses)),
        zero_divisor=zero_divisor,
    )


def _guarded_copy(operand: ArraySpec, *, at_start: bool) -> GuardedArray:
    buffer = GuardedArray(operand.data.size, operand.data.dtype, at_start=at_start)
    buffer.array[:] = operand.data
    return buffer


def _changed_inputs(spec: LaunchSpec, operands: list[GuardedArray]) -> list[str]:
    found = []
    for operand, buffer in zip(spec.operands, operands, strict=True):
        if not np.array_equal(buffer.array.view(np.uint8), operand.data.view(np.uint8)):
            found.append(f"changed its input {operand.name}")
        if buffer.trespass():
            found.append(f"wrote {buffer.trespass()} of input {operand.name}")
    return found


def _unwritten(label: str, first: np.ndarray, second: np.ndarray) -> list[str]:
    """Elements that kept their poison in both runs, or came out differently in each."""
    if not first.size:
        return []
    # Whole elements are compared: all bytes of one are poison when it was not written.
    whole = np.dtype(f"u{first.dtype.itemsize}")
    one, two = first.view(whole), second.view(whole)
    kept = (one == _poisoned(whole, POISONS[0])) & (two == _poisoned(whole, POISONS[1]))
    unstable = (one != two) & ~kept
    found = []
    if kept.any():
        count, where = int(kept.sum()), int(np.flatnonzero(kept)[0])
        found.append(f"left {count} of {first.size} elements of {label} unwritten, from {where}")
    if unstable.any():
        count = int(unstable.sum())
        found.append(f"{count} elements of {label} depend on what its memory held before")
    return found


def _poisoned(dtype: np.dtype, poison: int) -> np.generic:
    """An element all of whose bytes are ``poison``."""
    element: np.generic = np.full(dtype.itemsize, poison, np.uint8).view(dtype)[0]
    return element
