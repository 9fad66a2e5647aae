"""Sine, cosine and tangent of every float32, by one table-driven path that vectorises.

A float32 is an integer of 24 bits times a power of two, so ``x * 2/pi`` modulo 4 needs only the
bits of 2/pi from that power on: a table indexed by the exponent holds them in three parts whose
products with the significand are exact (Payne and Hanek's reduction without a slow path).
"""

from __future__ import annotations

import numpy as np

from fusion_advisor.runtime.float64_math import inlined
from fusion_advisor.runtime.intrinsics import (
    exponent_field,
    magnitude,
    round_half_even,
    select,
    significand,
)

# floor(2/pi * 2**320)
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E0
_TWO_OVER_PI_BITS = 320
_EXPONENT_OFFSET = 150  # a float32's value is significand * 2**(exponent field - 150)
_PART_BITS = 28  # times 24 bits of significand: exact in 53
_HALF_PI = 1.5707963267948966
_QUARTER_PI = 0.7853981633974483
_NAN = np.nan

# FreeBSD's __sindf and __cosdf: |error| below 2**-37 on [-pi/4, pi/4].
_S1, _S2 = -0.16666666641626524, 0.008333329385889463
_S3, _S4 = -0.00019839334836096632, 2.718311493989822e-06
_C0, _C1 = -0.499999997251031, 0.04166662332373906
_C2, _C3 = -0.001388676377460993, 2.439044879627741e-05


def _reduction_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each exponent field: (2/pi * 2**(field - 150)) mod 4, as 28 + 28 + 53 bits."""
    high, middle, low = np.zeros(256), np.zeros(256), np.zeros(256)
    for field in range(1, 255):
        shift = field - _EXPONENT_OFFSET
        # Fixed point with enough bits after the point for the smallest exponent.
        fraction_bits = _TWO_OVER_PI_BITS - shift
        value = _TWO_OVER_PI % (1 << (fraction_bits + 2))
        unit = fraction_bits - (_PART_BITS - 2)
        first, rest = value >> unit, value % (1 << unit)
        second, third = rest >> (unit - _PART_BITS), rest % (1 << (unit - _PART_BITS))
        high[field] = first * 2.0 ** (2 - _PART_BITS)
        middle[field] = second * 2.0 ** (2 - 2 * _PART_BITS)
        low[field] = third / (1 << fraction_bits)
    return high, middle, low


_HIGH, _MIDDLE, _LOW = _reduction_table()


@inlined
def _reduce(x):
    """(r, n): the float32 x is n * pi/2 + r modulo 2 pi, |r| <= pi/4, n in -2 … 2."""
    field = exponent_field(x)
    digits = significand(x)
    whole = digits * _HIGH[field]
    near = whole - 4.0 * round_half_even(0.25 * whole)
    middle, low = digits * _MIDDLE[field], digits * _LOW[field]
    n = round_half_even((near + middle) + low)
    r = (((near - n) + middle) + low) * _HALF_PI
    small = magnitude(np.float64(x)) < _QUARTER_PI
    return select(small, np.float64(x), r), select(small, 0.0, n)


@inlined
def _sine_part(r):
    z = r * r
    return r + (z * r) * (_S1 + z * _S2 + (z * z) * (_S3 + z * _S4))


@inlined
def _cosine_part(r):
    z = r * r
    return ((1.0 + z * _C0) + (z * z) * _C1) + ((z * z) * z) * (_C2 + z * _C3)


@inlined
def sine(x):
    """Sine of a float32, as float64."""
    r, n = _reduce(x)
    odd = (n == 1.0) | (n == -1.0)
    value = select(odd, _cosine_part(r), _sine_part(r))
    value = select((n == -1.0) | (n == 2.0) | (n == -2.0), -value, value)
    value = select(x == 0.0, np.float64(x), value)
    return select(x - x == 0.0, value, _NAN)


@inlined
def cosine(x):
    """Cosine of a float32, as float64."""
    r, n = _reduce(x)
    odd = (n == 1.0) | (n == -1.0)
    value = select(odd, _sine_part(r), _cosine_part(r))
    value = select((n == 1.0) | (n == 2.0) | (n == -2.0), -value, value)
    return select(x - x == 0.0, value, _NAN)


@inlined
def tangent(x):
    """Tangent of a float32, as float64."""
    r, n = _reduce(x)
    s, c = _sine_part(r), _cosine_part(r)
    odd = (n == 1.0) | (n == -1.0)
    value = select(odd, -c, s) / select(odd, s, c)
    value = select(x == 0.0, np.float64(x), value)
    return select(x - x == 0.0, value, _NAN)
