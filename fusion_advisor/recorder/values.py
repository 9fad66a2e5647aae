"""Which tensor is which value: functional SSA over storages that programs write in place.

A tensor is known by its storage and its view (offset, shape, strides, dtype).  Every
storage carries our own version number, raised by each op that writes it; torch's
``_version`` is unreadable in inference mode and is raised only after a dispatch mode
has seen the op.  A weak reference to each storage keeps its address from being reused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from fusion_advisor.recorder.tensor_store import TensorStore, snapshot_storage
from fusion_advisor.records import TensorSpec, ValueRef

_PLAIN_CLASSES = (Tensor, nn.Parameter, nn.Buffer)
_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
storage_id: Callable[[Tensor], int] = torch._C._storage_id  # type: ignore[attr-defined]

View = tuple[Any, ...]


class Storage:
    """One storage: who has seen it, how often it was written, what it held at first."""

    # Defaults stand on the class: made once per op, set only where they differ.
    version = 0
    weak: StorageWeakRef | None = None
    anchor: Tensor | None = None  # holds tensors that have no storage (sparse, …)
    raw: Tensor | None = None  # its bytes (or, without bytes, a clone) before its first write
    too_large = False

    def __init__(self, index: int, external: bool) -> None:
        self.index = index
        self.external = external  # existed before an op of the recording made it
        self.values: list[Value] = []
        if external:
            self.inputs: list[tuple[Value, Tensor]] = []

    def alive(self) -> bool:
        """True while anyone still holds it."""
        return self.weak is None or not self.weak.expired()


class Value:
    """One version of one view of one storage."""

    alias_of: Value | None = None
    requires_grad = False
    flags: tuple[str, ...] = ()
    blank = False  # memory that nothing has written
    saved = False  # alive at the end for autograd alone
    tensor: weakref.ReferenceType[Tensor] | None = None
    _ref: ValueRef | None = None

    def __init__(self, number: int, storage: Storage, view: View, device: torch.device) -> None:
        self.number = number
        self.storage = storage
        self.version = storage.version
        self.view = view
        self.device = device

    @property
    def id(self) -> str:
        """The id of its ``TensorSpec``."""
        return f"v{self.number}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype, which is part of the view."""
        return self.view[4]  # type: ignore[no-any-return]

    @property
    def ref(self) -> ValueRef:
        """How the arguments of ops name it."""
        ref = self._ref
        if ref is None:
            ref = self._ref = ValueRef(value=f"v{self.number}")
        return ref

    def spec(self, names: dict[Any, str]) -> TensorSpec:
        """The record; ``names`` caches printed dtypes and devices."""
        dtype, device = self.dtype, self.device
        strided = self.view[0] != "opaque"
        return TensorSpec(
            id=self.id,
            dtype=names.get(dtype) or names.setdefault(dtype, str(dtype).removeprefix("torch.")),
            shape=tuple(self.view[2]),
            strides=self.view[3],
            offset=self.view[1] if strided else 0,
            storage=self.storage.index,
            version=self.version,
            device=names.get(device) or names.setdefault(device, str(device)),
            requires_grad=self.requires_grad,
            alias_of=None if self.alias_of is None else self.alias_of.id,
            flags=(*self.flags, "saved") if self.saved else self.flags,
        )


def _view_of(tensor: Tensor) -> View:
    """What identifies a tensor while its storage lives."""
    try:
        dtype = tensor.dtype
        return (
            storage_id(tensor),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            dtype,
            tensor.is_neg(),
            dtype.is_complex and tensor.is_conj(),
        )
    except (NotImplementedError, RuntimeError):
        # Sparse, mkldnn and nested tensors have no storage or no strides; the tensor itself
        # is held while recording, so its address stands for it.
        shape = () if tensor.is_nested else tuple(tensor.shape)
        return ("opaque", tensor._cdata, shape, (), tensor.dtype, False, False)


def flags_of(tensor: Tensor) -> tuple[str, ...]:
    """The flags of a ``TensorSpec``."""
    flags = []
    if tensor.is_conj():
        flags.append("conj")
    if tensor.is_neg():
        flags.append("neg")
    if tensor.is_nested:
        flags.append("nested")
    elif tensor.layout is not torch.strided:
        flags.append("mkldnn" if tensor.is_mkldnn else "sparse")
    if tensor.is_quantized:
        flags.append("quantized")
    if isinstance(tensor, nn.Parameter):
        flags.append("parameter")
    elif type(tensor) not in _PLAIN_CLASSES:
        flags.append(f"subclass:{type(tensor).__name__}")
    return tuple(flags)


