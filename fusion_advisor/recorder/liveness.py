"""What outlives a recording, and what of it is stored.

Run once, at the end of the recording and before anything else can change a tensor:
decides which values are outputs, fingerprints them, and stores the inputs.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fusion_advisor.recorder.schema import flatten
from fusion_advisor.recorder.tensor_store import (
    ALIGNMENT_BYTES,
    TensorStore,
    extent_bytes,
    snapshot_range,
    snapshot_storage,
    view_of,
)
from fusion_advisor.recorder.values import Storage, Value, ValueTable


def keep_random_state(store: TensorStore, node: str, args: Any, kwargs: dict[str, Any]) -> None:
    """Store the generator's state before a random op."""
    generator = kwargs.get("generator")
    if generator is not None:
        store.random_states[node] = generator.get_state()
        return
    tensors = flatten(args)
    device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
    if device.type == "cuda":
        store.random_states[node] = torch.cuda.get_rng_state(device)
    else:
        store.random_states[node] = torch.get_rng_state()


def digest(tensor: Tensor) -> str:
    """A fingerprint of a tensor's elements, bit by bit.

    Raises:
        TypeError: the tensor has no bytes to look at (meta).
    """
    found = hashlib.blake2b(digest_size=16)
    for part in _parts(tensor.detach()):
        plain = part.resolve_conj().resolve_neg().contiguous().cpu()
        found.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        if plain.numel():
            # as_strided: one element may have any stride, which no view as bytes accepts.
            flat = plain.as_strided((plain.numel(),), (1,))
            found.update(flat.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _parts(tensor: Tensor) -> list[Tensor]:
    """The strided tensors that a tensor consists of."""
    if tensor.device.type == "meta":
        raise TypeError("meta tensors hold no data")
    if tensor.is_nested:
        return [part for item in tensor.unbind() for part in _parts(item)]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_mkldnn:
        return [tensor.to_dense()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    return [tensor]


def seal(table: ValueTable, store: TensorStore, ops: Sequence[Any]) -> list[Value]:
    """Find the outputs, fingerprint them, store the inputs; returns the outputs."""
    outputs = _find_outputs(table, ops)
    for value in outputs:
        tensor = _tensor_behind(value)
        if tensor is None:
            continue
        try:
            store.digests[value.id] = digest(tensor)
        except (TypeError, RuntimeError) as error:
            store.notes.append(f"The output {value.id} cannot be compared: {error}.")
    if any(op.schema.is_nondeterministic(str(op.device)) for op in ops):
        _keep_expected(store, outputs)
    # An op that addresses its input's storage by absolute offset needs all of it.
    whole = any(op.schema.base.startswith("as_strided") for op in ops)
    _store_inputs(table, store, whole)
    return outputs


def _find_outputs(table: ValueTable, ops: Sequence[Any]) -> list[Value]:
    with_grad = {
        id(value.storage) for op in ops if op.grad_enabled for value in (*op.outputs, *op.inputs)
    }
    own_references = _references_of_cpp()
    outputs: list[Value] = []
    for storage in list(table.storages.values()):
        if storage.external:
            if storage.version:
                written = {value.view: value for value in storage.values if value.version}
                outputs.extend(table.latest(value) for value in written.values())
            continue
        if not storage.alive():
            continue
        latest = {value.view: value for value in storage.values}
        held = [value for value in storage.values if _is_held(value, own_references)]
        if not held and storage.weak is not None and id(storage) in with_grad:
            # Autograd alone keeps it, for a backward pass that may never come.
            for value in storage.values:
                value.saved = value.version == storage.version
            continue
        views = [*held, storage.values[0]] if storage.values[0].version == storage.version else held
        chosen = {value.view: value for value in (views or [storage.values[0]])}
        for view in chosen:
            outputs.append(table.latest(latest[view]))
    unique = {value.id: value for value in outputs}
    return sorted(unique.values(), key=lambda value: value.number)


def _references_of_cpp() -> int:
    """Python references that torch itself holds to a tensor that C++ shares (0 or 1).

    It differs between versions of torch, so it is looked at.
    """
    with torch.enable_grad():
        probe = torch.ones(1, requires_grad=True) * 1.0
        saves_probe = probe * probe
    count = sys.getrefcount(probe) - 2
    del saves_probe
    return count


def _is_held(value: Value, references_of_cpp: int) -> bool:
    """True where Python code (not only autograd) holds the tensor itself."""
    tensor = None if value.tensor is None else value.tensor()
    if tensor is None:
        return False
    count = sys.getrefcount(tensor) - 2  # the name above, and the argument
    if tensor._use_count() > 1:  # type: ignore[attr-defined]
        count -= references_of_cpp
    return count > 0


def _tensor_behind(value: Value) -> Tensor | None:
    """A tensor with the data of ``value``, from any tensor that shares its storage."""
    tensor = None if value.tensor is None else value.tensor()
    if tensor is not None:
        return tensor
    storage = value.storage
    if storage.anchor is not None:
        return storage.anchor
    candidates = [known.tensor() for known in storage.values if known.tensor is not None]
    if storage.external:
        candidates += [known for _, known in storage.inputs]
    for known in candidates:
        if known is not None and known.untyped_storage()._cdata == value.view[0]:
            return view_of(known, value.spec({}), value.dtype)
    return None


def _keep_expected(store: TensorStore, outputs: Sequence[Value]) -> None:
    """Keep outputs themselves: some may only be compared within tolerance."""
    for value in outputs:
        tensor = _tensor_behind(value)
        if tensor is None or tensor.layout is not torch.strided or tensor.is_quantized:
            continue
        if tensor.device.type != "meta" and store.reserve(tensor.numel() * tensor.itemsize):
            with torch.inference_mode(False):
                store.expected[value.id] = tensor.detach().clone()


def _store_inputs(table: ValueTable, store: TensorStore, whole: bool) -> None:
    dropped_bytes = 0
    for storage in table.storages.values():
        if storage.external and storage.inputs:
            dropped_bytes += _store_input(storage, store, whole)
    if dropped_bytes:
        store.notes.append(
            f"{dropped_bytes / 2**20:.0f} MiB of inputs were not kept: copies are capped at "
            f"{store.byte_cap / 2**20:.0f} MiB (byte_cap). What needs them is not run."
        )


def _store_input(storage: Storage, store: TensorStore, whole: bool) -> int:
    """Store every input view of one storage; returns the bytes that the cap kept out."""
    values = [value for value, _ in storage.inputs]
    first = storage.inputs[0][1]
    reason = f"it is larger than what the byte cap of {store.byte_cap} bytes leaves"
    if storage.too_large:
        store.drop((value.id for value in values), reason)
        return _bytes_of(first)
    if storage.anchor is not None or first.is_quantized:
        for value, tensor in storage.inputs:
            with torch.inference_mode(False):
                copy = tensor.detach().clone() if storage.raw is None else storage.raw
            store.put(value.id, copy)
        storage.inputs.clear()
        return 0
    if storage.raw is None and any("parameter" in value.flags for value in values):
        for value, tensor in storage.inputs:
            store.refer(value.id, tensor)
        storage.inputs.clear()
        return 0
    raw, start = storage.raw, 0
    if raw is None:
        raw, start = _copy_extent(first, values, store, whole)
    storage.inputs.clear()
    if raw is None:
        store.drop((value.id for value in values), reason)
        return _bytes_of(first)
    for value in values:
        store.put(value.id, view_of(raw, value.spec({}), value.dtype, start))
    return 0


def _copy_extent(
    first: Tensor, values: Sequence[Value], store: TensorStore, whole: bool
) -> tuple[Tensor | None, int]:
    """A copy of the part of a storage that the inputs look at, and where it starts in bytes."""
    extents = [extent_bytes(value.spec({}), value.dtype.itemsize) for value in values]
    start = min(begin for begin, _ in extents) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
    end = max(end for _, end in extents)
    if first.device.type == "meta":
        return snapshot_storage(first), 0
    if whole:
        start, end = 0, first.untyped_storage().nbytes()
    if not store.reserve(end - start):
        return None, 0
    if start == 0 and end == first.untyped_storage().nbytes():
        return snapshot_storage(first), 0
    return snapshot_range(first, start, end), start


def _bytes_of(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return tensor.numel() * tensor.element_size()
