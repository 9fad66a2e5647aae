"""The axes a kernel walks: output dimensions in memory order, merged where every operand allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.records import FusionCandidate, OperandMap, TensorSpec

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


def _full_dimensions(operand: OperandMap, spec: TensorSpec, rank: int) -> frozenset[int]:
    """Iteration dimensions the operand has itself; the map must align from the right."""
    missing = rank - len(spec.shape)
    full = set()
    for dimension, own in enumerate(operand.dims):
        if own is None:
            continue
        if own != dimension - missing:
            raise UnsupportedOpError(
                f"operand {operand.value} is read with its dimensions permuted; "
                "only broadcasting is supported"
            )
        full.add(dimension)
    return frozenset(full)


def _mergeable(outer: int, inner: int, shape: tuple[int, ...], spec: TensorSpec) -> bool:
    """Whether one stride walks both dimensions of an operand that has both."""
    missing = len(shape) - len(spec.shape)
    strides = [spec.strides[d - missing] for d in (outer, inner)]
    if shape[outer] == 1 or 0 in shape:
        return True
    if shape[inner] == 1:
        return True
    return strides[0] == strides[1] * shape[inner]


def plan_space(candidate: FusionCandidate, values: dict[str, TensorSpec]) -> SpaceLayout:
    """Groups and operand layouts for a candidate's iteration space.

    Raises:
        UnsupportedOpError: an output that is not dense, outputs of different layout,
            or an operand that is not read by plain broadcasting.
    """
    shape, rank = candidate.shape, len(candidate.shape)
    outputs = tuple(values[name] for name in candidate.outputs)
    if not outputs:
        raise UnsupportedOpError("the group has no output that is used later; nothing to compute")
    order = _output_order(outputs, shape)
    full = {
        operand.value: _full_dimensions(operand, values[operand.value], rank)
        for operand in candidate.inputs
    }
    groups: list[list[int]] = []
    for dimension in order:
        if groups and all(
            _joins(groups[-1], dimension, shape, values[value], own) for value, own in full.items()
        ):
            groups[-1].append(dimension)
        else:
            groups.append([dimension])
    frozen = tuple(tuple(group) for group in groups) or ((),)
    operands = {
        value: _operand_layout(values[value], own, frozen, shape) for value, own in full.items()
    }
    return SpaceLayout(frozen, operands)


def _joins(
    group: list[int], dimension: int, shape: tuple[int, ...], spec: TensorSpec, own: frozenset[int]
) -> bool:
    """Whether an operand lets ``dimension`` be walked together with the group before it."""
    if (group[-1] in own) != (dimension in own):
        return False
    if dimension not in own:
        return True
    moving = [d for d in group if shape[d] != 1]
    return not moving or _mergeable(moving[-1], dimension, shape, spec)


def _operand_layout(
    spec: TensorSpec,
    own: frozenset[int],
    groups: tuple[tuple[int, ...], ...],
    shape: tuple[int, ...],
) -> OperandLayout:
    mine = tuple(index for index, group in enumerate(groups) if all(d in own for d in group))
    missing = len(shape) - len(spec.shape)
    dimensions = [d for index in mine for d in groups[index]]
    sizes = tuple(shape[d] for d in dimensions)
    strides = tuple(spec.strides[d - missing] for d in dimensions)
    return OperandLayout(mine, "dense" if _is_row_major(sizes, strides) else "strided")
