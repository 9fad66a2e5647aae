"""Reading and writing report files: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from fusion_advisor.errors import ReportError
from fusion_advisor.records import Report

Format = Literal["html", "json", "text"]
_SUFFIXES: dict[str, Format] = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".txt": "text",
    ".text": "text",
}


def render(report: Report, format: Format) -> str:
    """The report as ``html``, ``json`` or ``text``."""
    if format == "html":
        from fusion_advisor.report.html import render_html

        return render_html(report)
    if format == "json":
        from fusion_advisor.report.json import render_json

        return render_json(report)
    if format == "text":
        from fusion_advisor.report.text import render_text

        return render_text(report, top=0, all=True) + "\n"
    raise ReportError(f"unknown report format {format!r}: choose html, json or text")


def format_of(path: str | Path) -> Format:
    """The format a file name asks for; ``ReportError`` names those there are."""
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise ReportError(
            f"cannot tell the report format from {str(path)!r}: end the name in .html, .json or "
            f".txt"
        )
    return _SUFFIXES[suffix]


def export_report(report: Report, path: str | Path, *, format: Format | None = None) -> Path:
    """Write the report to ``path``; without ``format`` the suffix chooses it.

    The file is complete or untouched: the text is rendered first, written beside the
    target and moved over it.  Raises ``ReportError``.
    """
    target = Path(path).expanduser()
    return write_atomic(target, render(report, format or format_of(target)))


def write_atomic(path: str | Path, text: str) -> Path:
    """Write UTF-8 ``text`` to ``path`` in one step; ``ReportError`` leaves what was there alone."""
    target = Path(path).expanduser()
    if target.is_symlink():
        target = target.resolve()  # replace what the link points to, not the link
    if target.is_dir():
        raise ReportError(f"cannot write {target}: it is a folder; give a file name in it")
    if target.exists() and not os.access(target, os.W_OK):
        raise ReportError(f"cannot write {target}: it is read-only; choose another path")
    data = text.encode("utf-8", errors="backslashreplace")
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        _remove(temporary)
        reason = error.strerror or str(error)
        raise ReportError(f"cannot write {target}: {reason}; choose another path") from error
    except BaseException:  # an interrupt: leave no half file behind
        _remove(temporary)
        raise
    return target


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _remove(temporary: str) -> None:
    if temporary and os.path.exists(temporary):
        os.unlink(temporary)


def read_text(path: str | Path) -> str:
    """The text of a report file; ``ReportError`` says why it cannot be read."""
    source = Path(path).expanduser()
    try:
        return source.read_text(encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot read {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ReportError(
            f"{source} is not a report: it is not UTF-8 text (byte {error.start})"
        ) from error
