"""Keeps Python's garbage collector from dominating what is recorded and measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NEVER = 1_000_000  # collections of the middle generation between two full ones


def postpone_full_collections() -> Callable[[], None]:
    """Hold off full collections until the returned function is called.

    Recording makes many small objects that live on; full collections, which look at
    every object of the process each time, would cost more than the recording.  Young
    garbage of the running code is still collected.
    """
    before = gc.get_threshold()
    if not before[0]:
        return lambda: None  # the person has switched the collector off
    ours = (before[0], before[1], max(_NEVER, before[2]))
    gc.set_threshold(*ours)

    def restore() -> None:
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)

    return restore


@contextmanager
def paused(*, collect_first: bool = False) -> Iterator[None]:
    """No collection inside the block."""
    enabled = gc.isenabled()
    if collect_first:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
