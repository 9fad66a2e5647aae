"""Swap the code of one module instance: its class becomes a subclass with the patched method.

Other instances of the class keep the original code.  The subclass has the original's name, and
pickles, copies and saves as the original class, so that a saved or copied model is an unpatched
one that needs no Fusion Advisor to load.
"""

from __future__ import annotations

import copyreg
import threading
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.interrupts import uninterrupted
from fusion_advisor.fixes.live_code import check_source, edited_code, source_of
from fusion_advisor.fixes.live_function import (
    check_globals,
    original_code,
    release_global,
    take_global,
)
from fusion_advisor.fixes.module_calls import with_helpers
from fusion_advisor.fixes.text_edits import text_hash
from fusion_advisor.records import Fix

if TYPE_CHECKING:
    import torch

_lock = threading.RLock()
_serial = 0


@dataclass
class _Entry:
    """One fix on one module."""

    attribute: str
    function: types.FunctionType
    fix: Fix


@dataclass
class _Patched:
    """A module whose class we swapped: what it was, and the fixes in it."""

    original: type[torch.nn.Module]
    entries: dict[int, _Entry] = field(default_factory=dict)
    current: type[torch.nn.Module] | None = None


_patched: dict[int, tuple[weakref.ref[torch.nn.Module], _Patched]] = {}  # by id of the module


@dataclass(eq=False)
class ModuleChange:
    """A fix that is in one module instance."""

    places: tuple[str, ...]
    _module: weakref.ref[torch.nn.Module]
    _state: _Patched
    _serial: int
    _function: types.FunctionType
    _names: tuple[str, ...]
    _undone: bool = False

    def undo(self) -> None:
        """Give the module the class it would have without this fix."""
        with _lock, uninterrupted():
            if self._undone:
                return
            module = self._module()
            left = {key: one for key, one in self._state.entries.items() if key != self._serial}
            if module is not None:
                _install(module, self._state, left)
            for name in self._names:
                release_global(self._function, name)
            self._undone = True


def apply_module(
    module: torch.nn.Module,
    function: types.FunctionType,
    fix: Fix,
    namespace: Mapping[str, object],
) -> ModuleChange:
    """Put a fix of a method into one module instance only.

    ``function`` is the method (usually the class's ``forward``) that the fix was planned for;
    ``namespace`` as for ``apply_function``.  Raises ``FixError`` (nothing changed) where the
    module's class does not allow it.
    """
    global _serial
    if fix.blockers or not fix.edits:
        raise FixError(
            "this fix cannot be applied: " + "; ".join(one.message for one in fix.blockers)
        )
    namespace = with_helpers(fix, namespace)
    with _lock, uninterrupted():
        state = _state_of(module)
        _check_class(module, state.original)
        attribute = _attribute(state.original, function)
        code = original_code(function)
        text = source_of(code)
        check_source(code, text)
        if text_hash(text) != fix.old_hash:
            raise FixError(f"the source of {function.__qualname__} is not the text of this fix")
        if any(one.fix.edits == fix.edits for one in state.entries.values()):
            raise FixError(f"this fix is already in this {state.original.__name__}")
        check_globals(function, namespace)
        _serial += 1
        for name, value in namespace.items():
            take_global(function, name, value)
        try:
            entry = _Entry(attribute, function, fix)
            _install(module, state, {**state.entries, _serial: entry})
        except BaseException:
            for name in namespace:
                release_global(function, name)
            raise
        place = f"one {state.original.__module__}.{state.original.__qualname__} ({attribute})"
        return ModuleChange(
            (place,), weakref.ref(module), state, _serial, function, tuple(namespace)
        )


def _state_of(module: torch.nn.Module) -> _Patched:
    known = _patched.get(id(module))
    if known is not None and known[0]() is module:
        return known[1]
    return _Patched(type(module))


def _check_class(module: torch.nn.Module, original: type[torch.nn.Module]) -> None:
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        raise FixError("a scripted module runs no Python code, so there is none to swap")
    for base in original.__mro__:
        if base not in (object, typing.Generic) and "__init_subclass__" in vars(base):
            raise FixError(
                f"{base.__name__} does something whenever a subclass is made, so "
                f"{original.__name__} gets none: change the function for all instances instead"
            )


def _attribute(original: type[torch.nn.Module], function: types.FunctionType) -> str:
    """The name under which the class's instances find a function."""
    for base in original.__mro__:
        for name, value in vars(base).items():
            if value is function and getattr(original, name, None) is function:
                return name
    raise FixError(
        f"{function.__qualname__} is not a plain method of {original.__name__}, so it cannot be "
        "changed for one instance: change the function for all instances instead"
    )


def _install(module: torch.nn.Module, state: _Patched, entries: dict[int, _Entry]) -> None:
    """Give the module the class with exactly these fixes, or its original one."""
    expected = state.current or state.original
    if type(module) is not expected:
        raise FixError(
            f"the class of this {state.original.__name__} was changed by somebody else meanwhile, "
            "so it is left as it is"
        )
    patched = _subclass(state.original, entries) if entries else None
    target = patched or state.original
    try:
        object.__setattr__(module, "__class__", target)
    except TypeError as error:
        raise FixError(
            f"{state.original.__name__} does not let its class change: {error}"
        ) from error
    state.entries, state.current = entries, patched
    key = id(module)
    if patched is None:
        _patched.pop(key, None)
    else:
        _patched[key] = (weakref.ref(module, lambda _: _patched.pop(key, None)), state)


def _subclass(original: type[torch.nn.Module], entries: dict[int, _Entry]) -> type[torch.nn.Module]:
    by_function: dict[types.FunctionType, list[_Entry]] = {}
    for entry in entries.values():
        by_function.setdefault(entry.function, []).append(entry)

    def reduce_ex(self: torch.nn.Module, protocol: typing.SupportsIndex) -> object:
        value = original.__reduce_ex__(self, protocol)
        if not isinstance(value, tuple) or len(value) < 2:
            return value
        rebuild, arguments = value[0], value[1]
        own = type(self)
        if rebuild is copyreg.__newobj__ and arguments == (own,):  # type: ignore[attr-defined]
            # pickle insists that __newobj__ gets the object's own class: rebuild it another way
            return (copyreg._reconstructor, (original, object, None), *value[2:])  # type: ignore[attr-defined]
        rebuild = original if rebuild is own else rebuild
        arguments = tuple(original if one is own else one for one in arguments)
        return (rebuild, arguments, *value[2:])

    members: dict[str, object] = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": reduce_ex,
    }
    for function, group in by_function.items():
        members[group[0].attribute] = _edited_function(function, [one.fix for one in group])
    metaclass: Callable[..., type[torch.nn.Module]] = type(original)
    return metaclass(original.__name__, (original,), members)


def _edited_function(function: types.FunctionType, fixes: list[Fix]) -> types.FunctionType:
    code = original_code(function)
    edits = [edit for fix in fixes for edit in fix.edits]
    made = types.FunctionType(
        edited_code(code, source_of(code), edits),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__annotations__ = dict(function.__annotations__)
    made.__dict__.update(function.__dict__)
    made.__qualname__ = function.__qualname__
    made.__module__ = function.__module__
    made.__doc__ = function.__doc__
    return made
