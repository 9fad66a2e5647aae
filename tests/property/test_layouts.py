"""A fused function gives eager's values and eager's strides, however its tensors lie in memory.

Every kernel is recorded at one drawn layout and called at others of the same rank and the same
broadcasts: its CPU kernel by calls, its CUDA kernel by running the IR of either index width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_harness as harness
import numpy as np
import pytest
import torch
from codegen_cases import Chain
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from fusion_advisor.runtime import index_width
from fusion_advisor.validation import cuda_compiler, native_module

pytestmark = pytest.mark.essential

HAVE_TOOLCHAIN = not cuda_compiler.toolchain_missing()
OTHER_LAYOUTS = 5  # calls of each kernel


def two_results(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> Any:
    total = x + y
    return total, torch.relu(total) * b


def mixed(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (x - y.to(torch.float64)) * b + x


def turned_inside(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y).transpose(0, -1) * b


CHAINS: tuple[Callable[..., Any], ...] = (two_results, mixed, turned_inside)
DTYPES = (torch.float32, torch.bfloat16, torch.int32)


@st.composite
def laid_out(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of a shape: permuted, cut from a larger one, with steps, expanded, at an offset."""
    rank = len(shape)
    order = draw(st.one_of(st.just(tuple(range(rank))), st.permutations(range(rank))))
    strides, reach = [0] * rank, 1
    for dimension in reversed(tuple(order)):
        step = draw(st.sampled_from((1, 1, 1, 2, 3)))
        strides[dimension] = step * reach
        reach = (strides[dimension] * shape[dimension] or 1) + draw(st.sampled_from((0, 0, 0, 5)))
    for dimension, size in enumerate(shape):
        if size == 1:
            strides[dimension] = draw(st.sampled_from((strides[dimension], 0, 1, 977)))
        elif draw(st.integers(0, 11)) == 0:
            strides[dimension] = 0  # expanded
    offset = draw(st.sampled_from((0, 0, 1, 7)))
    memory = torch.randn(offset + 1 + sum(n * s for n, s in zip(shape, strides, strict=True)) * 2)
    memory = (memory * 40).to(dtype) if not dtype.is_floating_point else memory.to(dtype)
    return memory.as_strided(shape, strides, offset)


@st.composite
def arguments(draw: st.DrawFn, rank: int, along: tuple[bool, ...], dtype: torch.dtype) -> Any:
    """Two whole tensors, and one of size 1 in the dimensions that it does not move along.

    Sizes are at least 2 where a broadcast is: one that cannot be told would be another guard's.
    """
    shape = tuple(draw(st.sampled_from((2, 3, 5, 1) if moves else (2, 3, 5))) for moves in along)
    part = tuple(size if moves else 1 for size, moves in zip(shape, along, strict=True))
    return tuple(draw(laid_out(one, dtype)) for one in (shape, shape, part))


def same(actual: Any, expected: Any) -> None:
    """Bits, dtype, shape, strides and offset."""
    for one, two in zip(_tuple(actual), _tuple(expected), strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype)
        assert (one.stride(), one.storage_offset()) == (two.stride(), two.storage_offset())
        assert harness.differing(one, two) == 0


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


class NativeCuda:
    """The CUDA kernel of a chain as x86 code, of both index widths."""

    def __init__(self, chain: Chain) -> None:
        self.kernels = []
        for wide in (False, True):
            compiled = cuda_compiler.compile_cuda(chain.kernel, wide=wide)
            host = native_module.translate(compiled.modules, compiled.name, compiled.architecture)
            self.kernels.append(native_module.NativeKernel(host))

    def check(self, fused: Any, args: Any, expected: Any) -> None:
        launch = fused.prepare(args, "cuda")
        numbers = [value.item() if isinstance(value, np.generic) else value
                   for value in launch.arguments]  # fmt: skip
        blocks = -(-launch.elements // index_width.THREADS_PER_BLOCK)
        for kernel in self.kernels:
            kernel.launch(blocks, index_width.THREADS_PER_BLOCK, numbers)
            launch.finish()
            same(launch.outputs, expected)
            for output in launch.outputs:
                output.zero_()


def argument_like(tensor: torch.Tensor, captured: tuple[torch.Tensor, ...]) -> int:
    """Which captured argument an operand was; they are told apart by what they hold."""
    found = [n for n, one in enumerate(captured) if one.shape == tensor.shape and
             torch.equal(one, tensor)]  # fmt: skip
    assume(len(found) == 1)
    return found[0]


# Not shrunk: every step would compile kernels.
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(st.data())
def test_any_layout_gives_eagers_values_and_strides(data: st.DataObject) -> None:
    function, dtype = data.draw(st.sampled_from(CHAINS)), data.draw(st.sampled_from(DTYPES))
    rank = data.draw(st.integers(2, 4))
    along = tuple(data.draw(st.booleans()) for _ in range(rank))
    drawn = arguments(rank, along, dtype)
    if function is turned_inside:
        drawn = drawn.map(lambda args: (*args[:2], args[2].transpose(0, -1)))
    captured = data.draw(drawn)
    try:
        chain = Chain(function, *captured)
    except AssertionError:  # not one kernel: results that lie differently are cut apart
        assume(False)
    fused = harness.load(chain.kernel)[chain.kernel.entry]
    fused.reset_stats()
    taken = [argument_like(one, captured) for one in chain.arguments()]
    order = [taken[place] for place in (fused.signature.sources.index(n) for n in range(3))]
    native = NativeCuda(chain) if HAVE_TOOLCHAIN else None
    for args in (captured, *(data.draw(drawn) for _ in range(OTHER_LAYOUTS))):
        given_args = tuple(args[place] for place in order)
        expected = function(*args)
        same(fused(*given_args), expected)
        assert not fused.why_not(*given_args)
        if native is not None:
            native.check(fused, given_args, expected)
    assert fused.stats.fused == 1 + OTHER_LAYOUTS and not fused.stats.fallbacks
