"""Loading generated text: verified by its hash, kept as a real file, imported once.

A file makes tracebacks, ``inspect`` and debuggers show the kernel.  The directory is private to
the user, files are named by content and written atomically; what runs is always the checked text,
never what a file holds.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

from fusion_advisor.errors import ValidationError

_lock = threading.RLock()
_HAS_OWNERS = hasattr(os, "getuid")
_MODULE_PREFIX = "fusion_advisor_kernel_"


def text_hash(text: str) -> str:
    """SHA-256 of a kernel's text, as hexadecimal."""
    # Generated text is ASCII; what is handed in may hold lone surrogates, which have no UTF-8.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def load_kernel(text: str, entry: str, expected_hash: str) -> dict[str, Any]:
    """Import generated text and return its namespace; the same text is imported once.

    Raises:
        ValidationError: the text is not the one that was validated, or ``entry`` is not in it.
    """
    actual = text_hash(text)
    if actual != expected_hash:
        raise ValidationError(
            f"kernel text of {entry!r} was changed (SHA-256 {actual[:12]}…, expected "
            f"{expected_hash[:12]}…); generate and validate it again"
        )
    name = _MODULE_PREFIX + actual  # all of it: two texts never share a module
    with _lock:
        module = sys.modules.get(name)
        if module is None:
            try:
                module = _import(name, text, actual)
            except UnicodeEncodeError as error:
                raise ValidationError(f"kernel text of {entry!r} is no text: {error}") from error
    namespace = vars(module)
    function = namespace.get(entry)
    if function is None:
        raise ValidationError(f"kernel text does not define {entry!r}; generate it again")
    if getattr(function, "source", entry) is None:
        function.source = (text, entry, actual)
    return namespace


def load_function(text: str, entry: str, expected_hash: str) -> Any:
    """The fused function ``entry`` of a kernel text (this is how one is unpickled)."""
    return load_kernel(text, entry, expected_hash)[entry]


def _import(name: str, text: str, digest: str) -> types.ModuleType:
    path = _write(text, digest)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:
        # The checked text runs, not whatever the file holds by now.
        exec(compile(text, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _write(text: str, digest: str) -> Path:
    path = cache_directory() / f"{digest[:32]}.py"
    try:
        if path.read_text(encoding="utf-8") == text:
            return path
    except (OSError, UnicodeDecodeError):
        pass
    write_whole(path, text.encode("utf-8"))
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by its owner alone; readers see the old or the new."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


_fallback_directory: Path | None = None


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/fusion_advisor/kernels``, ours alone; a temporary one if that cannot be."""
    global _fallback_directory
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base) / "fusion_advisor" / "kernels"
    try:
        Path(base).mkdir(parents=True, exist_ok=True)
        if _cannot_be_swapped(Path(base)) and all(
            map(_made_private, (directory.parent, directory))
        ):
            return directory
    except OSError:
        pass
    if _fallback_directory is None or not _still_private(_fallback_directory):
        _fallback_directory = Path(tempfile.mkdtemp(prefix="fusion_advisor_"))  # mode 0700
    return _fallback_directory


def is_private(directory: Path) -> bool:
    """A writable directory (no link) of this user that nobody else can write to or read.

    One that others could use so far is closed to them; raises ``OSError`` where that fails.
    """
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or not os.access(directory, os.W_OK | os.X_OK):
        return False
    if not _HAS_OWNERS:
        return True
    if status.st_uid != os.getuid():
        return False
    if status.st_mode & 0o077:
        directory.chmod(0o700)
    return True


def _made_private(directory: Path) -> bool:
    directory.mkdir(mode=0o700, exist_ok=True)
    return is_private(directory)


def _still_private(directory: Path) -> bool:
    """Temporary folders get cleaned up, and then anybody may make one of the same name."""
    try:
        return is_private(directory)
    except OSError:
        return False


def _cannot_be_swapped(directory: Path) -> bool:
    """Whether nobody else can put another folder in the place of one in it.

    Trusted are root and the user's own group, which on many systems has no other member.
    """
    if not _HAS_OWNERS:
        return True
    status = directory.stat()
    others = stat.S_IWOTH if status.st_gid == os.getgid() else stat.S_IWOTH | stat.S_IWGRP
    if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
        return False
    return status.st_uid in (os.getuid(), 0)
