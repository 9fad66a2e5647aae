"""Algorithmic memory traffic: the distinct bytes each op, and each fused kernel, must move.

A broadcast operand counts its own size, an operand read twice by one kernel counts once, views
and metadata ops move nothing.  In a plan, a group moves its distinct external inputs and the
results that others need.  Cache effects are not in these numbers; they enter the time model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from fusion_advisor.analysis.graph_index import GraphIndex, Numbers, build_index
from fusion_advisor.analysis.partition import element_count, item_bytes
from fusion_advisor.ops import lookup, unread_inputs
from fusion_advisor.ops.elements import distinct_elements
from fusion_advisor.records import FusionCandidate, OpGraph, OpNode, Region, TensorSpec
from fusion_advisor.view_steps import ViewStep

_UNWRITTEN_FACTORIES = ("aten.empty", "aten.new_empty")
_MOVES_NOTHING = frozenset({"view", "metadata"})
_MEMORY = attrgetter("storage", "version", "offset", "shape", "strides", "dtype")


@dataclass(frozen=True, slots=True)
class OpTraffic:
    """Bytes that ops of one form touch: of each distinct memory read, of each result written."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    total: int
    idle: bool  # touches no memory at all


_NOTHING = OpTraffic((), (), 0, idle=True)


class TrafficModel:
    """Bytes per op of an indexed graph, computed once.

    ``memory`` has one number per distinct memory: values that alias each other exactly share it.
    ``read_from[i]`` and ``written_to[i]`` are the memories of node ``i``, in the order of the
    bytes in ``ops[i]``.
    """

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self._bytes: dict[int, int] = {}  # by the value's form
        self._places: dict[int, tuple[OpTraffic, Numbers]] = {}  # by the call's form
        self.memory = _memories(index)
        self._unread: dict[int, list[int]] = {}  # value -> positions that take its shape alone
        self.ops: list[OpTraffic] = []
        self.read_from: list[Numbers] = []
        self.written_to: list[Numbers] = []
        for position in range(len(index.nodes)):
            self._add(position)
        self.total = sum([op.total for op in self.ops])  # of the whole run, as recorded

    def size(self, value: int) -> int:
        """Distinct bytes of a value; dimensions it is expanded over do not count."""
        form = self.index.forms[value]
        size = self._bytes.get(form)
        if size is None:
            size = self._bytes[form] = distinct_bytes(self.index.specs[value])
        return size

    def candidate(self, candidate: FusionCandidate) -> tuple[int, int]:
        """Bytes of a group before (op by op) and after (one kernel)."""
        positions, numbers = self.index.positions, self.index.numbers
        before = sum(self.ops[positions[node]].total for node in candidate.nodes)
        inputs: dict[int, int] = {}
        for value, size in self.read(candidate):
            memory = self.memory[value]
            inputs[memory] = max(size, inputs.get(memory, 0))
        written = [self.size(numbers[value]) for value in candidate.outputs]
        return before, sum(inputs.values()) + sum(written)

    def read(
        self, candidate: FusionCandidate, regions: Sequence[Region] | None = None
    ) -> list[tuple[int, int]]:
        """Each operand (by number) and its distinct bytes that a kernel reads, in these regions."""
        numbers = self.index.numbers
        if not candidate.regions:
            read = [numbers[operand.value] for operand in candidate.inputs]
            if self._unread:
                read = [value for value in read if self._is_read(value, candidate)]
            return [(value, self.size(value)) for value in read]
        views: dict[str, list[tuple[ViewStep, ...]]] = {}
        for region in candidate.regions if regions is None else regions:
            for access in region.accesses:
                views.setdefault(access.value, []).append(access.steps)
        found = []
        for name, own in views.items():
            if not self._is_read(numbers[name], candidate):
                continue
            spec = self.index.values[name]
            count = distinct_elements(spec.shape, spec.strides, own)
            found.append((numbers[name], count * item_bytes(spec.dtype)))
        return found

    def _is_read(self, value: int, candidate: FusionCandidate) -> bool:
        """Whether some op of the group reads the operand's elements."""
        unread = self._unread.get(value)
        if unread is None:
            return True
        inside = {self.index.positions[node] for node in candidate.computed}
        return any(user in inside and user not in unread for user in self.index.users[value])

    def _add(self, position: int) -> None:
        index, memory = self.index, self.memory
        call = index.calls[position]
        read = index.reads[position]
        known = self._places.get(call)
        if known is None:
            known = self._places[call] = self._look(position)
        op, places = known
        if len(places) != len(read):
            for place, value in enumerate(read):
                if place not in places:
                    self._unread.setdefault(value, []).append(position)
            read = tuple([read[place] for place in places])
        read_from = tuple([memory[value] for value in read])
        if len(read) > 1 and len(set(read_from)) < len(read):  # two names of one memory
            read = tuple({memory[value]: value for value in read}.values())
            op = self._moved(index.nodes[position].kind, read, index.makes[position])
            read_from = tuple([memory[value] for value in read])
        self.ops.append(op)
        self.read_from.append(read_from)
        self.written_to.append(
            tuple([memory[value] for value in index.makes[position]]) if op.writes else ()
        )

    def _look(self, position: int) -> tuple[OpTraffic, Numbers]:
        """What calls of this form move, and the places of the operands that they read."""
        index = self.index
        node = index.nodes[position]
        if not moves_memory(node):
            return _NOTHING, ()
        info = lookup(node.op)
        unread = unread_inputs(node, info.parameters, info.unread) if info is not None else ()
        places = [place for place, value in enumerate(node.inputs) if value not in unread]
        read = tuple([index.reads[position][place] for place in places])
        return self._moved(node.kind, read, index.makes[position]), tuple(places)

    def _moved(self, kind: str, read: Numbers, written: Numbers) -> OpTraffic:
        reads = tuple([self.size(value) for value in read])
        writes = tuple([self.size(value) for value in written])
        if kind == "indexing" and reads:
            # A look-up reads as many elements of its table as it gives, not the whole table.
            reads = (min(reads[0], sum(writes)), *reads[1:])
        return OpTraffic(reads, writes, sum(reads) + sum(writes), idle=not reads and not writes)


