"""Launching a CUDA kernel on torch's device and current stream."""

from __future__ import annotations

from typing import Any

import torch

from fusion_advisor.runtime.index_width import THREADS_PER_BLOCK
from fusion_advisor.runtime.launch import Launch


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

    blocks = -(-launch.elements // THREADS_PER_BLOCK)
    with torch.cuda.device(device), cuda.gpus[device.index]:
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        arrays = [_device_array(cuda, array) for array in launch.arrays]
        numbers = (*launch.sizes, *launch.strides, *launch.scalars)
        launch.kernel[blocks, THREADS_PER_BLOCK, stream](*arrays, *numbers)
        launch.finish()


def _device_array(cuda: Any, tensor: torch.Tensor) -> Any:
    # torch's array interface names no stream, so numba must not synchronise on one.
    return cuda.as_cuda_array(tensor, sync=False)
