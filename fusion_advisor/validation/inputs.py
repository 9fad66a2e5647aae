"""Inputs to try a kernel on: the captured ones, random ones, and ones made to break it.

Sizes are run-time values of a kernel, so most cases have sizes that were never
captured, but keep what the kernel is specialised on: rank, broadcast pattern and
memory layout of each operand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fusion_advisor.records import (
    Constant,
    FusedProgram,
    FusionCandidate,
    OperandMap,
    OpGraph,
    ProgramInput,
    TensorSpec,
)

SMALL_ELEMENTS = 4_099  # prime; enough for every pair of special values to meet
CAPTURED_ELEMENTS = 1 << 24  # captured inputs are narrowed along their outermost axis above this
GAP = 3  # elements left unused between the rows of a strided operand
MAX_INNER_STRIDE = 4

_SPECIAL = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1.5,
    2.5, -2.5, math.pi, -math.pi, 20.0, -20.0, 88.7, -88.7, 104.0, -104.0, 709.0, 1e-4, -1e-4,
    1e4, -1e4, 1e-20, -1e-20, 1e20,
)  # fmt: skip

Values = Callable[[torch.dtype, int, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One set of arguments.  ``tensors`` are in ``candidate.inputs`` order."""

    name: str
    tensors: tuple[torch.Tensor, ...]
    scalars: tuple[float | int, ...] = ()
    captured: bool = False
    at_recorded_sizes: bool = False


def build_cases(
    program: FusedProgram,
    graph: OpGraph,
    candidate: FusionCandidate,
    captured: Mapping[str, torch.Tensor] | None,
    *,
    seed: int = 0,
) -> list[Case]:
    """All cases for a program, the captured inputs first where there are any."""
    builder = _Builder(program, graph, candidate, captured, seed)
    cases: list[Case] = []
    real = captured_case(program, candidate, captured)
    if real is not None:
        cases.append(real)
    rank = len(candidate.shape)
    if rank == 0:
        plans: list[tuple[str, tuple[int, ...], Values, int]] = [("0-dim", (), random_values, 0)]
        plans += [(f"0-dim special {index}", (), special_values, 0) for index in range(12)]
    else:
        odd, small = _odd(rank), _flat(rank, SMALL_ELEMENTS)
        constants = constants_of(program)
        plans = [
            ("random, odd sizes", odd, random_values, 0),
            ("random, sizes reversed", odd[::-1], random_values, 0),
            ("random, many rows", _rows(rank), random_values, 0),
            ("one element", (1,) * rank, random_values, 0),
            ("exactly one block", _flat(rank, 256), random_values, 0),
            ("one block and one element", _flat(rank, 257), random_values, 0),
            ("misaligned memory", odd, random_values, 1),
            ("special values", small, special_values, 0),
            ("special values, misaligned", _rows(rank), special_values, 1),
            ("all magnitudes", small, all_magnitudes, 0),
            ("around the program's constants", small, values_around(constants), 0),
            ("empty", (0,) + odd[1:], random_values, 0),
        ]
        if rank > 1:
            plans.append(("empty inside", odd[:-1] + (0,), random_values, 0))
    for name, shape, values, offset in plans:
        cases.append(builder.case(name, shape, values, offset))
    return cases


def captured_case(
    program: FusedProgram,
    candidate: FusionCandidate,
    captured: Mapping[str, torch.Tensor] | None,
) -> Case | None:
    """The captured inputs as a case, or None where one of them was not kept."""
    names = [operand.value for operand in candidate.inputs]
    if not captured or any(name not in captured for name in names):
        return None
    tensors = tuple(captured[name].detach().to("cpu") for name in names)
    return Case(
        name="captured inputs",
        tensors=_narrowed(program, candidate, tensors),
        scalars=captured_scalars(program),
        captured=True,
        at_recorded_sizes=True,
    )


def without_zeros(case: Case) -> Case:
    """The case with every integer 0 replaced by 1: eager refuses to divide integers by 0."""
    tensors = []
    for tensor in case.tensors:
        if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
            tensor = tensor.clone()
            tensor[tensor == 0] = 1
        tensors.append(tensor)
    return replace(case, tensors=tuple(tensors), captured=False)


