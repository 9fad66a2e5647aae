"""Growing groups of elementwise ops so that each can run as one kernel.

One pass in recorded order.  Each op tries to join the groups of its producers.  Joining is legal
when no path leaves the group and comes back, *with every other group contracted to one kernel*:
then all groups together can still be ordered.  Paths are followed with bit masks: every group that
may still grow owns a bit, and every op knows the bits of the groups it can be reached from.  Bits
are handed back when a group can no longer grow, so that masks stay short and the whole pass is
near-linear in the number of ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusion_advisor.analysis.graph_index import Context, GraphIndex, broadcasts_to
from fusion_advisor.analysis.legality import Refusal, context

_SLOTS_BEFORE_CLEANING = 64  # masks of one machine word at first; then cleaning is amortised


class Group:
    """A set of ops that is to become one kernel; ``bits`` and ``reached`` are masks."""

    __slots__ = ("bits", "members", "pending", "reached", "read", "shape")

    def __init__(self, member: int, shape: tuple[int, ...], reached: int, pending: int) -> None:
        self.members = [member]
        self.shape = shape
        self.reached = reached  # groups with a path to this one
        self.pending = pending  # joinable consumers still to come
        self.bits = 0
        self.read = False  # some op outside depends on it already


class Growth:
    """The outcome of one pass: the group of every member, and why neighbours did not join.

    ``contexts`` numbers what must be equal for two ops to share a kernel.  ``positions``, in
    recorded order, restricts the pass to some ops; what lies between them is then taken not to
    matter, which holds inside a group that is legal itself.
    """

    def __init__(
        self, index: GraphIndex, contexts: Sequence[int], positions: Sequence[int] | None = None
    ) -> None:
        self.index = index
        self.group_of: list[Group | None] = [None] * len(index.nodes)
        self.rejections: dict[tuple[int, int], Refusal] = {}
        self.contexts = contexts
        self._joinable = [0] * len(index.nodes)
        self._remaining = [0] * len(index.nodes)
        self._masks: dict[int, int] = {}  # of ops outside live groups; only those not zero
        self._slots: list[Group | None] = []
        self._free: list[int] = []
        self._stale = 0  # bits of groups that came to be reached by more after others read them
        self._clean_at = _SLOTS_BEFORE_CLEANING
        order = range(len(index.nodes)) if positions is None else positions
        self._count_uses(order)
        infos = index.infos
        for position in order:
            if infos[position] is None:
                self._pass(position)
            else:
                self._join(position)

    def groups(self) -> list[list[int]]:
        """Members of every group of two or more, each in order, ordered by first member."""
        seen: set[int] = set()
        found: list[list[int]] = []
        for group in self.group_of:
            if group is not None and len(group.members) > 1 and id(group) not in seen:
                seen.add(id(group))
                found.append(sorted(group.members))
        return found

    # -- preparation ---------------------------------------------------------------------------

    def _count_uses(self, order: Iterable[int]) -> None:
        remaining, joinable = self._remaining, self._joinable
        index, contexts = self.index, self.contexts
        for position in order:
            for earlier in index.dependencies[position]:
                remaining[earlier] += 1
            for producer in index.joinable[position]:
                if contexts[producer] == contexts[position]:
                    joinable[producer] += 1

    # -- masks ---------------------------------------------------------------------------------

    def _reach(self, position: int) -> int:
        """Groups from which there is a path to whatever reads the op at ``position``."""
        group = self.group_of[position]
        if group is not None and group.bits:
            return group.reached | group.bits
        return self._masks.get(position, 0)

    def _read(self, position: int, reader: Group | None = None) -> int:
        """The reach of everything the op at ``position`` depends on, outside ``reader``."""
        group_of, masks = self.group_of, self._masks
        mask = 0
        for earlier in self.index.dependencies[position]:
            group = group_of[earlier]
            if group is not None and group.bits:
                if group is not reader:
                    group.read = True
                    mask |= group.reached | group.bits
            elif masks:
                mask |= masks.get(earlier, 0)
        return mask

    def _close(self, mask: int) -> int:
        """Add what reaches the groups in ``mask`` that changed after the mask was made."""
        stale = mask & self._stale
        while stale:
            low = stale & -stale
            stale ^= low
            group = self._slots[low.bit_length() - 1]
            if group is not None:
                mask |= group.reached | group.bits
        return mask

    def _release(self, position: int) -> None:
        """Count the op's dependencies as used; forget masks nobody will ask for."""
        remaining, masks = self._remaining, self._masks
        for earlier in self.index.dependencies[position]:
            remaining[earlier] -= 1
            if masks and not remaining[earlier]:
                masks.pop(earlier, None)

    def _allocate(self, group: Group) -> None:
        if self._free:
            slot = self._free.pop()
            self._slots[slot] = group
        else:
            slot = len(self._slots)
            self._slots.append(group)
        group.bits = 1 << slot

    def _clean(self) -> None:
        """Take back the bits of groups that cannot grow any more, and all but one of the rest."""
        groups = list({id(g): g for g in self._slots if g is not None}.values())
        live = [group for group in groups if group.pending]
        keep = 0
        folded: list[tuple[int, int]] = []  # several bits of one group -> its lowest
        for group in live:
            low = group.bits & -group.bits
            keep |= low
            if group.bits != low:
                folded.append((group.bits, low))

        def cleaned(mask: int) -> int:
            mask = self._close(mask)
            for bits, low in folded:
                if mask & bits:
                    mask |= low
            return mask & keep

        masks = {position: cleaned(mask) for position, mask in self._masks.items()}
        reached = [cleaned(group.reached) for group in groups]
        for group, mask in zip(groups, reached, strict=True):
            group.reached = mask
            if not group.pending:
                masks.update((m, mask) for m in group.members if self._remaining[m])
            group.bits &= -group.bits if group.pending else 0
        for slot, owner in enumerate(self._slots):
            if owner is not None and not keep >> slot & 1:
                self._slots[slot] = None
                self._free.append(slot)
        self._masks = {position: mask for position, mask in masks.items() if mask}
        self._stale = 0
        self._clean_at = _SLOTS_BEFORE_CLEANING + 2 * len(live) + len(self._masks) // 2

    # -- the pass ------------------------------------------------------------------------------

    def _pass(self, position: int) -> None:
        """An op outside all groups: it carries on what its inputs are reached from."""
        mask = self._read(position)
        self._release(position)
        if mask and self._remaining[position]:
            self._masks[position] = mask

    def _join(self, position: int) -> None:
        """A possible member: merge the groups of its producers where that is legal."""
        index = self.index
        shape = index.specs[index.makes[position][0]].shape
        if not index.joinable[position]:
            self._start(position, shape)
            self._finish(position)
            return
        space = shape
        accepted: list[Group] = []
        verdicts: dict[int, Refusal | None] = {}
        own_context = self.contexts[position]
        # The latest producer first: it is the likeliest to lie on a path from the others.
        for producer in index.joinable[position]:
            group = self.group_of[producer]
            if group is None or self.contexts[producer] != own_context:
                continue
            group.pending -= 1
            key = id(group)
            if key not in verdicts:
                refusal = None
                if not shape == space == group.shape:
                    refusal = self._shape_refusal(position, producer, group, space)
                verdicts[key] = refusal or self._path_refusal(position, group, accepted)
                if verdicts[key] is None:
                    accepted.append(group)
                    space = larger_shape(space, group.shape)
            refusal = verdicts[key]
            if refusal is not None:
                self.rejections[producer, position] = refusal
        if accepted:
            group = accepted[0]
            for other in accepted[1:]:
                group = self._merge(group, other)
            self._add(position, group)
            group.shape = space
        else:
            self._start(position, shape)
        self._finish(position)

    def _finish(self, position: int) -> None:
        self._release(position)
        if len(self._slots) - len(self._free) > self._clean_at:
            self._clean()

    def _start(self, position: int, shape: tuple[int, ...]) -> None:
        reached = self._read(position)
        pending = self._joinable[position]
        group = Group(position, shape, reached, pending)
        self.group_of[position] = group
        if pending:
            group.reached = self._close(reached)
            self._allocate(group)
        elif reached and self._remaining[position]:
            self._masks[position] = reached

    def _add(self, position: int, group: Group) -> None:
        reached = self._read(position, group)
        group.members.append(position)
        group.pending += self._joinable[position]
        self.group_of[position] = group
        new = self._close(reached) & ~(group.reached | group.bits)
        if new:
            group.reached |= new
            self._spread(group, new)

    def _merge(self, first: Group, second: Group) -> Group:
        """Union of two groups that may be one kernel; the larger object survives."""
        if len(first.members) < len(second.members):
            first, second = second, first
        for member in second.members:
            self.group_of[member] = first
        first.members.extend(second.members)
        first.pending += second.pending
        first.read |= second.read
        mask = second.bits
        while mask:
            low = mask & -mask
            mask ^= low
            self._slots[low.bit_length() - 1] = first
        first.bits |= second.bits
        first.reached = (first.reached | second.reached) & ~first.bits
        # Whoever was reached from one part is now reached from all of it.
        self._spread(first, first.reached | first.bits)
        return first

    def _spread(self, group: Group, new: int) -> None:
        """Tell the groups downstream of ``group`` that they are reached from ``new`` as well."""
        if not group.read:
            return
        bits = group.bits
        self._stale |= bits
        for other in self._slots:
            if other is not None and other is not group and other.reached & bits:
                other.reached |= new & ~other.bits
                self._stale |= other.bits

    # -- reasons -------------------------------------------------------------------------------

    def _path_refusal(self, position: int, group: Group, accepted: list[Group]) -> Refusal | None:
        """Whether joining would make a path that leaves the kernel and comes back."""
        bits = group.bits
        for earlier in self.index.dependencies[position]:
            other = self.group_of[earlier]
            if other is not None and (other is group or other in accepted):
                continue
            reach = self._reach(earlier)
            if reach and (reach & bits or self._close(reach) & bits):
                return self._path_message(position, earlier, group)
        for other in accepted:
            if self._close(other.reached) & bits or self._close(group.reached) & other.bits:
                return (
                    "non-convex",
                    f"{self._name(position)} needs two groups of which one already needs the "
                    "other: joining all would make a path that leaves the kernel and comes back",
                )
        return None

    def _path_message(self, position: int, between: int, group: Group) -> Refusal:
        index = self.index
        node = index.nodes[position]
        if self._overwrites_what_is_read(between, group):
            return (
                "mutated-between",
                f"{self._name(between)} overwrites what the group reads before "
                f"{self._name(position)} reads it again",
            )
        made = set(index.nodes[between].outputs)
        if made.isdisjoint(node.inputs):
            if index.nodes[between].kind == "host-sync":
                return (
                    "host-sync",
                    f"{self._name(between)} brings a value that needs the group to Python before "
                    f"{self._name(position)} runs, and what runs next may depend on it",
                )
            return (
                "mutated-between",
                f"{self._name(between)} must run between the two: "
                "they share memory that is written in place",
            )
        return (
            "non-convex",
            f"{self._name(position)} also needs {self._name(between)}, which itself needs the "
            "group: the path leaves the kernel and comes back",
        )

    def _overwrites_what_is_read(self, position: int, group: Group) -> bool:
        index = self.index
        written = {index.values[value].storage for value in index.nodes[position].mutates}
        return bool(written) and any(
            index.specs[value].storage in written
            for member in group.members
            for value in index.reads[member]
        )

    def _name(self, position: int) -> str:
        node = self.index.nodes[position]
        return f"{node.op} ({node.id})"

    def _shape_refusal(
        self, position: int, producer: int, group: Group, space: tuple[int, ...]
    ) -> Refusal | None:
        """Whether the op fits one iteration space with the group and with those it has joined."""
        index = self.index
        if not (broadcasts_to(space, group.shape) or broadcasts_to(group.shape, space)):
            return "shape", f"iterates over {space}, its producer's group over {group.shape}"
        whole = larger_shape(space, group.shape)
        for owner in (producer, position):
            for result in index.makes[owner]:
                inner = index.specs[result]
                if inner.shape != whole and not self._stays_inside(owner, inner.id):
                    return (
                        "output-shape",
                        f"the result of shape {inner.shape} of {self._name(owner)} is needed "
                        f"elsewhere, while one kernel would iterate over {whole}",
                    )
        return None

    def _stays_inside(self, position: int, value: str) -> bool:
        """Whether every user of the value could be in the same kernel."""
        index = self.index
        if index.kept(value):
            return False
        own = self.contexts[position]
        forward = index.nodes[position].phase == "forward"
        return all(
            (index.infos[user] is not None and self.contexts[user] == own)
            or (forward and (index.nodes[user].phase == "backward" or user in index.keeping))
            for user in index.users_of(value)
        )


def whole_run_contexts(index: GraphIndex) -> list[int]:
    """One number per op: equal where device, phase and the like are equal."""
    numbers: dict[Context, int] = {}
    return [numbers.setdefault(context(node), len(numbers)) for node in index.nodes]


def larger_shape(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The one of two shapes that the other broadcasts into."""
    return second if broadcasts_to(first, second) else first
