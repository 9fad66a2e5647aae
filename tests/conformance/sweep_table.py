"""The kept findings of the accuracy sweep: ``accuracy.json``, and the page made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swept_calls import SweptCall, not_swept, swept_calls

from fusion_advisor import ops

KEPT = Path(__file__).with_name("accuracy.json")
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
DTYPES = ("float32", "float16", "bfloat16")
TARGETS = {"cpu": "CPU", "cuda": "CUDA IR"}
PAIRS = 1 << 24
Table = dict[str, dict[str, Any]]


def load(path: Path = KEPT) -> Table:
    """The kept rows by "call dtype"."""
    if not path.exists():
        return {}
    found: Table = json.loads(path.read_text(encoding="utf-8"))
    return found


def save(table: Table, path: Path = KEPT) -> None:
    """Write the rows of calls that there are, one a line, in their order; whole or not at all."""
    keys = [key(call, dtype) for call in swept_calls() for dtype in DTYPES]
    lines = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in keys if name in table]
    beside = path.with_suffix(".tmp")
    beside.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    beside.replace(path)


def key(call: SweptCall, dtype: str) -> str:
    """A row's name."""
    return f"{call.name} {dtype}"


def expected_inputs(call: SweptCall, dtype: str, stride: int = 1) -> int:
    """How many inputs a sweep with this stride covers, at least."""
    if dtype != "float32":
        return 1 << 16
    return (1 << 32 if call.arity == 1 else PAIRS) // stride


def problems(row: dict[str, Any]) -> list[str]:
    """What in a row breaks its budget, in words; empty where it holds."""
    found = []
    for target in TARGETS:
        own = row.get(target, {})
        if own.get("charged_ulp", 0.0) > row.get("budget_ulp", 0.0):
            at = ", ".join(map(repr, own["charged_at"]))
            found.append(f"{target}: {own['charged_ulp']:.3f} ULP at {at}")
        if own.get("over"):
            at = ", ".join(map(repr, own.get("fault_at", own.get("charged_at", []))))
            found.append(f"{target}: {own['over']} results over the budget, one at {at}")
        if own.get("faults"):
            at = ", ".join(map(repr, own["fault_at"]))
            found.append(f"{target}: {own['faults']} NaN, infinities or signs wrong, one at {at}")
    return found


def is_full(call: SweptCall, dtype: str, row: dict[str, Any]) -> bool:
    """Whether both targets were swept over every input."""
    least = expected_inputs(call, dtype)
    return all(row.get(target, {}).get("inputs", 0) >= least for target in TARGETS)


def open_rows(table: Table) -> Iterator[tuple[str, str]]:
    """(row, what is missing) for each call and dtype that was not swept whole."""
    for call in swept_calls():
        for dtype in DTYPES:
            row = table.get(key(call, dtype), {})
            if "open" in row:
                yield key(call, dtype), row["open"]
            elif not row:
                yield key(call, dtype), "not swept"
            elif not is_full(call, dtype, row):
                least = min(row.get(target, {}).get("inputs", 0) for target in TARGETS)
                yield key(call, dtype), f"{least:,} inputs"


# --- the page ----------------------------------------------------------------------------------

_HEAD = """# Accuracy

What the kernel of each op computes, held against the true value and against eager.  Made by
`make sweep` (`tests/conformance/sweep.py`) from `tests/conformance/accuracy.json`; the tests repeat
it over a sample.

- **What ran**: the generated kernel of the op alone.  *CPU* is the kernel that the CPU runs;
  *CUDA IR* is the NVVM IR of the CUDA kernel with libdevice, run on the CPU.  The hardware's
  approximations (`ex2.approx`, `rsqrt.approx` …) are correctly rounded there: a GPU may be 1 to
  2 ULP further off where libdevice uses them.  No GPU was used.
- **Inputs**: one argument: all 2^32 values of float32, all 2^16 of float16 and bfloat16.  Two:
  the specials with each other and 2^24 pairs (16 bits: 2^20), a quarter each random bit patterns,
  ordinary magnitudes, nearly equal ones, and magnitudes 2^±30 apart.  Rows that are not through yet
  are named at the end.
- **Error**: distance from the true value (float64, by formulas that do not cancel; checked against
  mpmath) in units of its last place (ULP), or of the operand's where that is larger (*scale
  operand*: the op cancels, and no bound relative to the result exists).
- **Budget**: from the op table; at most 4 for each transcendental function in the op (the notes at
  the end say why where it is more than 4 in all).  A result that lies between eager's own and the
  true value is within it; such errors are eager's, and are not in the columns *CPU* and *CUDA IR*.
  NaN, infinities and the sign of zero must be those of the true value, or eager's.
- **Eager**: its largest error (of every 16th chunk of 32,768 values, and wherever an error had to
  be explained), and in brackets how far its vector body and its strided loop are apart.
"""


