"""x86 stand-ins for the PTX inline assembly that libdevice and generated kernels hold.

Each entry is a small LLVM function and the PTX texts it replaces.  The long
ones are the wide multiplications of sin and cos's argument reduction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_PAIR = "{i32, i32}"
_QUAD = "{i64, i64}"


class AssemblyShim(NamedTuple):
    """An LLVM function ``result name(parameters) {body}`` that does what ``texts`` do."""

    name: str
    result: str
    parameters: str
    body: str
    texts: tuple[str, ...]


def normalise_assembly(text: str) -> str:
    """Inline assembly without its whitespace, braces and LLVM escapes."""
    text = re.sub(r"\\[0-9A-Fa-f]{2}", " ", text)
    return re.sub(r"[\s{}]", "", text)


def _split128(value: str) -> str:
    """Return the two 64-bit halves of an i128, low half first."""
    return (
        f"  %low = trunc i128 {value} to i64\n  %shifted = lshr i128 {value}, 64\n"
        "  %high = trunc i128 %shifted to i64\n"
        f"  %i = insertvalue {_QUAD} undef, i64 %low, 0\n"
        f"  %r = insertvalue {_QUAD} %i, i64 %high, 1\n  ret {_QUAD} %r"
    )


def _join128(name: str, low: str, high: str) -> str:
    return (
        f"  %{name}l = zext i64 {low} to i128\n  %{name}h = zext i64 {high} to i128\n"
        f"  %{name}s = shl i128 %{name}h, 64\n  %{name} = or i128 %{name}s, %{name}l\n"
    )


def _wide_integers() -> Iterator[AssemblyShim]:
    """Products and sums wider than a register, kept together by PTX's carry flag."""
    yield AssemblyShim(
        "asm_mad_wide",
        _PAIR,
        "i32 %a, i32 %b, i32 %c",
        "  %x = zext i32 %a to i64\n  %y = zext i32 %b to i64\n  %z = zext i32 %c to i64\n"
        "  %p = mul i64 %x, %y\n  %s = add i64 %p, %z\n  %l = trunc i64 %s to i32\n"
        "  %t = lshr i64 %s, 32\n  %h = trunc i64 %t to i32\n"
        f"  %i = insertvalue {_PAIR} undef, i32 %l, 0\n"
        f"  %r = insertvalue {_PAIR} %i, i32 %h, 1\n  ret {_PAIR} %r",
        ("mad.lo.cc.u32 $0, $2, $3, $4; madc.hi.u32 $1, $2, $3, 0;",),
    )
    for sign in ("add", "sub"):
        yield AssemblyShim(
            f"asm_{sign}_128",
            _QUAD,
            "i64 %a, i64 %b, i64 %c, i64 %d",
            f"{_join128('p', '%a', '%b')}{_join128('q', '%c', '%d')}"
            f"  %v = {sign} i128 %p, %q\n{_split128('%v')}",
            (
                ".reg .u32 r0, r1, r2, r3, a0, a1, a2, a3, b0, b1, b2, b3;"
                "mov.b64 {a0,a1}, $2; mov.b64 {a2,a3}, $3;"
                "mov.b64 {b0,b1}, $4; mov.b64 {b2,b3}, $5;"
                f"{sign}.cc.u32 r0, a0, b0; {sign}c.cc.u32 r1, a1, b1;"
                f"{sign}c.cc.u32 r2, a2, b2; {sign}c.u32 r3, a3, b3;"
                "mov.b64 $0, {r0,r1}; mov.b64 $1, {r2,r3};",
            ),
        )
    product = "  %x = zext i64 %a to i128\n  %y = zext i64 %b to i128\n  %p = mul i128 %x, %y\n"
    yield AssemblyShim(
        "asm_mul_wide_64",
        _QUAD,
        "i64 %a, i64 %b",
        product + _split128("%p"),
        (
            ".reg .u32 r0, r1, r2, r3, alo, ahi, blo, bhi;"
            "mov.b64 {alo,ahi}, $2; mov.b64 {blo,bhi}, $3; mul.lo.u32 r0, alo, blo;"
            "mul.hi.u32 r1, alo, blo; mad.lo.cc.u32 r1, alo, bhi, r1;"
            "madc.hi.u32 r2, alo, bhi, 0; mad.lo.cc.u32 r1, ahi, blo, r1;"
            "madc.hi.cc.u32 r2, ahi, blo, r2; madc.hi.u32 r3, ahi, bhi, 0;"
            "mad.lo.cc.u32 r2, ahi, bhi, r2; addc.u32 r3, r3, 0;"
            "mov.b64 $0, {r0,r1}; mov.b64 $1, {r2,r3};",
        ),
    )
    yield AssemblyShim(
        "asm_mad_wide_64",
        _QUAD,
        "i64 %a, i64 %b, i64 %c",
        product + "  %z = zext i64 %c to i128\n  %v = add i128 %p, %z\n" + _split128("%v"),
        (
            ".reg .u32 r0, r1, r2, r3, alo, ahi, blo, bhi, clo, chi;"
            "mov.b64 {alo,ahi}, $2; mov.b64 {blo,bhi}, $3; mov.b64 {clo,chi}, $4;"
            "mad.lo.cc.u32 r0, alo, blo, clo; madc.hi.cc.u32 r1, alo, blo, chi;"
            "madc.hi.u32 r2, alo, bhi, 0; mad.lo.cc.u32 r1, alo, bhi, r1;"
            "madc.hi.cc.u32 r2, ahi, blo, r2; madc.hi.u32 r3, ahi, bhi, 0;"
            "mad.lo.cc.u32 r1, ahi, blo, r1; madc.lo.cc.u32 r2, ahi, bhi, r2;"
            "addc.u32 r3, r3, 0; mov.b64 $0, {r0,r1}; mov.b64 $1, {r2,r3};",
        ),
    )


