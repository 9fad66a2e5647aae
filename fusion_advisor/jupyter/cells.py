"""Cells as they run: which text a code object comes from, and running a magic's body.

The body of ``%%fuse_profile`` is compiled under the name IPython gave the whole cell and at its
own lines in it, so tracebacks, findings and edits speak of the cell the person sees.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import io
import linecache
import sys
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, TracebackType
from typing import Any

from fusion_advisor.errors import UsageError
from fusion_advisor.recorder.source import lines_of, register_cell

AWAIT_MESSAGE = (
    "cells with top-level await are not profiled, and nothing was run: await in a cell of its own, "
    "then profile the call that uses the result"
)

# Blank lines that a person leaves at the end of a cell.
MOST_LINE_ENDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell's text as typed, and the file name of the code compiled from it."""

    name: str
    raw: str
    execution_count: int | None
    cell_id: str | None = None


class CellBook:
    """Every cell run so far, and the one running now."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._running: list[Cell] = []
        self._texts: dict[str, str] = {}  # SHA-256 of a cell's text → the text
        self._hints: dict[str, int] = {}  # cell id → lines the front end puts above its text
        self._added: dict[str, int] = {}  # code name → such lines, as it last ran
        self.on_run: Callable[[Cell], None] | None = None  # told of every cell before it runs

    def before(self, info: Any = None) -> None:
        """``pre_run_cell``: called with or without an argument, depending on IPython's version."""
        raw = getattr(info, "raw_cell", None)
        if raw is None:
            raw = self._last_input()
        if raw is not None:
            number = self._number(stored=getattr(info, "store_history", True))
            cell = self._cell(raw, number, getattr(info, "cell_id", None))
            self._running.append(cell)
            self.add(cell, first_line=1 + blank_lines_above(raw))
            hint = self._hints.pop(cell.cell_id or "", 0)
            # A word about a run that never came says nothing about this one.
            self._added[cell.name] = hint if raw.startswith("%%fuse_profile") else 0
            if self.on_run is not None:
                self.on_run(cell)

    def after(self, result: Any = None) -> None:
        """``post_run_cell``: the cell that ran last is over (a nested one first)."""
        if self._running:
            self._running.pop()

    @property
    def is_running(self) -> bool:
        """Whether a cell is known to be running."""
        return bool(self._running)

    def current(self) -> Cell | None:
        """The cell that is running, if it is known."""
        if self._running:
            return self._running[-1]
        raw = self._last_input()  # loaded in the middle of a cell: its event is past
        if raw is None:
            return None
        return self._cell(raw, len(self._shell.history_manager.input_hist_raw) - 1, None)

    def add(self, cell: Cell, *, first_line: int = 1) -> None:
        """Make a cell's text known to source attribution and to edits.

        ``first_line`` is the line of the text that the compiled code calls 1.
        """
        self._texts[hashlib.sha256(cell.raw.encode("utf-8", "surrogatepass")).hexdigest()] = (
            cell.raw
        )
        register_cell(
            cell.name,
            cell_id=cell.cell_id,
            execution_count=cell.execution_count,
            raw=cell.raw,
            first_line=first_line,
        )

    def expect_added_lines(self, cell_id: str, lines: int) -> None:
        """The front end is about to run a cell with so many lines of its own above the text.

        Its word may come before the cell starts or, on a thread of its own, just after.
        """
        running = self._running[-1] if self._running else None
        if running is not None and running.cell_id == cell_id:
            self._added[running.name] = lines
        else:
            self._hints[cell_id] = lines

    def added_lines(self, name: str) -> int:
        """How many lines above the text of the cell with this code name are not the person's."""
        return self._added.get(name, 0)

    def add_history(self) -> None:
        """Cells that ran before the extension was loaded: models are often defined there."""
        inputs = self._shell.history_manager.input_hist_raw
        for number, raw in enumerate(inputs):
            if number and raw:
                for cell in self._as_it_ran(raw, number):
                    self.add(cell, first_line=1 + blank_lines_above(raw))

    def _as_it_ran(self, raw: str, number: int) -> list[Cell]:
        """A cell of the history with each end it ran with: the history has lost line ends."""
        texts = [raw + "\n" * ends for ends in range(MOST_LINE_ENDS + 1)]
        cells = [self._cell(text, number, None) for text in texts]
        # IPython keeps there what it compiled.
        return [cell for cell in cells if cell.name in linecache.cache] or cells[:1]

    def text_with_hash(self, digest: str) -> str | None:
        """The text of the cell whose SHA-256 is ``digest``."""
        return self._texts.get(digest)

    def _number(self, *, stored: bool) -> int:
        """The number of the cell that is about to run.

        IPython raises ``execution_count`` before this event or after it, depending on its
        version; a cell that enters the history gets the next place there.
        """
        count = int(self._shell.execution_count)
        following = len(self._shell.history_manager.input_hist_raw)
        return following if stored and following in (count, count - 1) else count

    def _last_input(self) -> str | None:
        inputs = self._shell.history_manager.input_hist_raw
        return inputs[-1] if len(inputs) > 1 else None

    def _cell(self, raw: str, number: int | None, cell_id: str | None) -> Cell:
        name = self._shell.compile.get_code_name(raw, self._shell.transform_cell(raw), number)
        return Cell(name=name, raw=raw, execution_count=number, cell_id=cell_id)


