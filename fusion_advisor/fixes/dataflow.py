"""What flows where between the statements of a chain: a walk in evaluation order.

Statements of one suite run one after the other, so names can be followed like single assignments:
each store makes a new version.  A chain's value is an *object*; an in-place op gives the object a
new value under all names that hold it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusion_advisor.fixes.callees import Callees, dtype_literal
from fusion_advisor.fixes.evidence import Evidence, Match, Operand
from fusion_advisor.fixes.purity import CONDITIONAL, Purity, children_in_order
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex

_DTYPE_CASTS = {"float": "float32", "half": "float16", "double": "float64", "bfloat16": "bfloat16"}


@dataclass(eq=False)
class TensorObject:
    """A tensor made inside the chain; ``value`` is the id of what it holds now."""

    value: str


@dataclass(frozen=True)
class Leaf:
    """An operand that comes from outside the chain, and when it is evaluated."""

    operand: Operand
    time: int
    statement: int  # position in the region
    versions: tuple[tuple[str, int], ...]  # of the names it reads
    pure: bool

    @property
    def key(self) -> str | tuple[str, int]:
        """The value id of a tensor, the op and place of a number."""
        if self.operand.value is not None:
            return self.operand.value
        return (self.operand.node, self.operand.position)


@dataclass(frozen=True)
class Use:
    """A chain's value read by something that is not part of the chain."""

    place: ast.expr
    value: str
    time: int
    statement: int
    direct: bool  # the op's own expression rather than a name


@dataclass(frozen=True)
class Cast:
    """A cast inside the chain that did nothing when recorded; ``dtype`` is its text."""

    expression: ast.expr
    value: str
    dtype: str
    literal: str | None
    statement: int


@dataclass
class Flow:
    """What the walk found, in evaluation order (times count up)."""

    leaves: list[Leaf] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    impure: list[tuple[int, ast.AST, int]] = field(default_factory=list)  # time, call, statement
    op_times: dict[ast.AST, int] = field(default_factory=dict)
    node_times: dict[str, int] = field(default_factory=dict)  # the same by node id
    stores: list[tuple[int, str]] = field(default_factory=list)  # not the chain's own
    casts: list[Cast] = field(default_factory=list)
    names: dict[str, TensorObject] = field(default_factory=dict)  # at the end of the region
    aliases: set[int] = field(default_factory=set)  # statements that only rename or cast
    feeds: dict[str, set[str]] = field(default_factory=dict)  # chain value -> values under it
    modules: list[Match] = field(default_factory=list)  # module calls among the chain's ops
    last: Match | None = None

    @property
    def end(self) -> int:
        """When the last op of the chain ran."""
        return max(self.op_times.values())


