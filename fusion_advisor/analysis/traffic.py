"""Algorithmic memory traffic: the distinct bytes each op, and each fused kernel, must move.

A broadcast operand counts its own size, an operand read twice by one kernel counts once, views
and metadata ops move nothing.  In a plan, a group moves its distinct external inputs and the
results that others need.  Cache effects are not in these numbers; they enter the time model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusion_advisor.analysis.graph_index import GraphIndex, build_index
from fusion_advisor.analysis.partition import element_count, item_bytes
from fusion_advisor.ops import functional_name
from fusion_advisor.records import FusionCandidate, OpGraph, OpNode, TensorSpec

# Ops whose written argument is overwritten without being read.
_WRITE_ONLY = frozenset(
    {"aten.copy.default", "aten.fill.Scalar", "aten.fill.Tensor", "aten.zero.default"}
)
_UNWRITTEN_FACTORIES = ("aten.empty", "aten.new_empty")
_MOVES_NOTHING = frozenset({"view", "metadata"})


@dataclass(frozen=True, slots=True)
class OpTraffic:
    """What one op touches: (memory, bytes) read and written; ``memory`` names the bytes."""

    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]
    total: int  # distinct bytes read plus distinct bytes written


_NOTHING = OpTraffic((), (), 0)


class TrafficModel:
    """Bytes per op of an indexed graph, computed once."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self._sizes: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._seen: dict[tuple[object, ...], str] = {}
        self._bytes: dict[tuple[object, ...], int] = {}
        self._shared = _shared_storages(index)
        self.ops: list[OpTraffic] = [self._op(node) for node in index.nodes]
        self.total = sum(op.total for op in self.ops)  # of the whole run, as recorded

    def size(self, value: str) -> int:
        """Distinct bytes of a value; dimensions it is expanded over do not count."""
        size = self._sizes.get(value)
        if size is None:
            spec = self.index.values[value]
            key = (spec.shape, spec.strides, spec.dtype)
            size = self._bytes.get(key)
            if size is None:
                size = self._bytes[key] = distinct_bytes(spec)
            self._sizes[value] = size
        return size

    def memory(self, value: str) -> str:
        """One name per distinct memory: values that alias each other exactly share it."""
        name = self._names.get(value)
        if name is None:
            spec = self.index.values[value]
            if spec.storage not in self._shared:
                return value
            key = (spec.storage, spec.version, spec.offset, spec.shape, spec.strides, spec.dtype)
            name = self._names[value] = self._seen.setdefault(key, value)
        return name

    def candidate(self, candidate: FusionCandidate) -> tuple[int, int]:
        """Bytes of a group before (op by op) and after (one kernel)."""
        positions = self.index.positions
        before = sum(self.ops[positions[node]].total for node in candidate.nodes)
        inputs = {
            self.memory(operand.value): self.size(operand.value) for operand in candidate.inputs
        }
        after = sum(inputs.values()) + sum(self.size(value) for value in candidate.outputs)
        return before, after

    def _op(self, node: OpNode) -> OpTraffic:
        kind = node.kind
        if kind in _MOVES_NOTHING:
            return _NOTHING
        op = node.op
        if kind == "factory" and op.startswith(_UNWRITTEN_FACTORIES):
            return _NOTHING
        sizes = self.size
        writes = tuple([(self.memory(v), sizes(v)) for v in node.outputs])
        read_values = node.inputs
        if node.mutates and functional_name(op) in _WRITE_ONLY:
            read_values = tuple(v for v in read_values if v not in node.mutates)
        if len(read_values) == 1:
            reads = tuple([(self.memory(v), sizes(v)) for v in read_values])
        else:
            reads = tuple({self.memory(v): sizes(v) for v in read_values}.items())
        if kind == "indexing" and reads:
            # A look-up reads as many elements of its table as it gives, not the whole table.
            table, size = reads[0]
            reads = ((table, min(size, sum(size for _, size in writes))), *reads[1:])
        total = 0
        for _, size in reads:
            total += size
        for _, size in writes:
            total += size
        return OpTraffic(reads, writes, total)


def _shared_storages(index: GraphIndex) -> set[int]:
    """Storages that more than one value lives in."""
    seen: set[int] = set()
    shared: set[int] = set()
    for spec in index.values.values():
        if spec.storage in seen:
            shared.add(spec.storage)
        seen.add(spec.storage)
    return shared


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