def blank_lines_above(text: str) -> int:
    """Blank lines at the top, which IPython drops before it compiles a cell."""
    lines = text.split("\n")
    return next((number for number, line in enumerate(lines) if line.strip()), 0)


# -- the body of a magic ------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Body:
    """Compiled code of a magic's body; :meth:`run` executes it in the person's namespace."""

    name: str
    statements: CodeType | None
    expression: CodeType | None
    assigned: str  # the plain name the last statement assigns, for ``--backward``
    shows_value: bool
    globals: dict[str, Any]
    locals: Any
    error: BaseException | None = field(default=None)
    finished: bool = field(default=False)

    def run(self) -> Any:
        """Run it; the value of the last expression, or of the last plain assignment."""
        try:
            if self.statements is not None:
                exec(self.statements, self.globals, self.locals)
            value = (
                eval(self.expression, self.globals, self.locals)
                if self.expression is not None
                else None
            )
        except BaseException as error:
            self.error = error
            raise
        self.finished = True
        if self.expression is not None:
            return value
        scope = self.globals if self.locals is None else self.locals
        return scope.get(self.assigned) if self.assigned else None

    def own_traceback(self, traceback: TracebackType | None) -> TracebackType | None:
        """The part of a traceback from the person's code inwards: our own frames are no help."""
        step = traceback
        while step is not None and step.tb_frame.f_code.co_filename != self.name:
            step = step.tb_next
        return step or traceback


def compile_body(
    shell: Any, text: str, *, book: CellBook, line_of: str = "", local_ns: Any = None
) -> Body:
    """Compile the body of a cell magic, or of a line magic called ``line_of``.

    Raises ``SyntaxError`` as any cell does, and ``UsageError`` for top-level ``await``; either
    way nothing has run.
    """
    cell = book.current()
    transformed = shell.transform_cell(text)
    if line_of:
        tree, name = _parse_line(shell, text, transformed, cell, line_of)
    else:
        tree, name = _parse_cell(shell, text, transformed, cell, book)
    tree = shell.transform_ast(tree)
    _refuse_await(tree, name, shell.compile.flags)
    if not tree.body:
        raise UsageError("there is no code to profile")
    last = tree.body[-1]
    statements, expression = tree.body, None
    if isinstance(last, ast.Expr):
        statements, expression = tree.body[:-1], ast.Expression(last.value)
    compiler = shell.compile
    module = ast.Module(body=statements, type_ignores=[])
    return Body(
        name=name,
        statements=compiler(module, name, "exec") if statements else None,
        expression=compiler(expression, name, "eval") if expression is not None else None,
        assigned=_assigned_name(last),
        shows_value=expression is not None
        and shell.ast_node_interactivity != "none"
        and not ends_in_semicolon(text),
        globals=shell.user_ns,
        locals=local_ns,
    )


def _parse_cell(
    shell: Any, text: str, transformed: str, cell: Cell | None, book: CellBook
) -> tuple[ast.Module, str]:
    above = _lines_above(cell, text, transformed) if cell is not None else None
    if cell is None or above is None:
        name = _own_name(shell, transformed)
        book.add(Cell(name=name, raw=transformed, execution_count=shell.execution_count))
        return shell.compile.ast_parse(transformed, filename=name), name
    book.add(cell)  # this code's lines are the cell's own, whatever stands above the magic
    heading = [f"# {line}" for line in cell.raw.split("\n")[:above]]
    _remember_lines(cell.name, "\n".join([*heading, transformed]))
    return shell.compile.ast_parse("\n" * above + transformed, filename=cell.name), cell.name