class Walker:
    """Walks the statements of a region once."""

    def __init__(
        self,
        index: SourceIndex,
        callees: Callees,
        evidence: Evidence,
        matches: Mapping[ast.AST, Match],
    ) -> None:
        self.index = index
        self.callees = callees
        self.purity = Purity(index, callees, evidence)
        self.evidence = evidence
        self.matches = matches
        self.produced = {value for match in matches.values() for value in match.own}
        self.flow = Flow()
        self._objects: dict[ast.AST, TensorObject] = {}
        self._versions: dict[str, int] = {}
        self._time = 0
        self._statement = 0
        self._final = 0

    def walk(self, statements: Sequence[ast.stmt]) -> Flow:
        """The flow through a region; the last statement holds the chain's last op."""
        self._final = len(statements) - 1
        for number, statement in enumerate(statements):
            self._statement = number
            if any(one in self.matches for one in ast.walk(statement)):
                self._chain_statement(statement)
            else:
                self._foreign(statement)
        return self.flow

    # -- statements ----------------------------------------------------------------------------

    def _chain_statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.AugAssign) and statement in self.matches:
            found = self._op(statement)
            self._bind(statement.target, found)
            return
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            # A cast around the chain's end stays in the text, outside the call.
            outer = self._statement == self._final and statement.value not in self.matches
            made = None if outer else self._resolve(statement.value)
            if made is not None and all(isinstance(one, ast.Name) for one in targets):
                for target in targets:
                    self._bind(target, made)
                return
            if made is not None:
                self._use(statement.value, made, True)
            else:
                self._visit(statement.value)
            for target in targets:
                self._target(target)
            return
        if isinstance(statement, ast.Expr):
            made = self._resolve(statement.value) if statement.value in self.matches else None
            if made is None:
                self._visit(statement.value)
            elif not (statement.value in self.matches and self.matches[statement.value].in_place):
                self._use(statement.value, made, True)
            return
        if isinstance(statement, ast.Return | ast.Raise | ast.Assert | ast.Assign | ast.AugAssign):
            for child in children_in_order(statement):
                self._visit(child)
            if isinstance(statement, ast.AugAssign):
                self._target(statement.target)
            return
        raise Refusal(
            "compound-statement",
            f"part of the chain stands in the head of `{self.index.short(statement, 40)}`",
        )

    def _foreign(self, statement: ast.stmt) -> None:
        """A statement between the chain's: it must not touch anything the chain touches."""
        alias = self._alias(statement)
        if alias:
            return
        plain = isinstance(statement, ast.Pass | ast.Assign | ast.AnnAssign | ast.Assert | ast.Expr)
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        if not plain or any(line in self.index.masked_lines for line in lines):
            raise Refusal(
                "foreign-statement",
                f"`{self.index.short(statement)}` stands between the chain's statements",
            )
        impure = next(
            (one for one in self.purity.impure(statement) if not self._may_wait(statement, one)),
            None,
        )
        if impure is not None:
            raise Refusal(
                "foreign-statement",
                f"`{self.index.short(statement)}` stands between the chain's statements and calls "
                f"`{self.index.short(impure, 40)}`, which could matter to them",
            )
        if isinstance(statement, ast.Assert):
            children: list[ast.AST] = [statement.test]
        else:
            children = children_in_order(statement)
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for child in children:
            if not any(child is target for target in targets):
                self._visit(child)
        for target in targets:
            if not isinstance(target, ast.Name):
                raise Refusal(
                    "foreign-statement",
                    f"`{self.index.short(statement)}` stands between the chain's statements and "
                    "writes to something else than a plain name",
                )
            self._target(target)

    def _may_wait(self, statement: ast.stmt, call: ast.AST) -> bool:
        """A call whose result gets a name and that was seen to run nothing but ops.

        The statement stays where it is; whether the chain's ops may pass it is asked later.
        """
        named = isinstance(statement, ast.Assign) and statement.value is call
        return named and isinstance(call, ast.Call) and bool(self.evidence.under(call))

    def _alias(self, statement: ast.stmt) -> bool:
        """``h = h.to(dtype)`` or ``g = h`` of a chain's value, where no op ran."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or isinstance(statement.value, ast.Name):
            return False
        made = self._resolve(statement.value)
        if made is None:
            return False
        self._bind(target, made)
        self.flow.aliases.add(self._statement)
        return True

    def _bind(self, target: ast.expr, made: TensorObject) -> None:
        # Not a new version: the rewritten text does not store here, an older value stays readable.
        assert isinstance(target, ast.Name)
        self._tick()
        self.flow.names[target.id] = made

    def _target(self, target: ast.expr) -> None:
        """A store of something that is not a chain's value."""
        for one in ast.walk(target):
            if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
                self.flow.names.pop(one.id, None)
                self._tick()
                self._store(one.id)
            elif isinstance(one, ast.Name):
                self._load(one)
        if not isinstance(target, ast.Name | ast.Tuple | ast.List):
            self._tick()
            self.flow.impure.append((self._time, target, self._statement))

    def _store(self, name: str) -> None:
        self._versions[name] = self._versions.get(name, 0) + 1
        self.flow.stores.append((self._time, name))

    def _tick(self) -> int:
        self._time += 1
        return self._time

    # -- expressions -----------------------------------------------------------------------------

    def _resolve(self, expression: ast.AST) -> TensorObject | None:
        """The chain's object an expression gives, evaluating it; ``None`` where it gives another.

        Nothing is evaluated where the answer is ``None``.
        """
        if expression in self.matches:
            return self._op(expression)
        if isinstance(expression, ast.Name):
            return self.flow.names.get(expression.id)
        if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.UAdd):
            if self.evidence.by_place.get(expression):
                return None
            return self._resolve(expression.operand)
        cast = self._identity_cast(expression)
        if cast is None:
            return None
        inner, dtype, literal = cast
        if not self._gives_chain_value(inner):
            return None
        made = self._resolve(inner)
        assert made is not None
        assert isinstance(expression, ast.expr)
        self.flow.casts.append(Cast(expression, made.value, dtype, literal, self._statement))
        return made

    def _gives_chain_value(self, expression: ast.AST) -> bool:
        if expression in self.matches:
            return True
        if isinstance(expression, ast.Name):
            return expression.id in self.flow.names
        cast = self._identity_cast(expression)
        return cast is not None and self._gives_chain_value(cast[0])

    def _identity_cast(self, expression: ast.AST) -> tuple[ast.expr, str, str | None] | None:
        """(what is cast, dtype text, dtype name where literal) of a cast that ran no op."""
        if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
            return None
        if self.evidence.by_place.get(expression):
            return None
        attribute, inner = expression.func.attr, expression.func.value
        arguments = [*expression.args, *(k.value for k in expression.keywords if k.arg == "dtype")]
        extra = [k for k in expression.keywords if k.arg != "dtype"]
        if attribute in _DTYPE_CASTS and not arguments and not extra:
            return inner, f"torch.{_DTYPE_CASTS[attribute]}", _DTYPE_CASTS[attribute]
        if len(arguments) != 1 or extra:
            return None
        only = arguments[0]
        if attribute == "type_as" and self._is_simple(only):
            return inner, f"{self.index.segment(only)}.dtype", None
        if attribute not in ("to", "type"):
            return None
        literal = dtype_literal(self.callees, only)
        if literal is not None:
            return inner, f"torch.{literal}", literal
        return (inner, self.index.segment(only), None) if self._is_simple(only) else None

    def _is_simple(self, expression: ast.AST) -> bool:
        """A name or a chain of attributes of one."""
        while isinstance(expression, ast.Attribute):
            expression = expression.value
        return isinstance(expression, ast.Name)

    def _op(self, place: ast.AST) -> TensorObject:
        """Evaluate a chain's op: its operands in order, then itself."""
        match = self.matches[place]
        self._no_condition_above(place)
        by_expression: dict[ast.AST, list[Operand]] = {}
        for operand in match.operands:
            by_expression.setdefault(operand.expression, []).append(operand)
        if match.module is not None:
            self._visit(match.module)
            self.flow.modules.append(match)
        inner: dict[ast.AST, TensorObject] = {}
        for part in self._parts(place, by_expression):
            if part in by_expression:
                made = self._operand(match, part, by_expression[part])
                if made is not None:
                    inner[part] = made
            elif not (match.module is part or part is getattr(place, "func", None)):
                self._visit(part)
        self.flow.op_times[place] = self._tick()
        self.flow.node_times.update((op.id, self._time) for op in match.ops)
        self.flow.last = match
        return self._result(match, inner)

    def _parts(self, place: ast.AST, operands: Mapping[ast.AST, list[Operand]]) -> list[ast.AST]:
        """Sub-expressions in order; a method's receiver stands for the method's name."""
        parts: list[ast.AST] = []
        for child in children_in_order(place):
            if isinstance(child, ast.keyword) or (
                isinstance(child, ast.Attribute) and child.value in operands
            ):
                parts.append(child.value)
            elif isinstance(child, ast.expr):
                parts.append(child)
        return parts

    def _operand(self, match: Match, part: ast.AST, operands: list[Operand]) -> TensorObject | None:
        first = operands[0]
        made = self._resolve(part)
        if made is not None:
            if first.value != made.value:
                raise Refusal(
                    "flow-mismatch",
                    f"`{self.index.short(part)}` did not give the tensor that the text says "
                    "(recorded flow and text disagree)",
                    (first.node,),
                )
            return made
        if first.value in self.produced:
            raise Refusal(
                "hidden-flow",
                f"`{self.index.short(part)}` hands a value of the chain on in a way that the text "
                "does not show",
                (first.node,),
            )
        if first.value is None and first.literal:
            return None
        self._scan_names(part)
        pure = self.purity.is_pure(part)
        time = self._tick()
        names = sorted({n.id for n in ast.walk(part) if isinstance(n, ast.Name)})
        versions = tuple((name, self._versions.get(name, 0)) for name in names)
        for operand in operands:
            self.flow.leaves.append(Leaf(operand, time, self._statement, versions, pure))
        return None

    def _result(self, match: Match, inner: Mapping[ast.AST, TensorObject]) -> TensorObject:
        place, value = match.place, match.last.outputs[0]
        under = self.flow.feeds.setdefault(value, set())
        for operand in match.operands:
            if operand.value is not None:
                under |= {operand.value} | self.flow.feeds.get(operand.value, set())
        if not match.in_place:
            made = TensorObject(value)
        else:
            target = next((o for o in match.operands if o.value in match.last.mutates), None)
            found = None if target is None else inner.get(target.expression)
            if found is None:
                raise Refusal(
                    "in-place-outside",
                    f"`{self.index.short(place)}` writes in place to a tensor that was not made "
                    "in the chain, which other code may hold",
                    tuple(op.id for op in match.ops),
                )
            found.value = value
            made = found
        self._objects[place] = made
        return made

    def _visit(self, node: ast.AST) -> None:
        """Evaluate something that is not the chain's."""
        if isinstance(node, ast.keyword):
            node = node.value
        if isinstance(node, ast.expr) and (node in self.matches or isinstance(node, ast.Name)):
            made = self._resolve(node)
            if made is not None:
                self._use(node, made, node in self.matches)
            return
        cast = self._identity_cast(node)
        if cast is None and not any(one in self.matches for one in ast.walk(node)):
            self._scan(node)
            return
        for child in children_in_order(node):
            self._visit(child)
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr) or (
            isinstance(node, ast.Call) and not self.purity.is_reading(node)
        ):
            self.flow.impure.append((self._tick(), node, self._statement))

    def _scan(self, node: ast.AST) -> None:
        """Names and side effects of an expression without ops of the chain."""
        self._scan_names(node)
        for one in self.purity.impure(node):
            self.flow.impure.append((self._tick(), one, self._statement))

    def _scan_names(self, node: ast.AST) -> None:
        for one in ast.walk(node):
            if one in self.matches:
                raise Refusal(
                    "hidden-flow",
                    f"`{self.index.short(node)}` holds a part of the chain that it passes on",
                )
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                self._load(one)
            elif isinstance(one, ast.NamedExpr):
                raise Refusal(
                    "walrus", f"`{self.index.short(node)}` assigns a name inside an expression"
                )

    def _load(self, name: ast.Name) -> None:
        made = self.flow.names.get(name.id)
        if made is not None:
            self._use(name, made, False)

    def _use(self, place: ast.expr, made: TensorObject, direct: bool) -> None:
        self.flow.uses.append(Use(place, made.value, self._tick(), self._statement, direct))

    def _no_condition_above(self, place: ast.AST) -> None:
        for ancestor in self.index.ancestors(place):
            if isinstance(ancestor, ast.stmt):
                return
            if isinstance(ancestor, CONDITIONAL) or (
                isinstance(ancestor, ast.Compare) and len(ancestor.ops) > 1
            ):
                raise Refusal(
                    "conditional",
                    f"`{self.index.short(place)}` stands inside `{self.index.short(ancestor)}`, "
                    "which does not always evaluate it, or evaluates it elsewhere",
                )
