"""What a kernel generated with ``match="fast"`` may give: no 16-bit rounding between its ops.

The reference is the chain with its 16-bit operands widened to float32, so that its intermediates
are float32; down-casts that the code asks for still round.  Every op may be off by the op table's
budget, at least by one ULP of float32 (float64 for float64): that is what a rounding kept or left
out by a fused multiply-add comes to.  Ops of several steps may contract within, where their terms
can cancel: their ULP is measured at the largest of those terms.  The intervals are carried forward
through the chain as those of ``budgets`` are, and rounded to the dtype of each output once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from fusion_advisor.ops import functional_name
from fusion_advisor.ops.dtypes import explicit_rounding
from fusion_advisor.records import FusionCandidate, OpGraph, OpNode
from fusion_advisor.validation import aten
from fusion_advisor.validation.budgets import (
    Chain,
    OutputBudget,
    budgets_of,
    table_budget,
)
from fusion_advisor.validation.intervals import Interval

LEAST_ULP = 1.0
_HALVES = (torch.bfloat16, torch.float16)
_ONE_ROUNDING = frozenset({"add", "sub", "mul", "div", "rsub", "sqrt", "neg", "abs"})


def fast_budget(
    graph: OpGraph, candidate: FusionCandidate, inputs: Mapping[str, torch.Tensor]
) -> tuple[OutputBudget, ...]:
    """What each of the candidate's outputs may be for ``inputs`` (value id → tensor)."""
    nodes = aten.needed_nodes(graph, candidate)
    dtypes = {spec.id: spec.dtype for spec in graph.values}
    chain = _FastChain(nodes, inputs, dtypes)
    return tuple(
        _rounded(one, getattr(torch, dtypes[one.value])) for one in budgets_of(chain, candidate)
    )


def fast_op_budget(node: OpNode) -> float:
    """The budget of one op in ULP of the dtype it computes in."""
    return max(LEAST_ULP, table_budget(node))


class _FastChain(Chain):
    """The candidate's nodes over float32 instead of 16-bit values."""

    def __init__(
        self,
        nodes: Sequence[OpNode],
        inputs: Mapping[str, torch.Tensor],
        dtypes: Mapping[str, str],
        op_budget: Callable[[OpNode], float] = fast_op_budget,
    ) -> None:
        self._rounding = {node.id: explicit_rounding(node, dtypes) for node in nodes}
        super().__init__(nodes, inputs, op_budget)

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values = {name: _unhalved(tensor) for name, tensor in inputs.items()}
        with torch.no_grad():
            for node in self.nodes:
                made = aten.bind_outputs(node, aten.call(node, values))
                rounding = self._rounding[node.id]
                for name, tensor in made.items():
                    to = getattr(torch, rounding) if rounding else tensor.dtype
                    values[name] = _unhalved(tensor.to(to))
        return values

    def _image(
        self,
        node: OpNode,
        value: str,
        intervals: Mapping[str, Interval | None],
        side: int | None,
        moved: torch.Tensor | None,
    ) -> tuple[Interval | None, torch.Tensor | None]:
        rounding = self._rounding[node.id]
        if not rounding:
            interval, jumped = super()._image(node, value, intervals, side, moved)
            return self._unless_fused(node, value, interval), jumped
        # The source of a down-cast, in whatever dtype it is known, rounded as the kernel does.
        dtype = getattr(torch, rounding)
        source = intervals.get(node.inputs[-1])
        return (None if source is None else _rounded_interval(source, dtype)), None

    def _unless_fused(self, node: OpNode, value: str, interval: Interval | None) -> Interval | None:
        """What overflows alone need not within a fused multiply-add: it may be finite as well."""
        result = self.eager[value]
        if interval is None or not result.dtype.is_floating_point or node.kind != "elementwise":
            return interval
        over = torch.isinf(result)
        for name in node.inputs:
            if self.eager[name].dim() <= result.dim():
                over = over & torch.isfinite(self.eager[name])
        most = torch.finfo(result.dtype).max
        low = torch.where(over & (interval.low > 0), most, interval.low)
        high = torch.where(over & (interval.high < 0), -most, interval.high)
        return replace(interval, low=low, high=high)

    def _scale(self, node: OpNode, value: str) -> torch.Tensor:
        scale = super()._scale(node, value)
        name = functional_name(node.op).split(".")[1]
        if name in _ONE_ROUNDING and not any(key == "alpha" for key, _ in node.kwargs):
            return scale
        result = self.eager[value].to(torch.float64)
        for operand in dict.fromkeys(node.inputs):
            seen = self.eager[operand]
            if seen.dtype.is_floating_point and node.kind == "elementwise":
                wide = seen.to(torch.float64)
                if wide.dim() <= result.dim():
                    terms = torch.fmax(wide.abs(), (result - wide).abs())
                    scale = torch.fmax(scale, torch.nan_to_num(terms, posinf=0.0))
        return scale


def _unhalved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor


def _rounded_interval(interval: Interval, dtype: torch.dtype) -> Interval:
    return replace(
        interval,
        low=interval.low.to(dtype).to(torch.float64),
        high=interval.high.to(dtype).to(torch.float64),
    )


def _rounded(one: OutputBudget, dtype: torch.dtype) -> OutputBudget:
    """An output's budget in the dtype that the kernel writes."""
    if not dtype.is_floating_point:
        return one
    ways = tuple(_rounded_interval(way, dtype) for way in one.ways)
    return replace(one, eager=one.eager.to(dtype), ways=ways)
