"""Findings and ops as CSV (RFC 4180), safe to open in a spreadsheet.

A cell of text that a spreadsheet would take for a formula is written behind an apostrophe.
Numbers are in the unit that the column name ends in; an unknown one is an empty cell.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from fusion_advisor.analysis.traffic import op_bytes
from fusion_advisor.records import Report, SourceSpan
from fusion_advisor.report.evidence import measured_rows
from fusion_advisor.report.values import printable, shortened
from fusion_advisor.report.view import FindingView, finding_views

Cell = str | int | float | bool | None
# Full-width forms too: some spreadsheets read them as the ASCII ones.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")

_FINDING_COLUMNS = (
    "finding", "rule", "title", "state", "ignored", "safety", "times", "ops", "share",
    "saved_low_us", "saved_mid_us", "saved_high_us", "time_before_us", "time_after_mid_us",
    "textbook_before_us", "textbook_after_us", "bytes_before", "bytes_after", "launches_before",
    "launches_after", "flops", "limited_by", "measured_target", "measured_eager_us",
    "measured_fused_us", "predicted_fused_us", "file", "cell", "line", "end_line", "function",
    "installed", "expression", "message",
)  # fmt: skip
_OP_COLUMNS = (
    "op_id", "op", "kind", "phase", "device", "host_us", "device_us", "kernels", "bytes_read",
    "bytes_written", "limited_by", "dtype", "shape", "module_path", "module_class", "finding",
    "ignored", "file", "cell", "line", "function", "expression",
)  # fmt: skip


def render_findings_csv(report: Report) -> str:
    """One row per finding, best first, the ignored ones last."""
    measured = {one.finding: one for one in reversed(measured_rows(report))}  # the first counts
    rows = []
    for view in finding_views(report):
        one = measured.get(view.id)
        timed: tuple[Cell, ...] = (
            (one.target, one.eager_us, one.fused_us, one.predicted_us or None)
            if one is not None
            else (None, None, None, None)
        )
        rows.append((*_finding_cells(view), *timed, *_place(view.finding.span, ends=True),
                     view.finding.message))  # fmt: skip
    return _written(_FINDING_COLUMNS, rows)


def _finding_cells(view: FindingView) -> tuple[Cell, ...]:
    finding, estimate = view.finding, view.estimate
    return (
        finding.id, finding.rule, finding.title, view.state, finding.ignored, finding.safety,
        view.count, len(view.ops), finding.share, estimate.saved_low_us, estimate.saved_mid_us,
        estimate.saved_high_us, estimate.time_before_us, estimate.time_after_mid_us,
        estimate.textbook_before_us, estimate.textbook_after_us, estimate.bytes_before,
        estimate.bytes_after, estimate.launches_before, estimate.launches_after, estimate.flops,
        estimate.bound,
    )  # fmt: skip


def render_ops_csv(report: Report) -> str:
    """One row per dispatched op, in the order it ran."""
    graph = report.capture.graph
    times = {time.node: time for time in report.capture.times}
    bounds, moved = dict(report.bounds), op_bytes(graph)
    values = {spec.id: spec for spec in graph.values}
    owner = {
        node: finding
        for finding in report.findings
        for candidate in finding.occurrences
        for node in candidate.nodes
    }
    rows = []
    for node in graph.nodes:
        time, finding = times.get(node.id), owner.get(node.id)
        first = values.get(node.outputs[0]) if node.outputs else None
        read, written = moved[node.id]
        rows.append(
            (
                node.id, node.op, node.kind, node.phase, node.device,
                time.host_us if time else None, time.device_us if time else None,
                time.kernels if time else None,
                read, written, bounds.get(node.id, "unknown"),
                first.dtype if first else "", "x".join(map(str, first.shape)) if first else "",
                node.module_path, node.module_class,
                finding.id if finding else "", finding.ignored if finding else None,
                *_place(node.span, ends=False),
            )
        )  # fmt: skip
    return _written(_OP_COLUMNS, rows)


def _place(span: SourceSpan | None, *, ends: bool) -> tuple[Cell, ...]:
    """File, cell number, line (and last line), function, (installed,) expression."""
    if span is None:
        return ("", None, None, None, "", None, "") if ends else ("", None, None, "", "")
    cell = span.kind == "cell"
    file = "" if cell else span.file
    number = span.execution_count if cell else None
    if ends:
        return (
            file, number, span.line, span.end_line, span.function, span.installed, span.text,
        )  # fmt: skip
    return (file, number, span.line, span.function, span.text)


def _written(columns: tuple[str, ...], rows: Sequence[tuple[Cell, ...]]) -> str:
    """Rows with a header, lines ended by CR LF."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return stream.getvalue()


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, int):
        return str(value)
    text = printable(shortened(value))
    return f"'{text}" if text.startswith(_FORMULA) else text
