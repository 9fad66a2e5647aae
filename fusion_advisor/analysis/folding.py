"""Joins two groups across a view between them, where that needs no search for paths.

An elementwise op commutes with a view, so that the ops before it can be computed at the places of
the ops after it, their operands read through the view.  ``before`` joins ``after`` when all that
is made in ``before`` and needed elsewhere is one value, which goes through one chain of views into
``after`` and nowhere else.  ``after`` then already needs ``before``, and no other path leaves
``before``: together they are one kernel in the place of ``after``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusion_advisor.analysis.graph_index import GraphIndex
from fusion_advisor.analysis.partition import (
    MAX_LIVE_VALUES,
    MAX_MEMBERS,
    MAX_OPERANDS,
    Partition,
    Piece,
    operand_dims,
)
from fusion_advisor.ops.views import Dims, compose, view_dims


def fold_views(
    index: GraphIndex, contexts: Sequence[int], pieces: Iterable[Piece], partition: Partition
) -> list[Piece]:
    """The pieces, those that a chain of foldable views connects made one, in recorded order."""
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

    def run(self) -> list[Piece]:
        """Visit the views in order; what they joined can be joined further on."""
        index = self.index
        joined: list[Piece] = []
        for position, node in enumerate(index.nodes):
            if node.kind not in ("view", "metadata") or index.infos[position] is not None:
                continue
            if not node.inputs or position in index.keeping:
                continue
            maker = index.maker_of(node.inputs[0])
            if maker >= 0 and index.infos[maker] is not None:
                piece = self._join(maker, position)
                if piece is not None:
                    joined.append(piece)
        if not joined:
            return self.pieces
        if not self._ordered():
            return self.pieces
        found = {id(piece): piece for piece in (*self.pieces, *joined)}
        owners = {id(piece) for piece in self.owner.values()}
        return sorted(
            (piece for key, piece in found.items() if key in owners and len(piece.members) > 1),
            key=lambda piece: piece.members[0],
        )

    def _piece(self, member: int) -> Piece:
        piece = self.owner.get(member)
        return piece if piece is not None else self.partition.look([member])

    def _join(self, maker: int, position: int) -> Piece | None:
        """The piece that the views from ``position`` on make of both sides, if they may join."""
        index = self.index
        value = index.nodes[maker].outputs[0]
        chain, dims = self._chain(value, position)
        if dims is None:
            return None
        viewed = index.nodes[chain[-1]].outputs[0]
        users = [user for user in index.users_of(viewed) if user not in index.keeping]
        if not users or any(index.infos[user] is None for user in users):
            return None
        before, after = self._piece(maker), self._piece(users[0])
        if after is before or any(user not in after.members for user in users):
            return None
        return self._joined(before, after, chain, value, viewed, dims)

    def _chain(self, value: str, position: int) -> tuple[list[int], Dims | None]:
        """Views one after the other, each read by the next alone, and their common map."""
        index = self.index
        nodes, values = index.nodes, index.values
        chain: list[int] = []
        dims: Dims | None = tuple(range(len(values[value].shape)))
        at = value
        if values[value].storage in index.written_storages:
            return chain, None
        while dims is not None:
            node = nodes[position]
            # The first other reader decides: a value that all layers view has very many.
            users, keeping = index.users_of(at), index.keeping
            if any(user != position and user not in keeping for user in users):
                return chain, None
            if index.kept(at) or len(node.outputs) != 1:
                return chain, None
            if len(node.inputs) != 1 or node.mutates or index.infos[position] is not None:
                return chain, None
            source, result = values[at], values[node.outputs[0]]
            if result.dtype != source.dtype or set(result.flags) - {"saved"}:
                return chain, None
            own = view_dims(node, source.shape, result.shape)
            dims = compose(dims, own) if own is not None else None
            chain.append(position)
            at = result.id
            following = [user for user in index.users_of(at) if user not in index.keeping]
            if len(following) != 1 or nodes[following[0]].kind not in ("view", "metadata"):
                break
            if index.infos[following[0]] is not None:
                break
            position = following[0]
        return chain, None if index.kept(at) else dims

    def _joined(
        self, before: Piece, after: Piece, chain: list[int], value: str, viewed: str, dims: Dims
    ) -> Piece | None:
        index = self.index
        members = sorted((*before.members, *chain, *after.members))
        if before.outputs != [value] or len({self.contexts[m] for m in members}) > 1:
            return None
        if index.values[value].shape != before.shape or len(members) > MAX_MEMBERS:
            return None
        if any(index.nodes[index.maker_of(v)].kind == "view" for v in after.outputs):
            return None
        if any(self._written_later(v, before.members[0]) for v in before.inputs):
            return None
        whole = self.partition.look(members)
        if set(whole.outputs) != set(after.outputs) or len(members) > MAX_LIVE_VALUES:
            return None
        if len(whole.inputs) + len(whole.outputs) > MAX_OPERANDS:
            return None
        through = compose(dims, self._dims(after, viewed))
        if through is None:
            return None
        maps: dict[str, Dims] = {v: self._dims(after, v) for v in after.inputs if v != viewed}
        for operand in before.inputs:
            own = compose(self._dims(before, operand), through)
            if own is None or maps.setdefault(operand, own) != own:
                return None  # parts of a split in another order, or one operand at two places
        if set(maps) != set(whole.inputs):
            return None
        whole.outputs = after.outputs
        whole.shape = after.shape
        whole.maps = maps
        whole.views = sorted((*before.views, *chain, *after.views))
        whole.parts = [part for piece in (before, after) for part in (piece.parts or [piece])]
        self.owner.update(dict.fromkeys(members, whole))
        return whole

    def _dims(self, piece: Piece, value: str) -> Dims:
        known = piece.maps.get(value)
        if known is not None:
            return known
        return operand_dims(self.index.values[value].shape, piece.shape)

    def _written_later(self, value: str, position: int) -> bool:
        """Whether an operand is written in place after the group may have read it."""
        storage = self.index.values[value].storage
        return any(writer > position for writer in self.index.writers.get(storage, ()))

    def _ordered(self) -> bool:
        """Whether all kernels can still be ordered: values saved for backward are paths as well."""
        index = self.index
        step = [id(self.owner[i]) if i in self.owner else i for i in range(len(index.nodes))]
        needs: dict[int, set[int]] = {one: set() for one in step}
        for position, own in enumerate(step):
            needs[own].update(step[d] for d in index.dependencies[position] if step[d] != own)
        waiting = {one: len(earlier) for one, earlier in needs.items()}
        readers: dict[int, list[int]] = {}
        for one, earlier in needs.items():
            for other in earlier:
                readers.setdefault(other, []).append(one)
        ready = [one for one, count in waiting.items() if not count]
        done = 0
        while ready:
            done += 1
            for reader in readers.get(ready.pop(), ()):
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready.append(reader)
        return done == len(waiting)
