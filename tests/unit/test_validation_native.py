"""NVVM IR run on the CPU: the shims, libdevice, and the guarded memory around a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import validation_kernels as kernels

from fusion_advisor.validation import toolchain_missing

_MISSING = toolchain_missing()
pytestmark = pytest.mark.skipif(bool(_MISSING), reason=_MISSING or "present")


def _native(function: Any, *dtypes: str, architecture: tuple[int, int] = (9, 0)) -> Any:
    """Compile a kernel over 1-D arrays of ``dtypes`` and a count, for this CPU."""
    from numba.cuda import types
    from numba.cuda.compiler import _compile_pyfunc_with_fixup

    from fusion_advisor.validation.native_module import NativeKernel, translate

    arrays = [getattr(types, dtype)[::1] for dtype in dtypes]
    library, _ = _compile_pyfunc_with_fixup(
        function, types.void(*arrays, types.uint32), device=False, abi="numba", cc=architecture
    )
    modules = tuple(str(text) for text in library.llvm_strs)
    return NativeKernel(translate(modules, library._entry_name, architecture))


def _apply(name: str, x: np.ndarray) -> np.ndarray:
    from numba import cuda
    from numba.cuda import libdevice

    function = getattr(libdevice, name)

    def kernel(source: Any, target: Any, count: Any) -> None:
        i = cuda.grid(1)
        if i < count:
            target[i] = function(source[i])

    native = _native(kernel, str(x.dtype), str(x.dtype))
    target = np.full_like(x, 7)
    native.launch((x.size + 63) // 64, 64, [x, target, x.size])
    return target


def _worst_ulp(actual: np.ndarray, exact: np.ndarray) -> float:
    assert (np.isnan(actual) == np.isnan(exact)).all()
    finite = np.isfinite(exact) & np.isfinite(actual)
    spacing = np.spacing(np.abs(exact[finite].astype(actual.dtype))).astype(np.float64)
    return float((np.abs(actual[finite].astype(np.float64) - exact[finite]) / spacing).max())


@pytest.mark.parametrize(
    ("name", "limit"),
    [("expf", 2), ("tanhf", 2), ("sinf", 2), ("cosf", 2), ("log1pf", 2), ("sin", 2), ("exp", 2)],
)
def test_libdevice_maths_is_right_far_out_too(name: str, limit: float) -> None:
    import mpmath

    dtype = np.float32 if name.endswith("f") else np.float64
    rng = np.random.default_rng(0)
    scales = (1.0, 50.0) if "exp" in name else (1e-3, 1.0, 1e5, 1e9)
    x = np.concatenate([rng.standard_normal(60) * scale for scale in scales]).astype(dtype)
    if name == "log1pf":
        x = np.abs(x)
    with mpmath.workprec(200):
        function = getattr(mpmath, name.removesuffix("f"))
        exact = np.array([float(function(mpmath.mpf(float(value)))) for value in x])
    actual = _apply(name, x)
    with np.errstate(over="ignore"):
        in_range = np.abs(exact) < np.finfo(dtype).max
    assert _worst_ulp(actual[in_range], exact[in_range]) <= limit
    special = _apply(name, np.array([np.nan, np.inf], dtype))
    assert np.isnan(special[0])
    assert np.isnan(special[1]) if "sin" in name or "cos" in name else not np.isnan(special[1])


@pytest.mark.parametrize(("mode", "towards"), [("rd", -1), ("ru", 1), ("rz", 0)])
@pytest.mark.parametrize("operation", ["fadd", "fmul", "fmaf"])
def test_directed_roundings_are_exact(mode: str, towards: int, operation: str) -> None:
    from fractions import Fraction

    from numba import cuda
    from numba.cuda import libdevice

    function = getattr(libdevice, f"{operation}_{mode}")
    three = operation == "fmaf"

    def kernel(a: Any, b: Any, c: Any, target: Any, count: Any) -> None:
        i = cuda.grid(1)
        if i < count:
            target[i] = function(a[i], b[i], c[i]) if three else function(a[i], b[i])

    def kernel2(a: Any, b: Any, c: Any, target: Any, count: Any) -> None:
        i = cuda.grid(1)
        if i < count:
            target[i] = function(a[i], b[i])

    rng = np.random.default_rng(3)
    a, b, c = (
        (rng.standard_normal(400) * 10.0 ** rng.integers(-6, 7, 400)).astype(np.float32)
        for _ in range(3)
    )
    target = np.empty_like(a)
    native = _native(kernel if three else kernel2, *["float32"] * 4)
    native.launch(7, 64, [a, b, c, target, a.size])
    for one, two, add, got in zip(a, b, c, target, strict=True):
        f, g, h = (Fraction(float(value)) for value in (one, two, add))
        exact = {"fadd": f + g, "fmul": f * g, "fmaf": f * g + h}[operation]
        value = Fraction(float(got))
        below = np.nextafter(got, np.float32(-np.inf))
        above = np.nextafter(got, np.float32(np.inf))
        down = towards == -1 or (towards == 0 and exact > 0)
        if down:
            assert value <= exact < Fraction(float(above))
        else:
            assert Fraction(float(below)) < exact <= value


def test_unknown_assembly_is_named_not_miscompiled() -> None:
    from fusion_advisor.validation.native_module import UnsupportedKernelError, translate

    text = (
        'define void @"k"(i32 %n) {\n  %r = call i32 asm "vote.ballot.b32 $0, $1;", "=r,r"'
        "(i32 %n)\n  ret void\n}\n"
    )
    with pytest.raises(UnsupportedKernelError, match=r"vote\.ballot"):
        translate((text,), "k", (9, 0))


def test_registers_spills_and_contractions_are_read() -> None:
    from fusion_advisor.validation import compile_cuda
    from fusion_advisor.validation.contractions import cuda_contractions
    from fusion_advisor.validation.resources import link_report

    compiled = compile_cuda(kernels.tanh_scale().kernel, (8, 0))
    report = link_report(compiled)
    assert report.architecture == "sm_80"
    assert 4 < report.registers < 64
    assert report.spill_bytes == 0
    assert report.cubin_bytes > 500
    seen = cuda_contractions(compiled)
    assert seen.stray == ()
    assert seen.in_ptx == seen.inside_maths > 0  # tanh's polynomial, nothing of ours
    wrong = kernels.tanh_scale().mutated(("x[i] + float32(1.0)", "x[i] * x[i] + float32(1.0)"))
    seen = cuda_contractions(compile_cuda(wrong.kernel, (8, 0)))
    assert len(seen.stray) == 1
    assert seen.in_ptx == seen.inside_maths + 1


def test_a_shift_by_more_than_the_width_leaves_nothing_as_on_a_gpu() -> None:
    # libdevice asks by a shift whether an exponent is odd; a small one shifts by hundreds.
    from numba import cuda
    from numba.cuda import libdevice

    def kernel(base: Any, exponent: Any, target: Any, count: Any) -> None:
        i = cuda.grid(1)
        if i < count:
            target[i] = libdevice.pow(base[i], exponent[i])

    native = _native(kernel, "float64", "float64", "float64")
    exponents = np.array([2.938735877055719e-39, 0.5, 2.0, 3.0, -3.0, -2.0, 1e300])
    expected = np.array([np.inf, np.inf, np.inf, -np.inf, -0.0, 0.0, np.inf])
    target = np.full_like(exponents, 7)
    bases = np.full_like(exponents, -np.inf)
    native.launch(1, 32, [bases, exponents, target, exponents.size])
    assert (target == expected).all()
    assert (np.signbit(target) == np.signbit(expected)).all()


def test_a_zero_keeps_its_sign_in_a_maximum_of_widened_numbers() -> None:
    """LLVM takes it for the widened maximum, with the operands swapped, and 0 for -0; NVVM not."""
    from numba import cuda
    from numba.cuda import types

    def kernel(source: Any, target: Any, count: Any) -> None:
        i = cuda.grid(1)
        if i < count:
            wide = types.float64(source[i])
            target[i] = 0.0 if wide < 0.0 else wide

    native = _native(kernel, "float32", "float64")
    source = np.array([-0.0, 0.0, -1.0, 2.0], np.float32)
    target = np.full(4, 7.0)
    native.launch(1, 32, [source, target, source.size])
    assert target.tolist() == [0.0, 0.0, 0.0, 2.0]
    assert np.signbit(target).tolist() == [True, False, False, False]
