"""The report as SARIF 2.1.0, for code scanning and editors.

One rule per kind of finding, one result per finding.  A place has its physical location (columns
in UTF-16 units, left out where they are not known) and its logical ones: the notebook cell, the
function, the module.  A finding in an installed package stands at the person's own expression
that reached it, the library's line beside it.  Ignored findings are suppressed in source.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any
from urllib.parse import quote

from fusion_advisor._version import __version__
from fusion_advisor.records import Finding, OpNode, Report, SourceSpan
from fusion_advisor.report.evidence import measured_rows
from fusion_advisor.report.values import excerpt, name_text, one_line
from fusion_advisor.report.view import place_text, summarize
from fusion_advisor.rules import RULES, explain

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
WARNING_SHARE = 0.05  # of the run: from here on it is worth interrupting a review
_MAX_PATH = 4_096  # longer than any file system takes: no place that could be opened

Json = dict[str, Any]


def render_sarif(report: Report) -> str:
    """The log, of one run."""
    nodes = {node.id: node for node in report.capture.graph.nodes}
    codes = sorted(set(RULES) | {finding.rule for finding in report.findings})
    seen: dict[str, int] = {}
    results = [
        _result(report, finding, nodes, codes.index(finding.rule), seen)
        for finding in report.findings
    ]
    run: Json = {
        "tool": {
            "driver": {
                "name": "Fusion Advisor",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "automationDetails": {"id": f"fusion-advisor/{_slug(report.capture.title)}/"},
        "columnKind": "utf16CodeUnits",
        "invocations": [_invocation(report)],
        "results": results,
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1, allow_nan=False) + "\n"


def _slug(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", title[:80]).strip("-") or "run"


def _rule(code: str) -> Json:
    rule = RULES.get(code)
    if rule is None:  # of a report that another version wrote
        return {"id": name_text(code)}
    page = explain(code)
    return {
        "id": rule.code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": " ".join(rule.what_it_does.split())},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": "note"},
        "properties": {"tags": ["performance", "kernel-fusion"]},
    }


def _invocation(report: Report) -> Json:
    return {
        "executionSuccessful": True,
        "toolExecutionNotifications": [
            {"level": "note", "message": {"text": text}} for text in summarize(report).warnings
        ],
    }


# -- results -----------------------------------------------------------------------------------


def _result(
    report: Report, finding: Finding, nodes: dict[str, OpNode], index: int, seen: dict[str, int]
) -> Json:
    own, library = _places(finding, nodes)
    result: Json = {
        "ruleId": name_text(finding.rule),
        "ruleIndex": index,
        "level": "warning" if finding.share >= WARNING_SHARE else "note",
        "message": {"text": _message(finding, own, library)},
        "locations": [_location(own or library, _modules(finding, nodes))],
        "partialFingerprints": {"fusionFinding/v1": _fingerprint(finding, nodes, seen)},
        "properties": _properties(report, finding),
    }
    if own is not None and library is not None:
        beside = _location(library, ())
        beside["id"] = 1
        beside["message"] = {"text": "the ops stand here, in an installed package"}
        result["relatedLocations"] = [beside]
    if finding.ignored:
        result["suppressions"] = [
            {"kind": "inSource", "justification": "a # fuse: ignore comment at the expression"}
        ]
    return result


def _message(finding: Finding, own: SourceSpan | None, library: SourceSpan | None) -> str:
    text = f"{one_line(finding.title)}. {one_line(finding.message)}".strip()
    if own is not None and library is not None:
        text += f" In {place_text(library)}, reached from here."
    return re.sub(r"\[(?=[^\[\]]*\]\()", r"\\[", text)  # foreign text makes no link


def _places(
    finding: Finding, nodes: dict[str, OpNode]
) -> tuple[SourceSpan | None, SourceSpan | None]:
    """The person's own expression, and the library's; each ``None`` where there is none."""
    if finding.span is not None and not finding.span.installed:
        return finding.span, None
    for occurrence in finding.occurrences:
        for name in occurrence.nodes:
            stack = nodes[name].stack if name in nodes else ()
            own = next((span for span in stack if not span.installed), None)
            if own is not None:
                return own, finding.span
    return None, finding.span


def _modules(finding: Finding, nodes: dict[str, OpNode]) -> tuple[str, ...]:
    """The model's modules that it runs in, in order, the first ten."""
    found = dict.fromkeys(
        nodes[occurrence.nodes[0]].module_path
        for occurrence in finding.occurrences
        if occurrence.nodes and occurrence.nodes[0] in nodes
    )
    return tuple(path for path in found if path)[:10]


