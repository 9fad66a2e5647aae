"""The scalar opcodes that fused programs are made of, and the builder recipes use.

An opcode works on one element.  ``signature`` says which dtypes it takes and
gives: every operand has the same dtype unless stated, and the result has it too.
Integer arithmetic wraps.  ``maximum``/``minimum`` give NaN if either is NaN, and the
second operand where both are equal, which decides the sign of zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fusion_advisor.errors import CodegenError
from fusion_advisor.ops.dtypes import (
    FLOAT_DTYPES,
    HALF_DTYPES,
    INTEGER_BITS,
    SUPPORTED_DTYPES,
    Number,
    convert_number,
)
from fusion_advisor.records import Constant, Statement

Signature = Literal[
    "cast",  # any -> any
    "float",  # compute floats (float32, float64) -> same
    "number",  # compute floats and integers -> same
    "integer",  # integers -> same
    "scale",  # compute float, int32 -> that float
    "bits",  # bool and integers -> same
    "compare",  # any but 16-bit floats, two of the same -> bool
    "test",  # compute float -> bool
    "select",  # bool, any, same -> that any
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opcode:
    """One scalar operation.  ``flops`` is its weight in the cost model."""

    name: str
    arity: int
    signature: Signature
    meaning: str
    flops: float


def _opcodes() -> dict[str, Opcode]:
    rows: tuple[tuple[str, int, Signature, float, str], ...] = (
        ("cast", 1, "cast", 1, "convert to the statement's dtype, rounding half to even"),
        ("add", 2, "number", 1, "a + b"),
        ("sub", 2, "number", 1, "a - b"),
        ("mul", 2, "number", 1, "a * b, never contracted with what follows"),
        ("div", 2, "float", 4, "a / b"),
        ("fma", 3, "float", 2, "a * b + c, rounded once"),
        ("neg", 1, "number", 1, "-a, sign of zero flipped"),
        ("abs", 1, "number", 1, "|a|"),
        ("maximum", 2, "number", 2, "a if a > b or a is NaN, else b"),
        ("minimum", 2, "number", 2, "a if a < b or a is NaN, else b"),
        ("sqrt", 1, "float", 4, "correctly rounded square root"),
        ("exp", 1, "float", 12, "e to the a"),
        ("exp2", 1, "float", 12, "2 to the a"),
        ("expm1", 1, "float", 16, "e to the a, minus 1"),
        ("log", 1, "float", 14, "natural logarithm"),
        ("log2", 1, "float", 14, "logarithm to base 2"),
        ("log10", 1, "float", 14, "logarithm to base 10"),
        ("log1p", 1, "float", 16, "log(1 + a)"),
        ("sin", 1, "float", 20, "sine"),
        ("cos", 1, "float", 20, "cosine"),
        ("tan", 1, "float", 24, "tangent"),
        ("asin", 1, "float", 24, "arc sine"),
        ("acos", 1, "float", 24, "arc cosine"),
        ("atan", 1, "float", 24, "arc tangent"),
        ("atan2", 2, "float", 28, "angle of the point (b, a)"),
        ("sinh", 1, "float", 24, "hyperbolic sine"),
        ("cosh", 1, "float", 24, "hyperbolic cosine"),
        ("tanh", 1, "float", 20, "hyperbolic tangent"),
        ("asinh", 1, "float", 24, "inverse hyperbolic sine"),
        ("acosh", 1, "float", 24, "inverse hyperbolic cosine"),
        ("atanh", 1, "float", 24, "inverse hyperbolic tangent"),
        ("erf", 1, "float", 20, "error function"),
        ("erfc", 1, "float", 24, "complementary error function"),
        ("hypot", 2, "float", 12, "sqrt(a*a + b*b) without overflow"),
        ("pow", 2, "float", 32, "a to the b, as C's pow"),
        ("fmod", 2, "float", 16, "remainder with the sign of a, exact"),
        ("floor", 1, "float", 1, "round down"),
        ("ceil", 1, "float", 1, "round up"),
        ("trunc", 1, "float", 1, "round towards zero"),
        ("round", 1, "float", 1, "round to the nearest, half to even"),
        ("copysign", 2, "float", 1, "|a| with the sign of b"),
        ("divisor", 1, "integer", 1, "a, or 1 where it is 0: eager raises, a CPU kernel tells"),
        ("floordiv", 2, "integer", 20, "a / b rounded down; b is a divisor or not 0"),
        ("truncdiv", 2, "integer", 20, "a / b rounded towards zero; b is a divisor or not 0"),
        ("power", 2, "integer", 40, "a to the b; for b < 0 the inverse rounded towards zero"),
        ("shift_left", 2, "integer", 2, "a * 2**b; 0 for b < 0 or not below the width"),
        ("shift_right", 2, "integer", 2, "a / 2**b rounded down; b < 0 shifts all bits out"),
        ("gcd", 2, "integer", 80, "the largest common divisor, not below 0"),
        ("lcm", 2, "integer", 90, "the smallest common multiple, not below 0"),
        ("ldexp", 2, "scale", 4, "a * 2**b, rounded once"),
        ("and", 2, "bits", 1, "bitwise (logical for bool) and"),
        ("or", 2, "bits", 1, "bitwise (logical for bool) or"),
        ("xor", 2, "bits", 1, "bitwise (logical for bool) exclusive or"),
        ("not", 1, "bits", 1, "bitwise (logical for bool) complement"),
        ("lt", 2, "compare", 1, "a < b"),
        ("le", 2, "compare", 1, "a <= b"),
        ("gt", 2, "compare", 1, "a > b"),
        ("ge", 2, "compare", 1, "a >= b"),
        ("eq", 2, "compare", 1, "a == b"),
        ("ne", 2, "compare", 1, "a != b"),
        ("isnan", 1, "test", 1, "a is NaN"),
        ("signbit", 1, "test", 1, "the sign bit is set (-0.0 and negative NaN too)"),
        ("select", 3, "select", 1, "b if a else c, both evaluated"),
    )
    return {
        name: Opcode(name=name, arity=arity, signature=signature, meaning=meaning, flops=flops)
        for name, arity, signature, flops, meaning in rows
    }


OPCODES: Mapping[str, Opcode] = _opcodes()

_COMPUTE_FLOATS = tuple(dtype for dtype in FLOAT_DTYPES if dtype not in HALF_DTYPES)
_OPERAND_DTYPES: Mapping[Signature, tuple[str, ...]] = {
    "cast": SUPPORTED_DTYPES,
    "float": _COMPUTE_FLOATS,
    "number": (*_COMPUTE_FLOATS, *INTEGER_BITS),
    "integer": tuple(INTEGER_BITS),
    "scale": _COMPUTE_FLOATS,
    "bits": ("bool", *INTEGER_BITS),
    "compare": ("bool", *_COMPUTE_FLOATS, *INTEGER_BITS),
    "test": _COMPUTE_FLOATS,
    "select": SUPPORTED_DTYPES,
}


def type_error(opcode: str, operands: tuple[str, ...], result: str) -> str:
    """Why these operand and result dtypes do not fit the opcode; empty if they do."""
    row = OPCODES.get(opcode)
    if row is None:
        return f"there is no opcode {opcode!r}"
    if len(operands) != row.arity:
        return f"{opcode} takes {row.arity} operands, not {len(operands)}"
    if row.signature == "select":
        if operands[0] != "bool":
            return f"select's condition is {operands[0]}, not bool"
        operands = operands[1:]
    if row.signature == "scale":
        if operands[1] != "int32":
            return f"{opcode}'s exponent is {operands[1]}, not int32"
        operands = operands[:1]
    allowed = _OPERAND_DTYPES[row.signature]
    for dtype in operands:
        if dtype not in allowed:
            return f"{opcode} does not work on {dtype}"
    if len(set(operands)) > 1:
        return f"{opcode} mixes {' and '.join(operands)}"
    expected = "bool" if row.signature in ("compare", "test") else operands[0]
    if row.signature == "cast":
        return "" if result in SUPPORTED_DTYPES else f"there is no dtype {result!r}"
    return "" if result == expected else f"{opcode} of {operands[0]} gives {expected}, not {result}"


Value = str | Constant


class Builder:
    """Collects statements; names results ``t1``, ``t2``, …

    ``dtypes`` maps every known name (inputs first) to its dtype.  Casts of
    constants and casts to a value's own dtype are folded.  ``node`` is put on
    each statement made.
    """

    def __init__(self, input_dtypes: Mapping[str, str]) -> None:
        self.dtypes: dict[str, str] = dict(input_dtypes)
        self.statements: list[Statement] = []
        self.node = ""
        self._count = 0

    def dtype(self, value: Value) -> str:
        """The dtype of a name or constant."""
        return value.dtype if isinstance(value, Constant) else self.dtypes[value]

    def constant(self, value: Number, dtype: str) -> Constant:
        """A literal holding what torch stores for ``value`` in ``dtype``."""
        return Constant(value=convert_number(value, dtype), dtype=dtype)

    def emit(self, opcode: str, *args: Value, dtype: str | None = None) -> str:
        """Append one statement and return its name.

        The result dtype follows from the opcode; only ``cast`` needs ``dtype``.

        Raises:
            CodegenError: operand dtypes that the opcode does not take.
        """
        operands = tuple(self.dtype(arg) for arg in args)
        row = OPCODES.get(opcode)
        if dtype is None:
            dtype = operands[-1] if operands else ""
            if row is not None and row.signature in ("compare", "test"):
                dtype = "bool"
            if row is not None and row.signature == "scale":
                dtype = operands[0]
        problem = type_error(opcode, operands, dtype)
        if problem:
            raise CodegenError(f"a recipe is wrong: {problem}; report this with the op's name")
        self._count += 1
        while f"t{self._count}" in self.dtypes:  # an input may have such a name
            self._count += 1
        name = f"t{self._count}"
        self.statements.append(
            Statement(name=name, opcode=opcode, args=args, dtype=dtype, node=self.node)
        )
        self.dtypes[name] = dtype
        return name

    def cast(self, value: Value, dtype: str) -> Value:
        """``value`` converted to ``dtype``, by way of float32 into 16 bits as eager does."""
        source = self.dtype(value)
        if source == dtype:
            return value
        if isinstance(value, Constant):
            return self.constant(value.value, dtype)
        if dtype in HALF_DTYPES and source != "float32":
            return self.emit("cast", self.cast(value, "float32"), dtype=dtype)
        if source in HALF_DTYPES and dtype != "float32":
            return self.emit("cast", self.cast(value, "float32"), dtype=dtype)
        return self.emit("cast", value, dtype=dtype)
