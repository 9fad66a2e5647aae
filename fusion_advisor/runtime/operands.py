"""What a fused function declares about its operands and outputs, and what it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fusion_advisor.view_steps import ViewStep


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand: read at the iteration ``groups`` named, broadcast over the others.

    ``layout`` is ``dense`` (a CUDA kernel finds its elements one after another in walking order)
    or ``strided`` (one run-time stride per group); CPU kernels take either.  It is an argument of
    the call itself, or, in a function that declares its parameters, what ``steps`` make of the one
    called ``of`` (its own name if empty), for the loop of one ``region``.
    """

    name: str
    dtype: str
    groups: tuple[int, ...]
    layout: Literal["dense", "strided"] = "dense"
    of: str = ""
    steps: tuple[ViewStep, ...] = ()
    region: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """A dense output, written at every place of its region's iteration space."""

    name: str
    dtype: str
    region: int = 0


@dataclass(frozen=True, slots=True)
class CallStats:
    """How often a fused function ran fused, and how often it ran eager and why.

    ``copied`` are those fused calls that copied an operand before the kernel, or a result after it,
    because it lies otherwise in memory than the kernel walks.
    """

    fused: int = 0
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    copied: int = 0


class FusionFallbackWarning(UserWarning):
    """A fused function ran its eager chain: results are right, the gain is lost."""
