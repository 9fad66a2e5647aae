"""All that generated code imports, besides torch, numba and numpy.  Stable across versions.

Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion_advisor.runtime import cpu_math, cuda_math
    from fusion_advisor.runtime.cpu_kernels import CpuKernel, cpu_kernel
    from fusion_advisor.runtime.cuda_support import cuda, libdevice
    from fusion_advisor.runtime.fused_function import FusedFunction
    from fusion_advisor.runtime.launch import Launch
    from fusion_advisor.runtime.loading import load_function, load_kernel
    from fusion_advisor.runtime.operands import CallStats, FusionFallbackWarning, Operand, Output

_HERE = "fusion_advisor.runtime."
_HOMES = {
    "CallStats": "operands",
    "CpuKernel": "cpu_kernels",
    "FusedFunction": "fused_function",
    "FusionFallbackWarning": "operands",
    "Launch": "launch",
    "Operand": "operands",
    "Output": "operands",
    "cpu_kernel": "cpu_kernels",
    "cuda": "cuda_support",
    "libdevice": "cuda_support",
    "load_function": "loading",
    "load_kernel": "loading",
}
_MODULES = frozenset({"cpu_math", "cuda_math"})

__all__ = [
    "CallStats",
    "CpuKernel",
    "FusedFunction",
    "FusionFallbackWarning",
    "Launch",
    "Operand",
    "Output",
    "cpu_kernel",
    "cpu_math",
    "cuda",
    "cuda_math",
    "libdevice",
    "load_function",
    "load_kernel",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_HERE + name)
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fusion_advisor.runtime' has no attribute {name!r}")
    return getattr(importlib.import_module(_HERE + home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
