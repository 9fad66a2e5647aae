"""Text with edits: offsets, line ends, hashes, diffs.  Pure text, no parsing.

Python ends lines at LF, CR LF and CR alone and counts columns in UTF-8 bytes; edits are in
characters.  Everything outside an edit is kept byte for byte.
"""

from __future__ import annotations

import bisect
import difflib
import hashlib
import re
from collections.abc import Iterable, Sequence

from fusion_advisor.errors import FixError
from fusion_advisor.records import Fix, TextEdit

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")


def text_hash(text: str) -> str:
    """SHA-256 of the text in UTF-8, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def split_lines(text: str) -> list[str]:
    """The lines with their ends, as the Python tokenizer counts them (not ``str.splitlines``)."""
    lines = [match.group() for match in _LINE.finditer(text)]
    while lines and lines[-1] == "":
        lines.pop()
    return lines


def newline_of(text: str) -> str:
    """The line end this text uses most, LF where it has none."""
    windows = text.count("\r\n")
    return "\r\n" if windows * 2 > text.count("\n") else "\n"


class Offsets:
    """Converts (line from 1, UTF-8 byte column) to character offsets and back."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = split_lines(text)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Character offset of a position; ``FixError`` where the text has no such position."""
        if not 1 <= line <= max(len(self.lines), 1):
            raise FixError(f"the text has no line {line}: it is not the text that was run")
        content = self.lines[line - 1] if self.lines else ""
        if content.isascii():
            return self.starts[line - 1] + min(column, len(content))
        head = content.encode("utf-8", "surrogatepass")[:column]
        return self.starts[line - 1] + len(head.decode("utf-8", "replace"))

    def line_at(self, offset: int) -> int:
        """The line (from 1) that holds a character offset."""
        return max(1, min(bisect.bisect_right(self.starts, offset), len(self.lines)))

    def line_start(self, line: int) -> int:
        return self.starts[line - 1]

    def line_end(self, line: int) -> int:
        """Offset just after the line's end characters."""
        return self.starts[line]


def apply_edits(text: str, edits: Iterable[TextEdit]) -> str:
    """The text with all edits made; ``FixError`` where two of them overlap."""
    pieces: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        if edit.start < position or edit.end > len(text):
            raise FixError(
                "another kernel is in place at the same lines; take that one out first, then "
                "apply this one"
            )
        pieces += (text[position : edit.start], edit.new)
        position = edit.end
    pieces.append(text[position:])
    return "".join(pieces)


def edited_text(fix: Fix, text: str) -> str:
    """The text after a cell or file fix.

    Raises ``FixError`` where the fix was refused or was made for another text (which is also
    what a second application meets).
    """
    if fix.blockers:
        raise FixError("this fix was refused: " + "; ".join(b.message for b in fix.blockers))
    if not fix.edits:
        raise FixError("this fix holds no edits, so there is nothing to apply")
    if text_hash(text) != fix.old_hash:
        raise FixError(
            "the text has changed since it was profiled (or the fix is already in it): "
            "profile again to get a fix for the text as it is"
        )
    return apply_edits(text, fix.edits)


def unified_diff(old: str, new: str, name: str = "cell", context: int = 3) -> str:
    """A unified diff of two texts, as ``git diff`` shows it."""
    lines = difflib.unified_diff(
        split_lines(old), split_lines(new), f"a/{name}", f"b/{name}", n=context, lineterm="\n"
    )
    shown = []
    for line in lines:
        body = line.rstrip("\r\n")
        shown.append(body + "\n")
        if not line.endswith(("\n", "\r")):
            shown.append("\\ No newline at end of file\n")
    return "".join(shown)


def fix_diff(fix: Fix, text: str) -> str:
    """The diff of a cell, file or function fix against the text it was made for."""
    name = fix.path.replace("\\", "/").rsplit("/", 1)[-1]
    if fix.where == "cell" or not name:  # a cell's file name is a hash that nobody knows
        name = fix.cell_id or "cell"
    return unified_diff(text, edited_text(fix, text), name)


def line_map(text: str, edits: Sequence[TextEdit]) -> list[int]:
    """For each line of the edited text (from 0) the line of the old text (from 1) it stands for.

    Lines of inserted text stand for the line the edit starts on, so that tracebacks of edited
    code point into the text a person can read.
    """
    offsets = Offsets(text)
    origin: list[int] = []
    current = ""

    def take(chunk: str, offset_of: int | None, base: int) -> None:
        nonlocal current
        position = 0
        while position < len(chunk):
            match = _LINE.match(chunk, position)
            assert match is not None
            piece = match.group()
            if not current:
                origin.append(offsets.line_at(base if offset_of is None else offset_of + position))
            current += piece
            if piece.endswith(("\n", "\r")):
                current = ""
            position = match.end()

    position = 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        take(text[position : edit.start], position, position)
        take(edit.new, None, edit.start)
        position = edit.end
    take(text[position:], position, position)
    return origin
