"""Look-up tables over one recorded graph, built once in linear time and then only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusion_advisor.errors import AnalysisError
from fusion_advisor.ops import OpInfo
from fusion_advisor.records import OpGraph, OpNode, TensorSpec

Context = tuple[object, ...]


@dataclass(slots=True)
class GraphIndex:
    """A graph by position: node ``i`` is ``graph.nodes[i]``.

    ``dependencies[i]`` are the earlier positions that must run before node ``i``: the producers
    of its inputs, and, through storages that are written in place, the last writer of what it
    reads and all readers and the last writer of what it writes.  ``consumers`` lists, per value,
    the positions that take it, each once, in order.
    """

    nodes: tuple[OpNode, ...]
    values: dict[str, TensorSpec]
    positions: dict[str, int]
    producer: dict[str, int]
    consumers: dict[str, list[int]]
    sources: list[tuple[int, ...]]  # per input of a node: the position that made it, or -1
    dependencies: list[tuple[int, ...]]
    kept: frozenset[str]  # graph outputs
    given: frozenset[str]  # graph inputs
    written_storages: dict[int, list[str]]  # storages written in place -> their values, in order
    writers: dict[int, list[int]]  # the same storages -> positions that write them
    infos: list[OpInfo | None]  # filled by legality.mark_members
    refusals: list[tuple[str, str] | None]  # why a node is not a member: code, message
    joinable: list[tuple[int, ...]]  # per member: members that make its inputs, latest first
    keeping: frozenset[int]  # views and detaches that only keep a value for backward

    def producers_of(self, position: int) -> list[tuple[int, str]]:
        """(Producing position, value) of each input that a node of the run made."""
        producer = self.producer
        return [(producer[v], v) for v in self.nodes[position].inputs if v in producer]


def build_index(graph: OpGraph) -> GraphIndex:
    """Index ``graph``; raises AnalysisError where it refers to values it does not hold."""
    nodes = graph.nodes
    values = {spec.id: spec for spec in graph.values}
    positions = {node.id: i for i, node in enumerate(nodes)}
    if len(positions) != len(nodes):
        raise AnalysisError("two ops of the recording share an id; record it again")
    written = _written_storages(nodes, values)
    tracked = {spec.id: spec.storage for spec in graph.values if spec.storage in written}
    producer: dict[str, int] = {}
    consumers: dict[str, list[int]] = {}
    sources: list[tuple[int, ...]] = []
    dependencies: list[tuple[int, ...]] = []
    last_writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {storage: [] for storage in written}
    writers: dict[int, list[int]] = {storage: [] for storage in written}
    made_late = False
    for i, node in enumerate(nodes):
        made: list[int] = []
        needed: list[int] = []
        for value in node.inputs:
            maker = producer.get(value, -1)
            made.append(maker)
            if maker >= 0:
                needed.append(maker)
            users = consumers.get(value)
            if users is None:
                consumers[value] = [i]
            elif users[-1] != i:
                users.append(i)
            if value in tracked:
                storage = tracked[value]
                if storage in last_writer:
                    needed.append(last_writer[storage])
                readers[storage].append(i)
        sources.append(tuple(made))
        if node.mutates:
            before = set(needed)
            for value in node.mutates:
                storage = tracked[value]
                before.update(readers[storage])
                before.discard(i)
                if storage in last_writer:
                    before.add(last_writer[storage])
                readers[storage] = []
                last_writer[storage] = i
                writers[storage].append(i)
            dependencies.append(tuple(before))
        else:
            dependencies.append(tuple(set(needed) if len(needed) > 1 else needed))
        for value in node.outputs:
            if value not in values:
                raise AnalysisError(f"{node.id} ({node.op}) makes {value}, which is not recorded")
            if value not in producer:
                producer[value] = i
                made_late = made_late or value in consumers
    if made_late:  # an op gives back a value that was there before
        sources = [tuple([producer.get(v, -1) for v in node.inputs]) for node in nodes]
    missing = consumers.keys() - values.keys()
    if missing:
        raise AnalysisError(f"the recording uses {min(missing)}, which it does not describe")
    for spec in graph.values:
        if spec.storage in written:
            written[spec.storage].append(spec.id)
    return GraphIndex(
        nodes=nodes,
        values=values,
        positions=positions,
        producer=producer,
        consumers=consumers,
        sources=sources,
        dependencies=dependencies,
        kept=frozenset(graph.outputs),
        given=frozenset(graph.inputs),
        written_storages=written,
        writers=writers,
        infos=[None] * len(nodes),
        refusals=[None] * len(nodes),
        joinable=[()] * len(nodes),
        keeping=_keeping(nodes, values, consumers, frozenset(graph.outputs)),
    )


def _keeping(
    nodes: Sequence[OpNode],
    values: dict[str, TensorSpec],
    consumers: dict[str, list[int]],
    kept: frozenset[str],
) -> frozenset[int]:
    """Positions of the ops that only set a value aside for backward, as autograd's detach does.

    Such an op changes metadata alone, and its results are read in backward or by others of its
    kind, or are alive at the end for autograd alone.  A result that nobody is seen to read and
    that autograd does not hold may have been read where no op shows it (``.numpy()``).
    """
    found: set[int] = set()
    for i in range(len(nodes) - 1, -1, -1):
        node = nodes[i]
        if node.kind not in ("view", "metadata") or node.phase != "forward":
            continue
        if node.mutates or not node.outputs:
            continue
        for value in node.outputs:
            users = consumers.get(value)
            if value in kept:
                break
            if users is None:
                if "saved" not in values[value].flags:
                    break
            elif not all(user in found or nodes[user].phase == "backward" for user in users):
                break
        else:
            found.add(i)
    return frozenset(found)


def _storage(values: dict[str, TensorSpec], value: str, node: OpNode) -> int:
    spec = values.get(value)
    if spec is None:
        raise AnalysisError(f"{node.id} ({node.op}) uses {value}, which is not recorded")
    return spec.storage


def _written_storages(
    nodes: Sequence[OpNode], values: dict[str, TensorSpec]
) -> dict[int, list[str]]:
    return {_storage(values, v, node): [] for node in nodes for v in node.mutates}


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether ``shape`` broadcasts into exactly ``target`` by torch's rules."""
    if shape == target:
        return True
    lead = len(target) - len(shape)
    if lead < 0:
        return False
    return all(size in (1, whole) for size, whole in zip(shape, target[lead:], strict=True))


def same_layout(first: TensorSpec, second: TensorSpec) -> bool:
    """Whether two equally shaped tensors walk memory in the same order (size-1 dims aside)."""
    if first.strides == second.strides:
        return True
    return all(
        size == 1 or a == b
        for size, a, b in zip(first.shape, first.strides, second.strides, strict=True)
    )


def is_dense(spec: TensorSpec) -> bool:
    """Whether the elements fill one stretch of memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for size, stride in zip(spec.shape, spec.strides, strict=True) if size != 1
    ):
        if size == 0:
            return True
        if stride != expected:
            return False
        expected *= size
    return True
