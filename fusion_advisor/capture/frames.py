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
_MAX_DEPTH = 60  # frames of the outer stack that are kept

Owner = Literal["user", "torch", "ours", "engine", "dynamo", "machinery"]
Place = tuple[CodeType, int]  # code object, offset of the instruction in bytes

_owners: dict[CodeType, Owner] = {}


def owner_of(code: CodeType) -> Owner:
    """Whose code this is."""
    owner = _owners.get(code)
    if owner is None:
        owner = _owners[code] = _find_owner(code)
    return owner


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
    """The number of one frame instance, and the calls that led to it, innermost first."""

    __slots__ = ("number", "outer")

    def __init__(self, number: int, outer: tuple[Place, ...]) -> None:
        self.number = number
        self.outer = outer

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Trace nothing: what a debugger gets that finds this mark on a frame."""


class Frames:
    """Finds and numbers the person's frames during one recording."""

    def __init__(self) -> None:
        self.compiled = False  # an op ran inside a torch.compile'd function
        self._numbers = itertools.count(1)
        self._foreign: dict[FrameType, FrameMark] = {}

    def locate(self, frame: FrameType | None) -> tuple[CodeType | None, int, FrameMark | None, bool]:
        """The innermost frame outside torch that ``frame`` runs under.

        Returns its code, the offset of its current instruction, its mark, and whether
        the autograd engine stands between (then the frame called ``backward()``).
        """
        engine = False
        while frame is not None:
            code = frame.f_code
            owner = _owners.get(code) or owner_of(code)
            if owner == "user":
                mark = frame.f_trace
                if type(mark) is not FrameMark:
                    mark = self._mark(frame)
                return code, frame.f_lasti, mark, engine
            if owner == "engine":
                engine = True
            elif owner == "dynamo":
                self.compiled = True
            frame = frame.f_back
        return None, 0, None, engine

    def _mark(self, frame: FrameType) -> FrameMark:
        if frame.f_trace is not None or sys.gettrace() is not None:
            # A debugger or a coverage tool uses the slot; hold the frame instead.
            mark = self._foreign.get(frame)
            if mark is None:
                mark = FrameMark(next(self._numbers), _outer_places(frame))
                self._foreign[frame] = mark
            return mark
        mark = FrameMark(next(self._numbers), _outer_places(frame))
        frame.f_trace = mark
        return mark

    def release(self, frame: FrameType | None) -> None:
        """Take the marks off the frames that still run, and let go of held ones."""
        self._foreign.clear()
        while frame is not None:
            if type(frame.f_trace) is FrameMark:
                frame.f_trace = None
            frame = frame.f_back


def _outer_places(frame: FrameType) -> tuple[Place, ...]:
    """The callers of ``frame`` outside torch, up to the module or cell they started from."""
    places: list[Place] = []
    if frame.f_code.co_name == "<module>":
        return ()
    outer = frame.f_back
    while outer is not None and len(places) < _MAX_DEPTH:
        code = outer.f_code
        owner = owner_of(code)
        if owner == "machinery":
            break
        if owner == "user":
            places.append((code, outer.f_lasti))
            if code.co_name == "<module>":
                break
        outer = outer.f_back
    return tuple(places)