def render(table: Table) -> str:
    """The page."""
    lines = [_HEAD]
    budgeted = [call for call in swept_calls() if call.budget_ulp]
    exact = [call for call in swept_calls() if not call.budget_ulp]
    lines += ["## float32: ops with a budget", "", *_ulp_lines(table, budgeted), ""]
    lines += ["## 16 bits: ops with a budget", "", *_half_lines(table, budgeted), ""]
    lines += ["## Bit-equal to eager", "", *_exact_lines(table, exact), ""]
    lines += ["## Exceptions", "", *_exception_lines(budgeted), ""]
    lines += ["## Open", "", *_open_lines(table)]
    return "\n".join(lines) + "\n"


def _ulp_lines(table: Table, calls: list[SweptCall]) -> Iterator[str]:
    yield "| call | inputs | budget | scale | CPU | CUDA IR | eager |"
    yield "|---|---|---|---|---|---|---|"
    for call in calls:
        row = table.get(key(call, "float32"), {})
        if not row or "open" in row:
            continue
        cells = [_charged(row, target) for target in TARGETS]
        scale = row["scale"] if row["scale"] != "result" else ""
        yield (
            f"| `{call.name}` | {_inputs(row)} | {row['budget_ulp']:g} | {scale} | "
            f"{' | '.join(cells)} | {_eager(row)} |"
        )


def _charged(row: dict[str, Any], target: str) -> str:
    own = row.get(target)
    if own is None:
        return "not run"
    worst = own.get("ulp", 0.0)
    shown = worst if worst <= row["budget_ulp"] else own.get("charged_ulp", 0.0)
    return f"{shown:.3f}" + (" " + _at(own) if own.get("faults") or own.get("over") else "")


def _at(own: dict[str, Any]) -> str:
    return f"**{own.get('over', 0)} over, {own.get('faults', 0)} faults**"


def _eager(row: dict[str, Any]) -> str:
    own = row["eager"]
    worst, spread = own.get("ulp", 0.0), own.get("spread_ulp", 0.0)
    text = f"{worst:.3f}" if worst < 1e4 else f"{worst:.1e}"
    return text + (f" ({spread:.1f})" if spread < 1e4 else f" ({spread:.1e})") * bool(spread)


def _inputs(row: dict[str, Any]) -> str:
    counts = {row[target]["inputs"] for target in TARGETS if target in row}
    names = {1 << 32: "all 2^32", 1 << 16: "all 2^16"}
    return ", ".join(names.get(count, f"{count:,}") for count in sorted(counts))


def _half_lines(table: Table, calls: list[SweptCall]) -> Iterator[str]:
    yield "Results that are not eager's very bits; each lies within the float32 budget around the"
    yield "true value, rounded, or between that and eager's."
    yield ""
    yield "| call | inputs | float16: CPU | CUDA IR | bfloat16: CPU | CUDA IR |"
    yield "|---|---|---|---|---|---|"
    for call in calls:
        rows = [table.get(key(call, dtype), {}) for dtype in DTYPES[1:]]
        if not all(rows) or any("open" in row for row in rows):
            continue
        cells = [
            f"{row.get(target, {}).get('body_differs', 0):,}" for row in rows for target in TARGETS
        ]
        yield f"| `{call.name}` | {_inputs(rows[0])} | {' | '.join(cells)} |"


def _exact_lines(table: Table, calls: list[SweptCall]) -> Iterator[str]:
    yield "Budget 0, and no result of either target differs from eager's in a bit (any NaN being"
    yield "equal to any NaN), in float32, float16 and bfloat16:"
    yield ""
    equal, apart = [], []
    for call in calls:
        rows = [table.get(key(call, dtype), {}) for dtype in DTYPES]
        rows = [row for row in rows if row and "open" not in row]
        clean = not any(row.get(t, {}).get("body_differs") for row in rows for t in TARGETS)
        (equal if clean else apart).append(call)
    yield ", ".join(f"`{call.name}`" for call in equal) + "."
    for call in apart:
        yield f"\n`{call.name}` equals one of eager's two forms everywhere, which differ."


def _exception_lines(calls: list[SweptCall]) -> Iterator[str]:
    yield "Budgets above 4 ULP, or of an op without a transcendental function, and their reason:"
    yield ""
    seen: set[str] = set()
    for call in calls:
        info = call.info
        if info.note and info.note not in seen:
            seen.add(info.note)
            names = sorted({c.op for c in calls if c.info.note == info.note})
            listed = ", ".join(f"`{name}`" for name in names)
            yield f"- {listed} ({call.budget_ulp:g}): {info.note}."


def _open_lines(table: Table) -> Iterator[str]:
    sampled: dict[str, list[str]] = {}
    for name, missing in open_rows(table):
        sampled.setdefault(missing, []).append(name)
    if not sampled:
        yield "Nothing."
    for missing, names in sampled.items():
        yield f"- {missing}: {', '.join(f'`{name}`' for name in names)}"
    reasons: dict[str, list[str]] = {}
    for row in ops.rows():
        reason = not_swept(row.name)
        if reason:
            reasons.setdefault(reason, []).append(row.name.removeprefix("aten."))
    yield ""
    yield "Not swept, and compared with eager by `make conformance` only:"
    yield ""
    for reason, names in reasons.items():
        yield f"- {reason}: {', '.join(f'`{name}`' for name in names)}"
