"""Evaluation order, and which expressions may be evaluated later without anybody noticing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fusion_advisor.fixes.callees import Callees
from fusion_advisor.fixes.evidence import Evidence
from fusion_advisor.fixes.source_index import COMPREHENSIONS, SourceIndex

# Tensor methods that neither write nor run the person's code, even where no op was recorded.
_READING_METHODS = frozenset(
    "to float half double bfloat16 type type_as contiguous size dim numel stride view reshape "
    "expand expand_as transpose permute unsqueeze squeeze flatten t detach is_floating_point "
    "chunk split unbind narrow element_size nelement ndimension".split()
)
_READING_BUILTINS = frozenset(
    f"builtins.{name}" for name in "len int float bool abs isinstance type getattr tuple".split()
)
CONDITIONAL = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.JoinedStr, *COMPREHENSIONS)


def children_in_order(node: ast.AST) -> list[ast.AST]:
    """Sub-expressions in the order Python evaluates them."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [one for pair in pairs for one in pair if one is not None]
    if isinstance(node, ast.Call):
        arguments: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        arguments.sort(key=lambda one: (one.lineno, one.col_offset))
        return [node.func, *arguments]
    if isinstance(node, ast.Assign):
        return [node.value, *node.targets]
    if isinstance(node, ast.AnnAssign):
        return [one for one in (node.value, node.target) if one is not None]
    if isinstance(node, ast.AugAssign):
        return [node.target, node.value]
    if isinstance(node, ast.IfExp):
        return [node.test, node.body, node.orelse]
    return [
        one
        for one in ast.iter_child_nodes(node)
        if isinstance(one, ast.expr | ast.keyword | ast.Slice)
    ]


class Purity:
    """Answers for one frame's code what may have side effects."""

    def __init__(self, index: SourceIndex, callees: Callees, evidence: Evidence) -> None:
        self.index = index
        self.callees = callees
        self.evidence = evidence

    def impure(self, node: ast.AST) -> Iterator[ast.AST]:
        """Calls (not known to be harmless), awaits, yields and assignments inside a node."""
        for one in ast.walk(node):
            if isinstance(one, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr) or (
                isinstance(one, ast.Call) and not self.is_reading(one)
            ):
                yield one

    def is_pure(self, node: ast.AST) -> bool:
        return next(self.impure(node), None) is None

    def is_reading(self, call: ast.Call) -> bool:
        """Whether a call is torch's own and wrote nothing: by its name and by the recording."""
        if any(one.arg in ("out", "inplace") for one in call.keywords):
            return False
        name = self.callees.dotted(call.func) or ""
        if name in _READING_BUILTINS or name.startswith("math."):
            return True
        ops = self.evidence.by_place.get(call, [])
        clean = not any(op.mutates or self.evidence.in_submodule(op) for op in ops)
        if name.startswith("torch."):
            return bool(ops) and clean and not name.endswith("_")
        if not isinstance(call.func, ast.Attribute):
            return False
        if not ops:
            return call.func.attr in _READING_METHODS
        return clean and not call.func.attr.endswith("_") and not self._is_object_call(call)

    def _is_object_call(self, call: ast.Call) -> bool:
        """``self.name(…)`` is a call of a module or method, never taken for a tensor's method."""
        return (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in ("self", "cls")
        )


def root_names(node: ast.AST) -> set[str]:
    """All names that occur in a piece of code."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
