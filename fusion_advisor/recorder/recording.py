"""What a recording is asked for, and what comes out of it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import nn

from fusion_advisor.errors import UsageError
from fusion_advisor.recorder.tensor_store import TensorStore
from fusion_advisor.records import OpGraph

DEFAULT_BYTE_CAP = 2 * 2**30  # copies of inputs that one session may keep


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What to record.

    ``steps`` ends the recording after so many optimizer steps, or calls of one root
    module; the rest of the code runs uninstrumented.  ``byte_cap`` bounds the copies
    of inputs that are kept.
    """

    steps: int = 2
    max_ops: int = 50_000
    byte_cap: int = DEFAULT_BYTE_CAP
    backward: bool = False
    with_source: bool = True

    def __post_init__(self) -> None:
        for name in ("steps", "max_ops"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)!r}.")
        if self.byte_cap < 0:
            raise UsageError(f"byte_cap must not be negative, not {self.byte_cap!r}.")


@dataclass(slots=True, kw_only=True)
class Recording:
    """One recorded run; lives in the session, beside the records.

    ``result`` is what the person's code returned.  ``modules`` finds the live module
    of a ``module_path``, ``codes`` the code object of the function that called a node.
    ``fused`` are the nodes that stand for calls of kernels which are in place: while
    recording, those run as single ops.  ``side_effects`` says why the code must not be run
    again just to check something; what it does to buffers of modules does not count.
    """

    graph: OpGraph
    store: TensorStore
    result: Any = None
    loss: str = ""
    truncated: str = ""
    notes: tuple[str, ...] = ()
    modules: Mapping[str, weakref.ReferenceType[nn.Module]] = field(default_factory=dict)
    codes: Mapping[str, CodeType] = field(default_factory=dict)
    fused: frozenset[str] = frozenset()
    side_effects: str = ""
    wall_us: float = 0.0  # the recorded run itself, instruments included
    with_backward: bool = False

    def module(self, path: str) -> nn.Module | None:
        """The live module at ``path``, or None where it is gone."""
        reference = self.modules.get(path)
        return None if reference is None else reference()
