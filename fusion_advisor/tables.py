"""Pandas views of a report: one row per finding, op, refusal or applied kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from fusion_advisor.records import Report, SourceSpan


def place(span: SourceSpan | None) -> str:
    """A span as a person would say it: ``cell [3]:4`` or ``file.py:120``."""
    if span is None:
        return ""
    if span.kind == "cell":
        number = f" [{span.execution_count}]" if span.execution_count is not None else ""
        return f"cell{number}:{span.line}"
    return f"{span.file}:{span.line}"


def findings_table(report: Report) -> pandas.DataFrame:
    """Findings, best first; times in us over all occurrences, ``share`` of the run in 0..1."""
    rows = [
        {
            "id": finding.id,
            "rule": finding.rule,
            "title": finding.title,
            "times": len(finding.occurrences),
            "ops": len(finding.occurrences[0].nodes) - len(finding.occurrences[0].views),
            "share": finding.share,
            "saved_low_us": finding.estimate.saved_low_us,
            "saved_mid_us": finding.estimate.saved_mid_us,
            "saved_high_us": finding.estimate.saved_high_us,
            "bytes_before": finding.estimate.bytes_before,
            "bytes_after": finding.estimate.bytes_after,
            "launches_before": finding.estimate.launches_before,
            "launches_after": finding.estimate.launches_after,
            "bound": finding.estimate.bound,
            "safety": finding.safety,
            "ignored": finding.ignored,
            "where": place(finding.span),
            "expression": finding.span.text if finding.span else "",
        }
        for finding in report.findings
    ]
    columns = list(rows[0]) if rows else ["id", "rule", "title", "share", "where"]
    return pandas.DataFrame(rows, columns=columns).set_index("id")


def ops_table(report: Report) -> pandas.DataFrame:
    """Dispatched ops in order, with measured times (us) and the finding each belongs to."""
    times = {time.node: time for time in report.capture.times}
    bounds = dict(report.bounds)
    owner = {
        node: finding.id
        for finding in report.findings
        for candidate in finding.occurrences
        for node in candidate.nodes
    }
    specs = {spec.id: spec for spec in report.capture.graph.values}
    rows = []
    for node in report.capture.graph.nodes:
        time = times.get(node.id)
        first = specs.get(node.outputs[0]) if node.outputs else None
        rows.append(
            {
                "node": node.id,
                "op": node.op,
                "kind": node.kind,
                "phase": node.phase,
                "host_us": time.host_us if time else None,
                "device_us": time.device_us if time else None,
                "bound": bounds.get(node.id, "unknown"),
                "dtype": first.dtype if first else "",
                "shape": first.shape if first else (),
                "module": node.module_path,
                "where": place(node.span),
                "expression": node.span.text if node.span else "",
                "finding": owner.get(node.id, ""),
            }
        )
    columns = list(rows[0]) if rows else ["node", "op", "kind"]
    return pandas.DataFrame(rows, columns=columns).set_index("node")


def why_not_table(report: Report) -> pandas.DataFrame:
    """Neighbours that are not fused, each with its code and reason."""
    rows = [
        {"code": blocker.code, "nodes": " → ".join(blocker.nodes), "reason": blocker.message}
        for blocker in report.why_not
    ]
    return pandas.DataFrame(rows, columns=["code", "nodes", "reason"])


def stats_table(statistics: Mapping[str, Sequence[tuple[str, int, Mapping[str, int]]]]) -> Any:
    """Per applied kernel: fused calls and fallbacks by reason.

    ``statistics`` maps a finding id to (function name, fused calls, fallbacks by reason).
    """
    rows = [
        {
            "finding": finding,
            "kernel": name,
            "fused_calls": fused,
            "fallbacks": sum(fallbacks.values()),
            "reasons": "; ".join(f"{reason} ×{count}" for reason, count in fallbacks.items()),
        }
        for finding, entries in statistics.items()
        for name, fused, fallbacks in entries
    ]
    columns = ["finding", "kernel", "fused_calls", "fallbacks", "reasons"]
    return pandas.DataFrame(rows, columns=columns)
