"""What the notebook's front end is told, as plain data for JSON (docs/notebook-protocol.md)."""

from __future__ import annotations

import math
from typing import Any, Literal

from fusion_advisor.jupyter.marks import Mark, utf16_length
from fusion_advisor.jupyter.profiles import NOWHERE, Profile, Profiles, State
from fusion_advisor.records import (
    Finding,
    KernelSource,
    Report,
    Rung,
    TextEdit,
    TimingPair,
    ValidationResult,
)
from fusion_advisor.report.values import printable
from fusion_advisor.report.view import advice_only
from fusion_advisor.rules import RULES

MAX_TEXT = 20_000  # characters of a title or message: names of modules and ops can be any length
Data = dict[str, Any]


def findings_data(profiles: Profiles, *, revision: int, busy: bool) -> Data:
    """Every profile and finding as it is now, best findings of the latest profile first."""
    shown = profiles.shown()
    rows = [
        (profile, finding, state, reason)
        for profile, findings in shown
        for finding, state, reason in findings
    ]
    rows.sort(key=lambda row: (-row[1].share, -row[0].number))
    return {
        "type": "findings",
        "revision": revision,
        "busy": busy,
        "profiles": [profile_data(profile) for profile, _ in shown],
        "findings": [finding_data(*row) for row in rows],
    }


def profile_data(profile: Profile) -> Data:
    """The run as a whole: time, ratios, what fusing would save."""
    report = profile.advice.report
    ratios = {one.name: one.fused_ops / one.ops if one.ops else 0.0 for one in report.ratios}
    saved = [finding.estimate for finding in report.findings if not finding.ignored]
    before, after = report.bytes_before, report.bytes_after
    return {
        "advice": profile.number,
        "cell_id": profile.cell_id,
        "title": _short(report.capture.title),
        "wall_us": _number(report.wall_us or report.capture.wall_us),
        "ratio_now": ratios.get("as it is", 0.0),
        "ratio_plan": ratios.get("plan", 0.0),
        "bytes_saved_share": 1 - after / before if before else 0.0,
        "saved_us": {
            "low": _number(sum(one.saved_low_us for one in saved)),
            "mid": _number(sum(one.saved_mid_us for one in saved)),
            "high": _number(sum(one.saved_high_us for one in saved)),
        },
        "nothing": _short(report.nothing),
    }


def finding_data(profile: Profile, finding: Finding, state: State, reason: str) -> Data:
    """One finding: what, how much, where, and what can be done about it."""
    place = profile.places.get(finding.id, NOWHERE)
    rule = RULES.get(finding.rule)
    estimate = finding.estimate
    refusal = advice_only(finding)
    kind = place_kind(finding)
    return {
        "id": finding.id,
        "advice": profile.number,
        "rule": finding.rule,
        "rule_title": finding.rule if rule is None else rule.title,
        "title": _short(finding.title),
        "message": _short(finding.message),
        "state": state,
        "state_reason": _short(reason),
        "share": _number(finding.share),
        "saved_us": {
            "low": _number(estimate.saved_low_us),
            "mid": _number(estimate.saved_mid_us),
            "high": _number(estimate.saved_high_us),
        },
        "occurrences": len(finding.occurrences),
        "safety": finding.safety,
        "fusable": not refusal,
        "reason": _short(refusal),
        "place": kind,
        "mark": _mark_data(place.mark),
        "inside": _inside_data(finding),
        "actions": actions(finding, state, kind, marked=place.mark is not None),
    }


def place_kind(finding: Finding) -> Literal["cell", "file", "installed", "none"]:
    """Where the chain itself stands."""
    span = finding.span
    if span is None:
        return "none"
    if span.kind == "cell":
        return "cell"
    if span.file.startswith("<"):  # compiled from a string, as %%time does with the cell's text
        return "none"
    return "installed" if span.installed else "file"


def actions(finding: Finding, state: State, kind: str, *, marked: bool) -> list[str]:
    """What a person may ask for, first what is most useful at this place."""
    if state == "applied":
        # What is in place only live is gone after a restart: the ways to keep it stay open.
        keep = ["reapply_cell", "export_module"] if kind in ("file", "installed") else []
        return ["undo", *keep, "explain"]
    if state == "stale":
        return ["explain"]
    found = []
    if not advice_only(finding):
        # At the top level of a cell there is no function whose code could be swapped.
        live = ["apply_live"] if finding.span is None or finding.span.function else []
        found += {
            "cell": ["fuse", *live],
            "file": ["apply_live", "edit_file", "reapply_cell", "export_module"],
            "installed": ["reapply_cell", "apply_live", "export_module"],
            "none": live,
        }[kind]
    return [*found, "explain", *(["ignore"] if marked and state == "open" else [])]


def rungs_data(rungs: tuple[Rung, ...]) -> list[Data]:
    """The steps of a validation."""
    return [
        {
            "name": rung.name,
            "status": rung.status,
            "detail": _short(rung.detail),
            "seconds": _number(rung.seconds),
        }
        for rung in rungs
    ]


def cuda_data(result: ValidationResult) -> Data:
    """The two rungs that speak of the CUDA kernel where there is no GPU, one line each."""
    compiled = [rung for rung in result.rungs if rung.name.startswith("compile for")]
    native = [rung for rung in result.rungs if rung.name == "CUDA kernel, run natively"]
    return {
        "compile": "; ".join(_rung_line(rung) for rung in compiled) or "not run",
        "native_ir": "; ".join(_rung_line(rung) for rung in native) or "not run",
    }


def timing_data(result: ValidationResult | None) -> Data | None:
    """Eager and fused times of one call, where they were measured."""
    pair = None if result is None else last_timing(result)
    if pair is None:
        return None
    return {"eager_us": _number(pair.eager_us), "fused_us": _number(pair.fused_us)}


def last_timing(result: ValidationResult) -> TimingPair | None:
    """The latest measurement, if there is one."""
    return result.timings[-1] if result.timings else None


def edits_data(source: str, edits: tuple[TextEdit, ...]) -> list[Data]:
    """Edits of ``source`` in UTF-16 units."""
    return [
        {
            "start": utf16_length(source[: edit.start]),
            "end": utf16_length(source[: edit.end]),
            "new": edit.new,
        }
        for edit in sorted(edits, key=lambda one: (one.start, one.end))
    ]


def why_not_data(finding: Finding) -> list[Data]:
    """Why the chain ends where it ends."""
    blockers = finding.occurrences[0].blockers if finding.occurrences else ()
    return [{"code": one.code, "message": _short(one.message)} for one in blockers]


def kernel_text(report: Report, finding_id: str) -> str:
    """The text of a finding's kernel, once there is one."""
    kernel: KernelSource | None = dict(report.kernels).get(finding_id)
    return "" if kernel is None else kernel.text


def _rung_line(rung: Rung) -> str:
    return f"{rung.name}: {rung.status}" + (f", {_short(rung.detail)}" if rung.detail else "")


def _mark_data(mark: Mark | None) -> Data | None:
    if mark is None:
        return None
    return {
        "cell_id": mark.cell_id,
        "start": mark.start,
        "end": mark.end,
        "text": mark.text,
        "source_hash": mark.source_hash,
    }


def _inside_data(finding: Finding) -> Data | None:
    span = finding.span
    if span is None or span.kind == "cell":
        return None
    return {
        "file": span.file,
        "line": span.line,
        "function": _short(span.function),
        "text": _short(span.text),
    }


def _number(value: float) -> float:
    """JSON knows no infinity and no NaN."""
    return float(value) if math.isfinite(value) else 0.0


def _short(text: str) -> str:
    return printable(text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…")
