"""Builds small recorded graphs by hand, for tests that need no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fusion_advisor.ops import classify, functional_name
from fusion_advisor.records import OpGraph, OpNode, TensorSpec, ValueRef


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))


class GraphBuilder:
    """Adds inputs and ops one after the other; ``build`` gives the frozen graph.

    Values are named ``v0, v1, …`` and nodes ``n0, n1, …``; every op makes a new storage unless
    it is a view or in place.  ``context`` sets fields (frame, phase, device …) of later ops.
    """

    def __init__(self) -> None:
        self.nodes: list[OpNode] = []
        self.values: dict[str, TensorSpec] = {}
        self.inputs: list[str] = []
        self._storages = 0
        self._versions: dict[int, int] = {}
        self._fields: dict[str, Any] = {}

    @contextmanager
    def context(self, **fields: Any) -> Iterator[None]:
        before = self._fields
        self._fields = {**before, **fields}
        try:
            yield
        finally:
            self._fields = before

    def value(self, shape: tuple[int, ...], dtype: str = "float32", **fields: Any) -> str:
        """A tensor that no op made (an orphan unless it is also listed as an input)."""
        name = f"v{len(self.values)}"
        if "storage" not in fields:
            fields["storage"] = self._storages
            self._storages += 1
        fields.setdefault("strides", contiguous(shape))
        fields.setdefault("version", self._versions.get(fields["storage"], 0))
        fields.setdefault("device", self._fields.get("device", "cpu"))
        self.values[name] = TensorSpec(id=name, dtype=dtype, shape=shape, **fields)
        return name

    def input(self, shape: tuple[int, ...], dtype: str = "float32", **fields: Any) -> str:
        name = self.value(shape, dtype, **fields)
        self.inputs.append(name)
        return name

    def op(
        self,
        name: str,
        *args: Any,
        shape: tuple[int, ...] | None = None,
        dtype: str | None = None,
        kwargs: dict[str, Any] | None = None,
        strides: tuple[int, ...] | None = None,
        flags: tuple[str, ...] = (),
        **fields: Any,
    ) -> str:
        """An op with a fresh output; value ids among the arguments become operands."""
        specs = [self.values[a] for a in args if isinstance(a, str) and a in self.values]
        shape = shape if shape is not None else broadcast(*(s.shape for s in specs))
        dtype = dtype or (specs[0].dtype if specs else "float32")
        extra = {"strides": strides} if strides is not None else {}
        output = self.value(shape, dtype, flags=flags, **extra)
        self._node(name, args, (output,), kwargs=kwargs, **fields)
        return output

    def view(
        self, name: str, source: str, shape: tuple[int, ...], *args: Any, **fields: Any
    ) -> str:
        spec = self.values[source]
        strides = fields.pop("strides", contiguous(shape))
        offset = fields.pop("offset", spec.offset)
        flags = fields.pop("flags", ())
        output = self.value(
            shape, spec.dtype, storage=spec.storage, strides=strides, offset=offset, flags=flags
        )
        self._node(name, (source, *args), (output,), **fields)
        return output

    def inplace(self, name: str, target: str, *args: Any, **fields: Any) -> str:
        """An in-place op: the written tensor comes out as a new value of the same storage."""
        spec = self.values[target]
        self._versions[spec.storage] = self._versions.get(spec.storage, 0) + 1
        output = self.value(
            spec.shape,
            spec.dtype,
            storage=spec.storage,
            strides=spec.strides,
            offset=spec.offset,
        )
        self._node(name, (target, *args), (output,), mutates=(target,), **fields)
        return output

    def again(self, old: str) -> str:
        """What another view of a storage shows after the storage was written: an orphan."""
        spec = self.values[old]
        return self.value(
            spec.shape,
            spec.dtype,
            storage=spec.storage,
            strides=spec.strides,
            offset=spec.offset,
            alias_of=old,
        )

    def _node(
        self,
        name: str,
        args: tuple[Any, ...],
        outputs: tuple[str, ...],
        *,
        kwargs: dict[str, Any] | None = None,
        mutates: tuple[str, ...] = (),
        **fields: Any,
    ) -> None:
        def argument(item: Any) -> Any:
            return ValueRef(value=item) if isinstance(item, str) and item in self.values else item

        inputs = tuple(dict.fromkeys(a for a in args if isinstance(a, str) and a in self.values))
        fields = {**self._fields, **fields}
        fields.setdefault("kind", classify(functional_name(name)))
        number = len(self.nodes)
        self.nodes.append(
            OpNode(
                id=f"n{number}",
                index=number,
                op=name,
                args=tuple(argument(a) for a in args),
                kwargs=tuple((k, argument(v)) for k, v in (kwargs or {}).items()),
                inputs=inputs,
                outputs=outputs,
                mutates=mutates,
                **fields,
            )
        )

    def build(self, *outputs: str) -> OpGraph:
        return OpGraph(
            nodes=tuple(self.nodes),
            values=tuple(self.values.values()),
            inputs=tuple(self.inputs),
            outputs=outputs,
        )


def renumbered(graph: OpGraph, order: list[int]) -> OpGraph:
    """The same nodes in another order (indices follow)."""
    nodes = tuple(replace(graph.nodes[old], index=new) for new, old in enumerate(order))
    return replace(graph, nodes=nodes)
