"""Report formats by name and suffix, and files that are written whole or not at all."""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fusion_advisor.errors import ReportError
from fusion_advisor.records import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """One kind of report: ``renderer`` is ``module:function``, imported when it is used."""

    name: str
    suffixes: tuple[str, ...]
    what: str
    renderer: str

    def render(self, report: Report) -> str:
        """The report in this format."""
        module, _, function = self.renderer.partition(":")
        text: str = getattr(importlib.import_module(f"{__package__}.{module}"), function)(report)
        return text


# The one table of formats: file names, --format, help, completion and the tests read it.
FORMATS: Mapping[str, ReportFormat] = MappingProxyType(
    {
        one.name: one
        for one in (
            ReportFormat(
                name="text",
                suffixes=(".txt", ".text"),
                what="plain text, everything",
                renderer="text:render_whole_text",
            ),
            ReportFormat(
                name="html",
                suffixes=(".html", ".htm"),
                what="one self-contained page",
                renderer="html:render_html",
            ),
            ReportFormat(
                name="markdown",
                suffixes=(".md", ".markdown"),
                what="for a pull request",
                renderer="markdown:render_markdown",
            ),
            ReportFormat(
                name="json",
                suffixes=(".json",),
                what="everything, read back without loss",
                renderer="json:render_json",
            ),
            ReportFormat(
                name="csv",
                suffixes=(".csv",),
                what="findings, one row each",
                renderer="csv:render_findings_csv",
            ),
            ReportFormat(
                name="ops-csv",
                suffixes=(".ops.csv",),
                what="ops, one row each",
                renderer="csv:render_ops_csv",
            ),
            ReportFormat(
                name="sarif",
                suffixes=(".sarif", ".sarif.json"),
                what="SARIF 2.1.0, for code scanning",
                renderer="sarif:render_sarif",
            ),
            ReportFormat(
                name="trace",
                suffixes=(".trace.json", ".perfetto.json"),
                what="timeline for Perfetto or chrome://tracing",
                renderer="trace:render_trace",
            ),
        )
    }
)


def suffixes_text() -> str:
    """The usual suffix of each format: ``.txt, .html, …``."""
    return ", ".join(one.suffixes[0] for one in FORMATS.values())


def render(report: Report, format: str) -> str:
    """The report in one of ``FORMATS``, by name."""
    if format not in FORMATS:
        raise ReportError(f"unknown report format {format!r}: choose one of {', '.join(FORMATS)}")
    return FORMATS[format].render(report)


def format_of(path: str | Path) -> str:
    """The format a file name asks for, by its longest known suffix; ``ReportError`` names all."""
    name = Path(path).name.lower()
    fitting = [
        (len(suffix), one.name)
        for one in FORMATS.values()
        for suffix in one.suffixes
        if name.endswith(suffix)
    ]
    if not fitting:
        raise ReportError(
            f"cannot tell the report format from {str(path)!r}: end the name in one of "
            f"{suffixes_text()}"
        )
    return max(fitting)[1]


def check_export(path: str | Path) -> None:
    """``ReportError`` if a report cannot be written there: known before a long run, not after."""
    format_of(path)
    _check_folder(_expanded(path))


def export_report(report: Report, path: str | Path, *, format: str | None = None) -> Path:
    """Write the report to ``path``; without ``format`` the suffix chooses it.

    The file is complete or untouched: the text is rendered first, written beside the
    target and moved over it.  The folder must exist: a misspelt one is an error, not a new
    folder.  Raises ``ReportError``.
    """
    target = _expanded(path)
    return write_atomic(target, render(report, format or format_of(target)))


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # the home of a user that is not known
        raise ReportError(f"cannot write {path}: {error}".rstrip(".")) from error


def _check_folder(target: Path) -> None:
    folder = target.parent
    if not os.path.isdir(folder):
        raise ReportError(
            f"cannot write {target}: there is no folder {folder}; make it, or choose another path"
        )
    if os.path.isdir(target):
        raise ReportError(f"cannot write {target}: it is a folder; give a file name in it")


def write_atomic(path: str | Path, text: str) -> Path:
    """Write UTF-8 ``text`` to ``path`` in one step; ``ReportError`` leaves what was there alone.

    A pipe or a device (``/dev/stdout``) is written to, and stays what it is.
    """
    target = _expanded(path)
    if os.path.islink(target) and not _is_special(target):
        try:
            target = target.resolve()  # replace what the link points to, not the link
        except (OSError, RuntimeError) as error:
            raise ReportError(f"cannot write {target}: the link leads to itself") from error
    _check_folder(target)
    if os.path.exists(target) and not os.access(target, os.W_OK):
        raise ReportError(f"cannot write {target}: it is read-only; choose another path")
    data = text.encode("utf-8", errors="backslashreplace")
    temporary = ""
    try:
        if _is_special(target):
            target.write_bytes(data)
            return target
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:48]}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        _remove(temporary)
        reason = getattr(error, "strerror", None) or str(error)
        raise ReportError(f"cannot write {target}: {reason}; choose another path") from error
    except BaseException:  # an interrupt: leave no half file behind
        _remove(temporary)
        raise
    return target


# Modules that were written here: those with ``apply`` and ``undo``, and a single kernel's, which
# holds nothing behind its fused function.
_MODULE_MARK = "Made by Fusion Advisor."
_KERNEL_MODULE = re.compile(r"\A# .*^\w+ = FusedFunction\(\n(?:    [^\n]*\n)*\)\s*\Z", re.S | re.M)


def check_module(path: str | Path) -> None:
    """``ReportError`` if a module cannot be written there: a person's own code is in the way."""
    target = _expanded(path)
    _check_folder(target)
    if not os.path.isfile(target):
        return
    try:
        there = target.read_text("utf-8", "replace")
    except OSError as error:
        raise ReportError(
            f"cannot write {target}: {error.strerror}; choose another path"
        ) from error
    if there.strip() and _MODULE_MARK not in there[:2000] and not _KERNEL_MODULE.match(there):
        raise ReportError(
            f"{target} is a file of yours, not a module of kernels: it is not overwritten; "
            "choose another path"
        )


def write_module(path: str | Path, text: str) -> Path:
    """Write generated Python as ``write_atomic`` does, over nothing or over such a module."""
    check_module(path)
    return write_atomic(path, text)


def _is_special(target: Path) -> bool:
    """Neither a file nor a folder: moving a file over it would take it away from everybody."""
    return os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _remove(temporary: str) -> None:
    if temporary and os.path.exists(temporary):
        os.unlink(temporary)


def read_text(path: str | Path) -> str:
    """The text of a report file; ``ReportError`` says why it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReportError(
            f"{path} is not a report: it is not UTF-8 text (byte {error.start})"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"cannot read {path}: {reason}") from error
