"""docs/conformance.md, written from what a conformance run came to (conformance.json)."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fusion_advisor.ops import functional_name, lookup

KEPT = Path(__file__).with_name("conformance.json")
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
LARGE_ULP = 4.0  # errors above it are explained
MOST_NAMES = 8  # of entries, to one reason

DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool",
)  # fmt: skip

_LEFT_OUT = ("cpu_seconds", "run_seconds", "by_target_dtype")
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "bool": "bool"}
_OP = re.compile(r"\baten\.[\w.]+")
_TARGETS = {"cpu": "CPU", "cuda": "CUDA IR"}

_TEXT = """\
# Conformance

torch {torch}'s own sample inputs (OpInfo, `torch.testing._internal`), run through generated kernels
and compared with eager. Made by `make conformance ARGS=--write` (`tests/conformance/run_opinfo.py`)
from `tests/conformance/conformance.json`, on commit {commit}.

- **What ran**: the kernel of each op that a sample calls, and of each group that fusing makes of
  several. *CPU* is the machine code of the CPU kernel. *CUDA IR* is the NVVM IR of the CUDA kernel,
  compiled for the CPU and run there between guard pages, by two grids. No GPU was used: this says
  nothing of the hardware's approximations, nor of eager on a GPU.
- **Samples**: every sample as it is and on non-contiguous tensors. From up to three samples of
  each entry further calls are made: in place, with `out=`, permuted, 0-dim, empty, and of 4,099
  elements full of special values (NaN, infinities, zeros of both signs, extremes, subnormals).
- **Mismatch**: an element outside the budget of its op, which the [op table](ops.md) fixes
  beforehand. A budget of 0 is equal to the bit. Also a mismatch: a wrong dtype, shape or stride, a
  write outside the result, a changed input, a result that depends on the grid.
- **At a discontinuity**: behind an op with a budget, a comparison, rounding or cast may fall on
  either side; such an element must fit one of the two sides whole.
{unfinished}
## What it came to

| | samples | kernel runs | elements compared | mismatches | at a discontinuity |
|---|---|---|---|---|---|
{targets}

{required}

| dtype | units run | samples | kernel runs | elements compared | mismatches |
|---|---|---|---|---|---|
{dtypes}

A unit is an entry, a dtype and a target. Calls by form, on both targets: {forms}.

## Contractions

No kernel may hold a fused multiply-add that no op asks for: {contracted} of those below do.

{contractions}

Each is counted against the same kernel with contraction forbidden. Where a kernel's own arithmetic
multiplies or adds no floats, or only by instructions with a rounding of their own (`mul.rn`), which
neither NVVM nor the assembler may join, there is nothing to contract; SASS (`sm_90`, `nvdisasm`) is
made of all other programs, once for each, whatever the layouts are.

## NaN on one side only

{nan}

## Errors above {large:g} ULP

In units of the last place (ULP) of the *result*, against eager, and as a share of what is allowed
there. Where digits cancel, a few ULP of what goes in are many of what comes out: next to -1, one
ULP of erf is up to 1,024 of 1 + erf. So the budget of an op that cancels is in ULP of its operand,
and a group's is carried through its ops. Either side may be the nearer one: gelu of -2.7726 is 8
ULP from the true value in the kernel and in eager's strided loop, 1,073 in eager's vector loop;
1 + erf of about -3.32 is 706 in the kernel, 318 in eager. What the kernels are from the *true*
value stands in [accuracy.md](accuracy.md).

{errors}

## Refused

{refused}

## Entries

The largest distance from eager is in ULP of the result; empty where the entry did not run.

| entry | dtypes | samples | CPU | CUDA IR |
|---|---|---|---|---|
{entries}
"""


def kept_part(summary: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a summary."""
    return {name: value for name, value in summary.items() if name not in _LEFT_OUT}


def load() -> dict[str, Any]:
    """The kept run."""
    found: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return found


def write(summary: dict[str, Any]) -> None:
    """Keep a run, and write the page."""
    kept = kept_part(summary)
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    PAGE.write_text(render(load()), encoding="utf-8")


def render(kept: dict[str, Any]) -> str:
    """The page."""
    looked = dict(kept["contractions"])
    return _TEXT.format(
        torch=kept["torch"],
        commit=kept["commit"],
        unfinished=_unfinished(kept),
        targets="\n".join(
            f"| {_TARGETS[name]} | {one['samples']:,} | {one['kernels']:,} | {one['elements']:,} "
            f"| {one['mismatches']:,} | {one['discontinuous']:,} |"
            for name, one in kept["by_target"].items()
        ),
        required=_required(kept),
        dtypes="\n".join(
            f"| {name} | {kept['units'][name][0]} of {kept['units'][name][1]} "
            f"| {one['samples']:,} | {one['kernels']:,} | {one['elements']:,} "
            f"| {one['mismatches']:,} |"
            for name, one in sorted(
                kept["by_dtype"].items(), key=lambda item: DTYPES.index(item[0])
            )
        ),
        forms=", ".join(f"{name} {count:,}" for name, count in kept["samples_by_form"].items()),
        contracted=looked["contracted"],
        contractions=_contractions(looked),
        nan=_nan(kept["nan_differs"]),
        large=LARGE_ULP,
        errors=_errors(kept["worst_ulp"], kept["worst_share_of_budget"]),
        refused=_refused(kept),
        entries="\n".join(
            f"| `{name}` | {' '.join(map(_short, row['dtypes']))} | {row['samples']:,} "
            f"| {_ulp(row, 'cpu')} | {_ulp(row, 'cuda')} |"
            for name, row in sorted(kept["entries"].items())
        ),
    )


