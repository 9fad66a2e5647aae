"""From a plan and its arguments to a kernel call: arrays in the kernel's own convention.

CPU kernels take NumPy arrays with one dimension per group of the operand; CUDA kernels take flat
arrays, the sizes of the axes, and the strides of strided operands (all uint32, or uint64 for the
64-bit variant).  16-bit floats travel as uint16 bit patterns; an operand broadcast everywhere is an
array of one element.
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


class ZeroDivisorError(Exception):
    """A kernel divided an integer by 0: its results count for nothing, eager raises."""


_HALVES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments of one kernel call.  ``outputs`` are the tensors that it is called for.

    The kernel writes them, but for those that lie otherwise than it walks: ``finish``, called
    after the kernel, fills these.
    """

    target: str
    kernel: Any
    arrays: tuple[Any, ...]  # operands, then outputs
    sizes: tuple[np.unsignedinteger[Any], ...]  # of the iteration axes, CUDA only
    strides: tuple[np.unsignedinteger[Any], ...]  # of strided operands, one per group, CUDA only
    scalars: tuple[float | int, ...]
    outputs: tuple[torch.Tensor, ...]
    elements: int
    flags: tuple[np.ndarray, ...] = ()  # of a CPU kernel that divides integers: one bool
    late: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()  # to, from

    def finish(self) -> None:
        """Copy what the kernel wrote apart to its places."""
        for target, source in self.late:
            target.copy_(source)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Everything the kernel takes, in its order."""
        return (*self.arrays, *self.flags, *self.sizes, *self.strides, *self.scalars)

    @property
    def met_zero_divisor(self) -> bool:
        """Whether the kernel, once it has run, divided an integer by 0: eager raises there."""
        return any(bool(flag[0]) for flag in self.flags)


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
    """NumPy arrays over the very memory of the tensors (of copies, where a plan says so)."""
    arrays = []
    written, late = _written(plan, out)
    for tensor, layout, first in _laid_out(signature, plan, args, written):
        sizes, strides = layout.sizes or (1,), layout.strides or (1,)
        arrays.append(_bits(tensor.as_strided(sizes, strides, first)).numpy())
    scalars = scalar_values(signature, args)
    flags = (np.zeros(1, np.bool_),) if signature.checks_divisors else ()
    return Launch("cpu", kernel, tuple(arrays), (), (), scalars, out, plan.elements, flags, late)


def cpu_entry(
    kernel: Any, signature: Signature, plan: Plan, args: tuple[Any, ...]
) -> Callable[..., bool | None]:
    """The kernel called by addresses, sizes of the axes, and numbers (contiguous operands only)."""
    axes = tuple(range(len(signature.spaces[0][1])))
    arrays = (
        *((operand.dtype, operand.groups) for operand in signature.operands),
        *((output.dtype, axes) for output in signature.outputs),
    )
    numbers = scalar_values(signature, args)
    dtypes = tuple("float64" if isinstance(value, float) else "int64" for value in numbers)
    entry: Callable[..., bool | None] = kernel.entry(
        arrays, len(axes), dtypes, signature.checks_divisors
    )
    return entry


def cuda_launch(
    kernel: Any, signature: Signature, plan: Plan, args: tuple[Any, ...], out: tuple[Any, ...]
) -> Launch:
    """Flat arrays: of NumPy for tensors on the CPU (to run a kernel's IR there), else tensors."""
    index = np.uint64 if plan.wide else np.uint32
    strides: list[np.unsignedinteger[Any]] = []
    for operand, planned in zip(signature.operands, plan.operands, strict=True):
        if operand.layout == "strided":
            strides += (index(stride) for stride in planned.layout.strides)
    arrays = []
    written, late = _written(plan, out)
    for tensor, layout, first in _laid_out(signature, plan, args, written):
        length = layout.largest_offset + 1 if layout.elements else 0
        flat = _bits(tensor.as_strided((length,), (1,), first))
        arrays.append(flat.numpy() if flat.device.type == "cpu" else flat)
    sizes = tuple(index(size) for size in plan.sizes)
    scalars = scalar_values(signature, args)
    numbers = (sizes, tuple(strides), scalars)
    return Launch("cuda", kernel, tuple(arrays), *numbers, out, plan.elements, (), late)


def _written(
    plan: Plan, out: tuple[torch.Tensor, ...]
) -> tuple[tuple[torch.Tensor, ...], tuple[tuple[torch.Tensor, torch.Tensor], ...]]:
    """The tensors that the kernel writes, and what is to be copied from them to outputs."""
    if not any(planned.copied for planned in plan.outputs):
        return out, ()
    written, late = [], []
    for tensor, planned in zip(out, plan.outputs, strict=True):
        if planned.copied is None:
            written.append(tensor)
            continue
        sizes, strides = planned.copied
        written.append(torch.empty(sizes, dtype=tensor.dtype, device=tensor.device))
        place = tensor.detach().as_strided(sizes, strides, int(tensor.storage_offset()))
        late.append((place, written[-1]))
    return tuple(written), tuple(late)


def _laid_out(
    signature: Signature, plan: Plan, args: tuple[Any, ...], out: tuple[Any, ...]
) -> Iterator[tuple[torch.Tensor, AxisLayout, int]]:
    """Operands, then outputs: the tensor, its axes, and where in its storage the first element is.

    A tensor made here is held by what is made of it; on a GPU, the stream orders its reuse.
    """
    for source, planned in zip(signature.sources, plan.operands, strict=True):
        tensor = on_device(args[source].detach(), plan.device)
        first = int(tensor.storage_offset()) + planned.offset
        if planned.copied is not None:
            sizes, strides = planned.copied
            apart = tensor.as_strided(sizes, strides, first)
            tensor, first = apart.clone(memory_format=torch.contiguous_format), 0
        yield tensor, planned.layout, first
    for tensor, written in zip(out, plan.outputs, strict=True):
        yield tensor.detach(), written.layout, int(tensor.storage_offset())


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor itself; of a tensor without dimensions elsewhere on the host, its one number.

    The number is read on the host and travels with the launch that writes it, so that no copy from
    pageable memory makes the host wait for the device.
    """
    if tensor.device == device:
        return tensor
    return torch.full((), tensor.item(), dtype=tensor.dtype, device=device)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit floats as uint16; other dtypes as they are."""
    return tensor.view(torch.uint16) if tensor.dtype in _HALVES else tensor
