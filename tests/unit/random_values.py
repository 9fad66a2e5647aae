"""Operands of random programs: dtype, sizes, how they lie in memory, and what their values are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
LAYOUTS = (
    "plain", "transposed", "permuted", "sliced", "offset", "expanded", "odd size-1",
    "channels_last", "backed by more",
)  # fmt: skip
TAME = ("normal", "unit", "positive", "whole", "small")
WILD = ("specials", "magnitudes", "extremes")
SPECIALS_SHARE = 0.12  # of the elements of an operand with specials
_SPECIALS = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 88.7, -104.0, 1e-20, 1e4,
)  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """A tensor as plain data; ``values`` is one of ``TAME`` or ``WILD``."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: str
    values: str
    seed: int

    def make(self) -> torch.Tensor:
        """The tensor, the same one every time."""
        generator = torch.Generator().manual_seed(self.seed)

        def fresh(sizes: tuple[int, ...]) -> torch.Tensor:
            return make_values(self.values, self.dtype, math.prod(sizes), generator).reshape(sizes)

        return laid_out(self.layout, self.shape, fresh)


def laid_out(layout: str, sizes: tuple[int, ...], fresh: object) -> torch.Tensor:
    """``fresh(sizes)`` in a memory layout that torch code meets; plain where it has none such."""
    assert callable(fresh)
    rank = len(sizes)
    if layout == "transposed" and rank >= 2:
        return fresh((*sizes[:-2], sizes[-1], sizes[-2])).transpose(-1, -2)
    if layout == "permuted" and rank >= 3:
        return fresh((*sizes[1:], sizes[0])).permute(rank - 1, *range(rank - 1))
    if layout == "sliced" and rank:
        return fresh((*sizes[:-1], 2 * sizes[-1] + 1))[..., 1 : 2 * sizes[-1] + 1 : 2]
    if layout == "offset" and rank:
        return fresh((sizes[0] + 1, *sizes[1:]))[1:]
    if layout == "backed by more" and rank >= 2:
        return fresh((sizes[0], sizes[1] + 2, *sizes[2:]))[:, 1 : sizes[1] + 1]
    if layout == "expanded" and rank:
        return fresh((1, *sizes[1:])).expand(sizes)
    if layout == "odd size-1" and 1 in sizes:
        dense = fresh(sizes)
        strides = tuple(77 if n == 1 else s for n, s in zip(sizes, dense.stride(), strict=True))
        return dense.as_strided(sizes, strides)
    if layout == "channels_last" and rank == 4:
        return fresh(sizes).contiguous(memory_format=torch.channels_last)
    return fresh(sizes)


def make_values(
    kind: str, dtype: torch.dtype, count: int, generator: torch.Generator
) -> torch.Tensor:
    """``count`` values of a kind; kinds that a dtype has not give its ordinary ones."""
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    if not dtype.is_floating_point:
        bounds = torch.iinfo(dtype)
        low, high = max(bounds.min, -9), 12
        if kind == "extremes":  # sums and products of these wrap
            low, high = bounds.min, bounds.max
        elif kind in ("positive", "unit"):
            low = 1
        return torch.randint(low, high, (count,), generator=generator).to(dtype)
    normal = torch.randn(count, generator=generator, dtype=torch.float64)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    if kind == "unit":
        return (uniform * 0.9 + 0.05).to(dtype)
    if kind == "positive":
        return (normal.abs() + 0.1).to(dtype)
    if kind == "whole":  # meets halves, equalities and jumps exactly
        return ((uniform * 25).floor() / 2 - 6).to(dtype)
    if kind == "small":
        return (normal * 0.02).to(dtype)
    if kind == "magnitudes":
        return (torch.sign(normal) * torch.pow(10.0, uniform * 8 - 4)).to(dtype)
    ordinary = (normal * 2).to(dtype)
    if kind not in ("specials", "extremes"):
        return ordinary
    info = torch.finfo(dtype)
    limits = (info.max, -info.max, info.tiny, -info.tiny, info.smallest_normal / 4)
    table = torch.tensor((*_SPECIALS, *limits), dtype=torch.float64).to(dtype)
    picked = table[torch.randint(0, table.numel(), (count,), generator=generator)]
    return torch.where(uniform < SPECIALS_SHARE, picked, ordinary)
