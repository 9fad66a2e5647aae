"""From a finding to kernel text and its proof: lowering, generating, validating.

Works from a live advice and from a loaded report alike; without live tensors validation runs
on synthetic inputs and says so.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping
from typing import Any

from fusion_advisor.capture import TensorStore, replay
from fusion_advisor.capture.source import find_cell
from fusion_advisor.codegen import generate, lower
from fusion_advisor.errors import UsageError
from fusion_advisor.fixes import runtime_scalars
from fusion_advisor.ops import functional_name
from fusion_advisor.records import (
    Finding,
    FusionCandidate,
    KernelSource,
    OpGraph,
    Report,
    SourceSpan,
    Target,
    ValidationResult,
)
from fusion_advisor.validation import validate

Progress = Callable[[str, float], None]


def source_text(span: SourceSpan | None) -> str:
    """The raw text of the cell or file a span lies in; empty where it cannot be had."""
    if span is None:
        return ""
    if span.kind == "cell":
        cell = find_cell(span.file)
        return "".join(cell.lines) if cell is not None else "".join(linecache.getlines(span.file))
    return "".join(linecache.getlines(span.file))


def finding_of(report: Report, finding_id: str) -> Finding:
    """The finding called ``finding_id`` in any case; ``UsageError`` names those there are."""
    for finding in report.findings:
        if finding.id.lower() == finding_id.strip().lower():
            return finding
    known = ", ".join(finding.id for finding in report.findings) or "none"
    raise UsageError(f"there is no finding {finding_id!r} here (there are: {known})")


def kernel_name(graph: OpGraph, candidate: FusionCandidate) -> str:
    """``fused_`` and the group's distinct ops in order, at most four (``fused_pow_mul_add``)."""
    members = set(candidate.nodes)
    names: dict[str, None] = {}
    for node in graph.nodes:
        if node.id in members:
            names.setdefault(functional_name(node.op).split(".")[1].strip("_"))
    short = [re.sub(r"\W+", "_", name) for name in names][:4]
    return "_".join(["fused", *short])


def generate_kernel(
    report: Report, finding: Finding, *, targets: tuple[Target, ...] = ("cpu", "cuda")
) -> KernelSource:
    """Lower a finding's first occurrence and write its text."""
    graph, candidate = report.capture.graph, finding.occurrences[0]
    scalars = runtime_scalars(graph, candidate, source_text(finding.span))
    program = lower(graph, candidate, name=kernel_name(graph, candidate), runtime_scalars=scalars)
    return generate(program, graph, targets=targets)


def validate_kernel(
    report: Report,
    finding: Finding,
    kernel: KernelSource,
    *,
    store: TensorStore | None = None,
    targets: tuple[Target, ...] = ("cpu", "cuda"),
    measure: bool = True,
    progress: Progress | None = None,
) -> ValidationResult:
    """Run the validation ladder on a finding's kernel against the replayed eager ops."""
    graph, candidate = report.capture.graph, finding.occurrences[0]
    inputs = tuple(operand.value for operand in candidate.inputs)
    outputs = candidate.outputs
    predicted_us = finding.estimate.time_after_mid_us / max(len(finding.occurrences), 1)
    return validate(
        kernel,
        graph,
        candidate,
        reference=replay.subgraph(graph, candidate.nodes, inputs, outputs),
        reference64=replay.subgraph(graph, candidate.nodes, inputs, outputs, high_precision=True),
        captured=captured_inputs(report, candidate, store),
        ceilings=report.capture.ceilings,
        targets=targets,
        measure=measure,
        predicted_us=predicted_us,
        progress=_by_rung(finding.id, progress),
    )


def _by_rung(finding_id: str, progress: Progress | None) -> Callable[[str], None] | None:
    if progress is None:
        return None
    seen: list[str] = []

    def step(rung: str) -> None:
        seen.append(rung)
        # The ladder's length depends on the machine; ten rungs is the usual climb.
        progress(f"validating {finding_id}: {rung}", min(0.95, len(seen) / 10))

    return step


def captured_inputs(
    report: Report, candidate: FusionCandidate, store: TensorStore | None
) -> Mapping[str, Any] | None:
    """The candidate's real inputs, recomputed from the recorded program; ``None`` without them."""
    if store is None or report.capture.proof.status != "passed":
        return None
    wanted = tuple(operand.value for operand in candidate.inputs)
    return replay.materialize(report.capture.graph, store, wanted)
