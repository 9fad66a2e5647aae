"""How far a fused result may be from eager's, per element, known before anything is measured.

Every op has a budget in ULP against the true value (0: the kernel gives eager's
very bits).  A value is carried through the chain as an interval that must hold
the fused result.  An op maps the ends of its operands' intervals through itself
in float64 (to first order the derivative times the width, and still right at
kinks and where curvature matters), widens the image by its own budget, takes
eager's own value in, and rounds to its dtype as the kernel does.  Where all
operands are exact and the budget is 0 the value stays exact: equal bits, or
those of another of eager's own loops where they differ.

Where an interval straddles a jump (round, compare, a cast to integers) the two
sides are both legitimate; such elements are *ambiguous*.  They are counted
apart, and the chain is carried on once per side: a result must fit one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass

import torch

from fusion_advisor.ops import functional_name, is_added, lookup
from fusion_advisor.ops.regions import halved_dimension, takes_halves
from fusion_advisor.records import FusionCandidate, OpGraph, OpNode, ValueRef
from fusion_advisor.validation import aten
from fusion_advisor.validation.eager_loops import other_results
from fusion_advisor.validation.inner_roundings import eager_off, inner_room
from fusion_advisor.validation.intervals import (
    HALF_STEP_ULP,
    Interval,
    across,
    either_of,
    end_of,
    finite_end,
    hull,
    operand_width,
    spanned,
    turns_of,
    ulp,
    widen,
    widened,
    with_peaks,
)

MAX_PERTURBED_OPERANDS = 3  # 8 corners; further operands move together with the first
MAX_AMBIGUOUS_OPS = 3  # 8 ways through the chain; further jumps take the same side as the last


@dataclass(frozen=True)
class OutputBudget:
    """What one output may be: eager's value, and the intervals of each way through the jumps.

    ``ways`` is empty where every element must equal eager to the bit.
    ``unspecified`` marks elements behind a float too large for the integer it was
    cast to, or behind the sign of a NaN that was computed: eager itself promises nothing there.
    """

    value: str
    eager: torch.Tensor
    ways: tuple[Interval, ...] = ()
    ambiguous: torch.Tensor | None = None
    unspecified: torch.Tensor | None = None


def budget(
    graph: OpGraph,
    candidate: FusionCandidate,
    inputs: Mapping[str, torch.Tensor],
    *,
    op_budget: Callable[[OpNode], float] | None = None,
) -> tuple[OutputBudget, ...]:
    """What each of the candidate's outputs may be for ``inputs`` (value id → tensor).

    ``op_budget`` overrides the op table's budgets, in ULP.
    """
    nodes = aten.needed_nodes(graph, candidate)
    return budgets_of(Chain(nodes, inputs, op_budget or table_budget), candidate)


def budgets_of(chain: Chain, candidate: FusionCandidate) -> tuple[OutputBudget, ...]:
    """What each output of a chain may be, by every way through its jumps."""
    choices: Sequence[tuple[int, ...]] = [()]
    first = chain.carry(())
    jumps = min(len(first.jumps), MAX_AMBIGUOUS_OPS)
    if jumps:
        choices = list(itertools.product((0, 1), repeat=jumps))
    unspecified = chain.unspecified()
    ways = [first] + [chain.carry(choice) for choice in choices if choice]
    result = []
    for value in candidate.outputs:
        intervals = [way.intervals[value] for way in ways]
        known = tuple(interval for interval in intervals if interval is not None)
        mask = first.ambiguous.get(value)
        result.append(
            OutputBudget(
                value=value,
                eager=chain.eager[value],
                ways=known,
                ambiguous=mask,
                unspecified=unspecified.get(value),
            )
        )
    return tuple(result)


def table_budget(node: OpNode) -> float:
    """The op table's budget of a node, in ULP against the true value."""
    info = lookup(node.op)
    if info is None:
        return 0.0
    texts = [item for _, item in node.kwargs if isinstance(item, str)]
    return float(next((ulps for text, ulps in info.budgets_by_text if text in texts),
                      info.budget_ulp))  # fmt: skip


@dataclass(frozen=True)
class _Way:
    """One way through the chain.  ``jumps`` are the nodes where an interval met a jump."""

    intervals: dict[str, Interval | None]
    ambiguous: dict[str, torch.Tensor]
    jumps: tuple[str, ...]


