"""From candidates to advice: which are worth it end to end, counted once per source place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fusion_advisor.analysis.cost import CostModel, add_estimates
from fusion_advisor.analysis.graph_index import GraphIndex
from fusion_advisor.ops.views import size_free
from fusion_advisor.quantities import bytes_text, percent_text, plural, time_text
from fusion_advisor.records import (
    CostEstimate,
    Finding,
    FusionCandidate,
    OpNode,
    Safety,
    SourceSpan,
    ValueRef,
    Verdict,
)

MIN_SAVING_US = 2.0  # less than one eager dispatch: not worth a line of code
# A busy machine spreads the run's time widely, yet says little about the ops' own times: the noise
# never hides more than this share of the run.
NOISE_LIMIT = 0.01
MIN_SHARE = 0.002  # of the run's wall time; two runs of a program differ by more
# The standard error of a median of about 15 runs is a quarter of their interquartile range.
NOISE_OF_SPREAD = 0.25
# Overheads a chain's own time must exceed for its length, not its launches, to matter.
LONG_ENOUGH_CALLS = 2.0

ProgramKey = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The least saving that is reported, in us, and where it comes from."""

    us: float
    reason: str


def threshold(
    wall_us: float,
    wall_spread_us: float,
    *,
    min_saving_us: float = MIN_SAVING_US,
    min_share: float = MIN_SHARE,
) -> Threshold:
    """What a finding must save over the whole run to be above noise."""
    noise = min(NOISE_OF_SPREAD * wall_spread_us, NOISE_LIMIT * wall_us)
    choices = (
        (min_saving_us, "an eager dispatch takes as long"),
        (min_share * wall_us, f"{percent_text(min_share)} of the run"),
        (noise, "the noise of the run's own time"),
    )
    us, reason = max(choices)
    return Threshold(us=us, reason=reason)


def find_findings(
    model: CostModel,
    candidates: Sequence[FusionCandidate],
    *,
    ids: Iterator[str],
    wall_us: float,
    least: Threshold,
) -> tuple[tuple[Finding, ...], float]:
    """Findings above the threshold, best first, and the largest saving seen (us, may be < 0).

    Candidates are those restricted to one frame; only forward ones are advised, because nothing
    in the person's source runs the backward's ops one by one.
    """
    index = model.index
    programs: dict[ProgramKey, list[FusionCandidate]] = {}
    for candidate in candidates:
        if in_forward(index, candidate):
            programs.setdefault(program_key(index, candidate), []).append(candidate)
    best = float("-inf")
    chosen: list[tuple[CostEstimate, ProgramKey]] = []
    for key, group in programs.items():
        total = add_estimates([model.estimate(candidate) for candidate in group])
        best = max(best, total.saved_mid_us)
        if total.saved_mid_us >= least.us:
            chosen.append((total, key))
    chosen.sort(key=lambda item: -item[0].saved_mid_us)
    ways = Counter(_ops_of(key) for key in programs)
    findings = tuple(
        _with_results_named(
            index,
            make_finding(model, programs[key], total, name=next(ids), wall_us=wall_us),
            ways[_ops_of(key)],
        )
        for total, key in chosen
    )
    return findings, best


def in_forward(index: GraphIndex, candidate: FusionCandidate) -> bool:
    """Whether the candidate's ops are the forward's."""
    return index.nodes[index.positions[candidate.nodes[0]]].phase == "forward"


def _ops_of(key: ProgramKey) -> ProgramKey:
    """The part of a program's key that says which ops run where, not which results are needed."""
    steps, operands, _, rank = key
    return (steps, operands, rank)


def _with_results_named(index: GraphIndex, finding: Finding, ways: int) -> Finding:
    """The finding, told apart from others of the same ops whose other results are needed.

    So it is where a model is called several times and autograd's graph of one call is gone at the
    end: what it kept for backward may have been read where no op shows it.
    """
    if ways == 1:
        return finding
    made = [index.nodes[index.maker_of(v)].op for v in finding.occurrences[0].outputs]
    note = (
        f"these ops run here as {ways} programs, which differ in the results that are needed "
        f"outside: in this one those of {' and '.join(map(op_name, made))}"
    )
    return replace(finding, notes=(*finding.notes, note))


