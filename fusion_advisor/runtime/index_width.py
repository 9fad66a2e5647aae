"""How wide a CUDA kernel's index arithmetic is: 32 bits, or 64 where an offset does not fit.

32-bit index arithmetic is half the instructions, so that is what a kernel's text says.  The 64-bit
variant is the same text with another type under the one name that indices are computed in.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from fusion_advisor.runtime.cuda_support import cuda

INDEX_TYPE = "uint32"  # the name; generated kernels use it for indices alone
LARGEST_NARROW_OFFSET = 2**31 - 1  # signed, as torch draws the line: no step of a sum wraps
THREADS_PER_BLOCK = 256
MOST_ELEMENTS = (2**31 - 1) * THREADS_PER_BLOCK  # a grid has at most 2^31 - 1 blocks


def needs_64_bits(largest_offset: int) -> bool:
    """Whether a call that reaches this element, counted from the first, needs wide indices."""
    return largest_offset > LARGEST_NARROW_OFFSET


def widened(function: Callable[..., None]) -> Callable[..., None]:
    """The Python function of a CUDA kernel with its index arithmetic in 64 bits."""
    import numba

    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{function!r} is not a plain Python function")
    wide = types.FunctionType(
        function.__code__,
        {**function.__globals__, INDEX_TYPE: numba.uint64},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    wide.__module__ = function.__module__
    wide.__doc__ = function.__doc__
    wide.__qualname__ = f"{function.__qualname__}_64"
    return wide


def wide_kernel(kernel: Any) -> Any:
    """The 64-bit variant of a kernel made by ``cuda.jit``; compiled when it is first launched."""
    return cuda.jit(widened(kernel.py_func))
