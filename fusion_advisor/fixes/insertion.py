"""Where the kernel's text goes, and that its names disturb nobody's."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping

from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex, names_loaded
from fusion_advisor.fixes.text_edits import newline_of
from fusion_advisor.records import KernelSource, TextEdit

_GAP = "\n\n\n"  # two blank lines between the kernel and what follows


def kernel_insertion(
    index: SourceIndex,
    kernel: KernelSource,
    statement: ast.stmt,
    where: str,
    imports: tuple[str, ...],
) -> TextEdit:
    """The kernel's text at the top of a cell, or before the definition it serves in a file."""
    tree = ast.parse(kernel.text)
    if any(isinstance(one, ast.ImportFrom) and one.module == "__future__" for one in tree.body):
        raise Refusal("kernel-text", "the kernel's text has a `from __future__` import")
    position = _file_position(index, statement) if where == "file" else _cell_position(index)
    newline = newline_of(index.text)
    lines = [*imports, kernel.text.strip("\r\n")]
    text = "\n".join(lines) + _GAP
    head = index.text[:position]
    if head and not head.endswith(("\n", "\r")):
        text = "\n" + text
    elif where == "file" and head.strip():
        tail = head[len(head.rstrip()) :]
        blank = len(re.findall(r"\r\n|\r|\n", tail)) - 1
        text = "\n" * max(0, 2 - blank) + text
    text = re.sub(r"\r\n|\r|\n", newline, text)
    return TextEdit(start=position, end=position, new=text)


def _cell_position(index: SourceIndex) -> int:
    """After a cell magic, leading magics, a docstring and ``from __future__`` imports."""
    offsets, line = index.offsets, 0
    while line < len(offsets.lines) and (line + 1) in index.masked_lines:
        line += 1
    position = offsets.line_start(line + 1) if offsets.lines else 0
    body = index.tree.body
    number = 0
    while number < len(body) and body[number].lineno <= line:
        number += 1
    future = [one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    if future:
        return offsets.line_end(future[-1].end_lineno or future[-1].lineno)
    first = body[number] if number < len(body) else None
    docstring = (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
    if docstring and len(body) > number + 1:
        end = body[number].end_lineno or body[number].lineno
        if body[number + 1].lineno > end:
            return offsets.line_end(end)
    return position


def _file_position(index: SourceIndex, statement: ast.stmt) -> int:
    """Before the outermost statement that holds the chain, its decorators and its comments."""
    outermost: ast.AST = statement
    for ancestor in index.ancestors(statement):
        if isinstance(ancestor, ast.stmt):
            outermost = ancestor
    assert isinstance(outermost, ast.stmt)
    decorators = getattr(outermost, "decorator_list", [])
    line = min([outermost.lineno, *(one.lineno for one in decorators)])
    while line > 1 and re.match(r"#(?!!|.*coding[:=])", index.offsets.lines[line - 2]):
        line -= 1
    return index.offsets.line_start(line)


def check_names(
    index: SourceIndex, kernel: KernelSource, namespace: Mapping[str, object] | None
) -> None:
    """Refuses where a name of the kernel's text already means something else."""
    imports, defined = _bindings(ast.parse(kernel.text))
    own_imports, own_defined = _bindings(index.tree)
    if kernel.entry in own_defined | set(own_imports):
        raise Refusal("name-clash", f"the text already defines `{kernel.entry}`: is it applied?")
    loaded = names_loaded(index.tree)
    for name in sorted(set(imports) | defined):
        meaning = imports.get(name)
        if name in own_defined or (name in own_imports and own_imports[name] != meaning):
            raise Refusal("name-clash", f"`{name}` means something else in this text")
        if name in own_imports or name == "torch":
            continue
        if namespace is not None and name in namespace and meaning is not None:
            if namespace[name] is not _imported(meaning):
                raise Refusal("name-clash", f"`{name}` means something else in this session")
        elif name in loaded and (namespace is None or name not in namespace):
            raise Refusal("name-clash", f"the text reads `{name}`, which the kernel would redefine")


def bindings_of(text: str) -> tuple[dict[str, str], set[str]]:
    """Imports (name to dotted meaning) and other names that a module's text binds."""
    return _bindings(ast.parse(text))


def _bindings(tree: ast.Module) -> tuple[dict[str, str], set[str]]:
    """Imports (name to dotted meaning) and other names bound at module level."""
    imports: dict[str, str] = {}
    defined: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                imports[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        else:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                defined.add(node.id)
            waiting.extend(ast.iter_child_nodes(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            defined.update(node.names)
    return imports, defined


def _imported(dotted: str) -> object:
    """The object an import would give, if its module is loaded."""
    if dotted in sys.modules:
        return sys.modules[dotted]
    home, _, name = dotted.rpartition(".")
    return getattr(sys.modules.get(home), name, None)
