"""Numba intrinsics the CPU maths is built from: one LLVM operation each, so that loops vectorise.

All take and give float32 or float64 scalars.  They exist only in compiled code; the functions of
:mod:`fusion_advisor.runtime.cpu_math` also run as plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fusion_advisor.runtime import half_library

half_library.provide()

# Adding 1.5 * 2**(mantissa bits) rounds a small number to an integer held in the low bits.
ROUNDING_SHIFT = {32: 12582912.0, 64: 6755399441055744.0}
_MANTISSA_BITS = {32: 23, 64: 52}
_EXPONENT_BIAS = {32: 127, 64: 1023}
_SHIFT_BITS = {32: 0x4B400000, 64: 0x4338000000000000}
# Bits of sqrt(0.5): mantissas are taken from [sqrt(0.5), sqrt(2)).
_SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


def _is_float(type_: Any) -> bool:
    return type_ in (types.float32, types.float64)


def _integer(width: int) -> ir.IntType:
    return ir.IntType(width)


def _operation(name: str, arity: int) -> Any:
    """An intrinsic that calls ``llvm.<name>`` on ``arity`` floats of one type."""

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = args[0].type
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(kind, [kind] * arity),
            f"llvm.{name}.f{64 if isinstance(kind, ir.DoubleType) else 32}",
        )
        return builder.call(function, args)

    def typed(kinds: tuple[Any, ...]) -> tuple[Any, Callable[..., Any]] | None:
        if _is_float(kinds[0]) and all(kind == kinds[0] for kind in kinds):
            return kinds[0](*kinds), lower
        return None

    if arity == 1:

        def unary(typingctx: Any, x: Any) -> Any:
            return typed((x,))

        return intrinsic(unary)
    if arity == 2:

        def binary(typingctx: Any, x: Any, y: Any) -> Any:
            return typed((x, y))

        return intrinsic(binary)

    def ternary(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
        return typed((x, y, z))

    return intrinsic(ternary)


fma = _operation("fma", 3)
square_root = _operation("sqrt", 1)
round_down = _operation("floor", 1)
round_up = _operation("ceil", 1)
round_to_zero = _operation("trunc", 1)
round_half_even = _operation("roundeven", 1)
magnitude = _operation("fabs", 1)
with_sign_of = _operation("copysign", 2)


@intrinsic
def float_remainder(typingctx: Any, x: Any, y: Any) -> Any:
    """C's fmod: the exact remainder with the sign of ``x``."""
    if not _is_float(x) or x != y:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.frem(args[0], args[1])

    return x(x, y), lower


@intrinsic
def select(typingctx: Any, condition: Any, when_true: Any, when_false: Any) -> Any:
    """``when_true if condition else when_false``, both evaluated, without a branch."""
    if condition != types.boolean or when_true != when_false:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.select(args[0], args[1], args[2])

    return when_true(condition, when_true, when_false), lower


@intrinsic
def polynomial(typingctx: Any, x: Any, coefficients: Any) -> Any:
    """Horner's rule with one fused multiply-add per step; highest power first."""
    if not (_is_float(x) and isinstance(coefficients, types.UniTuple) and coefficients.dtype == x):
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value, *rest = cgutils.unpack_tuple(builder, args[1], coefficients.count)
        for coefficient in rest:
            value = builder.fma(value, args[0], coefficient)
        return value

    return x(x, coefficients), lower


@intrinsic
def sign_bit(typingctx: Any, x: Any) -> Any:
    """Whether the sign bit is set (true for -0.0 and negative NaN)."""
    if not _is_float(x):
        return None
    integer = _integer(x.bitwidth)

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.icmp_signed("<", builder.bitcast(args[0], integer), integer(0))

    return types.boolean(x), lower


@intrinsic
def scale_by_shifted(typingctx: Any, x: Any, shifted: Any) -> Any:
    """``x * 2**n`` where ``shifted`` is ``n + ROUNDING_SHIFT``.

    Two steps of about n/2 each: the powers stay normal, and a result below the normal range is
    rounded once.  ``|n|`` up to 250 (float32) or 2000 (float64).
    """
    if not _is_float(x) or x != shifted:
        return None
    width = x.bitwidth
    integer, mantissa, bias = _integer(width), _MANTISSA_BITS[width], _EXPONENT_BIAS[width]

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        exponent = builder.sub(builder.bitcast(args[1], integer), integer(_SHIFT_BITS[width]))
        half = builder.ashr(exponent, integer(1))

        def power(n: Any) -> Any:
            bits = builder.shl(builder.add(n, integer(bias)), integer(mantissa))
            return builder.bitcast(bits, args[0].type)

        once = builder.fmul(args[0], power(half))
        return builder.fmul(once, power(builder.sub(exponent, half)))

    return x(x, shifted), lower


