"""Ctrl-C waits while code is being swapped, so that nothing is left half changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back until the block ends, and let it through then.

    Only Ctrl-C's usual way is held back: a Python handler of SIGINT in the main thread, which is
    the only thread that signals reach.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: held.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(signal.SIGINT, held[0])
