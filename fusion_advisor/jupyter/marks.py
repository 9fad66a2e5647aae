"""Where a finding is marked in a cell: the expression, in the units that editors count.

An editor in a browser counts UTF-16 units from the start of the cell's text; spans hold lines and
UTF-8 columns.  A chain in a file or an installed package is marked on the notebook's expression
that reached it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.text_edits import Offsets
from fusion_advisor.recorder.source import find_cell
from fusion_advisor.records import Finding, OpNode, SourceSpan

MAGIC = "%%fuse_profile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An expression of a cell: UTF-16 offsets into the text that the person sees."""

    cell_id: str | None
    start: int
    end: int
    text: str
    source_hash: str


def text_hash(text: str) -> str:
    """SHA-256 of a text in UTF-8, as hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def utf16_length(text: str) -> int:
    """How long a text is for a browser: characters beyond the first 65,536 count twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def without_magic(raw: str) -> str:
    """A cell's text below its ``%%fuse_profile`` line, if it starts with one.

    Profiling a cell and running it are the same text to whoever asks whether it has changed.
    """
    if not raw.startswith(MAGIC):
        return raw
    return raw.partition("\n")[2]


def without_lines(raw: str, lines: int) -> str:
    """A cell's text below lines that were put above it to profile it."""
    for _ in range(lines):
        raw = raw.partition("\n")[2]
    return raw


def notebook_span(finding: Finding, nodes: dict[str, OpNode]) -> SourceSpan | None:
    """The finding's own place where it stands in a cell, else the cell's place that led to it."""
    if finding.span is not None and finding.span.kind == "cell":
        return finding.span
    for name in reversed(finding.occurrences[0].nodes if finding.occurrences else ()):
        for span in nodes[name].stack if name in nodes else ():
            if span.kind == "cell":
                return span
    return None


class CellText:
    """The text of a cell as it ran, looked at once for all findings in it.

    ``digest`` is the hash of what stays the same when the cell is profiled or just run.  The
    first ``added_lines`` lines were put above the person's text to profile it.
    """

    def __init__(self, file: str, *, added_lines: int) -> None:
        cell = find_cell(file)
        self.cell_id = None if cell is None else cell.cell_id
        self.raw = "" if cell is None else "".join(cell.lines)
        self.digest = text_hash(without_magic(self.raw))
        self._visible = without_lines(self.raw, added_lines)
        self._visible_hash = text_hash(self._visible)
        self._offsets = Offsets(self.raw)

    def mark(self, span: SourceSpan) -> Mark | None:
        """The mark of a place; ``None`` where it does not fit, or no message can hold its text."""
        above = len(self.raw) - len(self._visible)
        try:
            start = self._offsets.at(span.line, span.column) - above
            end = self._offsets.at(span.end_line, span.end_column) - above
        except FixError:
            return None
        text = self._visible[start:end] if 0 <= start < end else ""
        if not text or not _sendable(text):
            return None
        before = utf16_length(self._visible[:start])
        return Mark(
            cell_id=span.cell_id or self.cell_id,
            start=before,
            end=before + utf16_length(text),
            text=text,
            source_hash=self._visible_hash,
        )


def _sendable(text: str) -> bool:
    """Half of a surrogate pair is no text that a message can hold."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
