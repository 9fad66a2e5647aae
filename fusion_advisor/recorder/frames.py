"""Which line of whose code called an op, at a cost that every op can bear.

A frame instance gets a number of its own.  Frame objects cannot be weakly
referenced, their addresses are reused, and holding them would keep the person's
tensors alive; so the number is written on the frame itself, as its local trace
function, which nothing reads unless a debugger traces.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

import torch

_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep
_ENGINE_FUNCTION = "_engine_run_backward"  # torch.autograd.graph; every backward() passes it
_DYNAMO = os.path.join("torch", "_dynamo", "eval_frame.py")
_MACHINERY = ("IPython", "ipykernel", "asyncio", "tornado", "zmq", "runpy")  # below a cell's code
_MAX_KNOWN = 20_000  # code objects whose owner is remembered

Owner = Literal["user", "torch", "ours", "engine", "dynamo", "machinery"]

# By identity: code objects compare, and hash, by all of their contents.  The code is kept
# with its owner, so that its address is not reused.
_owners: dict[int, tuple[Owner, CodeType]] = {}


def owner_of(code: CodeType) -> Owner:
    """Whose code this is."""
    known = _owners.get(id(code))
    if known is None:
        if len(_owners) > _MAX_KNOWN:
            _owners.clear()
        known = _owners[id(code)] = (_find_owner(code), code)
    return known[0]


def _find_owner(code: CodeType) -> Owner:
    file = code.co_filename
    if code.co_name == _ENGINE_FUNCTION:
        return "engine"
    if file.endswith(_DYNAMO):
        return "dynamo"
    if file.startswith(_TORCH):
        return "torch"
    if file.startswith(_OURS):
        return "ours"
    parts = file.replace("\\", "/").split("/")
    folder = "ipykernel_" if any(part.startswith("ipykernel_") for part in parts) else ""
    if not folder and any(name in parts for name in _MACHINERY):
        return "machinery"
    return "user"


class FrameMark:
    """The number of one frame instance, and the call that it came from.

    ``caller`` is the place in the next frame outside torch, and that frame's mark; a
    caller stands still while its callee runs, so this is looked at once per frame.
    """

    __slots__ = ("caller", "number")

    def __init__(self, number: int, caller: tuple[CodeType, int, FrameMark] | None) -> None:
        self.number = number
        self.caller = caller

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace nothing: what a debugger gets that finds this mark on a frame."""


class Frames:
    """Finds and numbers the person's frames during one recording."""

    def __init__(self) -> None:
        self.compiled = False  # a frame was called through torch.compile
        self._numbers = itertools.count(1)
        self._foreign: dict[FrameType, FrameMark] = {}  # frames hash by identity

    def locate(
        self, frame: FrameType | None
    ) -> tuple[CodeType | None, int, FrameMark | None, bool]:
        """The innermost frame outside torch that ``frame`` runs under.

        Returns its code, the offset of its current instruction, its mark, and whether
        the autograd engine stands between (then the frame called ``backward()``).
        """
        engine = False
        while frame is not None:
            code = frame.f_code
            known = _owners.get(id(code))
            owner = known[0] if known is not None else owner_of(code)
            if owner == "user":
                known_mark = frame.f_trace
                mark = known_mark if isinstance(known_mark, FrameMark) else self._mark(frame)
                return code, frame.f_lasti, mark, engine
            if owner == "engine":
                engine = True
            frame = frame.f_back
        return None, 0, None, engine

    def _mark(self, frame: FrameType) -> FrameMark:
        """Number a frame, and the frames outside torch that led to it."""
        known = self._foreign.get(frame)
        if known is not None:
            return known
        mark = FrameMark(next(self._numbers), None)
        if frame.f_trace is None and sys.gettrace() is None:
            frame.f_trace = mark
        else:
            # A debugger or a coverage tool uses the slot; hold the frame instead.
            self._foreign[frame] = mark
        if frame.f_code.co_name == "<module>":
            return mark
        outer = frame.f_back
        while outer is not None:
            owner = owner_of(outer.f_code)
            if owner == "machinery":
                break
            if owner == "dynamo":
                self.compiled = True
            if owner == "user":
                trace = outer.f_trace
                outer_mark = trace if isinstance(trace, FrameMark) else self._mark(outer)
                mark.caller = (outer.f_code, outer.f_lasti, outer_mark)
                break
            outer = outer.f_back
        return mark

    def release(self, frame: FrameType | None) -> None:
        """Take the marks off the frames that still run, and let go of held ones."""
        self._foreign.clear()
        while frame is not None:
            if type(frame.f_trace) is FrameMark:
                frame.f_trace = None
            frame = frame.f_back
