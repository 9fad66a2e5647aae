"""Fusion candidates of a recorded run, and why every other pair of neighbours is not one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusion_advisor.analysis.graph_index import GraphIndex, build_index
from fusion_advisor.analysis.growth import Growth
from fusion_advisor.analysis.legality import Refusal, context, context_refusal, mark_members
from fusion_advisor.analysis.partition import Partition, make_candidate
from fusion_advisor.records import Blocker, FusionCandidate, OpGraph


@dataclass(frozen=True, slots=True)
class Grouping:
    """Candidates of one index, with what is needed to explain the pairs that did not fuse."""

    index: GraphIndex
    candidates: tuple[FusionCandidate, ...]
    owner: dict[int, int]  # position of a member -> number of its candidate
    growth: Growth
    cuts: dict[int, Refusal]
    within_frame: bool


def index_graph(graph: OpGraph) -> GraphIndex:
    """Index a graph and decide for every op whether it may be a member of a group."""
    index = build_index(graph)
    mark_members(index)
    return index


def group_ops(index: GraphIndex, *, within_frame: bool = False) -> Grouping:
    """Grow, cut and name the candidates of an indexed graph."""
    growth = Growth(index, within_frame=within_frame)
    partition = Partition(index, within_frame=within_frame)
    pieces = [piece for group in growth.groups() for piece in partition.pieces(group)]
    pieces.sort(key=lambda piece: piece.members[0])
    prefix = "W" if within_frame else "C"
    owner = {m: number for number, piece in enumerate(pieces) for m in piece.members}
    candidates = tuple(
        make_candidate(index, piece, f"{prefix}{number}") for number, piece in enumerate(pieces, 1)
    )
    return Grouping(index, candidates, owner, growth, partition.cuts, within_frame)


def find_candidates(graph: OpGraph, *, within_frame: bool = False) -> tuple[FusionCandidate, ...]:
    """All legal groups of two or more elementwise ops, in recorded order.

    ``within_frame=True`` restricts a group to ops that one Python frame called, in an order that
    leaves a place for one call: what a change of the source can express.  Raises AnalysisError
    where the recording is inconsistent.
    """
    return with_blockers(group_ops(index_graph(graph), within_frame=within_frame))


def why_not(graph: OpGraph, candidates: Sequence[FusionCandidate]) -> tuple[Blocker, ...]:
    """One blocker for every pair of neighbours, one of them elementwise, that does not fuse.

    ``candidates`` are those of :func:`find_candidates` for the whole run; pairs inside one of
    them are left out.
    """
    grouping = group_ops(index_graph(graph))
    positions = grouping.index.positions
    owner = {
        positions[node]: number
        for number, candidate in enumerate(candidates)
        for node in candidate.nodes
    }
    return pair_blockers(
        Grouping(
            grouping.index,
            tuple(candidates),
            owner,
            grouping.growth,
            grouping.cuts,
            within_frame=False,
        )
    )


def pair_blockers(grouping: Grouping) -> tuple[Blocker, ...]:
    """Blockers of all pairs in the graph, in the order of the later op; see :func:`why_not`."""
    index, owner = grouping.index, grouping.owner
    infos = index.infos
    found: list[Blocker] = []
    explained: set[int] = set()
    for consumer in range(len(index.nodes)):
        fusable = infos[consumer] is not None
        done: set[int] = set()
        for producer, _ in index.producers_of(consumer):
            if producer in done or not (fusable or infos[producer] is not None):
                continue
            done.add(producer)
            number = owner.get(producer)
            if number is None or owner.get(consumer) != number:
                found.append(pair_blocker(grouping, producer, consumer))
                explained.update((producer, consumer))
        if not fusable and consumer not in explained and _deserves_reason(index, consumer):
            code, message = _refusal(index, consumer)
            found.append(Blocker(code=code, nodes=(index.nodes[consumer].id,), message=message))
    return tuple(found)


def _deserves_reason(index: GraphIndex, position: int) -> bool:
    """An elementwise op that no kernel is made for is named even without neighbours."""
    return index.nodes[position].kind == "elementwise"


def with_blockers(grouping: Grouping) -> tuple[FusionCandidate, ...]:
    """The candidates, each with a blocker for every neighbour that it does not include."""
    return tuple(
        _with_blockers(grouping, candidate, number)
        for number, candidate in enumerate(grouping.candidates)
    )


def _with_blockers(grouping: Grouping, candidate: FusionCandidate, number: int) -> FusionCandidate:
    index, owner = grouping.index, grouping.owner
    pairs: dict[tuple[int, int], None] = {}
    for node in candidate.nodes:
        member = index.positions[node]
        for producer, _ in index.producers_of(member):
            if owner.get(producer) != number:
                pairs[producer, member] = None
        for value in index.nodes[member].outputs:
            for user in index.consumers.get(value, ()):
                if owner.get(user) != number:
                    pairs[member, user] = None
    return FusionCandidate(
        id=candidate.id,
        nodes=candidate.nodes,
        inputs=candidate.inputs,
        outputs=candidate.outputs,
        saved=candidate.saved,
        shape=candidate.shape,
        pattern=candidate.pattern,
        blockers=tuple(pair_blocker(grouping, *pair) for pair in pairs),
    )


def pair_blocker(grouping: Grouping, producer: int, consumer: int) -> Blocker:
    """Why these two neighbours are not in one kernel."""
    index = grouping.index
    nodes = (index.nodes[producer].id, index.nodes[consumer].id)
    code, message = _pair_refusal(grouping, producer, consumer)
    return Blocker(code=code, nodes=nodes, message=message)


def _pair_refusal(grouping: Grouping, producer: int, consumer: int) -> Refusal:
    index = grouping.index
    for position in (consumer, producer):
        if index.infos[position] is None:
            return _refusal(index, position)
    growth = grouping.growth
    if growth.contexts[producer] != growth.contexts[consumer]:
        return context_refusal(
            *(
                context(index.nodes[position], within_frame=grouping.within_frame)
                for position in (producer, consumer)
            )
        )
    known = growth.rejections.get((producer, consumer))
    if known is not None:
        return known
    cut = _cut_between(grouping, producer, consumer)
    if cut is not None:
        return cut
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
    own = grouping.owner.get(producer)
    for member in group.members:
        if member in cuts and (own is None or grouping.owner.get(member) == own):
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
    return sum(len(candidate.nodes) - 1 for candidate in candidates)
