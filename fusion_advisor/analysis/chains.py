"""Fusion candidates of a recorded run, and why every other pair of neighbours is not one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fusion_advisor.analysis.folding import fold_views
from fusion_advisor.analysis.graph_index import GraphIndex, build_index
from fusion_advisor.analysis.growth import Growth, whole_run_contexts
from fusion_advisor.analysis.legality import Refusal, context, context_refusal, mark_members
from fusion_advisor.analysis.partition import Partition, Piece, make_candidate
from fusion_advisor.analysis.quick_records import quickly
from fusion_advisor.records import Blocker, FusionCandidate, OpGraph

_blocker = quickly(Blocker)
Ends = Sequence[Sequence[Blocker]]  # per group, the pairs that it is one side of


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of one index, with what is needed to explain the pairs that did not fuse.

    ``names`` are the candidates' ids: they go with ``pieces`` one to one, in recorded order.
    A grouping within frames refines the whole run's, its ``parent``; groups that stay as they are
    keep their name.
    """

    index: GraphIndex
    pieces: tuple[Piece, ...]
    names: tuple[str, ...]
    owner: list[int]  # per op the number of its group, or -1
    growth: Growth
    cuts: dict[int, Refusal]
    parent: Grouping | None = None

    def candidates(self, ends: Ends) -> tuple[FusionCandidate, ...]:
        """The records of the groups, each with its blockers."""
        index = self.index
        return tuple(
            [
                make_candidate(index, piece, name, blockers)
                for piece, name, blockers in zip(self.pieces, self.names, ends, strict=True)
            ]
        )


def index_graph(graph: OpGraph) -> GraphIndex:
    """Index a graph and decide for every op whether it may be a member of a group."""
    index = build_index(graph)
    mark_members(index)
    return index


def group_ops(index: GraphIndex) -> Grouping:
    """Grow, cut and name the groups of the whole run."""
    growth = Growth(index, whole_run_contexts(index))
    partition = Partition(index)
    pieces = [piece for group in growth.groups() for piece in partition.pieces(group)]
    pieces.sort(key=lambda piece: piece.members[0])
    folded = fold_views(index, growth.contexts, pieces, partition)
    pieces = [piece for piece in folded if partition.reads(piece)]
    names = tuple([f"C{number}" for number in range(1, len(pieces) + 1)])
    return Grouping(index, tuple(pieces), names, _owners(index, pieces), growth, partition.cuts)


def group_within_frames(whole: Grouping) -> Grouping:
    """Refine the whole run's groups to what one Python frame called, for one place in source.

    Groups that views joined come apart again, but for single ops on either side of a view: apart,
    these would be no group at all.
    A group is legal, so that only paths inside it can leave a part of it and come back: the parts
    are grown from its own members alone.
    """
    index = whole.index
    nodes = index.nodes
    mixed: list[int] = []
    contexts = [0] * len(nodes)
    numbers: dict[tuple[int, int], int] = {}
    partition = Partition(index, placed=True)
    found: list[tuple[Piece, str]] = []
    for number, (piece, name) in enumerate(zip(whole.pieces, whole.names, strict=True)):
        frames = {nodes[member].frame for member in piece.members}
        if any(len(part.members) > 1 for part in piece.parts) or len(frames) > 1:
            # The views are looked at again as well: paths lead through them.
            members = [*piece.members, *piece.shared]
            mixed.extend(members)
            for member in members:
                key = (number, nodes[member].frame)
                contexts[member] = numbers.setdefault(key, len(numbers))
        elif partition.placement_cut(piece) is None:
            found.append((piece, name))
        elif not piece.parts:
            found.extend((part, "") for part in partition.pieces(piece.members))
    growth = Growth(index, contexts, sorted({*mixed}))
    for group in growth.groups():
        found.extend((part, "") for part in partition.pieces(group))
    found.sort(key=lambda item: item[0].members[0])
    pieces = tuple([piece for piece, _ in found])
    names = tuple([name or f"W{number}" for number, (_, name) in enumerate(found, 1)])
    return Grouping(index, pieces, names, _owners(index, pieces), growth, partition.cuts, whole)


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
    return grouping.candidates(explain(grouping)[1])


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
    return explain(replace(grouping, owner=owner))[0]


def explain(grouping: Grouping) -> tuple[tuple[Blocker, ...], Ends]:
    """Blockers of all pairs in the graph, in the order of the later op, see :func:`why_not`; and
    per group those of the pairs that it is one side of.
    """
    index, owner = grouping.index, grouping.owner
    nodes, infos = index.nodes, index.infos
    kinds = [node.kind for node in nodes]
    names = [node.id for node in nodes]
    elementwise = [
        info is not None or kind == "elementwise" for info, kind in zip(infos, kinds, strict=True)
    ]
    found: list[Blocker] = []
    ends: list[list[Blocker]] = [[] for _ in range(max(owner, default=-1) + 1)]
    # What only keeps a value for backward, or handles metadata, stands in nobody's way.
    aside = [kind == "metadata" and info is None for info, kind in zip(infos, kinds, strict=True)]
    for position in index.keeping:
        aside[position] = True
    for consumer, sources in enumerate(index.sources):
        if aside[consumer]:
            continue
        own = elementwise[consumer]
        number = owner[consumer]
        done: list[int] = []
        for producer in sources:
            if producer < 0 or not (own or elementwise[producer]) or producer in done:
                continue
            if aside[producer]:
                continue
            done.append(producer)
            other = owner[producer]
            if number < 0 or other != number:
                code, message = _pair_refusal(grouping, producer, consumer)
                pair = (names[producer], names[consumer])
                blocker = _blocker(code=code, nodes=pair, message=message)
                found.append(blocker)
                if other >= 0:
                    ends[other].append(blocker)
                if number >= 0:
                    ends[number].append(blocker)
        refusal = index.refusals[consumer]
        if own and not done and refusal is not None:
            # No kernel is made for this op: named even without a neighbour.
            code, message = refusal
            found.append(_blocker(code=code, nodes=(names[consumer],), message=message))
    return tuple(found), ends


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
    if consumer in index.halving:
        name = index.nodes[consumer].op
        return "view", f"{name} reads two halves of what is made here, so this ends a group"
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


def removable_launches(candidates: Iterable[FusionCandidate]) -> int:
    """Kernel launches that fall away when every candidate becomes one kernel."""
    return sum(len(candidate.nodes) - len(candidate.views) - 1 for candidate in candidates)
