"""Which expression computed which op, and which sub-expression gave which argument.

The recording says what every op received (values and numbers); the text says where each came
from.  An op is matched only when both agree: every tensor argument has exactly one expression,
every expression that could change has exactly one argument.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from fusion_advisor.fixes.binding import options_of
from fusion_advisor.fixes.callees import Callees, literal_number
from fusion_advisor.fixes.evidence import Evidence, Match, Operand, base_name
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex
from fusion_advisor.ops import lookup
from fusion_advisor.records import FusionCandidate, OpGraph, OpNode

# (op, argument position) where a recipe depends on the number itself, so that it must be literal
_SPECIALISED = frozenset({("pow", 1), ("float_power", 1), ("round", 1), ("sub", 2), ("add", 2)})


# Views that only name dimensions, so that a kernel holds for whatever sizes the text meets.
_TEXT_VIEWS = frozenset(
    {"aten.permute.default", "aten.transpose.int", "aten.t.default", "aten.unsqueeze.default"}
)


def chain_nodes(graph: OpGraph, candidate: FusionCandidate) -> tuple[OpNode, ...]:
    """The candidate's ops in the order they ran."""
    wanted = set(candidate.nodes)
    return tuple(node for node in graph.nodes if node.id in wanted)


def match_chain(
    index: SourceIndex, callees: Callees, evidence: Evidence, nodes: Sequence[OpNode]
) -> dict[ast.AST, Match]:
    """One match per expression of the chain, in the order they ran; ``Refusal`` otherwise."""
    views = {node.id for node in nodes if node.kind == "view" and lookup(node.op) is None}
    groups: dict[ast.AST, list[OpNode]] = {}
    for node in nodes:
        if node.id in views and node.op not in _TEXT_VIEWS:
            raise Refusal(
                "view",
                f"the chain goes through a view (`{base_name(node.op)}`) whose sizes the text may "
                "compute, so no call can be written for it",
                (node.id,),
            )
        if node.span is None:
            raise Refusal("no-source", f"{node.op} has no source place", (node.id,))
        if node.span.line in index.masked_lines:
            raise Refusal(
                "magic-line",
                "the expression stands on a magic's own line, which is never edited: put it on a "
                "line of its own under %%fuse_profile",
                (node.id,),
            )
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
    for match in matches.values():
        if match.last.id in views and any(
            operand.value is None and not operand.literal for operand in match.operands
        ):
            raise Refusal(
                "number-not-literal",
                f"`{index.short(match.place)}` decides how the kernel indexes, so its numbers must "
                "be literals",
                (match.last.id,),
            )
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
            options = options_of(index, callees, evidence, match)
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
            match.operands = tuple(_guess(index, options_of(index, callees, evidence, match)))
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
