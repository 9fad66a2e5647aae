"""A slow, independent reading of scalar programs: numpy, one statement at a time.

Float functions are computed in float64 and rounded once, so they are nearly
correctly rounded; 16-bit values are held as float32 that were rounded to 16 bits.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from fusion_advisor.records import Constant, Statement

Array = np.ndarray
NUMPY_DTYPES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bfloat16": np.float32,
    "float16": np.float32,
    "float32": np.float32,
    "float64": np.float64,
}
_TORCH_FUNCTIONS = {"erf", "erfc"}
_LIBM = ctypes.CDLL(ctypes.util.find_library("m"))
_LIBM.fma.restype = ctypes.c_double
_LIBM.fma.argtypes = [ctypes.c_double] * 3
_LIBM.pow.restype = ctypes.c_double
_LIBM.pow.argtypes = [ctypes.c_double] * 2


def to_numpy(tensor: torch.Tensor) -> Array:
    """A tensor's elements, 16-bit floats widened to float32."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return tensor.detach().numpy()


def _round_16_bits(values: Array, dtype: str) -> Array:
    rounded = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(getattr(torch, dtype))
    return rounded.float().numpy()


def _cast(values: Array, dtype: str) -> Array:
    if dtype in ("bfloat16", "float16"):
        return _round_16_bits(values, dtype)
    with np.errstate(all="ignore"):
        return values.astype(NUMPY_DTYPES[dtype])


def _fma(a: Array, b: Array, c: Array) -> Array:
    if a.dtype == np.float32:  # the product is exact in float64
        return (a.astype(np.float64) * b + c).astype(np.float32)
    broadcast = np.broadcast_arrays(a, b, c)
    flat = [
        _LIBM.fma(*row) for row in zip(*(item.ravel().tolist() for item in broadcast), strict=True)
    ]
    return np.array(flat, np.float64).reshape(broadcast[0].shape)


def _extremum(a: Array, b: Array, keep: Array) -> Array:
    return np.where(keep | np.isnan(a), a, b) if a.dtype.kind == "f" else np.where(keep, a, b)


def _float_function(opcode: str, args: Sequence[Array]) -> Array:
    wide = [arg.astype(np.float64) for arg in args]
    if opcode == "pow":  # numpy takes sqrt for 0.5, which differs at -inf and -0.0
        pairs = np.broadcast_arrays(*wide)
        flat = [_LIBM.pow(*row) for row in zip(*(p.ravel().tolist() for p in pairs), strict=True)]
        result = np.array(flat, np.float64).reshape(pairs[0].shape)
    elif opcode in _TORCH_FUNCTIONS:
        result = getattr(torch, opcode)(torch.from_numpy(wide[0].copy())).numpy()
    else:
        name = {
            "asin": "arcsin",
            "acos": "arccos",
            "atan": "arctan",
            "atan2": "arctan2",
            "asinh": "arcsinh",
            "acosh": "arccosh",
            "atanh": "arctanh",
        }.get(opcode, opcode)
        result = getattr(np, name)(*wide)
    return result.astype(args[0].dtype)


def _power(base: int, exponent: int) -> int:
    if exponent >= 0:
        return base**exponent
    return 0 if abs(base) != 1 else 1 if exponent % 2 == 0 else base


def _whole_numbers(function: Callable[[int, int], int], a: Array, b: Array) -> Array:
    """A function of Python's own integers, its results wrapped to the operands' dtype."""
    pairs = zip(*(item.ravel().tolist() for item in np.broadcast_arrays(a, b)), strict=True)
    wrapped = [function(*pair) & ((1 << 64) - 1) for pair in pairs]
    return np.array(wrapped, np.uint64).astype(a.dtype).reshape(np.broadcast(a, b).shape)


def _direct(opcode: str, args: Sequence[Array]) -> Array | None:
    """Opcodes that numpy computes exactly in the operands' own dtype."""
    a, b = args[0], args[-1]
    is_bool = a.dtype == np.bool_
    table = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "div": lambda: a / b,
        "neg": lambda: -a,
        "abs": lambda: np.abs(a),
        "sqrt": lambda: np.sqrt(a),
        "maximum": lambda: _extremum(a, b, a > b),
        "minimum": lambda: _extremum(a, b, a < b),
        "fmod": lambda: np.fmod(a, b),
        "floor": lambda: np.floor(a),
        "ceil": lambda: np.ceil(a),
        "trunc": lambda: np.trunc(a),
        "round": lambda: np.rint(a),
        "copysign": lambda: np.copysign(a, b),
        "divisor": lambda: np.where(a == 0, np.ones_like(a), a),
        "floordiv": lambda: a // b,
        "truncdiv": lambda: (a - np.fmod(a, b)) // b,
        "power": lambda: _whole_numbers(_power, a, b),
        "shift_left": lambda: _whole_numbers(lambda x, n: x << n if 0 <= n < 64 else 0, a, b),
        "shift_right": lambda: _whole_numbers(lambda x, n: x >> (n if 0 <= n < 64 else 64), a, b),
        "ldexp": lambda: np.ldexp(a, b),
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "not": lambda: ~a if not is_bool else np.logical_not(a),
        "lt": lambda: a < b,
        "le": lambda: a <= b,
        "gt": lambda: a > b,
        "ge": lambda: a >= b,
        "eq": lambda: a == b,
        "ne": lambda: a != b,
        "isnan": lambda: np.isnan(a),
        "signbit": lambda: np.signbit(a),
        "select": lambda: np.where(a, args[1], args[-1]),
    }
    compute = table.get(opcode)
    return None if compute is None else compute()


def run_statements(
    statements: Sequence[Statement], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """Every name's values; inputs broadcast against each other as numpy does."""
    values = dict(inputs)
    with np.errstate(all="ignore"):
        for statement in statements:
            args = [
                np.asarray(arg.value, NUMPY_DTYPES[arg.dtype])
                if isinstance(arg, Constant)
                else values[arg]
                for arg in statement.args
            ]
            if statement.opcode == "cast":
                result = _cast(args[0], statement.dtype)
            elif statement.opcode == "fma":
                result = _fma(*args)
            else:
                direct = _direct(statement.opcode, args)
                result = _float_function(statement.opcode, args) if direct is None else direct
            values[statement.name] = np.asarray(result)
    return values
