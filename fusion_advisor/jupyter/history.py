"""The last model call a person made, for a bare ``%fuse_profile``."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A call of a module in the history.

    ``repeatable``: it stood at the top level and its arguments hold no calls, so evaluating it
    again does what was done before and nothing else.
    """

    text: str
    number: int  # In[number]
    repeatable: bool
    reason: str = ""


def model_calls(shell: Any) -> Iterator[ModelCall]:
    """Calls of ``torch.nn.Module`` objects in this session's cells, latest first."""
    inputs = shell.history_manager.input_hist_parsed
    for number in range(len(inputs) - 1, 0, -1):
        statements = _statements(shell, inputs[number])
        if number == len(inputs) - 1:
            statements = _already_run(statements)
        for statement, source in reversed(statements):
            yield from _calls_in(statement, source, number, shell.user_ns)


def repeatable_call(expression: str, namespace: dict[str, Any]) -> Callable[[], Any] | None:
    """How to evaluate an expression again, where that does nothing else than it did before.

    A call of a module whose arguments hold no calls and are plain data (tensors, numbers, text:
    a cache that grows is none), with or without a ``;`` that hides its value; ``None`` for
    everything else.
    """
    try:
        statements = ast.parse(expression.strip()).body
    except (SyntaxError, ValueError):
        return None
    if len(statements) != 1 or not isinstance(statements[0], ast.Expr):
        return None
    call = statements[0].value
    if not isinstance(call, ast.Call) or not _is_module(_resolved(call.func, namespace)):
        return None
    if _obstacle(call, call, namespace) or not _only_data(call, namespace):
        return None
    code = compile(ast.Expression(call), "<repeated call>", "eval")
    return lambda: eval(code, namespace)


def _only_data(call: ast.Call, namespace: dict[str, Any]) -> bool:
    """Whether a call leaves what it is given as it is; its arguments hold no calls."""
    from fusion_advisor.validation.whole_call import only_data

    keywords = ast.Dict(
        keys=[
            None if keyword.arg is None else ast.Constant(keyword.arg) for keyword in call.keywords
        ],
        values=[keyword.value for keyword in call.keywords],
    )
    given = ast.Tuple(elts=[ast.Tuple(elts=call.args, ctx=ast.Load()), keywords], ctx=ast.Load())
    code = compile(
        ast.fix_missing_locations(ast.Expression(given)), "<arguments of the call>", "eval"
    )
    try:
        return only_data(eval(code, namespace))
    except Exception:  # what cannot be looked at again cannot be repeated either
        return False


def _statements(shell: Any, source: str) -> list[tuple[ast.stmt, str]]:
    """Top-level statements of a cell with their source; bodies of other cell magics opened."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found: list[tuple[ast.stmt, str]] = []
    for statement in tree.body:
        body = _magic_body(statement)
        if body is None:
            found.append((statement, source))
        else:
            found.extend(_statements(shell, shell.transform_cell(body)))
    return found


def _already_run(statements: list[tuple[ast.stmt, str]]) -> list[tuple[ast.stmt, str]]:
    """Of the running cell: what stands above the bare magic."""
    for position, (statement, _) in enumerate(statements):
        if "'fuse_profile'" in ast.unparse(statement):
            return statements[:position]
    return statements


def _magic_body(statement: ast.stmt) -> str | None:
    """The code inside ``%%time``-like magics, as IPython rewrites them."""
    value = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    words = [
        arg.value
        for arg in value.args
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
    ]
    if not words:
        return None
    if value.func.attr == "run_cell_magic" and len(words) == 3:
        return words[2] if words[0] in ("time", "capture", "prun", "fuse_profile") else None
    if value.func.attr == "run_line_magic" and len(words) == 2 and words[0] == "time":
        return words[1]
    return None


def _calls_in(
    statement: ast.stmt, source: str, number: int, namespace: dict[str, Any]
) -> Iterator[ModelCall]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return  # defined there, not called there
    direct = (
        statement.value if isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)) else None
    )
    calls = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _is_module(_resolved(node.func, namespace))
    ]
    for call in sorted(calls, key=lambda node: (node is direct, node.lineno), reverse=True):
        text = ast.get_source_segment(source, call) or ast.unparse(call)
        reason = _obstacle(call, direct, namespace)
        yield ModelCall(
            text=" ".join(text.split()), number=number, repeatable=not reason, reason=reason
        )


def _obstacle(call: ast.Call, direct: ast.expr | None, namespace: dict[str, Any]) -> str:
    if call is not direct:
        return "it stands inside another statement, which may change what it does"
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    for node in (node for part in parts for node in ast.walk(part)):
        if isinstance(node, (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
            return "its arguments contain calls, which would run again"
        if isinstance(node, ast.Name) and node.id not in namespace:
            return f"{node.id} is no longer defined"
    return ""


def _resolved(function: ast.expr, namespace: dict[str, Any]) -> Any:
    """What a plain name or dotted path means now, without running properties of foreign objects."""
    if isinstance(function, ast.Name):
        return namespace.get(function.id)
    if isinstance(function, ast.Attribute):
        owner = _resolved(function.value, namespace)
        if _is_module(owner):
            return getattr(owner, "_modules", {}).get(function.attr)
        try:
            return vars(owner).get(function.attr)
        except TypeError:
            return None
    return None


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")  # no module can exist before torch was imported
    return torch is not None and isinstance(value, torch.nn.Module)
