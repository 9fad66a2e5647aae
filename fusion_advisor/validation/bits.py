"""Equality to the bit, and distances in representable numbers."""

from __future__ import annotations

import torch

_INTEGER_BITS = {
    torch.float16: (torch.int16, 15), torch.bfloat16: (torch.int16, 15),
    torch.float32: (torch.int32, 31), torch.float64: (torch.int64, 63),
}  # fmt: skip


def same_bits(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Elementwise: equal to the bit, any NaN being equal to any NaN."""
    if not left.dtype.is_floating_point:
        return left == right
    integer, _ = _INTEGER_BITS[left.dtype]
    left, right = _settled(left), _settled(right)
    equal = left.contiguous().view(integer) == right.contiguous().view(integer)
    return equal | (torch.isnan(left) & torch.isnan(right))


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bytes, NaN payloads included."""
    one, two = (
        # as_strided: one element may have any stride, which no view as bytes accepts.
        _settled(tensor).contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        for tensor in (left, right)
    )
    return torch.equal(one, two)


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without a lazy sign: its bytes then are its numbers."""
    return tensor.detach().resolve_neg()


def ulp_distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """How many representable numbers apart, as float64; inf where only one is NaN.

    The two zeros are 1 apart, so that every difference in bits is a distance.
    """
    if not left.dtype.is_floating_point:
        apart = (left.to(torch.float64) - right.to(torch.float64)).abs()
        # float64 does not tell large neighbours apart.
        return torch.where(left != right, apart.clamp(min=1.0), torch.zeros_like(apart))
    one, two = _ordered(left), _ordered(right)
    # Subtract as integers where that cannot overflow: float64 patterns need all 64 bits.
    apart = (one.to(torch.float64) - two.to(torch.float64)).abs()
    same_side = (one < 0) == (two < 0)
    distance = torch.where(same_side, (one - two).abs().to(torch.float64), apart)
    only_one = torch.isnan(left) != torch.isnan(right)
    both = torch.isnan(left) & torch.isnan(right)
    distance = torch.where(only_one, torch.full_like(distance, torch.inf), distance)
    return torch.where(both, torch.zeros_like(distance), distance)


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Bit patterns as integers in the order of the numbers, -0 just below +0."""
    integer, bits = _INTEGER_BITS[tensor.dtype]
    pattern = tensor.contiguous().view(integer).to(torch.int64)
    magnitude = pattern & ((1 << bits) - 1)
    return torch.where(pattern < 0, -magnitude - 1, magnitude)
