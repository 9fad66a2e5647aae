"""Records to versioned JSON and back, without loss.

In a report, source spans (the same few lines named by thousands of ops) are
stored once and referred to by number.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

from fusion_advisor import records
from fusion_advisor._version import __version__
from fusion_advisor.errors import ReportError
from fusion_advisor.record_codecs import MismatchError, SharedSpans, decode_items, record_codec
from fusion_advisor.records import SCHEMA_VERSION, Report, SourceSpan

FORMAT = "fusion-advisor-report"

Record = TypeVar("Record")
JsonValue = Any  # what the json module reads and writes


def to_data(record: object) -> JsonValue:
    """Plain JSON data (dicts, lists, numbers, strings) of one record from ``records``.

    Raises:
        ReportError: the object is no record, or a field holds what its type does not allow.
    """
    if type(record).__module__ != records.__name__ or not dataclasses.is_dataclass(record):
        raise ReportError(f"{type(record).__name__} is not a Fusion Advisor record.")
    try:
        return record_codec(type(record)).encode(record, None)
    except MismatchError as mismatch:
        raise ReportError(f"Cannot save {mismatch.describe(type(record).__name__)}.") from None


def from_data(cls: type[Record], data: JsonValue) -> Record:
    """The record of class ``cls`` that ``to_data`` turned into ``data``.

    Raises:
        ReportError: ``data`` does not fit; the message names the place.
    """
    try:
        return typing.cast(Record, record_codec(cls).decode(data, None))
    except MismatchError as mismatch:
        raise ReportError(f"Damaged data at {mismatch.describe(cls.__name__)}.") from None
    except RecursionError:
        raise ReportError("Damaged data: nested too deeply.") from None


def dump_report(report: Report) -> str:
    """The report as one JSON document; ``load_report`` gives back an equal report.

    Raises:
        ReportError: a field holds what its type does not allow.
    """
    shared = SharedSpans()
    try:
        body = record_codec(Report).encode(report, shared)
    except MismatchError as mismatch:
        raise ReportError(f"Cannot save {mismatch.describe('report')}.") from None
    document = {
        "format": FORMAT,
        "schema_version": report.schema_version,
        "written_by": __version__,
        "spans": [to_data(span) for span in shared.spans],
        "report": body,
    }
    # ASCII only: a lone surrogate from a person's source text survives any file encoding.
    return json.dumps(document, separators=(",", ":"), allow_nan=False)


def load_report(text: str) -> Report:
    """The report written by ``dump_report``.

    Raises:
        ReportError: not a report, a damaged one (the message names the place), or one
            written by a newer version of Fusion Advisor.
    """
    document = _parse(text)
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise ReportError("This report is damaged: it has no schema version.")
    if version > SCHEMA_VERSION:
        writer = str(document.get("written_by", "a newer version"))[:40]
        raise ReportError(
            f"This report was written by Fusion Advisor {writer} (schema {version}); this is "
            f"{__version__} (schema {SCHEMA_VERSION}). Run: pip install --upgrade fusion-advisor"
        )
    try:
        plain = record_codec(SourceSpan).decode
        spans = decode_items(document.get("spans"), None, plain)
        report: Report = record_codec(Report).decode(
            document.get("report"), SharedSpans(list(spans))
        )
    except MismatchError as mismatch:
        raise ReportError(f"This report is damaged at {mismatch.describe('report')}.") from None
    except RecursionError:
        raise ReportError("This report is damaged: nested too deeply.") from None
    _check_references(report)
    return report


def _parse(text: str) -> dict[str, JsonValue]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"This is not a report: no valid JSON ({error}).") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ReportError(
            "This is not a Fusion Advisor report. Save one with advice.export('report.json')."
        )
    return document


# In the ids that kernels over several places give to ops and values; recorded ones have none.
_TELLS_REPEATS = frozenset("@#")


def _check_references(report: Report) -> None:
    """Refuse a report whose parts name ops or values that it does not hold."""
    graph = report.capture.graph
    nodes = {node.id for node in graph.nodes}
    values = {value.id for value in graph.values}

    def known(names: Iterable[str], among: set[str], what: str) -> None:
        unknown = next((name for name in names if name not in among), None)
        if unknown is not None:
            raise ReportError(f"This report is damaged: {what} names {unknown!r}, not in it.")

    for name in (*nodes, *values):
        if _TELLS_REPEATS.intersection(name):
            raise ReportError(
                f"This report is damaged: the id {name!r} has an @ or #, which tell repeated ids "
                "apart."
            )
    for node in graph.nodes:
        known((*node.inputs, *node.outputs, *node.mutates), values, f"op {node.id}")
    known((*graph.inputs, *graph.outputs), values, "the graph")
    known((time.node for time in report.capture.times), nodes, "a time")
    occurrences = [item for finding in report.findings for item in finding.occurrences]
    for candidate in (*report.candidates, *occurrences):
        name = f"candidate {candidate.id}"
        known((*candidate.computed, *candidate.views), nodes, name)
        operands = (operand.value for operand in candidate.inputs)
        known((*operands, *candidate.outputs, *candidate.saved), values, name)
        for region in candidate.regions:
            known(region.outputs, values, name)
            for access in region.accesses:
                known((access.value, *access.views), values, name)
    known((node for node, _ in report.bounds), nodes, "a bound")
    findings = {finding.id for finding in report.findings}
    for named in (report.kernels, report.validations, report.fixes):
        known((name for name, _ in named), findings, "a kernel, validation or fix")
    if len(report.estimates) != len(report.candidates):
        raise ReportError("This report is damaged: estimates and candidates do not pair up.")
