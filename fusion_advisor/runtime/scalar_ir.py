"""LLVM instructions of scalar operations that both targets compile alike.

Each function appends to an llvmlite ``builder`` and gives the result.  Nothing here traps or is
undefined for any operands: what LLVM leaves undefined (a division by zero, the smallest integer by
-1, a shift beyond the width) is kept away from its instructions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

_STEP_UP, _STEP_DOWN = 1023, 1022 - 53  # of a float64's exponent, without rounding twice
_BIAS, _MANTISSA_BITS = 1023, 52


def divisor(builder: Any, x: Any, signed: bool) -> Any:
    """``x``, or 1 where it is 0."""
    return builder.select(builder.icmp_unsigned("==", x, x.type(0)), x.type(1), x)


def truncdiv(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """``a / b`` rounded towards zero, for b not 0; the smallest integer by -1 wraps to itself."""
    if not signed:
        return builder.udiv(a, b)
    by_minus_one = builder.icmp_signed("==", b, b.type(-1))
    quotient = builder.sdiv(a, builder.select(by_minus_one, b.type(1), b))
    return builder.select(by_minus_one, builder.sub(a.type(0), a), quotient)


def floordiv(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """``a / b`` rounded down, for b not 0; the smallest integer by -1 wraps to itself."""
    quotient = truncdiv(builder, a, b, signed)
    if not signed:
        return quotient
    zero = a.type(0)
    rest = builder.sub(a, builder.mul(quotient, b))
    apart = builder.icmp_signed("<", builder.xor(rest, b), zero)
    lower = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
    return builder.select(lower, builder.sub(quotient, a.type(1)), quotient)


def power(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """``a ** b``, wrapping; for b below 0 the inverse rounded towards zero, and 0 for a = 0."""
    kind = a.type
    zero, one = kind(0), kind(1)
    odd = builder.icmp_unsigned("==", builder.and_(b, one), one)
    exponent = b
    if signed:
        negative = builder.icmp_signed("<", b, zero)
        exponent = builder.select(negative, zero, b)
        alternating = builder.select(odd, kind(-1), one)
        inverse = builder.select(builder.icmp_signed("==", a, kind(-1)), alternating, zero)
        inverse = builder.select(builder.icmp_signed("==", a, one), one, inverse)
    before = builder.block
    head = builder.append_basic_block("power_head")
    body = builder.append_basic_block("power_body")
    done = builder.append_basic_block("power_done")
    builder.branch(head)
    builder.position_at_end(head)
    result, base, left = (builder.phi(kind) for _ in range(3))
    builder.cbranch(builder.icmp_unsigned("!=", left, zero), body, done)
    builder.position_at_end(body)
    counts = builder.icmp_unsigned("==", builder.and_(left, one), one)
    next_result = builder.select(counts, builder.mul(result, base), result)
    next_base, next_left = builder.mul(base, base), builder.lshr(left, one)
    builder.branch(head)
    rows = ((result, one, next_result), (base, a, next_base), (left, exponent, next_left))
    for phi, first, later in rows:
        phi.add_incoming(first, before)
        phi.add_incoming(later, body)
    builder.position_at_end(done)
    return builder.select(negative, inverse, result) if signed else result


def shift_left(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """``a << b``; 0 for b below 0 or not below the width."""
    zero = a.type(0)
    beyond = builder.icmp_unsigned(">=", b, b.type(a.type.width))
    shifted = builder.shl(a, builder.select(beyond, zero, b))
    return builder.select(beyond, zero, shifted)


def shift_right(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """``a >> b`` keeping the sign; b below 0 or not below the width shifts all bits out."""
    zero, width = a.type(0), a.type.width
    beyond = builder.icmp_unsigned(">=", b, b.type(width))
    if signed:
        return builder.ashr(a, builder.select(beyond, b.type(width - 1), b))
    return builder.select(beyond, zero, builder.lshr(a, builder.select(beyond, zero, b)))


def gcd(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """The largest number that divides both; the smallest integer's magnitude wraps, as eager's."""
    kind = a.type
    if signed:
        a, b = _magnitude(builder, a), _magnitude(builder, b)
    zero = kind(0)
    before = builder.block
    head = builder.append_basic_block("gcd_head")
    body = builder.append_basic_block("gcd_body")
    done = builder.append_basic_block("gcd_done")
    builder.branch(head)
    builder.position_at_end(head)
    left, right = builder.phi(kind), builder.phi(kind)
    builder.cbranch(builder.icmp_unsigned("!=", left, zero), body, done)
    builder.position_at_end(body)
    quotient = truncdiv(builder, right, left, signed)
    rest = builder.sub(right, builder.mul(quotient, left))
    builder.branch(head)
    for phi, first, later in ((left, a, rest), (right, b, left)):
        phi.add_incoming(first, before)
        phi.add_incoming(later, body)
    builder.position_at_end(done)
    return right


def lcm(builder: Any, a: Any, b: Any, signed: bool) -> Any:
    """The smallest multiple of both; 0 if one is 0.  Below 32 bits it wraps at the end only."""
    kind = a.type
    factor = gcd(builder, a, b, signed)
    if kind.width < 32:
        extend = builder.sext if signed else builder.zext
        a, b, factor = (extend(value, ir.IntType(32)) for value in (a, b, factor))
    zero = builder.icmp_unsigned("==", factor, a.type(0))
    parts = truncdiv(builder, a, builder.select(zero, a.type(1), factor), signed)
    multiple = builder.mul(parts, b)
    multiple = _magnitude(builder, multiple) if signed else multiple
    multiple = builder.select(zero, a.type(0), multiple)
    return builder.trunc(multiple, kind) if kind.width < 32 else multiple


def _magnitude(builder: Any, x: Any) -> Any:
    negative = builder.icmp_signed("<", x, x.type(0))
    return builder.select(negative, builder.sub(x.type(0), x), x)


def ldexp(builder: Any, x: Any, exponent: Any, signed: bool) -> Any:
    """``x * 2**exponent`` rounded once, for float32 or float64 ``x`` and an int32 exponent."""
    if isinstance(x.type, ir.FloatType):
        # Every float32 times 2**(-400 … 400) is a normal float64: the product is exact there.
        bounded = _bounded(builder, exponent, -400, 400)
        wide = builder.fpext(x, ir.DoubleType())
        return builder.fptrunc(builder.fmul(wide, _power_of_two(builder, bounded)), x.type)
    word = exponent.type
    left = _bounded(builder, exponent, -3000, 3000)
    value = x
    for _ in range(2):
        up = builder.icmp_signed(">", left, word(_STEP_UP))
        down = builder.icmp_signed("<", left, word(-_STEP_DOWN))
        step = builder.select(down, word(-_STEP_DOWN), word(0))
        step = builder.select(up, word(_STEP_UP), step)
        value = builder.fmul(value, _power_of_two(builder, step))
        left = builder.sub(left, step)
    last = _bounded(builder, left, 1 - _BIAS, _STEP_UP)
    return builder.fmul(value, _power_of_two(builder, last))


def _bounded(builder: Any, n: Any, low: int, high: int) -> Any:
    n = builder.select(builder.icmp_signed("<", n, n.type(low)), n.type(low), n)
    return builder.select(builder.icmp_signed(">", n, n.type(high)), n.type(high), n)


def _power_of_two(builder: Any, n: Any) -> Any:
    """2**n as float64, for n within a normal one's exponents."""
    wide = ir.IntType(64)
    bits = builder.shl(builder.sext(builder.add(n, n.type(_BIAS)), wide), wide(_MANTISSA_BITS))
    return builder.bitcast(bits, ir.DoubleType())
