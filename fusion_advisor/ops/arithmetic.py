"""Recipes of arithmetic: + - * / with promotion, powers, remainders, roots.

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

_VENDOR = "eager's contiguous kernel is a vendor routine that is not correctly rounded"
_HALF_TAIL = "in 16 bits eager's vector body and tail round differently"


def _scaled_sum(call: Call, left: str, right: str, *, negate: bool) -> Value:
    """Either left ± alpha * right; one fused multiply-add where eager's kernel has one."""
    dtype = call.common_dtype("self", "other")
    a, b = call.load(left, dtype), call.load(right, dtype)
    alpha = call.operands.get("alpha")
    is_one = alpha is None or (isinstance(alpha.value, Constant) and alpha.value.value == 1)
    if dtype == "bool":
        if not is_one or negate:
            raise call.refuse("bool tensors can only be added")
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


def _right_operand(call: Call, name: str, dtype: str) -> Value:
    """Multiplication and division keep a scalar right operand in float32 for 16-bit tensors."""
    if dtype in HALF_DTYPES and call.operand(name).weight != "tensor":
        return call.wide(name, dtype)
    return call.load(name, dtype)


@op("mul.Tensor", "mul.Scalar", parameters="self other")
def mul(call: Call) -> Value:
    """``self * other``."""
    dtype = call.common_dtype("self", "other")
    a, b = call.load("self", dtype), _right_operand(call, "other", dtype)
    return call.store(call.emit("and" if dtype == "bool" else "mul", a, b), dtype)


@op(
    "div.Tensor",
    "div.Scalar",
    "true_divide.Tensor",
    parameters="self other",
    flops=4,
    promotion="float",
)
def div(call: Call) -> Value:
    """True division; integers give floats."""
    dtype = call.float_dtype("self", "other")
    a, b = call.load("self", dtype), _right_operand(call, "other", dtype)
    return call.store(call.emit("div", a, b), dtype)


def _nonzero_divisor(call: Call, dtype: str) -> Constant:
    """An integer divisor that is known and not zero: eager raises for zero, a kernel cannot."""
    value = call.load("other", dtype)
    if not isinstance(value, Constant) or value.value == 0:
        raise call.refuse(
            "integer division by a tensor or by zero raises in eager when a divisor is zero, "
            "which a kernel cannot do"
        )
    return value


def _remainder_step(call: Call, a: Value, b: Value) -> tuple[Value, Value]:
    """fmod(a, b), and whether its sign must be corrected to that of b."""
    zero = Constant(value=0.0, dtype=call.builder.dtype(a))
    rest = call.emit("fmod", a, b)
    wrong_sign = call.emit("ne", call.emit("lt", b, zero), call.emit("lt", rest, zero))
    return rest, call.emit("and", call.emit("ne", rest, zero), wrong_sign)


@op("remainder.Tensor", "remainder.Scalar", parameters="self other", flops=20, discontinuous=True)
def remainder(call: Call) -> Value:
    """Python's ``%``: the result has the divisor's sign."""
    dtype = call.require_number(call.common_dtype("self", "other"))
    if is_integer(dtype):
        divisor = _nonzero_divisor(call, dtype)
        a = call.load("self", dtype)
        return call.emit("sub", a, call.emit("mul", call.emit("floordiv", a, divisor), divisor))
    a, b = call.load("self", dtype), call.load("other", dtype)
    rest, wrong_sign = _remainder_step(call, a, b)
    result = call.emit("select", wrong_sign, call.emit("add", rest, b), rest)
    return call.store(result, dtype)


@op("fmod.Tensor", "fmod.Scalar", parameters="self other", flops=16, discontinuous=True)
def fmod(call: Call) -> Value:
    """C's remainder: the result has the dividend's sign."""
    dtype = call.require_number(call.common_dtype("self", "other"))
    if is_integer(dtype):
        divisor = _nonzero_divisor(call, dtype)
        a = call.load("self", dtype)
        return call.emit("sub", a, call.emit("mul", call.emit("truncdiv", a, divisor), divisor))
    a, b = call.load("self", dtype), call.load("other", dtype)
    return call.store(call.emit("fmod", a, b), dtype)


def _floor_quotient(call: Call, dtype: str) -> Value:
    """Python's floor division on floats, step by step as eager does it."""
    a, b = call.load("self", dtype), call.load("other", dtype)
    zero, one, half = (call.constant(number, dtype) for number in (0.0, 1.0, 0.5))
    rest, wrong_sign = _remainder_step(call, a, b)
    exact = call.round_step(call.emit("sub", a, rest), dtype)
    quotient = call.round_step(call.emit("div", exact, b), dtype)
    lower = call.round_step(call.emit("sub", quotient, one), dtype)
    quotient = call.emit("select", wrong_sign, lower, quotient)
    floor = call.emit("floor", quotient)
    excess = call.round_step(call.emit("sub", quotient, floor), dtype)
    above = call.round_step(call.emit("add", floor, one), dtype)
    floor = call.emit("select", call.emit("gt", excess, half), above, floor)
    plain = call.emit("div", a, b)
    signed_zero = call.emit("copysign", zero, plain)
    result = call.emit("select", call.emit("ne", quotient, zero), floor, signed_zero)
    by_zero = call.emit("eq", b, zero)
    return call.store(call.emit("select", by_zero, plain, result), dtype)


