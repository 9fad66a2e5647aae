"""Recipes of comparisons, boolean and bitwise logic, selection, casts and copies."""

from __future__ import annotations

import math

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import INTEGER_BITS, is_float
from fusion_advisor.ops.scalars import OPCODES, Value
from fusion_advisor.ops.table import op


def _comparison(opcode: str) -> None:
    @op(
        f"{opcode}.Tensor",
        f"{opcode}.Scalar",
        parameters="self other",
        discontinuous=True,
        promotion="bool",
    )
    def recipe(call: Call) -> Value:
        dtype = call.common_dtype("self", "other")
        return call.emit(opcode, call.load("self", dtype), call.load("other", dtype))


for _opcode in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison(_opcode)


@op("isnan.default", discontinuous=True, promotion="bool")
def isnan(call: Call) -> Value:
    """True for NaN; never for integers."""
    dtype = call.same_dtype("self")
    value = call.load("self", dtype)
    if not is_float(dtype):
        return call.emit("ne", value, value)
    return call.emit("isnan", value)


def _infinity_test(call: Call, opcode: str, absolute: bool, bound: float) -> Value:
    dtype = call.same_dtype("self")
    value = call.load("self", dtype)
    if not is_float(dtype):
        return call.emit("ne", value, value)  # nothing but a float is infinite
    if absolute:
        value = call.emit("abs", value)
    return call.emit(opcode, value, call.constant(bound, dtype))


@op("isinf.default", discontinuous=True, promotion="bool")
def isinf(call: Call) -> Value:
    """True for both infinities."""
    return _infinity_test(call, "eq", True, math.inf)


@op("isfinite.default", discontinuous=True, promotion="bool")
def isfinite(call: Call) -> Value:
    """True for neither infinity nor NaN."""
    return _infinity_test(call, "lt", True, math.inf)


@op("isposinf.default", discontinuous=True, promotion="bool")
def isposinf(call: Call) -> Value:
    """True for +inf."""
    return _infinity_test(call, "eq", False, math.inf)


@op("isneginf.default", discontinuous=True, promotion="bool")
def isneginf(call: Call) -> Value:
    """True for -inf."""
    return _infinity_test(call, "eq", False, -math.inf)


@op("signbit.default", discontinuous=True, promotion="bool")
def signbit(call: Call) -> Value:
    """True where the sign bit is set; never for bool."""
    dtype = call.same_dtype("self")
    value = call.load("self", dtype)
    if is_float(dtype):
        return call.emit("signbit", value)
    if dtype == "bool":
        return call.emit("ne", value, value)
    return call.emit("lt", value, call.constant(0, dtype))


def _truth(call: Call, name: str) -> Value:
    return call.builder.cast(call.operand(name).value, "bool")


def _logical(opcode: str) -> None:
    @op(f"logical_{opcode}.default", parameters="self other", discontinuous=True, promotion="bool")
    def recipe(call: Call) -> Value:
        return call.emit(opcode, _truth(call, "self"), _truth(call, "other"))


for _opcode in ("and", "or", "xor"):
    _logical(_opcode)


@op("logical_not.default", discontinuous=True, promotion="bool")
def logical_not(call: Call) -> Value:
    """True where self is zero."""
    return call.emit("not", _truth(call, "self"))


def _bitwise(opcode: str) -> None:
    @op(
        *(f"bitwise_{opcode}.{overload}" for overload in ("Tensor", "Scalar", "Scalar_Tensor")),
        *(f"__{opcode}__.{overload}" for overload in ("Tensor", "Scalar")),
        parameters="self other",
    )
    def recipe(call: Call) -> Value:
        dtype = call.common_dtype("self", "other")
        if is_float(dtype):
            raise call.refuse(f"no recipe for dtype {dtype}")
        return call.emit(opcode, call.load("self", dtype), call.load("other", dtype))


for _opcode in ("and", "or", "xor"):
    _bitwise(_opcode)


