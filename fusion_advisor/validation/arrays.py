"""How a torch tensor becomes the arrays of the kernel calling convention.

Derived from the program and the candidate alone, independently of the launcher
that people's calls go through, so that each checks the other: there views are steps on
strides, here they are taken again by torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fusion_advisor.errors import ValidationError
from fusion_advisor.ops.regions import halved_dimension, takes_halves
from fusion_advisor.records import (
    Access,
    FusedProgram,
    FusionCandidate,
    IterationSpace,
    OpGraph,
    OpNode,
    ProgramInput,
)
from fusion_advisor.validation import aten

# 16-bit floats travel as bit patterns.
_NUMPY_DTYPES = {
    "bool": np.bool_, "uint8": np.uint8, "int8": np.int8, "int16": np.int16, "int32": np.int32,
    "int64": np.int64, "float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32,
    "float64": np.float64,
}  # fmt: skip


@dataclass(frozen=True)
class ArraySpec:
    """One array of a launch.  ``sizes`` and ``strides`` (elements) have one entry per group.

    ``data`` is the memory from the first to the last element reached, 1-D.
    """

    name: str
    data: np.ndarray
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    strided: bool


@dataclass(frozen=True)
class LaunchSpec:
    """Everything a kernel gets: operands, outputs as (name, dtype), axis sizes, scalars.

    ``sizes`` are those of all regions, one after the other; ``output_sizes`` of each output's own.
    """

    operands: tuple[ArraySpec, ...]
    outputs: tuple[tuple[str, str], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    scalars: tuple[float | int, ...]
    checks_divisors: bool = False  # a CPU kernel takes a flag for zero divisors

    @property
    def elements(self) -> int:
        """Number of elements of the (largest) iteration space."""
        return max(_product(sizes) for sizes in self.output_sizes)

    @property
    def output_elements(self) -> tuple[int, ...]:
        """Number of elements of each output."""
        return tuple(_product(sizes) for sizes in self.output_sizes)


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype that carries ``dtype`` into a kernel."""
    if dtype not in _NUMPY_DTYPES:
        raise ValidationError(f"kernels do not take {dtype} arrays")
    return np.dtype(_NUMPY_DTYPES[dtype])


