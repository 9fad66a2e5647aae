"""What a called name stands for, and which numbers in a text can never change.

A name is taken for torch's (``torch``, ``F``, ``nn``) when the text imports it so, when the live
namespace says so, or, in text that does not bind it at all (another notebook cell imported it),
by its customary meaning; never when the text binds it to something else.
"""

from __future__ import annotations

import ast
import math
import sys
import types
from collections.abc import Mapping

from fusion_advisor.fixes.source_index import BUILTIN_NAMES, SCOPES, SourceIndex, names_stored

_CUSTOMARY = {
    "torch": "torch",
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "math": "math",
}
_LARGEST_EXPONENT = 1_000  # a literal power beyond this is no number anybody bakes into a kernel
_DTYPE_NAMES = frozenset(
    "float16 half bfloat16 float32 float float64 double bool uint8 int8 int16 short int32 int "
    "int64 long".split()
)


class Callees:
    """Resolves dotted names of one text."""

    def __init__(self, index: SourceIndex, namespace: Mapping[str, object] | None = None) -> None:
        self.index = index
        self.namespace = namespace
        self._imports: dict[ast.AST, dict[str, str]] = {}
        self._stored: dict[ast.AST, set[str]] = {}

    def dotted(self, expression: ast.AST) -> str | None:
        """``torch.nn.functional.gelu`` for ``F.gelu``; ``None`` where it is not known."""
        attributes: list[str] = []
        node = expression
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self._root(node)
        return ".".join([root, *reversed(attributes)]) if root is not None else None

    def is_torch_function(self, expression: ast.AST) -> bool:
        name = self.dotted(expression)
        return name is not None and name.startswith("torch.")

    def means(self, name: str, dotted: str, at: ast.AST) -> bool:
        """Whether a name that need not occur in the text would mean ``dotted`` at a place."""
        return self._lookup(name, at, customary=False) == dotted

    def _root(self, name: ast.Name) -> str | None:
        return self._lookup(name.id, name, customary=True)

    def _lookup(self, name: str, at: ast.AST, *, customary: bool) -> str | None:
        scopes = [one for one in self.index.ancestors(at) if isinstance(one, SCOPES)]
        for position, scope in enumerate(scopes):
            if isinstance(scope, ast.ClassDef) and position > 0:
                continue  # names of a class body are not seen from its methods
            imported = self._scope_imports(scope).get(name)
            if imported is not None:
                return imported
            if name in self._scope_stores(scope):
                return None
        if self.namespace is not None and name in self.namespace:
            return _live_name(self.namespace[name], name)
        if customary and name in _CUSTOMARY:
            return _CUSTOMARY[name]
        return f"builtins.{name}" if name in BUILTIN_NAMES else None

    def _scope_imports(self, scope: ast.AST) -> dict[str, str]:
        """Names this scope binds by imports alone."""
        if scope not in self._imports:
            found: dict[str, str] = {}
            for node in _own_nodes(scope):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        root = alias.name.split(".")[0]
                        found[alias.asname or root] = alias.name if alias.asname else root
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for alias in node.names:
                        found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            others = self._scope_stores(scope)
            self._imports[scope] = {key: to for key, to in found.items() if key not in others}
        return self._imports[scope]

    def _scope_stores(self, scope: ast.AST) -> set[str]:
        """Names this scope binds other than by an import."""
        if scope not in self._stored:
            found: set[str] = set()
            for node in _own_nodes(scope):
                if not isinstance(node, ast.Import | ast.ImportFrom | ast.alias):
                    found |= _bound_here(node)
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                found |= {one.arg for one in ast.walk(scope.args) if isinstance(one, ast.arg)}
            self._stored[scope] = found
        return self._stored[scope]


def _own_nodes(scope: ast.AST) -> list[ast.AST]:
    """Nodes of a scope itself; nested scopes appear as one node and are not entered."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, SCOPES):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def _bound_here(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Name | ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.Global):
        return names_stored(node) if not isinstance(node, ast.ExceptHandler) else {node.name or ""}
    return set()


def _live_name(value: object, name: str) -> str | None:
    """The dotted name of a live object, for modules, torch functions and builtins."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    for home in ("torch", "torch.nn.functional", "torch.special", "math", "builtins"):
        module = sys.modules.get(home)
        function = getattr(value, "__name__", name)
        if module is not None and getattr(module, function, None) is value:
            return f"{home}.{function}"
    return None


def literal_number(callees: Callees, node: ast.AST) -> bool | int | float | None:
    """The value of a pure constant expression of literals and ``math`` names, else ``None``."""
    try:
        return _fold(callees, node)
    except (ArithmeticError, ValueError, TypeError):
        return None


def _fold(callees: Callees, node: ast.AST) -> bool | int | float | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, bool | int | float) else None
    if isinstance(node, ast.UnaryOp):
        value = _fold(callees, node.operand)
        if value is None:
            return None
        if isinstance(node.op, ast.USub):
            return -value
        return +value if isinstance(node.op, ast.UAdd) else None
    if isinstance(node, ast.BinOp):
        left, right = _fold(callees, node.left), _fold(callees, node.right)
        return None if left is None or right is None else _arithmetic(node.op, left, right)
    if isinstance(node, ast.Attribute | ast.Name):
        name = callees.dotted(node) or ""
        home, _, attribute = name.rpartition(".")
        if home in ("math", "torch") and attribute in ("pi", "e", "tau", "inf", "nan"):
            value = getattr(math, attribute)
            assert isinstance(value, float)
            return value
        return None
    if isinstance(node, ast.Call) and not node.keywords:
        return _fold_call(callees, node)
    return None


def _fold_call(callees: Callees, node: ast.Call) -> int | float | None:
    name = callees.dotted(node.func) or ""
    if name == "builtins.float" and len(node.args) == 1:
        only = node.args[0]
        text = only.value if isinstance(only, ast.Constant) else None
        value = _fold(callees, only) if not isinstance(text, str) else text
        return None if value is None else float(value)
    home, _, function = name.rpartition(".")
    if home != "math" or function not in ("sqrt", "exp", "log", "log2", "sin", "cos", "pow"):
        return None
    values = [_fold(callees, one) for one in node.args]
    if any(value is None for value in values):
        return None
    result = getattr(math, function)(*values)
    return result if isinstance(result, int | float) else None


def _arithmetic(
    operator: ast.operator, left: int | float, right: int | float
) -> int | float | None:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div):
        return left / right
    if isinstance(operator, ast.FloorDiv):
        return left // right
    if isinstance(operator, ast.Mod):
        return left % right
    if isinstance(operator, ast.Pow) and abs(right) <= _LARGEST_EXPONENT:
        result = left**right
        return result if isinstance(result, int | float) else None
    return None


def dtype_literal(callees: Callees, node: ast.AST) -> str | None:
    """``float32`` for ``torch.float32`` or ``torch.float``; ``None`` where it is no such name."""
    name = callees.dotted(node) or ""
    home, _, attribute = name.rpartition(".")
    if home != "torch" or attribute not in _DTYPE_NAMES:
        return None
    return DTYPE_ALIASES.get(attribute, attribute)


DTYPE_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "short": "int16",
    "int": "int32",
    "long": "int64",
}


def is_literal(callees: Callees, node: ast.AST) -> bool:
    """Whether an argument can never change: a constant, a constant expression, a dtype name."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Tuple | ast.List):
        return all(is_literal(callees, one) for one in node.elts)
    return literal_number(callees, node) is not None or dtype_literal(callees, node) is not None
