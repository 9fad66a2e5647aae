"""Runs recorded ops one by one, as recorded or in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from fusion_advisor.errors import ValidationError
from fusion_advisor.ops import functional_name, out_keyword, written_argument
from fusion_advisor.ops.activations import SECOND_HALF
from fusion_advisor.ops.views import size_free
from fusion_advisor.records import Argument, FusionCandidate, OpGraph, OpNode, Symbol, ValueRef


def resolve(op: str) -> Any:
    """The torch function of an overload name; in-place ops give their functional twin."""
    name = functional_name(op)
    parts = name.split(".")
    if len(parts) == 2:
        parts.append("default")
    target: Any = torch.ops
    try:
        for part in parts:
            target = getattr(target, part)
    except AttributeError as error:
        raise ValidationError(f"this torch has no op {name!r}") from error
    return target


def call(node: OpNode, values: Mapping[str, torch.Tensor], *, wide: bool = False) -> Any:
    """Run one recorded op; ``wide`` computes floating-point dtypes asked for in float64.

    One that writes in place gives what it would have written: a result of its target's dtype.
    """
    function = resolve(node.op)
    arguments = [_argument(argument, values, wide) for argument in node.args]
    keywords = {name: _argument(argument, values, wide) for name, argument in node.kwargs}
    keywords.pop(out_keyword(node.op), None)
    if SECOND_HALF in keywords:  # an unrolled glu: torch takes its halves as one tensor
        halves = torch.stack((arguments[0], keywords.pop(SECOND_HALF)))
        return function(halves, 0)[0]
    result = function(*arguments, **keywords)
    written = written_argument(node)
    return result if written is None else result.to(_argument(written, values, wide).dtype)


# These make a tensor of the operands' dtype of a number; other ops compute with it in float32.
_NUMBER_AS_TENSOR = ("aten.pow.", "aten.xlogy.", "aten.special_xlog1py.")


def with_rounded_numbers(node: OpNode, dtype: torch.dtype) -> OpNode:
    """The node with its numbers as eager takes them on tensors of a float dtype: rounded.

    In float64 an op takes them as they are: for ``x ** 1.7`` that is another function than the one
    float32 computes.
    """
    if dtype == torch.float64:
        return node
    kept = dtype if node.op.startswith(_NUMBER_AS_TENSOR) else torch.float32

    def rounded(argument: Argument) -> Argument:
        if isinstance(argument, float):
            return float(torch.tensor(argument, dtype=kept))
        return tuple(map(rounded, argument)) if isinstance(argument, tuple) else argument

    args = tuple(map(rounded, node.args))
    return replace(node, args=args, kwargs=tuple((name, rounded(a)) for name, a in node.kwargs))


def _argument(argument: Argument, values: Mapping[str, torch.Tensor], wide: bool) -> Any:
    if isinstance(argument, ValueRef):
        return values[argument.value]
    if isinstance(argument, tuple):
        return [_argument(item, values, wide) for item in argument]
    if isinstance(argument, Symbol):
        return _symbol(argument, wide)
    return argument


def _symbol(symbol: Symbol, wide: bool) -> Any:
    if symbol.kind == "dtype":
        dtype = getattr(torch, symbol.name.removeprefix("torch."))
        return torch.float64 if wide and dtype.is_floating_point else dtype
    if symbol.kind == "device":
        return torch.device(symbol.name)
    if symbol.kind == "layout":
        return getattr(torch, symbol.name.removeprefix("torch."))
    if symbol.kind == "memory_format":
        return getattr(torch, symbol.name.removeprefix("torch."))
    raise ValidationError(f"the recorded argument {symbol.name!r} cannot be passed again")


def needed_nodes(graph: OpGraph, candidate: FusionCandidate) -> tuple[OpNode, ...]:
    """The nodes that lead from the candidate's inputs to its outputs, in recorded order.

    Views between the candidate's own nodes are part of them, for all sizes.
    """
    shapes = {spec.id: spec.shape for spec in graph.values}
    producer = {value: node for node in graph.nodes for value in node.outputs}
    stop = {operand.value for operand in candidate.inputs}
    found: dict[str, OpNode] = {}
    waiting = list(candidate.outputs)
    while waiting:
        value = waiting.pop()
        if value in stop:
            continue
        node = producer.get(value)
        if node is None:
            raise ValidationError(
                f"candidate {candidate.id} reads {value}, which is neither an input nor computed"
            )
        if node.id not in found:
            found[node.id] = node
            waiting.extend(node.inputs)
    nodes = sorted(found.values(), key=lambda node: node.index)
    views = {*candidate.views, *candidate.shared}
    return tuple(
        size_free(node, shapes[node.inputs[0]], shapes[node.outputs[0]])
        if node.id in views
        else node
        for node in nodes
    )


def bind_outputs(node: OpNode, result: Any) -> dict[str, torch.Tensor]:
    """The values a node produced, by id."""
    results: Sequence[Any] = result if isinstance(result, (tuple, list)) else (result,)
    tensors = [item for item in results if isinstance(item, torch.Tensor)]
    return dict(zip(node.outputs, tensors, strict=False))


def run(
    nodes: Sequence[OpNode], inputs: Mapping[str, torch.Tensor], *, wide: bool = False
) -> dict[str, torch.Tensor]:
    """All values of ``nodes`` for ``inputs``, without gradients."""
    values = dict(inputs)
    with torch.no_grad():
        for node in nodes:
            values.update(bind_outputs(node, call(node, values, wide=wide)))
    return values
