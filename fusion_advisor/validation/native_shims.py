"""x86 stand-ins, in LLVM IR, for what NVVM code expects from a GPU.

Three kinds of things are missing on a CPU: special registers, ``llvm.nvvm.*``
intrinsics and PTX inline assembly.  Each gets a small always-inlined function.
Directed roundings are exact: the operation is done in float64 with its error
term, then moved by one float32 where needed.  The hardware's ``approx``
instructions (ex2, lg2, rcp, rsqrt, sin, cos, div) are replaced by correctly
rounded or libm versions: a GPU may differ from them by 1-2 ULP, which lies
inside what libdevice's own budgets allow.
"""

from __future__ import annotations

from fusion_advisor.validation.native_assembly import ASSEMBLY_SHIMS

SPECIAL_REGISTERS = tuple(
    f"{register}_{axis}" for register in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"
)

# The names of LLVM types by libdevice's one-letter suffix.
_TYPES = {"f": "float", "d": "double"}
_LLVM_SUFFIX = {"f": "f32", "d": "f64"}


def _define(result: str, name: str, parameters: str, body: str) -> dict[str, str]:
    text = f"define internal {result} @{name}({parameters}) alwaysinline {{\n{body}\n}}\n"
    return {name: text}


def _unary(letter: str, names: tuple[str, ...], intrinsic: str) -> dict[str, str]:
    kind = _TYPES[letter]
    target = f"llvm.{intrinsic}.{_LLVM_SUFFIX[letter]}"
    shims: dict[str, str] = {}
    for name in names:
        body = f"  %r = call {kind} @{target}({kind} %a)\n  ret {kind} %r"
        shims |= _define(kind, f"nvvm_{name}", f"{kind} %a", body)
    return shims


def _with_flush(name: str) -> tuple[str, str]:
    """Both spellings of an intrinsic: with and without flush-to-zero before its suffix."""
    head, _, tail = name.rpartition("_")
    return name, f"{head}_ftz_{tail}"


def _rounded_to_nearest(letter: str) -> dict[str, str]:
    kind, suffix = _TYPES[letter], _LLVM_SUFFIX[letter]
    spell = _with_flush if letter == "f" else lambda name: (name,)
    shims: dict[str, str] = {}
    for operation in ("add", "mul", "div"):
        for name in spell(f"{operation}_rn_{letter}"):
            body = f"  %r = f{operation} {kind} %a, %b\n  ret {kind} %r"
            shims |= _define(kind, f"nvvm_{name}", f"{kind} %a, {kind} %b", body)
    for name in spell(f"fma_rn_{letter}"):
        body = (
            f"  %r = call {kind} @llvm.fma.{suffix}({kind} %a, {kind} %b, {kind} %c)\n"
            f"  ret {kind} %r"
        )
        shims |= _define(kind, f"nvvm_{name}", f"{kind} %a, {kind} %b, {kind} %c", body)
    for pick, intrinsic in (("fmin", "minnum"), ("fmax", "maxnum")):
        for name in spell(f"{pick}_{letter}"):
            body = (
                f"  %r = call {kind} @llvm.{intrinsic}.{suffix}({kind} %a, {kind} %b)\n"
                f"  ret {kind} %r"
            )
            shims |= _define(kind, f"nvvm_{name}", f"{kind} %a, {kind} %b", body)
    for name in (*spell(f"rcp_rn_{letter}"), *spell(f"rcp_approx_{letter}"), "rcp_approx_ftz_d"):
        if name.endswith(letter):
            body = f"  %r = fdiv {kind} 1.0, %a\n  ret {kind} %r"
            shims |= _define(kind, f"nvvm_{name}", f"{kind} %a", body)
    for name in (*_with_flush(f"rsqrt_approx_{letter}"),):
        body = (
            f"  %q = call {kind} @llvm.sqrt.{suffix}({kind} %a)\n"
            f"  %r = fdiv {kind} 1.0, %q\n  ret {kind} %r"
        )
        shims |= _define(kind, f"nvvm_{name}", f"{kind} %a", body)
    shims |= _unary(letter, (*spell(f"sqrt_rn_{letter}"),), "sqrt")
    for operation, intrinsic in (("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc")):
        shims |= _unary(letter, spell(f"{operation}_{letter}"), intrinsic)
    shims |= _unary(letter, spell(f"round_{letter}"), "rint")
    return shims


_EXACT_SUM = """
  %s = fadd double {p}, {q}
  %bb = fsub double %s, {p}
  %t1 = fsub double %s, %bb
  %t2 = fsub double {p}, %t1
  %t3 = fsub double {q}, %bb
  %e = fadd double %t2, %t3"""


