"""Elementwise maths for CPU kernels, typed by its argument: ``cpu_math.exp(x)``.

Inside a compiled kernel each call becomes straight-line code that LLVM vectorises with the loop
around it; as plain Python the functions go through NumPy, so that a kernel's ``py_func`` can be
stepped through.  Largest errors as measured: ``docs/accuracy.md``.

Vectorised: everything on float32 except atan2 and fmod, which call the C library; on float64
erf, erfc, the trigonometric functions, the inverse ones and pow do so too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from fusion_advisor.runtime import float32_math, float64_math, intrinsics
from fusion_advisor.runtime.integer_math import (  # noqa: F401 - part of this module too
    divisor,
    floordiv,
    gcd,
    lcm,
    ldexp,
    power,
    shift_left,
    shift_right,
    truncdiv,
)

_OPTIONS = {"forceinline": True, "error_model": "numpy"}


def _quiet(function: Callable[..., Any], *args: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*args)


def _through_libm(function: Callable[..., float], *args: Any) -> Any:
    """A C library function for plain Python: the argument's dtype, no exceptions."""
    kind = type(args[0]) if isinstance(args[0], np.floating) else np.float64
    try:
        return kind(function(*(float(arg) for arg in args)))
    except OverflowError:
        return kind(math.inf)
    except ValueError:
        return kind(math.nan)


def exp(x: Any) -> Any:
    """e to the x."""
    return _quiet(np.exp, x)


def exp2(x: Any) -> Any:
    """2 to the x."""
    return _quiet(np.exp2, x)


def expm1(x: Any) -> Any:
    """e to the x, minus 1, without cancellation."""
    return _quiet(np.expm1, x)


def log(x: Any) -> Any:
    """Natural logarithm."""
    return _quiet(np.log, x)


def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    return _quiet(np.log2, x)


def log10(x: Any) -> Any:
    """Logarithm to base 10."""
    return _quiet(np.log10, x)


def log1p(x: Any) -> Any:
    """log(1 + x), without cancellation."""
    return _quiet(np.log1p, x)


def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return _quiet(np.tanh, x)


def sinh(x: Any) -> Any:
    """Hyperbolic sine."""
    return _quiet(np.sinh, x)


def cosh(x: Any) -> Any:
    """Hyperbolic cosine."""
    return _quiet(np.cosh, x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), as eager computes it."""
    one = x.dtype.type(1) if isinstance(x, np.generic) else 1.0
    return _quiet(lambda: one / (one + np.exp(-x)))


def erf(x: Any) -> Any:
    """Error function."""
    return _through_libm(math.erf, x)


def erfc(x: Any) -> Any:
    """Complementary error function."""
    return _through_libm(math.erfc, x)


def sin(x: Any) -> Any:
    """Sine."""
    return _quiet(np.sin, x)


def cos(x: Any) -> Any:
    """Cosine."""
    return _quiet(np.cos, x)


def tan(x: Any) -> Any:
    """Tangent."""
    return _quiet(np.tan, x)


def pow(x: Any, y: Any) -> Any:
    """x to the y, with C's special cases."""
    return _quiet(np.power, x, y)


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x*x + y*y) without overflow."""
    return _quiet(np.hypot, x, y)


def atan2(y: Any, x: Any) -> Any:
    """The angle of the point (x, y)."""
    return _quiet(np.arctan2, y, x)


def fmod(x: Any, y: Any) -> Any:
    """The exact remainder, with the sign of x."""
    return _quiet(np.fmod, x, y)


def asin(x: Any) -> Any:
    """Arc sine."""
    return _quiet(np.arcsin, x)


def acos(x: Any) -> Any:
    """Arc cosine."""
    return _quiet(np.arccos, x)


def atan(x: Any) -> Any:
    """Arc tangent."""
    return _quiet(np.arctan, x)


def asinh(x: Any) -> Any:
    """Inverse hyperbolic sine."""
    return _quiet(np.arcsinh, x)


def acosh(x: Any) -> Any:
    """Inverse hyperbolic cosine."""
    return _quiet(np.arccosh, x)


def atanh(x: Any) -> Any:
    """Inverse hyperbolic tangent."""
    return _quiet(np.arctanh, x)


def sqrt(x: Any) -> Any:
    """Square root, correctly rounded; NaN below zero."""
    return _quiet(np.sqrt, x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x): two roundings, as eager."""
    one = x.dtype.type(1) if isinstance(x, np.generic) else 1.0
    return _quiet(lambda: one / np.sqrt(x))


