"""Compiled kernels kept on disk, so that a kernel is compiled once per machine.

Numba's own cache asks for a source file and looks at its date; here code is known by its content,
so that the same kernel is found again from a worker process, a notebook cell or an exported
module.  The files lie in a folder that only this user can write to.  Whatever goes wrong with them
costs a compilation, nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite
import numba

from fusion_advisor.runtime.loading import cache_directory

MOST_FILES = 600  # two per compiled kernel, 50 to 200 kB: the longest unused go first

_CALLED = ("cpu_kernels.py", "intrinsics.py", "native_launch.py", "trigonometry.py")
_STABLE_MODULES = ("numba", "numpy", "math", "fusion_advisor.runtime")

try:
    from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
except ImportError:  # a Numba that keeps these elsewhere: kernels are compiled in every process
    FunctionCache = None


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
    found = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
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
    """Where compiled kernels lie, inside the private folder of kernel texts."""
    found = cache_directory() / "compiled"
    found.mkdir(mode=0o700, exist_ok=True)
    return found


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


if FunctionCache is not None:

    class _Locator(_CacheLocator):  # type: ignore[misc]  # Numba's classes have no types
        """Says where a function's files lie: by its key, whatever file it came from."""

        def __init__(self, key: str) -> None:
            self._key = key
            self._py_file = ""  # Numba names it when it warns

        def get_cache_path(self) -> str:
            return str(folder())

        def get_source_stamp(self) -> str:
            return self._key

        def get_disambiguator(self) -> str:
            return self._key[:32]

    class _Implementation(CompileResultCacheImpl):  # type: ignore[misc]
        """Numba's way to write and read machine code, under our name for the function."""

        def __init__(self, key: str) -> None:
            # Not super().__init__: it looks for a locator by the function's file.
            self._lineno = 0
            self._locator = _Locator(key)
            self._filename_base = self.get_filename_base("kernel", "")

    class _Cache(FunctionCache):  # type: ignore[misc]
        """A function's compiled code by content; any failure only costs a compilation."""

        def __init__(self, py_func: types.FunctionType, key: str) -> None:
            self._impl_class = lambda _: _Implementation(key)
            super().__init__(py_func)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                return super().load_overload(sig, target_context)
            except Exception:  # a damaged file, another user's, a full disk
                return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with contextlib.suppress(Exception):
                super().save_overload(sig, data)
                _prune(folder().iterdir())
