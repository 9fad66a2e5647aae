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
    return len(text) + sum(character > "\uffff" for character in text)


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


def cell_text(span: SourceSpan) -> str:
    """The raw text of the cell a span lies in, as it ran; empty where it is not known."""
    cell = find_cell(span.file)
    return "" if cell is None else "".join(cell.lines)


def _sendable(text: str) -> bool:
    """Half of a surrogate pair is no text that a message can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def mark_of(span: SourceSpan | None, *, added_lines: int) -> Mark | None:
    """The mark of a place in a cell; ``None`` where the text is not known or does not fit.

    The first ``added_lines`` lines were put above the person's text to profile it.
    """
    if span is None:
        return None
    raw = cell_text(span)
    visible = without_lines(raw, added_lines)
    offsets = Offsets(raw)
    try:
        start = offsets.at(span.line, span.column) - (len(raw) - len(visible))
        end = offsets.at(span.end_line, span.end_column) - (len(raw) - len(visible))
    except FixError:
        return None
    if not 0 <= start < end or not _sendable(visible[:end]):
        return None
    cell = find_cell(span.file)
    before = utf16_length(visible[:start])
    text = visible[start:end]
    return Mark(
        cell_id=span.cell_id or (cell.cell_id if cell is not None else None),
        start=before,
        end=before + utf16_length(text),
        text=text,
        source_hash=text_hash(visible),
    )
