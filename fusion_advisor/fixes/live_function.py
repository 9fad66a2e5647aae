"""Swap the code of a running function; its text is never touched, existing instances follow."""

from __future__ import annotations

import threading
import types
from collections.abc import Mapping
from dataclasses import dataclass, field

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.interrupts import uninterrupted
from fusion_advisor.fixes.live_code import (
    check_source,
    edited_code,
    functions_of,
    source_of,
)
from fusion_advisor.fixes.module_calls import with_helpers
from fusion_advisor.fixes.text_edits import text_hash
from fusion_advisor.records import Fix, KernelSource

_lock = threading.RLock()


def global_name(kernel: KernelSource) -> str:
    """The name a kernel gets in the globals of the functions that call it: unique by its text."""
    return f"{kernel.entry}__{kernel.hash[:8]}"


@dataclass
class _Swapped:
    """One code object with edits: what it was, and the fixes in it."""

    original: types.CodeType
    text: str
    functions: tuple[types.FunctionType, ...]
    fixes: dict[int, Fix] = field(default_factory=dict)
    current: types.CodeType | None = None


_swapped: dict[int, _Swapped] = {}  # by id of the code object that runs now, kept alive by it
_globals_in_use: dict[tuple[int, str], int] = {}  # (id of globals, name) -> functions calling it
_serial = 0


def original_code(function: types.FunctionType) -> types.CodeType:
    """The code a function had before any fix of ours."""
    entry = _entry_of(function)
    return function.__code__ if entry is None else entry.original


def function_source(function: types.FunctionType) -> str:
    """The text of the whole file or cell a function was compiled from, to plan against.

    ``FixError`` where it is gone or is no longer what is running.
    """
    code = original_code(function)
    text = source_of(code)
    check_source(code, text)
    return text


def _entry_of(function: types.FunctionType) -> _Swapped | None:
    entry = _swapped.get(id(function.__code__))
    return entry if entry is not None and entry.current is function.__code__ else None


@dataclass(eq=False)
class FunctionChange:
    """A fix that is in a function's code."""

    places: tuple[str, ...]
    _entry: _Swapped
    _serial: int
    _names: tuple[str, ...]
    _undone: bool = False

    def undo(self) -> None:
        """Restore the code object the function would have without this fix."""
        with _lock, uninterrupted():
            if self._undone:
                return
            fixes = {key: fix for key, fix in self._entry.fixes.items() if key != self._serial}
            _install(self._entry, fixes)
            for function in self._entry.functions:
                for name in self._names:
                    release_global(function, name)
            self._undone = True


def apply_function(
    function: types.FunctionType | types.MethodType,
    fix: Fix,
    namespace: Mapping[str, object],
) -> FunctionChange:
    """Put a fix into a function's code; every function object that shares the code follows.

    ``namespace`` holds what the edited text calls, by the names it uses: usually
    ``{global_name(kernel): fused}``.  Several fixes of one function stack, and are undone in any
    order.  Raises ``FixError`` (nothing changed) for a refused fix, changed source, or a name
    that the function's globals already use.
    """
    global _serial
    while isinstance(function, types.MethodType):
        function = function.__func__  # type: ignore[assignment]
    if not isinstance(function, types.FunctionType):
        raise FixError(f"{function!r} is not a Python function, so it has no code to swap")
    if fix.blockers or not fix.edits:
        raise FixError(
            "this fix cannot be applied: " + "; ".join(one.message for one in fix.blockers)
        )
    namespace = with_helpers(fix, namespace)
    with _lock, uninterrupted():
        entry = _entry_of(function)
        if entry is None:
            code = function.__code__
            text = source_of(code)
            check_source(code, text)
            entry = _Swapped(code, text, tuple(functions_of(code)) or (function,))
        if text_hash(entry.text) != fix.old_hash:
            raise FixError(
                f"the source of {function.__qualname__} is not the text this fix was made for: "
                "profile again"
            )
        if any(known.edits == fix.edits for known in entry.fixes.values()):
            raise FixError(f"this fix is already in {function.__qualname__}")
        _serial += 1
        for one in entry.functions:
            check_globals(one, namespace)
        taken: list[tuple[types.FunctionType, str]] = []
        try:
            for one in entry.functions:
                for name, value in namespace.items():
                    take_global(one, name, value)
                    taken.append((one, name))
            _install(entry, {**entry.fixes, _serial: fix})
        except BaseException:
            for one, name in taken:
                release_global(one, name)
            raise
        places = tuple(
            dict.fromkeys(f"{one.__module__}.{one.__qualname__}" for one in entry.functions)
        )
        return FunctionChange(places, entry, _serial, tuple(namespace))


def _install(entry: _Swapped, fixes: dict[int, Fix]) -> None:
    """Make the functions run the original text with exactly these fixes in it."""
    edits = [edit for fix in fixes.values() for edit in fix.edits]
    code = edited_code(entry.original, entry.text, edits) if edits else entry.original
    for function in entry.functions:
        if function.__code__ is not (entry.current or entry.original):
            raise FixError(
                f"the code of {function.__qualname__} was replaced by somebody else meanwhile, "
                "so it is left as it is"
            )
    if entry.current is not None:
        _swapped.pop(id(entry.current), None)
    for function in entry.functions:
        function.__code__ = code
    entry.fixes = fixes
    entry.current = code if edits else None
    if edits:
        _swapped[id(code)] = entry


def check_globals(function: types.FunctionType, namespace: Mapping[str, object]) -> None:
    """Refuses names that a function's globals already use for something else."""
    for name in namespace:
        key = (id(function.__globals__), name)
        if name in function.__globals__ and key not in _globals_in_use:
            raise FixError(f"{function.__module__} already has a global called {name!r}")


def take_global(function: types.FunctionType, name: str, value: object) -> None:
    """Put a name into a function's globals; every taking needs its own release."""
    key = (id(function.__globals__), name)
    _globals_in_use[key] = _globals_in_use.get(key, 0) + 1
    function.__globals__[name] = value


def release_global(function: types.FunctionType, name: str) -> None:
    """Give a name back; the last release removes it from the globals."""
    key = (id(function.__globals__), name)
    left = _globals_in_use.get(key, 0) - 1
    if left > 0:
        _globals_in_use[key] = left
        return
    _globals_in_use.pop(key, None)
    function.__globals__.pop(name, None)
