"""Records a running PyTorch program, proves the recording by replay, and times it.

Names are imported when they are first used: ``recorder.source`` serves the magics
before torch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion_advisor.recorder.dispatch import Recorder, record
    from fusion_advisor.recorder.environment import environment
    from fusion_advisor.recorder.recording import CaptureOptions, Recording
    from fusion_advisor.recorder.tensor_store import TensorStore

_HOMES = {
    "CaptureOptions": "recording",
    "Recorder": "dispatch",
    "Recording": "recording",
    "TensorStore": "tensor_store",
    "environment": "environment",
    "record": "dispatch",
}
__all__ = ["CaptureOptions", "Recorder", "Recording", "TensorStore", "environment", "record"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