def _shift(opcode: str, side: str) -> None:
    @op(
        *(f"bitwise_{side}_shift.{one}" for one in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
        *(f"__{side[0]}shift__.{overload}" for overload in ("Tensor", "Scalar")),
        parameters="self other",
    )
    def recipe(call: Call) -> Value:
        dtype = call.common_dtype("self", "other")
        if dtype not in INTEGER_BITS:
            raise call.refuse(f"no recipe for dtype {dtype}")
        return call.emit(opcode, call.load("self", dtype), call.load("other", dtype))


_shift("shift_left", "left")
_shift("shift_right", "right")


def _common_factor(opcode: str) -> None:
    @op(f"{opcode}.default", parameters="self other", flops=OPCODES[opcode].flops)
    def recipe(call: Call) -> Value:
        dtype = call.common_dtype("self", "other")
        if dtype not in INTEGER_BITS:
            raise call.refuse(f"no recipe for dtype {dtype}")
        return call.emit(opcode, call.load("self", dtype), call.load("other", dtype))


_common_factor("gcd")
_common_factor("lcm")


@op("bitwise_not.default")
def bitwise_not(call: Call) -> Value:
    """Complement; logical for bool."""
    dtype = call.same_dtype("self")
    if dtype != "bool" and dtype not in INTEGER_BITS:
        raise call.refuse(f"no recipe for dtype {dtype}")
    return call.emit("not", call.load("self", dtype))


@op(
    "where.self",
    "where.ScalarSelf",
    "where.ScalarOther",
    "where.Scalar",
    parameters="condition self other",
)
def where(call: Call) -> Value:
    """``self`` where the condition holds, else ``other``."""
    dtype = call.common_dtype("self", "other")
    condition = call.operand("condition")
    if condition.dtype not in ("bool", "uint8"):
        raise call.refuse(f"the condition is {condition.dtype}, not bool")
    a = call.builder.cast(call.operand("self").value, dtype)
    b = call.builder.cast(call.operand("other").value, dtype)
    return call.emit("select", _truth(call, "condition"), a, b)


@op("masked_fill.Scalar", "masked_fill.Tensor", parameters="self mask value", promotion="self")
def masked_fill(call: Call) -> Value:
    """``value`` where the mask holds, else ``self``."""
    dtype = call.same_dtype("self")
    value = call.builder.cast(call.operand("value").value, dtype)
    return call.emit("select", _truth(call, "mask"), value, call.operand("self").value)


@op("clone.default", parameters="self *memory_format", flops=0)
@op("positive.default", "alias.default", flops=0)
def identity(call: Call) -> Value:
    """The same value."""
    return call.operand("self").value


@op(
    "_to_copy.default",
    parameters="self *dtype *layout *device *pin_memory *non_blocking *memory_format",
    flops=1,
    promotion="none",
)
def to_copy(call: Call) -> Value:
    """A cast.  The same device is the caller's to check; a layout change shows in the strides."""
    call.require_plain_memory()
    source = call.same_dtype("self")
    target = call.dtype_argument("dtype") or source
    return call.builder.cast(call.operand("self").value, target)


@op(
    "copy.default",
    parameters="self src non_blocking",
    flops=1,
    promotion="self",
    unread="self",
)
def copy(call: Call) -> Value:
    """``src`` in self's dtype."""
    return call.builder.cast(call.operand("src").value, call.same_dtype("self"))


@op(
    "fill.Scalar",
    "fill.Tensor",
    parameters="self value",
    flops=0,
    promotion="self",
    unread="self",
)
def fill(call: Call) -> Value:
    """``value`` in self's dtype, everywhere."""
    return call.builder.cast(call.operand("value").value, call.same_dtype("self"))


@op("zero.default", flops=0, promotion="self", unread="self")
def zero(call: Call) -> Value:
    """Zero in self's dtype."""
    return call.builder.constant(0, call.same_dtype("self"))
