"""The conditions under which a fused kernel may stand in for the eager chain.

``context_problem`` looks at what surrounds the call, ``tensor_problem`` at one operand; both
return a reason for a person, or "".  The per-call part is kept to what a cached plan cannot know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

PLAIN_TYPES = frozenset({torch.Tensor, Parameter})
NUMBER_TYPES = frozenset({bool, int, float})

_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_functorch_level = torch._C._functorch.maybe_current_level
_tracing = torch._C._get_tracing_state


def context_problem() -> str:
    """Why no kernel may run here at all: something must see the single eager ops."""
    if _dispatch_modes():
        return "a dispatch mode is active"
    if _function_modes() and not _only_default_device():
        return "a torch-function mode is active"
    if _functorch_level() is not None:
        return "inside a functorch transform (vmap, grad, jvp …)"
    if _tracing() is not None:
        return "torch.jit is tracing"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return ""


def recorder() -> Any:
    """The recording of ours that sees this call, or None.

    It needs the single ops, and what it makes a kernel do counts for nothing.
    """
    if _dispatch_modes():
        for mode in _get_current_dispatch_mode_stack():
            if getattr(mode, "records_fused_calls", False):
                return mode
    return None


def _only_default_device() -> bool:
    """Whether all function modes are torch.set_default_device's, which no operand notices."""
    return all(
        isinstance(torch._C._get_function_stack_at(index), DeviceContext)
        for index in range(_function_modes())
    )


def tensor_problem(tensor: Any, dtype: str) -> str:
    """Why this operand cannot be handed to a kernel that reads ``dtype``, or ""."""
    if type(tensor) not in PLAIN_TYPES:
        return f"it is a {type(tensor).__name__}, not a plain tensor"
    if tensor.layout != torch.strided or tensor.is_nested:
        return "it is not strided (sparse, nested …)"
    if tensor.dtype != getattr(torch, dtype):
        return f"its dtype is {str(tensor.dtype).removeprefix('torch.')}, not {dtype}"
    if tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor():
        return "it has a lazy conj, neg or zero bit"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"it is on {tensor.device.type}"
    return ""


def exact_match(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool] | None:
    """A fast test for tensors of exactly this kind in exactly this dispatch state.

    It is the guard that torch's own compiler uses; None where this torch has no such guard.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        # torch's stub declares these lists one level too flat.
        sizes: Any = [list(tensor.shape) for tensor in tensors]
        strides: Any = [list(tensor.stride()) for tensor in tensors]
        guard = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        check: Callable[..., bool] = guard.check
        return check if check(*tensors) is True else None
    except (ImportError, TypeError, RuntimeError):
        return None


def devices_problem(tensors: tuple[torch.Tensor, ...]) -> str:
    """Why the operands do not share a device, or "" (a 0-dim CPU tensor goes with any)."""
    devices = {tensor.device for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
    return f"operands on {len(devices)} devices" if len(devices) > 1 else ""


def written_problem(
    parameters: tuple[tuple[str, str], ...], written: tuple[int, ...], args: tuple[Any, ...]
) -> str:
    """Why the chain must write its own operand in place, or "".

    A kernel leaves operands alone.  That makes a difference where somebody else sees the memory:
    another operand, the tensor itself at another index, or autograd, which refuses leaves.
    """
    tensors = args[: len(parameters)]
    try:
        for place in written:
            problem = _shared(tensors, place, parameters)
            if problem:
                name = parameters[place][0]
                return f"operand {name} is written in place, and {problem}"
    except (RuntimeError, AttributeError, IndexError):
        pass  # no tensors with memory of their own: the other guards say so
    return ""


def _shared(tensors: tuple[Any, ...], place: int, parameters: tuple[tuple[str, str], ...]) -> str:
    """Who else sees the memory of a tensor, or ""."""
    tensor = tensors[place]
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        return "is a leaf that requires a gradient"
    if not tensor.is_contiguous() and any(
        not step and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return "is expanded"
    start, end = stretch(tensor)
    for other, second in enumerate(tensors):
        if other != place:
            first, last = stretch(second)
            if start < last and first < end:
                return f"shares memory with {parameters[other][0]}"
    return ""


def stretch(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and behind its last; equal where there is none."""
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes if start else 0
    shape, strides = tensor.shape, tensor.stride()
    if 0 in shape or not start:
        return start, start
    steps = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    return start, start + (steps + 1) * tensor.element_size()


def autocast_state(device: str) -> Any:
    """What autocast would do on this device type: its dtype if it is on, else None."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def autocast_changes(eager: Callable[..., Any], args: tuple[Any, ...], device: str) -> bool:
    """Whether the autocast state in force alters any op of the eager chain.

    The chain runs on fake tensors with and without it, and the op sequences are compared.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    def ops(enabled: bool) -> list[tuple[str, tuple[torch.dtype, ...]]]:
        mode = FakeTensorMode()
        fakes = [
            mode.from_tensor(arg.detach()) if isinstance(arg, torch.Tensor) else arg for arg in args
        ]
        dtype, recorder = torch.get_autocast_dtype(device), _OpRecorder()
        autocast = torch.autocast(device, dtype=dtype, enabled=enabled)
        with torch.no_grad(), autocast, mode, recorder:
            eager(*fakes)
        return recorder.seen

    return ops(True) != ops(False)


def default_dtype_matters(eager: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether any op of the eager chain makes floats out of operands that are none.

    Kernels are written for torch's own default dtype, float32.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    fakes = [
        mode.from_tensor(arg.detach()) if isinstance(arg, torch.Tensor) else arg for arg in args
    ]
    watcher = _FloatWatcher()
    try:
        with torch.no_grad(), mode, watcher:
            eager(*fakes)
    except Exception:  # whatever eager raises, it shall raise it to the caller itself
        return True
    return watcher.seen


class _FloatWatcher(TorchDispatchMode):
    """Notices an op whose floating result comes from no floating operand with dimensions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.seen = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [value for value in args if isinstance(value, torch.Tensor)]
        made = result if isinstance(result, tuple | list) else (result,)
        if any(isinstance(one, torch.Tensor) and one.is_floating_point() for one in made):
            floats = [one for one in given if one.is_floating_point()]
            self.seen = self.seen or not any(one.dim() or len(given) == 1 for one in floats)
        return result


class _OpRecorder(TorchDispatchMode):
    """Notes each op that is dispatched, with the dtypes it gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.seen: list[tuple[str, tuple[torch.dtype, ...]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else (result,)
        dtypes = tuple(value.dtype for value in results if isinstance(value, torch.Tensor))
        self.seen.append((str(func), dtypes))
        return result