def iteration_shape(candidate: FusionCandidate, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The sizes of the one iteration space for these operands."""
    shape = [1] * len(candidate.shape)
    for operand, tensor in zip(candidate.inputs, tensors, strict=True):
        for axis, own in enumerate(operand.dims):
            if own is not None and tensor.shape[own] != 1:
                shape[axis] = tensor.shape[own]
    return tuple(shape)


def seen_over(
    dims: tuple[int | None, ...], tensor: torch.Tensor, shape: tuple[int, ...]
) -> torch.Tensor:
    """An operand as it is read at every place of an iteration space."""
    strides = [0 if own is None or tensor.shape[own] == 1 else tensor.stride(own) for own in dims]
    return tensor.detach().as_strided(shape, strides, tensor.storage_offset())


@dataclass(frozen=True)
class SeenRegion:
    """A region's iteration space, and its operands as they are read at every place of it."""

    shape: tuple[int, ...]
    operands: tuple[torch.Tensor, ...]


def seen_regions(
    graph: OpGraph, candidate: FusionCandidate, tensors: Sequence[torch.Tensor]
) -> tuple[SeenRegion, ...]:
    """What a candidate's loops read of ``tensors``, found by taking the recorded views of them.

    Raises ``ValidationError`` where the results of one loop differ in shape.
    """
    if not candidate.regions:
        shape = iteration_shape(candidate, tensors)
        operands = tuple(
            seen_over(operand.dims, tensor, shape)
            for operand, tensor in zip(candidate.inputs, tensors, strict=True)
        )
        return (SeenRegion(shape, operands),)
    names = [operand.value for operand in candidate.inputs]
    given = {name: tensor.detach() for name, tensor in zip(names, tensors, strict=True)}
    nodes = aten.needed_nodes(graph, candidate)
    values = _shaped(nodes, given)
    makers = {value: node for node in nodes for value in node.outputs}
    found = []
    for region in candidate.regions:
        shapes = {tuple(values[value].shape) for value in region.outputs}
        if len(shapes) > 1:
            raise ValidationError(f"the results of one loop differ in shape: {sorted(shapes)}")
        shape = shapes.pop()
        operands = tuple(_seen(access, given, values, makers, shape) for access in region.accesses)
        found.append(SeenRegion(shape, operands))
    return tuple(found)


def _shaped(
    nodes: Sequence[OpNode], given: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Values of the shapes that the nodes make; of ones where eager raises for a zero divisor."""
    try:
        return aten.run(nodes, given)
    except RuntimeError as error:
        if not is_zero_division(error):
            raise
    ones = {
        name: tensor if tensor.dtype.is_floating_point else torch.ones_like(tensor)
        for name, tensor in given.items()
    }
    return aten.run(nodes, ones)


def is_zero_division(error: Exception) -> bool:
    """Whether eager raised this for an integer divided by 0."""
    return type(error) is RuntimeError and "ZeroDivisionError" in str(error)


def _seen(
    access: Access,
    given: Mapping[str, torch.Tensor],
    values: Mapping[str, torch.Tensor],
    makers: Mapping[str, OpNode],
    shape: tuple[int, ...],
) -> torch.Tensor:
    """An operand broadcast to what each view was taken of, and viewed as that was."""
    tensor = given[access.value]
    for result in access.views:
        node = makers[result]
        source = node.inputs[0]
        whole = tensor.broadcast_to(values[source].shape)
        if takes_halves(node):
            half = next(numbers[0] for kind, _, numbers in access.steps if kind == "part")
            tensor = whole.chunk(2, halved_dimension(node, tuple(whole.shape)))[half]
        else:
            tensor = aten.bind_outputs(node, aten.call(node, {source: whole}))[result]
    return tensor.broadcast_to(shape)


def launch_spec(
    program: FusedProgram,
    regions: Sequence[SeenRegion],
    scalars: Sequence[float | int],
) -> LaunchSpec:
    """Arrays, sizes and scalars of one launch; operands are those of all regions, in order."""
    entries = [entry for entry in program.inputs if entry.kind == "tensor"]
    seen = [(region, tensor) for region in regions for tensor in region.operands]
    sizes = [
        tuple(_product(region.shape[axis] for axis in group) for group in space.groups)
        for space, region in zip(program.spaces, regions, strict=True)
    ]
    operands = tuple(
        _operand(entry, program.spaces[entry.region], tensor, region.shape)
        for entry, (region, tensor) in zip(entries, seen, strict=True)
    )
    return LaunchSpec(
        operands=operands,
        outputs=tuple((output.name, output.dtype) for output in program.outputs),
        output_sizes=tuple(sizes[output.region] for output in program.outputs),
        sizes=tuple(size for own in sizes for size in own),
        scalars=tuple(scalars),
        checks_divisors=program.checks_divisors,
    )


def _product(values: object) -> int:
    result = 1
    for value in values:  # type: ignore[attr-defined]
        result *= int(value)
    return result


def _operand(
    entry: ProgramInput, space: IterationSpace, seen: torch.Tensor, shape: tuple[int, ...]
) -> ArraySpec:
    own = [space.groups[number] for number in entry.groups]
    sizes = [_product(shape[axis] for axis in axes) for axes in own]
    strides = [1 if 0 in sizes else _group_stride(entry.name, axes, seen, shape) for axes in own]
    absent = {axis for axes in space.groups if axes not in own for axis in axes}
    if any(shape[axis] != 1 and seen.stride(axis) for axis in absent) and 0 not in shape:
        raise ValidationError(f"operand {entry.name} is not broadcast as the program says")
    empty = 0 in sizes or not seen.numel()  # a view of nothing may start behind its memory
    extent = 0 if empty else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    flat = _bits(seen)
    data = flat.as_strided((extent,), (1,), 0 if empty else flat.storage_offset())
    strided = entry.layout == "strided"
    if not strided and not empty and extent != _product(sizes):
        raise ValidationError(f"operand {entry.name} is not dense as the program says")
    return ArraySpec(
        name=entry.name,
        data=data.numpy().astype(numpy_dtype(entry.dtype), copy=False),
        sizes=tuple(sizes) or (1,),
        strides=tuple(strides) or (1,),
        strided=strided,
    )


def _group_stride(
    name: str, axes: tuple[int, ...], seen: torch.Tensor, shape: tuple[int, ...]
) -> int:
    """The stride of one loop axis made of several dimensions; they must be mergeable."""
    stride: int | None = None
    expected = 0
    for axis in reversed(axes):
        if shape[axis] == 1:
            continue
        own_stride = seen.stride(axis)
        if stride is None:
            stride = own_stride
        elif own_stride != expected:
            raise ValidationError(f"operand {name}: dimensions {axes} are not one axis")
        expected = own_stride * shape[axis]
    return 1 if stride is None else stride


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory under a dtype that numpy knows."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return tensor.detach().view(torch.uint16)
    return tensor.detach()


def output_tensor(
    space: IterationSpace, dtype: str, shape: tuple[int, ...], data: np.ndarray
) -> torch.Tensor:
    """A kernel's dense output as a torch tensor of ``shape`` (its region's iteration space)."""
    order = [axis for group in space.groups for axis in group]
    order += [axis for axis in range(len(shape)) if axis not in order]
    flat = torch.from_numpy(data)
    target = getattr(torch, dtype)
    if flat.dtype != target:
        flat = flat.view(target)
    walked = flat.reshape([shape[axis] for axis in order])
    inverse = [order.index(axis) for axis in range(len(shape))]
    return walked.permute(inverse)
