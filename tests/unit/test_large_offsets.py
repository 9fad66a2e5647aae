"""Offsets beyond 32 bits: which variant a call gets, and what it computes there.

Nothing large is allocated: address space is mapped without memory behind it, and a few pages of it
are touched.
"""

from __future__ import annotations

import importlib
import mmap
import sys
from typing import Any

import kernel_harness as harness
import numpy as np
import pytest
import torch
from codegen_cases import Chain

from fusion_advisor.analysis.legality import MAX_ELEMENTS
from fusion_advisor.ops.dtypes import SUPPORTED_DTYPES
from fusion_advisor.runtime import index_width
from fusion_advisor.runtime.plan import make_plan
from fusion_advisor.validation import cuda_compiler, native_module

pytestmark = pytest.mark.essential

_MAP_NORESERVE = 0x4000  # Linux; Python names it from 3.13 on
needs_toolchain = pytest.mark.skipif(
    bool(cuda_compiler.toolchain_missing()), reason=cuda_compiler.toolchain_missing() or "-"
)
needs_sparse_memory = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="maps address space as Linux does"
)


def sparse(dtype: torch.dtype, elements: int) -> torch.Tensor:
    """Zeros of which only the pages that are written to take memory."""
    size = elements * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    space = mmap.mmap(-1, size, flags=flags)
    return torch.from_numpy(np.frombuffer(space, np.uint8)).view(dtype)


def rows_apart(x: torch.Tensor, bias: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + bias) * y


@pytest.fixture(scope="module")
def strided() -> Chain:
    """A chain whose first operand has strides of its own (rows with gaps)."""
    return Chain(rows_apart, torch.randn(4, 16)[:, :8], torch.randn(8), torch.randn(4, 8))


