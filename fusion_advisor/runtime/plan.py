"""Launch plans: everything about a call that follows from dtypes, shapes, strides and devices.

A plan is made once per kind of call and kept.  It says either how to run the kernel or, in
``problem``, why the eager chain must run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fusion_advisor.runtime import guards, index_width, layouts, walks
from fusion_advisor.runtime.operands import Operand, Output
from fusion_advisor.view_steps import ViewError, follow

ZERO_DIVISOR = "a divisor is zero"


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An output as eager makes it: shape, strides, dtype, and whether it has a gradient.

    One with ``copied`` sizes and strides lies otherwise than the kernel walks: the kernel writes
    a stretch of memory of its own, whose elements are then copied to their places.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    layout: layouts.AxisLayout
    differentiable: bool
    copied: tuple[layouts.Shape, layouts.Shape] | None = None


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """Where an operand's elements lie, as the kernel is to read them.

    ``offset`` is its first element, seen from its tensor's.  One with ``copied`` sizes and strides
    lies otherwise than the kernel walks: those elements are copied together first, in that order.
    """

    layout: layouts.AxisLayout
    offset: int = 0
    copied: tuple[layouts.Shape, layouts.Shape] | None = None


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
    checks_divisors: bool = False  # the CPU kernel tells where an integer divisor is 0
    viewed: bool = False  # some operand is a view, or there are several regions
    # By kind of contiguous arguments: each result's dtype and whether it has a gradient.
    seen: dict[Any, tuple[tuple[torch.dtype, bool], ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """How to run one kind of call.  With a ``problem`` the other fields are empty.

    ``of_values`` marks a problem of the very values given: another call of the kind may run.
    """

    problem: str = ""
    of_values: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sizes: tuple[int, ...] = ()  # of the axes, region after region
    operands: tuple[OperandPlan, ...] = ()
    outputs: tuple[OutputPlan, ...] = ()
    with_gradient: bool = False
    elements: int = 0  # size of the (largest) iteration space
    allocations: tuple[tuple[Any, ...], ...] = ()  # shape, strides, dtype of each output
    addressable: bool = False  # on the CPU, every operand contiguous: addresses say it all
    wide: bool = False  # a CUDA kernel reaches offsets beyond 32 bits
    entry: Callable[..., bool | None] | None = None  # the CPU kernel by addresses, for small calls
    cuda_entry: Callable[..., None] | None = None  # the CUDA kernel by addresses, once it is loaded
    given: Any = None  # a GivenOutputs, once results were written into given tensors
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
    def copies(self) -> bool:
        """Whether some operand is copied into walking order, or some output out of it."""
        laid = [*(one.copied for one in self.operands), *(one.copied for one in self.outputs)]
        return any(laid)

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which outputs have a gradient."""
        return tuple(output.differentiable for output in self.outputs)


def fits_64_bits(number: int) -> bool:
    """Whether a kernel can take this whole number at run time."""
    return -(2**63) <= number < 2**63


