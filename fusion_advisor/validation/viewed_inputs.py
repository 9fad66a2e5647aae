"""Inputs for kernels with views between their ops, where one size follows from another.

Sizes that were equal when recorded are changed together, and only where eager takes the change:
a slice names its bounds, a reshape its inner parts, an expansion what it expands to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from fusion_advisor.records import FusedProgram, FusionCandidate, OpGraph, TensorSpec
from fusion_advisor.validation.inputs import (
    LARGE_ELEMENTS,
    MAX_INNER_STRIDE,
    SMALL_ELEMENTS,
    Case,
    captured_case,
    captured_scalars,
    constants_of,
    extent_of,
)
from fusion_advisor.validation.special_values import (
    Values,
    all_magnitudes,
    random_values,
    special_values,
    values_around,
)

MOST_REPEATS = 12  # cases of special values at recorded sizes
Accepts = Callable[[Sequence[torch.Tensor]], bool]
Sizes = Mapping[int, int]  # by recorded size


def viewed_cases(
    program: FusedProgram,
    graph: OpGraph,
    candidate: FusionCandidate,
    captured: Mapping[str, torch.Tensor] | None,
    accepts: Accepts,
    *,
    seed: int = 0,
) -> list[Case]:
    """All cases for a program with regions, the captured inputs first where there are any.

    ``accepts`` says whether eager takes these operands.
    """
    builder = _Builder(program, graph, candidate, seed)
    real = captured_case(program, candidate, captured)
    cases = [] if real is None else [real]
    same: Sizes = {}
    free = builder.free_sizes(accepts)
    longer = {size: free[size](size) for size in free}
    shorter = {size: 2 if size > 3 else 1 for size in free if free[size] is _odd}
    ones = dict.fromkeys(shorter, 1)
    around = values_around(constants_of(program))
    plans: list[tuple[str, Sizes, Values, int]] = [
        ("random, recorded sizes", same, random_values, 0),
        ("recorded sizes, misaligned memory", same, random_values, 1),
        ("all magnitudes, recorded sizes", same, all_magnitudes, 0),
        ("around the program's constants", same, around, 0),
    ]
    # Special values have to meet: as many draws as in one large case.
    plans += [
        (f"special values, recorded sizes, {number}", same, special_values, number % 2)
        for number in range(builder.repeats())
    ]
    for name, sizes in (("longer", longer), ("shorter", shorter), ("ones", ones)):
        if sizes:
            plans.append((f"random, {name}", sizes, random_values, 0))
            plans.append((f"special values, {name}, misaligned", sizes, special_values, 1))
    for size in free:
        many = {size: builder.many(size, free, SMALL_ELEMENTS)}
        plans.append((f"random, {size} longer", {size: longer[size]}, random_values, 0))
        plans.append((f"special values, {size} many", many, special_values, 0))
        plans.append((f"around the program's constants, {size} many", many, around, 0))
        most = {size: builder.many(size, free, LARGE_ELEMENTS)}
        plans.append((f"random, {size} very many", most, random_values, 0))
    for size in shorter:
        plans.append((f"empty at {size}", {size: 0}, random_values, 0))
    cases += [builder.case(*plan) for plan in plans]
    return cases


def _odd(size: int) -> int:
    return 2 * size + 1


def _multiple(size: int) -> int:
    return 3 * size


class _Builder:
    """Makes operands with recorded sizes exchanged, in the recorded order of memory."""

    def __init__(
        self,
        program: FusedProgram,
        graph: OpGraph,
        candidate: FusionCandidate,
        seed: int,
    ) -> None:
        specs = {spec.id: spec for spec in graph.values}
        self._specs = [specs[operand.value] for operand in candidate.inputs]
        self._scalars = captured_scalars(program)
        self._generator = torch.Generator().manual_seed(seed)

    def case(self, name: str, sizes: Sizes, values: Values, offset: int) -> Case:
        """Operands of these sizes, each starting ``offset`` elements into its memory."""
        tensors = []
        for spec in self._specs:
            shape, strides = _laid_out(spec, sizes)
            count = offset + extent_of(shape, strides)
            memory = values(getattr(torch, spec.dtype), count, self._generator)
            tensors.append(memory.as_strided(shape, strides, offset))
        return Case(
            name=name, tensors=tuple(tensors), scalars=self._scalars, at_recorded_sizes=not sizes
        )

    def free_sizes(self, accepts: Accepts) -> dict[int, Callable[[int], int]]:
        """The recorded sizes that may be others, and how they may grow."""
        found: dict[int, Callable[[int], int]] = {}
        for size in sorted({size for spec in self._specs for size in spec.shape if size > 1}):
            for grown in (_odd, _multiple):
                if accepts(self.case("trial", {size: grown(size)}, random_values, 0).tensors):
                    found[size] = grown
                    break
        return found

    def repeats(self) -> int:
        """How many draws of the recorded sizes are as many values as one large case has."""
        largest = max((math.prod(spec.shape) for spec in self._specs), default=1)
        return min(MOST_REPEATS, -(-SMALL_ELEMENTS // max(largest, 1)))

    def many(self, size: int, free: Mapping[int, Callable[[int], int]], elements: int) -> int:
        """A length that makes the largest operand of this size have many ``elements``.

        A size that several dimensions have grows in all of them.
        """
        wanted = elements
        for spec in self._specs:
            times = spec.shape.count(size)
            if times:
                rest = math.prod(other for other in spec.shape if other != size)
                wanted = min(wanted, round((elements / max(rest, 1)) ** (1 / times)))
        wanted = max(wanted, _odd(size))
        return wanted | 1 if free[size] is _odd else wanted // size * size + size


def _laid_out(spec: TensorSpec, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides: dimensions in the recorded order of memory, expanded ones staying so."""
    shape = tuple(sizes.get(size, size) for size in spec.shape)
    strides = [0] * len(shape)
    moving = [d for d in range(len(shape)) if spec.strides[d] or spec.shape[d] <= 1]
    moving.sort(key=lambda d: (spec.strides[d], spec.shape[d], -d))
    inner = min((spec.strides[d] for d in moving if spec.shape[d] > 1), default=1)
    step = min(max(inner, 1), MAX_INNER_STRIDE)
    for d in moving:
        strides[d] = step
        step *= max(1, shape[d])
    return shape, tuple(strides)
