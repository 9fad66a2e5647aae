"""Intervals that hold a value: how their ends move through an op, and what they are widened by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fusion_advisor.ops import functional_name
from fusion_advisor.records import OpNode, ValueRef
from fusion_advisor.validation.bits import same_bits

_MANTISSA_BITS = {
    torch.float16: (10, -14), torch.bfloat16: (7, -126), torch.float32: (23, -126),
    torch.float64: (52, -1022),
}  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """Where a value may lie: float64 ends of the value's shape, meaningful where ``loose``.

    ``maybe_nan`` marks elements that may be NaN as well.
    """

    low: torch.Tensor
    high: torch.Tensor
    loose: torch.Tensor
    maybe_nan: torch.Tensor


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The spacing of ``dtype`` at ``value`` (float64 in and out)."""
    bits, smallest = _MANTISSA_BITS[dtype]
    finite = torch.nan_to_num(value.abs(), nan=0.0, posinf=torch.finfo(dtype).max)
    _, exponent = torch.frexp(finite.clamp(max=torch.finfo(dtype).max))
    # frexp gives 0 an exponent of 0, as if it were a half.
    exponent = torch.where(finite == 0, smallest, exponent - 1).clamp(min=smallest)
    return torch.ldexp(torch.ones_like(finite), exponent - bits)


def spanned(eager: torch.Tensor, others: Sequence[torch.Tensor]) -> Interval | None:
    """Where others differ from eager's result, all that lies between; None where nowhere."""
    differs = torch.zeros_like(eager, dtype=torch.bool)
    for other in others:
        differs |= ~same_bits(eager, other)
    if not bool(differs.any()):
        return None
    low = high = eager.to(torch.float64)
    some_nan = torch.isnan(low)
    for other in others:
        wide = other.to(torch.float64)
        low, high = torch.fmin(low, wide), torch.fmax(high, wide)
        some_nan = some_nan | torch.isnan(wide)
    # As ends of an interval the zeros are told apart: what comes after them may do so.
    low, high = torch.where(low == 0, -0.0, low), torch.where(high == 0, 0.0, high)
    return Interval(low=low, high=high, loose=differs, maybe_nan=some_nan & differs)


def either_of(one: Interval, two: Interval) -> Interval:
    """What either interval allows."""
    both = one.loose & two.loose
    low = torch.where(two.loose, two.low, one.low)
    high = torch.where(two.loose, two.high, one.high)
    low = torch.where(both, torch.fmin(one.low, two.low), low)
    high = torch.where(both, torch.fmax(one.high, two.high), high)
    return Interval(
        low=low,
        high=high,
        loose=one.loose | two.loose,
        maybe_nan=one.maybe_nan | two.maybe_nan,
    )


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A float tensor in float64, others as they are."""
    return tensor.to(torch.float64) if tensor.dtype.is_floating_point else tensor


def end_of(eager: torch.Tensor, interval: Interval | None, end: int) -> torch.Tensor:
    """One end of an operand's interval, in float64 (or its own dtype for integers)."""
    if interval is None:
        return widened(eager)
    bound = interval.high if end else interval.low
    if not eager.dtype.is_floating_point:
        return torch.where(interval.loose, bound.to(eager.dtype), eager)
    return torch.where(interval.loose, bound, eager.to(torch.float64))


def finite_end(eager: torch.Tensor, interval: Interval | None, end: int) -> torch.Tensor | None:
    """An end of an interval with the largest finite number for an infinity; None where none is."""
    if interval is None or not eager.dtype.is_floating_point:
        return None
    bound = interval.high if end else interval.low
    endless = interval.loose & torch.isinf(bound) & (interval.low < interval.high)
    if not bool(endless.any()):
        return None
    most = torch.finfo(eager.dtype).max
    return torch.where(endless, bound.clamp(-most, most), end_of(eager, interval, end))


def across(eager: torch.Tensor, interval: Interval | None, point: float) -> torch.Tensor | None:
    """An operand that is ``point`` wherever its interval holds that; None where none does."""
    if interval is None or not eager.dtype.is_floating_point:
        return None
    inside = interval.loose & (interval.low < point) & (interval.high > point)
    if not bool(inside.any()):
        return None
    return torch.where(inside, point, eager.to(torch.float64))


def operand_width(
    eager: torch.Tensor, intervals: Mapping[str, Interval | None], moving: Sequence[str]
) -> torch.Tensor:
    """How far apart the ends of a result's operands lie, summed; 0 where that is not finite."""
    total = torch.zeros(eager.shape, dtype=torch.float64, device=eager.device)
    for name in moving:
        source = intervals[name]
        if source is not None:
            width = torch.where(source.loose, source.high - source.low, 0.0)
            total += torch.nan_to_num(width, nan=0.0, posinf=0.0).broadcast_to(eager.shape)
    return total


# Where functions that swing have a maximum and a minimum, repeated every 2 pi.
_PEAKS = {"aten.sin.default": (math.pi / 2, -math.pi / 2), "aten.cos.default": (0.0, math.pi)}


