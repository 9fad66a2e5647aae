"""Units of the conformance run: an entry and dtype on both targets, in a process of their own.

What a unit came to is kept with a digest of everything it follows from: the kernels' texts, what
they call, what judges them, and torch.  A unit whose digest is the same need not run again.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib.metadata
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import opinfo
import opinfo_sass
import torch
from opinfo_kernels import Check, Refused, checks_of
from opinfo_targets import (
    ARCHITECTURE,
    CpuTarget,
    CudaTarget,
    Tally,
    Target,
    make_target,
    run_checks,
)

import fusion_advisor
from fusion_advisor.ops import lookup
from fusion_advisor.worker_template import report_progress

_PACKAGE = Path(fusion_advisor.__file__).parent
_HERE = Path(__file__).parent
_HARNESS = ("opinfo.py", "opinfo_kernels.py", "opinfo_targets.py", "opinfo_twin.py")
_JUDGES = (
    "aten.py", "bits.py", "budgets.py", "compare.py", "contractions.py", "eager_loops.py",
    "inputs.py", "arrays.py",
)  # fmt: skip
_RUNNERS: dict[Target, tuple[str, ...]] = {
    "cpu": ("runtime/cpu_kernels.py", "runtime/launch.py", "runtime/plan.py", "runtime/layouts.py",
        "runtime/walks.py"),
    "cuda": (
        "validation/native_module.py", "validation/native_shims.py",
        "validation/native_assembly.py", "validation/execution.py", "validation/guarded.py",
        "validation/cuda_compiler.py",
    ),
}  # fmt: skip
# Of kernels that call our own maths.
_MATHS: dict[str, tuple[str, ...]] = {
    "cpu_math.": (
        "runtime/cpu_math.py", "runtime/float32_math.py", "runtime/float64_math.py",
        "runtime/trigonometry.py", "runtime/intrinsics.py", "runtime/integer_math.py",
        "runtime/scalar_ir.py",
    ),
    "cuda_math.": (
        "runtime/cuda_math.py", "runtime/cuda_support.py", "runtime/integer_math.py",
        "runtime/scalar_ir.py",
    ),
}  # fmt: skip
_DISTRIBUTIONS: dict[Target, tuple[str, ...]] = {
    "cpu": ("torch", "numpy", "numba", "llvmlite"),
    "cuda": ("torch", "numpy", "numba-cuda", "llvmlite"),
}
# One in so many units also runs a kernel as a person calls it, and on many threads; of float32
# twice as many.
THOROUGH_PART = 8
COLLECT_EVERY = 200_000  # new objects, instead of 700


@dataclass(frozen=True)
class Unit:
    """An entry's samples of one dtype."""

    entry: str
    dtype: str

    @property
    def thorough(self) -> bool:
        """Whether further ways of running a kernel are tried."""
        number = int(hashlib.sha256(f"{self.entry} {self.dtype}".encode()).hexdigest(), 16)
        return number % (THOROUGH_PART // 2 if self.dtype == "float32" else THOROUGH_PART) == 0

    def file(self, folder: Path, target: Target) -> Path:
        """Where its outcome is kept."""
        return folder / target / self.dtype / f"{self.entry}.json"


@dataclass(frozen=True)
class Batch:
    """Units for one process.  ``most_samples`` bounds the calls of each, None being all."""

    units: tuple[Unit, ...]
    targets: tuple[Target, ...]
    folder: Path
    fresh: bool = False
    most_samples: int | None = None


def run_batch(batch: Batch) -> None:
    """Run what has changed; every outcome is reported as (unit, target, outcome) as it is known."""
    entries = opinfo.find_entries()
    # Compilers make many objects and few cycles: looking for those among torch's own takes a
    # quarter of the time.
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
    known = opinfo_sass.read_known(batch.folder)
    made = {target: make_target(target, known) for target in batch.targets}
    for unit in batch.units:
        report_progress(("unit", unit))
        for target, outcome in run_unit(entries[unit.entry], unit, made, batch):
            report_progress(("outcome", unit, target, outcome))
        disassemble(made, at_once=unit is batch.units[-1])


def disassemble(made: dict[Target, CpuTarget | CudaTarget], *, at_once: bool) -> None:
    """Look through the SASS of what was compiled, where there is enough of it or ``at_once``."""
    for target in made.values():
        if isinstance(target, CudaTarget) and (at_once or target.disassembler.full):
            report_progress(("sass", target.disassembler.flush(ARCHITECTURE)))


def run_unit(
    entry: Any, unit: Unit, targets: dict[Target, CpuTarget | CudaTarget], batch: Batch
) -> Iterable[tuple[Target, dict[str, Any]]]:
    """Per target what the unit came to, kept or new."""
    started = time.monotonic()
    checks, base = prepare(entry, getattr(torch, unit.dtype), batch.most_samples)
    prepared_s = time.monotonic() - started
    for target, runner in targets.items():
        digest = _digest(target, checks, base, thorough=unit.thorough)
        kept = None if batch.fresh else read_outcome(unit.file(batch.folder, target))
        if kept is not None and kept["digest"] == digest and _looked_through(kept, runner):
            yield target, kept
            continue
        started = time.monotonic()
        tally = Tally(samples=base.samples.copy(), idle=base.idle, refused=base.refused.copy())
        tally.faults, tally.mismatches = list(base.faults), base.mismatches

        def announce(check: Check, target: Target = target) -> None:
            report_progress(("check", f"{target}, {check.label}"))

        run_checks(runner, checks, tally, thoroughly=unit.thorough, before=announce)
        seconds = round(prepared_s + time.monotonic() - started, 3)
        yield target, {**tally.as_json(), "digest": digest, "seconds": seconds}


def _looked_through(kept: dict[str, Any], runner: CpuTarget | CudaTarget) -> bool:
    """Whether the SASS of its kernels is known; a process may have died with it."""
    if not isinstance(runner, CudaTarget):
        return True
    return opinfo_sass.all_known(kept["compiled"].get("SASS", ()), runner.disassembler.found)


def prepare(
    entry: Any, dtype: torch.dtype, most_samples: int | None = None
) -> tuple[list[Check], Tally]:
    """The kernels of all calls, and a tally of what became of the calls."""
    checks: list[Check] = []
    tally = Tally()
    for number, call in enumerate(opinfo.calls(entry, dtype)):
        if most_samples is not None and number >= most_samples:
            break
        try:
            found = checks_of(call)
        except Refused as reason:
            tally.refused[f"{call.form}: {reason}"] += 1
            continue
        except Exception as error:  # recording, analysis or eager itself: a fault of the run
            tally.fault(f"{call.form}: {type(error).__name__}: {error}")
            continue
        if found:
            tally.samples[call.form] += 1
        else:
            tally.idle += 1
        checks += found
    return checks, tally


def read_outcome(file: Path) -> dict[str, Any] | None:
    """A kept outcome; None where there is none."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def write_outcome(file: Path, outcome: dict[str, Any]) -> None:
    """Keep an outcome; a file is whole or not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    part.replace(file)


# -- what an outcome follows from --------------------------------------------------------------


def _digest(target: Target, checks: Sequence[Check], base: Tally, *, thorough: bool) -> str:
    """Changes with whatever could change the outcome."""
    found = hashlib.sha256(json.dumps([base.as_json(), thorough]).encode())
    texts = [re.sub(r"#.*", "", check.kernel.text) for check in checks]
    for check, text in zip(checks, texts, strict=True):
        found.update(f"{check.label}{check.candidate}{check.layouts}{text}".encode())
    files = [*_RUNNERS[target], *(f"validation/{name}" for name in _JUDGES)]
    for module, behind in _MATHS.items():
        own = "cuda_math." if target == "cuda" else "cpu_math."
        if module == own and any(module in text for text in texts):
            files += behind
    for name in sorted(files):
        found.update(_file_digest(_PACKAGE / name))
    for name in _HARNESS:
        found.update(_file_digest(_HERE / name))
    ops = sorted({node.op for check in checks for node in _nodes(check)})
    found.update(repr([_budget_row(op) for op in ops]).encode())
    for name in _DISTRIBUTIONS[target]:
        found.update(importlib.metadata.version(name).encode())
    return found.hexdigest()


def _nodes(check: Check) -> Iterable[Any]:
    wanted = set(check.candidate.nodes)
    return (node for node in check.recording.graph.nodes if node.id in wanted)


def _budget_row(op: str) -> Any:
    info = lookup(op)
    return op, info and (info.budget_ulp, info.error_scale, info.discontinuous)


@functools.cache
def _file_digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


def crashed(unit: Unit, message: str) -> dict[str, Any]:
    """The outcome of a unit that ended its process; its digest fits nothing, so that it runs again.

    ``message`` says which kernel was running.
    """
    tally = Tally(refused=Counter())
    tally.fault(f"{unit.entry}, {unit.dtype}: {message}")
    return {**tally.as_json(), "digest": "", "seconds": 0.0}
