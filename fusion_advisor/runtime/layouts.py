"""How tensors lie over the axes a kernel walks: pure functions on shapes and strides.

A kernel's iteration space has ``rank`` dimensions, partitioned into *groups* (outermost first);
each group is walked as one axis.  Strides and offsets are in elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class AxisLayout:
    """A tensor over its own groups: one size and one stride per group, outermost first."""

    sizes: Shape
    strides: Shape

    @property
    def elements(self) -> int:
        """How many places of the iteration space are its own."""
        return math.prod(self.sizes)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie one after another in the order they are walked."""
        return is_row_major(self.sizes, self.strides)

    @property
    def largest_offset(self) -> int:
        """The largest distance, in elements, from the first element to one that is reached."""
        return largest_offset(self.sizes, self.strides)


def is_row_major(sizes: Shape, strides: Shape) -> bool:
    """Whether the strides are those of a contiguous array; sizes of 1 may have any stride."""
    if 0 in sizes:
        return True
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def row_major_strides(sizes: Shape) -> Shape:
    """The strides of a contiguous array of these sizes."""
    strides = []
    step = 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def largest_offset(sizes: Shape, strides: Shape) -> int:
    """The offset of the farthest element from the first one; 0 for an empty tensor."""
    if 0 in sizes:
        return 0
    return sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def group_sizes(shape: Shape, groups: Groups) -> Shape:
    """The size of each collapsed axis."""
    return tuple(math.prod(shape[dimension] for dimension in group) for group in groups)


def collapsed_stride(shape: Shape, strides: Shape, group: tuple[int, ...]) -> int | None:
    """The one stride that walks a group's dimensions in order, or None if there is none."""
    inner: int | None = None
    step = 0
    for dimension in reversed(group):
        size, stride = shape[dimension], strides[dimension]
        if size == 1:
            continue
        if inner is None:
            inner = stride
        elif stride != step:
            return None
        step = stride * size
    return 1 if inner is None else inner


def axis_layout(shape: Shape, strides: Shape, groups: Groups) -> AxisLayout | None:
    """A tensor of full rank over ``groups``; None if a group does not collapse to one stride.

    In an empty space nothing of it is reached, however much of it there is.
    """
    if 0 in shape:
        return AxisLayout((0,) * len(groups), (1,) * len(groups))
    collapsed = []
    for group in groups:
        stride = collapsed_stride(shape, strides, group)
        if stride is None:
            return None
        collapsed.append(stride)
    return AxisLayout(group_sizes(shape, groups), tuple(collapsed))


def broadcast_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that all broadcast to, or None if they do not."""
    space: list[int] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for dimension, size in enumerate(reversed(shape), start=1):
            if size == 1 or size == space[-dimension]:
                continue
            if space[-dimension] != 1:
                return None
            space[-dimension] = size
    return tuple(space)


def broadcast_problem(shape: Shape, space: Shape, groups: Groups, own: tuple[int, ...]) -> str:
    """Why an operand of ``shape`` is not read at exactly its ``own`` groups of ``space``, or "".

    Dimensions are aligned from the right.  Inside its own groups an operand has the size of the
    iteration space, elsewhere 1 or no dimension at all.
    """
    missing = len(space) - len(shape)
    if missing < 0:
        return f"it has {len(shape)} dimensions, more than the {len(space)} of the result"
    for index, group in enumerate(groups):
        for dimension in group:
            size = shape[dimension - missing] if dimension >= missing else 1
            wanted = space[dimension] if index in own else 1
            if size != wanted:
                return f"its size at dimension {dimension} is {size}, not {wanted}"
    return ""


def at_full_rank(shape: Shape, strides: Shape, rank: int) -> tuple[Shape, Shape]:
    """Shape and strides with leading dimensions of size 1 up to ``rank``."""
    missing = rank - len(shape)
    return (1,) * missing + shape, (0,) * missing + strides
