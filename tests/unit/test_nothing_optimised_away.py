"""Arithmetic that looks like nothing is done all the same: zeros keep their sign, NaN stays NaN."""

from __future__ import annotations

from collections.abc import Callable

import kernel_harness as harness
import numpy as np
import pytest
import torch
from codegen_cases import Chain

from fusion_advisor.runtime import index_width
from fusion_advisor.validation import cuda_compiler, native_module

pytestmark = pytest.mark.essential

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-42, -1e-42, 3e38, -3e38, torch.inf, -torch.inf, torch.nan]


def plus_zero(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """t + 0 turns -0 into 0, t - 0 does not; 0 - t is not -t; 0 * t is NaN or -0 for some t."""
    t = x * 1.0
    return t + 0.0, t - 0.0, 0.0 - t, -t, 0.0 * t, t + (-0.0), t / 1.0, t * y


def cancelling(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """None of these is t, 0, 1 or twice t for every t and y."""
    t = x + 0.0
    return (t + y) - y, t - t, t / t, (t * 2.0) * 0.5, (t * y) / y, t == t, (t + y) + y


def extremes(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    t = -x
    return torch.maximum(t, y), torch.minimum(t, y), torch.relu(t) - y, t.clamp(0.0, 1.0) + y


def wrapping(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What overflows wraps: t + 1 > t is no tautology."""
    t = x + y
    return t * y, (t + 1) > t, -t, (t - y) + y, (t * 2) - t


def chain_and_arguments(
    function: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype
) -> tuple[Chain, list[torch.Tensor]]:
    if dtype.is_floating_point:
        values = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    else:
        bounds = torch.iinfo(dtype)
        values = torch.tensor([0, 1, 2, 7, bounds.max, bounds.max - 1, bounds.min, bounds.min + 1])
        values = values.to(dtype)
    x, y = (one.reshape(-1).contiguous() for one in torch.meshgrid(values, values, indexing="ij"))
    return Chain(function, x, y), [x, y]


CASES = [
    *((function, dtype) for function in (plus_zero, cancelling, extremes)
      for dtype in (torch.float32, torch.float64)),
    (plus_zero, torch.bfloat16), (extremes, torch.float16),
    *((wrapping, dtype) for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "dtype"), CASES)
def test_bits_are_eagers(
    function: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype
) -> None:
    chain, _ = chain_and_arguments(function, dtype)
    args = chain.arguments()
    namespace = harness.load(chain.kernel)
    expected = namespace[chain.kernel.eager_name](*args)
    fused = namespace[chain.kernel.entry]
    for one, two in zip(fused.run_cpu(args, parallel=False), expected, strict=True):
        assert harness.differing(one, two) == 0
    if cuda_compiler.toolchain_missing():
        return
    compiled = cuda_compiler.compile_cuda(chain.kernel)
    host = native_module.translate(compiled.modules, compiled.name, compiled.architecture)
    launch = fused.prepare(args, "cuda")
    numbers = [value.item() if isinstance(value, np.generic) else value
               for value in launch.arguments]  # fmt: skip
    native_module.NativeKernel(host).launch(1, index_width.THREADS_PER_BLOCK, numbers)
    for one, two in zip(launch.outputs, expected, strict=True):
        assert harness.differing(one, two) == 0


def test_the_special_values_can_tell() -> None:
    """Each simplification that a compiler might make would show in some of them."""
    x = torch.tensor(SPECIAL)
    assert harness.differing(x + 0.0, x) and harness.differing(0.0 - x, -x)
    assert harness.differing(0.0 * x, torch.zeros_like(x))
    assert harness.differing((x + 1.0) - 1.0, x) and harness.differing(x - x, torch.zeros_like(x))
    assert harness.differing((x * 2.0) * 0.5, x)
    i = torch.tensor([torch.iinfo(torch.int8).max], dtype=torch.int8)
    assert not bool(((i + 1) > i).all())
