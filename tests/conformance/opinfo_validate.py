"""Kernels of the conformance run through the product's own validator, which must reject none."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import opinfo
import torch
from opinfo_kernels import Check, Refused, checks_of
from opinfo_units import Unit

from fusion_advisor import workers
from fusion_advisor.recorder import replay
from fusion_advisor.records import ValidationResult
from fusion_advisor.validation import validate

DTYPES = ("float32", "bfloat16", "int64")
OUTPUT = Path("build/conformance-validator.json")
BATCH = 20  # kernels per process
TIMEOUT_S = 3600.0
_LOOKED_AT = 12  # calls of a unit, of which the kernel of most elements is taken


@dataclass(frozen=True)
class _Request:
    """Units for one process; ``passed`` are kernels, by hash, that need not be validated again."""

    units: tuple[Unit, ...]
    passed: frozenset[str]


def run(entries: Sequence[str], dtypes: Sequence[str], *, fresh: bool) -> int:
    """Validate a kernel of each entry and dtype; 1 where one is rejected.

    Kernels that passed before are not validated again, unless ``fresh``.
    """
    supported = opinfo.find_entries()
    units = [
        Unit(entry, dtype)
        for dtype in dtypes or DTYPES
        for entry in entries
        if getattr(torch, dtype) in supported[entry].supported_dtypes("cpu")
    ]
    started = time.monotonic()
    found: dict[str, Any] = {} if fresh else _kept()
    passed = frozenset(one["hash"] for one in found.values() if one["status"] == "passed")
    found = {} if fresh else {name: one for name, one in found.items() if one["hash"] in passed}

    def receive(message: Any) -> None:
        if not isinstance(message, str):
            unit, outcome = message
            found[f"{unit.entry} {unit.dtype}"] = outcome
            if outcome["status"] == "failed":
                print(f"\rrejected: {unit.entry} {unit.dtype}: {outcome['detail']}")
            print(f"\r{len(found)} kernels\033[K", end="", flush=True)
            _write(found, time.monotonic() - started)

    for at in range(0, len(units), BATCH):
        workers.run_isolated(
            "opinfo_validate:validate_some",
            _Request(tuple(units[at : at + BATCH]), passed),
            timeout_s=TIMEOUT_S,
            on_progress=receive,
        )
    rejected = [name for name, outcome in found.items() if outcome["status"] == "failed"]
    passed = sum(outcome["status"] == "passed" for outcome in found.values())
    print(f"\n{passed} kernels passed, {len(rejected)} rejected: {', '.join(rejected) or 'none'}")
    return 1 if rejected else 0


def _kept() -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(OUTPUT.read_text(encoding="utf-8"))["kernels"]
    except (OSError, ValueError, KeyError):
        return {}
    return kept


def _write(found: dict[str, Any], seconds: float) -> None:
    statuses = [outcome["status"] for outcome in found.values()]
    summary = {
        "passed": statuses.count("passed"),
        "rejected": statuses.count("failed"),
        "without a kernel": statuses.count("no kernel"),
        "seconds": round(seconds, 1),
        "kernels": found,
    }
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def validate_some(request: _Request) -> None:
    """The other process: every unit's kernel up the ladder, but for its timing."""
    workers.fork_template()  # for the rungs that run kernels in guarded memory
    entries = opinfo.find_entries()
    for unit in request.units:
        check = _representative(entries[unit.entry], getattr(torch, unit.dtype))
        if check is None:
            outcome = {"status": "no kernel", "detail": "", "hash": ""}
        elif check.kernel.hash in request.passed:
            outcome = {"status": "passed", "detail": "", "hash": check.kernel.hash}
        else:
            result = validate_check(check)
            worst = next((rung for rung in result.rungs if rung.status == "failed"), None)
            detail = "" if worst is None else f"{check.label}: {worst.name}: {worst.detail}"
            outcome = {"status": result.status, "detail": detail, "hash": check.kernel.hash}
        workers.report_progress((unit, outcome))


def _representative(entry: Any, dtype: torch.dtype) -> Check | None:
    """Of the first calls' kernels the one with most elements."""
    found: list[Check] = []
    for _, call in zip(range(_LOOKED_AT), opinfo.calls(entry, dtype), strict=False):
        try:
            found += checks_of(call)
        except Refused:
            continue
    return max(found, key=lambda check: check.allowed[0].eager.numel(), default=None)


def validate_check(check: Check) -> ValidationResult:
    """The product's own ladder, on the recorded operands and those it makes."""
    graph, candidate = check.recording.graph, check.candidate
    names = tuple(operand.value for operand in candidate.inputs)
    chain = (graph, candidate.computed, names, candidate.outputs)
    return validate(
        check.kernel,
        graph,
        candidate,
        reference=replay.subgraph(*chain),
        reference64=replay.subgraph(*chain, high_precision=True),
        captured=dict(zip(names, check.operands, strict=True)),
        ceilings=None,
        measure=False,
    )
