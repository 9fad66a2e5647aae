"""Recipes of division: true, rounded, and what is left over.

Integers: eager on the CPU raises where a divisor is 0.  A kernel computes with 1 there and tells
its caller (opcode ``divisor``), who leaves the raising to eager.
"""

from __future__ import annotations

from collections.abc import Callable

from fusion_advisor.ops.arithmetic import right_operand
from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import is_integer
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op
from fusion_advisor.records import Constant


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
    a, b = call.load("self", dtype), right_operand(call, "other", dtype)
    return call.store(call.emit("div", a, b), dtype)


@op("reciprocal.default", flops=4, promotion="float")
def reciprocal(call: Call) -> Value:
    """``1 / self``."""
    dtype = call.float_dtype("self")
    one = call.constant(1.0, dtype)
    return call.store(call.emit("div", one, call.load("self", dtype)), dtype)


def _integer_divisor(call: Call, dtype: str) -> Value:
    """The divisor in the op's dtype; checked where it may be 0."""
    value = call.load("other", dtype)
    if not isinstance(value, Constant):
        return call.emit("divisor", value)
    if value.value == 0:
        raise call.refuse("integer division by zero raises in eager")
    return value


def _integer_rest(call: Call, dtype: str, quotient: str) -> Value:
    """What the division leaves over, of the sign that its rounding gives."""
    a, b = call.load("self", dtype), _integer_divisor(call, dtype)
    return call.emit("sub", a, call.emit("mul", call.emit(quotient, a, b), b))


def _rest(call: Call, quotient: str, of_floats: Callable[[Value, Value], Value]) -> Value:
    """What the division of two numbers leaves over."""
    dtype = call.require_number(call.common_dtype("self", "other"))
    if is_integer(dtype):
        return _integer_rest(call, dtype, quotient)
    a, b = call.load("self", dtype), call.load("other", dtype)
    return call.store(of_floats(a, b), dtype)


def _remainder_step(call: Call, a: Value, b: Value) -> tuple[Value, Value]:
    """fmod(a, b), and whether its sign must be corrected to that of b."""
    zero = Constant(value=0.0, dtype=call.builder.dtype(a))
    rest = call.emit("fmod", a, b)
    wrong_sign = call.emit("ne", call.emit("lt", b, zero), call.emit("lt", rest, zero))
    return rest, call.emit("and", call.emit("ne", rest, zero), wrong_sign)


@op(
    "remainder.Tensor",
    "remainder.Scalar",
    "remainder.Scalar_Tensor",
    parameters="self other",
    flops=20,
    discontinuous=True,
    zero_raises=True,
)
def remainder(call: Call) -> Value:
    """Python's ``%``: the result has the divisor's sign."""

    def of_floats(a: Value, b: Value) -> Value:
        rest, wrong_sign = _remainder_step(call, a, b)
        return call.emit("select", wrong_sign, call.emit("add", rest, b), rest)

    return _rest(call, "floordiv", of_floats)


@op(
    "fmod.Tensor",
    "fmod.Scalar",
    parameters="self other",
    flops=16,
    discontinuous=True,
    zero_raises=True,
)
def fmod(call: Call) -> Value:
    """C's remainder: the result has the dividend's sign."""
    return _rest(call, "truncdiv", lambda a, b: call.emit("fmod", a, b))


def _floor_quotient(call: Call, dtype: str) -> Value:
    """Python's floor division on floats, step by step as eager does it.

    By a tensor, eager's 16-bit kernel rounds after each step; by a number only at the end.
    """
    a, b = call.load("self", dtype), right_operand(call, "other", dtype)

    def stored(value: Value) -> Value:
        by_tensor = call.operand("other").weight == "tensor"
        return call.round_step(value, dtype) if by_tensor else value

    zero, one, half = (call.constant(number, dtype) for number in (0.0, 1.0, 0.5))
    rest, wrong_sign = _remainder_step(call, a, b)
    exact = stored(call.emit("sub", a, rest))
    quotient = stored(call.emit("div", exact, b))
    lower = stored(call.emit("sub", quotient, one))
    quotient = call.emit("select", wrong_sign, lower, quotient)
    floor = call.emit("floor", quotient)
    excess = stored(call.emit("sub", quotient, floor))
    above = stored(call.emit("add", floor, one))
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
    zero_raises=True,
)
def floor_divide(call: Call) -> Value:
    """Python's ``//``."""
    dtype = call.require_number(call.common_dtype("self", "other"))
    if is_integer(dtype):
        return call.emit("floordiv", call.load("self", dtype), _integer_divisor(call, dtype))
    return _floor_quotient(call, dtype)


@op(
    "div.Tensor_mode",
    "div.Scalar_mode",
    parameters="self other *rounding_mode",
    flops=28,
    discontinuous=True,
    zero_raises=True,
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
        return call.emit("truncdiv", call.load("self", dtype), _integer_divisor(call, dtype))
    a, b = call.load("self", dtype), right_operand(call, "other", dtype)
    quotient: Value = call.emit("div", a, b)
    if call.operand("other").weight == "tensor":
        quotient = call.round_step(quotient, dtype)
    return call.store(call.emit("trunc", quotient), dtype)
