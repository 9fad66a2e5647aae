"""Sweeps the generated kernel of each op over all its inputs, and keeps what was found.

    make sweep                                   every op that the table has no full row for
    make sweep ARGS="--ops exp,tanh --stride 1"  some ops; stride 97: every 97th float32
    make sweep ARGS="--render"                   only writes docs/accuracy.md

For each call of ``swept_calls``: the CPU kernel, and the CUDA kernel's own IR run on this CPU,
over all 2**32 float32 inputs (two operands: specials with each other and 2**24 pairs) and all
2**16 inputs of float16 and bfloat16.  After every call the findings are kept in
``accuracy.json``, under a digest of what was compiled: a kernel that is as it was is not swept
again, and an interrupted sweep goes on where it was.  Exits with 1 where a budget is exceeded.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import sweep_measure
import torch
from sweep_kernels import Kernel, NotSwept, kernel, source_of
from sweep_measure import Eager, Target
from sweep_table import (
    DTYPES,
    KEPT,
    PAGE,
    TARGETS,
    Table,
    expected_inputs,
    key,
    load,
    problems,
    render,
    save,
)
from swept_calls import SweptCall, swept_calls


def measure(
    call: SweptCall, dtype: str, kernels: dict[str, Kernel], stride: int, offset: int = 0
) -> dict[str, Any]:
    """Sweep one call in one dtype; the row as it is kept."""
    if dtype == "float32":
        targets, eager = sweep_measure.sweep_float32(call, kernels, stride, offset)
    else:
        targets, eager = sweep_measure.sweep_half(call, kernels, getattr(torch, dtype))
    row: dict[str, Any] = {
        "op": call.op,
        "budget_ulp": call.budget_ulp,
        "scale": call.info.error_scale,
        "eager": _plain(eager),
    }
    return row | {name: _plain(target) for name, target in targets.items()}


def _plain(found: Target | Eager) -> dict[str, Any]:
    """Flat and short: what is nothing is left out."""
    flat = dataclasses.asdict(found)
    flat |= flat.pop("errors")
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in flat.items()
        if value or key == "inputs"
    }


def kernels_of(call: SweptCall, dtype: str, targets: tuple[str, ...]) -> dict[str, Kernel]:
    """The kernels that there are; raises ``NotSwept`` where the package makes none."""
    source = source_of(call, getattr(torch, dtype))
    return {target: kernel(call, source, target) for target in targets}


def wanted(names: str, arities: str) -> Iterator[SweptCall]:
    """The calls of ops whose base name, or whose own name, is given; all without names."""
    chosen = set(names.split(",")) if names else set()
    for call in swept_calls():
        base = call.op.split(".")[1]
        if str(call.arity) in arities and (not chosen or chosen & {base, call.op, call.name}):
            yield call


def sweep_call(
    table: Table, call: SweptCall, dtype: str, targets: tuple[str, ...], stride: int
) -> dict[str, Any] | None:
    """Sweep what is not known yet of one call; its row, or None where nothing was to do."""
    known = table.get(key(call, dtype), {})
    try:
        kernels = kernels_of(call, dtype, targets)
    except NotSwept as reason:
        table[key(call, dtype)] = {"op": call.op, "open": str(reason)}
        return None
    for name, one in list(kernels.items()):
        before = known.get(name, {})
        same = before.get("digest") == one.digest and known["budget_ulp"] == call.budget_ulp
        if same and before["inputs"] >= expected_inputs(call, dtype, stride):
            del kernels[name]
    if not kernels:
        return None
    row = measure(call, dtype, kernels, stride)
    for name in set(targets) - set(kernels):
        if name in known:
            row[name] = known[name]
    table[key(call, dtype)] = row
    return row


def main() -> int:
    """Parse, sweep, keep, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ops", default="", help="base names, overloads or calls; by commas")
    parser.add_argument("--stride", type=int, default=1, help="every n-th float32")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--arguments", default="1,2", help="of how many tensors")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start none later")
    parser.add_argument("--render", action="store_true", help="only write the page")
    options = parser.parse_args()
    # One thread: eager's own form depends on how its work is cut.
    torch.set_num_threads(1)
    table = load()
    ends = time.monotonic() + options.minutes * 60
    for call in () if options.render else wanted(options.ops, options.arguments):
        for dtype in options.dtypes.split(","):
            if time.monotonic() > ends:
                break
            started = time.process_time()
            row = sweep_call(table, call, dtype, tuple(options.targets.split(",")), options.stride)
            if row is not None:
                save(table)
                print(_line(call, dtype, row, time.process_time() - started), flush=True)
    save(table)
    PAGE.write_text(render(table), encoding="utf-8")
    found = [f"{name}: {one}" for name, row in table.items() for one in problems(row)]
    print("\n".join(found))
    print(f"{len(table)} rows in {os.path.relpath(KEPT)}, {len(found)} problems")
    return 1 if found else 0


def _line(call: SweptCall, dtype: str, row: dict[str, Any], seconds: float) -> str:
    parts = [f"{call.name} {dtype}: budget {row['budget_ulp']:g}"]
    for name in ("eager", *TARGETS):
        found = row.get(name)
        if found is not None:
            words = f"{name} {found.get('ulp', 0):.3f} ULP"
            if found.get("charged_ulp", 0) != found.get("ulp", 0):
                words += f" (charged {found.get('charged_ulp', 0):.3f})"
            for key in ("over", "faults", "body_differs"):
                if found.get(key):
                    words += f", {key} {found[key]}"
            parts.append(words)
    return "; ".join(parts) + f"; {seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
