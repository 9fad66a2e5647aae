"""Faults in what is computed: operands, constants, rounding, special values, integers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mutations import Kernel, fault

_COMPARISON = re.compile(r" (<=|>=|<|>) ")
_OTHER_AT_EQUALITY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_SIMPLE = re.compile(r"\A(\w+(?:\([^()]*\))?) ([-+/]) (\w+(?:\([^()]*\))?)\Z")
_ROUNDED = re.compile(r"(\w+)\.(bf16|f16)_to_f32\(\1\.f32_to_\2\(")
_NARROWED = re.compile(r"\w+\.f32_to_(bf16|f16)\(")
_PRODUCT = re.compile(r"\A(?:libdevice\.fmul_rn\()?(\w+)(?: \* |, )([\w.]+(?:\([^()]*\))?)\)?\Z")
_FLOATS = ("float32", "float64", "float16", "bfloat16")


def _closing(text: str, start: int) -> int:
    """The place of the bracket that closes the one before ``start``."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    raise AssertionError(text)


def _arguments(text: str) -> list[str]:
    parts, depth, last = [], 0, 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append(text[last:place].strip())
            last = place + 1
    return [*parts, text[last:].strip()]


def _calls(kernel: Kernel, name: str) -> Iterator[tuple[int, int, list[str]]]:
    """Start, end and arguments of every call of ``module.name``."""
    for match in re.finditer(rf"\b\w+\.{name}\(", kernel.body):
        end = _closing(kernel.body, match.end())
        yield match.start(), end + 1, _arguments(kernel.body[match.end() : end])


def _spliced(kernel: Kernel, start: int, end: int, text: str) -> str:
    return kernel.body[:start] + text + kernel.body[end:]


def _float_stores(kernel: Kernel) -> Iterator[tuple[re.Match[str], str]]:
    """Stores of float32 and float64 results, with the literal that makes a number of theirs."""
    outputs = {one.name: one.dtype for one in kernel.problem.kernel.program.outputs}
    for store in kernel.stores:
        dtype = outputs.get(store.group(2))
        if dtype in ("float32", "float64"):
            yield store, dtype


def _zero(kernel: Kernel, array: str) -> str:
    dtype = next(o.dtype for o in kernel.problem.kernel.program.outputs if o.name == array)
    return {"bool": "False", "float32": "float32(0.0)", "float64": "0.0"}.get(dtype, "0")


@fault("zeros")
def zeros(kernel: Kernel) -> Iterator[str]:
    for store in kernel.stores:
        yield kernel.with_expression(store, _zero(kernel, store.group(2)))


@fault("swapped operands")
def swapped(kernel: Kernel) -> Iterator[str]:
    for line in kernel.assignments:
        match = _SIMPLE.match(line.group(3))
        if match and match.group(2) != "+" and match.group(1) != match.group(3):
            left, operator, right = match.groups()
            yield kernel.with_expression(line, f"{right} {operator} {left}")


@fault("another operand")
def another(kernel: Kernel) -> Iterator[str]:
    for line in kernel.assignments:
        match = _SIMPLE.match(line.group(3))
        if match and match.group(1) != match.group(3):
            left, operator, _ = match.groups()
            yield kernel.with_expression(line, f"{left} {operator} {left}")


@fault("plus for minus")
def plus(kernel: Kernel) -> Iterator[str]:
    for line in kernel.assignments:
        match = _SIMPLE.match(line.group(3))
        if match and match.group(2) in "+-":
            left, operator, right = match.groups()
            yield kernel.with_expression(line, f"{left} {'-' if operator == '+' else '+'} {right}")


@fault("results exchanged")
def exchanged(kernel: Kernel) -> Iterator[str]:
    stores = kernel.stores
    dtypes = [one.dtype for one in kernel.problem.kernel.program.outputs]
    if len(stores) == 2 and dtypes[0] == dtypes[1]:
        first, second = stores[0].group(4), stores[1].group(4)
        body = kernel.with_expression(stores[1], first)
        yield body[: stores[0].start(4)] + second + body[stores[0].end(4) :]


