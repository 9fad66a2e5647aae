"""What a recording says about the expressions of one text."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusion_advisor.fixes.source_index import SourceIndex
from fusion_advisor.records import Argument, OpGraph, OpNode


@dataclass(frozen=True)
class Operand:
    """One expression that gives an op an argument: a tensor's value id or a Python number.

    ``node`` and ``position`` name the op and the place among its flattened arguments.
    """

    expression: ast.expr
    value: str | None
    number: bool | int | float | None
    node: str
    position: int
    literal: bool = False


@dataclass
class Match:
    """An expression and the op (or torch function's ops) it ran."""

    place: ast.AST
    ops: tuple[OpNode, ...]
    operands: tuple[Operand, ...] = ()
    module: ast.expr | None = None  # the module object, where the expression calls one
    own: frozenset[str] = field(default_factory=frozenset)

    @property
    def last(self) -> OpNode:
        return self.ops[-1]

    @property
    def in_place(self) -> bool:
        return bool(self.last.mutates)


def base_name(op: str) -> str:
    """``add`` for ``aten.add_.Tensor``."""
    return op.split(".")[1].rstrip("_") if "." in op else op


class Evidence:
    """All ops that one frame ran, by the expression that ran them or called what ran them."""

    def __init__(self, graph: OpGraph, index: SourceIndex, frame: int, file: str) -> None:
        self.graph = graph
        self.index = index
        self.file = file
        self.by_place: dict[ast.AST, list[OpNode]] = {}
        self.nodes = [node for node in graph.nodes if node.frame == frame]
        for node in self.nodes:
            place = None if node.span is None else index.expression_at(node.span)
            if place is not None:
                self.by_place.setdefault(place, []).append(node)
        self.depth = min((_depth(node) for node in self.nodes), default=0)
        self._under: dict[ast.AST, list[OpNode]] | None = None
        self._first: dict[int, str] | None = None

    def in_submodule(self, node: OpNode) -> bool:
        """Whether the op ran inside a module that this frame's code called."""
        return _depth(node) > self.depth

    def value_at(self, place: ast.AST, before: int) -> str | None:
        """The value an expression last gave before op number ``before``."""
        earlier = [node for node in self.by_place.get(place, ()) if node.index < before]
        return earlier[-1].outputs[0] if earlier and earlier[-1].outputs else None

    def under(self, call: ast.AST) -> list[OpNode]:
        """All ops that ran in this file's call, at any depth, in any frame."""
        if self._under is None:
            self._under = {}
            for node in self.graph.nodes:
                spans = {span for span in (node.span, *node.stack) if span is not None}
                for span in spans:
                    place = self.index.expression_at(span) if span.file == self.file else None
                    if place is not None:
                        self._under.setdefault(place, []).append(node)
        return self._under.get(call, [])

    def first_value_of(self, storage: int) -> str | None:
        """The value that was the first in a storage: a graph input or the op that made it."""
        if self._first is None:
            storages = {value.id: value.storage for value in self.graph.values}
            made = [value for node in self.graph.nodes for value in node.outputs]
            self._first = {}
            for value in (*self.graph.inputs, *made):
                self._first.setdefault(storages.get(value, -1), value)
        return self._first.get(storage)


def _depth(node: OpNode) -> int:
    return node.module_path.count(".") + bool(node.module_path)


def flattened(arguments: Iterable[Argument]) -> list[Argument]:
    """Arguments with nested lists taken apart, in order."""
    flat: list[Argument] = []
    for argument in arguments:
        if isinstance(argument, tuple):
            flat += flattened(argument)
        else:
            flat.append(argument)
    return flat
