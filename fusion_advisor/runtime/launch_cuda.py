"""Launching a CUDA kernel on torch's device and current stream."""

from __future__ import annotations

from typing import Any

import torch

from fusion_advisor.runtime.index_width import THREADS_PER_BLOCK
from fusion_advisor.runtime.launch import Launch


def run(launch: Launch, device: torch.device) -> None:
    """Start the kernel on torch's current stream; nothing waits for it.

    Memory safety follows from the stream: the outputs were allocated on it, and torch orders the
    reuse of freed inputs after it.
    """
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