@pytest.fixture(scope="module")
def bytes_chain() -> Chain:
    """Whole numbers of 8 bits, read as a matrix, a row and a column."""

    def scaled(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        return (x + row) * column

    small = [torch.randint(0, 9, shape, dtype=torch.uint8) for shape in ((5, 7), (7,), (5, 1))]
    return Chain(scaled, *small)


def fused_of(chain: Chain) -> Any:
    return harness.load(chain.kernel)[chain.kernel.entry]


def native(chain: Chain, *, wide: bool) -> native_module.NativeKernel:
    compiled = cuda_compiler.compile_cuda(chain.kernel, wide=wide)
    host = native_module.translate(compiled.modules, compiled.name, compiled.architecture)
    return native_module.NativeKernel(host)


def run_native(kernel: Any, launch: Any, first_block: int = 0) -> None:
    numbers = [value.item() if isinstance(value, np.generic) else value
               for value in launch.arguments]  # fmt: skip
    block = index_width.THREADS_PER_BLOCK
    kernel.launch(-(-launch.elements // block), block, numbers, first_block=first_block)


@needs_sparse_memory
@needs_toolchain
@pytest.mark.parametrize("row_stride", [2**31 - 5, 2**32 + 3, 2**31 // 3 + 1])
def test_rows_beyond_32_bits_are_read_where_they_are(strided: Chain, row_stride: int) -> None:
    memory = sparse(torch.float32, 3 * row_stride + 64)
    x = memory.as_strided((4, 8), (row_stride, 1), 40)
    x.copy_(torch.randn(4, 8))
    bias, y = torch.randn(8), torch.randn(4, 8)
    expected = rows_apart(x, bias, y)
    fused = fused_of(strided)
    assert torch.equal(fused(x, bias, y), expected), "the CPU kernel, as a call runs it"
    threads = torch.get_num_threads()  # Numba's OpenMP layer, once loaded, sets those of torch
    for parallel in (False, True):
        assert torch.equal(fused.run_cpu((x, bias, y), parallel=parallel)[0], expected)
    torch.set_num_threads(threads)
    launch = fused.prepare((x, bias, y), "cuda")
    assert {type(number) for number in (*launch.sizes, *launch.strides)} == {np.uint64}
    assert [int(stride) for stride in launch.strides] == [row_stride, 1]
    run_native(native(strided, wide=True), launch)
    assert torch.equal(launch.outputs[0], expected)
    # What the 64-bit variant is for: with 32 bits the last row is sought 2^32 elements too early.
    if 3 * row_stride > 2**32:
        launch.outputs[0].zero_()
        run_native(native(strided, wide=False), launch)
        assert not torch.equal(launch.outputs[0], expected)


@needs_sparse_memory
@needs_toolchain
def test_the_last_of_more_than_2_to_the_32_elements_are_computed(bytes_chain: Chain) -> None:
    fused, rows, columns = fused_of(bytes_chain), 2**20 + 1, 4097
    assert rows * columns > 2**32
    x, out = (sparse(torch.uint8, rows * columns).view(rows, columns) for _ in range(2))
    row = torch.randint(0, 256, (columns,), dtype=torch.uint8)
    column = torch.randint(0, 256, (rows, 1), dtype=torch.uint8)
    x[-2:] = torch.randint(0, 256, (2, columns), dtype=torch.uint8)
    # What eager gives for such arguments is known from small ones: they are not computed here.
    fused.prepare((x[:3, :3].contiguous(), row[:3].clone(), column[:3].clone()), "cuda")
    launch = fused.prepare((x, row, column), "cuda", out=(out,))
    assert {type(number) for number in launch.sizes} == {np.uint64}
    first = (rows - 2) * columns // index_width.THREADS_PER_BLOCK
    run_native(native(bytes_chain, wide=True), launch, first_block=first)
    start = first * index_width.THREADS_PER_BLOCK - (rows - 3) * columns
    expected = (x[-3:] + row) * column[-3:]
    assert torch.equal(out[-3:].reshape(-1)[start:], expected.reshape(-1)[start:])
    assert int(out[: 2**12].sum()) == 0, "nothing was written near the start"


@needs_sparse_memory
@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((4, 8), (2**29, 1), False),
        ((4, 8), (715827880, 1), False),  # 3 rows on and 7 elements: 2^31 - 1
        ((4, 8), (715827881, 1), True),
        ((2**16, 2**15 - 1), (2**15 - 1, 1), False),
        ((2**16, 2**15), (2**15, 1), True),
        ((2**16 + 1, 2**16), (2**16, 1), True),
        ((1, 8), (2**40, 1), False),  # a stride that is never taken
    ],
)
def test_the_variant_follows_from_the_largest_offset(
    strided: Chain, shape: Any, strides: Any, wide: bool
) -> None:
    importlib.import_module("torch._dynamo")  # with it, eager is looked at without memory
    reached = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    x = sparse(torch.float32, reached).as_strided(shape, strides)
    y = sparse(torch.float32, shape[0] * shape[1]).view(shape)
    args = (x, torch.zeros(shape[1]), y)
    plan = make_plan(fused_of(strided).signature, args, False, "cuda")
    assert not plan.problem and plan.wide is wide
    assert make_plan(fused_of(strided).signature, args, False, "cpu").wide is False


@needs_sparse_memory
def test_more_elements_than_a_launch_has_threads_are_refused(bytes_chain: Chain) -> None:
    assert MAX_ELEMENTS == index_width.MOST_ELEMENTS
    importlib.import_module("torch._dynamo")
    rows = index_width.MOST_ELEMENTS // 2**20
    for count in (rows, rows + 1):
        x = sparse(torch.uint8, count * 2**20).view(count, 2**20)
        row, column = torch.zeros(2**20, dtype=torch.uint8), torch.zeros(count, 1).byte()
        plan = make_plan(fused_of(bytes_chain).signature, (x, row, column), False, "cuda")
        if count == rows:
            assert not plan.problem and plan.wide
        else:
            assert "more than one launch has threads" in plan.problem


@needs_toolchain
def test_both_variants_are_of_one_text(strided: Chain) -> None:
    narrow, wide = (cuda_compiler.compile_cuda(strided.kernel, wide=wide) for wide in (False, True))
    assert "mul.wide.u32" in narrow.ptx or "mad.lo.s32" in narrow.ptx
    assert "rem.u64" in wide.ptx or "div.u64" in wide.ptx
    function = cuda_compiler.cuda_function(strided.kernel)
    assert index_width.widened(function).__code__ is function.__code__
    assert "uint32" not in SUPPORTED_DTYPES  # so that it is indices alone that become wider
