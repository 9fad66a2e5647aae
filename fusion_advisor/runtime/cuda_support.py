"""numba's ``cuda`` and ``libdevice``, or stand-ins where numba-cuda is not installed.

Generated text imports them from here, so that the same text loads on every machine.  A stand-in
kernel keeps its Python function (to read and to regenerate) and raises when it is launched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fusion_advisor.errors import MissingDependencyError

_INSTALL = "CUDA kernels need numba-cuda; install it with: pip install 'fusion-advisor[cuda]'"


class MissingKernel:
    """Stands for a CUDA kernel where numba-cuda is not installed."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.py_func = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __getitem__(self, configuration: Any) -> Any:
        raise MissingDependencyError(f"{self.__name__} cannot be launched. {_INSTALL}")

    def __call__(self, *arguments: Any) -> None:
        raise MissingDependencyError(f"{self.__name__} cannot be launched. {_INSTALL}")


class MissingCuda:
    """Stands for ``numba.cuda``: only ``jit`` works, and gives kernels that cannot be launched."""

    @staticmethod
    def jit(*arguments: Any, **options: Any) -> Any:
        """Decorator, bare or with options, as ``numba.cuda.jit``."""
        if len(arguments) == 1 and not options and callable(arguments[0]):
            return MissingKernel(arguments[0])
        return MissingKernel

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingDependencyError(f"cuda.{name} is not available. {_INSTALL}")


class MissingLibdevice:
    """Stands for ``numba.cuda.libdevice``; its functions are only used inside kernels."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingDependencyError(f"libdevice.{name} is not available. {_INSTALL}")


def _find() -> tuple[Any, Any, bool]:
    try:
        importlib.import_module("numba_cuda")  # numba alone ships no CUDA target of its own
        # It takes numba.cuda's place by a .pth file, which Python reads in site folders only.
        importlib.import_module("numba.cuda.typing.templates")
        return (
            importlib.import_module("numba.cuda"),
            importlib.import_module("numba.cuda.libdevice"),
            True,
        )
    except ImportError:
        return MissingCuda(), MissingLibdevice(), False


cuda, libdevice, HAVE_NUMBA_CUDA = _find()
