"""Launch plans: everything about a call that follows from dtypes, shapes, strides and devices.

A plan is made once per kind of call and kept.  It says either how to run the kernel or, in
``problem``, why the eager chain must run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_advisor.runtime import guards, layouts
from fusion_advisor.runtime.operands import Operand, Output
from fusion_advisor.view_steps import ViewError, follow

_LARGEST_OFFSET = 2**31 - 1  # CUDA kernels index with uint32, thread numbers are int32


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An output as eager makes it: shape, strides, dtype, and whether it has a gradient."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    layout: layouts.AxisLayout
    differentiable: bool


@dataclass(frozen=True, slots=True)
class ResultFacts:
    """One result of the eager chain, as it was seen or follows from what was seen."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """The part of a fused function that plans are made from.

    ``spaces`` are the rank and groups of each region.  ``parameters`` are the tensors of a call,
    by name and dtype, ``sources`` says which of them each operand is, or is a view of.
    """

    eager: Callable[..., Any]
    spaces: tuple[tuple[int, layouts.Groups], ...]
    parameters: tuple[tuple[str, str], ...]
    sources: tuple[int, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    scalars: tuple[tuple[str, str], ...]  # name, "float64" or "int64"
    viewed: bool = False  # some operand is a view, or there are several regions
    # By kind of contiguous arguments: each result's dtype and whether it has a gradient.
    seen: dict[Any, tuple[tuple[torch.dtype, bool], ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """How to run one kind of call.  With a ``problem`` the other fields are empty."""

    problem: str = ""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sizes: tuple[int, ...] = ()  # of the axes, region after region
    operands: tuple[layouts.AxisLayout, ...] = ()
    offsets: tuple[int, ...] = ()  # per operand: its first element, seen from its tensor's
    outputs: tuple[OutputPlan, ...] = ()
    with_gradient: bool = False
    elements: int = 0  # size of the (largest) iteration space
    allocations: tuple[tuple[Any, ...], ...] = ()  # shape, strides, dtype of each output
    addressable: bool = False  # on the CPU, every operand contiguous: addresses say it all
    entry: Callable[..., None] | None = None  # the CPU kernel by addresses, for small calls
    # The fast path: whether tensors are of this kind, and what that test does not cover.
    matches: Callable[..., bool] | None = None
    grad_enabled: bool = False
    default_dtype: torch.dtype | None = None
    number_types: tuple[type, ...] = ()

    def takes(self, numbers: tuple[Any, ...]) -> bool:
        """Whether run-time numbers are of the types seen, and fit a kernel's 64 bits."""
        return tuple(map(type, numbers)) == self.number_types and all(
            type(number) is float or fits_64_bits(number) for number in numbers
        )

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs have a gradient."""
        return tuple(output.differentiable for output in self.outputs)


def fits_64_bits(number: int) -> bool:
    """Whether a kernel can take this whole number at run time."""
    return -(2**63) <= number < 2**63


def make_plan(signature: Signature, args: tuple[Any, ...], with_gradient: bool) -> Plan:
    """Check a call against the guards and lay its operands over the kernel's axes."""
    problem = _arguments_problem(signature, args)
    if problem:
        return Plan(problem)
    tensors = args[: len(signature.parameters)]
    device = _main_device(tensors)
    if guards.autocast_state(device.type) is not None and guards.autocast_changes(
        signature.eager, args, device.type
    ):
        return Plan("autocast changes the chain's dtypes")
    if torch.get_default_dtype() is not torch.float32 and guards.default_dtype_matters(
        signature.eager, args
    ):
        return Plan("the chain depends on the default dtype, which is not float32")
    try:
        results = _results(signature, args, with_gradient)
    except Exception as error:  # whatever eager raises, it shall raise it to the caller itself
        return Plan(f"eager refuses these arguments: {type(error).__name__}")
    outputs = _plan_outputs(signature, results)
    if isinstance(outputs, str):
        return Plan(outputs)
    spaces = _region_shapes(signature, outputs)
    operands = _plan_operands(signature, tensors, spaces)
    if isinstance(operands, str):
        return Plan(operands)
    sizes = [
        layouts.group_sizes(space, groups)
        for space, (_, groups) in zip(spaces, signature.spaces, strict=True)
    ]
    axes = tuple(operand for operand, _ in operands)
    farthest = [operand.largest_offset for operand in axes]
    elements = max(math.prod(own) for own in sizes)
    if device.type == "cuda" and max([*farthest, elements]) > _LARGEST_OFFSET:
        return Plan("offsets do not fit 32 bits")
    return Plan(
        device=device,
        sizes=tuple(size for own in sizes for size in own),
        operands=axes,
        offsets=tuple(offset for _, offset in operands),
        outputs=outputs,
        with_gradient=with_gradient,
        elements=elements,
        allocations=tuple((output.shape, output.strides, output.dtype) for output in outputs),
        addressable=not signature.viewed
        and device.type == "cpu"
        and all(operand.is_dense for operand in axes),
    )


