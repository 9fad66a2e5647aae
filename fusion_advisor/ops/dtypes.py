"""Dtype facts and exact conversion of Python numbers to a dtype's value."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.records import OpNode

Number = bool | int | float

INTEGER_BITS: dict[str, tuple[int, bool]] = {  # width, signed
    "uint8": (8, False),
    "int8": (8, True),
    "int16": (16, True),
    "int32": (32, True),
    "int64": (64, True),
}
FLOAT_DTYPES = ("bfloat16", "float16", "float32", "float64")
HALF_DTYPES = ("bfloat16", "float16")
SUPPORTED_DTYPES = ("bool", *INTEGER_BITS, *FLOAT_DTYPES)
ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bfloat16": 2,
    "float16": 2,
    "float32": 4,
    "float64": 8,
}


# Ops whose only work is another dtype: the rounding is what the code asked for.
_CONVERSIONS = frozenset(
    {"aten._to_copy.default", "aten.copy.default", "prims.convert_element_type.default"}
)


def explicit_rounding(node: OpNode, dtypes: Mapping[str, str]) -> str:
    """The 16-bit dtype that an op rounds to because the code says so, or "".

    ``dtypes`` are those of the recorded values.
    """
    name = node.op.replace("copy_.", "copy.")
    if name not in _CONVERSIONS or not node.inputs or not node.outputs:
        return ""
    made, source = dtypes[node.outputs[0]], dtypes[node.inputs[-1]]
    return made if made in HALF_DTYPES and made != source else ""


def is_float(dtype: str) -> bool:
    """True for the float dtypes, 16-bit ones included."""
    return dtype in FLOAT_DTYPES


def is_integer(dtype: str) -> bool:
    """True for the integer dtypes; bool is not one of them."""
    return dtype in INTEGER_BITS


def require_supported(dtype: str, op: str) -> str:
    """The dtype itself, or UnsupportedOpError naming op and dtype."""
    if dtype not in SUPPORTED_DTYPES:
        raise UnsupportedOpError(
            f"{op} on {dtype}: kernels are generated for {', '.join(SUPPORTED_DTYPES)} only; "
            "leave this op eager"
        )
    return dtype


def opmath(dtype: str) -> str:
    """The dtype that eager computes in: float32 for the 16-bit floats, else the dtype."""
    return "float32" if dtype in HALF_DTYPES else dtype


def _pack_float(value: float, code: str) -> float:
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:  # struct refuses what IEEE rounds to infinity
        return math.copysign(math.inf, value)


def round_to_bfloat16(value: float) -> float:
    """Round a float32 value to bfloat16, half to even; NaN stays NaN."""
    if math.isnan(value) or math.isinf(value):
        return value
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


def convert_number(value: Number, dtype: str) -> Number:
    """What torch stores when it casts a Python number to ``dtype``.

    16-bit floats are rounded by way of float32, as eager's conversions are.
    Integers wrap; a float is truncated first (out of range is an error here,
    because eager's own result is undefined).
    """
    if dtype == "bool":
        return bool(value)
    if dtype in INTEGER_BITS:
        if isinstance(value, float) and not math.isfinite(value):
            raise UnsupportedOpError(
                f"the number {value} has no {dtype} value; leave this op eager"
            )
        bits, signed = INTEGER_BITS[dtype]
        if isinstance(value, float) and not -(2 ** (bits - 1)) <= value < 2**bits:
            raise UnsupportedOpError(
                f"the number {value} is outside {dtype}'s range; leave this op eager"
            )
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped - (1 << bits) if signed and wrapped >> (bits - 1) else wrapped
    try:
        wide = float(value)
    except OverflowError:
        wide = math.copysign(math.inf, value)
    if dtype == "float64":
        return wide
    single = _pack_float(wide, "<f")
    if dtype == "float32":
        return single
    if dtype == "float16":
        return _pack_float(single, "<e")
    if dtype == "bfloat16":
        return round_to_bfloat16(single)
    raise UnsupportedOpError(f"numbers of dtype {dtype} are not supported; leave this op eager")
