"""How a torch tensor becomes the arrays of the kernel calling convention.

Derived from the program and the candidate alone, independently of the launcher
that people's calls go through, so that each checks the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fusion_advisor.errors import ValidationError
from fusion_advisor.records import FusedProgram, FusionCandidate, OperandMap, ProgramInput

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
    """Everything a kernel gets: operands, outputs as (name, dtype), group sizes, scalars."""

    operands: tuple[ArraySpec, ...]
    outputs: tuple[tuple[str, str], ...]
    sizes: tuple[int, ...]
    scalars: tuple[float | int, ...]

    @property
    def elements(self) -> int:
        """Number of elements of the iteration space."""
        count = 1
        for size in self.sizes:
            count *= size
        return count


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype that carries ``dtype`` into a kernel."""
    if dtype not in _NUMPY_DTYPES:
        raise ValidationError(f"kernels do not take {dtype} arrays")
    return np.dtype(_NUMPY_DTYPES[dtype])


def iteration_shape(candidate: FusionCandidate, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The sizes of the iteration space for these operands.

    A dimension that a view splits has inner parts of the recorded sizes.
    """
    rank = len(candidate.shape)
    shape = [1] * rank
    for operand, tensor in zip(candidate.inputs, tensors, strict=True):
        for axis, own in enumerate(operand.dims):
            if own is None:
                continue
            if own in operand.dims[:axis]:
                shape[axis] = candidate.shape[axis]
            elif own in operand.dims[axis + 1 :]:
                inner = [candidate.shape[d] for d in inner_axes(operand.dims, axis)]
                shape[axis] = tensor.shape[own] // _product(inner)
            elif tensor.shape[own] != 1:
                shape[axis] = tensor.shape[own]
    return tuple(shape)


def inner_axes(dims: tuple[int | None, ...], axis: int) -> list[int]:
    """The axes after ``axis`` over which the same dimension of the operand is split."""
    return [
        d for d in range(axis + 1, len(dims)) if dims[axis] is not None and dims[d] == dims[axis]
    ]


def axis_stride(
    dims: tuple[int | None, ...], axis: int, tensor: torch.Tensor, shape: tuple[int, ...]
) -> int:
    """How many elements of the operand's memory one step along an axis is."""
    own = dims[axis]
    if own is None or tensor.shape[own] == 1:
        return 0
    return tensor.stride(own) * _product(shape[d] for d in inner_axes(dims, axis))


def launch_spec(
    program: FusedProgram,
    candidate: FusionCandidate,
    tensors: Sequence[torch.Tensor],
    scalars: Sequence[float | int],
) -> LaunchSpec:
    """Arrays, sizes and scalars of one launch for ``tensors`` in ``candidate.inputs`` order."""
    shape = iteration_shape(candidate, tensors)
    entries = [entry for entry in program.inputs if entry.kind == "tensor"]
    operands = tuple(
        _operand(entry, program, operand, tensor, shape)
        for entry, operand, tensor in zip(entries, candidate.inputs, tensors, strict=True)
    )
    return LaunchSpec(
        operands=operands,
        outputs=tuple((output.name, output.dtype) for output in program.outputs),
        sizes=tuple(_product(shape[axis] for axis in group) for group in program.groups),
        scalars=tuple(scalars),
    )


def _product(values: object) -> int:
    result = 1
    for value in values:  # type: ignore[attr-defined]
        result *= int(value)
    return result


def _operand(
    entry: ProgramInput,
    program: FusedProgram,
    operand: OperandMap,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
) -> ArraySpec:
    sizes: list[int] = []
    strides: list[int] = []
    for number in entry.groups:
        axes = program.groups[number]
        sizes.append(_product(shape[axis] for axis in axes))
        strides.append(_group_stride(entry.name, axes, operand, tensor, shape))
    empty = 0 in sizes
    extent = 0 if empty else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    data = _bits(tensor).as_strided((extent,), (1,), tensor.storage_offset())
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
    name: str,
    axes: tuple[int, ...],
    operand: OperandMap,
    tensor: torch.Tensor,
    shape: tuple[int, ...],
) -> int:
    """The stride of one loop axis made of several dimensions; they must be mergeable."""
    stride: int | None = None
    expected = 0
    for axis in reversed(axes):
        if shape[axis] == 1 or tensor.numel() == 0:
            continue
        own_stride = axis_stride(operand.dims, axis, tensor, shape)
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
    program: FusedProgram, dtype: str, shape: tuple[int, ...], data: np.ndarray
) -> torch.Tensor:
    """A kernel's dense output as a torch tensor of ``shape`` (the iteration space)."""
    order = [axis for group in program.groups for axis in group]
    order += [axis for axis in range(len(shape)) if axis not in order]
    flat = torch.from_numpy(data)
    target = getattr(torch, dtype)
    if flat.dtype != target:
        flat = flat.view(target)
    walked = flat.reshape([shape[axis] for axis in order])
    inverse = [order.index(axis) for axis in range(len(shape))]
    return walked.permute(inverse)
