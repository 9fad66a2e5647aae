"""Recipes of arithmetic: sums and products with promotion, signs, interpolation.

Which intermediate is rounded where follows eager's CPU kernels, found by
comparing bits; the differences between dtypes below are eager's own.
"""

from __future__ import annotations

import math

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import HALF_DTYPES, is_integer, opmath
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op
from fusion_advisor.records import Constant

_HALF_TAIL = "in 16 bits eager's vector body and tail round differently"


def _scaled_sum(call: Call, left: str, right: str, *, negate: bool) -> Value:
    """Either left ± alpha * right; one fused multiply-add where eager's kernel has one."""
    dtype = call.common_dtype("self", "other")
    a, b = call.load(left, dtype), call.load(right, dtype)
    alpha = call.operands.get("alpha")
    is_one = alpha is None or (isinstance(alpha.value, Constant) and alpha.value.value == 1)
    if dtype == "bool":
        if negate:
            raise call.refuse("bool tensors can only be added")
        if alpha is not None:
            if not isinstance(alpha.value, Constant):
                raise call.refuse("what bool tensors are added with must be constant")
            if not alpha.value.value:
                b = call.emit("and", b, call.constant(False, "bool"))
        return call.emit("or", a, b)
    if is_one:
        return call.store(call.emit("sub" if negate else "add", a, b), dtype)
    factor = call.rounded("alpha", dtype, 1)
    if is_integer(dtype):
        return call.emit("sub" if negate else "add", a, call.emit("mul", b, factor))
    if negate:
        factor = _negative(call, factor)
    return call.store(call.emit("fma", b, factor, a), dtype)


def _negative(call: Call, value: Value) -> Value:
    if isinstance(value, Constant):
        return Constant(value=-value.value, dtype=value.dtype)
    return call.emit("neg", value)


@op("add.Tensor", parameters="self other *alpha", note=_HALF_TAIL)
@op("add.Scalar", parameters="self other alpha")
def add(call: Call) -> Value:
    """``self + alpha * other``."""
    return _scaled_sum(call, "self", "other", negate=False)


@op("sub.Tensor", parameters="self other *alpha", note=_HALF_TAIL)
@op("sub.Scalar", parameters="self other alpha")
def sub(call: Call) -> Value:
    """``self - alpha * other``."""
    return _scaled_sum(call, "self", "other", negate=True)


@op("rsub.Tensor", parameters="self other *alpha")
@op("rsub.Scalar", parameters="self other alpha")
def rsub(call: Call) -> Value:
    """``other - alpha * self``."""
    return _scaled_sum(call, "other", "self", negate=True)


def right_operand(call: Call, name: str, dtype: str) -> Value:
    """Multiplication and division keep a scalar right operand in float32 for 16-bit tensors."""
    if dtype in HALF_DTYPES and call.operand(name).weight != "tensor":
        return call.wide(name, dtype)
    return call.load(name, dtype)


@op("mul.Tensor", "mul.Scalar", parameters="self other")
def mul(call: Call) -> Value:
    """``self * other``."""
    dtype = call.common_dtype("self", "other")
    a, b = call.load("self", dtype), right_operand(call, "other", dtype)
    return call.store(call.emit("and" if dtype == "bool" else "mul", a, b), dtype)


@op("neg.default")
def neg(call: Call) -> Value:
    """``-self``, flipping the sign of zero too."""
    dtype = call.require_number(call.same_dtype("self"))
    return call.store(call.emit("neg", call.load("self", dtype)), dtype)


@op("abs.default")
def absolute(call: Call) -> Value:
    """Absolute value; unsigned values are their own."""
    dtype = call.same_dtype("self")
    if dtype in ("bool", "uint8"):
        return call.load("self", dtype)
    return call.store(call.emit("abs", call.load("self", dtype)), dtype)


def _scaled(call: Call, dtype: str) -> Value:
    """Product value * tensor1, as addcmul and addcdiv begin; value stays unrounded in 16 bits."""
    factor = call.wide("value", dtype, default=1.0)
    first = call.load("tensor1", dtype)
    if isinstance(factor, Constant) and factor.value == 1:
        return first
    return call.emit("mul", factor, first)


@op("addcmul.default", parameters="self tensor1 tensor2 *value", flops=3)
def addcmul(call: Call) -> Value:
    """``self + value * tensor1 * tensor2``, the last product of floats contracted."""
    dtype = call.require_number(call.common_dtype("self", "tensor1", "tensor2"))
    start, second = call.load("self", dtype), call.load("tensor2", dtype)
    if is_integer(dtype):
        return call.emit("add", start, call.emit("mul", _scaled(call, dtype), second))
    return call.store(call.emit("fma", _scaled(call, dtype), second, start), dtype)


@op("addcdiv.default", parameters="self tensor1 tensor2 *value", flops=6)
def addcdiv(call: Call) -> Value:
    """``self + value * tensor1 / tensor2``."""
    dtype = call.require_float(call.common_dtype("self", "tensor1", "tensor2"))
    start = call.load("self", dtype)
    quotient = call.emit("div", _scaled(call, dtype), call.load("tensor2", dtype))
    return call.store(call.emit("add", start, quotient), dtype)


@op("lerp.Scalar", "lerp.Tensor", parameters="self end weight", flops=6)
def lerp(call: Call) -> Value:
    """Start + w*(end - start) below w = 0.5, end - (1 - w)*(end - start) from there on."""
    dtype = call.require_float(call.common_dtype("self", "end"))
    start, end = call.load("self", dtype), call.load("end", dtype)
    weight_is_number = call.operand("weight").weight == "number"
    weight = call.wide("weight", dtype) if weight_is_number else call.load("weight", dtype)
    one, half = call.constant(1.0, dtype), call.constant(0.5, dtype)
    span = call.emit("sub", end, start)
    if isinstance(weight, Constant):
        if abs(weight.value) < 0.5:
            return call.store(call.emit("fma", weight, span, start), dtype)
        rest: Value = call.builder.constant(1.0 - weight.value, opmath(dtype))
        return call.store(call.emit("fma", call.emit("neg", span), rest, end), dtype)
    low = call.emit("fma", weight, span, start)
    high = call.emit("fma", call.emit("neg", span), call.emit("sub", one, weight), end)
    is_low = call.emit("lt", call.emit("abs", weight), half)
    return call.store(call.emit("select", is_low, low, high), dtype)


@op("hypot.default", parameters="self other", flops=12, budget_ulp=2)
def hypot(call: Call) -> Value:
    """Length of the vector (self, other)."""
    dtype = call.require_float(call.common_dtype("self", "other"))
    return call.store(
        call.emit("hypot", call.load("self", dtype), call.load("other", dtype)), dtype
    )


@op("copysign.Tensor", "copysign.Scalar", parameters="self other", promotion="float")
def copysign(call: Call) -> Value:
    """Magnitude of self, sign of other."""
    dtype = call.float_dtype("self", "other")
    a, b = call.load("self", dtype), call.load("other", dtype)
    return call.store(call.emit("copysign", a, b), dtype)


@op("deg2rad.default", "rad2deg.default", promotion="float")
def degrees(call: Call) -> Value:
    """Multiply by pi/180 or 180/pi."""
    dtype = call.float_dtype("self")
    factor = math.pi / 180 if "deg2rad" in call.op else 180 / math.pi
    return call.store(
        call.emit("mul", call.load("self", dtype), call.constant(factor, dtype)), dtype
    )
