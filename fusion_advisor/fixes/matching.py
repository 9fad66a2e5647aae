"""Which expression computed which op, and which sub-expression gave which argument.

The recording says what every op received (values and numbers); the text says where each came
from.  An op is matched only when both agree: every tensor argument has exactly one expression,
every expression that could change has exactly one argument.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fusion_advisor.fixes.callees import Callees, is_literal, literal_number
from fusion_advisor.fixes.module_calls import is_module_call
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex
from fusion_advisor.records import Argument, FusionCandidate, OpGraph, OpNode, ValueRef

_COMMUTATIVE = frozenset(
    "mul add eq ne bitwise_and bitwise_or bitwise_xor logical_and logical_or".split()
)
_REVERSED_COMPARE = {"lt": ast.Gt, "gt": ast.Lt, "le": ast.GtE, "ge": ast.LtE}
# (op, argument position) where a recipe depends on the number itself, so that it must be literal
_SPECIALISED = frozenset({("pow", 1), ("float_power", 1), ("round", 1), ("sub", 2), ("add", 2)})
_SAFE_BUILTINS = frozenset({"builtins.abs", "builtins.pow", "builtins.round"})


@dataclass(frozen=True)
class Operand:
    """One expression that gives an op an argument: a tensor's value id or a Python number.

    ``node`` and ``position`` name the op and the place among its flattened arguments.
    """

    expression: ast.expr
    value: str | None
    number: bool | int | float | None
    node: str
    position: int
    literal: bool = False


@dataclass
class Match:
    """An expression and the op (or torch function's ops) it ran."""

    place: ast.AST
    ops: tuple[OpNode, ...]
    operands: tuple[Operand, ...] = ()
    module: ast.expr | None = None  # the module object, where the expression calls one
    own: frozenset[str] = field(default_factory=frozenset)

    @property
    def last(self) -> OpNode:
        return self.ops[-1]

    @property
    def in_place(self) -> bool:
        return bool(self.last.mutates)


def base_name(op: str) -> str:
    """``add`` for ``aten.add_.Tensor``."""
    return op.split(".")[1].rstrip("_") if "." in op else op


class Evidence:
    """All ops that one frame ran, by the expression that ran them or called what ran them."""

    def __init__(self, graph: OpGraph, index: SourceIndex, frame: int, file: str) -> None:
        self.graph = graph
        self.index = index
        self.file = file
        self.by_place: dict[ast.AST, list[OpNode]] = {}
        self.nodes = [node for node in graph.nodes if node.frame == frame]
        for node in self.nodes:
            place = None if node.span is None else index.expression_at(node.span)
            if place is not None:
                self.by_place.setdefault(place, []).append(node)
        self.depth = min((_depth(node) for node in self.nodes), default=0)
        self._under: dict[ast.AST, list[OpNode]] | None = None
        self._first: dict[int, str] | None = None

    def in_submodule(self, node: OpNode) -> bool:
        """Whether the op ran inside a module that this frame's code called."""
        return _depth(node) > self.depth

    def value_at(self, place: ast.AST, before: int) -> str | None:
        """The value an expression last gave before op number ``before``."""
        earlier = [node for node in self.by_place.get(place, ()) if node.index < before]
        return earlier[-1].outputs[0] if earlier and earlier[-1].outputs else None

    def under(self, call: ast.AST) -> list[OpNode]:
        """All ops that ran in this file's call, at any depth, in any frame."""
        if self._under is None:
            self._under = {}
            for node in self.graph.nodes:
                spans = {span for span in (node.span, *node.stack) if span is not None}
                for span in spans:
                    place = self.index.expression_at(span) if span.file == self.file else None
                    if place is not None:
                        self._under.setdefault(place, []).append(node)
        return self._under.get(call, [])

    def first_value_of(self, storage: int) -> str | None:
        """The value that was the first in a storage: a graph input or the op that made it."""
        if self._first is None:
            storages = {value.id: value.storage for value in self.graph.values}
            made = [value for node in self.graph.nodes for value in node.outputs]
            self._first = {}
            for value in (*self.graph.inputs, *made):
                self._first.setdefault(storages.get(value, -1), value)
        return self._first.get(storage)


def _depth(node: OpNode) -> int:
    return node.module_path.count(".") + bool(node.module_path)


def chain_nodes(graph: OpGraph, candidate: FusionCandidate) -> tuple[OpNode, ...]:
    """The candidate's ops in the order they ran."""
    wanted = set(candidate.nodes)
    return tuple(node for node in graph.nodes if node.id in wanted)


def match_chain(
    index: SourceIndex, callees: Callees, evidence: Evidence, nodes: Sequence[OpNode]
) -> dict[ast.AST, Match]:
    """One match per expression of the chain, in the order they ran; ``Refusal`` otherwise."""
    groups: dict[ast.AST, list[OpNode]] = {}
    for node in nodes:
        if node.span is None:
            raise Refusal("no-source", f"{node.op} has no source place", (node.id,))
        place = index.expression_at(node.span)
        if place is None:
            raise Refusal(
                "no-expression",
                f"no expression of the text stands at {node.span.line}:{node.span.column}, where "
                f"{node.op} ran: the text is not the one that was run",
                (node.id,),
            )
        groups.setdefault(place, []).append(node)
    matches = {place: _check_group(index, callees, place, ops) for place, ops in groups.items()}
    _bind_all(index, callees, evidence, matches)
    return matches


def _check_group(index: SourceIndex, callees: Callees, place: ast.AST, ops: list[OpNode]) -> Match:
    """Refuses an expression that ran several times; keeps one that is several ops by itself."""
    match = Match(place, tuple(ops), own=frozenset(v for op in ops for v in op.outputs))
    if len(ops) == 1:
        return match
    ids = tuple(op.id for op in ops)
    distinct = len({op.op for op in ops}) == len(ops)
    reflected = isinstance(place, ast.BinOp) and [base_name(op.op) for op in ops] == [
        "reciprocal",
        "mul",
    ]
    library = isinstance(place, ast.Call) and callees.is_torch_function(place.func)
    looped = any(
        isinstance(one, ast.For | ast.AsyncFor | ast.While) for one in index.ancestors(place)
    )
    if not (reflected or (library and (distinct or not looped))):
        raise Refusal(
            "repeated",
            f"`{index.short(place)}` ran {len(ops)} of the chain's ops (a loop?), so one call "
            "cannot stand in its place",
            ids,
        )
    return match


# -- binding arguments ---------------------------------------------------------------------------


def _bind_all(
    index: SourceIndex, callees: Callees, evidence: Evidence, matches: dict[ast.AST, Match]
) -> None:
    """Bind every match; where two orders are possible, what is known of other places decides."""
    chain_values = {value for match in matches.values() for value in match.own}
    known: dict[str, set[str]] = {}  # text of an expression -> values it is known to have given
    waiting = list(matches.values())
    while waiting:
        left: list[Match] = []
        for match in waiting:
            options = _options(index, callees, evidence, match)
            chosen = _choose(index, callees, evidence, matches, known, match, options)
            if chosen is None:
                left.append(match)
                continue
            match.operands = tuple(chosen)
            for operand in chosen:
                if operand.value is not None and operand.value not in chain_values:
                    known.setdefault(index.segment(operand.expression), set()).add(operand.value)
        if len(left) == len(waiting):
            match = left.pop(0)
            match.operands = tuple(_guess(index, _options(index, callees, evidence, match)))
        waiting = left


def _choose(
    index: SourceIndex,
    callees: Callees,
    evidence: Evidence,
    matches: Mapping[ast.AST, Match],
    known: Mapping[str, set[str]],
    match: Match,
    options: list[list[Operand]],
) -> list[Operand] | None:
    if len(options) == 1:
        return options[0]
    possible = []
    for option in options:
        verdicts = [_agrees(index, callees, evidence, matches, known, match, o) for o in option]
        if any(verdict is True for verdict in verdicts):
            return option
        if not any(verdict is False for verdict in verdicts):
            possible.append(option)
    return possible[0] if len(possible) == 1 else None


def _guess(index: SourceIndex, options: list[list[Operand]]) -> list[Operand]:
    """Which side of ``a + b`` is the tensor, where nothing says it.

    Only commutative operators come here.  A wrong guess costs speed, never correctness: the fused
    function is given a number for a tensor, runs the eager chain and counts that.
    """
    for option in options:
        number = next(one for one in option if one.value is None)
        tensor = next(one for one in option if one.value is not None)
        default = _default_value(index, number.expression)
        if default is not None and default == number.number:
            return option
        if isinstance(number.expression, ast.Attribute) and isinstance(tensor.expression, ast.Name):
            return option
    return options[0]


def _default_value(index: SourceIndex, expression: ast.AST) -> object:
    """The literal default of a parameter, ``None`` where it has none."""
    scope = index.scope(expression)
    if not isinstance(expression, ast.Name) or isinstance(scope, ast.Module | ast.ClassDef):
        return None
    arguments = scope.args
    named = [*arguments.posonlyargs, *arguments.args]
    paired: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(reversed(named), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, default in paired:
        if argument.arg == expression.id and isinstance(default, ast.Constant):
            return default.value
    return None


def _agrees(
    index: SourceIndex,
    callees: Callees,
    evidence: Evidence,
    matches: Mapping[ast.AST, Match],
    known: Mapping[str, set[str]],
    match: Match,
    operand: Operand,
) -> bool | None:
    """Whether the text says that this expression is this argument; ``None`` where it is silent."""
    expression = operand.expression
    constant = literal_number(callees, expression)
    if constant is not None:
        return operand.value is None
    before = match.ops[0].index
    value = evidence.value_at(expression, before)
    if value is None and isinstance(expression, ast.Name):
        value = _assigned_value(index, evidence, expression, before)
    if value is not None:
        return operand.value == value if operand.value is not None else False
    if operand.value is not None and operand.value in known.get(index.segment(expression), ()):
        return True
    if operand.value is None and index.segment(expression) in known:
        return None
    annotation = _annotation(index, expression)
    if annotation in ("float", "int", "bool"):
        return operand.value is None
    if annotation in ("Tensor", "torch.Tensor"):
        return operand.value is not None
    return None


def _assigned_value(
    index: SourceIndex, evidence: Evidence, name: ast.Name, before: int
) -> str | None:
    """The value of the nearest plain assignment to a name before its use, if an op gave it."""
    statement: ast.stmt = index.statement(name)
    suite = index.suite(statement)
    for earlier in reversed(suite[: next(n for n, s in enumerate(suite) if s is statement)]):
        stores = {
            one.id
            for one in ast.walk(earlier)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        if name.id not in stores:
            continue
        if isinstance(earlier, ast.AugAssign):
            return evidence.value_at(earlier, before)
        if isinstance(earlier, ast.Assign | ast.AnnAssign) and earlier.value is not None:
            targets = earlier.targets if isinstance(earlier, ast.Assign) else [earlier.target]
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                return evidence.value_at(earlier.value, before)
        return None
    return None


def _annotation(index: SourceIndex, expression: ast.AST) -> str:
    """The annotation of a parameter, as text."""
    if not isinstance(expression, ast.Name):
        return ""
    scope = index.scope(expression)
    if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for one in ast.walk(scope.args):
            if isinstance(one, ast.arg) and one.arg == expression.id and one.annotation:
                return ast.unparse(one.annotation)
    return ""


def _options(
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


def flattened(arguments: Iterable[Argument]) -> list[Argument]:
    """Arguments with nested lists taken apart, in order."""
    flat: list[Argument] = []
    for argument in arguments:
        if isinstance(argument, tuple):
            flat += flattened(argument)
        else:
            flat.append(argument)
    return flat


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
    if len(match.ops) > 1:
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
    op = match.last
    flat = flattened(op.args)
    operands: list[Operand] = []
    for position, expression in enumerate(positional):
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
    tensors = [n for n, argument in enumerate(flat) if isinstance(argument, ValueRef)]
    if bound != tensors or any(isinstance(value, ValueRef) for _, value in op.kwargs):
        raise _refuse(index, match, "argument", f"does not show every tensor that {op.op} received")
    return operands


def schema_names(op: str) -> list[str]:
    """The argument names of an aten op, from torch's own schema."""
    import torch

    parts = op.split(".")
    try:
        overload = getattr(getattr(torch.ops.aten, parts[1]), parts[2] if parts[2:] else "default")
    except (AttributeError, IndexError):
        return []
    return [argument.name for argument in overload._schema.arguments]


def check_numbers(index: SourceIndex, matches: Iterable[Match]) -> None:
    """Numbers that recipes depend on must be literals."""
    for match in matches:
        bases = {op.id: base_name(op.op) for op in match.ops}
        for operand in match.operands:
            if operand.value is not None or operand.literal:
                continue
            if (bases[operand.node], operand.position) in _SPECIALISED:
                raise Refusal(
                    "number-not-literal",
                    f"`{index.short(operand.expression)}` decides which formula "
                    f"{match.last.op} uses, so it must be a literal",
                    (operand.node,),
                )


def run_time_numbers(matches: Iterable[Match]) -> frozenset[tuple[str, int]]:
    """(node id, position) of every number that the text computes rather than spells out."""
    return frozenset(
        (operand.node, operand.position)
        for match in matches
        for operand in match.operands
        if operand.value is None and not operand.literal
    )