def _directed_float32() -> dict[str, str]:
    """add, mul and fma rounded down, up or towards zero, exactly."""
    widen = "".join(f"  %d{n} = fpext float %{n} to double\n" for n in "abc")
    two = "".join(f"  %d{n} = fpext float %{n} to double\n" for n in "ab")
    bodies = {
        "add": ("float %a, float %b", two + _EXACT_SUM.format(p="%da", q="%db")),
        "mul": (
            "float %a, float %b",
            two + "  %s = fmul double %da, %db\n  %e = fadd double 0.0, 0.0",
        ),
        "fma": (
            "float %a, float %b, float %c",
            widen + "  %p = fmul double %da, %db" + _EXACT_SUM.format(p="%p", q="%dc"),
        ),
    }
    # Does the rounded value %f lie above (or below) the exact %s + %e?
    beyond = {
        "rm": ("true", "  %move = or i1 %above, %tie_above\n"),
        "rp": ("false", "  %move = or i1 %below, %tie_below\n"),
        "rz": (
            "%positive",
            "  %ma = or i1 %above, %tie_above\n  %mb = or i1 %below, %tie_below\n"
            "  %positive = fcmp ogt double %s, 0.0\n"
            "  %move = select i1 %positive, i1 %ma, i1 %mb\n",
        ),
    }
    shims: dict[str, str] = {}
    for operation, (parameters, exact) in bodies.items():
        for mode, (down, decide) in beyond.items():
            body = (
                f"{exact}\n  %f = fptrunc double %s to float\n  %df = fpext float %f to double\n"
                "  %above = fcmp ogt double %df, %s\n  %below = fcmp olt double %df, %s\n"
                "  %same = fcmp oeq double %df, %s\n"
                "  %en = fcmp olt double %e, 0.0\n  %ep = fcmp ogt double %e, 0.0\n"
                "  %tie_above = and i1 %same, %en\n  %tie_below = and i1 %same, %ep\n"
                f"{decide}"
                "  %bits = bitcast float %f to i32\n  %zero = fcmp oeq float %f, 0.0\n"
                "  %negative = icmp slt i32 %bits, 0\n"
                f"  %shrink = xor i1 %negative, {down}\n"
                "  %less = sub i32 %bits, 1\n  %more = add i32 %bits, 1\n"
                "  %stepped = select i1 %shrink, i32 %less, i32 %more\n"
                f"  %tiny = select i1 {down}, i32 -2147483647, i32 1\n"
                "  %moved = select i1 %zero, i32 %tiny, i32 %stepped\n"
                "  %m = bitcast i32 %moved to float\n"
                "  %r = select i1 %move, float %m, float %f\n  ret float %r"
            )
            for name in _with_flush(f"{operation}_{mode}_f"):
                shims |= _define("float", f"nvvm_{name}", parameters, body)
    return shims


def _approximate_float32() -> dict[str, str]:
    shims: dict[str, str] = {}
    shims |= _unary("f", ("fabs_f32", "fabs_ftz_f32", "fabs_f", "fabs_ftz_f"), "fabs")
    shims |= _unary("d", ("fabs_f64", "fabs_d"), "fabs")
    shims |= _unary(
        "f",
        ("ex2_approx_f32", "ex2_approx_ftz_f32", "ex2_approx_f", "ex2_approx_ftz_f"),
        "exp2",
    )
    shims |= _unary("d", ("ex2_approx_d",), "exp2")
    shims |= _unary("f", _with_flush("lg2_approx_f"), "log2")
    shims |= _unary("f", _with_flush("sqrt_approx_f"), "sqrt")
    shims |= _unary("f", _with_flush("sin_approx_f"), "sin")
    shims |= _unary("f", _with_flush("cos_approx_f"), "cos")
    for name in _with_flush("div_approx_f"):
        body = "  %r = fdiv float %a, %b\n  ret float %r"
        shims |= _define("float", f"nvvm_{name}", "float %a, float %b", body)
    for name in _with_flush("saturate_f"):
        body = (
            "  %q = call float @llvm.maxnum.f32(float %a, float 0.0)\n"
            "  %r = call float @llvm.minnum.f32(float %q, float 1.0)\n  ret float %r"
        )
        shims |= _define("float", f"nvvm_{name}", "float %a", body)
    return shims


_ROUNDINGS = {"rn": "rint", "rz": "trunc", "rm": "floor", "rp": "ceil"}
_INTEGERS = {"i": ("i32", "si"), "ui": ("i32", "ui"), "ll": ("i64", "si"), "ull": ("i64", "ui")}


