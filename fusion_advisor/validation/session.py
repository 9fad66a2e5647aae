"""One kernel under validation: its cases, what eager gives for them, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fusion_advisor.errors import FusionAdvisorError, ValidationError
from fusion_advisor.ops.elements import distinct_elements
from fusion_advisor.ops.regions import unrolled
from fusion_advisor.records import FusionCandidate, KernelSource, OpGraph
from fusion_advisor.validation import arrays, benchmark, process_state
from fusion_advisor.validation.bits import same_bits, ulp_distance
from fusion_advisor.validation.budgets import OutputBudget, budget
from fusion_advisor.validation.compare import Comparison, compare
from fusion_advisor.validation.fast_budgets import fast_budget
from fusion_advisor.validation.inputs import (
    Case,
    build_cases,
    other_numbers,
    with_numbers,
    without_zeros,
)
from fusion_advisor.validation.viewed_inputs import viewed_cases

Reference = Callable[..., tuple[torch.Tensor, ...]]
# Above this many elements budgets are worked out only where eager and kernel differ.
WHOLE_BUDGET_ELEMENTS = 1 << 16
GATHERED_ELEMENTS = 1 << 15
OTHER_NUMBERS_ELEMENTS = 1 << 13  # of a case that is repeated with other run-time numbers
SINGLE_TRIES, SINGLE_DIVISIONS = 400, 4  # elements of a case looked at, and with a zero divisor
MOST_OTHER_NUMBERS = 3  # cases for each set of them
KEPT_RESULTS = 2  # of a large case: the CUDA kernel's and the CPU kernel's


@dataclass(frozen=True)
class PreparedCase:
    """A case that eager accepts, with eager's results; ``shapes`` are those of all regions.

    ``recorded_numbers``: its run-time numbers are those that the references hold.
    """

    case: Case
    shapes: tuple[tuple[int, ...], ...]
    expected: tuple[torch.Tensor, ...]
    recorded_numbers: bool = True

    @property
    def elements(self) -> int:
        """Elements of the (largest) iteration space."""
        return max(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True)
class RaisingCase:
    """A case for which eager raises because an integer divisor is 0; a CPU kernel must tell."""

    case: Case
    error: Exception


@dataclass
class Tally:
    """What comparing found, summed over cases."""

    cases: int = 0
    mismatches: int = 0
    ambiguous: int = 0
    worst_ulp: float = 0.0
    budget_ulp: float = 0.0
    worst_share: float = 0.0
    first: str = ""

    def add(self, label: str, comparison: Comparison) -> None:
        """Count one compared output."""
        self.mismatches += comparison.mismatches
        self.ambiguous += comparison.ambiguous
        self.worst_share = max(self.worst_share, comparison.worst_share)
        if comparison.worst_ulp > self.worst_ulp:
            self.worst_ulp, self.budget_ulp = comparison.worst_ulp, comparison.budget_ulp
        elif comparison.worst_ulp == self.worst_ulp:
            self.budget_ulp = max(self.budget_ulp, comparison.budget_ulp)
        if comparison.first and not self.first:
            self.first = f"{label}: {comparison.first}"


@dataclass
class Session:
    """The kernel, its references and its prepared cases.  ``skipped`` names refused cases."""

    kernel: KernelSource
    graph: OpGraph
    candidate: FusionCandidate
    reference: Reference
    reference64: Reference
    captured: Mapping[str, torch.Tensor] | None
    prepared: list[PreparedCase] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    raising: list[RaisingCase] = field(default_factory=list)
    beyond: list[Case] = field(default_factory=list)  # eager takes them; the kernel not as they lie
    _budgets: dict[int, tuple[OutputBudget, ...]] = field(default_factory=dict)
    # What kernels gave for large cases, and what that was worth: twins mostly agree to the bit.
    _judged: dict[int, list[tuple[tuple[torch.Tensor, ...], list[Comparison]]]] = field(
        default_factory=dict
    )

    def prepare(self) -> None:
        """Build all cases and run eager on them; eager's refusals are left out.

        Raises ``ValidationError`` when eager refuses every case, or when it gives
        something else than the recorded ops do.
        """
        for case in self._cases():
            for attempt in (case, without_zeros(case)):
                try:
                    expected = self.run_reference(attempt.tensors)
                except FusionAdvisorError:
                    raise
                except Exception as error:  # whatever eager raises, it raises for a person too
                    reason = f"{case.name} ({type(error).__name__})"
                    if attempt is case:
                        self._add_raising(case, error)
                    continue
                self._add(attempt, expected)
                break
            else:
                self.skipped.append(reason)
        if not self.prepared:
            raise ValidationError(f"eager refuses every input tried: {', '.join(self.skipped)}")
        self._add_other_numbers()
        self._add_single_divisions()

    def _cases(self) -> list[Case]:
        program = self.kernel.program
        if not self.candidate.regions:
            return build_cases(program, self.graph, self.candidate, self.captured)

        def accepts(tensors: Sequence[torch.Tensor]) -> bool:
            try:
                self.run_reference(tensors)
            except FusionAdvisorError:
                raise
            except Exception:  # whatever eager raises, it does not take these sizes
                return False
            return True

        return viewed_cases(program, self.graph, self.candidate, self.captured, accepts)

    def _add(self, case: Case, expected: tuple[torch.Tensor, ...]) -> None:
        """Prepare a case that eager takes, but for those of other sizes that are for no kernel.

        Views between the ops may lie otherwise there: a call copies first, or eager runs.
        """
        try:
            seen = arrays.seen_regions(self.graph, self.candidate, case.tensors)
            if self.candidate.regions:
                arrays.launch_spec(self.kernel.program, seen, case.scalars)
        except ValidationError:
            if not self.candidate.regions or case.at_recorded_sizes:
                raise
            self.beyond.append(case)
            return
        self.prepared.append(PreparedCase(case, tuple(region.shape for region in seen), expected))

    def _add_other_numbers(self) -> None:
        """Repeat some cases with run-time numbers that were not recorded, where eager takes them.

        The references hold the recorded ones: what eager gives comes from the recorded ops.
        """
        program = self.kernel.program
        small = [one for one in self.prepared if 0 < one.elements <= OTHER_NUMBERS_ELEMENTS]
        for count, numbers in enumerate(other_numbers(program)):
            graph = with_numbers(self.graph, program, numbers)
            for prepared in small[count::2][:MOST_OTHER_NUMBERS]:
                name = f"{prepared.case.name}, other numbers"
                case = replace(prepared.case, name=name, scalars=numbers, captured=False)
                try:
                    allowed = self._allowed(graph, self.candidate, self.named(case.tensors))
                except FusionAdvisorError:
                    raise
                except Exception:  # noqa: S112 - whatever eager raises, these it does not take
                    continue
                self._budgets[len(self.prepared)] = allowed
                expected = tuple(one.eager for one in allowed)
                self.prepared.append(
                    PreparedCase(case, prepared.shapes, expected, recorded_numbers=False)
                )

    def _add_raising(self, case: Case, error: Exception) -> None:
        """Keep a case with a zero divisor, for a kernel that looks for them."""
        if not self.kernel.program.checks_divisors or not arrays.is_zero_division(error):
            return
        named = replace(case, name=f"{case.name}, zero divisors")
        if self.candidate.regions:
            try:
                seen = arrays.seen_regions(self.graph, self.candidate, named.tensors)
                arrays.launch_spec(self.kernel.program, seen, named.scalars)
            except (ValidationError, RuntimeError):
                return  # of sizes for no kernel; or a divisor that is computed, and 0 for ones
        self.raising.append(RaisingCase(named, error))

    def _add_single_divisions(self) -> None:
        """Single elements with a zero divisor: among many, one divisor may tell for another.

        Not of operands that are viewed, where an element of a result lies elsewhere in them.
        """
        if self.candidate.regions:
            return
        generator = torch.Generator().manual_seed(11)
        paired = [one for one in self.raising if one.case.name.startswith(("special", "around"))]
        for raising in paired:
            case, found = raising.case, 0
            (region,) = arrays.seen_regions(self.graph, self.candidate, case.tensors)
            count = math.prod(region.shape)
            for place in torch.randperm(count, generator=generator)[:SINGLE_TRIES].tolist():
                tensors = self._one_element(case.tensors, region.shape, place)
                try:
                    self.run_reference(tensors)
                except FusionAdvisorError:
                    raise
                except Exception as error:
                    if arrays.is_zero_division(error):
                        found += 1
                        named = replace(case, name=f"{case.name}, element {place}", tensors=tensors)
                        self.raising.append(RaisingCase(named, error))
                if found == SINGLE_DIVISIONS:
                    break

    def _one_element(
        self, tensors: Sequence[torch.Tensor], shape: Sequence[int], place: int
    ) -> tuple[torch.Tensor, ...]:
        """What the operands hold at one flat place of the iteration space; ranks stay."""
        where = []
        for size in reversed(shape):
            where.append(place % size)
            place //= size
        where.reverse()
        taken = []
        for operand, tensor in zip(self.candidate.inputs, tensors, strict=True):
            for axis, own in enumerate(operand.dims):
                if own is not None and tensor.shape[own] > 1:
                    tensor = tensor.narrow(own, where[axis], 1)
            taken.append(tensor)
        return tuple(taken)

    def run_reference(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Eager's results, without gradients."""
        with torch.no_grad():
            result = self.reference(*tensors)
        return result if isinstance(result, tuple) else (result,)

    def named(self, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Operands by value id."""
        names = [operand.value for operand in self.candidate.inputs]
        return dict(zip(names, tensors, strict=True))

    def bytes_moved(self, prepared: PreparedCase) -> int:
        """Distinct bytes that a kernel must read and write; of what it views, what is shown."""
        if not self.candidate.regions:
            return benchmark.bytes_of([*prepared.case.tensors, *prepared.expected])
        moved = benchmark.bytes_of([*prepared.expected])
        for name, tensor in self.named(prepared.case.tensors).items():
            views = [
                access.steps
                for region in self.candidate.regions
                for access in region.accesses
                if access.value == name
            ]
            count = distinct_elements(tuple(tensor.shape), tensor.stride(), views)
            moved += count * tensor.element_size()
        return moved

    def budgets(self, index: int) -> tuple[OutputBudget, ...]:
        """What each output of a prepared case may be; fixed by the inputs alone."""
        if index not in self._budgets:
            prepared = self.prepared[index]
            with process_state.one_thread(prepared.elements):
                allowed = self._allowed_for(prepared)
            if not self._agree(allowed, prepared):
                # A team of threads splits a tensor, and eager's loops may differ at the seam.
                allowed = self._allowed_for(prepared)
            for one, expected in zip(allowed, prepared.expected, strict=True):
                if one.eager.dtype != expected.dtype or one.eager.shape != expected.shape:
                    raise ValidationError(
                        f"{prepared.case.name}: the recorded ops give {one.eager.dtype}"
                        f"{list(one.eager.shape)}, the reference {expected.dtype}"
                        f"{list(expected.shape)}"
                    )
            if not self._agree(allowed, prepared):
                raise ValidationError(
                    f"{prepared.case.name}: the recorded ops and the reference differ"
                )
            self._budgets[index] = allowed
        return self._budgets[index]

    def _allowed_for(self, prepared: PreparedCase) -> tuple[OutputBudget, ...]:
        return self._allowed(self.graph, self.candidate, self.named(prepared.case.tensors))

    def _agree(self, allowed: Sequence[OutputBudget], prepared: PreparedCase) -> bool:
        """Whether the recorded ops gave what the reference did, to the bit."""
        return self.is_fast or all(
            one.eager.dtype == expected.dtype
            and one.eager.shape == expected.shape
            and bool(same_bits(one.eager, expected).all())
            for one, expected in zip(allowed, prepared.expected, strict=True)
        )

    @property
    def is_fast(self) -> bool:
        """Whether the kernel rounds less often than eager, and is judged by budgets of its own."""
        return self.kernel.program.match == "fast"

    def _allowed(
        self, graph: OpGraph, candidate: FusionCandidate, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[OutputBudget, ...]:
        return (fast_budget if self.is_fast else budget)(graph, candidate, inputs)

    def judge(self, index: int, actual: Sequence[torch.Tensor]) -> list[Comparison]:
        """Compare a kernel's outputs for a prepared case with what they may be."""
        if self.prepared[index].elements <= WHOLE_BUDGET_ELEMENTS:
            self.budgets(index)
        with process_state.one_thread(self.prepared[index].elements):
            return self._judge(index, actual)

    def _judge(self, index: int, actual: Sequence[torch.Tensor]) -> list[Comparison]:
        prepared = self.prepared[index]
        if len(actual) != len(prepared.expected):
            raise ValidationError(
                f"gives {len(actual)} outputs where eager gives {len(prepared.expected)}"
            )
        if prepared.elements <= WHOLE_BUDGET_ELEMENTS:
            allowed = self.budgets(index)
            return [compare(one, limit) for one, limit in zip(actual, allowed, strict=True)]
        known = self._judged.setdefault(index, [])
        for earlier, comparisons in known:
            if all(map(_identical, earlier, actual)):
                return comparisons
        found = [self._judge_large(prepared, number, one) for number, one in enumerate(actual)]
        known.append((tuple(one.clone() for one in actual), found))
        del known[:-KEPT_RESULTS]
        return found

    def judge_apart(
        self, case: Case, expected: tuple[torch.Tensor, ...], actual: Sequence[torch.Tensor]
    ) -> list[Comparison]:
        """As ``judge``, for a case that is not among the prepared ones."""
        alone = replace(self, prepared=[], skipped=[], beyond=[], _budgets={}, _judged={})
        shapes = tuple(tuple(one.shape) for one in expected)
        alone.prepared.append(PreparedCase(case, shapes, expected))
        return alone.judge(0, actual)

    def _judge_large(self, prepared: PreparedCase, number: int, actual: torch.Tensor) -> Comparison:
        """Every element is compared to the bit; budgets are worked out where they differ.

        Where very many differ, for the farthest apart and an even sample of the others.
        """
        expected = prepared.expected[number]
        exact = OutputBudget(value=self.candidate.outputs[number], eager=expected)
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            return compare(actual, exact)
        places = _worst_places(actual, expected)
        if not places.numel():
            return Comparison(
                elements=expected.numel(), mismatches=0, ambiguous=0, worst_ulp=0.0, budget_ulp=0.0
            )
        graph, group = self.graph, self.candidate
        value = group.outputs[number]
        regions = arrays.seen_regions(graph, group, prepared.case.tensors)
        place = 0
        if group.regions:
            place = next(k for k, one in enumerate(group.regions) if value in one.outputs)
            graph, group = unrolled(graph, group, group.regions[place])
        seen = regions[place]
        single = {spec.id for spec in graph.values if not spec.shape}
        operands = {
            operand.value: tensor[(0,) * tensor.dim()]
            if operand.value in single  # its rank decides the result's dtype
            else _gathered(tensor, places)
            for operand, tensor in zip(group.inputs, seen.operands, strict=True)
        }
        allowed = self._allowed(graph, group, operands)[group.outputs.index(value)]
        picked = actual.reshape(-1)[places]
        return replace(compare(picked, allowed), elements=expected.numel())


def _identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bitwise, NaN payloads included."""
    if left.shape != right.shape or left.dtype != right.dtype or left.stride() != right.stride():
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    width = flat.element_size()
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width])


def _worst_places(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Flat places that differ: all, or the worst and an even sample of the others."""
    one, two = actual.contiguous().reshape(-1), expected.contiguous().reshape(-1)
    places = torch.nonzero(_bytes(one) != _bytes(two)).reshape(-1)
    distance = ulp_distance(one[places], two[places])
    places = places[distance > 0]  # any NaN equals any NaN
    if places.numel() <= GATHERED_ELEMENTS:
        return places
    worst = places[torch.topk(distance[distance > 0], GATHERED_ELEMENTS // 2).indices]
    step = max(1, places.numel() // (GATHERED_ELEMENTS // 2))
    chosen: torch.Tensor = torch.unique(torch.cat([worst, places[::step]]))
    return chosen


def _gathered(seen: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """An operand's elements at flat places of the iteration space."""
    coordinates = []  # torch.unravel_index would import a symbolic algebra first: 2 s
    for size in reversed(seen.shape):
        coordinates.append(places % size)
        places = places // size
    return seen[tuple(reversed(coordinates))]
