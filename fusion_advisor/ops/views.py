"""Views as index maps: what a view does to the dimensions of an operand that it is read through.

Elementwise ops commute with views, so that a kernel can compute a chain at the places of the
last op and read every operand through the views in between.  The steps hold for all sizes: a
reshape is understood as splitting one dimension, or adding or dropping one of size 1.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

from fusion_advisor.records import Argument, OpNode
from fusion_advisor.view_steps import ViewStep

Shape = tuple[int, ...]

_SAME = frozenset({"aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"})
_RESHAPES = frozenset(
    {"aten.view.default", "aten._unsafe_view.default", "aten._reshape_alias.default"}
)
_LEAST_NUMBERS = {
    "aten.select.int": 2,
    "aten.squeeze.dim": 1,
    "aten.transpose.int": 2,
    "aten.unsqueeze.default": 1,
}


def view_steps(node: OpNode, source: Shape, result: Shape, own: Shape) -> list[ViewStep] | None:
    """What a recorded view does to an operand that broadcasts to its input; None if not affine.

    ``source`` and ``result`` are the recorded shapes of the view's input and output, ``own`` that
    of the operand.  Where the operand is broadcast, its dimension of size 1 stands for all places.
    """
    missing = len(source) - len(own)
    raised = (1,) * missing + own
    owned = [size == whole for size, whole in zip(raised, source, strict=True)]
    steps = _steps(node, source, result, owned)
    if steps is None:
        return None
    return [("unsqueeze", 0, ())] * missing + steps if steps else []


def foldable(node: OpNode, source: Shape, result: Shape) -> bool:
    """Whether a kernel can read through the view at all sizes."""
    return _steps(node, source, result, [True] * len(source)) is not None


def leaves_out(node: OpNode, source: Shape, result: Shape) -> bool:
    """Whether the view shows, at some sizes, only a part of what it is taken of."""
    steps = _steps(node, source, result, [True] * len(source))
    whole = (0, sys.maxsize, 1)
    return steps is None or any(
        kind == "select" or (kind == "slice" and numbers != whole) for kind, _, numbers in steps
    )


def size_free(node: OpNode, source: Shape, result: Shape) -> OpNode:
    """The view as an op whose arguments hold no size but those of the inner parts of a split.

    Recorded reshapes name whole shapes; this one also fits other batch and sequence sizes, and so
    does an expansion but for the dimensions it expands.  Other ops come back as they are.
    """
    first = node.args[:1]
    if node.op == "aten.expand.default":
        lead = len(result) - len(source)
        sizes: Argument = tuple(
            [
                -1 if d >= lead and source[d - lead] == size else size
                for d, size in enumerate(result)
            ]
        )
        return replace(node, args=(*first, sizes))
    if node.op not in _RESHAPES:
        return node
    steps = _reshape_steps(source, result, [True] * len(source))
    if steps is None:
        return node
    if not steps:
        return replace(node, op="aten.alias.default", args=first)
    kind, at, inner = steps[0]
    if kind == "unsqueeze":
        return replace(node, op="aten.unsqueeze.default", args=(*first, at))
    if kind == "single":
        return replace(node, op="aten.squeeze.dim", args=(*first, at))
    return replace(node, op="aten.unflatten.int", args=(*first, at, (-1, *inner)))


def _steps(node: OpNode, source: Shape, result: Shape, owned: list[bool]) -> list[ViewStep] | None:
    op, rank = node.op, len(source)
    if op in _SAME:
        return []
    if op == "aten.t.default":
        return [("permute", 0, tuple(reversed(range(rank))))]
    if op in _RESHAPES:
        return _reshape_steps(source, result, owned)
    if op == "aten.expand.default":  # what is expanded has size 1 still: it is broadcast
        return [("unsqueeze", 0, ())] * (len(result) - rank)
    numbers = _integers(node)
    if numbers is None or len(numbers) < _LEAST_NUMBERS.get(op, 0):
        return None
    if op == "aten.permute.default":
        order = [axis % rank for axis in numbers] if rank else []
        return [("permute", 0, tuple(order))] if sorted(order) == list(range(rank)) else None
    if op == "aten.unsqueeze.default":
        return [("unsqueeze", numbers[0] % (rank + 1), ())]
    if not rank:
        return None
    if op == "aten.transpose.int":
        order = list(range(rank))
        first, second = numbers[0] % rank, numbers[1] % rank
        order[first], order[second] = second, first
        return [("permute", 0, tuple(order))]
    if op == "aten.squeeze.dim":
        # Where the size is not 1 nothing is dropped, and at another size something would be.
        return [("single", numbers[0] % rank, ())] if source[numbers[0] % rank] == 1 else None
    if op == "aten.select.int":
        at = numbers[0] % rank
        return [("select", at, (numbers[1],)) if owned[at] else ("single", at, ())]
    if op == "aten.slice.Tensor":
        dim, start, end, step = slice_arguments(node)
        return [("slice", dim % rank, (start, end, step))] if owned[dim % rank] else []
    return None


def _reshape_steps(source: Shape, result: Shape, owned: list[bool]) -> list[ViewStep] | None:
    """A reshape as one split, one dimension of size 1 more or less, or nothing; None for others."""
    if 0 in source or 0 in result:
        return None
    if source == result:
        return []
    at = 0
    while at < min(len(source), len(result)) and source[at] == result[at]:
        at += 1
    extra = len(result) - len(source)
    if extra == -1 and source[at] == 1 and source[at + 1 :] == result[at:]:
        return [("single", at, ())]
    if extra < 1:
        return None
    if source[at:] == result[at + extra :]:
        return [("unsqueeze", at, ())] if extra == 1 and result[at] == 1 else None
    parts = result[at : at + extra + 1]
    if 1 in parts or math.prod(parts) != source[at] or source[at + 1 :] != result[at + extra + 1 :]:
        return None
    return [("split", at, parts[1:])] if owned[at] else [("unsqueeze", at, ())] * extra


def slice_arguments(node: OpNode) -> tuple[int, int, int, int]:
    """Dimension, start, end and step of a recorded slice whose arguments are whole numbers."""
    given = [item if type(item) is int else None for item in node.args[1:]]
    dim, start, end, step = [*given, None, None, None, None][:4]
    return dim or 0, start or 0, sys.maxsize if end is None else end, 1 if step is None else step


def _integers(node: OpNode) -> tuple[int, ...] | None:
    """The arguments after the tensor, a list of them being taken apart; a slice may leave some."""
    arguments = node.args[1:]
    if len(arguments) == 1 and isinstance(arguments[0], tuple):
        arguments = arguments[0]
    found = tuple([n for n in arguments if type(n) is int and -(2**63) <= n < 2**63])
    absent = arguments.count(None) if node.op == "aten.slice.Tensor" else 0
    return found if len(found) + absent == len(arguments) and not node.kwargs else None