class ValueTable:
    """Values by view, in the order they came into being."""

    def __init__(self, store: TensorStore, conjure: Callable[[Value, Value], None]) -> None:
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        self.storages: dict[Any, Storage] = {}
        self._current: dict[View, Value] = {}
        self._store = store
        self._conjure = conjure

    def read(self, tensor: Tensor) -> Value:
        """The value an op reads when it is handed ``tensor``."""
        view = _view_of(tensor)
        value = self._current.get(view)
        if value is None or value.version != value.storage.version:
            value = self._first_read(tensor, view, value)
        return value

    def made(self, tensor: Tensor, *, blank: bool = False) -> Value:
        """The value an op returned that is not one of its written arguments."""
        view = _view_of(tensor)
        storage = self.storages.get(view[:2] if view[0] == "opaque" else view[0])
        if storage is None:
            storage = self._new_storage(tensor, view, external=False)
        value = self._new_value(storage, view, tensor)
        value.blank = blank
        known = self._current.get(view)
        # A view that changes nothing (detach, view to the same shape) holds the data of the
        # value that is already there: later reads go to that one, past the view.
        if known is None or known.version != storage.version:
            self._current[view] = value
        return value

    def before_write(self, tensor: Tensor, storage: Storage) -> None:
        """Keep what a storage that came from outside holds, before an op writes it first."""
        if not storage.external or storage.raw is not None or storage.too_large:
            return
        opaque = storage.anchor is not None
        size = 0 if opaque else tensor.untyped_storage().nbytes()
        if not self._store.reserve(size):
            storage.too_large = True
        elif opaque:
            storage.raw = tensor.detach().clone()
        else:
            storage.raw = snapshot_storage(tensor)

    def written(self, tensors: list[Tensor], old: list[Value]) -> list[Value]:
        """The new values of the arguments an op has written, in order."""
        touched = {id(value.storage): value.storage for value in old}
        for storage in touched.values():
            storage.version += 1
        made: list[Value] = []
        for tensor, before in zip(tensors, old, strict=True):
            view = _view_of(tensor)  # resize_ and set_ change it
            storage = before.storage
            key = view[:2] if view[0] == "opaque" else view[0]
            if self.storages.get(key) is not storage:
                storage = self.storages.get(key) or self._new_storage(tensor, view, external=False)
            current = self._current.get(view)
            if current is not None and current in made:
                made.append(current)  # the same view, given twice
                continue
            value = self._new_value(storage, view, tensor)
            value.requires_grad = before.requires_grad
            self._current[view] = value
            made.append(value)
        return made

    def _first_read(self, tensor: Tensor, view: View, known: Value | None) -> Value:
        """A view that is new, or whose storage was written since it was last seen."""
        key = view[:2] if view[0] == "opaque" else view[0]
        storage = self.storages.get(key)
        if storage is None:
            storage = self._new_storage(tensor, view, external=True)
        if known is None:
            if storage.external:
                known = self._input(storage, view, tensor)
                if storage.version == 0:
                    return known
            else:
                base = self.latest(storage.values[0])
                value = self._new_value(storage, view, tensor)
                self._current[view] = value
                self._conjure(base, value)
                return value
        return self.renew(known)

    def _input(self, storage: Storage, view: View, tensor: Tensor) -> Value:
        value = self._new_value(storage, view, tensor)
        value.version = 0
        value.requires_grad = tensor.requires_grad
        self._current[view] = value
        self.inputs.append(value)
        storage.inputs.append((value, tensor))
        return value

    def latest(self, value: Value) -> Value:
        """What the view of ``value`` holds now."""
        current = self._current.get(value.view, value)
        return current if current.version == value.storage.version else self.renew(current)

    def renew(self, known: Value) -> Value:
        """The value a view has after its storage was written through another view."""
        storage = known.storage
        value = Value(len(self.values), storage, known.view, known.device)
        value.alias_of = known
        value.flags, value.requires_grad = known.flags, known.requires_grad
        value.blank, value.tensor = known.blank, known.tensor
        self.values.append(value)
        storage.values.append(value)
        self._current[known.view] = value
        return value

    def _new_value(self, storage: Storage, view: View, tensor: Tensor) -> Value:
        value = Value(len(self.values), storage, view, tensor.device)
        value.tensor = weakref.ref(tensor)
        if (
            storage.external
            or storage.anchor is not None
            or type(tensor) is not Tensor
            or view[5]
            or view[6]
            or view[4] in _QUANTIZED
        ):
            value.flags = flags_of(tensor)
        self.values.append(value)
        storage.values.append(value)
        return value

    def _new_storage(self, tensor: Tensor, view: View, *, external: bool) -> Storage:
        storage = Storage(len(self.storages), external)
        if view[0] == "opaque":
            storage.anchor = tensor
            self.storages[view[:2]] = storage
        else:
            storage.weak = StorageWeakRef(tensor.untyped_storage())
            self.storages[view[0]] = storage
        return storage