def abs(x: Any) -> Any:
    """Magnitude; clears the sign of zero and NaN."""
    return np.abs(x)


def floor(x: Any) -> Any:
    """The nearest integer not above, as a float."""
    return np.floor(x)


def ceil(x: Any) -> Any:
    """The nearest integer not below, as a float."""
    return np.ceil(x)


def trunc(x: Any) -> Any:
    """The nearest integer towards zero, as a float."""
    return np.trunc(x)


def round(x: Any) -> Any:
    """The nearest integer, halves to even, as a float."""
    return np.rint(x)


def copysign(x: Any, y: Any) -> Any:
    """|x| with the sign of y."""
    return np.copysign(x, y)


def isnan(x: Any) -> Any:
    """Whether x is NaN."""
    return bool(x != x)


def signbit(x: Any) -> Any:
    """Whether the sign bit is set (true for -0.0)."""
    return bool(np.signbit(x))


def maximum(x: Any, y: Any) -> Any:
    """The larger; NaN if either is NaN (Python's and CUDA's max drop it)."""
    return x if (x > y or x != x) else y


def minimum(x: Any, y: Any) -> Any:
    """The smaller; NaN if either is NaN."""
    return x if (x < y or x != x) else y


def select(condition: Any, x: Any, y: Any) -> Any:
    """x if the condition holds, else y; both are evaluated."""
    return x if condition else y