def _region_shapes(
    signature: Signature, outputs: tuple[OutputPlan, ...]
) -> tuple[tuple[int, ...], ...]:
    shapes = {
        declared.region: planned.shape
        for declared, planned in zip(signature.outputs, outputs, strict=True)
    }
    return tuple(shapes[region] for region in range(len(signature.spaces)))


def _main_device(tensors: tuple[torch.Tensor, ...]) -> torch.device:
    """The device the result is on: that of the operands with dimensions."""
    for tensor in tensors:
        if tensor.dim() or tensor.device.type != "cpu":
            return tensor.device
    return tensors[0].device


def _arguments_problem(signature: Signature, args: tuple[Any, ...]) -> str:
    parameters, scalars = signature.parameters, signature.scalars
    if len(args) != len(parameters) + len(scalars):
        return f"{len(args)} arguments instead of {len(parameters) + len(scalars)}"
    tensors = args[: len(parameters)]
    for (name, dtype), tensor in zip(parameters, tensors, strict=True):
        problem = guards.tensor_problem(tensor, dtype)
        if problem:
            return f"operand {name}: {problem}"
    for (name, dtype), value in zip(scalars, args[len(parameters) :], strict=True):
        expected = (float,) if dtype == "float64" else (bool, int) if dtype == "int64" else None
        if type(value) not in (expected or guards.NUMBER_TYPES):
            return f"scalar {name}: {type(value).__name__} instead of {dtype or 'a number'}"
        if type(value) is int and not fits_64_bits(value):
            return f"scalar {name} does not fit 64 bits"
    return guards.devices_problem(tensors)


def _results(
    signature: Signature, args: tuple[Any, ...], with_gradient: bool
) -> tuple[ResultFacts, ...]:
    """What eager gives for these arguments.

    The chain is run to see it, once per kind of contiguous arguments: for those, the layout of the
    results follows from the sizes alone.
    """
    tensors = args[: len(signature.parameters)]
    kind, space = None, None
    if not signature.viewed:
        space = layouts.broadcast_shape([tuple(tensor.shape) for tensor in tensors])
    if space is not None and all(tensor.is_contiguous() for tensor in tensors):
        kind = (
            with_gradient,
            *((tensor.device, tensor.requires_grad) for tensor in tensors),
            *(tuple(min(size, 2) for size in tensor.shape) for tensor in tensors),
            *map(type, args[len(tensors) :]),
        )
        strides = layouts.row_major_strides(space)
        known = signature.seen.get(kind)
        if known is not None:
            return tuple(ResultFacts(space, strides, dtype, grad) for dtype, grad in known)
    found = _observe(signature.eager, args, with_gradient)
    if kind is not None and all(
        (facts.shape, facts.strides) == (space, strides) for facts in found
    ):
        signature.seen[kind] = tuple((facts.dtype, facts.differentiable) for facts in found)
    return found


