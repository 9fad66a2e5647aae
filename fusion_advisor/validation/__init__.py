"""Proves a generated kernel before anything is put in place; importing it imports torch and numba.

Names are imported on first use, so that a plain ``import fusion_advisor`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion_advisor.validation.budgets import budget
    from fusion_advisor.validation.ceilings import (
        contradiction,
        measure_again,
        measure_ceilings,
    )
    from fusion_advisor.validation.cuda_compiler import compile_cuda, toolchain_missing
    from fusion_advisor.validation.ladder import validate

_HOMES = {
    "budget": "budgets",
    "compile_cuda": "cuda_compiler",
    "contradiction": "ceilings",
    "measure_again": "ceilings",
    "measure_ceilings": "ceilings",
    "toolchain_missing": "cuda_compiler",
    "validate": "ladder",
}

__all__ = [
    "budget",
    "compile_cuda",
    "contradiction",
    "measure_again",
    "measure_ceilings",
    "toolchain_missing",
    "validate",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fusion_advisor.validation' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fusion_advisor.validation.{home}"), name)
