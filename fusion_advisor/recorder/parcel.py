"""The stored tensors that a part of a recording needs, for another process.

Packing only reads: no op runs and nothing of the process changes, so it may be done on any thread
while the person's code runs on another.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusion_advisor.errors import CaptureError
from fusion_advisor.recorder.program import Program, apply_settings, process_settings
from fusion_advisor.recorder.proof import MEMORY_MARGIN, available_bytes
from fusion_advisor.recorder.replay import history
from fusion_advisor.recorder.tensor_store import TensorStore
from fusion_advisor.records import OpGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Where the tensors lie (``""``: none could be sent) and the settings torch runs under here."""

    path: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def packed(graph: OpGraph, store: TensorStore | None, wanted: Sequence[str]) -> Iterator[Parcel]:
    """Everything that replaying ``graph`` up to the values ``wanted`` reads, in a file.

    The file lives as long as the block.  Without ``store``, or where the tensors are gone, have
    been changed or are too large for this machine's free memory, the parcel holds none.
    """
    settings = process_settings()
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-parcel-") as folder:
        path = Path(folder) / "tensors.pt"
        sent = store is not None and _save(graph, store, wanted, path)
        yield Parcel(path=os.fspath(path) if sent else "", settings=settings)


def _save(graph: OpGraph, store: TensorStore, wanted: Sequence[str], path: Path) -> bool:
    try:
        needed = _read_by_replay(graph, set(wanted))
        tensors = {value: store.get(value) for value in needed}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        available = available_bytes()
        if available is not None and size * MEMORY_MARGIN > available:
            return False
        content = {
            "tensors": tensors,
            "random_states": dict(store.random_states),
            "settings": dict(store.settings),
        }
        torch.save(content, path)
        for value in needed:  # a training step may have run meanwhile on another thread
            store.get(value)
    except CaptureError:
        return False
    except Exception:  # subclasses and opaque tensors that do not pickle; a full disk
        return False
    return True


def _read_by_replay(graph: OpGraph, wanted: set[str]) -> tuple[str, ...]:
    """The stored values that ``replay.materialize`` reads to make ``wanted``."""
    given = wanted.intersection(graph.inputs)
    made = wanted - given
    read = Program(graph, nodes=history(graph, made), keep=made).needed() if made else ()
    return tuple(dict.fromkeys((*given, *read)))


@contextlib.contextmanager
def unpacked(parcel: Parcel) -> Iterator[TensorStore | None]:
    """The store in the other process, under the settings of the one that packed it."""
    apply_settings(parcel.settings)
    if not parcel.path:
        yield None
        return
    content = torch.load(parcel.path, weights_only=False)
    store = TensorStore(byte_cap=0)
    for value, tensor in content["tensors"].items():
        store.put(value, tensor)
    store.random_states.update(content["random_states"])
    store.settings.update(content["settings"])
    try:
        yield store
    finally:
        store.close()
