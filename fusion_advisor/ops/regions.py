"""Groups with views between their ops, as loops that each compute outputs from external values.

Outputs that have one shape, at all sizes, and one layout form a region.  Walking back from them,
every view that is met moves to whatever is read behind it: an op that is read at two places is
computed at both, from operands that are read at both.  So no loop ever needs what another one, or
another place of its own, has computed, and every element of an output is written exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusion_advisor.ops.activations import SECOND_HALF
from fusion_advisor.ops.table import lookup
from fusion_advisor.ops.views import view_steps
from fusion_advisor.records import (
    Access,
    Argument,
    FusionCandidate,
    OperandMap,
    OpGraph,
    OpNode,
    Region,
    TensorSpec,
    ValueRef,
)
from fusion_advisor.view_steps import ViewError, ViewStep, follow

MAX_INSTANCES = 256  # of all ops in one region: a stencil of stencils grows without bound

_HALVES = ("#0", "#1")  # behind the name of an op's result: a half of what it reads
Path = tuple[str, ...]  # results of views, the one nearest the value first
Instance = tuple[str, Path]  # a value, and the views through which a region reads it


@dataclass(slots=True)
class Walk:
    """What a group's regions read and compute.

    ``makers`` are the ops, by result, that may be looked through: members and shared views, of
    which ``views`` (node ids) only change the indexing.
    """

    makers: Mapping[str, OpNode]
    specs: Mapping[str, TensorSpec]
    views: Collection[str]
    _same: dict[str, str] = field(default_factory=dict)
    _first: dict[tuple[object, ...], str] = field(default_factory=dict)

    def regions(
        self, outputs: Sequence[str], kin: Callable[[str], object]
    ) -> list[tuple[Region, list[Instance]]] | None:
        """The outputs in regions, the largest first, each with all values that it needs.

        Outputs of equal ``kin`` have one shape at all sizes, not only as recorded.  None where a
        view is not affine for an operand, or too much would be computed.
        """
        kinds: dict[tuple[object, ...], list[str]] = {}
        for value in outputs:
            spec = self.specs[value]
            moving = zip(spec.shape, spec.strides, strict=True)
            strides = tuple([step if size != 1 else 0 for size, step in moving])
            kinds.setdefault((kin(value), spec.shape, strides), []).append(value)
        found: list[tuple[Region, list[Instance]]] = []
        for together in kinds.values():
            shape = self.specs[together[0]].shape
            instances = self.instances(together)
            if instances is None:
                return None
            accesses = self._accesses(instances, shape)
            if accesses is None:
                return None
            region = Region(shape=shape, outputs=tuple(together), accesses=accesses)
            found.append((region, instances))
        return sorted(found, key=lambda each: -math.prod(each[0].shape))

    def instances(self, outputs: Iterable[str]) -> list[Instance] | None:
        """All values that these outputs need, the outputs first; None where there are too many."""
        found: dict[Instance, None] = {(value, ()): None for value in outputs}
        waiting = list(found)
        while waiting:
            value, path = waiting.pop()
            node = self.makers.get(value)
            if node is None:
                continue
            if node.id in self.views:
                path = (self._shown(value), *path)
            for one in self.needs(node, path):
                if one not in found:
                    found[one] = None
                    waiting.append(one)
            if len(found) > MAX_INSTANCES:
                return None
        return list(found)

    def needs(self, node: OpNode, path: Path) -> list[Instance]:
        """What an op reads, through which views: the halves of its operand are views of it."""
        if takes_halves(node):
            return [(node.inputs[0], (f"{node.outputs[0]}{half}", *path)) for half in _HALVES]
        return [(source, path) for source in node.inputs]

    def calls(self, instances: Iterable[Instance]) -> list[tuple[OpNode, Path]]:
        """The ops that make these values, each once for every place, in recorded order."""
        found = {
            (self.makers[value].id, path): (self.makers[value], path)
            for value, path in instances
            if value in self.makers
        }
        return sorted(found.values(), key=lambda call: call[0].index)

    def access_steps(self, value: str, path: Path) -> tuple[tuple[ViewStep, ...], tuple[int, ...]]:
        """What the views of a path do to a value, and its recorded shape behind them.

        Raises ``ViewError`` where one of them is not affine.
        """
        spec = self.specs[value]
        steps: list[ViewStep] = []
        shape = spec.shape
        for result in path if shape else ():  # one number is the same at all places
            name, half = half_of(result)
            node = self.makers[name]
            source = self.specs[node.inputs[0]].shape
            if half is not None:
                own: list[ViewStep] | None = [("part", halved_dimension(node, source), (half, 2))]
            else:
                own = view_steps(node, source, self.specs[name].shape, shape)
            if own is None:
                raise ViewError(f"{node.op} does not fold")
            steps += own
            shape = follow(own, shape, (0,) * len(shape)).shape
        if spec.shape and not shape:  # tensors and single numbers differ in type promotion
            steps.append(("unsqueeze", 0, ()))
            shape = (1,)
        return tuple(steps), shape

    def _accesses(
        self, instances: Iterable[Instance], space: tuple[int, ...]
    ) -> tuple[Access, ...] | None:
        found: dict[tuple[str, tuple[ViewStep, ...]], Access] = {}
        for value, path in instances:
            if value in self.makers:
                continue
            try:
                steps, shape = self.access_steps(value, path)
            except ViewError:
                return None
            dims = broadcast_dims(shape, space)
            if dims is None:
                return None
            views = tuple([half_of(result)[0] for result in path])
            found.setdefault(
                (value, steps), Access(value=value, views=views, steps=steps, dims=dims)
            )
        return tuple(found.values())

    def _shown(self, value: str) -> str:
        """The first result of a view that shows the same: equal views are one."""
        known = self._same.get(value)
        if known is None:
            node = self.makers[value]
            source = node.inputs[0]
            maker = self.makers.get(source)
            if maker is not None and maker.id in self.views:
                source = self._shown(source)
            rest = (*(str(item) for item in node.args[1:]), *(str(item) for item in node.kwargs))
            known = self._first.setdefault((node.op, source, *rest), value)
            self._same[value] = known
        return known


def takes_halves(node: OpNode) -> bool:
    """Whether an element of an op's result needs one of either half of its operand."""
    info = lookup(node.op)
    return info is not None and info.halves


