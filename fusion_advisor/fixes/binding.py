"""Which sub-expression of an operator or call gave its op which argument."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fusion_advisor.fixes.callees import Callees, is_literal
from fusion_advisor.fixes.evidence import Evidence, Match, Operand, base_name, flattened
from fusion_advisor.fixes.module_calls import is_module_call
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex
from fusion_advisor.records import OpNode, ValueRef

_COMMUTATIVE = frozenset(
    "mul add eq ne bitwise_and bitwise_or bitwise_xor logical_and logical_or".split()
)
_REVERSED_COMPARE = {"lt": ast.Gt, "gt": ast.Lt, "le": ast.GtE, "ge": ast.LtE}
_SAFE_BUILTINS = frozenset({"builtins.abs", "builtins.pow", "builtins.round"})


def options_of(
    index: SourceIndex, callees: Callees, evidence: Evidence, match: Match
) -> list[list[Operand]]:
    """The possible bindings of an expression's parts to its op's arguments."""
    place = match.place
    if isinstance(place, ast.BinOp):
        return _binary(index, callees, match, place.left, place.right, None)
    if isinstance(place, ast.Compare) and len(place.ops) == 1:
        return _binary(index, callees, match, place.left, place.comparators[0], place.ops[0])
    if isinstance(place, ast.AugAssign):
        target = place.target
        if not isinstance(target, ast.Name):
            raise _refuse(index, match, "target", "writes to an attribute or an element")
        return _binary(index, callees, match, target, place.value, None)
    if isinstance(place, ast.UnaryOp) and len(match.ops) == 1:
        return [[_operand(callees, match.last, place.operand, 0)]]
    if isinstance(place, ast.Call):
        if len(match.ops) == 1 and evidence.in_submodule(match.last):
            return [_module_call(index, callees, match, place)]
        return [_call(index, callees, match, place)]
    raise _refuse(
        index, match, "expression", f"is a {type(place).__name__}, not an operator or call"
    )


def _refuse(index: SourceIndex, match: Match, code: str, what: str) -> Refusal:
    return Refusal(code, f"`{index.short(match.place)}` {what}", tuple(op.id for op in match.ops))


def schema_names(op: str) -> list[str]:
    """The argument names of an aten op, from torch's own schema."""
    import torch

    parts = op.split(".")
    try:
        overload = getattr(getattr(torch.ops.aten, parts[1]), parts[2] if parts[2:] else "default")
    except (AttributeError, IndexError):
        return []
    return [argument.name for argument in overload._schema.arguments]


def _operand(callees: Callees, op: OpNode, expression: ast.expr, position: int) -> Operand:
    argument = flattened(op.args)[position]
    literal = is_literal(callees, expression)
    if isinstance(argument, ValueRef):
        return Operand(expression, argument.value, None, op.id, position, literal)
    if isinstance(argument, bool | int | float):
        return Operand(expression, None, argument, op.id, position, literal)
    raise Refusal(
        "argument", f"argument {position} of {op.op} is neither a tensor nor a number", (op.id,)
    )


def _binary(
    index: SourceIndex,
    callees: Callees,
    match: Match,
    left: ast.expr,
    right: ast.expr,
    compare: ast.cmpop | None,
) -> list[list[Operand]]:
    """Left and right of an operator; torch swaps them where the left one is a number."""
    if len(match.ops) == 2:  # number / tensor is reciprocal, then multiplication
        first, second = match.ops
        number = _operand(callees, second, left, 1)
        if number.value is not None:
            raise _refuse(index, match, "argument", "is not a number divided by a tensor")
        return [[number, _operand(callees, first, right, 0)]]
    op, base = match.last, base_name(match.last.op)
    if len(flattened(op.args)) < 2:
        raise _refuse(index, match, "argument", f"ran {op.op}, which has not two arguments")
    direct = [_operand(callees, op, left, 0), _operand(callees, op, right, 1)]
    swapped = [_operand(callees, op, left, 1), _operand(callees, op, right, 0)]
    both_tensors = direct[0].value is not None and direct[1].value is not None
    if base == "rsub":
        return [swapped]
    if compare is not None and base in _REVERSED_COMPARE:
        return [swapped if isinstance(compare, _REVERSED_COMPARE[base]) else direct]
    if both_tensors or base not in _COMMUTATIVE or match.in_place:
        return [direct]
    return [direct, swapped]


