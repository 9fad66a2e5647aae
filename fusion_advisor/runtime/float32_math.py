"""float32 kernels of the CPU maths.

exp, expm1, log, tanh, erf, asin, acos and atan work in float32; the rest goes through float64,
where an error of a few float64 ulp vanishes in the rounding to float32.
"""

from __future__ import annotations

import numpy as np

from fusion_advisor.runtime import float64_math as double
from fusion_advisor.runtime import trigonometry
from fusion_advisor.runtime.float64_math import inlined
from fusion_advisor.runtime.intrinsics import (
    ROUNDING_SHIFT,
    fma,
    magnitude,
    polynomial,
    power_of_two_shifted,
    round_down,
    scale_by_shifted,
    select,
    split_exponent,
    square_root,
    with_sign_of,
)


def _singles(*values: float) -> tuple[np.float32, ...]:
    return tuple(np.float32(value) for value in values)


_SHIFT = np.float32(ROUNDING_SHIFT[32])
_HALF, _ONE, _TWO = _singles(0.5, 1.0, 2.0)
_ZERO = np.float32(0.0)
_INFINITY, _NAN = _singles(np.inf, np.nan)
_LOG2_E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = _singles(0.693145751953125, 1.42860682030941723212e-6)
# (e**r - 1 - r) / r**2 on |r| <= ln(2)/2 (Cephes, S. Moshier).
_EXP_TAIL = _singles(
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5
)
# 2**r on |r| <= 1/2 (Cephes).
_EXP2 = _singles(
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)
_EXP_LIMITS = _singles(89.0, -104.0)
_EXP2_LIMITS = _singles(129.0, -151.0)
_EXPM1_LIMITS = _singles(88.8, -18.0)  # e**-18 is below half an ulp of 1
# log(1 + f) = f - f*f/2 + s*(f*f/2 + R(s*s)), s = f/(2 + f) (FreeBSD logf).
_LOG = _singles(0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693)
_LOG_LN2_HIGH, _LOG_LN2_LOW = _singles(6.9313812256e-01, 9.0580006145e-06)
_SMALLEST_NORMAL = np.float32(1.17549435e-38)
_TWO_TO_25, _TWENTY_FIVE = _singles(33554432.0, 25.0)
# (tanh(x)/x - 1) / x**2 in x**2 on |x| <= 1: least maximum of the relative error, 0.08 ulp.
_TANH = _singles(
    -3.58450021e-4,
    2.30135762e-3,
    -7.94609678e-3,
    2.14866510e-2,
    -5.38798004e-2,
    1.33323445e-1,
    -3.33332954e-1,
)
# erf (N. Juffa): x + x * P(x*x) below the border, 1 - exp(Q(|x|)) above.
_ERF_BORDER = np.float32(0.927734375)
_ERF_SMALL = _singles(
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1
)
_ERF_LARGE = _singles(
    -1.72853470e-5,
    3.83197126e-4,
    -3.88396438e-3,
    2.42546219e-2,
    -1.06777877e-1,
    -6.34846687e-1,
    -1.28717512e-1,
)
_ERF_SATURATED = np.float32(4.0)  # erf(4) rounds to 1

_PI_HIGH, _PI_LOW = _singles(3.1415927410125732, -8.7422776573475858e-8)
_HALF_PI_HIGH, _HALF_PI_LOW = _singles(1.5707963705062866, -4.3711388286737929e-8)
# (asin(x)/x - 1) / x**2 in x**2 on |x| <= 1/2, and (atan(x)/x - 1) / x**2 on |x| <= 1: least
# maximum of the relative error, 0.08 and 0.01 ulp.
_ASIN = _singles(0.0421662583, 0.0241795412, 0.0454703717, 0.0749529766, 0.166667525)
_ATAN = _singles(
    0.00111374953,
    -0.00731776064,
    0.0225394515,
    -0.0446894538,
    0.0674156255,
    -0.0881107622,
    0.110582197,
    -0.142798324,
    0.199996711,
    -0.333333269,
)
# exp(x**2) erfc(x) in t = (x - 2)/(x + 2) on 0 <= x <= 10.1, likewise: 0.001 float32 ulp.
_ERFC_END = 10.1  # from here on erfc rounds to 0
_ERFCX = (
    -4.066477867221999e-07,
    -9.166859778845692e-06,
    -2.3234204822696294e-05,
    2.4950667778982718e-05,
    0.00017129777455704312,
    4.427972577826336e-05,
    -0.000980964559727077,
    -0.0008472656489862933,
    0.006997298470141646,
    0.003732905657059434,
    -0.07897856975361421,
    0.24165819353627688,
    -0.42718584762979744,
    0.2553956763173214,
)


