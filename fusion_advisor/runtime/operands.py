"""What a fused function declares about its operands and outputs, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand: read at the iteration ``groups`` named, broadcast over the others.

    ``layout`` is ``dense`` (its elements lie one after another in walking order) or ``strided``
    (one run-time stride per group).  An operand that the chain reads through views has ``dims``:
    per iteration dimension its own one that is walked there, of ``rank`` in all, None where it is
    broadcast.  One that is named several times is split over those places, outermost first.
    """

    name: str
    dtype: str
    groups: tuple[int, ...]
    layout: Literal["dense", "strided"] = "dense"
    dims: tuple[int | None, ...] = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """A dense output, written at every place of the iteration space."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class CallStats:
    """How often a fused function ran fused, and how often it ran eager and why."""

    fused: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)


class FusionFallbackWarning(UserWarning):
    """A fused function ran its eager chain: results are right, the gain is lost."""
