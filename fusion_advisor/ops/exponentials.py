"""Exponentials whose formula in float32 would show rounding errors many times over.

An exponent's rounding is worth as many ULP of its exponential as the exponent is large, and an
exponential below exp(-87) has lost bits that a large factor brings to light.  Other dtypes compute
as eager does: 16 bits round such errors away, and float64 has nothing wider to be judged by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.scalars import Value
from fusion_advisor.records import Constant

# Below it exp(x) is a subnormal float32.
SUBNORMAL_BELOW = -87.0
# exp(-55.5) is a float32 to 0.008 ULP; x + 111 is exact for every x that matters: at
# x = -192 even the largest float32 times exp(x) is subnormal.
_HALF_SHIFT = 55.5
_HALF_SCALE = math.exp(-_HALF_SHIFT)
_LEAST_FOLDED = 1e-12  # its product with that scale is no subnormal
# Exponents between these bounds are corrected: beyond them the exponential is infinite, or nothing
# is left of it.
_LEAST_CORRECTED, _MOST_CORRECTED = -200.0, 88.0


@dataclass(frozen=True)
class Exponent:
    """An exponent as rounded, and what the rounding left out; None where that is nothing."""

    value: Value
    rest: Value | None = None


def product_exponent(call: Call, left: Value, right: Value, dtype: str) -> Exponent:
    """``left * right``, with what its rounding left out."""
    value = call.emit("mul", left, right)
    if dtype != "float32" or _is_power_of_two(left) or _is_power_of_two(right):
        return Exponent(value)
    return Exponent(value, call.emit("fma", left, right, call.emit("neg", value)))


def _is_power_of_two(value: Value) -> bool:
    return isinstance(value, Constant) and abs(math.frexp(value.value)[0]) == 0.5


def difference_exponent(call: Call, larger: Value, smaller: Value, dtype: str) -> Exponent:
    """``smaller - larger``, with what its rounding left out (Knuth's two-sum)."""
    value = call.emit("sub", smaller, larger)
    if dtype != "float32":
        return Exponent(value)
    of_larger = call.emit("sub", value, smaller)
    of_smaller = call.emit("sub", value, of_larger)
    rest = call.emit(
        "sub", call.emit("sub", smaller, of_smaller), call.emit("add", larger, of_larger)
    )
    return Exponent(value, rest)


def exp_of(call: Call, exponent: Exponent, dtype: str, opcode: str = "exp") -> Value:
    """The exponential of an exponent (``opcode``: to which base), its rest put in."""
    return _corrected(call, call.emit(opcode, exponent.value), exponent, dtype, opcode)


def _corrected(call: Call, exp: Value, exponent: Exponent, dtype: str, opcode: str) -> Value:
    """``exp * (1 + rest)``: to first order what the rest of the exponent makes of it."""
    if exponent.rest is None:
        return exp
    rest = exponent.rest
    if opcode == "exp2":
        rest = call.emit("mul", rest, call.constant(math.log(2), dtype))
    inside = call.emit(
        "and",
        call.emit("gt", exponent.value, call.constant(_LEAST_CORRECTED, dtype)),
        call.emit("lt", exponent.value, call.constant(_MOST_CORRECTED, dtype)),
    )
    return call.emit("select", inside, call.emit("fma", exp, rest, exp), exp)


@dataclass(frozen=True)
class Growth:
    """``exp(exponent)`` as ``exp`` where it is not tiny, and a factor's product where it is."""

    exp: Value
    is_tiny: Value | None = None
    tiny: Value | None = None

    def chosen(self, call: Call, otherwise: Value) -> Value:
        """The product where the exponential is tiny, else ``otherwise``."""
        if self.is_tiny is None or self.tiny is None:
            return otherwise
        return call.emit("select", self.is_tiny, self.tiny, otherwise)


def growth(
    call: Call, factor: Value, exponent: Exponent, dtype: str, also: Value | None = None
) -> Growth:
    """An exponential and, in float32, its product with ``factor * also`` where it is tiny.

    Where the exponential would be subnormal it is taken at exponent + 111, and the product is
    scaled back in two steps around it: the first on the factor, which is so large there that it
    cannot underflow unless the result does.
    """
    if dtype != "float32":
        return Growth(call.emit("exp", exponent.value))
    is_tiny = call.emit("lt", exponent.value, call.constant(SUBNORMAL_BELOW, dtype))
    raised = call.emit("add", exponent.value, call.constant(2 * _HALF_SHIFT, dtype))
    power = call.emit("exp", call.emit("select", is_tiny, raised, exponent.value))
    exp = _corrected(call, power, exponent, dtype, "exp")
    scale = call.constant(_HALF_SCALE, dtype)
    scaled = _scaled(call, factor, also, dtype)
    tiny = call.emit("mul", call.emit("mul", scaled, exp), scale)
    return Growth(exp, is_tiny, tiny)


def _scaled(call: Call, factor: Value, also: Value | None, dtype: str) -> Value:
    """``factor * also * exp(-55.5)``, with few roundings where ``also`` is a number."""
    if isinstance(also, Constant) and abs(also.value) > _LEAST_FOLDED:
        return call.emit("mul", factor, call.constant(also.value * _HALF_SCALE, dtype))
    scaled = call.emit("mul", factor, call.constant(_HALF_SCALE, dtype))
    return scaled if also is None else call.emit("mul", scaled, also)
