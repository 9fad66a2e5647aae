"""Recipes of maximum, minimum and clamp, which keep NaN as eager does."""

from __future__ import annotations

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import is_float
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op


def extremum(call: Call, opcode: str, a: str, b: str) -> Value:
    """The larger or smaller of two operands, NaN if either is."""
    dtype = call.common_dtype(a, b)
    left, right = call.load(a, dtype), call.load(b, dtype)
    if dtype == "bool":
        return call.emit("or" if opcode == "maximum" else "and", left, right)
    return call.store(call.emit(opcode, left, right), dtype)


_ZERO_SIGN = "eager's vector body and tail give zeros of opposite sign for (0.0, -0.0)"

_HALF_NAN = "eager's bfloat16 vector body lets one NaN through, its strided loop ignores it"


@op("maximum.default", "max.other", parameters="self other", flops=2, budget_ulp=1, note=_ZERO_SIGN)
def maximum(call: Call) -> Value:
    """The larger; NaN if either is NaN."""
    return extremum(call, "maximum", "self", "other")


@op("minimum.default", "min.other", parameters="self other", flops=2, budget_ulp=1, note=_ZERO_SIGN)
def minimum(call: Call) -> Value:
    """The smaller; NaN if either is NaN."""
    return extremum(call, "minimum", "self", "other")


@op("fmax.default", parameters="self other", flops=3, budget_ulp=1, note=_HALF_NAN)
def fmax(call: Call) -> Value:
    """The larger; a NaN is ignored."""
    return _ignoring_nan(call, "maximum")


@op("fmin.default", parameters="self other", flops=3, budget_ulp=1, note=_HALF_NAN)
def fmin(call: Call) -> Value:
    """The smaller; a NaN is ignored."""
    return _ignoring_nan(call, "minimum")


def _ignoring_nan(call: Call, opcode: str) -> Value:
    """Of equal operands (zeros of both signs) eager takes the first; in bfloat16 the second."""
    dtype = call.common_dtype("self", "other")
    if not is_float(dtype):
        return extremum(call, opcode, "self", "other")
    a, b = call.load("self", dtype), call.load("other", dtype)
    both = call.emit(opcode, a, b) if dtype == "bfloat16" else call.emit(opcode, b, a)
    result = call.emit("select", call.emit("isnan", a), b, both)
    return call.store(call.emit("select", call.emit("isnan", b), a, result), dtype)


@op("clamp.default", parameters="self min max", flops=2)
def clamp(call: Call) -> Value:
    """``min(max(self, min), max)``; a NaN in self or in a bound gives NaN."""
    dtype = call.require_number(call.common_dtype("self", "min", "max"))
    value = call.load("self", dtype)
    if call.has("min"):
        value = call.emit("maximum", call.load("min", dtype), value)
    if call.has("max"):
        value = call.emit("minimum", call.load("max", dtype), value)
    return call.store(value, dtype)


@op("clamp.Tensor", parameters="self min max", flops=2, budget_ulp=1, note=_ZERO_SIGN)
def clamp_tensor(call: Call) -> Value:
    """Clamp between tensors."""
    return clamp(call)


@op("clamp_min.default", parameters="self min", flops=1)
@op("clamp_max.default", parameters="self max", flops=1)
def clamp_one(call: Call) -> Value:
    """Clamp on one side by a number."""
    return clamp(call)


@op("clamp_min.Tensor", parameters="self min", flops=1, budget_ulp=1, note=_ZERO_SIGN)
@op("clamp_max.Tensor", parameters="self max", flops=1, budget_ulp=1, note=_ZERO_SIGN)
def clamp_one_tensor(call: Call) -> Value:
    """Clamp on one side by a tensor; unlike by a number, of bools too."""
    bound = "min" if call.has("min") else "max"
    if call.common_dtype("self", bound) == "bool":
        return extremum(call, "maximum" if bound == "min" else "minimum", "self", bound)
    return clamp(call)
