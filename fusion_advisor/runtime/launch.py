"""From a plan and its arguments to a kernel call: arrays in the kernel's own convention.

CPU kernels take NumPy arrays with one dimension per group of the operand; CUDA kernels take flat
arrays, the sizes of the axes, and the strides of strided operands (all uint32).  16-bit floats
travel as uint16 bit patterns; an operand broadcast everywhere is an array of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusion_advisor.errors import UsageError
from fusion_advisor.runtime.layouts import AxisLayout
from fusion_advisor.runtime.plan import Plan, Signature


def _empty_strided(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


# The allocator of torch's own compiled code, at half the cost of the public function.
_empty_cpu = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", _empty_strided)

_HALVES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments of one kernel call.  ``outputs`` are the tensors the kernel writes."""

    target: str
    kernel: Any
    arrays: tuple[Any, ...]  # operands, then outputs
    sizes: tuple[np.uint32, ...]  # of the iteration axes, CUDA only
    strides: tuple[np.uint32, ...]  # of strided operands, one per group, CUDA only
    scalars: tuple[float | int, ...]
    outputs: tuple[torch.Tensor, ...]
    elements: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Everything the kernel takes, in its order."""
        return (*self.arrays, *self.sizes, *self.strides, *self.scalars)


def allocate(plan: Plan) -> tuple[torch.Tensor, ...]:
    """Fresh outputs with the strides that eager gives them."""
    if plan.device.type == "cpu":
        return tuple([_empty_cpu(*allocation) for allocation in plan.allocations])
    return tuple(
        torch.empty_strided(shape, strides, dtype=dtype, device=plan.device)
        for shape, strides, dtype in plan.allocations
    )


def check_outputs(plan: Plan, out: tuple[torch.Tensor, ...]) -> None:
    """Refuse caller-provided outputs that are not exactly what the plan makes.

    Raises:
        UsageError: a wrong number, dtype, shape, stride or device.
    """
    if len(out) != len(plan.outputs):
        raise UsageError(f"out= holds {len(out)} tensors; this function has {len(plan.outputs)}")
    for index, (tensor, wanted) in enumerate(zip(out, plan.outputs, strict=True)):
        same = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device) == (
            wanted.shape,
            wanted.strides,
            wanted.dtype,
            plan.device,
        )
        if not same:
            raise UsageError(
                f"out[{index}] must be a {wanted.dtype} tensor of shape {wanted.shape} and "
                f"strides {wanted.strides} on {plan.device}"
            )


def scalar_values(signature: Signature, args: tuple[Any, ...]) -> tuple[float | int, ...]:
    """The run-time numbers as a kernel takes them: float (float64) or int (int64)."""
    values = args[len(signature.parameters) :]
    return tuple(value if isinstance(value, float) else int(value) for value in values)


def cpu_launch(
    kernel: Any, signature: Signature, plan: Plan, args: tuple[Any, ...], out: tuple[Any, ...]
) -> Launch:
    """NumPy arrays over the very memory of the tensors."""
    arrays = []
    for tensor, layout, offset in _laid_out(signature, plan, args, out):
        sizes, strides = layout.sizes or (1,), layout.strides or (1,)
        first = tensor.storage_offset() + offset
        arrays.append(_bits(tensor.detach().as_strided(sizes, strides, first)).numpy())
    scalars = scalar_values(signature, args)
    return Launch("cpu", kernel, tuple(arrays), (), (), scalars, out, plan.elements)


def cpu_entry(
    kernel: Any, signature: Signature, plan: Plan, args: tuple[Any, ...]
) -> Callable[..., None]:
    """The kernel called by addresses, sizes of the axes, and numbers (contiguous operands only)."""
    axes = tuple(range(len(signature.spaces[0][1])))
    arrays = (
        *((operand.dtype, operand.groups) for operand in signature.operands),
        *((output.dtype, axes) for output in signature.outputs),
    )
    numbers = scalar_values(signature, args)
    dtypes = tuple("float64" if isinstance(value, float) else "int64" for value in numbers)
    entry: Callable[..., None] = kernel.entry(arrays, len(axes), dtypes)
    return entry


def cuda_launch(
    kernel: Any, signature: Signature, plan: Plan, args: tuple[Any, ...], out: tuple[Any, ...]
) -> Launch:
    """Flat arrays: of NumPy for tensors on the CPU (to run a kernel's IR there), else tensors."""
    strides: list[np.uint32] = []
    for operand, layout in zip(signature.operands, plan.operands, strict=True):
        if operand.layout == "strided":
            strides += (np.uint32(stride) for stride in layout.strides)
    arrays = []
    for tensor, layout, offset in _laid_out(signature, plan, args, out):
        length = layout.largest_offset + 1 if layout.elements else 0
        on_device = tensor if tensor.device == plan.device else tensor.to(plan.device)
        first = on_device.storage_offset() + offset
        flat = _bits(on_device.detach().as_strided((length,), (1,), first))
        arrays.append(flat.numpy() if flat.device.type == "cpu" else flat)
    sizes = tuple(np.uint32(size) for size in plan.sizes)
    scalars = scalar_values(signature, args)
    return Launch("cuda", kernel, tuple(arrays), sizes, tuple(strides), scalars, out, plan.elements)


def _laid_out(
    signature: Signature, plan: Plan, args: tuple[Any, ...], out: tuple[Any, ...]
) -> Iterator[tuple[torch.Tensor, AxisLayout, int]]:
    """Operands, then outputs: the tensor, its axes, and where in it the first element is."""
    for source, layout, offset in zip(signature.sources, plan.operands, plan.offsets, strict=True):
        yield args[source], layout, offset
    for tensor, planned in zip(out, plan.outputs, strict=True):
        yield tensor, planned.layout, 0


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit floats as uint16; other dtypes as they are."""
    return tensor.view(torch.uint16) if tensor.dtype in _HALVES else tensor
