"""From grown groups to candidates: cut what one kernel cannot write or hold, name its operands.

Every cut splits a group into a part that runs first (closed under "needs") and the rest, which
keeps both parts free of paths that leave and come back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fusion_advisor.analysis.graph_index import GraphIndex, is_dense, same_layout
from fusion_advisor.analysis.growth import larger_shape
from fusion_advisor.analysis.legality import Refusal
from fusion_advisor.analysis.quick_records import quickly
from fusion_advisor.ops.regions import Walk
from fusion_advisor.records import Blocker, FusionCandidate, OperandMap, Region

# A CUDA launch and a Numba signature stay manageable, and every pointer costs two registers.
MAX_OPERANDS = 32
# Values of one element that are alive at once: beyond this a thread nears 128 registers, where
# half of an H100's warps no longer fit.
MAX_LIVE_VALUES = 48
MAX_MEMBERS = 128  # compile time of one kernel grows faster than its length

_candidate, _operand = quickly(FusionCandidate), quickly(OperandMap)


@dataclass(slots=True)
class Piece:
    """Members (positions, in order) of what may become a candidate, and how they are seen.

    ``views`` are the members that only change the indexing, ``shared`` views that it reads through
    and that stay, ``regions`` the loops of what views joined, ``parts`` what these joined.
    """

    members: list[int]
    shape: tuple[int, ...]
    inputs: list[str]
    outputs: list[str]
    saved: list[str]
    views: Sequence[int] = ()
    shared: Sequence[int] = ()
    regions: tuple[Region, ...] = ()
    parts: Sequence[Piece] = ()


class Partition:
    """Cuts groups into pieces; ``cuts`` says, per member that was cut off, why."""

    def __init__(self, index: GraphIndex, *, placed: bool = False) -> None:
        self.index = index
        self.placed = placed  # one place in the recorded order must do for all members
        self.cuts: dict[int, Refusal] = {}
        self._dense: dict[int, bool] = {}  # by the value's form

    def pieces(self, group: list[int]) -> list[Piece]:
        """The legal pieces of one grown group, each of two members or more."""
        work = [group]
        done: list[Piece] = []
        while work:
            members = work.pop()
            if len(members) < 2:
                continue
            piece = self.look(members)
            parts = self._limit_cut(piece) or self._output_cut(piece) or self._halves_cut(piece)
            if parts is None and self.placed:
                parts = self.placement_cut(piece)
            if parts is None:
                if self.read_halves(piece) and self.reads(piece):
                    done.append(piece)
            else:
                work.extend(component for part in parts for component in self._components(part))
        return sorted(done, key=lambda piece: piece.members[0])

    def look(self, members: list[int]) -> Piece:
        """Find the operands, outputs and iteration space of the members as one kernel."""
        index = self.index
        nodes, specs, users, alive = index.nodes, index.specs, index.users, index.alive
        inside = set(members)
        inputs: dict[str, None] = {}
        outputs: list[str] = []
        saved: list[str] = []
        forward = nodes[members[0]].phase == "forward"
        space = specs[index.makes[members[0]][0]].shape
        for member in members:
            for value, maker in zip(nodes[member].inputs, index.sources[member], strict=True):
                if maker not in inside:
                    inputs[value] = None
            results = index.makes[member]
            shape = specs[results[0]].shape  # further results that are needed now share it
            if shape != space:
                space = larger_shape(space, shape)
            for result in results:
                if alive[result]:
                    outputs.append(specs[result].id)
                elif users[result] and not inside.issuperset(users[result]):
                    needed = self._needed_now(users[result], inside, forward=forward)
                    (outputs if needed else saved).append(specs[result].id)
        if not outputs:  # nobody looks at the results: the last one stands for the group
            last = nodes[members[-1]].outputs[0]
            outputs = [last]
            saved = [value for value in saved if value != last]
        return Piece(members, space, list(inputs), outputs, saved)

    def _needed_now(self, users: Sequence[int], inside: set[int], *, forward: bool) -> bool:
        """Whether users outside need the value now, not only later, in backward."""
        nodes, keeping = self.index.nodes, self.index.keeping
        return not forward or any(
            user not in keeping and nodes[user].phase != "backward"
            for user in users
            if user not in inside
        )

    # -- cuts ----------------------------------------------------------------------------------

    def _output_cut(self, piece: Piece) -> list[list[int]] | None:
        """Cut off what makes a result that the kernel cannot write beside the others."""
        index = self.index
        first: set[int] = set()
        refusal: Refusal | None = None
        results = [index.numbers[value] for value in piece.outputs]
        full = [v for v in results if index.specs[v].shape == piece.shape]
        reference = full[-1] if full else None
        for value in results:
            spec = index.specs[value]
            member = index.makers[value]
            if spec.shape != piece.shape:
                refusal = ("output-shape", f"its result is needed at shape {spec.shape} as well")
            elif index.nodes[member].kind in ("view", "metadata"):
                refusal = ("view", "its result is another name of its input and must stay one")
            elif reference is not None and not self._same_layout(value, reference):
                refusal = ("layout", "its result is laid out differently from the others")
            elif not self._is_dense(value):
                refusal = ("layout", "its result does not fill one stretch of memory")
            else:
                continue
            first.add(member)
            self.cuts[member] = refusal
        if not first:
            return None
        ancestors = self._ancestors(first, piece.members)
        rest = [m for m in piece.members if m not in ancestors]
        if rest:
            return [[m for m in piece.members if m in ancestors], rest]
        # The last result itself is at fault: it alone runs after the others.
        last = max(first)
        return [[m for m in piece.members if m != last], [last]]

    def _halves_cut(self, piece: Piece) -> list[list[int]] | None:
        """Cut off what makes an operand of which a member reads both halves."""
        index = self.index
        inside = set(piece.members)
        first = {
            made
            for member in self._halving(piece)
            for made in index.sources[member]
            if made in inside
        }
        if not first:
            return None
        for maker in first:
            self.cuts[maker] = (
                "view",
                "its result is read in halves, which end a group",
            )
        ancestors = self._ancestors(first, piece.members)
        return [
            [m for m in piece.members if m in ancestors],
            [m for m in piece.members if m not in ancestors],
        ]

    def _halving(self, piece: Piece) -> list[int]:
        halving = self.index.halving
        return [member for member in piece.members if member in halving] if halving else []

    def reads(self, piece: Piece) -> bool:
        """Whether it reads any tensor: a call without one says neither device nor sizes."""
        if not piece.inputs:
            what = "the group reads no tensor: all that it makes are constants"
            self.cuts.update(dict.fromkeys(piece.members, ("factory", what)))
        return bool(piece.inputs)

    def read_halves(self, piece: Piece) -> bool:
        """Give a piece whose members read halves of operands its loop; False if there is none."""
        if not self._halving(piece):
            return True
        index = self.index
        nodes = [index.nodes[member] for member in piece.members]
        walk = Walk({value: node for node in nodes for value in node.outputs}, index.values, ())
        loops = walk.regions(piece.outputs, lambda value: 0)
        if loops is None or len(loops) != 1:
            return False
        piece.regions = tuple([region for region, _ in loops])
        return len(piece.regions[0].accesses) + len(piece.outputs) <= MAX_OPERANDS

    def _same_layout(self, first: int, second: int) -> bool:
        index = self.index
        same = index.forms[first] == index.forms[second]
        return same or same_layout(index.specs[first], index.specs[second])

    def _is_dense(self, value: int) -> bool:
        form = self.index.forms[value]
        dense = self._dense.get(form)
        if dense is None:
            dense = self._dense[form] = is_dense(self.index.specs[value])
        return dense

    def placement_cut(self, piece: Piece) -> list[list[int]] | None:
        """In source, one call must stand after all inputs and before all users of outputs.

        Checked against the recorded order of the ops, view ops included.
        """
        index = self.index
        inside = set(piece.members)
        latest_input = -1
        earliest_use = len(index.nodes)
        for k, member in enumerate(piece.members):
            for earlier in index.dependencies[member]:
                if earlier not in inside:
                    latest_input = max(latest_input, earlier)
            if latest_input > earliest_use:
                self.cuts[member] = (
                    "placement",
                    f"{index.nodes[latest_input].op} ({index.nodes[latest_input].id}) must run "
                    "first, after a result of the group is already used",
                )
                return [piece.members[:k], piece.members[k:]]
            for value in index.makes[member]:
                for user in index.users[value]:
                    if user not in inside and user not in index.keeping:
                        earliest_use = min(earliest_use, user)
                        break
            for value in index.reads[member] if index.writers else ():
                for writer in index.writers.get(index.specs[value].storage, ()):
                    if writer > member and writer not in inside:
                        earliest_use = min(earliest_use, writer)
                        break
        return None

    def _limit_cut(self, piece: Piece) -> list[list[int]] | None:
        """Split a group that is too large for one kernel where the fewest bytes cross."""
        members = piece.members
        if (
            len(members) <= MAX_MEMBERS
            and len(piece.inputs) + len(piece.outputs) <= MAX_OPERANDS
            and len(members) <= MAX_LIVE_VALUES
        ):
            return None
        crossing, fits = self._crossing_bytes(piece)
        if fits:
            return None
        parts: list[list[int]] = []
        start = 0
        while start < len(members):
            end = self._longest_fit(members, start, set(piece.outputs))
            if end < len(members):
                middle = start + max(1, (end - start) // 2)
                end = min(range(middle, end + 1), key=lambda k: (crossing[k], -k))
                self.cuts[members[end - 1]] = (
                    "registers",
                    f"more than {MAX_LIVE_VALUES} live values, {MAX_OPERANDS} operands or "
                    f"{MAX_MEMBERS} ops in one kernel",
                )
            parts.append(members[start:end])
            start = end
        return parts if len(parts) > 1 else None

    def _crossing_bytes(self, piece: Piece) -> tuple[list[int], bool]:
        """Bytes that are made before and used after each place, and whether one kernel fits."""
        index = self.index
        members = piece.members
        place = {member: k for k, member in enumerate(members)}
        change = [0] * (len(members) + 1)
        alive = [0] * (len(members) + 1)
        for k, member in enumerate(members):
            for value in index.makes[member]:
                spec = index.specs[value]
                last = max((place.get(u, -1) for u in index.users[value]), default=-1)
                if last > k:
                    size = item_bytes(spec.dtype) * element_count(spec.shape)
                    change[k + 1] += size
                    change[last + 1 if last + 1 <= len(members) else last] -= size
                    alive[k + 1] += 1
                    alive[last + 1 if last + 1 <= len(members) else last] -= 1
        crossing = [0] * (len(members) + 1)
        live = most = 0
        total = 0
        for k in range(len(members) + 1):
            total += change[k]
            live += alive[k]
            crossing[k] = total
            most = max(most, live)
        fits = (
            len(members) <= MAX_MEMBERS
            and most + len(piece.outputs) <= MAX_LIVE_VALUES
            and len(piece.inputs) + len(piece.outputs) <= MAX_OPERANDS
        )
        return crossing, fits

    def _longest_fit(self, members: list[int], start: int, outputs: set[str]) -> int:
        """The furthest end such that ``members[start:end]`` holds to the limits.

        A value made inside counts as an operand as soon as a later member may need it.
        """
        index = self.index
        own: dict[str, int] = {}
        external: set[str] = set()
        written = 0
        end_of_list = members[-1]
        for k in range(start, len(members)):
            node = index.nodes[members[k]]
            external.update(v for v in node.inputs if v not in own)
            for value in node.outputs:
                own[value] = max(index.users_of(value), default=members[k])
                written += value in outputs
            waiting = sum(1 for last in own.values() if members[k] < last <= end_of_list)
            if k > start and (
                k - start >= MAX_MEMBERS
                or waiting + written > MAX_LIVE_VALUES
                or len(external) + written + min(waiting, 1) > MAX_OPERANDS
            ):
                return k
        return len(members)

    # -- sets of members -----------------------------------------------------------------------

    def _ancestors(self, seeds: set[int], members: list[int]) -> set[int]:
        """The seeds and every member they need, directly or not."""
        inside = set(members)
        found = set(seeds)
        for member in reversed(members):
            if member in found:
                found.update(d for d in self.index.dependencies[member] if d in inside)
        return found

    def _components(self, part: list[int]) -> list[list[int]]:
        """Members that hang together by producer and consumer."""
        index = self.index
        parent = {member: member for member in part}

        def root(member: int) -> int:
            while parent[member] != member:
                parent[member] = parent[parent[member]]
                member = parent[member]
            return member

        for member in part:
            for value in index.nodes[member].inputs:
                made = index.maker_of(value)
                if made in parent:
                    parent[root(made)] = root(member)
        groups: dict[int, list[int]] = {}
        for member in part:
            groups.setdefault(root(member), []).append(member)
        return list(groups.values())


@functools.lru_cache(maxsize=4096)
def operand_dims(shape: tuple[int, ...], space: tuple[int, ...]) -> tuple[int | None, ...]:
    """How an operand of ``shape`` broadcasts over the iteration ``space``."""
    lead = len(space) - len(shape)
    return tuple(
        None if d < lead or (shape[d - lead] == 1 and size != 1) else d - lead
        for d, size in enumerate(space)
    )


def make_candidate(
    index: GraphIndex, piece: Piece, name: str, blockers: Sequence[Blocker]
) -> FusionCandidate:
    """The record of a piece, which ends where the blockers say."""
    nodes, values, regions, shape = index.nodes, index.values, piece.regions, piece.shape
    return _candidate(
        id=name,
        nodes=tuple([nodes[m].id for m in piece.members]),
        inputs=tuple(
            [
                _operand(value=v, dims=() if regions else operand_dims(values[v].shape, shape))
                for v in piece.inputs
            ]
        ),
        outputs=tuple(piece.outputs),
        saved=tuple(piece.saved),
        shape=shape,
        pattern="chain" if _is_chain(index, piece) else "dag",
        views=tuple([nodes[m].id for m in piece.views]),
        shared=tuple([nodes[m].id for m in piece.shared]),
        regions=regions,
        blockers=tuple(blockers),
    )


def _is_chain(index: GraphIndex, piece: Piece) -> bool:
    """One op after the other, each using the one before, and one result at the end."""
    if len(piece.outputs) != 1:
        return False
    inside = set(piece.members)
    before = piece.members[0]
    for member in piece.members[1:]:
        sources = index.sources[member]
        if before not in sources:
            return False
        for made in sources:
            if made != before and made in inside:
                return False
        before = member
    return inside.isdisjoint(index.sources[piece.members[0]])


def element_count(shape: Iterable[int]) -> int:
    """The number of elements of a shape."""
    count = 1
    for size in shape:
        count *= size
    return count


def item_bytes(dtype: str) -> int:
    """Bytes of one element; unknown dtypes count as four bytes."""
    return _ITEM_BYTES.get(dtype, 4)


_ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
