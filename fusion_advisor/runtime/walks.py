"""Which dimensions of a call each axis of a kernel walks: pure functions on shapes and strides.

A kernel has a fixed number of axes, each told apart by the operands that move along it.  At
capture an axis stood for certain dimensions in a certain order.  A call whose tensors lie
otherwise (channels last, transposed, permuted) is served by the same kernel wherever its
dimensions, taken in the order in which the results lie in memory, can be dealt out to the same
axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fusion_advisor.runtime.layouts import (
    AxisLayout,
    Groups,
    Shape,
    axis_layout,
    group_sizes,
    row_major_strides,
)

_MOST_TRIED = 200  # ways to deal out the dimensions; reached by nothing of fewer than 8 dimensions


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor at the rank of the iteration space: its strides, and the axes it moves along.

    ``flat``: the kernel reads or writes it as one stretch, in walking order.
    """

    strides: Shape
    axes: tuple[int, ...]
    flat: bool

    def layout(self, space: Shape, groups: Groups) -> AxisLayout | None:
        """Over its axes as the kernel needs it; None if it does not lie so."""
        found = axis_layout(space, self.strides, tuple(groups[axis] for axis in self.axes))
        return None if found is None or (self.flat and not found.is_dense) else found

    def served(self, space: Shape, groups: Groups) -> tuple[AxisLayout, tuple[Shape, Shape] | None]:
        """Over its axes as it lies; or dense, with the sizes and strides to copy in that order."""
        found = self.layout(space, groups)
        if found is not None:
            return found, None
        own = tuple(groups[axis] for axis in self.axes)
        order = [dimension for group in own for dimension in group]
        sizes = group_sizes(space, own)
        apart = tuple(space[d] for d in order), tuple(self.strides[d] for d in order)
        return AxisLayout(sizes, row_major_strides(sizes)), apart


def choose(
    space: Shape, declared: Groups, operands: Sequence[Placed], outputs: Sequence[Placed]
) -> Groups:
    """The dimensions of each axis: the declared ones, or others that more tensors lie along.

    Dimensions of size 1 may be left out.  What does not lie along the axes chosen has to be copied
    before (an operand) or after (an output).
    """
    best, fewest = declared, _misplaced(space, declared, operands, outputs)
    if fewest == (0, 0):
        return best
    order = _memory_order(space, outputs[0].strides)
    for groups in islice(_dealt(space, declared, operands, order), _MOST_TRIED):
        found = _misplaced(space, groups, operands, outputs)
        if found < fewest:
            best, fewest = groups, found
    return best


def _misplaced(
    space: Shape, groups: Groups, operands: Sequence[Placed], outputs: Sequence[Placed]
) -> tuple[int, int]:
    """How many outputs, then how many operands, do not lie along the axes."""
    return (
        sum(one.layout(space, groups) is None for one in outputs),
        sum(one.layout(space, groups) is None for one in operands),
    )


def _memory_order(space: Shape, strides: Shape) -> tuple[int, ...]:
    """The dimensions longer than 1, outermost in memory first."""
    moving = [dimension for dimension, size in enumerate(space) if size != 1]
    return tuple(sorted(moving, key=lambda dimension: (-strides[dimension], dimension)))


def _dealt(
    space: Shape, declared: Groups, operands: Sequence[Placed], order: tuple[int, ...]
) -> Iterator[Groups]:
    """Every way to cut ``order`` into the declared axes, each with dimensions of its own kind.

    The kind of an axis is which operands move along it; others are broadcast over it.
    """
    kinds = [
        frozenset(number for number, one in enumerate(operands) if axis in one.axes)
        for axis in range(len(declared))
    ]
    kind_of = {
        dimension: kind for kind, group in zip(kinds, declared, strict=True) for dimension in group
    }

    def cuts(axis: int, start: int) -> Iterator[tuple[tuple[int, ...], ...]]:
        if axis == len(kinds):
            if start == len(order):
                yield ()
            return
        for end in range(start, len(order) + 1):
            if end > start and kind_of[order[end - 1]] != kinds[axis]:
                return
            for rest in cuts(axis + 1, end):
                yield (order[start:end], *rest)

    return cuts(0, 0)