def _lines_above(cell: Cell, text: str, transformed: str) -> int | None:
    """How many lines of the cell lie above the compiled code; ``None`` if lines do not match."""
    raw, body = cell.raw.rstrip("\n"), text.rstrip("\n")
    if not raw.endswith(body) or not body.strip():
        return None
    before = raw[: len(raw) - len(body)]
    if before and not before.endswith("\n"):
        return None
    blank = blank_lines_above(body)
    kept = body.split("\n")[blank:]
    if kept[0][:1] in " \t":  # IPython drops the indentation of an indented first line
        return None
    if len(kept) != len(transformed.rstrip("\n").split("\n")):
        return None  # a magic line continued over several lines was joined
    return before.count("\n") + blank


def _parse_line(
    shell: Any, text: str, transformed: str, cell: Cell | None, magic: str
) -> tuple[ast.Module, str]:
    places = [] if cell is None else [
        (number, len(line[: len(line.rstrip()) - len(text)].encode()))
        for number, line in enumerate(cell.raw.split("\n"))
        if f"%{magic}" in line and line.rstrip().endswith(text)
    ]  # fmt: skip
    if cell is None or len(places) != 1 or transformed.rstrip("\n") != text:
        name = _own_name(shell, transformed)
        return shell.compile.ast_parse(transformed, filename=name), name
    # Under a name of its own first: of the cell, a syntax error would show what IPython rewrote.
    shell.compile.ast_parse(transformed, filename=_own_name(shell, transformed))
    tree = shell.compile.ast_parse(transformed, filename=cell.name)
    line, column = places[0]
    line -= blank_lines_above(cell.raw)  # as the rest of the cell was compiled
    for node in ast.walk(tree):
        _shift(node, line, column)
    return tree, cell.name


def _shift(node: ast.AST, lines: int, columns: int) -> None:
    """Move a node down and, on the first line, right."""
    if not isinstance(node, (ast.expr, ast.stmt, ast.keyword, ast.arg, ast.alias)):
        return
    if node.lineno == 1:
        node.col_offset += columns
    if node.end_lineno == 1 and node.end_col_offset is not None:
        node.end_col_offset += columns
    node.lineno += lines
    if node.end_lineno is not None:
        node.end_lineno += lines


def _own_name(shell: Any, transformed: str) -> str:
    return str(shell.compile.cache(transformed, shell.execution_count))


def _remember_lines(name: str, text: str) -> None:
    entry = (len(text), None, [line.rstrip("\r\n") + "\n" for line in lines_of(text)], name)
    linecache.cache[name] = entry
    older = getattr(linecache, "_ipython_cache", None)  # IPython before 8 restores from this one
    if older is not None:
        older[name] = entry


def _refuse_await(tree: ast.Module, name: str, flags: int) -> None:
    """Raise ``UsageError`` if the code needs an event loop at its top level."""
    code = compile(tree, name, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise UsageError(AWAIT_MESSAGE)


def result_is_used() -> bool:
    """Whether the running line magic stands in an expression, as in ``y = %magic ...``.

    Told from the instruction after the call in the code that ran the magic: a value that is
    popped, or printed by the prompt, is not used.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "run_line_magic":
        frame = frame.f_back  # type: ignore[assignment]
    caller = frame.f_back if frame is not None else None
    if caller is None:
        return True
    following = [
        step for step in dis.get_instructions(caller.f_code) if step.offset > caller.f_lasti
    ]
    if not following:
        return True
    printed = following[0].opname == "CALL_INTRINSIC_1" and following[0].arg == 1
    return not (printed or following[0].opname in ("POP_TOP", "PRINT_EXPR"))


def _assigned_name(statement: ast.stmt) -> str:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        return targets[0].id
    return ""


def ends_in_semicolon(text: str) -> bool:
    """Whether the last token is ``;``: the person does not want to see the value."""
    last = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (
                tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT
            ):  # fmt: skip
                last = token.string
    except (tokenize.TokenError, SyntaxError):  # magics and shell lines do not tokenise
        return text.rstrip().endswith(";")
    return last == ";"
