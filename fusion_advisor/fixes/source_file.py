"""Edit a person's own source file, and put it back byte for byte."""

from __future__ import annotations

import io
import linecache
import os
import shutil
import tempfile
import tokenize
from dataclasses import dataclass
from pathlib import Path

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.interrupts import uninterrupted
from fusion_advisor.fixes.text_edits import apply_edits, edited_text, split_lines, text_hash
from fusion_advisor.records import Fix, TextEdit


@dataclass(eq=False)
class FileChange:
    """A fix that is in a file."""

    places: tuple[str, ...]
    _path: Path
    _before: bytes
    _after: bytes
    _undone: bool = False

    def undo(self) -> None:
        """Write the old bytes back; ``FixError`` where the file was edited since."""
        if self._undone:
            return
        if _read(self._path) != self._after:
            raise FixError(
                f"{self._path} was edited after the fix, so it is left as it is: take the fix out "
                "by hand or with your version control"
            )
        with uninterrupted():
            _write(self._path, self._before)
            self._undone = True


def apply_file(fix: Fix) -> FileChange:
    """Make a file fix in the file it names.

    The running code is not touched: it changes when the module is imported again.  Raises
    ``FixError`` (nothing changed) for a refused fix, a changed file, or a fix of something else.
    """
    if fix.blockers:
        raise FixError("this fix was refused: " + "; ".join(one.message for one in fix.blockers))
    if fix.where != "file" or not fix.path:
        raise FixError(f"a {fix.where} fix is not an edit of a file")
    path = Path(os.path.realpath(fix.path))
    before = _read(path)
    text, encoding = _decode(path, before)
    after = _edited(fix, text).encode(encoding)
    with uninterrupted():
        _write(path, after)
    return FileChange((str(path),), path, before, after)


def read_source(path: str | Path) -> str:
    """The exact text of a source file, its own line ends kept."""
    return _decode(Path(path), _read(Path(path)))[0]


def _edited(fix: Fix, text: str) -> str:
    """The new text, also where the fix was planned on text with universal newlines."""
    if text_hash(text) == fix.old_hash:
        return edited_text(fix, text)
    lines = split_lines(text)
    plain = [line.rstrip("\r\n") + "\n" if line.endswith(("\n", "\r")) else line for line in lines]
    missing_end = bool(plain) and not plain[-1].endswith("\n")
    if missing_end and text_hash("".join(plain)) != fix.old_hash:
        plain[-1] += "\n"  # linecache ends every file with a newline
    if text_hash("".join(plain)) != fix.old_hash:
        return edited_text(fix, text)  # raises: the file has changed
    shift: list[int] = []  # offset in the real text of each character of the plain one
    position = 0
    for line, normal in zip(lines, plain, strict=True):
        shift += [position + min(n, len(line)) for n in range(len(normal))]
        position += len(line)
    shift.append(position)
    newline = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
    edits = [
        TextEdit(start=shift[one.start], end=shift[one.end], new=one.new.replace("\n", newline))
        for one in fix.edits
    ]
    return apply_edits(text, edits)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FixError(f"{path} cannot be read: {error.strerror}") from error


def _decode(path: Path, data: bytes) -> tuple[str, str]:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding), encoding
    except (SyntaxError, UnicodeDecodeError) as error:
        raise FixError(f"{path} is not text in the encoding it declares: {error}") from error


def _write(path: Path, data: bytes) -> None:
    """Replace a file's content at once, keeping its permissions."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            shutil.copymode(path, temporary)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FixError(f"{path} cannot be written: {error.strerror}") from error
    linecache.checkcache(str(path))
