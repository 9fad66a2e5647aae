"""The CUDA side without a GPU: it compiles, converts rightly, and is absent politely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runtime_samples as samples
import torch

from fusion_advisor.errors import MissingDependencyError
from fusion_advisor.runtime import cuda_math, cuda_support

needs_numba_cuda = pytest.mark.skipif(
    not cuda_support.HAVE_NUMBA_CUDA, reason="numba-cuda is not installed"
)


def test_conversions_as_plain_python_are_torchs() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)[::37]
    x = np.random.default_rng(0).integers(0, 1 << 32, 3000, dtype=np.uint32).view(np.float32)
    for short, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        widen = getattr(cuda_math, f"{short}_to_f32")
        narrow = getattr(cuda_math, f"f32_to_{short}")
        wide = torch.tensor([float(widen(value)) for value in bits])
        expected = torch.from_numpy(bits.view(np.int16)).view(dtype).float()
        assert torch.equal(wide.nan_to_num(-7.0), expected.nan_to_num(-7.0))
        narrowed = np.array([narrow(value) for value in x], np.uint16)
        got = torch.from_numpy(narrowed.view(np.int16)).view(dtype)
        wanted = torch.from_numpy(x).to(dtype)
        assert torch.equal(got.float().nan_to_num(-7.0), wanted.float().nan_to_num(-7.0))


@needs_numba_cuda
@pytest.mark.parametrize("architecture", [(8, 0), (9, 0)])
def test_conversions_compile_without_a_device(architecture: tuple[int, int]) -> None:
    from numba import uint32
    from numba.cuda import types

    cuda = cuda_support.cuda

    @cuda.jit
    def kernel(x, y, out, n):  # type: ignore[no-untyped-def]
        i = uint32(cuda.grid(1))
        if i < n:
            value = cuda_math.bf16_to_f32(x[i]) + cuda_math.f16_to_f32(y[i])
            out[i] = cuda_math.f32_to_bf16(value)
            y[i] = cuda_math.f32_to_f16(value)

    array = types.Array(types.uint16, 1, "C")
    signature = types.void(array, array, array, types.uint32)
    text, _ = cuda.compile(kernel.py_func, signature, cc=architecture, device=False, abi="numba")
    for instruction in ("cvt.rn.bf16.f32", "cvt.f32.f16", "cvt.rn.f16.f32", "shl.b32"):
        assert instruction in text


@needs_numba_cuda
def test_sample_kernels_compile_for_the_prepared_arguments() -> None:
    from numba.cuda import types

    space = samples.load(samples.BIAS)
    x = torch.randn(2, 5, 7)
    launch = space["fused"].prepare((x, x[0, 0].clone(), x, x), "cuda")
    array = types.Array(types.float32, 1, "C")
    # z is strided: its strides follow the sizes.
    assert len(launch.arguments) == 5 + 2 + 2
    assert launch.elements == 70 and all(item.ndim == 1 for item in launch.arrays)
    kernel = samples.load(samples.GELU)["gelu_cuda"]
    text, _ = cuda_support.cuda.compile(
        kernel.py_func,
        types.void(array, array, types.uint32),
        cc=(8, 0),
        device=False,
        abi="numba",
    )
    assert ".visible .entry" in text


def test_without_numba_cuda_the_text_loads_and_launching_says_what_to_install() -> None:
    """Generated text loads with the stand-ins; only a launch fails."""
    code = f"""
import sys
sys.modules["numba_cuda"] = None
sys.path[:0] = {[str(Path(__file__).parents[2]), str(Path(__file__).parent)]!r}
import torch, runtime_samples as samples
from fusion_advisor.errors import MissingDependencyError
space = samples.load(samples.GELU)
x = torch.randn(2, 3, 4)
assert torch.allclose(space["fused"](x), space["eager_gelu"](x), atol=1e-6)
assert space["gelu_cuda"].py_func.__name__ == "gelu_cuda"
try:
    space["gelu_cuda"][1, 256](x, x, 24)
except MissingDependencyError as error:
    assert "pip install" in str(error), error
else:
    raise AssertionError("launched")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_stand_ins_answer_for_every_use() -> None:
    cuda = cuda_support.MissingCuda()

    @cuda.jit(fastmath=False)
    def kernel() -> None:
        """A kernel."""

    assert kernel.__name__ == "kernel" and kernel.__doc__ == "A kernel."
    with pytest.raises(MissingDependencyError, match="numba-cuda"):
        kernel()
    with pytest.raises(MissingDependencyError, match=r"cuda\.grid"):
        cuda.grid(1)
    with pytest.raises(MissingDependencyError, match=r"libdevice\.expf"):
        cuda_support.MissingLibdevice().expf(1.0)