def _odd(rank: int) -> tuple[int, ...]:
    """Sizes that are no multiple of anything: 2 × 3 × … × 257, innermost longest."""
    return ((2, 3) + (1, 2) * rank)[: rank - 1] + (257,) if rank > 1 else (1031,)


def _flat(rank: int, count: int) -> tuple[int, ...]:
    return (1,) * (rank - 1) + (count,)


def _rows(rank: int) -> tuple[int, ...]:
    return (211,) + (1,) * (rank - 2) + (5,) if rank > 1 else (523,)


def captured_scalars(program: FusedProgram) -> tuple[float | int, ...]:
    """The run-time numbers of a program as they were recorded."""
    scalars: list[float | int] = []
    for entry in program.inputs:
        if entry.kind == "scalar" and not isinstance(entry.value, str):
            floating = entry.dtype.startswith(("float", "bfloat"))
            scalars.append(float(entry.value) if floating else int(entry.value))
    return tuple(scalars)


def constants_of(program: FusedProgram) -> tuple[float, ...]:
    """Every finite literal of the program: thresholds, bounds, factors."""
    found = {
        float(argument.value)
        for statement in program.statements
        for argument in statement.args
        if isinstance(argument, Constant)
    }
    return tuple(sorted(value for value in found if math.isfinite(value))) or (0.0, 1.0)


