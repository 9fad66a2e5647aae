"""Launching a CUDA kernel on torch's device and current stream.

The first launch of a kind of call is numba's own: it compiles, links and loads the kernel, and is
told about its arguments the long way.  What it has loaded (through ``cuda.core``) is then started
by addresses: both ways run the very same machine code.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from fusion_advisor.runtime.index_width import THREADS_PER_BLOCK
from fusion_advisor.runtime.launch import Launch
from fusion_advisor.runtime.plan import Plan, Signature

Entry = Callable[[tuple[Any, ...], tuple[torch.Tensor, ...]], None]


class CannotLaunchError(Exception):
    """The kernel cannot be compiled, linked or started here; the message says why."""


def refusal(error: Exception) -> str:
    """Why numba or the driver refused a kernel, or "" for an error that is somebody else's."""
    home = type(error).__module__.partition(".")[0]
    if home not in ("numba", "numba_cuda", "cuda"):
        return ""
    text = str(error)
    if "UNSUPPORTED_PTX" in text or "unsupported toolchain" in text:
        return (
            "its CUDA kernel cannot be linked: the driver is older than the toolkit that compiled "
            "it; update the driver, or install the numba-cuda of the driver's CUDA version"
        )
    line = (text.strip().splitlines() or [type(error).__name__])[0]
    return f"its CUDA kernel cannot be launched here ({line[:160]})"


def run(launch: Launch, device: torch.device) -> None:
    """Start the kernel on torch's current stream; nothing waits for it.

    Memory safety follows from the stream: the outputs were allocated on it, and torch orders the
    reuse of freed inputs after it.

    Raises:
        CannotLaunchError: numba or the driver does not take the kernel.
    """
    try:
        _start(launch, device)
    except Exception as error:
        reason = refusal(error)
        if not reason:
            raise
        raise CannotLaunchError(reason) from error


def _start(launch: Launch, device: torch.device) -> None:
    from numba import cuda

    with torch.cuda.device(device), cuda.gpus[device.index]:
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        arrays = [_device_array(cuda, array) for array in launch.arrays]
        numbers = (*launch.sizes, *launch.strides, *launch.scalars)
        launch.kernel[blocks_of(launch.elements), THREADS_PER_BLOCK, stream](*arrays, *numbers)
        launch.finish()


def _device_array(cuda: Any, tensor: torch.Tensor) -> Any:
    # torch's array interface names no stream, so numba must not synchronise on one.
    return cuda.as_cuda_array(tensor, sync=False)


