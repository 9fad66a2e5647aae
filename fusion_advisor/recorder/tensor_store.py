"""The tensors of one session, kept beside the records.

Inputs are stored so that their aliasing survives: views of one storage stay views
of one copied storage.  Parameters that the run did not write are kept by reference
with a check of their version; everything else is copied under a byte cap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fusion_advisor.errors import CaptureError
from fusion_advisor.records import OpGraph, TensorSpec

ALIGNMENT_BYTES = 64  # of torch's CPU allocations; vectorised kernels split heads by it


class TensorStore:
    """Tensors by value id, with a byte cap on the copies.

    ``random_states`` holds the generator's state before each random op,
    ``numbers`` what ops returned to Python, ``digests`` the fingerprints of the
    outputs of the recorded run and ``expected`` those outputs themselves where only a
    comparison within tolerance can be asked for.  ``program`` is the recorded graph.
    """

    def __init__(self, byte_cap: int) -> None:
        self.byte_cap = byte_cap
        self.bytes = 0
        self.notes: list[str] = []
        self.random_states: dict[str, Tensor] = {}
        self.numbers: dict[str, Any] = {}
        self.digests: dict[str, str] = {}
        self.expected: dict[str, Tensor] = {}
        self.settings: dict[str, Any] = {}
        self.program: OpGraph | None = None
        self._tensors: dict[str, Tensor] = {}
        self._versions: dict[str, int] = {}
        self._dropped: dict[str, str] = {}
        self._closed = False

    def __contains__(self, value_id: object) -> bool:
        return value_id in self._tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def ids(self) -> tuple[str, ...]:
        """The ids that can be asked for."""
        return tuple(self._tensors)

    def get(self, value_id: str) -> Tensor:
        """The tensor as it was when it was first read.

        Raises:
            CaptureError: it was dropped, has been changed since, or the session is closed.
        """
        if self._closed:
            raise CaptureError("The session's tensors were released by close(); profile again.")
        if value_id in self._dropped:
            raise CaptureError(f"The input {value_id} was not kept: {self._dropped[value_id]}")
        try:
            tensor = self._tensors[value_id]
        except KeyError:
            raise CaptureError(f"There is no stored tensor for {value_id}.") from None
        version = self._versions.get(value_id)
        if version is not None and tensor._version != version:
            raise CaptureError(
                f"The parameter behind {value_id} has been changed since the profile "
                "(a training step, a loaded checkpoint); profile again."
            )
        return tensor

    def refer(self, value_id: str, tensor: Tensor) -> None:
        """Keep a parameter by reference; ``get`` refuses it once it has been changed."""
        with torch.no_grad():
            self._tensors[value_id] = tensor.detach()
        if not tensor.is_inference():
            self._versions[value_id] = tensor._version

    def reserve(self, size_bytes: int) -> bool:
        """Count ``size_bytes`` of copies, or return False where the cap does not allow them."""
        if self.bytes + size_bytes > self.byte_cap:
            return False
        self.bytes += size_bytes
        return True

    def put(self, value_id: str, tensor: Tensor) -> None:
        """Keep a tensor that is nobody else's; the caller has reserved its bytes."""
        self._tensors[value_id] = tensor

    def drop(self, value_ids: Iterable[str], reason: str) -> None:
        """Remember why these inputs were not kept."""
        for value_id in value_ids:
            self._dropped[value_id] = reason

    @property
    def dropped(self) -> dict[str, str]:
        """Inputs that were not kept, with the reason."""
        return dict(self._dropped)

    def close(self) -> None:
        """Release every tensor."""
        self._closed = True
        for kept in (self._tensors, self.random_states, self.expected, self.numbers):
            kept.clear()
        self._versions.clear()
        self.bytes = 0


def snapshot_storage(tensor: Tensor) -> Tensor:
    """A copy of a tensor's whole storage as bytes, whatever its dtype and offset."""
    with torch.inference_mode(False), torch.no_grad():
        storage = tensor.untyped_storage().clone()
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def snapshot_range(tensor: Tensor, start: int, end: int) -> Tensor:
    """A copy of bytes ``start``..``end`` of a tensor's storage."""
    with torch.inference_mode(False), torch.no_grad():
        alias = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
            tensor.untyped_storage(), start, (end - start,), (1,)
        )
        return alias.clone()


def view_of(raw: Tensor, spec: TensorSpec, dtype: torch.dtype, start: int = 0) -> Tensor:
    """The view ``spec`` describes, on ``raw``: the bytes of its storage from ``start`` on."""
    with torch.inference_mode(False), torch.no_grad():
        offset = spec.offset - start // dtype.itemsize
        tensor = torch.empty(0, dtype=dtype, device=raw.device).set_(
            raw.untyped_storage(), offset, spec.shape, spec.strides
        )
        if "conj" in spec.flags:
            tensor = torch._conj(tensor)
        if "neg" in spec.flags:
            tensor = torch._neg_view(tensor)
        return tensor


def extent_bytes(spec: TensorSpec, itemsize: int) -> tuple[int, int]:
    """First and past-the-last byte of its storage that a view touches."""
    if 0 in spec.shape:
        return spec.offset * itemsize, spec.offset * itemsize
    last = spec.offset + sum(
        (size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)
    )
    return spec.offset * itemsize, (last + 1) * itemsize


def copy_view(tensor: Tensor, copies: dict[int, Tensor], storage: int) -> Tensor:
    """A copy of ``tensor`` on a copy of its whole storage, shared by key ``storage``."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return tensor.clone()
    raw = copies.get(storage)
    if raw is None:
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        raw.set_(tensor.untyped_storage().clone())
        copies[storage] = raw
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        raw.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    if tensor.is_conj():
        made = torch._conj(made)
    return torch._neg_view(made) if tensor.is_neg() else made
