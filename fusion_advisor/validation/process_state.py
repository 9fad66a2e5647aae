"""The settings and random states of this process that no kernel and no validation may change."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

ONE_THREAD_ELEMENTS = 1 << 20  # of the captured inputs: above, threads pay


@dataclass(frozen=True)
class _Setting:
    """One thing that is the process's own: how to read it, and how to put it back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _numpy_random() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return (name, np.asarray(keys).tobytes(), *rest)


def _set_numpy_random(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))


def _cuda_random() -> tuple[bytes, ...]:
    if not torch.cuda.is_initialized():
        return ()
    return tuple(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all())


def _set_cuda_random(states: tuple[bytes, ...]) -> None:
    torch.cuda.set_rng_state_all([_as_tensor(state) for state in states])


def _as_tensor(state: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(state, np.uint8).copy())


def _autocast(device: str) -> _Setting:
    def read() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def write(state: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, state[0])
        torch.set_autocast_dtype(device, state[1])

    return _Setting(f"autocast on {device}", read, write)


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _flushes() -> bool:
    """Whether arithmetic takes subnormal numbers for zero: torch does not tell."""
    with np.errstate(all="ignore"):
        return bool(np.float32(2.0**-130) * np.float32(0.5) == 0.0)


_SETTINGS = (
    _Setting(
        "torch's random state",
        lambda: torch.get_rng_state().numpy().tobytes(),
        lambda state: torch.set_rng_state(_as_tensor(state)),
    ),
    _Setting("CUDA's random state", _cuda_random, _set_cuda_random),
    _Setting("Python's random state", random.getstate, random.setstate),
    _Setting("numpy's random state", _numpy_random, _set_numpy_random),
    _Setting("numpy's error handling", np.geterr, lambda state: np.seterr(**state)),
    _Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Setting("whether gradients are on", torch.is_grad_enabled, torch.set_grad_enabled),
    _Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _Setting(
        "deterministic algorithms",
        _deterministic,
        lambda state: torch.use_deterministic_algorithms(state[0], warn_only=state[1]),
    ),
    _Setting(
        "the precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    _Setting("whether subnormal numbers are flushed", _flushes, torch.set_flush_denormal),
    _autocast("cpu"),
    _autocast("cuda"),
)


def snapshot() -> tuple[Any, ...]:
    """All settings and random states, comparable."""
    return tuple(setting.read() for setting in _SETTINGS)


def changed_since(before: tuple[Any, ...]) -> tuple[str, ...]:
    """The names of what is other than in a snapshot."""
    now = snapshot()
    pairs = zip(_SETTINGS, before, now, strict=True)
    return tuple(setting.name for setting, old, new in pairs if old != new)


def restore(before: tuple[Any, ...]) -> None:
    """Put back what is other than in a snapshot, and touch nothing else."""
    for setting, old in zip(_SETTINGS, before, strict=True):
        if setting.read() != old:
            setting.write(old)


@contextmanager
def preserved() -> Iterator[None]:
    """Settings and random states are on leaving what they were, whatever happened inside."""
    before = snapshot()
    try:
        yield
    finally:
        restore(before)


@contextmanager
def one_thread(elements: int) -> Iterator[None]:
    """Small tensors are computed by this thread alone.

    Where other processes use the machine, a team of threads waits for its slowest member, and
    spins: over a validation's many small tensors that is ten times the work itself.
    """
    threads = torch.get_num_threads()
    if threads == 1 or elements > ONE_THREAD_ELEMENTS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