def blocks_of(elements: int) -> int:
    """Blocks of one thread per element."""
    return -(-elements // THREADS_PER_BLOCK)


# -- by addresses ----------------------------------------------------------------------------------


class PackedArguments:
    """A call's arguments as the driver reads them: an address per machine argument.

    numba passes an array as seven machine arguments: two that are always 0, its length, the bytes
    of an element, its address, its length again, and the step to the next element.  Sizes and
    strides follow, then run-time numbers.  Only addresses and numbers differ from call to call, so
    the rest is written once, into eight bytes each whatever its width (the low ones count).

    Every thread has a memory of its own: the interpreter may turn to another while the driver
    reads.
    """

    def __init__(self, signature: Signature, plan: Plan, launch: Launch) -> None:
        words: list[int] = []
        places: list[int] = []
        for array in launch.arrays:
            length, item = int(array.shape[0]), _item_bytes(array)
            places.append(len(words) + 4)
            words += [0, 0, length, item, 0, length, item]
        words += [int(number) for number in (*launch.sizes, *launch.strides)]
        given = len(signature.sources)
        self._operands = tuple(
            (place, source, planned.offset * _item_bytes(array))
            for place, source, planned, array in zip(
                places[:given], signature.sources, plan.operands, launch.arrays[:given], strict=True
            )
        )
        self._outputs = tuple(places[given:])
        first = len(signature.parameters)
        self._numbers = tuple(
            (len(words) + number, first + number, isinstance(value, float))
            for number, value in enumerate(launch.scalars)  # as numba typed them
        )
        self._words = (*words, *[0] * len(launch.scalars))
        self._memory = threading.local()

    def of(self, args: tuple[Any, ...], out: tuple[torch.Tensor, ...]) -> int:
        """Where the driver finds this call's arguments, until this thread's next call."""
        memory = getattr(self._memory, "memory", None)
        if memory is None:
            memory = self._memory.memory = _Memory(self._words)
        words = memory.words
        for place, source, offset in self._operands:
            words[place] = args[source].data_ptr() + offset
        for place, tensor in zip(self._outputs, out, strict=True):
            words[place] = tensor.data_ptr()
        for place, source, is_float in self._numbers:
            (memory.doubles if is_float else words)[place] = args[source]
        return memory.address

    def __len__(self) -> int:
        return len(self._words)


class _Memory:
    """Machine arguments, eight bytes each, and their addresses."""

    def __init__(self, words: tuple[int, ...]) -> None:
        count = len(words)
        self.words = (ctypes.c_int64 * count)(*words)
        self.doubles = (ctypes.c_double * count).from_buffer(self.words)
        first = ctypes.addressof(self.words)
        self._addresses = (ctypes.c_void_p * count)(*[first + 8 * place for place in range(count)])
        self.address = ctypes.addressof(self._addresses)


def _item_bytes(array: Any) -> int:
    item = array.element_size() if isinstance(array, torch.Tensor) else array.itemsize
    return int(item)


def entry_for(signature: Signature, plan: Plan, launch: Launch) -> Entry | None:
    """A launch of this kind of call by addresses, after ``run`` has launched one; else None.

    None too where an operand is copied or moved first, or where this numba keeps what it has
    loaded elsewhere: ``run`` then serves every call.
    """
    tensors = [*launch.arrays, *launch.outputs]
    if plan.copies or any(
        tensor.device != plan.device for tensor in tensors if isinstance(tensor, torch.Tensor)
    ):
        return None
    try:
        from cuda.bindings import driver

        function = driver.CUfunction(int(_loaded(launch).handle))
    except (ImportError, AttributeError, LookupError, TypeError, ValueError):
        return None
    packed = PackedArguments(signature, plan, launch)
    return make_entry(packed, plan, function, driver.cuLaunchKernel, driver.CUstream)


def _loaded(launch: Launch) -> Any:
    """What numba loaded for the launch that it has just made."""
    kinds = tuple([launch.kernel.typeof_pyval(value) for value in launch.arguments])
    overloads = launch.kernel.overloads
    compiled = overloads[kinds] if kinds in overloads else _only(overloads)
    return compiled._codelibrary.get_cufunc().kernel


def _only(overloads: Any) -> Any:
    (compiled,) = overloads.values()
    return compiled


def make_entry(
    packed: PackedArguments,
    plan: Plan,
    function: Any,
    start: Callable[..., tuple[Any, ...]],
    stream_type: Callable[[int], Any],
) -> Entry:
    """``entry(args, out)``: one launch on torch's current stream of the plan's device.

    ``start`` is the driver's ``cuLaunchKernel``, which tells by a number whether it took it.
    """
    index, blocks, address_of = plan.device.index, blocks_of(plan.elements), packed.of
    raw_stream = _raw_stream_getter()
    current_device = getattr(torch._C, "_cuda_getDevice", None)
    streams: dict[int, Any] = {}

    def entry(args: tuple[Any, ...], out: tuple[torch.Tensor, ...]) -> None:
        if current_device is not None and current_device() != index:
            with torch.cuda.device(index):
                entry(args, out)
            return
        handle = raw_stream(index)
        stream = streams.get(handle)
        if stream is None:
            stream = streams[handle] = stream_type(handle)
        arguments = address_of(args, out)
        (result,) = start(function, blocks, 1, 1, THREADS_PER_BLOCK, 1, 1, 0, stream, arguments, 0)
        if result != 0:
            name = getattr(result, "name", result)
            raise CannotLaunchError(f"its CUDA kernel cannot be launched here ({name})")

    return entry


def _raw_stream_getter() -> Callable[[int], int]:
    """torch's own quick way to the current stream of a device, where it has one."""
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if quick is not None:
        found: Callable[[int], int] = quick
        return found
    return lambda index: int(torch.cuda.current_stream(index).cuda_stream)
