"""Compiled kernels kept on disk, so that a kernel is compiled once per machine.

Numba's own cache asks for a source file and looks at its date; here code is known by its content,
so that the same kernel is found again from a worker process, a notebook cell or an exported
module.  What Numba keeps is a pickle, and a pickle runs code when it is read: one that this user's
own processes did not write must not be read.  So an entry is a file of its own, signed with a key
that only this user can read, in a folder that only this user can write to.  Whatever is wrong with
an entry, its folder or the key costs a compilation, nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import itertools
import os
import pickle
import secrets
import stat
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite
import numba

from fusion_advisor._version import __version__
from fusion_advisor.runtime.loading import cache_directory, is_private, write_whole

MOST_FILES = 600  # one per compiled kernel, 50 to 200 kB: the longest unused go first

_MAGIC = b"fusion-advisor compiled kernel 2\n"
_KEY_BYTES = _SIGNATURE_BYTES = 32
_KEY_NAME = "signing.key"

_CALLED = ("cpu_kernels.py", "intrinsics.py", "native_launch.py", "trigonometry.py")
_STABLE_MODULES = ("numba", "numpy", "math", "fusion_advisor.runtime")

try:
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
    from numba.core.serialize import dumps
except ImportError:  # a Numba that keeps these elsewhere: kernels are compiled in every process
    FunctionCache = None


def _name_apart() -> None:
    """Number the functions that this process compiles from a place of its own.

    Numba tells compiled functions apart by an address and a count from 1.  Two processes forked
    from one often agree in both; a third that loads what they kept then runs one kernel's code
    where it called the other's.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from numba.core.bytecode import FunctionIdentity

        FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))


_name_apart()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_name_apart)


def content_key(function: Callable[..., Any], *options: object) -> str:
    """A hash of everything the machine code follows from; "" where that cannot be known.

    Known are functions without closure whose globals are Numba's types and ``prange``, and
    modules of Numba, NumPy and this package.  The module they stand in is part of the key.
    """
    if not isinstance(function, types.FunctionType):
        return ""
    code = function.__code__
    home = function.__globals__.get("__name__")  # Numba imports it to rebuild what it kept
    if not isinstance(home, str):
        return ""
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return ""
    for name in code.co_names:
        if name in function.__globals__ and not _is_stable(function.__globals__[name]):
            return ""
    if any(isinstance(constant, types.CodeType) for constant in code.co_consts):
        return ""
    bound = [
        (name, _told_apart(function.__globals__[name]))
        for name in code.co_names
        if name in function.__globals__
    ]
    return digest(
        code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_argcount,
        home, bound, options,
    )  # fmt: skip


