"""Recipes of ops that make the same number everywhere: they lend shape and dtype, read nothing."""

from __future__ import annotations

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.promotion import DEFAULT_FLOAT
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op

_OPTIONS = "*dtype *layout *device *pin_memory *memory_format"


def _dtype(call: Call) -> str:
    call.require_plain_memory()
    return call.dtype_argument("dtype") or call.same_dtype("self")


@op("zeros_like.default", parameters=f"self {_OPTIONS}", flops=0, promotion="none", unread="self")
def zeros_like(call: Call) -> Value:
    """Zero everywhere."""
    return call.builder.constant(0, _dtype(call))


@op("ones_like.default", parameters=f"self {_OPTIONS}", flops=0, promotion="none", unread="self")
def ones_like(call: Call) -> Value:
    """One everywhere."""
    return call.builder.constant(1, _dtype(call))


@op(
    "full_like.default",
    parameters=f"self fill_value {_OPTIONS}",
    flops=0,
    promotion="none",
    unread="self",
)
def full_like(call: Call) -> Value:
    """One number everywhere."""
    return call.builder.cast(call.operand("fill_value").value, _dtype(call))


@op("scalar_tensor.default", parameters=f"s {_OPTIONS}", flops=0, promotion="none")
def scalar_tensor(call: Call) -> Value:
    """A number as a tensor of no dimension, as ``torch.where`` makes of its numbers."""
    call.require_plain_memory()
    dtype = call.dtype_argument("dtype") or DEFAULT_FLOAT
    return call.builder.cast(call.operand("s").value, dtype)