def _floating() -> Iterator[AssemblyShim]:
    for letter, kind, bits in (("f", "float", "32"), ("d", "double", "64")):
        yield AssemblyShim(
            f"asm_sub_{letter}",
            kind,
            f"{kind} %a, {kind} %b",
            f"  %r = fsub {kind} %a, %b\n  ret {kind} %r",
            (f"sub.rn.f{bits} $0, $1, $2;", f"sub.rn.ftz.f{bits} $0, $1, $2;"),
        )
        yield AssemblyShim(
            f"asm_rcp_{letter}",
            kind,
            f"{kind} %a",
            f"  %r = fdiv {kind} 1.0, %a\n  ret {kind} %r",
            (f"rcp.approx.ftz.f{bits} $0, $1;",),
        )
        yield AssemblyShim(
            f"asm_rsqrt_{letter}",
            kind,
            f"{kind} %a",
            f"  %q = call {kind} @llvm.sqrt.f{bits}({kind} %a)\n"
            f"  %r = fdiv {kind} 1.0, %q\n  ret {kind} %r",
            (f"rsqrt.approx.ftz.f{bits} $0, $1;",),
        )
    yield AssemblyShim(
        "asm_select_equal",
        "double",
        "double %a, double %b, double %c, double %d",
        "  %q = fcmp ueq double %a, %b\n  %r = select i1 %q, double %c, double %d\n  ret double %r",
        (".reg .pred __$$temp3; setp.equ.f64 __$$temp3, $1, $2;selp.f64 $0, $3, $4, __$$temp3;",),
    )


def _sixteen_bits() -> Iterator[AssemblyShim]:
    """Conversions to and from float16 and bfloat16 bit patterns, rounding to nearest even."""
    yield AssemblyShim(
        "asm_half_to_float",
        "float",
        "i16 %a",
        "  %h = bitcast i16 %a to half\n  %r = fpext half %h to float\n  ret float %r",
        ("cvt.f32.f16 $0, $1;",),
    )
    yield AssemblyShim(
        "asm_float_to_half",
        "i16",
        "float %a",
        "  %h = fptrunc float %a to half\n  %r = bitcast half %h to i16\n  ret i16 %r",
        ("cvt.rn.f16.f32 $0, $1;",),
    )
    yield AssemblyShim(
        "asm_bfloat_to_float",
        "float",
        "i16 %a",
        "  %w = zext i16 %a to i32\n  %s = shl i32 %w, 16\n"
        "  %r = bitcast i32 %s to float\n  ret float %r",
        ("cvt.f32.bf16 $0, $1;", "mov.b32 $0, {0, $1};"),
    )
    yield AssemblyShim(
        "asm_float_to_bfloat",
        "i16",
        "float %a",
        "  %u = bitcast float %a to i32\n  %s = lshr i32 %u, 16\n  %o = and i32 %s, 1\n"
        "  %t = add i32 %u, 32767\n  %v = add i32 %t, %o\n  %w = lshr i32 %v, 16\n"
        "  %x = trunc i32 %w to i16\n  %n = fcmp uno float %a, %a\n"
        "  %r = select i1 %n, i16 32767, i16 %x\n  ret i16 %r",
        ("cvt.rn.bf16.f32 $0, $1;",),
    )


ASSEMBLY_SHIMS = (*_wide_integers(), *_floating(), *_sixteen_bits())
ASSEMBLY_NAMES = {
    normalise_assembly(text): shim.name for shim in ASSEMBLY_SHIMS for text in shim.texts
}
