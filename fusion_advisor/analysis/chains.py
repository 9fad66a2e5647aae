"""Fusion candidates of a recorded run, and why every other pair of neighbours is not one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fusion_advisor.analysis.folding import fold_views
from fusion_advisor.analysis.graph_index import GraphIndex, build_index
from fusion_advisor.analysis.growth import Growth, whole_run_contexts
from fusion_advisor.analysis.legality import Refusal, context, context_refusal, mark_members
from fusion_advisor.analysis.partition import Partition, Piece, make_candidate
from fusion_advisor.records import Blocker, FusionCandidate, OpGraph


@dataclass(frozen=True, slots=True)
class Grouping:
    """Candidates of one index, with what is needed to explain the pairs that did not fuse.

    ``pieces`` go with ``candidates`` one to one, in recorded order; these carry no blockers yet.
    A grouping within frames refines the whole run's, its ``parent``.
    """

    index: GraphIndex
    pieces: tuple[Piece, ...]
    candidates: tuple[FusionCandidate, ...]
    owner: list[int]  # per op the number of its candidate, or -1
    growth: Growth
    cuts: dict[int, Refusal]
    parent: Grouping | None = None


def index_graph(graph: OpGraph) -> GraphIndex:
    """Index a graph and decide for every op whether it may be a member of a group."""
    index = build_index(graph)
    mark_members(index)
    return index


def group_ops(index: GraphIndex) -> Grouping:
    """Grow, cut and name the candidates of the whole run."""
    growth = Growth(index, whole_run_contexts(index))
    partition = Partition(index)
    pieces = [piece for group in growth.groups() for piece in partition.pieces(group)]
    pieces.sort(key=lambda piece: piece.members[0])
    pieces = fold_views(index, growth.contexts, pieces, partition)
    candidates = tuple(
        make_candidate(index, piece, f"C{number}") for number, piece in enumerate(pieces, 1)
    )
    return Grouping(
        index, tuple(pieces), candidates, _owners(index, pieces), growth, partition.cuts
    )


def group_within_frames(whole: Grouping) -> Grouping:
    """Refine the whole run's groups to what one Python frame called, for one place in source.

    No fix writes a call for a chain with a view in it: groups that views joined come apart again.
    A group is legal, so that only paths inside it can leave a part of it and come back: the parts
    are grown from its own members alone.  Groups that stay as they are keep their record.
    """
    index = whole.index
    mixed: list[int] = []
    contexts = [0] * len(index.nodes)
    numbers: dict[tuple[int, int], int] = {}
    partition = Partition(index, placed=True)
    found: list[tuple[Piece, FusionCandidate | None]] = []
    for number, piece, candidate in _without_views(whole):
        frames = {index.nodes[member].frame for member in piece.members}
        if piece.views and (len(frames) > 1 or partition.placement_cut(piece) is not None):
            continue  # single ops that only a view joins
        if len(frames) > 1:
            mixed.extend(piece.members)
            for member in piece.members:
                key = (number, index.nodes[member].frame)
                contexts[member] = numbers.setdefault(key, len(numbers))
        elif partition.placement_cut(piece) is None:
            found.append((piece, candidate))
        else:
            found.extend((part, None) for part in partition.pieces(piece.members))
    growth = Growth(index, contexts, sorted(mixed))
    for group in growth.groups():
        found.extend((part, None) for part in partition.pieces(group))
    found.sort(key=lambda item: item[0].members[0])
    candidates = tuple(
        known or make_candidate(index, piece, f"W{number}")
        for number, (piece, known) in enumerate(found, 1)
    )
    pieces = tuple(piece for piece, _ in found)
    return Grouping(
        index, pieces, candidates, _owners(index, pieces), growth, partition.cuts, whole
    )


def _without_views(whole: Grouping) -> Iterable[tuple[int, Piece, FusionCandidate | None]]:
    """Number, piece and candidate of the whole run's groups; what views joined comes apart.

    Single ops on either side of a view stay together: apart, there is no group at all.
    """
    for number, (piece, candidate) in enumerate(zip(whole.pieces, whole.candidates, strict=True)):
        parts = [part for part in piece.parts if len(part.members) > 1]
        if not parts:
            yield number, piece, candidate
        for part in parts:
            yield number, part, None


def _owners(index: GraphIndex, pieces: Iterable[Piece]) -> list[int]:
    owner = [-1] * len(index.nodes)
    for number, piece in enumerate(pieces):
        for member in piece.members:
            owner[member] = number
    return owner


def find_candidates(graph: OpGraph, *, within_frame: bool = False) -> tuple[FusionCandidate, ...]:
    """All legal groups of two or more elementwise ops, in recorded order.

    ``within_frame=True`` restricts a group to ops that one Python frame called, in an order that
    leaves a place for one call: what a change of the source can express.  Raises AnalysisError
    where the recording is inconsistent.
    """
    grouping = group_ops(index_graph(graph))
    if within_frame:
        grouping = group_within_frames(grouping)
    return explain(grouping)[1]


def why_not(graph: OpGraph, candidates: Sequence[FusionCandidate]) -> tuple[Blocker, ...]:
    """One blocker for every pair of neighbours, one of them elementwise, that does not fuse.

    ``candidates`` are those of :func:`find_candidates` for the whole run; pairs inside one of
    them are left out.
    """
    grouping = group_ops(index_graph(graph))
    positions = grouping.index.positions
    owner = [-1] * len(positions)
    for number, candidate in enumerate(candidates):
        for node in candidate.nodes:
            owner[positions[node]] = number
    return explain(replace(grouping, candidates=tuple(candidates), owner=owner))[0]


def explain(grouping: Grouping) -> tuple[tuple[Blocker, ...], tuple[FusionCandidate, ...]]:
    """Blockers of all pairs in the graph, in the order of the later op, see :func:`why_not`; and
    the candidates, each with the blockers of the pairs that it is one side of.
    """
    index, owner = grouping.index, grouping.owner
    nodes, infos = index.nodes, index.infos
    elementwise = [
        info is not None or node.kind == "elementwise"
        for info, node in zip(infos, nodes, strict=True)
    ]
    found: list[Blocker] = []
    lists: list[list[Blocker]] = [[] for _ in grouping.candidates]
    # What only keeps a value for backward, or handles metadata, stands in nobody's way.
    aside = [
        node.kind == "metadata" and info is None for info, node in zip(infos, nodes, strict=True)
    ]
    for position in index.keeping:
        aside[position] = True
    for consumer, node in enumerate(nodes):
        if aside[consumer]:
            continue
        own = elementwise[consumer]
        number = owner[consumer]
        done: list[int] = []
        for producer in index.sources[consumer]:
            if producer < 0 or not (own or elementwise[producer]) or producer in done:
                continue
            if aside[producer]:
                continue
            done.append(producer)
            other = owner[producer]
            if number < 0 or other != number:
                code, message = _pair_refusal(grouping, producer, consumer)
                pair = (nodes[producer].id, node.id)
                blocker = Blocker(code=code, nodes=pair, message=message)
                found.append(blocker)
                if other >= 0:
                    lists[other].append(blocker)
                if number >= 0:
                    lists[number].append(blocker)
        if own and not done and infos[consumer] is None:
            # No kernel is made for this op: named even without a neighbour.
            code, message = _refusal(index, consumer)
            found.append(Blocker(code=code, nodes=(node.id,), message=message))
    explained = tuple(
        [
            with_blockers(candidate, own) if own else candidate
            for candidate, own in zip(grouping.candidates, lists, strict=True)
        ]
    )
    return tuple(found), explained


def with_blockers(candidate: FusionCandidate, blockers: Iterable[Blocker]) -> FusionCandidate:
    """The candidate, ending where these say (``replace`` takes several times as long)."""
    return FusionCandidate(
        id=candidate.id,
        nodes=candidate.nodes,
        inputs=candidate.inputs,
        outputs=candidate.outputs,
        saved=candidate.saved,
        shape=candidate.shape,
        pattern=candidate.pattern,
        views=candidate.views,
        blockers=tuple(blockers),
    )


def _pair_refusal(grouping: Grouping, producer: int, consumer: int) -> Refusal:
    """Why these two neighbours are not in one kernel."""
    index = grouping.index
    late, early = index.refusals[consumer], index.refusals[producer]
    # An elementwise op that no kernel is made for says more than its neighbour's kind.
    if early is not None and (late is None or index.nodes[producer].kind == "elementwise"):
        return early
    if late is not None:
        return late
    parent = grouping.parent
    if parent is not None:
        group = parent.owner[producer]
        if group < 0 or group != parent.owner[consumer]:
            return _pair_refusal(parent, producer, consumer)
        if index.nodes[producer].frame != index.nodes[consumer].frame:
            return "frame", "different Python frames called the two ops; no one line holds both"
    growth = grouping.growth
    if growth.contexts[producer] != growth.contexts[consumer]:
        return context_refusal(context(index.nodes[producer]), context(index.nodes[consumer]))
    known = growth.rejections.get((producer, consumer)) or _cut_between(
        grouping, producer, consumer
    )
    if known is not None:
        return known
    return "non-convex", "the two belong to kernels of which one must run before the other"


def _cut_between(grouping: Grouping, producer: int, consumer: int) -> Refusal | None:
    """The cut that separated two members of one grown group.

    Cuts are noted at the member whose result, or whose place, was at fault; that is one of the
    two, or another member on the producer's side.
    """
    cuts = grouping.cuts
    for position in (producer, consumer):
        if position in cuts:
            return cuts[position]
    group = grouping.growth.group_of[producer]
    if group is None:
        return None
    own = grouping.owner[producer]
    for member in group.members:
        if member in cuts and (own < 0 or grouping.owner[member] == own):
            return cuts[member]
    near = [cuts[member] for member in group.members if member in cuts]
    return near[0] if near else None


def _refusal(index: GraphIndex, position: int) -> Refusal:
    refusal = index.refusals[position]
    if refusal is None:
        raise ValueError("the op is a possible member")
    return refusal


def removable_launches(candidates: Iterable[FusionCandidate]) -> int:
    """Kernel launches that fall away when every candidate becomes one kernel."""
    return sum(len(candidate.nodes) - len(candidate.views) - 1 for candidate in candidates)
