"""Names what a CPU kernel computes: a hash of its text and of all CPU maths that it reaches.

Read from the source files' syntax trees, so that comments and docstrings do not count, and a
change to ``exp`` concerns only the kernels that come to call it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = "fusion_advisor.runtime"
_SINGLE, _DOUBLE, _STUBS = "float32_math", "float64_math", "cpu_math"


def digest(text: str, *, single: bool) -> str:
    """A hash of a kernel's text and the maths it calls; ``single``: computed in float32."""
    parts = {"": text}
    waiting = [_start(name, single) for name in re.findall(r"cpu_math\.(\w+)", text)]
    while waiting:
        module, name = waiting.pop()
        key = f"{module}.{name}"
        node = _definitions(module).get(name) if module else None
        if key in parts:
            continue
        parts[key] = name if node is None else ast.dump(node)  # without one: the C library's
        if node is not None:
            waiting += _references(module, node)
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]


def _start(name: str, single: bool) -> tuple[str, str]:
    """Where ``cpu_math.name`` is implemented for a dtype."""
    home = _SINGLE if single else _DOUBLE
    if name in _definitions(home):
        return home, name
    # Operations of one instruction: what the table in cpu_math gives them.
    return (_STUBS, f"_{name}") if f"_{name}" in _definitions(_STUBS) else ("", name)


@functools.cache
def _tree(module: str) -> ast.Module:
    found = importlib.import_module(f"{_PACKAGE}.{module}").__file__
    return ast.parse(Path(str(found)).read_text(encoding="utf-8"))


@functools.cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Top-level functions and assignments by name, docstrings removed."""
    found: dict[str, ast.stmt] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            names = (n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name))
            found |= dict.fromkeys(names, node)
    return found


@functools.cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Imported names: (module of the runtime, name in it or "" for the module itself)."""
    found = {}
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            home = (node.module or "").removeprefix(_PACKAGE).lstrip(".")
            for alias in node.names:
                place = (home, alias.name) if home else (alias.name, "")
                found[alias.asname or alias.name] = place
    return found


def _references(module: str, node: ast.stmt) -> Iterator[tuple[str, str]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            home, name = _imports(module).get(part.value.id, ("", "?"))
            if home and not name:
                yield home, part.attr
        elif isinstance(part, ast.Name):
            if part.id in _definitions(module):
                yield module, part.id
            elif _imports(module).get(part.id, ("", ""))[1]:
                yield _imports(module)[part.id]
