"""The report as versioned JSON: without loss, read back by ``serialize.load_report``."""

from __future__ import annotations

from fusion_advisor.records import Report
from fusion_advisor.serialize import dump_report


def render_json(report: Report) -> str:
    """The whole report as JSON text."""
    return dump_report(report)
