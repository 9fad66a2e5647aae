"""Look-up tables over one recorded graph, built once in linear time and then only read.

What is asked of every op goes by number: an op's is its position in ``graph.nodes``, a value's its
place in ``graph.values``.  What is asked of a few goes by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from fusion_advisor.errors import AnalysisError
from fusion_advisor.ops import OpInfo
from fusion_advisor.records import OpGraph, OpNode, TensorSpec

Context = tuple[object, ...]
Numbers = tuple[int, ...]

_ID = attrgetter("id")
_VALUE_FORM = attrgetter("dtype", "shape", "strides", "device", "flags")


@dataclass(slots=True)
class GraphIndex:
    """A graph by position: node ``i`` is ``graph.nodes[i]``, value ``v`` is ``graph.values[v]``.

    ``dependencies[i]`` are the earlier positions that must run before node ``i``: the producers
    of its inputs, and, through storages that are written in place, the last writer of what it
    reads and all readers and the last writer of what it writes.  An op that computes also depends
    on the last host sync before it: Python had seen that value when it decided to run the op.
    ``users`` lists, per value, the positions that take it, each once, in order.

    Layers repeat, and what was found out about one value or call holds for all of its form:
    values of one form differ in their memory alone, calls of one form are of one op, on values of
    equal forms.  Arguments that are no tensors are not part of a call's form.
    """

    nodes: tuple[OpNode, ...]
    specs: tuple[TensorSpec, ...]
    reads: list[Numbers]  # per node, the values it takes
    makes: list[Numbers]  # per node, the values it gives
    calls: list[int]  # per node, the form of the call
    sources: list[Numbers]  # per node and input: the position that made it, or -1
    dependencies: list[Numbers]
    makers: list[int]  # per value: the position that made it, or -1
    users: list[list[int]]
    alive: list[bool]  # per value: whether it is a graph output
    forms: list[int]  # per value
    numbers: dict[str, int]
    values: dict[str, TensorSpec]
    positions: dict[str, int]
    given: frozenset[str]  # graph inputs
    written_storages: dict[int, list[str]]  # storages written in place -> their values, in order
    writers: dict[int, list[int]]  # the same storages -> positions that write them
    infos: list[OpInfo | None]  # filled by legality.mark_members
    refusals: list[tuple[str, str] | None]  # why a node is not a member: code, message
    joinable: list[Numbers]  # per member: members that make its inputs, latest first
    keeping: frozenset[int]  # views and detaches that only keep a value for backward
    halving: set[int] = field(default_factory=set)  # members that read halves of an operand

    def maker_of(self, value: str) -> int:
        """The position that made a value, or -1."""
        return self.makers[self.numbers[value]]

    def users_of(self, value: str) -> Sequence[int]:
        """The positions that take a value, in order."""
        return self.users[self.numbers[value]]

    def kept(self, value: str) -> bool:
        """Whether a value is a graph output."""
        return self.alive[self.numbers[value]]


def build_index(graph: OpGraph) -> GraphIndex:
    """Index ``graph``; raises AnalysisError where it refers to values it does not hold."""
    nodes, specs = graph.nodes, graph.values
    positions = dict(zip(map(_ID, nodes), range(len(nodes)), strict=True))
    if len(positions) != len(nodes):
        raise AnalysisError("two ops of the recording share an id; record it again")
    numbers = dict(zip(map(_ID, specs), range(len(specs)), strict=True))
    wires = _Wires(graph, numbers)
    try:
        wires.run()
    except KeyError:
        raise AnalysisError(_undescribed(nodes, numbers)) from None
    alive = [False] * len(specs)
    for value in graph.outputs:
        if value in numbers:
            alive[numbers[value]] = True
    return GraphIndex(
        nodes=nodes,
        specs=specs,
        reads=wires.reads,
        makes=wires.makes,
        calls=wires.calls,
        sources=wires.sources,
        dependencies=wires.dependencies,
        makers=wires.makers,
        users=wires.users,
        alive=alive,
        forms=wires.forms,
        numbers=numbers,
        values={name: specs[number] for name, number in numbers.items()},
        positions=positions,
        given=frozenset(graph.inputs),
        written_storages=wires.written_storages(),
        writers={storage: each.writers for storage, each in wires.written.items()},
        infos=[None] * len(nodes),
        refusals=[None] * len(nodes),
        joinable=[()] * len(nodes),
        keeping=_keeping(wires, alive),
    )


def _undescribed(nodes: Sequence[OpNode], numbers: dict[str, int]) -> str:
    """Which value of the recording has no description."""
    for node in nodes:
        for value in node.mutates:
            if value not in numbers:
                return f"{node.id} ({node.op}) uses {value}, which is not recorded"
    for node in nodes:
        for value in node.outputs:
            if value not in numbers:
                return f"{node.id} ({node.op}) makes {value}, which is not recorded"
    used = {value for node in nodes for value in node.inputs}
    return f"the recording uses {min(used - numbers.keys())}, which it does not describe"


@dataclass(slots=True)
class _Written:
    """A storage that is written in place: who read it since the last write, who wrote it."""

    readers: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)


class _Wires:
    """Who makes and takes each value, and what must run before what."""

    def __init__(self, graph: OpGraph, numbers: dict[str, int]) -> None:
        self.nodes = graph.nodes
        self.specs = specs = graph.values
        self.numbers = numbers
        self.reads: list[Numbers] = []
        self.makes: list[Numbers] = []
        self.calls: list[int] = []
        self.sources: list[Numbers] = []
        self.dependencies: list[Numbers] = []
        self.makers = [-1] * len(specs)
        self.users: list[list[int]] = [[] for _ in specs]
        known: dict[object, int] = {}
        self.forms = [known.setdefault(_VALUE_FORM(spec), len(known)) for spec in specs]
        self.written: dict[int, _Written] = {}
        self.asides: list[int] = []  # positions of the forward's views and metadata ops
        self._watched: list[_Written | None] = []

    def run(self) -> None:
        """Look at every op once, in recorded order; KeyError for a value without description."""
        number, watched = self.numbers.__getitem__, self._watch()
        makers, users, forms = self.makers, self.users, self.forms
        calls: dict[tuple[object, ...], int] = {}
        made_late = False
        seen_by_python = -1
        add_read, add_made = self.reads.append, self.makes.append
        add_sources, add_needed = self.sources.append, self.dependencies.append
        add_call = self.calls.append
        for position, node in enumerate(self.nodes):
            read, made = tuple(map(number, node.inputs)), tuple(map(number, node.outputs))
            sources: list[int] = []
            needed: list[int] = []
            for value in read:
                maker = makers[value]
                sources.append(maker)
                if maker >= 0:
                    needed.append(maker)
                used = users[value]
                if not used or used[-1] != position:
                    used.append(position)
                storage = watched[value]
                if storage is not None:
                    needed += storage.writers[-1:]
                    storage.readers.append(position)
            if node.kind in ("view", "metadata"):
                if node.phase == "forward":
                    self.asides.append(position)
            elif seen_by_python >= 0:
                needed.append(seen_by_python)
            if node.kind == "host-sync":
                seen_by_python = position
            written: Numbers = ()  # places among the inputs
            if node.mutates:
                changed = tuple(map(number, node.mutates))
                before = set(needed)
                self._write(position, changed, before)
                add_needed(tuple(before))
                written = tuple([read.index(value) for value in changed if value in read])
            else:
                add_needed(tuple(set(needed) if len(needed) > 1 else needed))
            for value in made:
                if makers[value] < 0:
                    makers[value] = position
                    made_late = made_late or bool(users[value])
            add_read(read)
            add_made(made)
            add_sources(tuple(sources))
            call = (
                node.op,
                node.kind,
                tuple([forms[value] for value in read]),
                tuple([forms[value] for value in made]),
                written,
            )
            add_call(calls.setdefault(call, len(calls)))
        if made_late:  # an op gives back a value that was there before
            self.sources = [tuple([makers[value] for value in read]) for read in self.reads]

    def _watch(self) -> list[_Written | None]:
        """Per value the record of its storage, where some op writes that in place."""
        specs, numbers = self.specs, self.numbers
        writing = [numbers[value] for node in self.nodes for value in node.mutates]
        self.written = {specs[value].storage: _Written() for value in writing}
        self._watched = [self.written.get(spec.storage) for spec in specs]
        return self._watched

    def _write(self, position: int, written: Numbers, needed: set[int]) -> None:
        """Add what a writing op needs: all that looked at the storages, or wrote them, before."""
        for value in written:
            storage = self._watched[value]
            if storage is not None:
                needed.update(storage.readers)
                needed.discard(position)
                needed.update(storage.writers[-1:])
                storage.readers = []
                storage.writers.append(position)

    def written_storages(self) -> dict[int, list[str]]:
        """The storages that are written in place, with the names of their values, in order."""
        found: dict[int, list[str]] = {storage: [] for storage in self.written}
        for spec, storage in zip(self.specs, self._watched, strict=True):
            if storage is not None:
                found[spec.storage].append(spec.id)
        return found


def _keeping(wires: _Wires, alive: Sequence[bool]) -> frozenset[int]:
    """Positions of the ops that only set a value aside for backward, as autograd's detach does.

    Such an op changes metadata alone, and its results are read in backward or by others of its
    kind, or are alive at the end for autograd alone.  A result that nobody is seen to read and
    that autograd does not hold may have been read where no op shows it (``.numpy()``).
    """
    nodes, users = wires.nodes, wires.users
    found: set[int] = set()
    for i in reversed(wires.asides):
        node = nodes[i]
        if node.mutates or not node.outputs:
            continue
        for value in wires.makes[i]:
            if alive[value]:
                break
            if not users[value]:
                if "saved" not in wires.specs[value].flags:
                    break
            elif not all(user in found or nodes[user].phase == "backward" for user in users[value]):
                break
        else:
            found.add(i)
    return frozenset(found)


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
    if 0 in spec.shape:
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size) for size, stride in zip(spec.shape, spec.strides, strict=True) if size != 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True
