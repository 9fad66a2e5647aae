"""torch's type promotion over dimensioned tensors, 0-dim tensors and Python numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.ops.dtypes import FLOAT_DTYPES, INTEGER_BITS, SUPPORTED_DTYPES

# What takes part in promotion, strongest first.
Weight = Literal["tensor", "scalar tensor", "number"]

DEFAULT_FLOAT = "float32"  # torch.get_default_dtype() unless somebody changed it

_CATEGORY = {
    "bool": 0,
    **dict.fromkeys(INTEGER_BITS, 1),
    **dict.fromkeys(FLOAT_DTYPES, 2),
}
_WIDTH_ORDER = ("int8", "int16", "int32", "int64")


def _promote_integers(left: str, right: str) -> str:
    if "uint8" in (left, right):
        other = right if left == "uint8" else left
        return "int16" if other == "int8" else other
    return max(left, right, key=_WIDTH_ORDER.index)


def promote_types(left: str, right: str) -> str:
    """The smallest dtype that holds both, as ``torch.promote_types``."""
    for dtype in (left, right):
        if dtype not in SUPPORTED_DTYPES:
            raise UnsupportedOpError(f"type promotion with {dtype} is not supported")
    if left == right:
        return left
    left_category, right_category = _CATEGORY[left], _CATEGORY[right]
    if left_category != right_category:
        return left if left_category > right_category else right
    if left_category == 1:
        return _promote_integers(left, right)
    if {left, right} == {"bfloat16", "float16"}:
        return "float32"
    return max(
        left,
        right,
        key=lambda dtype: (
            ("float32", "float64").index(dtype) if dtype in ("float32", "float64") else -1
        ),
    )


def result_type(operands: Iterable[tuple[str, Weight]], default_float: str = DEFAULT_FLOAT) -> str:
    """The common dtype of (dtype, weight) operands, as ``torch.result_type``.

    A weaker operand decides only when its category (bool < integer < float) is
    higher than that of every stronger one.  Python floats count as the default
    float dtype, Python integers as int64.
    """
    by_weight: dict[Weight, str] = {}
    for dtype, weight in operands:
        if weight == "number" and dtype in FLOAT_DTYPES:
            dtype = default_float
        known = by_weight.get(weight)
        by_weight[weight] = dtype if known is None else promote_types(known, dtype)
    result = ""
    order: tuple[Weight, ...] = ("tensor", "scalar tensor", "number")
    for weight in order:
        dtype_or_none = by_weight.get(weight)
        if dtype_or_none is None:
            continue
        if not result or _CATEGORY[dtype_or_none] > _CATEGORY[result]:
            result = dtype_or_none
    if not result:
        raise UnsupportedOpError("type promotion needs at least one operand")
    return result
