"""The ``cpu_kernel`` decorator: one Python loop, compiled serially and in parallel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from fusion_advisor.runtime import compile_cache, threads
from fusion_advisor.runtime.native_launch import ArraySpec, make_entry

# Below this many elements starting the team costs more than it saves (2 cores, polynomial maths).
SERIAL_BELOW = 32_768

# IEEE division, no fast-math: no contraction, reassociation or assumption about NaN.
_OPTIONS = {"error_model": "numpy", "nogil": True}
# Only prange loops become parallel; array expressions stay what they are.
_PARALLEL = {
    "prange": True,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "numpy": False,
    "stencil": False,
    "fusion": False,
}
_FLAGS = repr((_OPTIONS, _PARALLEL))


class CpuKernel:
    """A kernel over NumPy arrays: ``k(*operands, *outputs, *scalars)``.

    Between outputs and scalars a kernel that divides integers takes an array of one bool, which it
    sets where a divisor is 0.

    Calling it picks the parallel twin for large arrays where threads are safe to use.  ``serial``
    and ``parallel`` are the compiled twins, ``py_func`` the plain function.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._entries: dict[Any, Callable[..., bool | None]] = {}

    @functools.cached_property
    def serial(self) -> Any:
        """The single-threaded twin (compiled on first use, releases the GIL)."""
        twin = compiled_twin(self.py_func, parallel=False)
        return compile_cache.attach(twin, self._key("serial"))

    @functools.cached_property
    def parallel(self) -> Any:
        """The twin whose ``prange`` loops run on Numba's threads."""
        twin = compiled_twin(self.py_func, parallel=True)
        return compile_cache.attach(twin, self._key("parallel"))

    def _key(self, variant: str) -> str:
        return compile_cache.content_key(self.py_func, variant, _FLAGS)

    def entry(
        self,
        arrays: tuple[ArraySpec, ...],
        axes: int,
        scalars: tuple[str, ...],
        checks_divisors: bool = False,
    ) -> Callable[..., bool | None]:
        """The serial twin called by addresses, see ``native_launch.make_entry``; made once."""
        key = (arrays, axes, scalars, checks_divisors)
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = make_entry(
                self.serial, arrays, axes, scalars, self._key("entry"), checks_divisors
            )
        return found

    def __call__(self, *arguments: Any) -> None:
        sizes = [argument.size for argument in arguments if isinstance(argument, np.ndarray)]
        self.run(arguments, max(sizes, default=0))

    def run(self, arguments: tuple[Any, ...], elements: int) -> None:
        """Run over ``elements`` elements; the caller has checked the arguments."""
        workers = threads.worker_count() if elements >= SERIAL_BELOW else 1
        if workers == 1:
            self.serial(*arguments)
        else:
            with threads.limited_to(workers):
                self.parallel(*arguments)

    def __repr__(self) -> str:
        return f"<cpu kernel {self.py_func.__name__}>"


def compiled_twin(function: Callable[..., None], *, parallel: bool) -> Any:
    """Numba's function of a kernel, not compiled yet and never kept on disk."""
    if parallel:
        return numba.njit(parallel=dict(_PARALLEL), **_OPTIONS)(function)  # a copy: emptied
    return numba.njit(**_OPTIONS)(function)


def cpu_kernel(function: Callable[..., None]) -> CpuKernel:
    """Make a CPU kernel of a function whose loops are over ``numba.prange``."""
    return CpuKernel(function)