def _is_stable(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        name = value.__name__
        return any(name == one or name.startswith(f"{one}.") for one in _STABLE_MODULES)
    return isinstance(value, numba.types.Type) or value is numba.prange


def _told_apart(value: Any) -> str:
    return value.__name__ if isinstance(value, types.ModuleType) else repr(value)


def digest(*parts: object) -> str:
    """A hash of what is given, and of everything that kernels call."""
    return hashlib.sha256(repr((*parts, _maths_digest())).encode()).hexdigest()


@functools.cache
def _maths_digest() -> str:
    """Changes with everything that generated kernels call: this package's maths, Numba, LLVM."""
    versions = (__version__, numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)
    found = hashlib.sha256(repr(versions).encode())
    here = Path(__file__).parent
    for path in sorted((*here.glob("*_math.py"), *map(here.joinpath, _CALLED))):
        found.update(path.read_bytes())
    return found.hexdigest()


def attach(dispatcher: Any, key: str) -> Any:
    """Let a Numba function keep what it compiles under ``key``; returns it."""
    if key and FunctionCache is not None:
        with contextlib.suppress(OSError, AttributeError, TypeError, RuntimeError):
            dispatcher._cache = _Cache(dispatcher.py_func, key)
    return dispatcher


def folder() -> Path:
    """Where compiled kernels lie, inside the private folder of kernel texts.

    Raises:
        OSError: it is a link, or another user's.
    """
    found = cache_directory() / "compiled"
    found.mkdir(mode=0o700, exist_ok=True)
    if not is_private(found):
        raise PermissionError(f"{found} is not a folder of this user alone")
    return found


def _signing_key() -> bytes:
    """The key of this user and this cache; made anew where it is not what was written."""
    path = cache_directory() / _KEY_NAME
    try:
        return _read_own(path, _KEY_BYTES, exactly=True)
    except OSError:
        # Of two processes that make one at once the later stays; the other's entries are rebuilt.
        write_whole(path, secrets.token_bytes(_KEY_BYTES))
        return _read_own(path, _KEY_BYTES, exactly=True)


def _read_own(path: Path, most: int, *, exactly: bool = False) -> bytes:
    """The bytes of a plain file that is this user's alone; ``OSError`` for any other."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        # A file that was replaced meanwhile has no name left; two names may be two owners'.
        own = not hasattr(os, "getuid") or (
            status.st_uid == os.getuid() and not status.st_mode & 0o077 and status.st_nlink <= 1
        )
        if not stat.S_ISREG(status.st_mode) or not own:
            raise PermissionError(f"{path} is not a file of this user alone")
        if status.st_size > most or (exactly and status.st_size != most):
            raise OSError(f"{path} is {status.st_size} bytes long")
        return file.read()


def _signature(name: str, content: bytes) -> bytes:
    return hmac.digest(_signing_key(), _MAGIC + name.encode() + b"\n" + content, "sha256")


def _prune(files: Iterable[Path]) -> None:
    """Drop the longest unused files beyond the limit."""
    dated = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.stat()
            dated.append((max(status.st_atime, status.st_mtime), file))
    if len(dated) > MOST_FILES:
        for _, file in sorted(dated, key=lambda one: one[0])[: len(dated) - MOST_FILES * 3 // 4]:
            with contextlib.suppress(OSError):
                file.unlink()


MOST_BYTES = 64 * 2**20  # of one entry: what is larger was not written here


class Entries:
    """The signed files of one function, one for each signature and processor.

    It stands in for Numba's ``IndexDataCacheFile``, which unpickles whatever lies in its place.
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def path(self, index_key: object) -> Path:
        """The file of one signature; ``OSError`` where the folder cannot be had."""
        digest = hashlib.sha256(repr((self._key, index_key)).encode()).hexdigest()
        return folder() / f"{digest}.kernel"

    def load(self, index_key: object) -> Any:
        """What was saved; None where nothing was, or the file is not what was written."""
        path = self.path(index_key)
        try:
            data = _read_own(path, MOST_BYTES)
        except FileNotFoundError:
            return None
        start = len(_MAGIC) + _SIGNATURE_BYTES
        signature, content = data[len(_MAGIC) : start], data[start:]
        if not data.startswith(_MAGIC) or not hmac.compare_digest(
            signature, _signature(path.name, content)
        ):
            return None
        return pickle.loads(content)

    def save(self, index_key: object, data: object) -> None:
        """Write one entry, whole or not at all."""
        path = self.path(index_key)
        content = dumps(data)
        write_whole(path, _MAGIC + _signature(path.name, content) + content)

    def flush(self) -> None:
        """Numba's way to start afresh; entries are known by content and cannot be stale."""


if FunctionCache is not None:

    class _Locator(_CacheLocator):  # type: ignore[misc]  # Numba's classes have no types
        """What Numba asks for when it says where a function's files lie."""

        def __init__(self) -> None:
            self._py_file = ""  # Numba names it when it warns

        def ensure_cache_path(self) -> None:
            """``Entries`` makes the folder."""

        def get_cache_path(self) -> str:
            return ""

        def get_source_stamp(self) -> str:
            return ""

        def get_disambiguator(self) -> str:
            return ""

    class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
        """Numba's way to take machine code apart and put it together."""

        def __init__(self) -> None:
            # Not super().__init__: it looks for a locator by the function's file.
            self._lineno = 0
            self._locator = _Locator()
            self._filename_base = ""

    class _Cache(FunctionCache):  # type: ignore[misc]
        """A function's compiled code by content; any failure only costs a compilation."""

        def __init__(self, py_func: types.FunctionType, key: str) -> None:
            self._impl_class = lambda _: _Implementation()
            super().__init__(py_func)
            self._cache_file = Entries(key)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return super().load_overload(sig, target_context)
            except Exception:  # a damaged file, another user's, a full disk
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with contextlib.suppress(Exception):
                super().save_overload(sig, data)
                _prune(folder().iterdir())
