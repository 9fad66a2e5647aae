"""Compares a kernel's result with what it may be, in ULP of the result's dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fusion_advisor.validation.bits import same_bits, ulp_distance
from fusion_advisor.validation.budgets import OutputBudget
from fusion_advisor.validation.intervals import Interval, ulp

CANCELLED_ULP = 1024.0  # more room than this: leading digits cancelled, most bits are noise


@dataclass(frozen=True)
class Comparison:
    """One output of one case.  ``first`` describes the first mismatch.

    ``ambiguous`` counts elements at a jump, which were checked against each side.
    ``worst_share`` is the largest error as a share of the element's budget (1 is the limit).
    ``worst_ulp``, with the budget of that element, is the largest distance among elements
    that did not cancel to noise.  Neither looks at jumps.
    """

    elements: int
    mismatches: int
    ambiguous: int
    worst_ulp: float
    budget_ulp: float
    worst_share: float = 0.0
    first: str = ""


def compare(actual: torch.Tensor, allowed: OutputBudget) -> Comparison:
    """Hold ``actual`` against ``allowed``; shapes and dtypes are checked first."""
    eager = allowed.eager
    if actual.dtype != eager.dtype or actual.shape != eager.shape:
        return Comparison(
            elements=eager.numel(), mismatches=max(1, eager.numel()), ambiguous=0,
            worst_ulp=float("inf"), budget_ulp=0.0, worst_share=float("inf"),
            first=f"is {_describe(actual)} where eager gives {_describe(eager)}",
        )  # fmt: skip
    equal = same_bits(actual, eager)
    accepted = _accepted(actual, equal, allowed)
    ambiguous = torch.zeros_like(equal) if allowed.ambiguous is None else allowed.ambiguous
    bad = ~accepted
    unjudged = ambiguous if allowed.unspecified is None else ambiguous | allowed.unspecified
    if bool(equal.all()) and not allowed.ways:
        worst, room, share = 0.0, 0.0, 0.0
    else:
        worst, room = _worst(ulp_distance(actual, eager), unjudged, allowed)
        share = _worst_share(actual, ~equal & ~unjudged, allowed)
    return Comparison(
        elements=eager.numel(),
        mismatches=int(bad.sum()),
        ambiguous=int((ambiguous & ~equal).sum()),
        worst_ulp=worst,
        budget_ulp=room,
        worst_share=share,
        first=_first(actual, allowed, bad) if bool(bad.any()) else "",
    )


def _accepted(actual: torch.Tensor, equal: torch.Tensor, allowed: OutputBudget) -> torch.Tensor:
    """Which elements are allowed."""
    accepted = equal.clone()
    if allowed.unspecified is not None:
        accepted |= allowed.unspecified
    for number, way in enumerate(allowed.ways):
        inside = _inside(actual, way)
        if number == 0 and allowed.ambiguous is not None:
            # The first way holds both sides of every jump: too wide to accept by.
            inside &= ~allowed.ambiguous
        accepted |= inside
    return accepted


def _worst(
    distance: torch.Tensor, ambiguous: torch.Tensor, allowed: OutputBudget
) -> tuple[float, float]:
    """The largest distance away from jumps and the room given there (ULP).

    Where nothing differs the room is the median of what was given.  Elements that
    cancelled to noise are judged like all others, but say nothing as a number of ULP.
    """
    room = torch.zeros_like(distance)
    if allowed.ways and allowed.eager.dtype.is_floating_point:
        room = _room(allowed.ways[0], allowed)
    counted = ~ambiguous & (room <= CANCELLED_ULP)
    distance = torch.where(counted, distance, torch.zeros_like(distance)).reshape(-1)
    room = torch.where(counted, room, torch.zeros_like(room)).reshape(-1)
    if not distance.numel():
        return 0.0, 0.0
    place = int(distance.argmax())
    worst = float(distance[place])
    if worst:
        return worst, float(room[place])
    given = room[room > 0]
    return 0.0, float(given.median()) if given.numel() else 0.0


def _worst_share(actual: torch.Tensor, differs: torch.Tensor, allowed: OutputBudget) -> float:
    """The largest error over the budget on its own side of eager's value."""
    if not bool(differs.any()):
        return 0.0
    if not allowed.ways or not actual.dtype.is_floating_point:
        return math.inf if not allowed.ways else 0.0
    way = allowed.ways[0]
    value, eager = actual[differs].to(torch.float64), allowed.eager[differs].to(torch.float64)
    error = value - eager
    room = torch.where(error > 0, way.high[differs] - eager, way.low[differs] - eager)
    # A NaN or an infinity is allowed or not; a distance it is not.  Zeros of both signs are equal.
    judged = torch.isfinite(error) & torch.isfinite(room) & (error != 0)
    share = torch.where(judged, error / room, torch.zeros_like(error))
    share = torch.where(way.loose[differs] | ~judged, share, torch.full_like(share, math.inf))
    return float(share.max())


def _inside(actual: torch.Tensor, way: Interval) -> torch.Tensor:
    value = actual.to(torch.float64)
    nan_allowed = way.maybe_nan | torch.isnan(way.low)
    inside = ((value >= way.low) & (value <= way.high)) | (torch.isnan(value) & nan_allowed)
    return inside & way.loose


def _room(way: Interval, allowed: OutputBudget) -> torch.Tensor:
    """How far each element may be from eager's, in ULP; 0 where that is not a finite number."""
    eager = allowed.eager.to(torch.float64)
    width = torch.fmax(way.high - eager, eager - way.low) / ulp(eager, allowed.eager.dtype)
    return torch.where(way.loose & torch.isfinite(width), width, torch.zeros_like(width))


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _first(actual: torch.Tensor, allowed: OutputBudget, bad: torch.Tensor) -> str:
    place = torch.nonzero(bad)[0].tolist()
    index = tuple(place)
    distance = float(ulp_distance(actual[index].reshape(1), allowed.eager[index].reshape(1)))
    where = ", ".join(str(part) for part in place)
    return (
        f"element [{where}] is {actual[index].item()!r}, eager gives "
        f"{allowed.eager[index].item()!r} ({distance:g} ULP apart)"
    )
