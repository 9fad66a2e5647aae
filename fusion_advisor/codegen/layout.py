"""The axes a kernel walks: output dimensions in memory order, merged where every operand allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.records import FusionCandidate, OperandMap, TensorSpec
from fusion_advisor.view_steps import ViewStep

Layout = Literal["dense", "strided"]


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """The groups an operand is read at, and whether it is dense over them."""

    groups: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True, slots=True)
class SpaceLayout:
    """``groups`` partition the dimensions, outermost first; operands by value id."""

    groups: tuple[tuple[int, ...], ...]
    operands: dict[str, OperandLayout]


def _is_row_major(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether strides are contiguous in the given order; sizes of 1 may have any stride."""
    if 0 in sizes:
        return True
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def memory_order(spec: TensorSpec) -> tuple[int, ...]:
    """Dimensions from the outermost in memory to the innermost; row-major stays as it is."""
    dimensions = tuple(range(len(spec.shape)))
    if _is_row_major(spec.shape, spec.strides):
        return dimensions
    moving = sorted(
        (d for d in dimensions if spec.shape[d] != 1), key=lambda d: (-spec.strides[d], d)
    )
    # A dimension of size 1 has no place of its own: it stays beside its left neighbour.
    order: list[int] = []
    still = [d for d in dimensions if spec.shape[d] == 1]
    for dimension in moving:
        order.append(dimension)
    for dimension in still:
        left = [d for d in order if d < dimension]
        position = order.index(max(left)) + 1 if left else 0
        order.insert(position, dimension)
    return tuple(order)


def _output_order(outputs: tuple[TensorSpec, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    order = memory_order(outputs[0])
    for spec in outputs:
        if spec.shape != shape:
            raise UnsupportedOpError(
                f"output {spec.id} has shape {spec.shape}, not that of the iteration space "
                f"{shape}; leave its op out of the group"
            )
        sizes = tuple(spec.shape[d] for d in order)
        strides = tuple(spec.strides[d] for d in order)
        if not _is_row_major(sizes, strides):
            what = "is not dense" if spec is outputs[0] else "has another layout than the first"
            raise UnsupportedOpError(f"output {spec.id} {what} (strides {spec.strides})")
    return order


def _cut_dimensions(steps: tuple[ViewStep, ...], rank: int) -> frozenset[int]:
    """Of ``rank`` dimensions after the steps, those of which a slice takes a part."""
    for kind, _, numbers in steps:
        rank += (kind in ("single", "select")) - (kind == "unsqueeze")
        rank -= len(numbers) if kind == "split" else 0
    cut = [False] * rank
    for kind, at, numbers in steps:
        if kind == "permute":
            cut = [cut[d] for d in numbers]
        elif kind == "unsqueeze":
            cut.insert(at, False)
        elif kind in ("single", "select"):
            del cut[at]
        elif kind in ("slice", "part"):
            cut[at] = True
        elif kind == "split":
            cut[at : at + 1] = [cut[at]] * (len(numbers) + 1)
    return frozenset(d for d, is_cut in enumerate(cut) if is_cut)


@dataclass(frozen=True, slots=True)
class _Walk:
    """An operand over the iteration space.

    ``fixed``: sizes of 1 may be longer another time.  ``cut``: dimensions that lie apart from
    those outside them, if not at these sizes then at others.
    """

    strides: tuple[int | None, ...]
    shape: tuple[int, ...]
    fixed: bool
    cut: frozenset[int]

    def owns(self, dimension: int) -> bool:
        return self.strides[dimension] is not None

    def mergeable(self, outer: int, inner: int) -> bool:
        """Whether one stride walks both dimensions of an operand that has both."""
        first, second = self.strides[outer], self.strides[inner]
        if inner in self.cut:
            return False
        if 0 in self.shape:
            return True
        if 1 in (self.shape[outer], self.shape[inner]):
            return not self.fixed
        return first is not None and second is not None and first == second * self.shape[inner]


def plan_space(
    candidate: FusionCandidate,
    values: Mapping[str, TensorSpec],
    steps: Mapping[str, tuple[ViewStep, ...]],
) -> SpaceLayout:
    """Groups and operand layouts for a candidate's iteration space.

    ``steps`` are those that made an operand, for operands that are views.

    Raises:
        UnsupportedOpError: an output that is not dense, or outputs of different layout.
    """
    shape = candidate.shape
    outputs = tuple(values[name] for name in candidate.outputs)
    if not outputs:
        raise UnsupportedOpError("the group has no output that is used later; nothing to compute")
    order = _output_order(outputs, shape)
    # Through a view, a dimension of size 1 may lie anywhere: merged by chance, it would make the
    # kernel refuse every other size.
    viewed = any(steps.values())
    walks = {
        operand.value: _walk(
            operand, values[operand.value], shape, viewed, steps.get(operand.value, ())
        )
        for operand in candidate.inputs
    }
    groups: list[list[int]] = []
    for dimension in order:
        if groups and all(_joins(groups[-1], dimension, walk) for walk in walks.values()):
            groups[-1].append(dimension)
        else:
            groups.append([dimension])
    frozen = tuple(tuple(group) for group in groups) or ((),)
    operands = {value: _operand_layout(walk, frozen) for value, walk in walks.items()}
    return SpaceLayout(frozen, operands)


def _walk(
    operand: OperandMap,
    spec: TensorSpec,
    shape: tuple[int, ...],
    viewed: bool,
    steps: tuple[ViewStep, ...],
) -> _Walk:
    strides = tuple(None if own is None else spec.strides[own] for own in operand.dims)
    cut = _cut_dimensions(steps, len(spec.shape))
    places = frozenset(d for d, own in enumerate(operand.dims) if own in cut)
    return _Walk(strides, shape, viewed, places)


def _joins(group: list[int], dimension: int, walk: _Walk) -> bool:
    """Whether an operand lets ``dimension`` be walked together with the group before it."""
    if walk.owns(group[-1]) != walk.owns(dimension):
        return False
    if not walk.owns(dimension):
        return True
    if walk.fixed:
        return walk.mergeable(group[-1], dimension)
    moving = [d for d in group if walk.shape[d] != 1]
    return not moving or walk.mergeable(moving[-1], dimension)


def _operand_layout(walk: _Walk, groups: tuple[tuple[int, ...], ...]) -> OperandLayout:
    mine = tuple(index for index, group in enumerate(groups) if all(walk.owns(d) for d in group))
    dimensions = [d for index in mine for d in groups[index]]
    sizes = tuple(walk.shape[d] for d in dimensions)
    strides = tuple(walk.strides[d] or 0 for d in dimensions)
    dense = _is_row_major(sizes, strides) and not walk.cut.intersection(dimensions[1:])
    return OperandLayout(mine, "dense" if dense else "strided")