def moves_memory(node: OpNode) -> bool:
    """Whether an op moves bytes: views, metadata ops and new memory left unwritten do not."""
    if node.kind in _MOVES_NOTHING:
        return False
    return node.kind != "factory" or not node.op.startswith(_UNWRITTEN_FACTORIES)


def _memories(index: GraphIndex) -> list[int]:
    """Per value the first one of exactly its memory."""
    living = Counter([spec.storage for spec in index.specs])
    known: dict[tuple[object, ...], int] = {}
    return [
        value if living[spec.storage] == 1 else known.setdefault(_MEMORY(spec), value)
        for value, spec in enumerate(index.specs)
    ]


def distinct_bytes(spec: TensorSpec) -> int:
    """Bytes of memory a tensor shows; a dimension of stride 0 shows the same bytes again."""
    if 0 in spec.strides:
        shape: Iterable[int] = (
            size
            for size, stride in zip(spec.shape, spec.strides, strict=True)
            if stride or size == 0
        )
    else:
        shape = spec.shape
    return element_count(shape) * item_bytes(spec.dtype)


def op_bytes(graph: OpGraph) -> dict[str, tuple[int, int]]:
    """Distinct bytes read and written by each op, by node id; they add up to the whole run's."""
    model = TrafficModel(build_index(graph))
    return {
        node.id: (sum(op.reads), sum(op.writes))
        for node, op in zip(graph.nodes, model.ops, strict=True)
    }


def traffic(graph: OpGraph, candidates: Iterable[FusionCandidate]) -> tuple[int, int]:
    """Bytes of the whole run as recorded, and with every candidate as one kernel."""
    model = TrafficModel(build_index(graph))
    return run_traffic(model, candidates)


def run_traffic(model: TrafficModel, candidates: Iterable[FusionCandidate]) -> tuple[int, int]:
    """As :func:`traffic`, for a model that is there already."""
    before = model.total
    after = before
    for candidate in candidates:
        old, new = model.candidate(candidate)
        after += new - old
    return before, after