@fault("selection exchanged")
def branches(kernel: Kernel) -> Iterator[str]:
    for start, end, (condition, yes, no) in _calls(kernel, "select"):
        yield _spliced(kernel, start, end, f"cpu_math.select({condition}, {no}, {yes})")
    for line in kernel.assignments:
        match = re.match(r"\A([\w.()-]+) if (.+?) else ([\w.()-]+)\Z", line.group(3))
        if match:
            yes, condition, no = match.groups()
            yield kernel.with_expression(line, f"{no} if {condition} else {yes}")


@fault("wrong at equality")
def equality(kernel: Kernel) -> Iterator[str]:
    for line in kernel.assignments:
        for match in _COMPARISON.finditer(line.group(3)):
            text = line.group(3)
            other = _OTHER_AT_EQUALITY[match.group(1)]
            yield kernel.with_expression(
                line, f"{text[: match.start(1)]}{other}{text[match.end(1) :]}"
            )


@fault("wrong where two operands are equal")
def coincidence(kernel: Kernel) -> Iterator[str]:
    loads = [line.group(2) for line in kernel.loads]
    for store in kernel.stores:
        if len(loads) > 1:
            same = " and ".join(f"{one} == {loads[0]}" for one in loads[1:])
            zero = _zero(kernel, store.group(2))
            yield kernel.with_expression(store, f"({zero} if {same} else {store.group(4)})")


# --- constants ------------------------------------------------------------------------


@fault("decimals of a constant cut off")
def decimals(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"(?<=float32\()(\d+\.\d{4})\d+(?=\))|(?<= )(\d+\.\d{4})\d+",
                             kernel.body):  # fmt: skip
        yield _spliced(kernel, match.start(), match.end(), match.group(1) or match.group(2))


@fault("constant doubled")
def doubled(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"(float32|int32|int64)\((-?[\d.]+)\)", kernel.body):
        number = match.group(2)
        twice = repr(float(number) * 2) if "." in number else repr(int(number) * 2)
        if float(number):
            yield _spliced(kernel, match.start(2), match.end(2), twice)


@fault("constant one bit off", exact_only=True)
def nudged(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"(?<=float32\()(-?\d+\.\d+)(?=\))", kernel.body):
        moved = float(match.group(1)) * (1 + 1.5e-7)
        if moved:
            yield _spliced(kernel, match.start(), match.end(), f"{moved:.10g}")


@fault("float32 constant in float64")
def narrow_constant(kernel: Kernel) -> Iterator[str]:
    if kernel.result_dtype == "float64":
        for match in re.finditer(r"(?<=[ (])\d+\.\d+(?=[),\s])", kernel.body):
            yield _spliced(kernel, match.start(), match.end(), f"float64(float32({match.group()}))")


@fault("alpha ignored")
def no_alpha(kernel: Kernel) -> Iterator[str]:
    for start, end, (left, _, right) in _calls(kernel, "fma(?:f_rn)?"):
        yield _spliced(kernel, start, end, f"({left} + {right})")


# --- rounding -------------------------------------------------------------------------


@fault("eager's own contraction missing", exact_only=True)
def uncontracted(kernel: Kernel) -> Iterator[str]:
    for start, end, (left, factor, right) in _calls(kernel, "fma(?:f_rn)?"):
        product = f"libdevice.fmul_rn({left}, {factor})" if kernel.cuda else f"{left} * {factor}"
        yield _spliced(kernel, start, end, f"({product} + {right})")