def _unfinished(kept: dict[str, Any]) -> str:
    if not kept["not_run"]:
        return ""
    return (
        f"- **Not run**: {kept['not_run']:,} of {kept['not_run'] + kept['outcomes']:,} units, "
        "see the table of dtypes.\n"
    )


def _required(kept: dict[str, Any]) -> str:
    required, left = kept["required"], kept["required_not_supported"]
    entries = kept["entries"]
    text = (
        f"{len(entries)} entries ran, {len(required)} of them required: "
        f"{len(required) - len(left)} of those are supported,\nthat is every sample of every dtype "
        "that ran, as it is and non-contiguous, ran in kernels\non both targets"
    )
    return text + (f"; not supported: {', '.join(left)}." if left else ".")


def _contractions(looked: dict[str, int]) -> str:
    names = {
        "machine code": "CPU kernels by their machine code",
        "machine code with products": "of them multiply floats",
        "PTX": "CUDA kernels by their PTX (`sm_90`)",
        "PTX with sums": "of them have float arithmetic that could be contracted",
        "SASS": "different programs of those, by their SASS",
        "SASS not disassembled": "different programs of those not disassembled yet",
    }
    return "\n".join(f"- {looked[key]:,} {text}" for key, text in names.items() if looked.get(key))


def _nan(differs: dict[str, str]) -> str:
    if not differs:
        return "None."
    lines = [
        "Accepted only where eager's own loops differ in it: eager is run on the same operands by",
        "its vector loop and by its single-element loop, and one of them gives a NaN as the kernel",
        "does, or a number as it does. The first case of each op:",
        "",
    ]
    texts = {functional_name(op): text for op, text in sorted(differs.items(), reverse=True)}
    return "\n".join(lines + [f"- {text}" for _, text in sorted(texts.items())])


def _errors(worst: dict[str, dict[str, float]], shares: dict[str, dict[str, float]]) -> str:
    rows = []
    for op, ulps in _functional(worst).items():
        largest = max(ulps.values())
        if largest <= LARGE_ULP:
            continue
        shown = " | ".join(f"{ulps[name]:g}" if name in ulps else "" for name in _TARGETS)
        share = max(_functional(shares).get(op, {}).values(), default=0.0)
        rows.append((largest, f"| `{op}` | {shown} | {share:.0%} | {_reason(op)} |"))
    if not rows:
        return "None."
    head = ["| op or group | CPU | CUDA IR | of its budget | why |", "|---|---|---|---|---|"]
    ordered = sorted(rows, key=lambda row: -row[0])
    return "\n".join(head + [text for _, text in ordered])


def _functional(values: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The largest values by op and target, those of in-place and ``out=`` forms with their op's."""
    found: dict[str, dict[str, float]] = {}
    for op, by_target in values.items():
        row = found.setdefault(" + ".join(map(functional_name, op.split(" + "))), {})
        for target, value in by_target.items():
            row[target] = max(row.get(target, 0.0), value)
    return found


def _reason(op: str) -> str:
    if " + " in op:
        parts = [(name, lookup(name)) for name in op.split(" + ")]
        inexact = [
            f"{name} ({info.budget_ulp:g} ULP)" for name, info in parts if info and info.budget_ulp
        ]
        return f"what {', '.join(inexact) or 'it'} leaves open, carried through the ops behind it"
    info = lookup(op)
    if info is None:
        return ""
    scale = " of the operand" if info.error_scale == "operand" else ""
    note = f": {info.note}" if info.note else ""
    if not scale:  # the budget is counted from the true value, and eager's own is taken in
        note += "; the rest is eager's own distance from the true value"
    return _escaped(f"budget {info.budget_ulp:g} ULP{scale}{note}")


def _refused(kept: dict[str, Any]) -> str:
    own, further = fold(kept["refused"]), fold(kept["refused_forms"], further=True)
    known = {(reason, name) for reason, (_, names) in own.items() for name in names}
    # Of further calls only what is not refused as OpInfo gives it.
    further = {
        reason: (calls, left)
        for reason, (calls, names) in further.items()
        if (left := [name for name in names if (reason, name) not in known])
    }
    lines = ["Samples as OpInfo gives them:" + ("" if own else " none."), "", *_reasons(own), ""]
    lines += ["Further calls alone:" + ("" if further else " none."), "", *_reasons(further)]
    return "\n".join(lines).strip()


def fold(refused: dict[str, Any], *, further: bool = False) -> dict[str, tuple[int, list[str]]]:
    """Calls and entries by reason, whatever op it names and, of ``further`` calls, the form."""
    calls: Counter[str] = Counter()
    entries: dict[str, set[str]] = defaultdict(set)
    for reason, found in refused.items():
        text = _OP.sub("the op", reason.partition(": ")[2] if further else reason)
        calls[text] += found["samples"]
        entries[text] |= set(found["entries"])
    return {reason: (calls[reason], sorted(entries[reason])) for reason in sorted(calls)}


def _reasons(folded: dict[str, tuple[int, list[str]]]) -> list[str]:
    return [
        f"- {calls:,} calls of {', '.join(f'`{name}`' for name in names[:MOST_NAMES])}"
        + (f" and {len(names) - MOST_NAMES} more entries" if len(names) > MOST_NAMES else "")
        + f": {_escaped(reason)}"
        for reason, (calls, names) in folded.items()
    ]


def _short(dtype: str) -> str:
    name = dtype.rstrip("0123456789")
    return _SHORT[name] + dtype[len(name) :]


def _ulp(row: dict[str, Any], target: str) -> str:
    return f"{row['worst_ulp'][target]:g}" if target in row["worst_ulp"] else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
