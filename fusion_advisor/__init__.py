"""Fusion Advisor: find, explain, prove and apply kernel fusion in live PyTorch code.

>>> import fusion_advisor as fa
>>> advice = fa.profile(model, args=(x,))
>>> advice.findings
>>> advice.apply("F1")
>>> advice.undo()

Names are imported on first use, so that ``import fusion_advisor`` costs next to nothing
and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fusion_advisor._version import __version__

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice
    from fusion_advisor.advisor import capture, load, profile, profile_code
    from fusion_advisor.errors import FusionAdvisorError
    from fusion_advisor.recorder.custom_ops import register_op, unregister_op
    from fusion_advisor.records import Report

_HOMES = {
    "Advice": "fusion_advisor.advice",
    "capture": "fusion_advisor.advisor",
    "load": "fusion_advisor.advisor",
    "profile": "fusion_advisor.advisor",
    "profile_code": "fusion_advisor.advisor",
    "register_op": "fusion_advisor.recorder.custom_ops",
    "unregister_op": "fusion_advisor.recorder.custom_ops",
    "FusionAdvisorError": "fusion_advisor.errors",
    "Report": "fusion_advisor.records",
}

__all__ = [
    "Advice",
    "FusionAdvisorError",
    "Report",
    "__version__",
    "capture",
    "load",
    "profile",
    "profile_code",
    "register_op",
    "unregister_op",
]


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext fusion_advisor``: register the magics."""
    importlib.import_module("fusion_advisor.jupyter").load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext fusion_advisor``: take the magics and hooks out again."""
    importlib.import_module("fusion_advisor.jupyter").unload(ipython)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fusion_advisor' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
