"""From a code object and an instruction to the expression a person wrote.

Notebook cells are announced by ``register_cell``; everything else is read through
``linecache``.  Standard library only: loading the magics must not import torch.
"""

from __future__ import annotations

import io
import itertools
import linecache
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from fusion_advisor.records import SourceSpan

_MAX_TEXT = 2_000  # characters of an expression that a report shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One executed cell.  ``first_line`` is the cell's line that the code's line 1 stands on."""

    filename: str
    cell_id: str | None
    execution_count: int | None
    lines: tuple[str, ...]
    first_line: int = 1


_cells: dict[str, Cell] = {}


def lines_of(text: str) -> tuple[str, ...]:
    """A text's lines with their ends as Python counts them, at LF, CR and CR LF alone.

    ``str.splitlines`` also ends a line at a form feed or at U+2028, which strings may hold.
    """
    return tuple(io.StringIO(text, newline=""))


def register_cell(
    filename: str,
    *,
    cell_id: str | None,
    execution_count: int | None,
    raw: str,
    first_line: int = 1,
) -> None:
    """Announce the cell behind a code file name; the latest execution of equal text wins.

    ``raw`` is the cell's own text.  ``first_line`` is the line of ``raw`` on which the
    compiled code's first line stands (2 below a ``%%magic`` line).
    """
    _cells[filename] = Cell(
        filename=filename,
        cell_id=cell_id,
        execution_count=execution_count,
        lines=lines_of(raw),
        first_line=first_line,
    )


def find_cell(filename: str) -> Cell | None:
    """The registered cell behind a code file name."""
    return _cells.get(filename)


def forget_cells() -> None:
    """Empty the registry (when the extension is unloaded)."""
    _cells.clear()


def is_cell(filename: str) -> bool:
    """True for the file names that IPython gives to cells."""
    if filename in _cells:
        return True
    folder, _, name = filename.replace("\\", "/").rpartition("/")
    return name.startswith("<ipython-input-") or folder.rpartition("/")[2].startswith("ipykernel_")


@lru_cache(maxsize=1)
def _installed_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(
        os.path.realpath(paths[name]) + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if name in paths
    )


@lru_cache(maxsize=4096)
def is_installed(filename: str) -> bool:
    """True for the standard library and installed packages: files that are never edited."""
    if filename.startswith("<") or is_cell(filename):
        return False
    if f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename:
        return True
    return os.path.realpath(filename).startswith(_installed_folders())


def span_of(code: CodeType, offset: int) -> SourceSpan | None:
    """The AST node that the instruction at ``offset`` (bytes) belongs to.

    None where the code carries no positions (``python -X no_debug_ranges`` leaves lines).
    """
    if offset < 0:
        return None
    position = next(itertools.islice(code.co_positions(), offset // 2, None), None)
    if position is None:
        return None
    line, end_line, column, end_column = position
    if line is None:
        return None
    end_line = line if end_line is None else end_line
    filename = code.co_filename
    cell = _cells.get(filename)
    shift = 0 if cell is None else cell.first_line - 1
    line, end_line = line + shift, end_line + shift
    lines: Sequence[str] = cell.lines if cell is not None else linecache.getlines(filename)
    if column is None or end_column is None:
        column, end_column = _whole_lines(lines, line, end_line)
    return SourceSpan(
        kind="cell" if is_cell(filename) else "file",
        file=filename,
        line=line,
        end_line=end_line,
        column=column,
        end_column=end_column,
        function="" if code.co_name == "<module>" else code.co_qualname,
        text=_segment(lines, line, end_line, column, end_column),
        cell_id=None if cell is None else cell.cell_id,
        execution_count=None if cell is None else cell.execution_count,
        installed=is_installed(filename),
        utf16_column=_utf16(lines, line, column),
        utf16_end_column=_utf16(lines, end_line, end_column),
    )


def _utf16(lines: Sequence[str], line: int, column: int) -> int | None:
    """A UTF-8 byte offset in a line as a count of UTF-16 units; None where it is no place in it."""
    if not 0 < line <= len(lines):
        return None
    text = lines[line - 1]
    if text.isascii():
        return column if column <= len(text) else None
    data = text.encode(errors="replace")
    try:
        before = data[:column].decode()
    except UnicodeDecodeError:  # the text has changed since it ran
        return None
    return len(before.encode("utf-16-le")) // 2 if column <= len(data) else None


def _whole_lines(lines: Sequence[str], line: int, end_line: int) -> tuple[int, int]:
    if not 0 < line <= end_line <= len(lines):
        return 0, 0
    first, last = lines[line - 1], lines[end_line - 1].rstrip("\r\n")
    return len(first) - len(first.lstrip()), len(last.encode())


def _segment(lines: Sequence[str], line: int, end_line: int, column: int, end_column: int) -> str:
    """The text between two positions; columns are UTF-8 byte offsets."""
    if not 0 < line <= end_line <= len(lines):
        return ""
    if line == end_line:
        text = lines[line - 1].encode()[column:end_column].decode(errors="replace")
    else:
        first = lines[line - 1].encode()[column:].decode(errors="replace")
        last = lines[end_line - 1].encode()[:end_column].decode(errors="replace")
        text = "".join((first, *lines[line : end_line - 1], last))
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
