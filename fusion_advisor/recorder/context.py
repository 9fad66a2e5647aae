"""What surrounds an op: the module that runs, the phase, autocast.

While a recording runs, ``nn.Module.__call__`` and autocast's enter and exit are
wrapped and optimizer hooks are registered, all globally and nothing on the person's
own objects; ``uninstall`` puts everything back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp.autocast_mode import autocast
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from fusion_advisor.records import Phase

ModuleEntry = tuple[str, str]  # path, class name
_OUTSIDE: ModuleEntry = ("", "")


class Context:
    """Tracks modules, optimizer steps and autocast of one thread while installed.

    ``stop`` is called with a sentence when ``steps`` steps have been recorded.
    ``modules`` maps a module path to a weak reference to the live module.  Paths are
    those of ``named_modules`` below the first root that is called; later roots are
    prefixed with their class name.
    """

    def __init__(self, steps: int, stop: Callable[[str], None]) -> None:
        self.modules: dict[str, weakref.ReferenceType[nn.Module]] = {}
        self.current: ModuleEntry = _OUTSIDE
        self.phase: Phase = "forward"
        self.autocast: str | None = None
        self.compiled = False
        self.at_boundary: Callable[[], None] | None = None  # once recording has stopped
        self._steps = steps
        self._stop = stop
        self._thread = threading.get_ident()
        self._depth = 0
        self._names: dict[int, tuple[ModuleEntry, weakref.ReferenceType[nn.Module]]] = {}
        self._roots: dict[int, int] = {}  # id of a root that is alive -> calls
        self._optimizer_steps = 0
        self._restore: list[Callable[[], object]] = []

    def install(self) -> None:
        """Begin to track."""
        with _lock:  # recordings in other threads wrap the same functions
            self._wrap_module_call()
            self._wrap_autocast()
        before = register_optimizer_step_pre_hook(self._before_step)
        after = register_optimizer_step_post_hook(self._after_step)
        self._restore += [before.remove, after.remove]
        self.note_autocast()

    def uninstall(self) -> None:
        """Put everything back; may be called more than once."""
        with _lock:
            while self._restore:
                self._restore.pop()()

    @property
    def installed(self) -> bool:
        """True between ``install`` and ``uninstall``."""
        return bool(self._restore)

    def note_autocast(self) -> None:
        """Read autocast's state; inside its own kernels torch reports it as off."""
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
                return
        self.autocast = None

    def _wrap_module_call(self) -> None:
        original = nn.Module.__call__
        context, thread = self, self._thread

        def __call__(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if threading.get_ident() != thread:
                return original(module, *args, **kwargs)
            if context.at_boundary is not None:
                context.at_boundary()
                return original(module, *args, **kwargs)
            outer = context._enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                context._depth -= 1
                context.current = outer
                if context.at_boundary is not None:
                    context.at_boundary()

        OUR_FRAMES.add(__call__.__code__)
        _wrap(nn.Module, "__call__", __call__)
        self._restore.append(lambda: _put_back(nn.Module, "__call__", __call__, original))

    def _wrap_autocast(self) -> None:
        context, thread = self, self._thread
        enter: Any = autocast.__enter__
        leave: Any = autocast.__exit__

        def __enter__(self: Any) -> Any:  # noqa: N807
            result = enter(self)
            if threading.get_ident() == thread:
                context.note_autocast()
            return result

        def __exit__(self: Any, *exc: Any) -> Any:  # noqa: N807
            result = leave(self, *exc)
            if threading.get_ident() == thread:
                context.note_autocast()
            return result

        _wrap(autocast, "__enter__", __enter__)
        _wrap(autocast, "__exit__", __exit__)
        self._restore += [
            lambda: _put_back(autocast, "__enter__", __enter__, enter),
            lambda: _put_back(autocast, "__exit__", __exit__, leave),
        ]

    def _enter(self, module: nn.Module) -> ModuleEntry:
        """Note that ``module`` runs; returns the entry to put back afterwards."""
        if self._depth == 0:
            self._enter_root(module)
        self._depth += 1
        outer = self.current
        known = self._names.get(id(module))
        if known is None or known[1]() is not module:
            known = self._name_stray(module, outer)
        self.current = known[0]
        return outer

    def _enter_root(self, module: nn.Module) -> None:
        """Count a call from outside any module; name the tree below it the first time."""
        name = type(module).__name__
        if name == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            self.compiled = True
        key = id(module)
        known = self._names.get(key)
        if known is None or known[1]() is not module:
            self._roots[key] = 0
            self._name_tree(module)
        calls = self._roots[key] = self._roots.get(key, 0) + 1
        # An activation or a loss that is called directly is not a step of anything.
        is_model = next(iter(module.children()), None) is not None or any(
            True for _ in module.parameters(recurse=False)
        )
        if calls > self._steps and is_model:
            self._stop(
                f"recording stopped before call {calls} of {name}: the first {self._steps} were "
                "recorded, the rest ran uninstrumented"
            )

    def _name_tree(self, root: nn.Module) -> None:
        prefix = ""
        if self.modules:
            prefix = stem = type(root).__name__
            count = 2
            while prefix in self.modules:
                prefix = f"{stem}_{count}"
                count += 1
        for path, module in root.named_modules():
            full = ".".join(part for part in (prefix, path) if part)
            reference = weakref.ref(module)
            known = self._names.get(id(module))
            if known is not None and known[1]() is module:
                continue
            self._names[id(module)] = ((full, type(module).__name__), reference)
            self.modules[full] = reference

    def _name_stray(
        self, module: nn.Module, outer: ModuleEntry
    ) -> tuple[ModuleEntry, weakref.ReferenceType[nn.Module]]:
        """Name a module that its parent does not register."""
        stem = ".".join(part for part in (outer[0], type(module).__name__) if part)
        path, count = stem, 2
        while path in self.modules:
            path = f"{stem}_{count}"
            count += 1
        reference = weakref.ref(module)
        named = ((path, type(module).__name__), reference)
        self._names[id(module)] = named
        self.modules[path] = reference
        return named

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() == self._thread:
            self.phase = "optimizer"

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self.phase = "forward"
        self._optimizer_steps += 1
        if self._optimizer_steps >= self._steps:
            self._stop(
                f"recording stopped after {self._optimizer_steps} optimizer steps; "
                "the rest ran uninstrumented"
            )


OUR_FRAMES: set[Any] = set()  # code objects to leave out of the person's tracebacks


_lock = threading.RLock()


class _Wrapped:
    """A function that recordings have wrapped: what it was, and their wrappers."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.all: list[Any] = []
        self.active: list[Any] = []


_wrapped: dict[tuple[Any, str], _Wrapped] = {}


def _wrap(owner: Any, name: str, ours: Any) -> None:
    current = owner.__dict__[name]
    entry = _wrapped.get((owner, name))
    if entry is None or current not in entry.all:
        entry = _wrapped[owner, name] = _Wrapped(current)
    entry.all.append(ours)
    entry.active.append(ours)
    setattr(owner, name, ours)


def _put_back(owner: Any, name: str, ours: Any, original: Any) -> None:
    """Undo one wrapper, unless somebody has wrapped it again meanwhile (theirs stays valid).

    Recordings in several threads end in any order: the last one puts the original back.
    """
    entry = next((one for one in _wrapped.values() if ours in one.active), None)
    current = owner.__dict__.get(name)
    if entry is None:
        return
    entry.active.remove(ours)
    if not entry.active and current in entry.all:
        setattr(owner, name, entry.original)
    elif current is ours:
        setattr(owner, name, original)
    if not entry.active and _wrapped.get((owner, name)) is entry:
        del _wrapped[owner, name]
