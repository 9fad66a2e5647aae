"""One edit that puts a fused kernel into a cell, a file or a function: pure text.

The chain's ops run as one call where the chain's last op stood; operands are evaluated where they
were, or where nothing can tell the difference.  The edit is made only when that is proven from
the text and the recording together; otherwise the fix holds the blocker that says why not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.callees import Callees
from fusion_advisor.fixes.dataflow import Walker
from fusion_advisor.fixes.emission import Writer
from fusion_advisor.fixes.evidence import Evidence, Match
from fusion_advisor.fixes.insertion import check_names, kernel_insertion
from fusion_advisor.fixes.matching import (
    chain_nodes,
    check_numbers,
    match_chain,
    run_time_numbers,
)
from fusion_advisor.fixes.placement import Key, Placer
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.region import find_region
from fusion_advisor.fixes.source_index import SourceIndex, names_loaded, names_stored, parsed
from fusion_advisor.fixes.text_edits import apply_edits, text_hash
from fusion_advisor.records import (
    Fix,
    FusionCandidate,
    KernelSource,
    OpGraph,
    OpNode,
    SourceSpan,
    TextEdit,
)


def plan_text(
    graph: OpGraph,
    candidate: FusionCandidate,
    kernel: KernelSource,
    source_text: str,
    span: SourceSpan | None = None,
    *,
    finding: str = "",
    namespace: Mapping[str, object] | None = None,
) -> Fix:
    """The edit of a cell or file: kernel text at the top or beside the function, and the call.

    ``source_text`` is the raw text of the cell or file in which all ops of ``candidate`` stand;
    ``span`` (default: that of the chain's last op) says which; ``namespace`` are the notebook's or
    module's live globals, where known, to tell what imported names mean and which are taken.
    The returned fix has either edits or blockers.  Raises nothing for a chain that cannot be
    replaced.
    """
    nodes = chain_nodes(graph, candidate)
    span = span or next((n.span for n in reversed(nodes) if n.span is not None), None)
    where = "file" if span is not None and span.kind == "file" else "cell"
    return _guarded(
        graph, nodes, candidate, kernel, source_text, span, finding, where, namespace, kernel.entry
    )


def plan_function(
    graph: OpGraph,
    candidate: FusionCandidate,
    kernel: KernelSource,
    source_text: str,
    *,
    call_name: str,
    finding: str = "",
    namespace: Mapping[str, object] | None = None,
) -> Fix:
    """The edit of a live function's code: the call alone, by the name its globals will hold.

    ``source_text`` is the whole file or cell the function was compiled from; it is never written.
    """
    nodes = chain_nodes(graph, candidate)
    span = next((n.span for n in reversed(nodes) if n.span is not None), None)
    return _guarded(
        graph,
        nodes,
        candidate,
        kernel,
        source_text,
        span,
        finding,
        "function",
        namespace,
        call_name,
    )


def _guarded(
    graph: OpGraph,
    nodes: tuple[OpNode, ...],
    candidate: FusionCandidate,
    kernel: KernelSource,
    text: str,
    span: SourceSpan | None,
    finding: str,
    where: str,
    namespace: Mapping[str, object] | None,
    call_name: str,
) -> Fix:
    def fix(edits: tuple[TextEdit, ...], refusal: Refusal | None) -> Fix:
        blockers = () if refusal is None else (refusal.blocker,)
        return Fix(
            finding=finding,
            where=where,  # type: ignore[arg-type]  # one of the literals by construction
            title=f"call {kernel.entry} instead of {len(nodes)} ops",
            safety="display-only" if blockers else "safe",
            path=span.file if span is not None else "",
            cell_id=span.cell_id if span is not None else None,
            edits=edits,
            old_hash=text_hash(text),
            blockers=blockers,
        )

    try:
        if not kernel.is_intact:
            raise Refusal("kernel-text", "the kernel's text was changed: generate it again")
        if where == "file" and span is not None and span.installed:
            raise Refusal(
                "installed-package",
                f"{span.file} belongs to an installed package, which is never edited: apply it "
                "live (where='function'), or export a .py file that does",
            )
        return fix(_plan(graph, nodes, candidate, kernel, text, where, namespace, call_name), None)
    except Refusal as refusal:
        return fix((), refusal)
    except FixError as error:
        return fix((), Refusal("text", str(error)))


def _plan(
    graph: OpGraph,
    nodes: tuple[OpNode, ...],
    candidate: FusionCandidate,
    kernel: KernelSource,
    text: str,
    where: str,
    namespace: Mapping[str, object] | None,
    call_name: str,
) -> tuple[TextEdit, ...]:
    _check_frame(graph, nodes)
    if candidate.shared:
        raise Refusal(
            "view",
            "the chain reads its own results through views that are needed elsewhere as well, so "
            "no one call can stand in its place",
            candidate.shared,
        )
    index = parsed(text)
    callees = Callees(index, namespace)
    evidence = _evidence(graph, index, nodes)
    matches = match_chain(index, callees, evidence, nodes)
    check_numbers(index, matches.values())
    region = find_region(index, matches)
    flow = Walker(index, callees, evidence, matches).walk(region.statements)
    taken = names_stored(index.tree) | names_loaded(index.tree) | set(namespace or ())
    placer = Placer(index, graph, evidence, flow, region.statements, region.live, taken)
    writer = Writer(index, graph, region, flow, placer, callees, call_name, where)
    inputs = program_inputs(candidate, kernel, matches.values())
    edits = writer.edits(inputs, program_outputs(candidate, kernel))
    if where != "function":
        check_names(index, kernel, namespace)
        needs = writer.imports_needed()
        edits = (kernel_insertion(index, kernel, region.statements[0], where, needs), *edits)
    _check_result(apply_edits(text, edits), index)
    return tuple(sorted(edits, key=lambda one: (one.start, one.end)))


def _check_frame(graph: OpGraph, nodes: Sequence[OpNode]) -> None:
    if not nodes:
        raise Refusal("no-nodes", "the recording does not hold the chain's ops")
    frames = {node.frame for node in nodes}
    if len(frames) != 1:
        raise Refusal(
            "several-frames",
            f"the chain runs in {len(frames)} calls of Python functions, so no one place in the "
            "text holds it",
            tuple(node.id for node in nodes),
        )
    if any(node.phase != "forward" for node in nodes):
        raise Refusal("not-forward", "the chain runs in backward, which has no source text")
    _check_writes(graph, nodes)


def _check_writes(graph: OpGraph, nodes: Sequence[OpNode]) -> None:
    """No other op may write, between the chain's ops, to a storage the chain reads."""
    storages = {value.id: value.storage for value in graph.values}
    own = {node.id for node in nodes}
    read = {storages[value] for node in nodes for value in node.inputs if value in storages}
    first, last = nodes[0].index, nodes[-1].index
    for node in graph.nodes:
        between = first < node.index < last and node.id not in own
        if between and any(storages.get(value) in read for value in node.mutates):
            raise Refusal(
                "written-between",
                f"{node.op} writes to a tensor of the chain between the chain's ops",
                (node.id,),
            )


def _evidence(graph: OpGraph, index: SourceIndex, nodes: Sequence[OpNode]) -> Evidence:
    file = next((node.span.file for node in nodes if node.span is not None), "")
    return Evidence(graph, index, nodes[0].frame, file)


def program_inputs(
    candidate: FusionCandidate, kernel: KernelSource, matches: Collection[Match]
) -> list[Key]:
    """The fused call's operands in order: value ids of tensors, (op, position) of numbers."""
    scalars = [one for one in kernel.program.inputs if one.kind == "scalar"]
    own = [operand.value for operand in candidate.inputs]
    keys: list[Key] = [one.value for one in kernel.program.given]
    if set(keys) - set(own):  # the kernel was made from another occurrence of the same program
        if len(keys) != len(own):
            raise Refusal("operands-differ", "the kernel has other operands than this chain")
        keys = list(own)
    numbers = run_time_numbers(matches)
    placed = [(one.node, one.position) for one in scalars]
    if len(numbers) != len(scalars):
        raise Refusal(
            "operands-differ",
            f"the kernel takes {len(scalars)} run-time numbers, the text has {len(numbers)}",
        )
    if set(placed) != numbers:  # another occurrence: the same places of its own ops
        order = {node: number for number, node in enumerate(candidate.nodes)}
        placed = sorted(numbers, key=lambda one: (order.get(one[0], len(order)), one[1]))
    return [*keys, *placed]


def program_outputs(candidate: FusionCandidate, kernel: KernelSource) -> list[str]:
    """Value ids of the results in the order the fused call returns them."""
    named = [one.value for one in kernel.program.outputs]
    if set(named) <= set(candidate.outputs) and len(named) == len(candidate.outputs):
        return named
    if len(named) != len(candidate.outputs):
        raise Refusal("outputs-differ", "the kernel has other results than this chain")
    return list(candidate.outputs)


def runtime_scalars(
    graph: OpGraph, candidate: FusionCandidate, source_text: str
) -> frozenset[tuple[str, int]]:
    """(node id, position among the flattened arguments) of numbers the text does not spell out.

    A kernel for this text must take them at run time (``self.eps``, a loop variable, a global);
    all others are literals that can be baked.  Empty where the chain cannot be found in the
    text, so that no call can be written for it either.
    """
    nodes = chain_nodes(graph, candidate)
    if not nodes or len({node.frame for node in nodes}) != 1:
        return frozenset()
    try:
        index = parsed(source_text)
        callees = Callees(index)
        matches = match_chain(index, callees, _evidence(graph, index, nodes), nodes)
    except FixError:
        return frozenset()
    return run_time_numbers(matches.values())


def _check_result(new_text: str, index: SourceIndex) -> None:
    """The edited text must parse, with the same functions in the same order."""
    try:
        after = SourceIndex(new_text)
    except Refusal as refusal:
        raise Refusal("broken-text", f"the edit would not parse ({refusal})") from refusal
    kept = [n.name for n in ast.walk(index.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    now = [n.name for n in ast.walk(after.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    if any(name not in now for name in kept):
        raise Refusal("broken-text", "the edit would lose a function")