def _narrowed(
    program: FusedProgram, candidate: FusionCandidate, tensors: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Cut captured operands along their outermost axis when they are very large."""
    count = math.prod(candidate.shape)
    if candidate.regions:
        return tensors  # a part of an operand need not be what makes a part of the results
    order = [axis for group in program.groups for axis in group if candidate.shape[axis] > 1]
    if count <= CAPTURED_ELEMENTS or not order:
        return tensors
    outer = order[0]
    keep = max(1, candidate.shape[outer] * CAPTURED_ELEMENTS // count)
    cut = []
    for operand, tensor in zip(candidate.inputs, tensors, strict=True):
        own = operand.dims[outer]
        full = own is not None and tensor.shape[own] > 1
        cut.append(tensor.narrow(own, 0, keep) if full and own is not None else tensor)
    return tuple(cut)


class _Builder:
    """Makes operands of any size with the captured rank, broadcast pattern and layout."""

    def __init__(
        self,
        program: FusedProgram,
        graph: OpGraph,
        candidate: FusionCandidate,
        captured: Mapping[str, torch.Tensor] | None,
        seed: int,
    ) -> None:
        specs = {spec.id: spec for spec in graph.values}
        self._program = program
        self._entries = [entry for entry in program.inputs if entry.kind == "tensor"]
        self._operands = candidate.inputs
        self._specs = [specs[operand.value] for operand in candidate.inputs]
        self._captured = captured or {}
        self._generator = torch.Generator().manual_seed(seed)

    def case(self, name: str, shape: tuple[int, ...], values: Values, offset: int) -> Case:
        """Operands for one iteration space; every operand starts ``offset`` elements in."""
        tensors = []
        for entry, operand, spec in zip(self._entries, self._operands, self._specs, strict=True):
            own_shape, strides = self._layout(entry, operand, spec, shape)
            extent = offset + extent_of(own_shape, strides)
            known = self._captured.get(spec.id)
            filled = fill(spec, known, values, extent, self._generator)
            tensors.append(filled.as_strided(own_shape, strides, offset))
        return Case(name=name, tensors=tuple(tensors), scalars=captured_scalars(self._program))

    def _layout(
        self,
        entry: ProgramInput,
        operand: OperandMap,
        spec: TensorSpec,
        shape: tuple[int, ...],
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The operand's own sizes and strides for an iteration space of ``shape``."""
        own_shape = [1] * len(spec.shape)
        strides = [1] * len(spec.shape)
        groups = [self._program.groups[number] for number in entry.groups]
        for group in groups:
            for axis in group:
                own = operand.dims[axis]
                if own is not None:
                    own_shape[own] = shape[axis]
        step = 1
        for position, group in enumerate(self._inside_out(entry, operand, spec, groups)):
            captured = self._captured_stride(operand, spec, group)
            # (An empty operand counts as dense, even one that was expanded.)
            if captured == 0 and entry.layout == "strided":
                for axis in group:
                    own = operand.dims[axis]
                    if own is not None:
                        strides[own] = 0
                continue
            if entry.layout == "strided":
                step = min(captured or 1, MAX_INNER_STRIDE) if position == 0 else step + GAP
            for axis in reversed(group):
                own = operand.dims[axis]
                if own is not None:
                    strides[own] = step
                    step *= max(1, shape[axis])
        return tuple(own_shape), tuple(strides)

    def _inside_out(
        self,
        entry: ProgramInput,
        operand: OperandMap,
        spec: TensorSpec,
        groups: Sequence[tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        """The operand's groups by rising stride: the walking order reversed, when dense."""
        reversed_groups = list(reversed(groups))
        if entry.layout == "dense":
            return reversed_groups
        known = [self._captured_stride(operand, spec, group) for group in reversed_groups]
        if any(stride is None for stride in known):
            return reversed_groups
        order = sorted(range(len(known)), key=lambda index: known[index] or 0)
        return [reversed_groups[index] for index in order]

    def _captured_stride(
        self, operand: OperandMap, spec: TensorSpec, group: tuple[int, ...]
    ) -> int | None:
        """The stride of a group at capture; None where all its sizes were 1."""
        for axis in reversed(group):
            own = operand.dims[axis]
            if own is not None and spec.shape[own] > 1:
                return spec.strides[own]
        return None


def fill(
    spec: TensorSpec,
    known: torch.Tensor | None,
    values: Values,
    count: int,
    generator: torch.Generator,
) -> torch.Tensor:
    """``count`` elements for an operand; integers stay in the range of the captured ones."""
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or dtype == torch.bool or known is None or not known.numel():
        return values(dtype, count, generator)
    # Captured integers are indices, positions or codes: stay in their range.
    low, high = int(known.min()), int(known.max())
    if high - low >= torch.iinfo(torch.int64).max:  # a float out of range was cast to int64
        places = torch.randint(0, known.numel(), (count,), generator=generator)
        return known.detach().reshape(-1).cpu()[places]
    picked = torch.randint(0, high - low + 1, (count,), generator=generator)
    return (picked + low).to(dtype)


def extent_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements lie from the first to the last, in memory."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _integers(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
    low = 0 if dtype == torch.uint8 else -9
    return torch.randint(low, 12, (count,), generator=generator).to(dtype)


def random_values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Normal ones, or small whole numbers."""
    if not dtype.is_floating_point:
        return _integers(dtype, count, generator)
    return (torch.randn(count, generator=generator, dtype=torch.float64) * 2).to(dtype)


def special_values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """NaN, infinities, both zeros, extremes, and what functions turn or round at."""
    if not dtype.is_floating_point:
        return _integers(dtype, count, generator)
    info = torch.finfo(dtype)
    extremes = (info.max, -info.max, info.tiny, -info.tiny, info.smallest_normal / 4)
    near_one = (1 + info.eps, 1 - info.eps / 2, -info.smallest_normal / 8)
    table = torch.tensor(_SPECIAL + extremes + near_one, dtype=torch.float64).to(dtype)
    picks = torch.randint(0, table.numel(), (count,), generator=generator)
    if count >= table.numel():  # a single operand meets each of them for certain
        picks[: table.numel()] = torch.randperm(table.numel(), generator=generator)
    return table[picks]


def all_magnitudes(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    """Both signs and every exponent of the dtype, denormals included."""
    if not dtype.is_floating_point:
        return _integers(dtype, count, generator)
    info = torch.finfo(dtype)
    low, high = math.log2(info.smallest_normal) - 4, math.log2(info.max)
    exponents = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    signs = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return (torch.exp2(exponents) * signs).to(dtype)


def values_around(constants: tuple[float, ...]) -> Values:
    """The program's constants, halves and small integers, and their nearest neighbours."""

    def values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
        if not dtype.is_floating_point:
            return _integers(dtype, count, generator)
        points = [sign * value for value in constants for sign in (1.0, -1.0)]
        points += [half / 2 for half in range(-13, 14)]
        table = torch.tensor(points, dtype=torch.float64).to(dtype)
        picked = table[torch.randint(0, table.numel(), (count,), generator=generator)]
        up = torch.full_like(picked, torch.inf)
        step = torch.randint(-1, 2, (count,), generator=generator)
        moved = torch.where(step > 0, torch.nextafter(picked, up), picked)
        return torch.where(step < 0, torch.nextafter(picked, -up), moved)

    return values
