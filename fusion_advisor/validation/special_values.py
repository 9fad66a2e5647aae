"""Values made to break a kernel: specials, extremes, thresholds, and every pair of them.

A pair matters where two operands meet: infinity minus infinity, zero times NaN, a comparison at
equality.  Random draws miss some pair of forty values almost always; here two operands take the
columns of an orthogonal array, so that every pair is there by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

Values = Callable[[torch.dtype, int, torch.Generator], torch.Tensor]

PRIME = 41  # at least as many as the entries of a table
PAIRS = PRIME * PRIME  # elements that hold every pair

_FLOATS = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5,
    2.5, -2.5, math.pi, -math.pi, 20.0, -20.0, 88.7, -88.7, 104.0, -104.0, 709.0, 1e-4, -1e-4,
    1e4, -1e4, 1e-20, -1e-20, 1e20,
)  # fmt: skip
# Around the ends of every integer dtype, and beyond what float32 and float64 hold exactly.
_INTEGERS = (
    0, 1, -1, 2, -2, 3, -3, 5, -5, 7, -7, 10, -10, 127, -128, 255, 256, -129, 2**15 - 1, -(2**15),
    2**16 + 1, 2**24 + 1, -(2**24) - 1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**32 + 1,
    2**53 + 1, -(2**53) - 1, 2**62 + 1, -(2**62) - 1, 3037000500, 2**63 - 1, 2**63 - 2, -(2**63),
    -(2**63) + 1, 1000, -1000,
)  # fmt: skip


def special_table(dtype: torch.dtype) -> torch.Tensor:
    """NaN, infinities, both zeros, extremes, and what functions turn or round at; or integers."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        fitting = [value for value in _INTEGERS if info.min <= value <= info.max]
        ends = [info.min, info.min + 1, info.max - 1, info.max]
        return torch.tensor(list(dict.fromkeys(fitting + ends)), dtype=dtype)
    finfo = torch.finfo(dtype)
    extremes = (finfo.max, -finfo.max, finfo.tiny, -finfo.tiny, finfo.smallest_normal / 4)
    near_one = (1 + finfo.eps, 1 - finfo.eps / 2, -finfo.smallest_normal / 8)
    return torch.tensor(_FLOATS + extremes + near_one, dtype=torch.float64).to(dtype)


def threshold_table(dtype: torch.dtype, constants: Sequence[float]) -> torch.Tensor:
    """The program's constants and halves of small numbers, of both signs: equality is met."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    points = [sign * value for value in constants for sign in (1.0, -1.0)]
    points += [sign * half / 2 for half in range(10) for sign in (1.0, -1.0)]
    points = points[:PRIME]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        whole = dict.fromkeys(math.trunc(value) for value in points)
        return torch.tensor([v for v in whole if info.min <= v <= info.max], dtype=dtype)
    return torch.tensor(points, dtype=torch.float64).to(dtype)


def paired(
    table: torch.Tensor, places: torch.Tensor, others: torch.Tensor, operand: int
) -> torch.Tensor:
    """One operand's values where ``places`` and ``others`` run over the digits of an array.

    Operands of different numbers meet in every pair of entries, where both digits run over
    ``PRIME`` values.
    """
    index = (places + (operand % PRIME) * others) % PRIME
    return table[index % table.numel()]


def random_values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Normal ones, or small whole numbers."""
    if not dtype.is_floating_point:
        return _integers(dtype, count, generator)
    return (torch.randn(count, generator=generator, dtype=torch.float64) * 2).to(dtype)


def special_values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draws from ``special_table``; a single operand of enough elements meets each for certain."""
    table = special_table(dtype)
    picks = torch.randint(0, table.numel(), (count,), generator=generator)
    if count >= table.numel():
        picks[: table.numel()] = torch.randperm(table.numel(), generator=generator)
    return table[picks]


def all_magnitudes(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Both signs and every exponent of the dtype, denormals included; integers of every length."""
    if dtype == torch.bool:
        return _integers(dtype, count, generator)
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    if not dtype.is_floating_point:
        bits = torch.randint(0, torch.iinfo(dtype).bits, (count,), generator=generator)
        noise = torch.randint(0, 2**62, (count,), generator=generator) >> (62 - bits.clamp(max=62))
        return (noise * signs).to(dtype)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal) - 4, math.log2(info.max)
    exponents = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    return (torch.exp2(exponents) * signs).to(dtype)


def values_around(constants: tuple[float, ...]) -> Values:
    """The program's constants, halves and small integers, and their nearest neighbours."""

    def values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
        points = [sign * value for value in constants for sign in (1.0, -1.0)]
        if not dtype.is_floating_point:
            return _integers_around(points, dtype, count, generator)
        points += [half / 2 for half in range(-13, 14)]
        table = torch.tensor(points, dtype=torch.float64).to(dtype)
        picked = table[torch.randint(0, table.numel(), (count,), generator=generator)]
        up = torch.full_like(picked, torch.inf)
        step = torch.randint(-1, 2, (count,), generator=generator)
        moved = torch.where(step > 0, torch.nextafter(picked, up), picked)
        return torch.where(step < 0, torch.nextafter(picked, -up), moved)

    return values


def _integers(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    low = 0 if dtype == torch.uint8 else -9
    return torch.randint(low, 12, (count,), generator=generator).to(dtype)


def _integers_around(
    points: Sequence[float], dtype: torch.dtype, count: int, generator: torch.Generator
) -> torch.Tensor:
    """Small whole numbers, every other one of them next to a constant."""
    small = _integers(dtype, count, generator)
    if dtype == torch.bool:
        return small
    info = torch.iinfo(dtype)
    near = [math.trunc(p) + d for p in points for d in (-1, 0, 1)]
    fitting = [value for value in near if info.min <= value <= info.max]
    if not fitting:
        return small
    table = torch.tensor(fitting, dtype=dtype)
    picked = table[torch.randint(0, table.numel(), (count,), generator=generator)]
    return torch.where(torch.rand(count, generator=generator) < 0.5, picked, small)
