"""Recipes of powers and roots."""

from __future__ import annotations

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import INTEGER_BITS, is_float, is_integer, opmath
from fusion_advisor.ops.promotion import result_type
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op
from fusion_advisor.records import Constant

_VENDOR = "eager's contiguous kernel is a vendor routine that is not correctly rounded"
_HALF_TAIL = "in 16 bits eager's vector body and tail round differently"
_MOST_PRODUCTS = 8  # of one exponent that is known: above, squaring in a loop


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


def _integer_power(call: Call, dtype: str, exponent: int) -> Value:
    """Exact, wrapping; eager raises for a negative number and for what the dtype cannot hold."""
    bits, signed = INTEGER_BITS[dtype]
    if not 0 <= exponent < 1 << (bits - signed):
        raise call.refuse(f"{dtype} to the power {exponent} raises in eager")
    base = call.load("self", dtype)
    if exponent > _MOST_PRODUCTS:
        return call.emit("power", base, call.constant(exponent, dtype))
    result: Value = Constant(value=1, dtype=dtype)
    for step in range(exponent):
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
    dtype = call.common_dtype("self", "exponent")
    if not is_float(dtype):
        whole = int(call.number("exponent", 1))
        if dtype == "bool":  # the exponent is True or False
            return call.load("self", dtype) if whole else call.constant(True, dtype)
        return _integer_power(call, dtype, whole)
    exponent = float(call.number("exponent", 1.0))
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
    """C's pow; of integers exact and wrapping, a negative exponent rounding towards zero."""
    dtype = call.require_number(call.common_dtype("self", "exponent"))
    base, exponent = call.load("self", dtype), call.load("exponent", dtype)
    if is_integer(dtype):
        return call.emit("power", base, exponent)
    return call.store(call.emit("pow", base, exponent), dtype)


@op("pow.Scalar", parameters="self exponent", flops=32, budget_ulp=2)
def pow_scalar(call: Call) -> Value:
    """A number to a tensor's power; bases 1 and 2 are special in eager."""
    dtype = call.require_number(call.common_dtype("self", "exponent"))
    exponent = call.load("exponent", dtype)
    if call.number("self", 0.0) == 1.0:
        return call.builder.constant(1, dtype)
    if is_integer(dtype):
        return call.emit("power", call.load("self", dtype), exponent)
    if call.number("self", 0.0) == 2.0:
        return call.store(call.emit("exp2", exponent), dtype)
    return call.store(call.emit("pow", call.load("self", dtype), exponent), dtype)


@op(
    "ldexp.Tensor",
    parameters="self other",
    flops=16,
    budget_ulp=3,
    note="exact for a float and integers",
)
def ldexp(call: Call) -> Value:
    """``self * 2**other``: rounded once for a float and integers, else a power and a product."""
    self_dtype, other_dtype = call.same_dtype("self"), call.same_dtype("other")
    if is_float(self_dtype) and is_integer(other_dtype):
        exponent = call.builder.cast(call.operand("other").value, "int32")  # wraps, as eager's
        return call.store(call.emit("ldexp", call.load("self", self_dtype), exponent), self_dtype)
    base, other = call.operand("self"), call.operand("other")
    power_dtype = call.float_dtype("other")
    power = call.store(call.emit("exp2", call.load("other", power_dtype)), power_dtype)
    dtype = result_type([(base.dtype, base.weight), (power_dtype, other.weight)])
    if other.weight == "tensor":  # a 0-dim factor is not rounded to 16 bits first
        power = call.builder.cast(power, dtype)
    factor = call.builder.cast(power, opmath(dtype))
    return call.store(call.emit("mul", call.load("self", dtype), factor), dtype)