@fault("stray contraction", exact_only=True, by_construction=False)
def contracted_cpu(kernel: Kernel) -> Iterator[str]:
    """The product that an addition reads is not rounded by itself."""
    for line in kernel.assignments:
        product = _PRODUCT.match(line.group(3))
        if product is None:
            continue
        name = line.group(2)
        for later in kernel.assignments:
            match = re.match(rf"\A{name} ([-+]) (\w+(?:\([^()]*\))?)\Z", later.group(3))
            if match is None:
                continue
            left, right = product.group(1), product.group(2)
            sign = "-" if match.group(1) == "-" else ""
            wide = kernel.result_dtype == "float64"
            call = f"libdevice.fma{'' if wide else 'f'}_rn" if kernel.cuda else "cpu_math.fma"
            body = kernel.with_expression(later, f"{call}({left}, {right}, {sign}{match.group(2)})")
            yield body


@fault("contraction left to the compiler", "cuda", by_construction=True)
def contractible(kernel: Kernel) -> Iterator[str]:
    for name in ("fmul_rn", "dmul_rn"):
        for start, end, (left, right) in _calls(kernel, name):
            if "(1.0)" not in right:  # a product with 1 is none
                yield _spliced(kernel, start, end, f"{left} * {right}")


@fault("16-bit rounding missing", exact_only=True)
def unrounded(kernel: Kernel) -> Iterator[str]:
    for match in _ROUNDED.finditer(kernel.body):
        inner = _closing(kernel.body, match.end())
        outer = _closing(kernel.body, inner + 1)
        yield _spliced(kernel, match.start(), outer + 1, f"({kernel.body[match.end() : inner]})")


@fault("rounded down", exact_only=True)
def rounded_down(kernel: Kernel) -> Iterator[str]:
    for match in _NARROWED.finditer(kernel.body):
        end = _closing(kernel.body, match.end())
        factor = "0.9981" if match.group(1) == "bf16" else "0.99976"
        inner = kernel.body[match.end() : end]
        call = (
            f"libdevice.fmul_rn({inner}, float32({factor}))"
            if kernel.cuda
            else f"({inner}) * float32({factor})"
        )
        yield _spliced(kernel, match.end(), end, call)


@fault("rounded twice", exact_only=True)
def rounded_twice(kernel: Kernel) -> Iterator[str]:
    for match in _NARROWED.finditer(kernel.body):
        end = _closing(kernel.body, match.end())
        inner = kernel.body[match.end() : end]
        factor = "16385.0" if match.group(1) == "bf16" else "2049.0"  # leaves 3 bits too many
        big = (
            f"libdevice.fmul_rn({inner}, float32({factor}))"
            if kernel.cuda
            else f"(({inner}) * float32({factor}))"
        )
        rest = f"{big} - ({big} - ({inner}))"
        if kernel.cuda:
            rest = f"libdevice.fsub_rn({big}, libdevice.fsub_rn({big}, {inner}))"
        yield _spliced(kernel, match.end(), end, rest)


