"""Runs torch's OpInfo samples through the kernels and writes build/conformance.json.

    python tests/conformance/run_opinfo.py [--target cpu|cuda] [--dtypes float32,int64]
        [--entries add,mul] [--most-samples N] [--output build/conformance.json]

Exits with 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import opinfo
import torch

SHOWN_FAULTS = 3  # of each entry, on the screen and in the file


def main() -> int:
    """Parse, run, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=["cpu", "cuda"], action="append")
    parser.add_argument("--dtypes", default="")
    parser.add_argument("--entries", default="")
    parser.add_argument("--most-samples", type=int, default=None)
    parser.add_argument("--output", type=Path, default=Path("build/conformance.json"))
    options = parser.parse_args()
    names = opinfo.read_entries()
    wanted = options.entries.split(",") if options.entries else sum(names.values(), ())
    dtypes = opinfo.DTYPES
    if options.dtypes:
        dtypes = tuple(getattr(torch, name) for name in options.dtypes.split(","))
    tallies: dict[str, dict[str, opinfo.Tally]] = {}
    entries = opinfo.find_entries()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for target in options.target or ["cpu"]:
        tallies[target] = {}
        for name in wanted:
            tally = opinfo.run_entry(entries[name], dtypes, target, options.most_samples)
            tallies[target][name] = tally
            for fault in tally.faults[:SHOWN_FAULTS]:
                print(f"{target} {name}: {fault}", flush=True)
            summary = summarize(tallies, names["required"])
            summary["seconds"] = round(time.monotonic() - started, 1)
            summary["dtypes"] = [str(dtype).removeprefix("torch.") for dtype in dtypes]
            summary["most_samples"] = options.most_samples
            # After every entry: an interrupted run keeps what it has seen.
            options.output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print_summary(summary)
    print(f"written to {options.output}")
    return 1 if summary["mismatches"] else 0


def summarize(
    tallies: dict[str, dict[str, opinfo.Tally]], required: tuple[str, ...]
) -> dict[str, Any]:
    """The report of all targets: totals, entries by how far they are supported, reasons, errors.

    An entry is supported where every sample ran in kernels on every target.
    """
    every = [tally for own in tallies.values() for tally in own.values()]
    refused: dict[str, Counter[str]] = {}
    worst: dict[str, dict[str, float]] = {}
    for target, own in tallies.items():
        for name, tally in own.items():
            for reason, count in tally.refused.items():
                refused.setdefault(reason, Counter())[name] += count
            for op, ulp in tally.worst_ulp.items():
                by_target = worst.setdefault(op, {})
                by_target[target] = max(by_target.get(target, 0.0), ulp)
    ran = {name for own in tallies.values() for name in own}
    partly = {name for name in ran if any(own[name].refused for own in tallies.values())}
    return {
        "targets": list(tallies),
        "required": sorted(ran.intersection(required)),
        "supported": sorted(ran - partly),
        "required_not_supported": sorted(partly.intersection(required)),
        "samples": sum(tally.samples for tally in every),
        "kernel_runs": sum(tally.kernels for tally in every),
        "elements": sum(tally.elements for tally in every),
        "mismatches": sum(tally.mismatches for tally in every),
        "discontinuous": sum(tally.discontinuous for tally in every),
        "refused": {
            reason: {"samples": sum(names.values()), "entries": dict(sorted(names.items()))}
            for reason, names in sorted(refused.items())
        },
        "worst_ulp": {op: worst[op] for op in sorted(worst)},
        "faults": {
            f"{target} {name}": tally.faults[:SHOWN_FAULTS]
            for target, own in tallies.items()
            for name, tally in own.items()
            if tally.faults
        },
    }


def print_summary(summary: dict[str, Any]) -> None:
    """A screenful."""
    required, left = summary["required"], summary["required_not_supported"]
    print(
        f"{', '.join(summary['targets'])}: {summary['samples']} samples, "
        f"{summary['kernel_runs']} kernel runs, {summary['elements']} elements in "
        f"{summary['seconds']} s: {summary['mismatches']} mismatches, "
        f"{summary['discontinuous']} at a discontinuity"
    )
    print(f"required entries: {len(required) - len(left)} of {len(required)} wholly supported")
    for reason, found in summary["refused"].items():
        print(f"  {found['samples']} samples refused: {reason} ({', '.join(found['entries'])})")
    near = sorted(
        ((max(ulps.values()), op) for op, ulps in summary["worst_ulp"].items()), reverse=True
    )
    print("largest errors: " + ", ".join(f"{op} {ulp:g} ULP" for ulp, op in near[:8] if ulp))


if __name__ == "__main__":
    raise SystemExit(main())
