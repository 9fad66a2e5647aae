"""The few figures of a run that are worth keeping beside the code, and their file.

Read from a whole report too.  A baseline is small, sorted text: it reads well in a diff.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

from fusion_advisor._version import __version__
from fusion_advisor.errors import ReportError
from fusion_advisor.record_codecs import MismatchError, record_codec
from fusion_advisor.records import Report
from fusion_advisor.report.values import name_text
from fusion_advisor.report.view import counted, ignored, launches
from fusion_advisor.serialize import FORMAT as REPORT_FORMAT
from fusion_advisor.serialize import load_report

BASELINE_FORMAT = "fusion-advisor-baseline"
BASELINE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What makes times comparable: the same names, and ceilings near each other."""

    cpu: str
    threads: int
    devices: tuple[str, ...]
    device: str  # the one the ceilings are of
    bandwidth_gb_per_s: float  # of the largest working set; 0 where it was not measured
    dispatch_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is compared of a run."""

    title: str
    backward: bool
    estimated_for: str  # a device that is not here, or empty
    modules: tuple[str, ...]  # the model's outermost modules
    inputs: tuple[str, ...]  # of the call, parameters left out
    fused_ops: int
    ops: int
    bytes: int
    kernels: int
    findings: tuple[tuple[str, int], ...]  # by rule; ignored ones left out
    ignored: int
    wall_us: float
    wall_spread_us: float
    machine: Machine

    @property
    def ratio(self) -> float:
        """Ops in fused kernels over all compute ops, of the run as it is."""
        return self.fused_ops / self.ops if self.ops else 0.0


def figures_of(report: Report) -> Figures:
    """The figures of a report."""
    capture = report.capture
    graph, ceilings, environment = capture.graph, capture.ceilings, capture.environment
    now = next((one for one in report.ratios if one.name == "as it is"), None)
    values = {spec.id: spec for spec in graph.values}
    return Figures(
        title=capture.title,
        backward=capture.with_backward,
        estimated_for=report.device.name if report.device is not None else "",
        modules=tuple(sorted({_outermost(node.module_path) for node in graph.nodes} - {""})),
        inputs=tuple(
            f"{spec.dtype} {'×'.join(map(str, spec.shape)) or 'scalar'}"
            for spec in (values[name] for name in graph.inputs)
            if "parameter" not in spec.flags
        ),
        fused_ops=now.fused_ops if now is not None else 0,
        ops=now.ops if now is not None else 0,
        bytes=report.bytes_before,
        kernels=launches(report)[0],
        findings=tuple(sorted(Counter(finding.rule for finding in counted(report)).items())),
        ignored=len(ignored(report)),
        wall_us=capture.wall_us,
        wall_spread_us=capture.wall_spread_us,
        machine=Machine(
            cpu=environment.cpu,
            threads=environment.threads,
            devices=environment.devices,
            device=ceilings.name if ceilings is not None else "",
            bandwidth_gb_per_s=ceilings.bandwidth[-1].gb_per_s
            if ceilings is not None and ceilings.bandwidth
            else 0.0,
            dispatch_us=ceilings.dispatch_us if ceilings is not None else 0.0,
        ),
    )


def _outermost(path: str) -> str:
    return path.partition(".")[0]


def dump_baseline(figures: Figures) -> str:
    """The text of a baseline file."""
    document = {
        "format": BASELINE_FORMAT,
        "schema_version": BASELINE_VERSION,
        "written_by": __version__,
        "figures": record_codec(Figures).encode(figures, None),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def load_baseline(text: str) -> Figures:
    """The figures of a baseline file or of a whole report.

    Raises:
        ReportError: neither of the two, a damaged one, or one of a newer schema.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(f"this is no baseline: no valid JSON ({error})") from None
    if isinstance(document, dict) and document.get("format") == REPORT_FORMAT:
        return figures_of(load_report(text))
    if not isinstance(document, dict) or document.get("format") != BASELINE_FORMAT:
        raise ReportError("this is no baseline: make one with fusion-advisor gate --write-baseline")
    if document.get("schema_version") != BASELINE_VERSION:
        raise ReportError(
            f"this baseline has schema {name_text(str(document.get('schema_version')))}; this is "
            f"Fusion Advisor {__version__} (schema {BASELINE_VERSION}): write it again with "
            "--write-baseline"
        )
    try:
        figures: Figures = record_codec(Figures).decode(document.get("figures"), None)
    except MismatchError as mismatch:
        raise ReportError(f"this baseline is damaged at {mismatch.describe('figures')}") from None
    _check_possible(figures)
    return figures


def _check_possible(figures: Figures) -> None:
    """Refuse figures that no run has: against them everything is worse, or nothing."""
    numbers = {
        name: getattr(record, name)
        for record, names in (
            (figures, ("fused_ops", "ops", "bytes", "kernels", "wall_us", "wall_spread_us")),
            (figures.machine, ("bandwidth_gb_per_s", "dispatch_us")),
        )
        for name in names
    }
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise ReportError(f"this baseline is damaged at figures: {name} cannot be {value}")
    if figures.fused_ops > figures.ops:
        raise ReportError("this baseline is damaged at figures: fused_ops are more than ops")
