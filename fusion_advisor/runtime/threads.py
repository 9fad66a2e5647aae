"""When a CPU kernel may run in parallel, and on how many threads.

Numba's ``workqueue`` layer aborts the process if two threads enter it at once, and GNU OpenMP
kills a forked child that uses it: only ``tbb`` and ``omp`` are accepted, and after a fork every
kernel runs serially.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch
from numba.core import config

_SAFE_LAYERS = frozenset({"tbb", "omp"})

_forked = False
_layer: str | None = None  # not looked at yet
_layer_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _forked, _layer_lock
    _forked = True
    _layer_lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork_in_child)


def threading_layer() -> str:
    """Numba's threading layer: started now if it was not, "" if no thread-safe one is to be had.

    The person's choice in ``NUMBA_THREADING_LAYER`` stands; where it is the default, a thread-safe
    layer is asked for and the setting is put back afterwards.
    """
    global _layer
    if _layer is None:
        with _layer_lock, torchs_number_kept():
            if _layer is None:
                _layer = _start_layer()
    return _layer


def _start_layer() -> str:
    try:
        return _safe(numba.threading_layer())
    except ValueError:
        pass  # no parallel kernel has run yet
    from numba.np.ufunc.parallel import _launch_threads

    chosen = config.THREADING_LAYER
    if str(chosen).lower() == "default":
        config.THREADING_LAYER = "threadsafe"
    try:
        _launch_threads()
        return _safe(numba.threading_layer())
    except (ValueError, ImportError):
        return ""
    finally:
        config.THREADING_LAYER = chosen


def _safe(layer: str) -> str:
    return layer if layer in _SAFE_LAYERS else ""


def worker_count() -> int:
    """How many threads a kernel may use: torch's number, 1 after a fork or without a safe layer."""
    if _forked:
        return 1
    wanted = min(torch.get_num_threads(), config.NUMBA_NUM_THREADS)
    return wanted if wanted > 1 and threading_layer() else 1


@contextmanager
def limited_to(count: int | None) -> Iterator[None]:
    """Run parallel kernels of this thread on ``count`` threads; the previous mask comes back.

    None: on as many as Numba would.
    """
    with torchs_number_kept():  # to ask Numba for its number starts its team as well
        previous = numba.get_num_threads()
        numba.set_num_threads(previous if count is None else count)
        try:
            yield
        finally:
            numba.set_num_threads(previous)


@contextmanager
def torchs_number_kept() -> Iterator[None]:
    """Keep torch's number of threads: where both use OpenMP, Numba's team changes it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