def _module_call(
    index: SourceIndex, callees: Callees, match: Match, place: ast.Call
) -> list[Operand]:
    """``self.act(x)``: an activation module of torch, guarded at run time."""
    op = match.last
    if not is_module_call(place, op):
        raise _refuse(
            index, match, "module-call", f"calls a {op.module_class}, which other instances may not"
        )
    match.module = place.func
    return [_operand(callees, op, place.args[0], 0)]


def _is_tensor_method(call: ast.Call) -> bool:
    """Whether a call can be a tensor's method: by its name, and not of ``self``."""
    import torch

    if not isinstance(call.func, ast.Attribute) or not hasattr(torch.Tensor, call.func.attr):
        return False
    return not (isinstance(call.func.value, ast.Name) and call.func.value.id in ("self", "cls"))


def _call(index: SourceIndex, callees: Callees, match: Match, place: ast.Call) -> list[Operand]:
    """Arguments of a torch function, a tensor method or a builtin."""
    if any(isinstance(one, ast.Starred) for one in place.args) or any(
        one.arg is None for one in place.keywords
    ):
        raise _refuse(index, match, "starred", "passes its arguments by * or **")
    name = callees.dotted(place.func)
    positional: list[ast.expr] = list(place.args)
    if name is None or not (name.startswith("torch.") or name in _SAFE_BUILTINS):
        if not isinstance(place.func, ast.Attribute) or not _is_tensor_method(place):
            raise _refuse(index, match, "callee", "calls something that is not known as torch's")
        positional.insert(0, place.func.value)
    keywords = {one.arg: one.value for one in place.keywords if one.arg is not None}
    if "out" in keywords:
        raise _refuse(index, match, "out", "writes into `out=`")
    if any(op.inputs for op in match.ops[:-1]):
        return _composite(index, callees, match, positional, keywords)
    return _single(index, callees, match, positional, keywords)


def _composite(
    index: SourceIndex,
    callees: Callees,
    match: Match,
    positional: list[ast.expr],
    keywords: Mapping[str, ast.expr],
) -> list[Operand]:
    """A torch function that is several ops: exactly one tensor, everything else literal."""
    outer = [
        (op, position, argument.value)
        for op in match.ops
        for position, argument in enumerate(flattened(op.args))
        if isinstance(argument, ValueRef) and argument.value not in match.own
    ]
    changing = [e for e in [*positional, *keywords.values()] if not is_literal(callees, e)]
    if len(changing) != 1 or len({value for _, _, value in outer}) != 1:
        raise _refuse(index, match, "composite", "is several ops with more than one operand")
    return [_operand(callees, outer[0][0], changing[0], outer[0][1])]


def _single(
    index: SourceIndex,
    callees: Callees,
    match: Match,
    positional: list[ast.expr],
    keywords: Mapping[str, ast.expr],
) -> list[Operand]:
    """A torch function that is one op, besides those that make tensors of its numbers."""
    op = match.last
    flat = flattened(op.args)
    operands: list[Operand] = []
    for position, expression in enumerate(positional):
        given = flat[position] if position < len(flat) else None
        if isinstance(given, ValueRef) and given.value in match.own:
            if is_literal(callees, expression):
                continue
            raise _refuse(
                index,
                match,
                "number-not-literal",
                f"makes a tensor of `{index.short(expression)}`, which a kernel cannot take",
            )
        if position < len(flat) and isinstance(flat[position], ValueRef | bool | int | float):
            operand = _operand(callees, op, expression, position)
            if operand.value is not None or not operand.literal:
                operands.append(operand)
        elif not is_literal(callees, expression):
            raise _refuse(
                index,
                match,
                "argument",
                f"has `{index.short(expression)}`, which the op did not receive",
            )
    names = schema_names(op.op)
    for keyword, expression in keywords.items():
        if is_literal(callees, expression):
            continue
        schema = "self" if keyword == "input" else keyword
        if schema not in names or names.index(schema) >= len(flat):
            raise _refuse(
                index,
                match,
                "number-not-literal",
                f"depends on `{keyword}={index.short(expression)}`, which a kernel cannot take",
            )
        operands.append(_operand(callees, op, expression, names.index(schema)))
    bound = sorted(one.position for one in operands if one.value is not None)
    tensors = [
        n
        for n, argument in enumerate(flat)
        if isinstance(argument, ValueRef) and argument.value not in match.own
    ]
    if bound != tensors or any(isinstance(value, ValueRef) for _, value in op.kwargs):
        raise _refuse(index, match, "argument", f"does not show every tensor that {op.op} received")
    return operands
