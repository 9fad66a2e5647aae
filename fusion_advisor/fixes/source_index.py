"""The syntax tree of a cell or file, and which expression stands at a recorded place.

A notebook cell may hold lines that are not Python (``%magic``, ``!shell``, ``name?``).  They are
masked by a harmless name of the same length, so that every position in the tree is a position in
the person's own text; masked lines are never part of an edit.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Iterator

from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.text_edits import Offsets
from fusion_advisor.records import SourceSpan

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MASK = "_"  # an expression statement of any length: ____

_MAGIC_LINE = re.compile(r"^[ \t]*(?:[%!]|\?|[,;/](?=\w)).*$|^[^#'\"]*\?[ \t]*$")
_MAGIC_VALUE = re.compile(r"^([ \t]*[\w.,\[\] \t]+=[ \t]*)([%!].*)$")


def _mask_line(line: str, first: bool) -> str | None:
    """The line with its IPython syntax masked, or ``None`` where it has none."""
    body = line.rstrip("\r\n")
    end = line[len(body) :]
    if first and body.startswith("%%"):
        return "#" * len(body) + end
    match = _MAGIC_VALUE.match(body)
    if match is not None:
        return match.group(1) + _MASK * len(match.group(2)) + end
    if _MAGIC_LINE.match(body):
        indent = len(body) - len(body.lstrip())
        return body[:indent] + _MASK * (len(body) - indent) + end
    return None


def _parse(text: str) -> tuple[ast.Module, frozenset[int]]:
    """The tree and the numbers of masked lines (none where the text is plain Python)."""
    try:
        return ast.parse(text), frozenset()
    except (SyntaxError, ValueError) as error:
        problem = error
    # A line inside a string or a bracket is never masked unless the parser stops there: mask
    # only what is needed, one reported line after the other.
    lines = Offsets(text).lines
    masked: set[int] = set()
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        lines[first] = _mask_line(lines[first], True) or lines[first]
        masked.add(first + 1)
    # IPython magics stand where a statement starts; masking all candidates first and falling
    # back to one at a time keeps a ``%`` continuation line inside brackets untouched.
    for _ in range(len(lines) + 1):
        try:
            return ast.parse("".join(lines)), frozenset(masked)
        except (SyntaxError, ValueError) as error:
            problem = error
            number = getattr(error, "lineno", None)
            for candidate in (number, (number or 1) - 1, (number or 0) + 1):
                if not candidate or not 1 <= candidate <= len(lines) or candidate in masked:
                    continue
                hidden = _mask_line(lines[candidate - 1], False)
                if hidden is not None:
                    lines[candidate - 1] = hidden
                    masked.add(candidate)
                    break
            else:
                break
    raise Refusal("not-python", f"the text is not Python that can be edited: {problem}")


class SourceIndex:
    """A parsed text: parents, scopes, suites, and expressions by recorded position."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offsets = Offsets(text)
        self.tree, self.masked_lines = _parse(text)
        self.parent: dict[ast.AST, ast.AST] = {}
        self._by_place: dict[tuple[int, int, int, int], ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
            self._enter(node)

    def _enter(self, node: ast.AST) -> None:
        if not isinstance(node, ast.expr | ast.AugAssign):
            return
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        self._by_place[(node.lineno, end_line, node.col_offset, end_column)] = node
        # The compiler gives a method call whose attribute stands on another line than its start
        # the position of the attribute's name.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line = node.func.end_lineno or node.lineno
            column = (node.func.end_col_offset or 0) - len(node.func.attr.encode())
            if line != node.lineno:
                self._by_place.setdefault((line, end_line, column, end_column), node)

    def expression_at(self, span: SourceSpan) -> ast.AST | None:
        """The expression (or augmented assignment) at exactly this place."""
        return self._by_place.get((span.line, span.end_line, span.column, span.end_column))

    def start(self, node: ast.AST) -> int:
        return self.offsets.at(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.offsets.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """The text of a node, without surrounding parentheses."""
        return self.text[self.start(node) : self.end(node)]

    def short(self, node: ast.AST, limit: int = 60) -> str:
        """The text of a node on one line, for messages."""
        line = " ".join(self.segment(node).split())
        return line if len(line) <= limit else line[: limit - 1] + "…"

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parent:
            node = self.parent[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parent[node]
        return node

    def scope(self, node: ast.AST) -> Scope:
        """The function, lambda, class or module whose code evaluates a node."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, SCOPES):
                return ancestor
        return self.tree

    def suite(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that holds a statement."""
        owner = self.parent[statement]
        for _, field in ast.iter_fields(owner):
            if isinstance(field, list) and any(one is statement for one in field):
                return field
        raise Refusal("no-suite", f"`{self.short(statement)}` stands in no block of statements")


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> SourceIndex:
    """The index of a text; one file's chains are planned one after the other."""
    return SourceIndex(text)


def names_stored(node: ast.AST) -> set[str]:
    """All names a piece of code may bind, however it does so, nested scopes included."""
    found: set[str] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            found.add(one.id)
        elif isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(one.name)
        elif isinstance(one, ast.arg):
            found.add(one.arg)
        elif isinstance(one, ast.alias):
            found.add((one.asname or one.name).split(".")[0])
        elif isinstance(one, ast.ExceptHandler | ast.MatchStar | ast.MatchAs) and one.name:
            found.add(one.name)
        elif isinstance(one, ast.MatchMapping) and one.rest:
            found.add(one.rest)
        elif isinstance(one, ast.Global | ast.Nonlocal):
            found.update(one.names)
    return found


def names_loaded(node: ast.AST) -> set[str]:
    """All names a piece of code reads, nested scopes included."""
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }


BUILTIN_NAMES = frozenset(dir(builtins))
