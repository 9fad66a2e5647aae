"""Products with exponentials that keep their accuracy where the exponential alone loses it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.scalars import Value

# Below it exp(x) is a subnormal float32, whose few bits a large factor would bring to light.
_SUBNORMAL_BELOW = -87.0
# exp(-55.5) is a float32 to 0.008 ULP; x + 111 is exact for every x that matters: at
# x = -192 even the largest float32 times exp(x) is subnormal.
_HALF_SHIFT = 55.5
_HALF_SCALE = math.exp(-_HALF_SHIFT)


@dataclass(frozen=True)
class Growth:
    """``factor * exp(exponent)``: ``product`` of its two factors, or ``tiny`` where ``is_tiny``.

    ``exp`` is the exponential where it is not tiny.
    """

    exp: Value
    product: Value
    is_tiny: Value | None = None
    tiny: Value | None = None

    def chosen(self, call: Call, otherwise: Value) -> Value:
        """The tiny product where it is tiny, else ``otherwise``."""
        if self.is_tiny is None or self.tiny is None:
            return otherwise
        return call.emit("select", self.is_tiny, self.tiny, otherwise)


def growth(call: Call, factor: Value, exponent: Value, dtype: str) -> Growth:
    """``factor * exp(exponent)``; in float32 to full accuracy down to the smallest results.

    Where the exponential would be subnormal it is taken at exponent + 111, and the product is
    scaled back in two steps around it: the first on the factor, which is so large there that it
    cannot underflow unless the result does.  16 bits take the exponential as eager does.
    """
    if dtype != "float32":
        exp = call.emit("exp", exponent)
        return Growth(exp, call.emit("mul", factor, exp))
    is_tiny = call.emit("lt", exponent, call.constant(_SUBNORMAL_BELOW, dtype))
    raised = call.emit("add", exponent, call.constant(2 * _HALF_SHIFT, dtype))
    exp = call.emit("exp", call.emit("select", is_tiny, raised, exponent))
    scale = call.constant(_HALF_SCALE, dtype)
    tiny = call.emit("mul", call.emit("mul", call.emit("mul", factor, scale), exp), scale)
    return Growth(exp, call.emit("mul", factor, exp), is_tiny, tiny)


def times_exp(call: Call, factor: Value, exponent: Value, dtype: str) -> Value:
    """``factor * exp(exponent)``, see ``growth``."""
    found = growth(call, factor, exponent, dtype)
    return found.chosen(call, found.product)
