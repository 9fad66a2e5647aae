"""What the conformance run came to: the summary, and a screenful of it."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import opinfo_page
import opinfo_sass
import torch
from opinfo_units import Unit, read_outcome

SHOWN_FAULTS = 3  # of each outcome, in the summary
WORST_SHOWN = 12
_COUNTED = ("kernels", "groups", "called", "parallel", "elements", "mismatches", "discontinuous")


def summarize(
    folder: Path, units: Sequence[Unit], targets: Sequence[str], required: Sequence[str]
) -> dict[str, Any]:
    """The kept outcomes of these units as one report.

    An entry is supported where every call of it as OpInfo gives it, on contiguous and
    non-contiguous tensors, ran in kernels on every target.  Calls of other forms are counted,
    and refused, apart.
    """
    found = [
        (unit, target, outcome)
        for target in targets
        for unit in units
        if (outcome := read_outcome(unit.file(folder, target))) is not None
    ]
    entries = {unit.entry for unit, _, _ in found}
    partly = {unit.entry for unit, _, outcome in found if any(map(own_form, outcome["refused"]))}
    expected, wanted = len(units) * len(targets), set(required)
    return {
        "commit": _commit(folder),
        "torch": torch.__version__.partition("+")[0],
        "targets": list(targets),
        "dtypes": list(dict.fromkeys(unit.dtype for unit in units)),
        "units": {
            dtype: [
                sum(unit.dtype == dtype for unit, _, _ in found),
                sum(unit.dtype == dtype for unit in units) * len(targets),
            ]
            for dtype in dict.fromkeys(unit.dtype for unit in units)
        },
        "outcomes": len(found),
        "not_run": expected - len(found),
        "required": sorted(entries & wanted),
        "supported": sorted(entries - partly),
        "required_not_supported": sorted(partly & wanted),
        "samples": sum(own_samples(outcome) for _, _, outcome in found),
        "samples_by_form": _summed(outcome["samples"] for _, _, outcome in found),
        "idle": sum(outcome["idle"] for _, _, outcome in found),
        **{name: sum(outcome[name] for _, _, outcome in found) for name in _COUNTED},
        "by_target": {
            target: _totals([one for _, own, one in found if own == target]) for target in targets
        },
        "by_dtype": {
            dtype: _totals([one for unit, _, one in found if unit.dtype == dtype])
            for dtype in dict.fromkeys(unit.dtype for unit in units)
        },
        "contractions": _contractions(found, opinfo_sass.read_known(folder)),
        "refused": _refused(found, own=True),
        "refused_forms": _refused(found, own=False),
        "worst_ulp": _worst(found, "worst_ulp"),
        "worst_share_of_budget": _worst(found, "worst_share"),
        "nan_differs": {
            op: f"{target}, {text}"
            for _, target, outcome in found
            for op, text in sorted(outcome["nan_differs"].items())
        },
        "faults": {
            f"{target} {unit.entry} {unit.dtype}": outcome["faults"][:SHOWN_FAULTS]
            for unit, target, outcome in found
            if outcome["faults"]
        },
        "entries": _entries(found),
        "cpu_seconds": round(sum(outcome["seconds"] for _, _, outcome in found), 1),
    }


def _commit(folder: Path) -> str:
    """The commit of the repository that the outcomes lie in, "" where there is none."""
    command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _contractions(found: Sequence[Any], known: dict[str, str]) -> dict[str, int]:
    """How many distinct kernels were looked through, by kind of code, and how many contract."""
    digests: dict[str, set[str]] = defaultdict(set)
    for _, _, outcome in found:
        for kind, names in outcome["compiled"].items():
            digests[kind].update(names)
    problems = [name for name in digests["SASS"] if known.get(name)]
    looked = {kind: len(names) for kind, names in sorted(digests.items()) if kind != "SASS"}
    return {
        **looked,
        "SASS": len(digests["SASS"] & known.keys()),
        "SASS not disassembled": len(digests["SASS"] - known.keys()),
        "contracted": sum(outcome["contracted"] for _, _, outcome in found) + len(problems),
    }


def own_form(reason: str) -> bool:
    """Whether a refusal is of a sample as OpInfo gives it, not of a further form of it."""
    return reason.startswith(("as it is: ", "non-contiguous: "))


def own_samples(outcome: dict[str, Any]) -> int:
    """Samples as OpInfo gives them that ran in kernels."""
    return sum(outcome["samples"].get(form, 0) for form in ("as it is", "non-contiguous"))


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _totals(outcomes: list[dict[str, Any]]) -> dict[str, int]:
    totals = {name: sum(outcome[name] for outcome in outcomes) for name in _COUNTED}
    return {"samples": sum(map(own_samples, outcomes)), **totals}


def _refused(found: Sequence[Any], *, own: bool) -> dict[str, Any]:
    """By reason: how many calls, and of which entries."""
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for unit, _, outcome in found:
        for reason, count in outcome["refused"].items():
            if own_form(reason) == own:
                key = reason.partition(": ")[2] if own else reason
                reasons[key][unit.entry] += count
    return {
        reason: {"samples": sum(counts.values()), "entries": dict(sorted(counts.items()))}
        for reason, counts in sorted(reasons.items())
    }


def _worst(found: Sequence[Any], what: str) -> dict[str, dict[str, float]]:
    """The largest of each op and target."""
    worst: dict[str, dict[str, float]] = {}
    for _, target, outcome in found:
        for op, value in outcome.get(what, {}).items():
            by_target = worst.setdefault(op, {})
            by_target[target] = max(by_target.get(target, 0.0), value)
    return {op: worst[op] for op in sorted(worst)}


def _entries(found: Sequence[Any]) -> dict[str, Any]:
    """Per entry: dtypes, samples, the largest error on each target, and what is refused."""
    rows: dict[str, Any] = {}
    for unit, target, outcome in found:
        row = rows.setdefault(
            unit.entry, {"dtypes": [], "samples": 0, "worst_ulp": {}, "refused": []}
        )
        if unit.dtype not in row["dtypes"]:
            row["dtypes"].append(unit.dtype)
        row["samples"] += own_samples(outcome)
        worst = max(outcome["worst_ulp"].values(), default=0.0)
        row["worst_ulp"][target] = max(row["worst_ulp"].get(target, 0.0), worst)
        for reason in outcome["refused"]:
            text = reason.partition(": ")[2]
            if own_form(reason) and text not in row["refused"]:
                row["refused"].append(text)
    return rows


def render_text(summary: dict[str, Any]) -> str:
    """A screenful."""
    required, left = summary["required"], summary["required_not_supported"]
    lines = []
    for target, totals in summary["by_target"].items():
        lines.append(
            f"{target}: {totals['samples']} samples, {totals['kernels']} kernel runs "
            f"({totals['groups']} of groups), {totals['elements']} elements: "
            f"{totals['mismatches']} mismatches, {totals['discontinuous']} at a discontinuity"
        )
    lines.append(f"required entries: {len(required) - len(left)} of {len(required)} supported")
    looked = summary["contractions"]
    lines.append(
        "contracted: " + f"{looked['contracted']} of "
        + ", ".join(f"{n} {kind}" for kind, n in looked.items() if kind != "contracted")
    )  # fmt: skip
    if summary["not_run"]:
        lines.append(f"not run: {summary['not_run']} outcomes")
    for title, key in (("", "refused"), ("further ", "refused_forms")):
        for reason, (calls, names) in opinfo_page.fold(summary[key], further=bool(title)).items():
            shown = ", ".join(names[: opinfo_page.MOST_NAMES])
            lines.append(
                f"  {calls} {title}calls of {len(names)} entries refused: {reason} ({shown})"
            )
    near = sorted(
        ((max(ulps.values()), op) for op, ulps in summary["worst_ulp"].items()), reverse=True
    )
    shown = [f"{op} {ulp:g} ULP" for ulp, op in near[:WORST_SHOWN] if ulp]
    lines.append("largest errors: " + ", ".join(shown))
    return "\n".join(lines)
