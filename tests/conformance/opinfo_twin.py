"""The serial twin of a CPU kernel, compiled as calls compile it, but for the ways into it.

Numba makes two wrappers of every function, for Python and for C; they take half of the time and
compute nothing.  Here the function itself is called, by Numba's own convention.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from fusion_advisor.errors import FusionAdvisorError
from fusion_advisor.runtime import cpu_kernels
from fusion_advisor.validation.contractions import MachineContractions, machine_contractions


class BareTwin:
    """``function`` for arguments of the types of ``arguments``; NumPy arrays and numbers."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        from numba.core import compiler

        twin = cpu_kernels.compiled_twin(function, parallel=False)
        flags = compiler.Flags()
        target = twin.targetdescr
        target.options.parse_as_flags(flags, twin.targetoptions)
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        types = tuple(map(numba.typeof, arguments))
        result = compiler.compile_extra(
            target.typing_context, target.target_context, function, types, None, flags, {}
        )
        self._library = result.library  # holds the machine code
        address = result.library.get_pointer_to_function(result.fndesc.llvm_func_name)
        kinds = [kind for argument in arguments for kind in _machine_types(argument)]
        pointer = ctypes.c_void_p
        self._call = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *kinds)(address)

    def __call__(self, *arguments: Any) -> None:
        """Raises where the kernel does: it never should."""
        result, error = ctypes.c_void_p(), ctypes.c_void_p()
        flat = [one for argument in arguments for one in _machine_values(argument)]
        if self._call(ctypes.addressof(result), ctypes.addressof(error), *flat):
            raise FusionAdvisorError("the CPU kernel raised an exception")

    def contractions(self) -> MachineContractions:
        """Fused multiply-adds in its machine code."""
        return machine_contractions(self._library)


def _machine_types(argument: Any) -> list[Any]:
    if isinstance(argument, np.ndarray):
        sizes = [ctypes.c_ssize_t] * (2 + 2 * argument.ndim)
        return [ctypes.c_void_p, ctypes.c_void_p, *sizes[:2], ctypes.c_void_p, *sizes[2:]]
    return [ctypes.c_double if isinstance(argument, float) else ctypes.c_int64]


def _machine_values(argument: Any) -> list[Any]:
    """An array's parts: no owner, no parent, elements, bytes of one, address, sizes, strides."""
    if isinstance(argument, np.ndarray):
        head = [None, None, argument.size, argument.itemsize, argument.ctypes.data]
        return [*head, *argument.shape, *argument.strides]
    return [argument]
