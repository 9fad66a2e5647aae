"""float64 kernels of the CPU maths: reductions and polynomials that vectorise.

The logarithms follow FreeBSD's msun (Sun Microsystems, 1993); the exponentials use Taylor
coefficients on |r| <= ln(2)/2, where degree 13 leaves 4e-18.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable

from fusion_advisor.runtime.intrinsics import (
    ROUNDING_SHIFT,
    clear_low_word,
    fma,
    magnitude,
    polynomial,
    power_of_two_shifted,
    scale_by_shifted,
    select,
    split_exponent,
    with_sign_of,
)

_SHIFT = ROUNDING_SHIFT[64]
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LN2 = 0.6931471805599453
# (e**r - 1 - r) / r**2, highest power first.
_EXP_TAIL = tuple(1.0 / math.factorial(k) for k in range(13, 1, -1))
_LOG = (
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)
_INV_LN2_HIGH, _INV_LN2_LOW = 1.44269504072144627571e00, 1.67517131648865118353e-10
_INV_LN10_HIGH, _INV_LN10_LOW = 4.34294481878168880939e-01, 2.50829467116452752298e-11
_LOG10_2_HIGH, _LOG10_2_LOW = 3.01029995663611771306e-01, 3.69423907715893078616e-13
_SMALLEST_NORMAL = 2.2250738585072014e-308
_TWO_TO_54 = 18014398509481984.0
_INFINITY = np.inf
_NAN = np.nan

inlined = register_jitable(forceinline=True, error_model="numpy")


@inlined
def exp(x):
    """e to the x."""
    # Beyond these the result is 0 or inf; NaN passes both comparisons.
    x = select(x > 710.0, 710.0, x)
    x = select(x < -746.0, -746.0, x)
    shifted = fma(x, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = fma(-n, _LN2_HIGH, x)
    r = fma(-n, _LN2_LOW, r)
    value = fma(r * r, polynomial(r, _EXP_TAIL), r) + 1.0
    return scale_by_shifted(value, shifted)


@inlined
def exp2(x):
    """2 to the x."""
    x = select(x > 1025.0, 1025.0, x)
    x = select(x < -1080.0, -1080.0, x)
    shifted = x + _SHIFT
    r = (x - (shifted - _SHIFT)) * _LN2
    value = fma(r * r, polynomial(r, _EXP_TAIL), r) + 1.0
    return scale_by_shifted(value, shifted)


@inlined
def expm1(x):
    """e to the x, minus 1."""
    high = select(x > 710.0, 710.0, x)
    low = select(high < -40.0, -40.0, high)  # e**-40 is far below half an ulp of 1
    shifted = fma(low, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = fma(-n, _LN2_HIGH, low)
    r = fma(-n, _LN2_LOW, r)
    small = fma(r * r, polynomial(r, _EXP_TAIL), r)
    half_power = power_of_two_shifted(shifted - 1.0)  # 2**(n - 1): n may be 1024
    value = fma(half_power, small, half_power - 0.5) * 2.0
    return select(n == 0.0, with_sign_of(small, x), value)


@inlined
def _log_parts(x):
    """(f, f*f/2, s*(f*f/2 + R), e) of FreeBSD's logarithm for a positive normal x."""
    m, e = split_exponent(x)
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    half_square = 0.5 * f * f
    return f, half_square, s * (half_square + z * polynomial(z, _LOG)), e


@inlined
def _log_limits(x, value):
    """The logarithm of zero, infinity, negative numbers and NaN; else ``value``."""
    value = select(x == 0.0, -_INFINITY, value)
    value = select(x == _INFINITY, _INFINITY, value)
    value = select(x < 0.0, _NAN, value)
    return select(x != x, x, value)


@inlined
def log(x):
    """Natural logarithm."""
    subnormal = x < _SMALLEST_NORMAL
    f, half_square, tail, e = _log_parts(select(subnormal, x * _TWO_TO_54, x))
    e = select(subnormal, e - 54.0, e)
    value = e * _LN2_HIGH - ((half_square - (tail + e * _LN2_LOW)) - f)
    return _log_limits(x, value)


@inlined
def log2(x):
    """Logarithm to base 2."""
    subnormal = x < _SMALLEST_NORMAL
    f, half_square, tail, e = _log_parts(select(subnormal, x * _TWO_TO_54, x))
    e = select(subnormal, e - 54.0, e)
    high = clear_low_word(f - half_square)
    low = ((f - high) - half_square) + tail
    scaled = high * _INV_LN2_HIGH
    rest = (low + high) * _INV_LN2_LOW + low * _INV_LN2_HIGH
    total = e + scaled
    value = (rest + ((e - total) + scaled)) + total
    return _log_limits(x, value)


@inlined
def log10(x):
    """Logarithm to base 10."""
    subnormal = x < _SMALLEST_NORMAL
    f, half_square, tail, e = _log_parts(select(subnormal, x * _TWO_TO_54, x))
    e = select(subnormal, e - 54.0, e)
    high = clear_low_word(f - half_square)
    low = ((f - high) - half_square) + tail
    scaled = high * _INV_LN10_HIGH
    whole = e * _LOG10_2_HIGH
    rest = e * _LOG10_2_LOW + (low + high) * _INV_LN10_LOW + low * _INV_LN10_HIGH
    total = whole + scaled
    value = (rest + ((whole - total) + scaled)) + total
    return _log_limits(x, value)


@inlined
def log1p(x):
    """log(1 + x)."""
    u = 1.0 + x
    # What rounding 1 + x lost, to first order: log(u + lost) = log(u) + lost / u.
    lost = select(x < 1.0, x - (u - 1.0), 1.0 - (u - x))
    value = log(u)
    value = select((u > 0.0) & (u < _INFINITY), value + lost / u, value)
    return select(u == 1.0, x, value)


@inlined
def tanh(x):
    """Hyperbolic tangent."""
    t = expm1(-2.0 * magnitude(x))
    return with_sign_of(-t / (t + 2.0), x)


@inlined
def sigmoid(x):
    """1 / (1 + exp(-x)), as eager computes it."""
    return 1.0 / (1.0 + exp(-x))


@inlined
def sinh(x):
    """Hyperbolic sine."""
    # sinh = (t + t/(t + 1)) / 2 with t = expm1|x|; beyond 700, e**(|x|/2) twice.
    a = magnitude(x)
    t = expm1(select(a < 700.0, a, 700.0))
    value = 0.5 * (t + t / (t + 1.0))
    root = exp(0.5 * a)
    value = select(a < 700.0, value, (0.5 * root) * root)
    return with_sign_of(select(x != x, x, value), x)


@inlined
def cosh(x):
    """Hyperbolic cosine."""
    a = magnitude(x)
    e = exp(select(a < 700.0, a, 700.0))
    root = exp(0.5 * a)
    value = select(a < 700.0, 0.5 * e + 0.5 / e, (0.5 * root) * root)
    return select(x != x, x, value)