def with_peaks(
    node: OpNode,
    eager: Mapping[str, torch.Tensor],
    intervals: Mapping[str, Interval | None],
    low: torch.Tensor,
    high: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of an image, with the peaks (or poles) that lie between an operand's ends.

    A large argument known to a few ULP spans whole periods: its ends say nothing of its image.
    """
    name = functional_name(node.op)
    source = intervals.get(node.inputs[0]) if name in (*_PEAKS, "aten.tan.default") else None
    if source is None:
        return low, high

    def meets(place: float, period: float) -> torch.Tensor:
        first = torch.floor((source.low - place) / period)
        last = torch.floor((source.high - place) / period)
        return source.loose & torch.isfinite(last - first) & (last > first)

    if name not in _PEAKS:
        pole = meets(math.pi / 2, math.pi)
        return torch.where(pole, -torch.inf, low), torch.where(pole, torch.inf, high)
    top, bottom = (meets(place, 2 * math.pi) for place in _PEAKS[name])
    return torch.where(bottom, -1.0, low), torch.where(top, 1.0, high)


_REMAINDERS = ("aten.remainder", "aten.fmod", "aten.frac")  # frac: fmod by 1


@dataclass(frozen=True)
class Turns:
    """How a remainder moves with its operands: ``width`` smoothly, but for jumps by the divisor.

    ``whole`` marks where that is so much that it may be any rest there is, ``low`` to ``high``.
    """

    width: torch.Tensor
    whole: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def turns_of(
    node: OpNode,
    eager: Mapping[str, torch.Tensor],
    intervals: Mapping[str, Interval | None],
    shape: torch.Size,
) -> Turns | None:
    """What is known of a remainder of inexact operands; None for other ops."""
    name = functional_name(node.op).rpartition(".")[0]
    if name not in _REMAINDERS:
        return None
    ends: list[tuple[torch.Tensor, torch.Tensor]] = []
    for argument in (node.args[0], 1.0) if name == "aten.frac" else node.args[:2]:
        if isinstance(argument, ValueRef):
            exact, source = eager[argument.value], intervals.get(argument.value)
            ends.append((end_of(exact, source, 0).double(), end_of(exact, source, 1).double()))
        else:
            number = torch.tensor(float(argument), dtype=torch.float64)  # type: ignore[arg-type]
            ends.append((number, number))
    (least, most), (lower, upper) = ends
    divisor = torch.fmax(lower.abs(), upper.abs())
    quotient = torch.fmax(least.abs(), most.abs()) / torch.fmin(lower.abs(), upper.abs())
    width = (most - least) + torch.ceil(quotient) * (upper - lower)
    # (not most - least alone: that is NaN for an infinity, whose rest is NaN)
    whole = (8 * width >= divisor) & torch.isfinite(divisor) & (divisor > 0)
    zero = torch.zeros((), dtype=torch.float64)
    signed = functional_name(node.op).startswith("aten.remainder")  # has the divisor's sign
    low, high = (
        (torch.fmin(lower, zero), torch.fmax(upper, zero)) if signed else (-divisor, divisor)
    )
    return Turns(*(one.broadcast_to(shape) for one in (width, whole, low, high)))


def hull(
    images: Sequence[torch.Tensor], moved: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ends over all images, and which may be NaN; the first, at eager's operands, not if moved."""
    first = images[0]
    if moved is not None and len(images) > 1:
        first = torch.where(moved, images[1], first)
    low, high = first, first
    some_nan = torch.isnan(first)
    for image in images[1:]:
        low, high = torch.fmin(low, image), torch.fmax(high, image)
        some_nan = some_nan | torch.isnan(image)
    return low, high, some_nan


def widen(
    eager: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    own: float,
    scale: torch.Tensor,
    true: torch.Tensor,
    fixed: torch.Tensor | None,
    around: torch.Tensor | None,
    eager_off: float = 1.0,
    settled: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add the op's own budget (in ULP at ``scale``), take eager's value in, round to the dtype.

    ``around`` is room on either side of eager's value, for the flips of inner roundings;
    ``eager_off`` is what eager itself is off in float64, in ULP at ``scale``, and ``settled`` where
    a zero is the true value there, and not what is too small for eager.
    ``fixed`` marks elements on one side of a jump, where eager's value may belong
    to the other side and is left out.
    """
    if not eager.dtype.is_floating_point:
        return low, high
    dtype = eager.dtype
    # 16-bit ops compute in float32 and round once: their budget is one of float32.
    computed = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if own:
        # float64 has no wider type to know the true value by: what eager is off is added.
        spread = own + eager_off if dtype == torch.float64 else own
        # An exact zero (tanh of 0, exp of -inf) has no error to be measured in ULP of nothing.
        exact = (true == 0) & (eager == 0) & (scale == 0)
        if settled is not None:
            exact &= settled
        room = torch.where(exact, 0.0, spread)
        low = low - room * ulp(torch.fmax(low.abs(), scale), computed)
        high = high + room * ulp(torch.fmax(high.abs(), scale), computed)
    low, high = low.to(dtype).to(torch.float64), high.to(dtype).to(torch.float64)
    seen = eager.to(torch.float64)
    rounded = true.to(dtype).to(torch.float64)
    # An op of several rounded steps is off the rounded true value; its neighbours are as well.
    off = torch.nan_to_num((seen - rounded).abs(), nan=0.0, posinf=0.0)
    off = (
        torch.where(off > 0, 2 * off + ulp(seen, dtype), off) if not own else torch.zeros_like(off)
    )
    low, high = low - off, high + off
    with_eager_low = torch.fmin(low, seen if around is None else seen - around)
    with_eager_high = torch.fmax(high, seen if around is None else seen + around)
    if fixed is None:
        return with_eager_low, with_eager_high
    return torch.where(fixed, low, with_eager_low), torch.where(fixed, high, with_eager_high)


# A result of 16 bits one step below the next power of two doubles an ULP of the step before.
HALF_STEP_ULP = 2