def _location(span: SourceSpan | None, modules: tuple[str, ...]) -> Json:
    location: Json = {}
    logical = [_logical("module", path) for path in modules]
    if span is not None:
        if span.function:
            logical.insert(0, _logical("function", span.function))
        if span.kind == "cell":
            logical.insert(0, _cell(span))
        if len(span.file) <= _MAX_PATH:
            location["physicalLocation"] = {
                "artifactLocation": {"uri": _uri(span)},
                "region": _region(span),
            }
    if logical:
        location["logicalLocations"] = logical
    return location or {"message": {"text": place_text(None)}}


def _logical(kind: str, name: str) -> Json:
    short = name_text(name.rpartition(".")[2]) or "?"
    return {"kind": kind, "name": short, "fullyQualifiedName": one_line(name) or "?"}


def _cell(span: SourceSpan) -> Json:
    number = "?" if span.execution_count is None else str(span.execution_count)
    known = f" (id {name_text(span.cell_id)})" if span.cell_id else ""
    return {
        "kind": "notebook cell",
        "name": f"In [{number}]",
        "fullyQualifiedName": f"notebook cell {number}{known}",
    }


def _uri(span: SourceSpan) -> str:
    """A file as its path or ``file:`` address; a cell by its id, as its file is gone tomorrow."""
    if span.kind == "cell":
        number = "unknown" if span.execution_count is None else span.execution_count
        return quote(f"cells/{name_text(span.cell_id or f'In-{number}')}.py", errors="replace")
    path = span.file.replace("\\", "/")
    if path.startswith("<"):  # compiled from a string
        return quote(f"strings/{path.strip('<>')}.py", errors="replace")
    safe = quote(path, safe="/", errors="replace")
    if path.startswith("/"):
        return f"file://{safe}"
    if re.match(r"[A-Za-z]:/", path):
        return f"file:///{path[:2]}{quote(path[2:], safe='/', errors='replace')}"
    return safe


def _region(span: SourceSpan) -> Json:
    region: Json = {
        "startLine": max(1, span.line),
        "endLine": max(1, span.line, span.end_line),
    }
    if span.utf16_column is not None and span.utf16_end_column is not None:
        region["startColumn"] = span.utf16_column + 1
        region["endColumn"] = span.utf16_end_column + 1  # the first column after it
    if span.text:
        region["snippet"] = {"text": excerpt(span.text)}
    return region


def _fingerprint(finding: Finding, nodes: dict[str, OpNode], seen: dict[str, int]) -> str:
    """The same for the same code in the next run: no folder, line, figure or finding number."""
    span = finding.span
    ops = [
        nodes[name].op
        for occurrence in finding.occurrences[:1]
        for name in occurrence.nodes
        if name in nodes
    ]
    place = ("", "", "") if span is None else (
        "" if span.kind == "cell" else span.file.replace("\\", "/").rpartition("/")[2],
        span.function,
        " ".join(span.text.split()),
    )  # fmt: skip
    text = json.dumps([finding.rule, *place, *ops])
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    seen[key] = seen.get(key, 0) + 1
    return f"{key}:{seen[key]}"


def _properties(report: Report, finding: Finding) -> Json:
    estimate = finding.estimate
    figures: Json = {
        "findingId": finding.id,
        "savedLowUs": estimate.saved_low_us,
        "savedMidUs": estimate.saved_mid_us,
        "savedHighUs": estimate.saved_high_us,
        "shareOfRun": finding.share,
        "bytesBefore": estimate.bytes_before,
        "bytesAfter": estimate.bytes_after,
        "kernelsBefore": estimate.launches_before,
        "kernelsAfter": estimate.launches_after,
        "occurrences": len(finding.occurrences),
        "limitedBy": estimate.bound,
        "safety": finding.safety,
    }
    measured = next((one for one in measured_rows(report) if one.finding == finding.id), None)
    if measured is not None:
        figures |= {
            "measuredEagerUs": measured.eager_us,
            "measuredFusedUs": measured.fused_us,
            "predictedFusedUs": measured.predicted_us,
        }
    return {
        name: value
        for name, value in figures.items()
        if not isinstance(value, float) or math.isfinite(value)
    }