@intrinsic
def power_of_two_shifted(typingctx: Any, shifted: Any) -> Any:
    """``2**n`` for ``shifted = n + ROUNDING_SHIFT``; n within the normal exponents."""
    if not _is_float(shifted):
        return None
    width = shifted.bitwidth
    integer, mantissa, bias = _integer(width), _MANTISSA_BITS[width], _EXPONENT_BIAS[width]

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        exponent = builder.sub(builder.bitcast(args[0], integer), integer(_SHIFT_BITS[width]))
        bits = builder.shl(builder.add(exponent, integer(bias)), integer(mantissa))
        return builder.bitcast(bits, args[0].type)

    return shifted(shifted), lower


@intrinsic
def split_exponent(typingctx: Any, x: Any) -> Any:
    """(m, e) with ``x == m * 2**e`` and m in [sqrt(0.5), sqrt(2)); x positive and normal."""
    if not _is_float(x):
        return None
    width = x.bitwidth
    integer, mantissa = _integer(width), _MANTISSA_BITS[width]
    pair = types.UniTuple(x, 2)

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = builder.bitcast(args[0], integer)
        offset = builder.sub(bits, integer(_SQRT_HALF_BITS[width]))
        exponent = builder.ashr(offset, integer(mantissa))
        fraction = builder.sub(bits, builder.shl(exponent, integer(mantissa)))
        small = builder.trunc(exponent, ir.IntType(32)) if width == 64 else exponent
        values = [
            builder.bitcast(fraction, args[0].type),
            builder.sitofp(small, args[0].type),
        ]
        return context.make_tuple(builder, signature.return_type, values)

    return pair(x), lower


@intrinsic
def clear_low_word(typingctx: Any, x: Any) -> Any:
    """A float64 with the low 32 bits of its mantissa cleared (so that products are exact)."""
    if x != types.float64:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        integer = _integer(64)
        bits = builder.and_(builder.bitcast(args[0], integer), integer(0xFFFFFFFF00000000))
        return builder.bitcast(bits, args[0].type)

    return x(x), lower


@intrinsic
def exponent_field(typingctx: Any, x: Any) -> Any:
    """The biased exponent bits of a float32, as uint64 (0 for zero and subnormals)."""
    if x != types.float32:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        integer = _integer(32)
        bits = builder.lshr(builder.bitcast(args[0], integer), integer(23))
        return builder.zext(builder.and_(bits, integer(255)), _integer(64))

    return types.uint64(x), lower


@intrinsic
def significand(typingctx: Any, x: Any) -> Any:
    """The 24-bit integer significand of a normal float32, with its sign, as float64."""
    if x != types.float32:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        integer = _integer(32)
        bits = builder.bitcast(args[0], integer)
        value = builder.or_(builder.and_(bits, integer(0x7FFFFF)), integer(0x800000))
        signed = builder.select(
            builder.icmp_signed("<", bits, integer(0)), builder.sub(integer(0), value), value
        )
        return builder.sitofp(signed, ir.DoubleType())

    return types.float64(x), lower


@intrinsic
def half_to_single(typingctx: Any, bits: Any) -> Any:
    """The float16 with these 16 bits, as float32 (exact)."""
    if bits != types.uint16:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(bits), lower


@intrinsic
def single_to_half(typingctx: Any, x: Any) -> Any:
    """The bits of the float16 nearest to a float32, half to even."""
    if x != types.float32:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), _integer(16))

    return types.uint16(x), lower


@intrinsic
def brain_to_single(typingctx: Any, bits: Any) -> Any:
    """The bfloat16 with these 16 bits, as float32 (exact)."""
    if bits != types.uint16:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = builder.shl(builder.zext(args[0], _integer(32)), _integer(32)(16))
        return builder.bitcast(word, ir.FloatType())

    return types.float32(bits), lower


@intrinsic
def single_to_brain(typingctx: Any, x: Any) -> Any:
    """The bits of the bfloat16 nearest to a float32, half to even; NaN becomes 0x7FC0."""
    if x != types.float32:
        return None

    def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        integer = _integer(32)
        bits = builder.bitcast(args[0], integer)
        odd = builder.and_(builder.lshr(bits, integer(16)), integer(1))
        rounded = builder.add(builder.add(bits, integer(0x7FFF)), odd)
        high = builder.trunc(builder.lshr(rounded, integer(16)), _integer(16))
        is_nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.select(is_nan, _integer(16)(0x7FC0), high)

    return types.uint16(x), lower