def make_plan(
    signature: Signature,
    args: tuple[Any, ...],
    with_gradient: bool,
    target: Literal["cpu", "cuda"] | None = None,
) -> Plan:
    """Check a call against the guards and lay its operands over the kernel's axes.

    ``target`` says whose kernel it is for, where that is not the tensors' own device's.
    """
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
        if signature.checks_divisors and "ZeroDivisionError" in str(error):
            return Plan(ZERO_DIVISOR, of_values=True)
        return Plan(f"eager refuses these arguments: {type(error).__name__}")
    problem = _results_problem(signature, results)
    if problem:
        return Plan(problem)
    on_cuda = (target or device.type) == "cuda"
    found = _lay_out(signature, tensors, results, flat=on_cuda)
    if isinstance(found, str):
        return Plan(found)
    walked, operands, outputs = found
    sizes = [layouts.group_sizes(space, groups) for space, groups in walked]
    elements = max(math.prod(own) for own in sizes)
    if signature.checks_divisors and not elements and any(tensor.numel() for tensor in tensors):
        return Plan("the result is empty, what is divided may not be")
    if on_cuda and elements > index_width.MOST_ELEMENTS:
        return Plan(f"{elements} elements are more than one launch has threads")
    axes = [*(one.layout for one in operands), *(one.layout for one in outputs)]
    reached = [layout.largest_offset for layout in axes]
    plan = Plan(
        device=device,
        sizes=tuple(size for own in sizes for size in own),
        operands=operands,
        outputs=outputs,
        with_gradient=with_gradient,
        elements=elements,
        allocations=tuple((output.shape, output.strides, output.dtype) for output in outputs),
        wide=on_cuda and index_width.needs_64_bits(max([*reached, elements])),
    )
    plan.addressable = (
        not signature.viewed
        and device.type == "cpu"
        and all(layout.is_dense for layout in axes)
        and not plan.copies
    )
    return plan


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
    results follows from the sizes alone.  (Not where a stride of size 1 is another than that of a
    fresh tensor: torch calls it contiguous, and orders the result's dimensions by it.)
    """
    tensors = args[: len(signature.parameters)]
    kind, space = None, None
    if not signature.viewed:
        space = layouts.broadcast_shape([tuple(tensor.shape) for tensor in tensors])
    if space is not None and all(
        tensor.stride() == layouts.row_major_strides(tuple(tensor.shape)) for tensor in tensors
    ):
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
    found = _observe(signature, args, with_gradient, contiguous=kind is not None)
    if kind is not None and all(
        (facts.shape, facts.strides) == (space, strides) for facts in found
    ):
        signature.seen[kind] = tuple((facts.dtype, facts.differentiable) for facts in found)
    return found


def _observe(
    signature: Signature, args: tuple[Any, ...], with_gradient: bool, *, contiguous: bool
) -> tuple[ResultFacts, ...]:
    """Run the eager chain: on tensors without memory if torch has loaded what that needs.

    (Loading it takes 2 s, longer than almost any chain.)  Only for contiguous arguments: for others
    some of torch's meta functions (logaddexp, softplus_backward) give other strides than its
    kernels.  Ops from outside may have no such function: then on the arguments themselves.
    Integers are tried as ones first: eager raises for a divisor of 0, and dies where the smallest
    integer is divided by -1.  Autocast is off: it changes nothing here.
    """
    eager = signature.eager
    # torch's meta functions import it when first called
    if contiguous and "torch._dynamo" in sys.modules:
        try:
            found = _results_of(eager, [_on_meta(arg) for arg in args], args, with_gradient)
            # (native_dropout and pow of a number have other dtypes there than their kernels give.)
            if not _results_problem(signature, found):
                return found
        except (RuntimeError, NotImplementedError):
            pass
    if signature.checks_divisors or any(map(_is_integer, args)):
        try:
            return _results_of(eager, [_ones(arg) for arg in args], args, with_gradient)
        except RuntimeError:  # a divisor that is computed, and 0 for ones
            pass
    own = [arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args]
    return _results_of(eager, own, args, with_gradient)


def _is_integer(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and not (
        arg.dtype.is_floating_point or arg.dtype.is_complex or arg.dtype == torch.bool
    )


def _on_meta(arg: Any) -> Any:
    """A tensor without memory in its place."""
    if not isinstance(arg, torch.Tensor):
        return arg
    return torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta")


def _ones(arg: Any) -> Any:
    """A tensor of ones that lies as it does."""
    if not isinstance(arg, torch.Tensor):
        return arg
    moves = zip(arg.shape, arg.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in moves) if arg.numel() else 0
    ones = torch.ones(extent, dtype=arg.dtype, device=arg.device)
    return ones.as_strided(arg.shape, arg.stride())


def _results_of(
    eager: Callable[..., Any], inputs: list[Any], args: tuple[Any, ...], with_gradient: bool
) -> tuple[ResultFacts, ...]:
    """What eager gives for ``inputs``, which stand for ``args``."""
    for given, arg in zip(inputs, args, strict=True):
        if isinstance(arg, torch.Tensor):
            given.requires_grad_(arg.requires_grad and with_gradient)
    device = next(arg.device.type for arg in args if isinstance(arg, torch.Tensor))
    with torch.set_grad_enabled(with_gradient), torch.autocast(device, enabled=False):
        results = eager(*inputs)
    return tuple(
        ResultFacts(tuple(result.shape), result.stride(), result.dtype, result.requires_grad)
        for result in (results if isinstance(results, tuple) else (results,))
    )


def _results_problem(signature: Signature, results: tuple[ResultFacts, ...]) -> str:
    """Why the kernel's outputs are not eager's results, or ""."""
    if len(results) != len(signature.outputs):
        return f"eager gives {len(results)} results instead of {len(signature.outputs)}"
    regions: dict[int, tuple[int, ...]] = {}
    for declared, result in zip(signature.outputs, results, strict=True):
        if str(result.dtype) != f"torch.{declared.dtype}":
            return f"output {declared.name} would be {result.dtype}, not {declared.dtype}"
        rank, _ = signature.spaces[declared.region]
        if len(result.shape) != rank:
            return f"the result has {len(result.shape)} dimensions, not {rank}"
        if regions.setdefault(declared.region, result.shape) != result.shape:
            return "the results differ in shape"
    return ""


_Walked = tuple[tuple[layouts.Shape, layouts.Groups], ...]  # per region: its sizes, its axes


def _lay_out(
    signature: Signature,
    tensors: tuple[torch.Tensor, ...],
    results: tuple[ResultFacts, ...],
    *,
    flat: bool,
) -> tuple[_Walked, tuple[OperandPlan, ...], tuple[OutputPlan, ...]] | str:
    """Every region's axes, and all operands and outputs over them; or what forbids it.

    ``flat``: the kernel reads what is declared dense, and writes, as one stretch of memory.
    """
    shapes = {
        declared.region: result.shape
        for declared, result in zip(signature.outputs, results, strict=True)
    }
    seen: list[tuple[walks.Placed, int]] = []
    for operand, source in zip(signature.operands, signature.sources, strict=True):
        found = _seen(operand, tensors[source], shapes[operand.region], signature, flat)
        if isinstance(found, str):
            return found
        seen.append(found)
    written = [
        walks.Placed(result.strides, tuple(range(len(signature.spaces[declared.region][1]))), flat)
        for declared, result in zip(signature.outputs, results, strict=True)
    ]
    walked = tuple(
        (
            shapes[region],
            walks.choose(
                shapes[region],
                groups,
                [
                    placed
                    for (placed, _), operand in zip(seen, signature.operands, strict=True)
                    if operand.region == region
                ],
                [
                    placed
                    for placed, output in zip(written, signature.outputs, strict=True)
                    if output.region == region
                ],
            ),
        )
        for region, (_, groups) in enumerate(signature.spaces)
    )
    operands = []
    for (placed, offset), operand in zip(seen, signature.operands, strict=True):
        layout, copied = placed.served(*walked[operand.region])
        operands.append(OperandPlan(layout, offset, copied))
    outputs = []
    for placed, declared, result in zip(written, signature.outputs, results, strict=True):
        layout, copied = placed.served(*walked[declared.region])
        facts = (result.shape, result.strides, result.dtype, layout, result.differentiable)
        outputs.append(OutputPlan(*facts, copied))
    return walked, tuple(operands), tuple(outputs)


def _seen(
    operand: Operand,
    tensor: torch.Tensor,
    space: layouts.Shape,
    signature: Signature,
    flat: bool,
) -> tuple[walks.Placed, int] | str:
    """An operand after its views, at the rank of its region, and its offset; or what forbids it."""
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
    _, strides = layouts.at_full_rank(shape, strides, rank)
    return walks.Placed(strides, operand.groups, flat and operand.layout == "dense"), offset
