"""The textbook model of elementwise fusion: N(M + C) becomes M + NC.

A chain of ``n`` elementwise ops over ``L`` elements reads and writes each element once per op;
fused, once in all.  Costs are in whatever unit the caller uses for ``per_access``,
``per_launch`` and ``compute_per_element``; the two times come out in the same unit.
"""

from __future__ import annotations

from dataclasses import dataclass

ACCESSES_PER_OP = 2  # one read and one write of every element


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookComparison:
    """Times before and after fusing, their ratio, and the accesses that fall away."""

    before: float
    after: float
    ratio: float
    eliminated_accesses: float


def chain_time(
    n: int,
    elements: float,
    per_access: float,
    per_launch: float,
    *,
    compute_per_element: float = 0.0,
    fused: bool = False,
) -> float:
    """Time of a chain of ``n`` elementwise ops over ``elements`` elements.

    Unfused, every op pays its own accesses, launch and compute; fused, the accesses and the
    launch are paid once and the compute ``n`` times.
    """
    movement = ACCESSES_PER_OP * elements * per_access + per_launch
    compute = compute_per_element * elements
    return movement + n * compute if fused else n * (movement + compute)


def eliminated_accesses(n: int, elements: float) -> float:
    """Element accesses that fusing ``n`` ops of ``elements`` elements removes: 2L(N − 1)."""
    return ACCESSES_PER_OP * elements * (n - 1)


def compare(
    n: int,
    elements: float,
    per_access: float,
    per_launch: float,
    *,
    compute_per_element: float = 0.0,
) -> TextbookComparison:
    """Both times of :func:`chain_time`, side by side."""
    before = chain_time(
        n, elements, per_access, per_launch, compute_per_element=compute_per_element
    )
    after = chain_time(
        n, elements, per_access, per_launch, compute_per_element=compute_per_element, fused=True
    )
    return TextbookComparison(
        before=before,
        after=after,
        ratio=before / after if after > 0 else 1.0,
        eliminated_accesses=eliminated_accesses(n, elements),
    )