def program_key(index: GraphIndex, candidate: FusionCandidate) -> ProgramKey:
    """Equal for occurrences of one program from one source place.

    The place is every op's file, function and expression; the program is the ops, their dtypes,
    how they are wired and how each operand is broadcast.  Sizes do not count: they are run-time
    values of a kernel.
    """
    names: dict[str, int] = {}
    steps: list[object] = []
    nodes, positions, values = index.nodes, index.positions, index.values
    for node_id in candidate.nodes:
        node = nodes[positions[node_id]]
        span = node.span
        steps.append(node.op)
        if span is None:
            steps.append(node.module_class)
        else:
            steps += (span.file, span.function, span.line, span.column, span.text)
        for value in node.inputs:
            steps.append(names.setdefault(value, len(names)))
        for result in node.outputs:
            names.setdefault(result, len(names))
            steps.append(values[result].dtype)
        if candidate.views:  # how a kernel indexes, and its numbers, are written into its text
            steps.append(_plain_arguments(index, node))
    operands = tuple(
        (names.get(operand.value), operand.dims, index.values[operand.value].dtype)
        for operand in candidate.inputs
    )
    steps += [
        (names.get(access.value), access.steps, access.dims)
        for region in candidate.regions
        for access in region.accesses
    ]
    outputs = tuple(names[value] for value in candidate.outputs)
    return (tuple(steps), operands, outputs, len(candidate.shape))


def _plain_arguments(index: GraphIndex, node: OpNode) -> str:
    """What the op is given besides tensors, without the sizes that may change."""
    if node.kind == "view" and node.inputs:
        shapes = [index.values[value].shape for value in (node.inputs[0], node.outputs[0])]
        node = size_free(node, *shapes)
    plain = [argument for argument in node.args if not isinstance(argument, ValueRef)]
    return repr((node.op, plain, node.kwargs))


def make_finding(
    model: CostModel,
    occurrences: Sequence[FusionCandidate],
    total: CostEstimate,
    *,
    name: str,
    wall_us: float,
) -> Finding:
    """The record of one program and all its occurrences."""
    index = model.index
    shown = occurrences[0]
    span = widest_span([index.nodes[index.positions[node]].span for node in shown.nodes])
    return Finding(
        id=name,
        rule=rule_code(index, shown, span),
        title=_title(index, shown),
        message=_message(index, shown, total, len(occurrences)),
        span=span,
        occurrences=tuple(occurrences),
        estimate=total,
        share=max(0.0, total.saved_mid_us / wall_us) if wall_us > 0 else 0.0,
        verdicts=verdicts(model, shown, total, len(occurrences)),
        safety=_safety(index, shown),
        notes=_notes(index, shown, total),
    )


def widest_span(spans: Sequence[SourceSpan | None]) -> SourceSpan | None:
    """The span that reaches furthest: of ``a * (1 + b)`` the product, not the sum."""
    known = [span for span in spans if span is not None]
    if not known:
        return None

    def reach(span: SourceSpan) -> tuple[int, int]:
        return (span.end_line - span.line, span.end_column - span.column)

    return max(reversed(known), key=reach)


def rule_code(index: GraphIndex, candidate: FusionCandidate, span: SourceSpan | None) -> str:
    """Which rule of the catalogue the candidate falls under; the most telling one wins."""
    if span is not None and span.installed:
        return "FUS004"
    if _has_float_cast(index, candidate):
        return "FUS005"
    if candidate.pattern == "dag":
        return "FUS002"
    if _has_broadcast(candidate):
        return "FUS003"
    return "FUS001"


def _has_float_cast(index: GraphIndex, candidate: FusionCandidate) -> bool:
    for node_id in candidate.nodes:
        node = index.nodes[index.positions[node_id]]
        if node.op.startswith("aten._to_copy") and node.inputs:
            old, new = index.values[node.inputs[0]].dtype, index.values[node.outputs[0]].dtype
            if old != new and "float" in old and "float" in new:
                return True
    return False


def _has_broadcast(candidate: FusionCandidate) -> bool:
    return any(
        dim is None and size > 1
        for operand in candidate.inputs
        for dim, size in zip(operand.dims, candidate.shape, strict=False)
    ) or any(
        dim is None and size > 1
        for region in candidate.regions
        for access in region.accesses
        for dim, size in zip(access.dims, region.shape, strict=True)
    )


