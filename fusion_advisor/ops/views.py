"""Views as index maps: which dimension of its input each dimension of a view walks.

Elementwise ops commute with views, so that a kernel can compute a chain at the places of the
last op and read every operand through the views in between.  The maps hold for all sizes: a
reshape is understood as splitting one dimension or adding one of size 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fusion_advisor.records import Argument, OpNode

Shape = tuple[int, ...]
# Per dimension of the result: the input's own dimension walked there, None for a new one of size
# 1.  A dimension named several times is split over those places, outermost first.
Dims = tuple[int | None, ...]

_SAME = frozenset({"aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"})
_RESHAPES = frozenset(
    {"aten.view.default", "aten._unsafe_view.default", "aten._reshape_alias.default"}
)


def view_dims(node: OpNode, source: Shape, result: Shape) -> Dims | None:
    """The index map of a recorded view; None where it has none that holds for all sizes.

    ``source`` and ``result`` are the recorded shapes of the view's input and output.
    """
    rank = len(source)
    if node.op in _SAME:
        return tuple(range(rank))
    if node.op == "aten.t.default":
        return tuple(reversed(range(rank)))
    if node.op == "aten.permute.default":
        order = _integers(node.args[1])
        return tuple([axis % rank for axis in order]) if order is not None else None
    if node.op == "aten.transpose.int":
        pair = _integers(node.args[1:])
        if pair is None or not rank:
            return None
        first, second = (axis % rank for axis in pair)
        swapped = list(range(rank))
        swapped[first], swapped[second] = second, first
        return tuple(swapped)
    if node.op == "aten.unsqueeze.default":
        place = _integers(node.args[1:])
        if place is None:
            return None
        at = place[0] % (rank + 1)
        return (*range(at), None, *range(at, rank))
    if node.op in _RESHAPES:
        return _reshape_dims(source, result)
    return None


def compose(first: Dims, then: Dims) -> Dims | None:
    """The map of two views one after the other; None where parts of a split changed places."""
    for k, outer in enumerate(then):
        for inner in then[k + 1 :]:
            if outer is None or inner is None or first[outer] is None:
                continue
            if first[outer] == first[inner] and outer > inner:
                return None
    return tuple([None if d is None else first[d] for d in then])


def size_free(node: OpNode, source: Shape, result: Shape) -> OpNode:
    """The view as an op whose arguments hold no size but those of the inner parts of a split.

    Recorded reshapes name whole shapes; this one also fits other batch and sequence sizes.  Ops
    that are not such views come back as they are.
    """
    if node.op not in _RESHAPES:
        return node
    dims = _reshape_dims(source, result)
    if dims is None:
        return node
    first = node.args[:1]
    if dims == tuple(range(len(source))):
        return replace(node, op="aten.alias.default", args=first)
    if None in dims:
        return replace(node, op="aten.unsqueeze.default", args=(*first, dims.index(None)))
    split = next(own for own in dims if dims.count(own) > 1)
    sizes: Argument = tuple(
        [-1 if d == dims.index(split) else result[d] for d, own in enumerate(dims) if own == split]
    )
    return replace(node, op="aten.unflatten.int", args=(*first, split, sizes))


def inner_parts(dims: Dims, axis: int) -> tuple[int, ...]:
    """The places inside ``axis`` at which the same dimension of the operand is walked."""
    own = dims[axis]
    return tuple([d for d in range(axis + 1, len(dims)) if own is not None and dims[d] == own])


def own_size(dims: Dims, own: int, space: Shape) -> int:
    """The size of an operand's own dimension that ``space`` walks (1 where it is not walked)."""
    return math.prod([size for d, size in zip(dims, space, strict=True) if d == own])


def _reshape_dims(source: Shape, result: Shape) -> Dims | None:
    """A reshape as one split, one new dimension of size 1, or nothing; None for all others."""
    if 0 in source or 0 in result:
        return None
    if source == result:
        return tuple(range(len(source)))
    if len(result) <= len(source):
        return None
    at = 0
    while at < len(source) and source[at] == result[at]:
        at += 1
    extra = len(result) - len(source)
    if source[at:] == result[at + extra :]:
        if extra == 1 and result[at] == 1:
            return (*range(at), None, *range(at, len(source)))
        return None
    parts = result[at : at + extra + 1]
    if 1 in parts or math.prod(parts) != source[at] or source[at + 1 :] != result[at + extra + 1 :]:
        return None
    return (*range(at), *[at] * (extra + 1), *range(at + 1, len(source)))


def _integers(argument: Argument) -> tuple[int, ...] | None:
    if isinstance(argument, tuple):
        found = tuple([item for item in argument if type(item) is int])
        return found if len(found) == len(argument) else None
    return None