@op(
    "floor_divide.default",
    "floor_divide.Scalar",
    parameters="self other",
    flops=28,
    discontinuous=True,
)
def floor_divide(call: Call) -> Value:
    """Python's ``//``."""
    dtype = call.require_number(call.common_dtype("self", "other"))
    if is_integer(dtype):
        divisor = _nonzero_divisor(call, dtype)
        return call.emit("floordiv", call.load("self", dtype), divisor)
    return _floor_quotient(call, dtype)


@op(
    "div.Tensor_mode",
    "div.Scalar_mode",
    parameters="self other *rounding_mode",
    flops=28,
    discontinuous=True,
)
def div_mode(call: Call) -> Value:
    """Division, then rounding down or towards zero as asked."""
    mode = call.text("rounding_mode", "")
    if mode == "":
        return div(call)
    if mode == "floor":
        return floor_divide(call)
    dtype = call.require_number(call.common_dtype("self", "other"))
    if is_integer(dtype):
        return call.emit("truncdiv", call.load("self", dtype), _nonzero_divisor(call, dtype))
    quotient = call.emit("div", call.load("self", dtype), call.load("other", dtype))
    return call.store(call.emit("trunc", call.round_step(quotient, dtype)), dtype)


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


@op("reciprocal.default", flops=4, promotion="float")
def reciprocal(call: Call) -> Value:
    """``1 / self``."""
    dtype = call.float_dtype("self")
    one = call.constant(1.0, dtype)
    return call.store(call.emit("div", one, call.load("self", dtype)), dtype)


@op("sqrt.default", flops=4, promotion="float", budget_ulp=1, note=_VENDOR)
def sqrt(call: Call) -> Value:
    """Correctly rounded square root."""
    dtype = call.float_dtype("self")
    return call.store(call.emit("sqrt", call.load("self", dtype)), dtype)


@op(
    "rsqrt.default",
    flops=8,
    promotion="float",
    budget_ulp=2,
    note="eager's float32 body is a vendor routine, its tail 1/sqrt; " + _HALF_TAIL,
)
def rsqrt(call: Call) -> Value:
    """``1 / sqrt(self)``, both steps in the computing dtype."""
    dtype = call.float_dtype("self")
    one = call.constant(1.0, dtype)
    root = call.emit("sqrt", call.load("self", dtype))
    return call.store(call.emit("div", one, root), dtype)


@op("square.default")
def square(call: Call) -> Value:
    """``self * self``."""
    dtype = call.require_number(call.same_dtype("self"))
    value = call.load("self", dtype)
    return call.store(call.emit("mul", value, value), dtype)


def _integer_power(call: Call, dtype: str, exponent: float) -> Value:
    if exponent != int(exponent) or not 0 <= exponent <= 8:
        raise call.refuse(f"an integer tensor to the power {exponent}")
    base = call.load("self", dtype)
    result: Value = Constant(value=1, dtype=dtype)
    for step in range(int(exponent)):
        result = base if step == 0 else call.emit("mul", result, base)
    return result


@op(
    "pow.Tensor_Scalar",
    parameters="self exponent",
    flops=4,
    budget_ulp=2,
    note="exact for exponents 0, 0.5, 1, 2, 3, -1, -2",
)
def pow_tensor_scalar(call: Call) -> Value:
    """Special exponents are computed as eager does; bfloat16 rounds after each step."""
    dtype = call.require_number(call.common_dtype("self", "exponent"))
    exponent = float(call.number("exponent", 1.0))
    if is_integer(dtype):
        return _integer_power(call, dtype, exponent)
    if exponent == 0.0:
        return call.builder.constant(1.0, dtype)
    if exponent == 1.0:
        return call.builder.cast(call.operand("self").value, dtype)
    base, one = call.load("self", dtype), call.constant(1.0, dtype)
    if dtype == "float16" and abs(exponent) == 0.5:  # eager takes the general routine here
        return call.store(call.emit("pow", base, call.load("exponent", dtype)), dtype)
    if exponent == 0.5:
        return call.store(call.emit("sqrt", base), dtype)
    if exponent == -0.5:
        return call.store(call.emit("div", one, call.emit("sqrt", base)), dtype)
    if exponent == -1.0:
        return call.store(call.emit("div", one, base), dtype)
    if exponent in (2.0, 3.0, -2.0):
        result: Value = call.emit("mul", base, base)
        if exponent != 2.0 and dtype == "bfloat16":
            result = call.round_step(result, dtype)
        if exponent == 3.0:
            result = call.emit("mul", result, base)
        if exponent == -2.0:
            result = call.emit("div", one, result)
        return call.store(result, dtype)
    return call.store(call.emit("pow", base, call.load("exponent", dtype)), dtype)


@op("pow.Tensor_Tensor", parameters="self exponent", flops=32, budget_ulp=2)
def pow_tensor_tensor(call: Call) -> Value:
    """C's pow."""
    dtype = call.require_float(call.common_dtype("self", "exponent"))
    base, exponent = call.load("self", dtype), call.load("exponent", dtype)
    return call.store(call.emit("pow", base, exponent), dtype)


@op("pow.Scalar", parameters="self exponent", flops=32, budget_ulp=2)
def pow_scalar(call: Call) -> Value:
    """A number to a tensor's power; bases 1 and 2 are special in eager."""
    dtype = call.require_float(call.common_dtype("self", "exponent"))
    exponent = call.load("exponent", dtype)
    if call.number("self", 0.0) == 1.0:
        return call.builder.constant(1.0, dtype)
    if call.number("self", 0.0) == 2.0:
        return call.store(call.emit("exp2", exponent), dtype)
    return call.store(call.emit("pow", call.load("self", dtype), exponent), dtype)


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