@inlined
def exp(x):
    """e to the x."""
    x = select(x > _EXP_LIMITS[0], _EXP_LIMITS[0], x)
    x = select(x < _EXP_LIMITS[1], _EXP_LIMITS[1], x)
    shifted = fma(x, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = fma(-n, _LN2_HIGH, x)
    r = fma(-n, _LN2_LOW, r)
    value = fma(r * r, polynomial(r, _EXP_TAIL), r) + _ONE
    return scale_by_shifted(value, shifted)


@inlined
def exp2(x):
    """2 to the x."""
    x = select(x > _EXP2_LIMITS[0], _EXP2_LIMITS[0], x)
    x = select(x < _EXP2_LIMITS[1], _EXP2_LIMITS[1], x)
    shifted = x + _SHIFT
    return scale_by_shifted(polynomial(x - (shifted - _SHIFT), _EXP2), shifted)


@inlined
def expm1(x):
    """e to the x, minus 1."""
    high = select(x > _EXPM1_LIMITS[0], _EXPM1_LIMITS[0], x)
    low = select(high < _EXPM1_LIMITS[1], _EXPM1_LIMITS[1], high)
    shifted = fma(low, _LOG2_E, _SHIFT)
    n = shifted - _SHIFT
    r = fma(-n, _LN2_HIGH, low)
    r = fma(-n, _LN2_LOW, r)
    small = fma(r * r, polynomial(r, _EXP_TAIL), r)
    half_power = power_of_two_shifted(shifted - _ONE)  # 2**(n - 1): n may be 128
    value = fma(half_power, small, half_power - _HALF) * _TWO
    return select(n == _ZERO, with_sign_of(small, x), value)


@inlined
def log(x):
    """Natural logarithm."""
    subnormal = x < _SMALLEST_NORMAL
    m, e = split_exponent(select(subnormal, x * _TWO_TO_25, x))
    e = select(subnormal, e - _TWENTY_FIVE, e)
    f = m - _ONE
    s = f / (_TWO + f)
    z = s * s
    half_square = _HALF * f * f
    tail = s * (half_square + z * polynomial(z, _LOG))
    value = e * _LOG_LN2_HIGH - ((half_square - (tail + e * _LOG_LN2_LOW)) - f)
    value = select(x == _ZERO, -_INFINITY, value)
    value = select(x == _INFINITY, _INFINITY, value)
    value = select(x < _ZERO, _NAN, value)
    return select(x != x, x, value)


@inlined
def tanh(x):
    """Hyperbolic tangent."""
    a = magnitude(x)
    z = a * a
    small = fma(z * polynomial(z, _TANH), a, a)
    large = _ONE - _TWO / (exp(a + a) + _ONE)
    return with_sign_of(select(a > _ONE, large, small), x)


@inlined
def sigmoid(x):
    """1 / (1 + exp(-x)), as eager computes it."""
    return _ONE / (_ONE + exp(-x))


@inlined
def erf(x):
    """Error function."""
    a = magnitude(x)
    a = select(a > _ERF_SATURATED, _ERF_SATURATED, a)
    small = fma(polynomial(x * x, _ERF_SMALL), x, x)
    large = _ONE - exp(fma(polynomial(a, _ERF_LARGE), a, -a))
    return select(a > _ERF_BORDER, with_sign_of(large, x), small)


@inlined
def log2(x):
    """Logarithm to base 2."""
    return np.float32(double.log2(np.float64(x)))


@inlined
def log10(x):
    """Logarithm to base 10."""
    return np.float32(double.log10(np.float64(x)))


@inlined
def log1p(x):
    """log(1 + x)."""
    return np.float32(double.log1p(np.float64(x)))


@inlined
def sinh(x):
    """Hyperbolic sine."""
    return np.float32(double.sinh(np.float64(x)))


@inlined
def cosh(x):
    """Hyperbolic cosine."""
    return np.float32(double.cosh(np.float64(x)))


@inlined
def hypot(x, y):
    """sqrt(x*x + y*y) without overflow."""
    a, b = np.float64(magnitude(x)), np.float64(magnitude(y))
    value = np.float32(square_root(a * a + b * b))
    infinite = (magnitude(x) == _INFINITY) | (magnitude(y) == _INFINITY)
    return select(infinite, _INFINITY, value)


@inlined
def pow(x, y):
    """x to the y, with C's special cases."""
    a, b = np.float64(magnitude(x)), np.float64(y)
    value = np.float32(double.exp2(b * double.log2(a)))
    # Where the exponent times the logarithm is not a number although the power is.
    value = select((a == 1.0) & (y == y), _ONE, value)
    integral = round_down(b) == b
    odd = integral & (round_down(0.5 * b) != 0.5 * b)
    negative = select(x < _ZERO, True, (x == _ZERO) & (with_sign_of(_ONE, x) < _ZERO))
    value = select(negative & odd, -value, value)
    no_real = (x < _ZERO) & (x > -_INFINITY) & (not integral)
    value = select(no_real, _NAN, value)
    value = select(x == _ONE, _ONE, value)
    return select(y == _ZERO, _ONE, value)


@inlined
def sin(x):
    """Sine."""
    return np.float32(trigonometry.sine(x))


@inlined
def cos(x):
    """Cosine."""
    return np.float32(trigonometry.cosine(x))


@inlined
def tan(x):
    """Tangent."""
    return np.float32(trigonometry.tangent(x))


@inlined
def erfc(x):
    """Complementary error function."""
    wide = np.float64(x)
    a = magnitude(wide)
    a = select(a > _ERFC_END, _ERFC_END, a)
    value = double.exp(-a * a) * polynomial((a - 2.0) / (a + 2.0), _ERFCX)
    return np.float32(select(wide < 0.0, 2.0 - value, value))


@inlined
def _asin_parts(x):
    """(big, p): asin|x| is p up to 1/2 and pi/2 - 2 p beyond (big)."""
    a = magnitude(x)
    big = a > _HALF
    z = select(big, _HALF * (_ONE - a), a * a)
    r = select(big, square_root(z), a)
    return big, fma(z * polynomial(z, _ASIN), r, r)


@inlined
def asin(x):
    """Arc sine."""
    big, p = _asin_parts(x)
    return with_sign_of(select(big, fma(-_TWO, p, _HALF_PI_HIGH) + _HALF_PI_LOW, p), x)


@inlined
def acos(x):
    """Arc cosine."""
    big, p = _asin_parts(x)
    twice = p + p
    near_ends = select(x < _ZERO, (_PI_HIGH - twice) + _PI_LOW, twice)
    middle = (_HALF_PI_HIGH - with_sign_of(p, x)) + _HALF_PI_LOW
    return select(big, near_ends, middle)


@inlined
def atan(x):
    """Arc tangent."""
    a = magnitude(x)
    big = a > _ONE
    r = select(big, _ONE / a, a)
    z = r * r
    p = fma(z * polynomial(z, _ATAN), r, r)
    return with_sign_of(select(big, (_HALF_PI_HIGH - p) + _HALF_PI_LOW, p), x)


@inlined
def asinh(x):
    """Inverse hyperbolic sine."""
    a = np.float64(magnitude(x))
    square = a * a
    value = double.log1p(a + square / (1.0 + square_root(1.0 + square)))
    return with_sign_of(np.float32(select(a == np.inf, np.inf, value)), x)


@inlined
def acosh(x):
    """Inverse hyperbolic cosine."""
    t = np.float64(x) - 1.0
    value = double.log1p(t + square_root(t * (t + 2.0)))
    return np.float32(select(x < _ONE, np.nan, value))


@inlined
def atanh(x):
    """Inverse hyperbolic tangent."""
    a = np.float64(magnitude(x))
    return with_sign_of(np.float32(0.5 * double.log1p((a + a) / (1.0 - a))), x)
