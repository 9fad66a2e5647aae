"""Inputs to try a kernel on: the captured ones, random ones, and ones made to break it.

Sizes are run-time values of a kernel, so most cases have sizes that were never
captured, but keep what the kernel is specialised on: rank, broadcast pattern and
memory layout of each operand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fusion_advisor.records import (
    Argument,
    Constant,
    FusedProgram,
    FusionCandidate,
    OperandMap,
    OpGraph,
    ProgramInput,
    TensorSpec,
)
from fusion_advisor.validation.special_values import (
    PAIRS,
    PRIME,
    Values,
    all_magnitudes,
    paired,
    random_values,
    special_table,
    special_values,
    threshold_table,
    values_around,
)

SMALL_ELEMENTS = 4_098
# Beyond 16 bits of index and beyond where a CPU kernel becomes parallel.
LARGE_ELEMENTS = 70_003
CAPTURED_ELEMENTS = 1 << 24  # captured inputs are narrowed along their outermost axis above this
GAP = 3  # elements left unused between the rows of a strided operand
MAX_INNER_STRIDE = 4

Table = Callable[[torch.dtype], torch.Tensor]  # of a dtype's values


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
    builder = _Builder(program, graph, candidate, seed)
    cases: list[Case] = []
    real = captured_case(program, candidate, captured)
    if real is not None:
        cases.append(real)
    rank = len(candidate.shape)
    if rank == 0:
        cases.append(builder.case("0-dim", (), random_values))
        cases += [builder.case(f"0-dim special {n}", (), special_values) for n in range(12)]
        return cases
    constants = constants_of(program)
    # Sizes leave every remainder of 8: kernels are unrolled and vectorised.
    odd, rows = _odd(rank), _rows(rank)
    plans: list[tuple[str, tuple[int, ...], Values, int]] = [
        ("random, odd sizes", odd, random_values, 0),
        ("random, sizes reversed", odd[::-1], random_values, 0),
        ("random, many rows", rows, random_values, 0),
        ("one element", (1,) * rank, random_values, 0),
        ("exactly one block", _flat(rank, 256), random_values, 0),
        ("one block and one element", _flat(rank, 257), random_values, 0),
        ("misaligned memory", odd[:-1] + (odd[-1] + 6,), random_values, 1),
        ("special values, misaligned", rows, special_values, 1),
        ("all magnitudes", _flat(rank, SMALL_ELEMENTS), all_magnitudes, 0),
        ("around the program's constants", _flat(rank, SMALL_ELEMENTS + 2),
         values_around(constants), 0),
        ("empty", (0,) + odd[1:], random_values, 0),
    ]  # fmt: skip
    if rank > 1:
        plans.append(("empty inside", odd[:-1] + (0,), random_values, 0))
    plans += [
        (f"random, {LARGE_ELEMENTS} along axis {number}", shape, random_values, 0)
        for number in _loop_axes(program.groups)
        for shape in [_sized(rank, {number: LARGE_ELEMENTS})]
    ]
    cases += [builder.case(*plan) for plan in plans]

    def thresholds(dtype: torch.dtype) -> torch.Tensor:
        return threshold_table(dtype, constants)

    axes = _loop_axes(program.groups)
    for axis in axes:
        along = f" along axis {axis}" if len(axes) > 1 else ""
        inner = 6 if axis != rank - 1 and axis == axes[0] else 1
        shape = _sized(rank, {rank - 1: inner} | {axis: PAIRS})
        cases.append(builder.pairs(f"special values{along}", shape, special_table))
        shape = _sized(rank, {axis: PAIRS + 4})
        cases.append(builder.pairs(f"thresholds{along}", shape, thresholds))
    for one, two in itertools.combinations(axes, 2):
        over, grid = f"axes {one} and {two}", _sized(rank, {one: PRIME, two: PRIME})
        cases.append(builder.pairs(f"special values over {over}", grid, special_table))
        if (one, two) == (axes[0], axes[-1]):
            cases.append(builder.pairs(f"thresholds over {over}", grid, thresholds))
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
    return (211,) + (1,) * (rank - 2) + (5,) if rank > 1 else (526,)


def _loop_axes(groups: tuple[tuple[int, ...], ...]) -> list[int]:
    """One dimension of each axis that the loop walks."""
    return [group[-1] for group in groups if group]


def _sized(rank: int, sizes: Mapping[int, int]) -> tuple[int, ...]:
    """Some dimensions of these sizes, the others of one element."""
    return tuple(sizes.get(axis, 1) for axis in range(rank))


def captured_scalars(program: FusedProgram) -> tuple[float | int, ...]:
    """The run-time numbers of a program as they were recorded."""
    scalars: list[float | int] = []
    for entry in program.inputs:
        if entry.kind == "scalar" and not isinstance(entry.value, str):
            floating = entry.dtype.startswith(("float", "bfloat"))
            scalars.append(float(entry.value) if floating else int(entry.value))
    return tuple(scalars)


def other_numbers(program: FusedProgram) -> tuple[tuple[float | int, ...], ...]:
    """Run-time numbers that were not recorded, twice: a kernel may have none of them built in."""
    recorded = captured_scalars(program)
    if not recorded:
        return ()
    near = tuple(value + 1 for value in recorded)
    # Other ratios, so that numbers which take each other's place are told apart.
    far = tuple(
        -0.75 * value + 0.37 * place if isinstance(value, float) else -value - place
        for place, value in enumerate(recorded, start=1)
    )
    return (near, far)


def with_numbers(graph: OpGraph, program: FusedProgram, numbers: Sequence[float | int]) -> OpGraph:
    """The recorded ops with other run-time numbers in place of theirs."""
    scalars = [entry for entry in program.inputs if entry.kind == "scalar"]
    wanted = {
        (entry.node, entry.position): number for entry, number in zip(scalars, numbers, strict=True)
    }
    nodes = []
    for node in graph.nodes:
        if any(name == node.id for name, _ in wanted):
            places = itertools.count()
            args = tuple(_renumbered(one, node.id, places, wanted) for one in node.args)
            kwargs = tuple(
                (key, _renumbered(one, node.id, places, wanted)) for key, one in node.kwargs
            )
            node = replace(node, args=args, kwargs=kwargs)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _renumbered(
    argument: Argument,
    node: str,
    places: Iterator[int],
    wanted: Mapping[tuple[str, int], float | int],
) -> Argument:
    """An argument with its numbers exchanged; ``places`` counts the leaves of all of them."""
    if isinstance(argument, tuple):
        return tuple(_renumbered(item, node, places, wanted) for item in argument)
    return wanted.get((node, next(places)), argument)


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
        seed: int,
    ) -> None:
        specs = {spec.id: spec for spec in graph.values}
        self._program = program
        self._entries = [entry for entry in program.inputs if entry.kind == "tensor"]
        self._operands = candidate.inputs
        self._specs = [specs[operand.value] for operand in candidate.inputs]
        self._generator = torch.Generator().manual_seed(seed)

    def case(self, name: str, shape: tuple[int, ...], values: Values, offset: int = 0) -> Case:
        """Operands for one iteration space.

        With an ``offset`` each operand starts that many elements in, and its successors one more
        each: two may be aligned to each other, to nothing, or not.
        """
        tensors = []
        places = zip(self._entries, self._operands, self._specs, strict=True)
        for number, (entry, operand, spec) in enumerate(places):
            own_shape, strides = self._layout(entry, operand, spec, shape)
            start = offset and offset + number % 3
            dtype, extent = getattr(torch, spec.dtype), start + extent_of(own_shape, strides)
            memory = values(dtype, extent, self._generator)
            tensors.append(memory.as_strided(own_shape, strides, start))
        return Case(name=name, tensors=tuple(tensors), scalars=captured_scalars(self._program))

    def pairs(self, name: str, shape: tuple[int, ...], table: Table) -> Case:
        """Operands that meet in every pair of the table's entries, as far as they broadcast."""
        case = self.case(name, shape, random_values)
        for number, (operand, tensor) in enumerate(zip(self._operands, case.tensors, strict=True)):
            own = [d if d is not None and tensor.stride(d) else None for d in operand.dims]
            sizes = tuple(1 if d is None else tensor.shape[d] for d in own)
            strides = tuple(0 if d is None else tensor.stride(d) for d in own)
            places = tensor.as_strided(sizes, strides, tensor.storage_offset())
            first, second = _digits(shape, sizes)
            places.copy_(paired(table(tensor.dtype), first, second, number + 1))
        return case

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


def _digits(shape: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two numbers for each place of an operand: of the long axis of ``shape``, or of its two.

    ``sizes`` are the operand's own, 1 where it broadcasts.
    """
    zero = torch.zeros((1,) * len(sizes), dtype=torch.int64)
    places = [
        torch.arange(size).reshape((1,) * axis + (-1,) + (1,) * (len(sizes) - axis - 1))
        for axis, size in enumerate(sizes)
    ]
    moving = [axis for axis in range(len(shape)) if shape[axis] > 1]
    long = max(moving, key=lambda axis: shape[axis])
    others = sum((places[axis] for axis in moving if axis != long), zero)
    if shape[long] >= PAIRS:
        return places[long] % PRIME + others, places[long] // PRIME
    return places[long], others


def extent_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """How many elements lie from the first to the last, in memory."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