def _conversions() -> dict[str, str]:
    shims: dict[str, str] = {}
    for letter, kind in _TYPES.items():
        suffix = _LLVM_SUFFIX[letter]
        for code, (integer, signed) in _INTEGERS.items():
            for mode, intrinsic in _ROUNDINGS.items():
                body = (
                    f"  %q = call {kind} @llvm.{intrinsic}.{suffix}({kind} %a)\n"
                    f"  %r = call {integer} @llvm.fpto{signed}.sat.{integer}.{suffix}({kind} %q)\n"
                    f"  ret {integer} %r"
                )
                for flush in ("", "_ftz") if letter == "f" else ("",):
                    name = f"nvvm_{letter}2{code}_{mode}{flush}"
                    shims |= _define(integer, name, f"{kind} %a", body)
            body = f"  %r = {signed}tofp {integer} %a to {kind}\n  ret {kind} %r"
            shims |= _define(kind, f"nvvm_{code}2{letter}_rn", f"{integer} %a", body)
    for name in ("d2f_rn", "d2f_rn_ftz"):
        body = "  %r = fptrunc double %a to float\n  ret float %r"
        shims |= _define("float", f"nvvm_{name}", "double %a", body)
    words = "  %u = bitcast double %a to i64\n"
    low = f"{words}  %r = trunc i64 %u to i32\n  ret i32 %r"
    high = f"{words}  %h = lshr i64 %u, 32\n  %r = trunc i64 %h to i32\n  ret i32 %r"
    shims |= _define("i32", "nvvm_d2i_lo", "double %a", low)
    shims |= _define("i32", "nvvm_d2i_hi", "double %a", high)
    join = (
        "  %l = zext i32 %a to i64\n  %h = zext i32 %b to i64\n  %s = shl i64 %h, 32\n"
        "  %u = or i64 %s, %l\n  %r = bitcast i64 %u to double\n  ret double %r"
    )
    shims |= _define("double", "nvvm_lohi_i2d", "i32 %a, i32 %b", join)
    for flush in ("", "_ftz"):
        body = "  %h = fptrunc float %a to half\n  %r = bitcast half %h to i16\n  ret i16 %r"
        shims |= _define("i16", f"nvvm_f2h_rn{flush}", "float %a", body)
    return shims


def _integer_products() -> dict[str, str]:
    shims: dict[str, str] = {}
    for code, (integer, signed) in _INTEGERS.items():
        wide, bits = ("i64", 32) if integer == "i32" else ("i128", 64)
        extend = "sext" if signed == "si" else "zext"
        body = (
            f"  %x = {extend} {integer} %a to {wide}\n  %y = {extend} {integer} %b to {wide}\n"
            f"  %p = mul {wide} %x, %y\n  %h = lshr {wide} %p, {bits}\n"
            f"  %r = trunc {wide} %h to {integer}\n  ret {integer} %r"
        )
        shims |= _define(integer, f"nvvm_mulhi_{code}", f"{integer} %a, {integer} %b", body)
    return shims


def _registers() -> dict[str, str]:
    shims: dict[str, str] = {}
    for register in SPECIAL_REGISTERS:
        body = f"  %r = load i32, ptr @sreg_{register}\n  ret i32 %r"
        shims |= _define("i32", f"nvvm_read_ptx_sreg_{register}", "", body)
    return shims


def _assembly() -> dict[str, str]:
    shims: dict[str, str] = {}
    for shim in ASSEMBLY_SHIMS:
        shims |= _define(shim.result, shim.name, shim.parameters, shim.body)
    return shims


def _clamped_shifts() -> dict[str, str]:
    """Shifts by any amount, as PTX has them: by the width or more, no bit is left.

    LLVM's own leave that undefined, and x86 takes the amount modulo the width; libdevice counts on
    PTX's (``pow`` asks so whether an exponent is odd).
    """
    shims: dict[str, str] = {}
    for operation in ("shl", "lshr"):
        for bits in (32, 64):
            body = (
                f"  %c = icmp ult i{bits} %n, {bits}\n"
                f"  %m = and i{bits} %n, {bits - 1}\n"
                f"  %s = {operation} i{bits} %a, %m\n"
                f"  %r = select i1 %c, i{bits} %s, i{bits} 0\n  ret i{bits} %r"
            )
            name = f"ptx_{operation}_i{bits}"
            shims |= _define(f"i{bits}", name, f"i{bits} %a, i{bits} %n", body)
    return shims


def _widenings() -> dict[str, str]:
    """Conversions that LLVM cannot look through."""
    shims: dict[str, str] = {}
    for source, target in (("half", "float"), ("half", "double"), ("float", "double")):
        body = f"  %r = fpext {source} %a to {target}\n  ret {target} %r"
        name = f"widened_{source}_{target}"
        made = _define(target, name, f"{source} %a", body)
        shims[name] = made[name].replace(" alwaysinline", " noinline")
    return shims


WIDENINGS = _widenings()

SHIMS: dict[str, str] = {
    **WIDENINGS,
    **_clamped_shifts(),
    **_registers(),
    **_rounded_to_nearest("f"),
    **_rounded_to_nearest("d"),
    **_directed_float32(),
    **_approximate_float32(),
    **_conversions(),
    **_integer_products(),
    **_assembly(),
}

REGISTER_GLOBALS = "".join(f"@sreg_{name} = internal global i32 1\n" for name in SPECIAL_REGISTERS)
