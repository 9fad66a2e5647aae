"""Joins groups across the views between them, into one kernel with a loop per shape of result.

An elementwise op commutes with a view: what is read behind one can be computed there, from
operands that are read behind it as well.  So two groups may be one kernel when all that the later
one reads of the earlier goes through views that are affine at all sizes, no path leaves the two
and comes back, and little is computed twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from fusion_advisor.analysis.graph_index import GraphIndex, is_dense
from fusion_advisor.analysis.partition import (
    MAX_LIVE_VALUES,
    MAX_MEMBERS,
    MAX_OPERANDS,
    Partition,
    Piece,
    element_count,
)
from fusion_advisor.ops.regions import Walk
from fusion_advisor.ops.views import foldable, leaves_out
from fusion_advisor.records import Region

# An op whose result is needed whole and in part as well is computed at most so often per element.
MOST_RECOMPUTED = 2
# Steps looked at for one join, and in all: groups far apart in a long run are left as they are.
MAX_STEPS = 2_000
MAX_ALL_STEPS = 200_000
# Views of one group: every value is followed through all of them.
MAX_VIEWS = 12
# A table that all layers read in part joins none of them: it is not tried with each.
MOST_REFUSALS = 8


def fold_views(
    index: GraphIndex, contexts: Sequence[int], pieces: Iterable[Piece], partition: Partition
) -> list[Piece]:
    """The pieces, those that foldable views connect made one, in recorded order."""
    return _Folding(index, contexts, pieces, partition).run()


class _Folding:
    def __init__(
        self,
        index: GraphIndex,
        contexts: Sequence[int],
        pieces: Iterable[Piece],
        partition: Partition,
    ) -> None:
        self.index = index
        self.contexts = contexts
        self.partition = partition
        self.pieces = list(pieces)
        self.owner = {m: piece for piece in self.pieces for m in piece.members}
        self.bases: dict[int, int] = {}  # foldable view -> the member whose result it shows
        self.refused: set[tuple[int, int, int, int]] = set()
        self.refusals: Counter[tuple[int, int]] = Counter()  # by what is viewed
        self.steps_left = MAX_ALL_STEPS

    def run(self) -> list[Piece]:
        """Visit the views in order; what they joined can be joined further on."""
        index, bases = self.index, self.bases
        self._find_bases()
        joined: list[Piece] = []
        for view, base in bases.items():
            for user in index.users[index.makes[view][0]]:
                if index.infos[user] is not None and self.contexts[user] == self.contexts[base]:
                    piece = self._join(base, user)
                    if piece is not None:
                        joined.append(piece)
        if not joined:
            return self.pieces
        found = {id(piece): piece for piece in (*self.pieces, *joined)}
        owners = {id(piece) for piece in self.owner.values()}
        return sorted(
            (piece for key, piece in found.items() if key in owners),
            key=lambda piece: piece.members[0],
        )

    def _find_bases(self) -> None:
        """Views of members' results, directly or through others, in recorded order."""
        index, bases = self.index, self.bases
        infos, sources = index.infos, index.sources
        for position, node in enumerate(index.nodes):
            if node.kind not in ("view", "metadata") or infos[position] is not None:
                continue
            maker = sources[position][0] if len(sources[position]) == 1 else -1
            if maker < 0 or not (infos[maker] is not None or maker in bases):
                continue
            if self._folds(position):
                bases[position] = bases.get(maker, maker)

    def _folds(self, position: int) -> bool:
        """Whether a kernel can read through this view of what a kernel may make."""
        index, node = self.index, self.index.nodes[position]
        if node.mutates or len(node.outputs) != 1 or position in index.keeping:
            return False
        source, result = index.values[node.inputs[0]], index.values[node.outputs[0]]
        if result.dtype != source.dtype or set(result.flags) - {"saved"}:
            return False
        if source.storage in index.written_storages:
            return False
        return foldable(node, source.shape, result.shape)

    def _piece(self, member: int) -> Piece:
        piece = self.owner.get(member)
        return piece if piece is not None else self.partition.look([member])

    def _join(self, base: int, user: int) -> Piece | None:
        """The piece that both sides of a view make, if they may be one kernel."""
        if base in self.owner and self.owner[base] is self.owner.get(user):
            return None
        before, after = self._piece(base), self._piece(user)
        # Groups only grow, so that first member and size tell one from what it was before.
        viewed = (before.members[0], len(before.members))
        key = (*viewed, after.members[0], len(after.members))
        if key in self.refused or self.refusals[viewed] >= MOST_REFUSALS:
            return None
        whole = self._whole(before, after)
        if whole is None:
            self.refused.add(key)
            self.refusals[viewed] += 1
            return None
        self.owner.update(dict.fromkeys(whole.members, whole))
        return whole

    def _whole(self, before: Piece, after: Piece) -> Piece | None:
        working = sorted(
            m for piece in (before, after) for m in piece.members if m not in self.bases
        )
        if len(working) > MAX_LIVE_VALUES or self._halves_inside(working):
            return None
        through = self._through(working)
        if len(through) > MAX_VIEWS:
            return None
        if self._hides_an_error(working, through):
            return None
        inner = self._inner(through, {*working})
        members = sorted((*working, *inner))
        shared = through - inner
        if len(members) > MAX_MEMBERS or len({self.contexts[m] for m in members}) > 1:
            return None
        piece = self.partition.look(members)
        shown = {self.index.nodes[view].outputs[0] for view in shared}
        piece.inputs = [value for value in piece.inputs if value not in shown]
        piece.views = sorted(inner)
        piece.shared = sorted(shared)
        if not self._writable(piece):
            return None
        parts = [part for side in (before, after) for part in (side.parts or [side])]
        regions = self._regions(piece, parts)
        if regions is None or self._leaves_and_returns(members, shared):
            return None
        piece.parts = parts
        piece.regions = regions
        piece.shape = regions[0].shape
        return piece

    def _halves_inside(self, working: Collection[int]) -> bool:
        """Whether a member reads halves of what another makes, or of a view of that."""
        index, inside = self.index, {*working}
        return any(
            made in inside or self.bases.get(made) in inside
            for member in index.halving.intersection(working)
            for made in index.sources[member]
        )

    def _hides_an_error(self, working: Sequence[int], through: Collection[int]) -> bool:
        """Whether eager may raise at an element that a view between the members leaves out."""
        index, values = self.index, self.index.values
        for member in working:
            node, info = index.nodes[member], index.infos[member]
            if info is not None and info.may_raise(node, values[node.outputs[0]].dtype):
                break
        else:
            return False
        shown = [index.nodes[view] for view in through]
        return any(
            leaves_out(view, values[view.inputs[0]].shape, values[view.outputs[0]].shape)
            for view in shown
        )

    def _through(self, working: Sequence[int]) -> set[int]:
        """The views between the members: each shows a member's result to a member."""
        index, bases = self.index, self.bases
        inside = set(working)
        found: set[int] = set()
        for member in working:
            for view in index.sources[member]:
                if bases.get(view) not in inside:
                    continue
                while view in bases and view not in found:
                    found.add(view)
                    view = index.sources[view][0]
        return found

    def _inner(self, through: Collection[int], working: Collection[int]) -> set[int]:
        """Of these views those that nothing outside needs."""
        index = self.index
        inner: set[int] = set()
        for view in sorted(through, reverse=True):
            value = index.makes[view][0]
            if not index.alive[value] and all(
                user in working or user in inner or user in index.keeping
                for user in index.users[value]
            ):
                inner.add(view)
        return inner

    def _writable(self, piece: Piece) -> bool:
        index = self.index
        for value in piece.outputs:
            made = index.nodes[index.maker_of(value)]
            if made.kind in ("view", "metadata") or not is_dense(index.values[value]):
                return False
        return len(piece.inputs) + len(piece.outputs) <= MAX_OPERANDS

    def _kin(self, piece: Piece, parts: Iterable[Piece]) -> Callable[[str], object]:
        """Equal for results of one shape at all sizes: of one group, or one made of the other."""
        index = self.index
        leader: dict[int, int] = {}

        def lead(member: int) -> int:
            while leader.setdefault(member, member) != member:
                member = leader[member]
            return member

        for part in parts:
            for member in part.members:
                leader[lead(member)] = lead(part.members[0])
        views = {*piece.views}
        for member in piece.members:
            shape = index.values[index.nodes[member].outputs[0]].shape
            for value, maker in zip(index.nodes[member].inputs, index.sources[member], strict=True):
                inside = maker in leader and maker not in views and member not in views
                if inside and index.values[value].shape == shape:
                    leader[lead(maker)] = lead(member)
        return lambda value: lead(index.maker_of(value))

    def _regions(self, piece: Piece, parts: Iterable[Piece]) -> tuple[Region, ...] | None:
        """The loops of the kernel; None where it cannot be written or computes too much twice."""
        index = self.index
        nodes = [index.nodes[m] for m in (*piece.members, *piece.shared)]
        makers = {value: node for node in nodes for value in node.outputs}
        views = {index.nodes[view].id for view in (*piece.views, *piece.shared)}
        walk = Walk(makers, index.values, views)
        loops = walk.regions(piece.outputs, self._kin(piece, parts))
        if loops is None:
            return None
        regions = tuple([region for region, _ in loops])
        arrays = sum(len(region.accesses) for region in regions) + len(piece.outputs)
        read = {access.value for region in regions for access in region.accesses}
        if arrays > MAX_OPERANDS or read != set(piece.inputs):
            return None
        evaluated: Counter[str] = Counter()
        places: Counter[str] = Counter()
        for region, instances in loops:
            made = [v for v, _ in instances if v in makers and makers[v].id not in views]
            if len(made) > MAX_LIVE_VALUES:
                return None
            places.update(made)
            elements = element_count(region.shape)
            for value in made:
                evaluated[value] += elements
        for value, count in evaluated.items():
            own = element_count(index.values[value].shape)
            if places[value] > 1 and count > MOST_RECOMPUTED * own:
                return None
        return regions

    def _leaves_and_returns(self, members: Sequence[int], shared: Collection[int]) -> bool:
        """Whether something outside needs a member and is needed by one: no order would do.

        Also where that could not be found out within the steps there are.
        """
        index, owner = self.index, self.owner
        inside = set(members)
        first = members[0]
        seen: set[int] = set()
        waiting = [
            earlier
            for member in members
            for earlier in index.dependencies[member]
            if earlier not in inside and earlier not in shared
        ]
        budget = min(MAX_STEPS, self.steps_left)
        while waiting:
            position = waiting.pop()
            if position in inside:
                self.steps_left -= len(seen)
                return True
            if position in seen:
                continue
            piece = owner.get(position)
            step: Sequence[int] = (position,)
            aside: Sequence[int] = ()
            if piece is not None and piece.members[0] not in inside:
                step, aside = piece.members, piece.shared
            seen.update(step)
            if len(seen) > budget:
                self.steps_left -= len(seen)
                return True
            if step[-1] < first:
                continue
            for one in step:
                waiting.extend(
                    earlier
                    for earlier in index.dependencies[one]
                    if earlier not in seen and earlier not in aside
                )
        self.steps_left -= len(seen)
        return False