def _observe(
    eager: Callable[..., Any], args: tuple[Any, ...], with_gradient: bool
) -> tuple[ResultFacts, ...]:
    """Run the eager chain: on tensors without memory if torch has loaded what that needs.

    (Loading it takes 2 s, longer than almost any chain.)  Autocast is off: it changes nothing here.
    """
    on_meta = "torch._dynamo" in sys.modules  # torch's meta functions import it when first called
    inputs: list[Any] = []
    for arg in args:
        if not isinstance(arg, torch.Tensor):
            inputs.append(arg)
            continue
        if on_meta:
            shape, strides = arg.shape, arg.stride()
            tensor = torch.empty_strided(shape, strides, dtype=arg.dtype, device="meta")
        else:
            tensor = arg.detach()
        inputs.append(tensor.requires_grad_(arg.requires_grad and with_gradient))
    device = next(arg.device.type for arg in args if isinstance(arg, torch.Tensor))
    with torch.set_grad_enabled(with_gradient), torch.autocast(device, enabled=False):
        results = eager(*inputs)
    return tuple(
        ResultFacts(tuple(result.shape), result.stride(), result.dtype, result.requires_grad)
        for result in (results if isinstance(results, tuple) else (results,))
    )


def _plan_outputs(
    signature: Signature, results: tuple[ResultFacts, ...]
) -> tuple[OutputPlan, ...] | str:
    if len(results) != len(signature.outputs):
        return f"eager gives {len(results)} results instead of {len(signature.outputs)}"
    planned: list[OutputPlan] = []
    regions: dict[int, tuple[int, ...]] = {}
    for declared, result in zip(signature.outputs, results, strict=True):
        shape, strides = result.shape, result.strides
        if str(result.dtype) != f"torch.{declared.dtype}":
            return f"output {declared.name} would be {result.dtype}, not {declared.dtype}"
        rank, groups = signature.spaces[declared.region]
        if len(shape) != rank:
            return f"the result has {len(shape)} dimensions, not {rank}"
        if regions.setdefault(declared.region, shape) != shape:
            return "the results differ in shape"
        layout = layouts.axis_layout(shape, strides, groups)
        if layout is None or not layout.is_dense:
            return f"output {declared.name} has another memory layout than at capture"
        planned.append(OutputPlan(shape, strides, result.dtype, layout, result.differentiable))
    return tuple(planned)


def _plan_operands(
    signature: Signature, tensors: tuple[torch.Tensor, ...], spaces: tuple[tuple[int, ...], ...]
) -> tuple[tuple[layouts.AxisLayout, int], ...] | str:
    """Per operand its axes, and where it starts in its tensor."""
    planned: list[tuple[layouts.AxisLayout, int]] = []
    for operand, source in zip(signature.operands, signature.sources, strict=True):
        tensor, space = tensors[source], spaces[operand.region]
        rank, groups = signature.spaces[operand.region]
        shape, strides, offset = tuple(tensor.shape), tensor.stride(), 0
        if operand.steps:
            try:
                viewed = follow(operand.steps, shape, strides)
            except ViewError as error:
                return f"operand {operand.name} is viewed differently: {error}"
            shape, strides, offset = viewed.shape, viewed.strides, viewed.offset
        problem = layouts.broadcast_problem(shape, space, groups, operand.groups)
        if problem:
            return f"operand {operand.name} broadcasts differently: {problem}"
        shape, strides = layouts.at_full_rank(shape, strides, rank)
        own = tuple(groups[index] for index in operand.groups)
        layout = layouts.axis_layout(shape, strides, own)
        if layout is None or (operand.layout == "dense" and not layout.is_dense):
            return f"operand {operand.name} has another memory layout than at capture"
        planned.append((layout, offset))
    return tuple(planned)