class Chain:
    """The candidate's nodes with eager's values, ready to carry intervals through."""

    def __init__(
        self,
        nodes: Sequence[OpNode],
        inputs: Mapping[str, torch.Tensor],
        op_budget: Callable[[OpNode], float],
    ) -> None:
        self.nodes = nodes
        self.eager = self._run(inputs)
        self._budgets = {node.id: op_budget(node) for node in nodes}
        self._loops: dict[tuple[str, str], Interval | None] = {}
        self._special = {node.id: self._meets_special(node) for node in nodes}
        self._rounded = {node.id: _as_computed(node, self.eager) for node in nodes}

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The values that the chain is compared with."""
        return aten.run(self.nodes, inputs)

    def _meets_special(self, node: OpNode) -> bool:
        """Whether an operand holds an infinity or NaN: there loops may part by more than ULP."""
        return any(
            tensor.dtype.is_floating_point and not bool(torch.isfinite(tensor).all())
            for tensor in (self.eager[name] for name in node.inputs)
        )

    def carry(self, sides: tuple[int, ...]) -> _Way:
        """Carry intervals; the n-th jump met takes ``sides[n]`` (0 low, 1 high side).

        With no sides given a jump keeps both: the hull, which finds the jumps.
        """
        intervals: dict[str, Interval | None] = {}
        ambiguous: dict[str, torch.Tensor] = {}
        jumps: list[str] = []
        for node in self.nodes:
            side = sides[min(len(jumps), len(sides) - 1)] if sides else None
            for value in node.outputs:
                if value not in self.eager:
                    continue
                mask = _marked(node, ambiguous, self.eager)
                moved = mask if sides else None
                interval, jumped = self._image(node, value, intervals, side, moved)
                intervals[value] = interval
                if jumped is not None:
                    jumps.append(node.id)
                    mask = jumped if mask is None else mask | jumped
                if mask is not None:
                    ambiguous[value] = mask
        for value in self.eager:
            intervals.setdefault(value, None)
        return _Way(intervals, ambiguous, tuple(jumps))

    def unspecified(self) -> dict[str, torch.Tensor]:
        """Elements that depend on a float → integer cast out of range, or on a NaN's sign."""
        found: dict[str, torch.Tensor] = {}
        made = {value for node in self.nodes for value in node.outputs}
        for node in self.nodes:
            mask = _marked(node, found, self.eager)
            for value in node.outputs:
                result = self.eager.get(value)
                if result is None:
                    continue
                own = _out_of_range(node, result, self.eager)
                if own is None:
                    own = _sign_of_nan(node, result, self.eager, made)
                if own is not None:
                    mask = own if mask is None else mask | own
                if mask is not None:
                    found[value] = mask
        return found

    def _image(
        self,
        node: OpNode,
        value: str,
        intervals: Mapping[str, Interval | None],
        side: int | None,
        moved: torch.Tensor | None,
    ) -> tuple[Interval | None, torch.Tensor | None]:
        """The interval of one result and, where it met a jump, the elements concerned.

        ``moved`` marks elements whose operands were put on one side of an earlier
        jump: eager's own result may belong to the other side.
        """
        eager = self.eager[value]
        own = self._budgets[node.id] if eager.dtype.is_floating_point else 0.0
        if _selects(node) and own <= SELECTED_ULP:
            own = 0.0
        moving = [name for name in dict.fromkeys(node.inputs) if intervals.get(name) is not None]
        other = self._other_loops(node, value) if own == 0.0 or self._special[node.id] else None
        if not moving and own == 0.0:
            return other, None
        corners = self._corners(node, value, intervals, moving)
        low, high, maybe_nan = hull(corners, moved)
        if own and not moving:
            low, high, maybe_nan = self._settled_nan(node, value, low, high, maybe_nan)
        turns = None
        if moving:
            low, high = with_peaks(node, self.eager, intervals, low, high)
            turns = turns_of(node, self.eager, intervals, eager.shape)
        if turns is not None:
            low = torch.where(turns.whole, turns.low, low)
            high = torch.where(turns.whole, turns.high, high)
        for name in moving:
            source = intervals[name]
            if source is not None and bool(source.maybe_nan.any()):
                maybe_nan = maybe_nan | _spread(node, name, source.maybe_nan, self.eager, value)
        loose = torch.ones_like(eager, dtype=torch.bool)
        if own == 0.0:
            loose = self._reached(node, value, intervals, moving)
        scale = self._scale(node, value)
        if own == 0.0:
            inner = inner_room(node, self.eager, value, low, high)
            if inner is not None:
                low, high = low - inner, high + inner
        jumped = None
        if _jumps(node, eager):
            # Not wider than rounding: the sides of a jump are far apart.
            apart = high - low > 16 * ulp(torch.maximum(low.abs(), high.abs()), torch.float32)
            # Nor as narrow as the operands' own: a small remainder is known less well, no jump.
            smooth = operand_width(eager, intervals, moving) if turns is None else turns.width
            apart &= high - low > 4 * smooth
            jumped = (apart | (torch.isnan(low) != torch.isnan(high))) & loose
            if turns is not None:
                jumped &= ~turns.whole  # anything in its range: that is no choice of two sides
            elif _counts(node, eager):
                jumped &= ~(high - low > 1.5)  # nor are several steps
            jumped = jumped if bool(jumped.any()) else None
            if jumped is not None and side is not None:
                side_width = 64 * ulp(high.abs(), torch.float32)
                if turns is None and not _steps(node):
                    side_width = side_width + smooth
                if turns is not None:  # from an end some way on, and what lies before it
                    side_width = side_width + 2 * turns.width
                    low = torch.where(jumped, low - turns.width, low)
                    high = torch.where(jumped, high + turns.width, high)
                width = torch.where(jumped, side_width, high - low)
                if not eager.dtype.is_floating_point:
                    width = torch.where(jumped, torch.zeros_like(width), high - low)
                if side == 0:
                    high = torch.where(jumped, low + width, high)
                else:
                    low = torch.where(jumped, high - width, low)
        fixed = moved
        if jumped is not None and side is not None:
            fixed = jumped if moved is None else moved | jumped
        steps = _half_steps(node, eager)
        around = steps * ulp(eager.to(torch.float64), eager.dtype) if steps else None
        if around is not None and moving:
            low, high = low - around, high + around
        off = eager_off(node)
        settled = self._settled_zero(node, value) if own and eager.dtype == torch.float64 else None
        low, high = widen(eager, low, high, own, scale, corners[0], fixed, around, off, settled)
        interval = Interval(low=low, high=high, loose=loose, maybe_nan=maybe_nan & loose)
        return (interval if other is None else either_of(interval, other)), jumped

    def _settled_zero(self, node: OpNode, value: str) -> torch.Tensor:
        """Where no operand is a small number whose image may be one too."""
        settled = torch.ones_like(self.eager[value], dtype=torch.bool)
        for name in node.inputs:
            operand = self.eager[name]
            if takes_halves(node) and len(node.inputs) == 1:
                return torch.zeros_like(settled)  # each result has two elements of it behind it
            if operand.dim() <= settled.dim() and node.kind == "elementwise":
                settled &= ((operand == 0) | (operand.abs() >= 1)).broadcast_to(settled.shape)
        return settled

    def _settled_nan(
        self,
        node: OpNode,
        value: str,
        low: torch.Tensor,
        high: torch.Tensor,
        maybe_nan: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """NaN or not as eager has it by all of its loops, whatever the true value is."""
        eager = self.eager[value]
        settled = torch.isnan(eager) != torch.isnan(low)
        if node.kind != "elementwise" or takes_halves(node) or not bool(settled.any()):
            return low, high, maybe_nan
        for other in other_results(node, self.eager, value, eager):
            settled &= torch.isnan(other) == torch.isnan(eager)
        wide = eager.to(torch.float64)
        low, high = torch.where(settled, wide, low), torch.where(settled, wide, high)
        return low, high, maybe_nan & ~settled

    def _other_loops(self, node: OpNode, value: str) -> Interval | None:
        """Where eager's own loops differ, from the least to the largest of their results."""
        eager = self.eager[value]
        if node.kind != "elementwise" or not eager.dtype.is_floating_point or takes_halves(node):
            return None
        key = (node.id, value)
        if key not in self._loops:
            others = other_results(node, self.eager, value, eager)
            if _selects(node) and self._budgets[node.id]:
                others.append(torch.where(eager == 0, -eager, eager))
            self._loops[key] = spanned(eager, others)
        return self._loops[key]

    def _scale(self, node: OpNode, value: str) -> torch.Tensor:
        """What an op's own budget is measured in: magnitudes whose ULP counts.

        The result's, or for ops that cancel the larger of result and first operand.
        """
        result = self.eager[value].to(torch.float64).abs()
        info = lookup(node.op)
        if info is None or info.error_scale == "result" or not node.inputs:
            return result
        operand = self.eager[node.inputs[0]].to(torch.float64).abs()
        return torch.fmax(result, operand.broadcast_to(result.shape))

    def _corners(
        self,
        node: OpNode,
        value: str,
        intervals: Mapping[str, Interval | None],
        moving: Sequence[str],
    ) -> list[torch.Tensor]:
        """The op in float64 at eager's operands, then at every corner of their intervals."""
        wide = {name: widened(one) for name, one in self._operands(node, value).items()}
        images = [self._evaluate(node, value, wide)]
        free = moving[:MAX_PERTURBED_OPERANDS]
        for ends in itertools.product((0, 1), repeat=len(free)):
            if not ends:
                break
            at = dict(wide)
            for name in moving:
                end = ends[free.index(name)] if name in free else ends[0]
                at[name] = self._end(node, name, intervals[name], end)
            images.append(self._evaluate(node, value, at))
        # abs, squares and the like turn round at zero, which lies between the ends; a divisor there
        # gives infinities of both signs; and functions end at 0 and at 1 (atanh), beyond is NaN.
        for point in (0.0, -0.0, 1.0, -1.0):
            between = {
                name: middle
                for name in moving
                if (middle := across(self.eager[name], intervals[name], point)) is not None
            }
            if between:
                images.append(self._evaluate(node, value, {**wide, **between}))
        # What is infinite at an end is finite before it (and floor of infinity is no number).
        for end in (0, 1):
            finite = {
                name: nearest
                for name in moving
                if (nearest := finite_end(self.eager[name], intervals[name], end)) is not None
            }
            if finite:
                images.append(self._evaluate(node, value, {**wide, **finite}))
        return images

    def _operands(self, node: OpNode, value: str) -> dict[str, torch.Tensor]:
        """Eager's operands; integers of which a float is made as eager takes them, rounded."""
        operands = {name: self.eager[name] for name in node.inputs}
        result = self.eager[value]
        whole = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
        if (
            node.kind == "elementwise"
            and result.dtype in (torch.float32, torch.float64)
            and all(one.dtype in whole for one in operands.values())
        ):
            return {name: one.to(result.dtype) for name, one in operands.items()}
        return operands

    def _end(self, node: OpNode, name: str, interval: Interval | None, end: int) -> torch.Tensor:
        """One end of an operand's interval; a divisor of 0 is left to eager, which raises there."""
        eager, info = self.eager[name], lookup(node.op)
        found = end_of(eager, interval, end)
        if info is None or not info.zero_raises or eager.dtype.is_floating_point:
            return found
        divides = ValueRef(value=name) in node.args[1:2]
        return torch.where(found == 0, eager, found) if divides else found

    def _evaluate(
        self, node: OpNode, value: str, values: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """A result in float64; of an op from outside that lacks it, in the recorded dtypes."""
        with torch.no_grad():
            try:
                made = aten.call(self._rounded[node.id], values, wide=True)
            except RuntimeError:
                if not is_added(node.op):
                    raise
                own = {name: one.to(self.eager[name].dtype) for name, one in values.items()}
                made = aten.call(node, own)
        return aten.bind_outputs(node, made)[value].to(torch.float64)

    def _reached(
        self,
        node: OpNode,
        value: str,
        intervals: Mapping[str, Interval | None],
        moving: Sequence[str],
    ) -> torch.Tensor:
        """Which elements of the result depend on an inexact operand element."""
        reached = torch.zeros_like(self.eager[value], dtype=torch.bool)
        for name in moving:
            source = intervals[name]
            if source is not None:
                reached |= _spread(node, name, source.loose, self.eager, value)
        return reached


def _as_computed(node: OpNode, eager: Mapping[str, torch.Tensor]) -> OpNode:
    """The node with its numbers rounded as on its float operands."""
    dtypes = [eager[name].dtype for name in node.inputs if eager[name].dtype.is_floating_point]
    if not dtypes:
        return node
    return aten.with_rounded_numbers(node, max(dtypes, key=lambda dtype: dtype.itemsize))


def _out_of_range(
    node: OpNode, result: torch.Tensor, eager: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """Where a float operand does not fit the integer dtype of the result."""
    if result.dtype.is_floating_point or result.dtype == torch.bool:
        return None
    bounds = torch.iinfo(result.dtype)
    mask: torch.Tensor | None = None
    for name in node.inputs:
        operand = eager[name]
        if operand.dtype.is_floating_point and operand.shape == result.shape:
            value = torch.trunc(operand.to(torch.float64))
            # float64(2**63 - 1) is 2**63 itself, which does not fit.
            inside = (value >= bounds.min) & (value < float(bounds.max) + 1)
            mask = ~inside if mask is None else mask | ~inside
    return mask if mask is not None and bool(mask.any()) else None


_SIGN_OF = {"aten.signbit.default": 0, "aten.copysign.Tensor": 1}  # which argument's


def _sign_of_nan(
    node: OpNode, result: torch.Tensor, eager: Mapping[str, torch.Tensor], made: Container[str]
) -> torch.Tensor | None:
    """Where an op reads the sign of a NaN that came about in the chain: either is one."""
    place = _SIGN_OF.get(functional_name(node.op))
    source = None if place is None else node.args[place]
    if not isinstance(source, ValueRef) or source.value not in made:
        return None
    mask = torch.isnan(eager[source.value]).broadcast_to(result.shape)
    return mask if bool(mask.any()) else None


def _jumps(node: OpNode, eager: torch.Tensor) -> bool:
    info = lookup(node.op)
    if node.kind in ("view", "metadata"):
        return False
    if functional_name(node.op) == _NOISY_RELU and node.args[5:6] == (True,):
        return False  # a product, in training
    if functional_name(node.op).startswith("aten.div.") and eager.dtype.is_floating_point:
        return _counts(node, eager)  # (a rounding mode may be None)
    return (info is not None and info.discontinuous) or not eager.dtype.is_floating_point


# Ops whose result is one of their operands, unchanged.  Their budget is for the sign of a zero
# and a NaN beside a number, of which either may be taken: other elements have no room at all.
_SELECTING = frozenset("clamp clamp_max clamp_min fmax fmin max maximum min minimum".split())
SELECTED_ULP = 1.0


def _selects(node: OpNode) -> bool:
    return functional_name(node.op).split(".")[1] in _SELECTING


# Ops that are constant between their jumps.
_STEPS = frozenset(
    """
    ceil floor floor_divide heaviside round sgn sign trunc
    """.split()
)


def _steps(node: OpNode) -> bool:
    """Whether all that a side of a jump holds is one number."""
    return functional_name(node.op).split(".")[1] in _STEPS


_NOISY_RELU = "aten.rrelu_with_noise_backward.default"


def _counts(node: OpNode, eager: torch.Tensor) -> bool:
    """Whether an op goes from one whole number to the next."""
    base = functional_name(node.op).split(".")[1]
    if base in ("ceil", "floor", "floor_divide", "trunc"):
        return True
    if base == "round":
        return not any(name == "decimals" for name, _ in node.kwargs)
    if base == "div":
        return any(item is not None for name, item in node.kwargs if name == "rounding_mode")
    return base in ("_to_copy", "copy") and not eager.dtype.is_floating_point


def _half_steps(node: OpNode, eager: torch.Tensor) -> int:
    """ULP that the flip of an inner rounding to 16 bits makes in the result; 0 without such."""
    info = lookup(node.op)
    inner = info is not None and info.half_steps
    return HALF_STEP_ULP if inner and eager.dtype in (torch.float16, torch.bfloat16) else 0


def _spread(
    node: OpNode, name: str, mask: torch.Tensor, eager: Mapping[str, torch.Tensor], value: str
) -> torch.Tensor:
    """A mask over an operand, seen over the op's result."""
    target = eager[value].shape
    if node.kind == "view":
        values = {other: torch.zeros_like(eager[other]) for other in node.inputs}
        values[name] = mask.to(eager[name].dtype)
        with torch.no_grad():
            return aten.bind_outputs(node, aten.call(node, values))[value].to(torch.bool)
    if takes_halves(node):
        one, two = mask.chunk(2, halved_dimension(node, tuple(mask.shape)))
        mask = one | two
    return mask.broadcast_to(target)


def _marked(
    node: OpNode, masks: Mapping[str, torch.Tensor], eager: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """Elements of a node's first result that depend on a marked element of an operand."""
    result: torch.Tensor | None = None
    for name in node.inputs:
        if name in masks:
            seen = _spread(node, name, masks[name], eager, node.outputs[0])
            result = seen if result is None else result | seen
    return result