def fma(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once (for float64 outside compiled code: by exact rationals)."""
    if not all(math.isfinite(value) for value in (x, y, z)):
        return _quiet(lambda: x * y + z)
    if isinstance(x, np.float32):
        return _fma_single(x, y, z)
    from fractions import Fraction

    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return _quiet(lambda: x * y + z)  # the sign of zero
    try:
        return np.float64(float(exact))
    except OverflowError:
        return np.float64(math.copysign(math.inf, exact))


def _fma_single(x: Any, y: Any, z: Any) -> Any:
    """float32 FMA in float64 arithmetic: the sum is rounded to odd, then once to float32."""
    product, addend = float(x) * float(y), float(z)  # the product is exact
    total = product + addend
    rest = (product - (total - (total - product))) + (addend - (total - product))
    if rest != 0.0 and np.float64(total).view(np.int64) & 1 == 0:
        total = math.nextafter(total, math.inf if rest > 0 else -math.inf)
    return _quiet(np.float32, total)


def bf16_to_f32(bits: Any) -> Any:
    """The bfloat16 with these 16 bits (uint16), as float32."""
    return np.array([int(bits) << 16], np.uint32).view(np.float32)[0]


def f32_to_bf16(x: Any) -> Any:
    """The uint16 bits of the bfloat16 nearest to a float32, half to even."""
    if x != x:
        return np.uint16(0x7FC0)
    bits = int(np.float32(x).view(np.uint32))
    return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def f16_to_f32(bits: Any) -> Any:
    """The float16 with these 16 bits (uint16), as float32."""
    return np.float32(np.uint16(bits).view(np.float16))


def f32_to_f16(x: Any) -> Any:
    """The uint16 bits of the float16 nearest to a float32, half to even."""
    return _quiet(np.float16, x).view(np.uint16)


def _implement(stub: Callable[..., Any], arity: int, single: Any, double: Any) -> None:
    """Give a stub its compiled form for float32 and float64 arguments of one type."""

    def choose(*kinds: Any) -> Any:
        if any(kind != kinds[0] for kind in kinds):
            return None
        return (
            single if kinds[0] == types.float32 else double if kinds[0] == types.float64 else None
        )

    # No annotations: numba wants an overload and what it returns to have equal signatures.
    if arity == 1:

        def unary(x):  # type: ignore[no-untyped-def]
            function = choose(x)
            return None if function is None else lambda x: function(x)

        overload(stub, jit_options=_OPTIONS)(unary)
    elif arity == 2:

        def binary(x, y):  # type: ignore[no-untyped-def]
            function = choose(x, y)
            return None if function is None else lambda x, y: function(x, y)

        overload(stub, jit_options=_OPTIONS)(binary)
    else:

        def ternary(x, y, z):  # type: ignore[no-untyped-def]
            function = choose(x, y, z)
            return None if function is None else lambda x, y, z: function(x, y, z)

        overload(stub, jit_options=_OPTIONS)(ternary)


@float64_math.inlined
def _sqrt(x):  # type: ignore[no-untyped-def]  # typed by numba
    return intrinsics.square_root(x)


@float64_math.inlined
def _rsqrt_single(x):  # type: ignore[no-untyped-def]
    return np.float32(1.0) / intrinsics.square_root(x)


@float64_math.inlined
def _rsqrt_double(x):  # type: ignore[no-untyped-def]
    return 1.0 / intrinsics.square_root(x)


@float64_math.inlined
def _isnan(x):  # type: ignore[no-untyped-def]
    return x != x


@float64_math.inlined
def _maximum(x, y):  # type: ignore[no-untyped-def]
    return intrinsics.select((x > y) | (x != x), x, y)


@float64_math.inlined
def _minimum(x, y):  # type: ignore[no-untyped-def]
    return intrinsics.select((x < y) | (x != x), x, y)


_BOTH = (exp, exp2, expm1, log, log2, log10, log1p, tanh, sinh, cosh, sigmoid)
for _stub in _BOTH:
    _name = _stub.__name__
    _implement(_stub, 1, getattr(float32_math, _name), getattr(float64_math, _name))
for _stub in (erf, erfc, sin, cos, tan, asin, acos, atan, asinh, acosh, atanh):
    _implement(_stub, 1, getattr(float32_math, _stub.__name__), getattr(math, _stub.__name__))
_ROWS: tuple[tuple[Callable[..., Any], int, Any, Any], ...] = (
    (atan2, 2, math.atan2, math.atan2),
    (fmod, 2, intrinsics.float_remainder, intrinsics.float_remainder),
    (pow, 2, float32_math.pow, math.pow),
    (hypot, 2, float32_math.hypot, math.hypot),
    (sqrt, 1, intrinsics.square_root, intrinsics.square_root),
    (rsqrt, 1, _rsqrt_single, _rsqrt_double),
    (abs, 1, intrinsics.magnitude, intrinsics.magnitude),
    (floor, 1, intrinsics.round_down, intrinsics.round_down),
    (ceil, 1, intrinsics.round_up, intrinsics.round_up),
    (trunc, 1, intrinsics.round_to_zero, intrinsics.round_to_zero),
    (round, 1, intrinsics.round_half_even, intrinsics.round_half_even),
    (copysign, 2, intrinsics.with_sign_of, intrinsics.with_sign_of),
    (isnan, 1, _isnan, _isnan),
    (signbit, 1, intrinsics.sign_bit, intrinsics.sign_bit),
    (maximum, 2, _maximum, _maximum),
    (minimum, 2, _minimum, _minimum),
    (fma, 3, intrinsics.fma, intrinsics.fma),
)
for _row in _ROWS:
    _implement(*_row)


@overload(select, jit_options=_OPTIONS)
def _select(condition, x, y):  # type: ignore[no-untyped-def]
    if condition != types.boolean or x != y:
        return None
    return lambda condition, x, y: intrinsics.select(condition, x, y)


def _implement_conversion(stub: Callable[..., Any], source: Any, function: Any) -> None:
    def convert(x):  # type: ignore[no-untyped-def]
        return (lambda x: function(x)) if x == source else None

    overload(stub, jit_options=_OPTIONS)(convert)


_implement_conversion(bf16_to_f32, types.uint16, intrinsics.brain_to_single)
_implement_conversion(f32_to_bf16, types.float32, intrinsics.single_to_brain)
_implement_conversion(f16_to_f32, types.uint16, intrinsics.half_to_single)
_implement_conversion(f32_to_f16, types.float32, intrinsics.single_to_half)
