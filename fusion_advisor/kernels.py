"""From a finding to kernel text and its proof: lowering, generating, validating.

Works from a live advice and from a loaded report alike; without live tensors validation runs
on synthetic inputs and says so.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fusion_advisor import ops, workers
from fusion_advisor.codegen import generate, lower
from fusion_advisor.codegen.naming import op_base
from fusion_advisor.errors import CaptureError, UsageError, ValidationError
from fusion_advisor.fixes import runtime_scalars
from fusion_advisor.ops import functional_name, takeable_numbers
from fusion_advisor.recorder import TensorStore, parcel, replay
from fusion_advisor.recorder.source import find_cell
from fusion_advisor.records import (
    Capture,
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

VALIDATION_TIMEOUT_S = 900.0  # of the whole ladder; its parts have shorter limits of their own


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
    members = set(candidate.nodes) - set(candidate.views)
    names: dict[str, None] = {}
    for node in graph.nodes:
        if node.id in members:
            names.setdefault(op_base(functional_name(node.op)).strip("_"))
    return "_".join(["fused", *[*names][:4]])


def generate_kernel(
    graph: OpGraph,
    candidate: FusionCandidate,
    *,
    source: str = "",
    targets: tuple[Target, ...] = ("cpu", "cuda"),
    match: Literal["eager", "fast"] = "eager",
) -> KernelSource:
    """Lower a candidate and write its text.

    ``source`` is the text its ops stand in, where known: numbers that are not literals there
    become run-time arguments of the kernel, except those that an op's recipe must know.
    """
    scalars = runtime_scalars(graph, candidate, source) if source else frozenset()
    scalars = takeable_numbers(graph, scalars)
    name = kernel_name(graph, candidate)
    program = lower(graph, candidate, name=name, runtime_scalars=scalars, match=match)
    return generate(program, graph, targets=targets)


def validate_kernel(
    capture: Capture,
    candidate: FusionCandidate,
    kernel: KernelSource,
    *,
    store: TensorStore | None = None,
    targets: tuple[Target, ...] = ("cpu", "cuda"),
    measure: bool = True,
    predicted_us: float = 0.0,
    proven: ValidationResult | None = None,
    progress: Callable[[str], None] | None = None,
) -> ValidationResult:
    """Run the validation ladder on a candidate's kernel against the replayed eager ops.

    ``store`` gives the captured inputs; without it, or where the recording is not proven,
    inputs are synthetic.  ``proven`` is what this very kernel passed before, without being timed:
    only the timing is left to do.
    """
    graph = capture.graph
    inputs = tuple(operand.value for operand in candidate.inputs)
    outputs = candidate.outputs
    return validate(
        kernel,
        graph,
        candidate,
        reference=replay.subgraph(graph, candidate.computed, inputs, outputs),
        reference64=replay.subgraph(
            graph, candidate.computed, inputs, outputs, high_precision=True
        ),
        captured=captured_inputs(capture, candidate, store),
        ceilings=capture.ceilings,
        targets=targets,
        measure=measure,
        predicted_us=predicted_us,
        proven=proven,
        progress=progress,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What another process must know to validate a kernel."""

    capture: Capture
    candidate: FusionCandidate
    kernel: KernelSource
    targets: tuple[Target, ...]
    tensors: parcel.Parcel


def validate_elsewhere(
    capture: Capture,
    candidate: FusionCandidate,
    kernel: KernelSource,
    *,
    store: TensorStore | None = None,
    targets: tuple[Target, ...] = ("cpu", "cuda"),
    progress: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> ValidationResult:
    """The validation ladder without its timing, in another process.

    Nothing in this process is run or changed, so this may be called on any thread, whatever
    others do meanwhile.  The captured inputs travel along where they can; else they are
    synthetic, and the result says so.  ``stop`` is asked several times a second whether to end it.

    Raises:
        WorkerCancelled: ``stop()`` was true.
        ValidationError: the other process could not be had, or ended without a result.
    """
    members = {*candidate.computed}
    added = [n.op for n in capture.graph.nodes if n.id in members and ops.is_added(n.op)]
    if added:
        raise ValidationError(
            f"{added[0]} is registered in this process alone, so its kernel cannot be validated in "
            'another; advice.validate("F1") and advice.apply("F1") do it here'
        )
    part = _needed_part(capture, candidate)
    wanted = tuple(operand.value for operand in candidate.inputs)
    with parcel.packed(part.graph, store if _has_inputs(capture, store) else None, wanted) as sent:
        request = _Request(
            capture=part, candidate=candidate, kernel=kernel, targets=targets, tensors=sent
        )
        try:
            result: ValidationResult = workers.run_isolated(
                "fusion_advisor.kernels:validate_here",
                request,
                timeout_s=VALIDATION_TIMEOUT_S,
                on_progress=progress,
                stop=stop,
            )
        except (workers.WorkerCrash, workers.WorkerTimeout) as error:
            raise ValidationError(f"the kernel could not be validated: {error}") from error
    return result


def validate_here(request: _Request) -> ValidationResult:
    """The other process's side of ``validate_elsewhere``."""
    workers.fork_template()  # for the rungs that run the kernels on guarded memory
    with parcel.unpacked(request.tensors) as store:
        return validate_kernel(
            request.capture,
            request.candidate,
            request.kernel,
            store=store,
            targets=request.targets,
            measure=False,
            progress=workers.report_progress,
        )


def _needed_part(capture: Capture, candidate: FusionCandidate) -> Capture:
    """The recording up to the candidate, without the places in the source."""
    nodes = capture.graph.nodes
    members = set(candidate.nodes)
    last = max((at for at, node in enumerate(nodes) if node.id in members), default=-1)
    bare = tuple(replace(node, span=None, stack=()) for node in nodes[: last + 1])
    return replace(capture, graph=replace(capture.graph, nodes=bare), times=(), notes=())


def _has_inputs(capture: Capture, store: TensorStore | None) -> bool:
    return store is not None and capture.proof.status == "passed"


def captured_inputs(
    capture: Capture, candidate: FusionCandidate, store: TensorStore | None
) -> Mapping[str, Any] | None:
    """The candidate's real inputs, recomputed from the recorded program; ``None`` without them."""
    if store is None or not _has_inputs(capture, store):
        return None
    wanted = tuple(operand.value for operand in candidate.inputs)
    try:
        return replay.materialize(capture.graph, store, wanted)
    except CaptureError:  # inputs above the byte cap, or parameters trained on since
        return None
