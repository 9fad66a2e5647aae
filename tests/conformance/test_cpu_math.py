"""The CPU maths: float64 accuracy against mpmath, special values, and that it vectorises.

Accuracy in float32 is swept by op: ``test_sweep.py``, ``docs/accuracy.md``.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import mpmath
import numba
import numpy as np
import pytest
import torch
from numba import prange

from fusion_advisor.runtime import cpu_kernel, cpu_kernels, cpu_math, load_kernel
from fusion_advisor.runtime.loading import text_hash

UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh"),
    *("sigmoid", "erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh"),
    *("atanh", "sqrt", "rsqrt"),
)
BINARY = ("pow", "hypot", "atan2", "fmod")
DOUBLE = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "tanh",
    "sinh",
    "cosh",
    "sigmoid",
)
VECTORISED = {
    "float32": UNARY,
    "float64": DOUBLE,
}
SPECIALS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3.4e38)


@functools.cache
def kernel_of(name: str) -> Any:
    """A CPU kernel that applies one function to every element."""
    function = getattr(cpu_math, name)

    def unary(x: Any, out: Any) -> None:
        for i in prange(out.size):
            out[i] = function(x[i])

    def binary(x: Any, y: Any, out: Any) -> None:
        for i in prange(out.size):
            out[i] = function(x[i], y[i])

    return cpu_kernel(binary if name in (*BINARY, "maximum", "minimum") else unary)


@pytest.mark.parametrize("name", DOUBLE)
def test_float64_error_against_mpmath(name: str) -> None:
    generator = np.random.default_rng(7)
    scale = np.array([1e-9, 1e-3, 0.3, 1.0, 5.0, 30.0, 300.0]).repeat(30)
    x = generator.standard_normal(scale.size) * scale
    if name in ("log", "log2", "log10"):
        x = np.abs(x)
    elif name == "log1p":
        x = np.where(x <= -1.0, -x, x)
    out = np.empty_like(x)
    kernel_of(name).serial(x, out)
    assert (
        max(
            _ulps(float(got), _exact(name, float(value))) for got, value in zip(out, x, strict=True)
        )
        <= 4.0
    )


def _exact(name: str, x: float) -> Any:
    functions = {
        "exp2": lambda v: mpmath.mpf(2) ** v,
        "log2": lambda v: mpmath.log(v, 2),
        "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
        "log1p": lambda v: mpmath.log(1 + v),
    }
    with mpmath.workprec(300):
        return functions.get(name, getattr(mpmath, name, None))(mpmath.mpf(x))


def _ulps(got: float, true: Any) -> float:
    nearest = float(true)
    if math.isinf(nearest) or math.isinf(got):
        return 0.0 if nearest == got else math.inf
    with mpmath.workprec(300):
        return float(abs(mpmath.mpf(got) - true) / mpmath.mpf(math.ulp(nearest)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_special_values_as_torch(name: str, dtype: Any) -> None:
    values = np.array(SPECIALS, dtype)
    operands = (values,) if name in UNARY else tuple(np.meshgrid(values, values))
    operands = tuple(np.ascontiguousarray(operand).ravel() for operand in operands)
    out = np.empty_like(operands[0])
    kernel_of(name).serial(*operands, out)
    # In float64: torch's float32 log1p takes subnormal numbers for zero.
    doubles = (torch.from_numpy(operand).double() for operand in operands)
    with np.errstate(over="ignore"):
        true = getattr(torch, name)(*doubles).numpy().astype(dtype)
    extreme = (true == 0) | ~np.isfinite(true)
    ulp = np.spacing(np.abs(np.where(extreme, 1, true)))
    close = np.abs(np.where(extreme, 0, out) - np.where(extreme, 0, true)) <= 4 * ulp
    same = (out == true) & (np.signbit(out) == np.signbit(true)) | (np.isnan(out) & np.isnan(true))
    bad = ~np.where(extreme, same, close)
    assert not bad.any(), [
        (*(operand[i] for operand in operands), out[i], true[i]) for i in np.flatnonzero(bad)[:4]
    ]


def _assembly(kernel: Any, *arguments: np.ndarray, parallel: bool = False) -> str:
    """The machine code of a twin, compiled here: Numba does not show code that was kept."""
    options: dict[str, Any] = {"parallel": dict(cpu_kernels._PARALLEL)} if parallel else {}
    twin = numba.njit(**options, **cpu_kernels._OPTIONS)(kernel.py_func)
    twin(*arguments)
    return str(next(iter(twin.inspect_asm().values())))


def test_a_parallel_kernel_is_vectorised() -> None:
    """Outlining the loop body for threads must not cost the vectors."""
    text = (Path(__file__).parents[1] / "golden/data/gelu_float32.py.txt").read_text()
    namespace = load_kernel(text, "FusedFunction", text_hash(text))
    (kernel,) = (item for item in namespace.values() if isinstance(item, cpu_kernels.CpuKernel))
    out = np.ones(64, np.float32)
    for parallel in (False, True):
        assembly = _assembly(kernel, np.ones(64, np.float32), out, parallel=parallel)
        wide = re.findall(r"\bv(?:mul|fmadd\w*)ps\b[^\n]*%[yz]mm", assembly)
        if not re.search(r"avx2|asimd|neon", Path("/proc/cpuinfo").read_text()):
            pytest.skip("no vector unit that this test knows")
        assert len(wide) >= 8


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_function_that_claims_to_vectorises(dtype: str) -> None:
    scalar = []
    for name in VECTORISED[dtype]:
        assembly = _assembly(kernel_of(name), *(np.ones(8, dtype) for _ in range(2)))
        suffix = "ps" if dtype == "float32" else "pd"
        if not re.search(rf"\bv\w+{suffix}\b[^\n]*%[yz]mm", assembly):
            scalar.append(name)
    if not re.search(r"avx2|asimd|neon", Path("/proc/cpuinfo").read_text()):
        pytest.skip("no vector unit that this test knows")
    assert scalar == []


def test_no_contraction_outside_the_maths() -> None:
    def multiply_add(x: Any, y: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = x[i] * y[i] + out[i]

    assembly = _assembly(cpu_kernel(multiply_add), *(np.ones(8, np.float32) for _ in range(3)))
    assert "vmulps" in assembly and "vfmadd" not in assembly


def test_16_bit_conversions_are_torchs_for_every_value() -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    singles = np.concatenate(
        [
            every.astype(np.uint32) << 16 | 0x8000,  # halfway between two bfloat16
            every.astype(np.uint32) << 16 | 0x7FFF,
            np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32),
            # Around every float16: itself, the midpoints and their neighbours.
            *(
                (every.view(np.float16).astype(np.float32).view(np.uint32) + np.uint32(shift))
                for shift in (0, 0xFFF, 0x1000, 0x1001)
            ),
        ]
    ).view(np.float32)
    for short, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        widened = np.empty(every.size, np.float32)
        kernel_of(f"{short}_to_f32").serial(every, widened)
        expected = torch.from_numpy(every.view(np.int16)).view(dtype).float().numpy()
        numbers = ~np.isnan(expected)
        assert (np.isnan(widened) == ~numbers).all()
        assert (widened.view(np.uint32) == expected.view(np.uint32))[numbers].all()

        narrowed = np.empty(singles.size, np.uint16)
        kernel_of(f"f32_to_{short}").serial(singles, narrowed)
        wanted = torch.from_numpy(singles).to(dtype)
        got = torch.from_numpy(narrowed.view(np.int16)).view(dtype)
        assert torch.equal(got.isnan(), wanted.isnan())
        keep = ~wanted.isnan()
        assert torch.equal(got.view(torch.int16)[keep], wanted.view(torch.int16)[keep])


def test_plain_python_agrees_with_compiled_code() -> None:
    x = np.array([-2.5, -0.0, 0.3, 1.0, 7.25, math.inf, math.nan], np.float32)
    for name in (*UNARY, "floor", "ceil", "trunc", "round", "abs"):
        out = np.empty_like(x)
        kernel_of(name).serial(x, out)
        plain = np.array([getattr(cpu_math, name)(value) for value in x], np.float32)
        np.testing.assert_allclose(out, plain, rtol=1e-6, err_msg=name)
        assert (np.signbit(out) == np.signbit(plain))[~np.isnan(plain)].all(), name


def test_maximum_and_minimum_keep_nan_in_either_operand() -> None:
    x = np.array([math.nan, 1.0, 2.0, -math.inf], np.float32)
    y = np.array([1.0, math.nan, 1.0, 0.0], np.float32)
    for name, numbers in (("maximum", [2.0, 0.0]), ("minimum", [1.0, -math.inf])):
        for a, b in ((x, y), (y, x)):
            out = np.empty_like(x)
            kernel_of(name).serial(a, b, out)
            assert np.isnan(out[:2]).all() and out[2:].tolist() == numbers


def test_fma_rounds_once_in_plain_python_too() -> None:
    x = np.float32(1.0 + 2.0**-12)
    z = np.float32(-(1.0 + 2.0**-11))
    assert cpu_math.fma(x, x, z) == np.float32(2.0**-24)  # x*x + z in two roundings is 0
    assert cpu_math.fma(np.float64(1 + 2.0**-30), np.float64(1 + 2.0**-30), -1.0) == (
        2.0**-29 + 2.0**-60
    )
