"""Memory for kernels that may be wrong: poisoned, canaried, between two trap pages.

The array touches one of two pages that may not be read or written: the one behind its end or,
``at_start``, the one before its first element.  A kernel that goes past that side dies there; on
the other side bytes hold a known pattern.  A kernel is run once on either.  Used in child
processes only.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

import numpy as np

CANARY = 0xC7
SPARE_BYTES = 256  # canary bytes kept on the side without a trap, at least
POISONS = (0xA5, 0x5B)  # two patterns: a byte that equals one of them may be written, both not
_PROT_NONE, _PROT_READ = 0, 1


class GuardedArray:
    """A 1-D array of ``count`` elements that touches a trap page at its end, or at its start."""

    def __init__(
        self, count: int, dtype: np.dtype, fill: int = CANARY, *, at_start: bool = False
    ) -> None:
        size = count * dtype.itemsize
        page = mmap.PAGESIZE
        self._usable = (size + SPARE_BYTES + page - 1) // page * page
        self._map = mmap.mmap(-1, self._usable + 2 * page)
        everything = np.frombuffer(self._map, dtype=np.uint8)
        usable = everything[page : page + self._usable]
        first = 0 if at_start else self._usable - size
        self._spare = usable[size:] if at_start else usable[:first]
        self._spare[:] = CANARY
        body = usable[first : first + size]
        body[:] = fill
        self.array: np.ndarray = body.view(dtype)
        self._side = "past the end" if at_start else "before the start"
        self._start = usable.ctypes.data
        _protect(self._start - page, page, _PROT_NONE)
        _protect(self._start + self._usable, page, _PROT_NONE)

    def trespass(self) -> str:
        """Where something was written beside the array, or ""."""
        return "" if bool((self._spare == CANARY).all()) else self._side

    def forbid_writing(self) -> None:
        """From here on a write kills the process, also one that would be taken back."""
        _protect(self._start, self._usable, _PROT_READ)

    def strided(self, sizes: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """The array seen with one dimension per loop axis (strides in elements)."""
        step = self.array.itemsize
        return np.lib.stride_tricks.as_strided(
            self.array, sizes, tuple(stride * step for stride in strides)
        )


@functools.cache
def _mprotect() -> Any:
    """The system's function, or None where there is none."""
    function = getattr(ctypes.CDLL(None), "mprotect", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _protect(address: int, size: int, protection: int) -> None:
    """Limit what may be done to pages; where the system does not allow it, canaries remain."""
    function = _mprotect()
    if function is not None:
        function(address, size, protection)