def verdicts(
    model: CostModel, candidate: FusionCandidate, total: CostEstimate, count: int
) -> tuple[Verdict, ...]:
    """The textbook's three questions, answered for one occurrence."""
    each_us = total.time_before_us / count
    enough = LONG_ENOUGH_CALLS * model.call_us
    long_enough = each_us >= enough
    ops = total.launches_before // count
    memory = total.bound == "memory-bound"
    saving = 1 - total.bytes_after / total.bytes_before if total.bytes_before else 0.0
    bound_reason = {
        "memory-bound": "its time is what moving its bytes takes",
        "compute-bound": "its arithmetic takes longer than moving its bytes",
        "overhead-bound": "dispatch and launch take longer than the work; fewer launches help",
        "unknown": "neither bytes, arithmetic nor overhead explain its time",
    }[total.bound]
    return (
        Verdict(
            question="long enough",
            holds=long_enough,
            reason=f"the ops take {time_text(each_us)} at {_shape(candidate)}, "
            f"{'above' if long_enough else 'below'} the {time_text(enough)} that "
            f"{LONG_ENOUGH_CALLS:g} fused calls cost",
        ),
        Verdict(
            question="several ops",
            holds=ops >= 2,
            reason=f"{ops} launches become 1, {percent_text(saving)} of the bytes fall away",
        ),
        Verdict(question="memory-bound", holds=memory, reason=f"{total.bound}: {bound_reason}"),
    )


def op_name(op: str) -> str:
    """``aten.add.Tensor`` as a person says it: ``add``."""
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else op


def _shape(candidate: FusionCandidate) -> str:
    return "×".join(map(str, candidate.shape)) or "one element"


def _title(index: GraphIndex, candidate: FusionCandidate) -> str:
    nodes = [index.nodes[index.positions[node]] for node in candidate.nodes]
    names = [op_name(node.op) for node in nodes]
    listed = " → ".join(names if len(names) <= 6 else [*names[:3], "…", *names[-2:]])
    where = nodes[-1].module_class.rpartition(".")[2]
    prefix = f"{where}: " if where else ""
    count = len(names) - len(candidate.views)
    return f"{prefix}{count} elementwise ops in one kernel ({listed})"


def _message(index: GraphIndex, candidate: FusionCandidate, total: CostEstimate, count: int) -> str:
    dtype = index.values[candidate.outputs[0]].dtype
    times = f", {count} times in the run" if count > 1 else ""
    ops = len(candidate.nodes) - len(candidate.views)
    return (
        f"{ops} ops over {_shape(candidate)} {dtype}{times}: together they move "
        f"{bytes_text(total.bytes_before)} in {total.launches_before} launches; fused, "
        f"{bytes_text(total.bytes_after)} in {total.launches_after}. Estimated "
        f"{time_text(total.time_before_us)} → {time_text(total.time_after_mid_us)}, saving "
        f"{time_text(total.saved_low_us)} to {time_text(total.saved_high_us)}."
    )


def _safety(index: GraphIndex, candidate: FusionCandidate) -> Safety:
    """In-place ops made functional leave the name's old tensor unwritten: not safe by itself."""
    return "unsafe" if _in_place_ops(index, candidate) else "safe"


def _in_place_ops(index: GraphIndex, candidate: FusionCandidate) -> list[str]:
    nodes = (index.nodes[index.positions[node]] for node in candidate.nodes)
    return [op_name(node.op) for node in nodes if node.mutates]


def _notes(index: GraphIndex, candidate: FusionCandidate, total: CostEstimate) -> tuple[str, ...]:
    notes: list[str] = []
    in_place = _in_place_ops(index, candidate)
    if in_place:
        notes.append(
            f"made functional: {', '.join(in_place)} (nobody else sees the written tensor)"
        )
    if candidate.saved:
        notes.append(
            f"recomputed in backward: {plural(len(candidate.saved), 'intermediate')} that it reads"
        )
    terms: Mapping[str, float] = dict(total.terms)
    if terms.get("recompute in backward"):
        again = time_text(terms["recompute in backward"])
        notes.append(f"backward runs the eager ops again: {again}, included")
    return tuple(notes)
