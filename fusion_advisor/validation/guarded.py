"""Memory for kernels that may be wrong: poisoned, canaried, with a trap page behind it.

The last element of a buffer touches a page that may not be read or written, so
a kernel that runs past the end dies there; bytes before the first element hold
a known pattern.  Used in child processes only.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

CANARY = 0xC7
FRONT_BYTES = 256  # canary bytes kept before the data, at least
POISONS = (0xA5, 0x5B)  # two patterns: a byte that equals one of them may be written, both not
_PROT_NONE = 0


class GuardedArray:
    """A 1-D array of ``count`` elements that ends where the trap page begins."""

    def __init__(self, count: int, dtype: np.dtype, fill: int = CANARY) -> None:
        size = count * dtype.itemsize
        page = mmap.PAGESIZE
        pages = (size + FRONT_BYTES + page - 1) // page
        self._map = mmap.mmap(-1, (pages + 1) * page)
        everything = np.frombuffer(self._map, dtype=np.uint8)
        usable = pages * page
        self._front = everything[: usable - size]
        self._front[:] = CANARY
        body = everything[usable - size : usable]
        body[:] = fill
        self.array: np.ndarray = body.view(dtype)
        _forbid(everything.ctypes.data + usable, page)

    def front_intact(self) -> bool:
        """Whether nothing was written before the first element."""
        return bool((self._front == CANARY).all())

    def strided(self, sizes: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """The array seen with one dimension per loop axis (strides in elements)."""
        step = self.array.itemsize
        return np.lib.stride_tricks.as_strided(
            self.array, sizes, tuple(stride * step for stride in strides)
        )


def _forbid(address: int, size: int) -> None:
    """Make a page unreadable; where the system does not allow it, canaries remain."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "mprotect"):
        library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _PROT_NONE)