def half_of(result: str) -> tuple[str, int | None]:
    """A view of a path: its result, or that of the op that reads a half, and which half."""
    name, _, half = result.partition(_HALVES[0][0])
    return name, int(half) if half else None


def halved_dimension(node: OpNode, source: tuple[int, ...]) -> int:
    """The dimension whose halves an op reads."""
    given = [item for item in (*node.args[1:], *(item for _, item in node.kwargs))
             if type(item) is int]  # fmt: skip
    return (given[0] if given else -1) % len(source)


def broadcast_dims(shape: tuple[int, ...], space: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """How an operand of ``shape`` lies over ``space``; None where it does not broadcast to it."""
    lead = len(space) - len(shape)
    if lead < 0:
        return None
    dims: list[int | None] = [None] * lead
    for own, (size, whole) in enumerate(zip(shape, space[lead:], strict=True)):
        if size not in (1, whole):
            return None
        dims.append(own if size == whole else None)
    return tuple(dims)


def walk_of(graph: OpGraph, candidate: FusionCandidate) -> Walk:
    """The walk through a candidate's members and shared views."""
    inside = {*candidate.nodes, *candidate.shared}
    makers = {value: node for node in graph.nodes if node.id in inside for value in node.outputs}
    specs = {spec.id: spec for spec in graph.values}
    return Walk(makers, specs, {*candidate.views, *candidate.shared})


def unrolled(
    graph: OpGraph, candidate: FusionCandidate, region: Region
) -> tuple[OpGraph, FusionCandidate]:
    """A region as a group of its own, over one iteration space and without any indexing.

    Every op stands as often as it is computed, every operand as often as it is read: accesses
    are its inputs, in their order, shaped and strided as recorded.  Ids of repeated ops and
    values have an ``@``; views only rename.
    """
    walk = walk_of(graph, candidate)
    instances = walk.instances(region.outputs) or []
    calls = walk.calls(instances)
    made = [(value, path) for node, path in calls for value in node.outputs]
    instances = list(dict.fromkeys((*instances, *made)))
    named: dict[Instance, str] = {}
    values: list[TensorSpec] = []
    numbers = {(access.value, access.steps): place for place, access in enumerate(region.accesses)}
    ids = [
        f"{access.value}@{place}" if access.steps else access.value
        for place, access in enumerate(region.accesses)
    ]
    for one in instances:
        value, path = one
        if value in walk.makers:
            named[one] = _repeated(value, path)
            values.append(replace(walk.specs[value], id=named[one]))
        else:
            steps, _ = walk.access_steps(value, path)
            named[one] = ids[numbers[value, steps]]
    for access, name in zip(region.accesses, ids, strict=True):
        spec = walk.specs[access.value]
        seen = follow(access.steps, spec.shape, spec.strides)
        values.append(
            replace(
                spec,
                id=name,
                shape=seen.shape,
                strides=seen.strides,
                offset=spec.offset + seen.offset,
            )
        )
    nodes = tuple(_instance_node(walk, node, path, named) for node, path in calls)
    views = tuple(node.id for node in nodes if original(node.id) in walk.views)
    group = replace(
        candidate,
        nodes=tuple(node.id for node in nodes),
        inputs=tuple(
            OperandMap(value=name, dims=access.dims)
            for name, access in zip(ids, region.accesses, strict=True)
        ),
        outputs=region.outputs,
        saved=(),
        shape=region.shape,
        views=views,
        shared=(),
        regions=(),
    )
    return OpGraph(
        nodes=nodes, values=tuple(values), inputs=tuple(ids), outputs=region.outputs
    ), group


def original(name: str) -> str:
    """The recorded id behind one of :func:`unrolled`."""
    return name.split("@")[0]


def _repeated(name: str, path: Path) -> str:
    return f"{name}@{'/'.join(path)}" if path else name


def _instance_node(walk: Walk, node: OpNode, path: Path, named: Mapping[Instance, str]) -> OpNode:
    is_view = node.id in walk.views
    below = (walk._shown(node.outputs[0]), *path) if is_view else path
    if takes_halves(node):
        first, second = [named[one] for one in walk.needs(node, path)]
        return replace(
            node,
            id=_repeated(node.id, path),
            args=(ValueRef(value=first),),
            kwargs=((SECOND_HALF, ValueRef(value=second)),),
            inputs=(first, second),
            outputs=tuple([named[value, path] for value in node.outputs]),
        )

    def moved(argument: Argument) -> Argument:
        if isinstance(argument, ValueRef):
            return ValueRef(value=named[argument.value, below])
        if isinstance(argument, tuple):
            return tuple([moved(item) for item in argument])
        return argument

    args = node.args[:1] if is_view else node.args
    return replace(
        node,
        id=_repeated(node.id, path),
        op="aten.alias.default" if is_view else node.op,
        args=tuple([moved(argument) for argument in args]),
        kwargs=() if is_view else tuple((name, moved(item)) for name, item in node.kwargs),
        inputs=tuple([named[source, below] for source in node.inputs]),
        outputs=tuple([named[value, path] for value in node.outputs]),
        mutates=tuple([named[source, below] for source in node.mutates]),
    )