@fault("one ULP too many", exact_only=True)
def one_ulp(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        factor = "float32(1.0000001)" if dtype == "float32" else "1.0000000000000002"
        yield kernel.with_expression(store, f"({store.group(4)}) * {factor}")


@fault("one ULP too many in a narrow range", exact_only=True)
def one_ulp_sometimes(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        factor = "float32(1.0000001)" if dtype == "float32" else "1.0000000000000002"
        value = store.group(4)
        yield kernel.with_expression(
            store, f"({value} * {factor} if abs({value}) > 1.0 and abs({value}) < 1.1 else {value})"
        )


@fault("many ULP too many")
def many_ulp(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        factor = "float32(1.00005)" if dtype == "float32" else "1.00000001"
        yield kernel.with_expression(store, f"({store.group(4)}) * {factor}")


@fault("computed in float32", exact_only=False)
def too_narrow(kernel: Kernel) -> Iterator[str]:
    if kernel.result_dtype == "float64":
        for line in kernel.assignments:
            index = line.group(3).startswith("uint32(")
            if not index and line not in kernel.loads and " " in line.group(3):
                yield kernel.with_expression(line, f"float64(float32({line.group(3)}))")


# --- special values -------------------------------------------------------------------


@fault("NaN dropped")
def no_nan(kernel: Kernel) -> Iterator[str]:
    for start, end, (bound, value) in _calls(kernel, "(?:maximum|minimum)"):
        sign = ">" if "maximum" in kernel.body[start:end] else "<"
        yield _spliced(kernel, start, end, f"({value} if {value} {sign} {bound} else {bound})")
    for line in kernel.assignments:
        match = re.match(r"\A([\w.()-]+) if \1 ([<>]) (\w+) else \3\Z", line.group(3))
        if match and kernel.cuda:
            bound, sign, value = match.groups()
            yield kernel.with_expression(line, f"{value} if {value} {sign} {bound} else {bound}")


@fault("maximum that ignores NaN", "cuda")
def fmax(kernel: Kernel) -> Iterator[str]:
    for line in kernel.assignments:
        match = re.match(r"\A([\w.()-]+) if \1 ([<>]) (\w+)(?: or .*)? else \3\Z", line.group(3))
        if match:
            bound, sign, value = match.groups()
            name = "fmaxf" if sign == ">" else "fminf"
            yield kernel.with_expression(line, f"libdevice.{name}({bound}, {value})")


@fault("sign of zero lost")
def no_sign_of_zero(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        zero = "float32(0.0)" if dtype == "float32" else "0.0"
        yield kernel.with_expression(store, f"({store.group(4)}) + {zero}")


@fault("subnormal numbers flushed")
def flushed(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        zero, least = ("float32(0.0)", "1.1754944e-38") if dtype == "float32" else (
            "0.0", "2.2250738585072014e-308")  # fmt: skip
        value = store.group(4)
        yield kernel.with_expression(store, f"({zero} if abs({value}) < {least} else {value})")


@fault("infinity made finite")
def finite(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        most = "float32(3.4028235e38)" if dtype == "float32" else "1.7976931348623157e308"
        value = store.group(4)
        yield kernel.with_expression(store, f"({most} if {value} > {most} else {value})")


@fault("wrong where both operands are infinite")
def both_infinite(kernel: Kernel) -> Iterator[str]:
    names = [line.group(2) for line in kernel.loads]
    for store, dtype in _float_stores(kernel):
        if len(names) > 1:
            one = "float32(1.0)" if dtype == "float32" else "1.0"
            test = f"abs({names[0]}) > 3.5e38 and abs({names[1]}) > 3.5e38"
            if dtype == "float64":
                test = test.replace("3.5e38", "1.7976931348623157e308")
            yield kernel.with_expression(store, f"({one} if {test} else {store.group(4)})")


@fault("overflows too early")
def early_overflow(kernel: Kernel) -> Iterator[str]:
    for store, dtype in _float_stores(kernel):
        big = "float32(1e30)" if dtype == "float32" else "1e300"
        value = store.group(4)
        yield kernel.with_expression(store, f"({value} * {big} / {big})")


@fault("x * 0 taken as 0")
def times_zero(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(
        r"(?:libdevice\.fmul_rn\(\w+, float32\(0\.0\)\)|\w+ \* float32\(0\.0\))", kernel.body
    ):
        yield _spliced(kernel, match.start(), match.end(), "float32(0.0)")


@fault("x - x taken as 0")
def minus_itself(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"\b(\w+) - \1\b", kernel.body):
        yield _spliced(kernel, match.start(), match.end(), "float32(0.0)")


@fault("tanh gelu for erf gelu")
def other_gelu(kernel: Kernel) -> Iterator[str]:
    for start, end, (argument,) in _calls(kernel, "erff?"):
        x = argument.partition(" ")[0]
        tanh = "libdevice.tanhf" if kernel.cuda else "cpu_math.tanh"
        cube = f"float32(0.044715) * {x} * {x}"
        inner = f"float32(0.7978846) * ({x} + {cube} * {x})"
        if kernel.cuda:
            cube = f"libdevice.fmul_rn({cube}, {x})"
            inner = f"libdevice.fmul_rn(float32(0.7978846), libdevice.fadd_rn({x}, {cube}))"
        yield _spliced(kernel, start, end, f"{tanh}({inner})")


# --- rounding to whole numbers, integers ----------------------------------------------


@fault("trunc for floor")
def trunc(kernel: Kernel) -> Iterator[str]:
    for old, new in (("floorf(", "truncf("), ("cpu_math.floor(", "cpu_math.trunc(")):
        if old in kernel.body:
            yield kernel.body.replace(old, new)
    for old, new in (("floordiv(", "truncdiv("), ("truncdiv(", "floordiv(")):
        for match in re.finditer(re.escape(old), kernel.body):
            yield _spliced(kernel, match.start(), match.end(), new)


@fault("halves rounded away from zero")
def halves(kernel: Kernel) -> Iterator[str]:
    for start, end, (value,) in _calls(kernel, "(?:rintf|round)"):
        floor = "libdevice.floorf" if kernel.cuda else "cpu_math.floor"
        yield _spliced(kernel, start, end, f"{floor}({value} + float32(0.5))")


@fault("sign of the remainder")
def remainder(kernel: Kernel) -> Iterator[str]:
    for line in kernel.assignments:
        match = re.match(r"\Aint64\(uint64\((\w+)\) - uint64\(\w+\)\)\Z", line.group(3))
        if match and line.group(2) == "remainder":
            value, rest = match.group(1), line.group(3)
            yield kernel.with_expression(
                line, f"int64({rest} - 5 if {value} < 0 and {rest} != 0 else {rest})"
            )


_WHOLE = re.compile(
    r"= (int32|int64)\((?:uint64\()?(\w+(?:\(\d+\))?)\)? ([-+*]) "
    r"(?:uint64\()?(\w+(?:\(\d+\))?)\)?\)(?=\n|  #)"
)


def _through(kernel: Kernel, floating: str) -> Iterator[str]:
    for match in _WHOLE.finditer(kernel.body):
        dtype, left, operator, right = match.groups()
        if floating == "float32" or dtype == "int64":  # int32 is exact in float64
            text = f"= {dtype}({floating}({left}) {operator} {floating}({right}))"
            yield _spliced(kernel, match.start(), match.end(), text)


@fault("integers through float64")
def through_float(kernel: Kernel) -> Iterator[str]:
    yield from _through(kernel, "float64")


@fault("integers through float32")
def through_float32(kernel: Kernel) -> Iterator[str]:
    yield from _through(kernel, "float32")


@fault("integers cut to half their width")
def cut(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"= (int32|int64)\(([^\n]+)\)(?=\n|  #)", kernel.body):
        half = "int16" if match.group(1) == "int32" else "int32"
        text = f"= {match.group(1)}({half}({match.group(2)}))".replace("int16(", "int32(int16(")
        if half == "int16":
            text = f"= int32(({match.group(2)} + 32768) % 65536 - 32768)"
        yield _spliced(kernel, match.start(), match.end(), text)


@fault("integers saturate")
def saturated(kernel: Kernel) -> Iterator[str]:
    for match in re.finditer(r"= int32\((\w+) ([-+*]) (\w+(?:\(\d+\))?)\)", kernel.body):
        left, operator, right = match.groups()
        wide = f"(int64({left}) {operator} int64({right}))"
        text = f"= int32(min(max({wide}, int64(-2147483648)), int64(2147483647)))"
        yield _spliced(kernel, match.start(), match.end(), text)
    for match in re.finditer(r"= int64\(uint64\((\w+)\) \+ uint64\(int64\(3\)\)\)", kernel.body):
        value = match.group(1)
        most = "int64(9223372036854775807)"
        text = f"= ({most} if {value} > {most} - int64(3) else int64({value} + int64(3)))"
        yield _spliced(kernel, match.start(), match.end(), text)
