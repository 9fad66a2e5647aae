"""Recipes of elementary functions and rounding."""

from __future__ import annotations

import math

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import is_float, is_integer
from fusion_advisor.ops.exponentials import Exponent, difference_exponent, exp_of
from fusion_advisor.ops.scalars import OPCODES, Value
from fusion_advisor.ops.table import op
from fusion_advisor.records import Constant

# Budgets in float32 ULP against the true value: the larger of eager's own
# distance and that of the CPU and CUDA implementations of the opcode.
_BUDGET_ULP = {
    "exp": 2.0,
    "exp2": 2.0,
    "expm1": 3.0,
    "log": 2.0,
    "log2": 2.0,
    "log10": 2.0,
    "log1p": 3.0,
    "sin": 2.0,
    "cos": 2.0,
    "tan": 4.0,
    "asin": 4.0,
    "acos": 4.0,
    "atan": 4.0,
    "sinh": 4.0,
    "cosh": 4.0,
    "tanh": 4.0,
    "asinh": 4.0,
    "acosh": 4.0,
    "atanh": 4.0,
    "erf": 4.0,
    "erfc": 4.0,
}


def _unary(opcode: str) -> None:
    flops = OPCODES[opcode].flops

    @op(f"{opcode}.default", flops=flops, budget_ulp=_BUDGET_ULP[opcode], promotion="float")
    def recipe(call: Call) -> Value:
        dtype = call.float_dtype("self")
        return call.store(call.emit(opcode, call.load("self", dtype)), dtype)


for _opcode in _BUDGET_ULP:
    _unary(_opcode)


def _rounding(opcode: str) -> None:
    @op(f"{opcode}.default", discontinuous=True)
    def recipe(call: Call) -> Value:
        dtype = call.require_number(call.same_dtype("self"))
        value = call.load("self", dtype)
        return value if is_integer(dtype) else call.store(call.emit(opcode, value), dtype)


for _opcode in ("floor", "ceil", "trunc", "round"):
    _rounding(_opcode)


@op("round.decimals", parameters="self *decimals", flops=10, discontinuous=True)
def round_decimals(call: Call) -> Value:
    """Either round(x * 10^d) / 10^d, or round(x / 10^-d) * 10^-d for negative d."""
    dtype = call.require_float(call.same_dtype("self"))
    decimals = int(call.number("decimals", 0))
    value = call.load("self", dtype)
    if decimals == 0:
        return call.store(call.emit("round", value), dtype)
    scale = call.constant(10.0 ** abs(decimals), dtype)
    before, after = ("mul", "div") if decimals > 0 else ("div", "mul")
    rounded = call.emit("round", call.emit(before, value, scale))
    return call.store(call.emit(after, rounded, scale), dtype)


@op("frac.default", flops=2, discontinuous=True)
def frac(call: Call) -> Value:
    """``self - trunc(self)``."""
    dtype = call.require_float(call.same_dtype("self"))
    value = call.load("self", dtype)
    return call.store(call.emit("sub", value, call.emit("trunc", value)), dtype)


@op("sign.default", "sgn.default", flops=3, discontinuous=True)
def sign(call: Call) -> Value:
    """1, 0 or -1 by comparison; NaN gives 0 as eager does on the CPU, a bool itself."""
    dtype = call.same_dtype("self")
    value = call.load("self", dtype)
    if dtype == "bool":
        return value
    zero, one = call.constant(0, dtype), call.constant(1, dtype)
    if dtype == "uint8":
        return call.emit("select", call.emit("gt", value, zero), one, zero)
    minus = call.constant(-1, dtype)
    below = call.emit("select", call.emit("lt", value, zero), minus, zero)
    return call.store(call.emit("select", call.emit("gt", value, zero), one, below), dtype)


@op("atan2.default", parameters="self other", flops=28, budget_ulp=4, promotion="float")
def atan2(call: Call) -> Value:
    """Angle of the point (other, self)."""
    dtype = call.float_dtype("self", "other")
    a, b = call.load("self", dtype), call.load("other", dtype)
    return call.store(call.emit("atan2", a, b), dtype)


def _log_add_exp(call: Call, exponential: str) -> Value:
    """Maximum + log1p(exp(-|a - b|)); equal infinities give themselves."""
    dtype = call.require_float(call.common_dtype("self", "other"))
    a, b = call.load("self", dtype), call.load("other", dtype)
    infinity = call.constant(math.inf, dtype)
    if dtype == "float32":
        exponent = difference_exponent(
            call, call.emit("maximum", a, b), call.emit("minimum", a, b), dtype
        )
    else:
        exponent = Exponent(call.emit("neg", call.emit("abs", call.emit("sub", a, b))))
    term: Value = call.emit("log1p", exp_of(call, exponent, dtype, exponential))
    largest = call.emit("maximum", a, b)
    per_octave = call.constant(1 / math.log(2), dtype)
    if exponential == "exp":
        total = call.emit("add", largest, term)
    elif dtype == "float32":
        total = call.emit("fma", term, per_octave, largest)
    else:
        total = call.emit("add", largest, call.emit("mul", term, per_octave))
    same_infinity = call.emit(
        "and", call.emit("eq", a, b), call.emit("eq", call.emit("abs", a), infinity)
    )
    return call.store(call.emit("select", same_infinity, a, total), dtype)


_ROUNDED_DISTANCE = (
    "two transcendental functions, an ULP of which is two of the operand where their term cancels "
    "with it; the rounding of |a - b|, worth up to 11 ULP of the term, is put back in float32"
)


@op(
    "logaddexp.default",
    parameters="self other",
    flops=32,
    budget_ulp=6,
    error_scale="operand",
    note=_ROUNDED_DISTANCE,
)
def logaddexp(call: Call) -> Value:
    """``log(exp(self) + exp(other))``."""
    return _log_add_exp(call, "exp")


@op(
    "logaddexp2.default",
    parameters="self other",
    flops=32,
    budget_ulp=6,
    error_scale="operand",
    note=_ROUNDED_DISTANCE,
)
def logaddexp2(call: Call) -> Value:
    """``log2(2**self + 2**other)``."""
    return _log_add_exp(call, "exp2")


def _times_log(call: Call, logarithm: str) -> Value:
    """Product x * log(y), 0 where x is 0 and y is not NaN; eager rounds the log to 16 bits."""
    dtype = call.float_dtype("self", "other")
    x, y = call.load("self", dtype), call.load("other", dtype)
    zero = call.constant(0.0, dtype)
    log = call.round_step(call.emit(logarithm, y), dtype)
    product = call.emit("mul", x, log)
    result = call.emit("select", call.emit("eq", x, zero), zero, product)
    return call.store(call.emit("select", call.emit("isnan", y), y, result), dtype)


@op(
    "xlogy.Tensor",
    "xlogy.Scalar_Self",
    "xlogy.Scalar_Other",
    parameters="self other",
    flops=18,
    budget_ulp=4,
    half_steps=True,
    promotion="float",
)
def xlogy(call: Call) -> Value:
    """``self * log(other)``."""
    return _times_log(call, "log")


@op(
    "special_xlog1py.default",
    "special_xlog1py.self_scalar",
    "special_xlog1py.other_scalar",
    parameters="self other",
    flops=18,
    budget_ulp=4,
    half_steps=True,
    promotion="float",
)
def xlog1py(call: Call) -> Value:
    """``self * log1p(other)``."""
    return _times_log(call, "log1p")


@op("special_entr.default", flops=18, budget_ulp=4, half_steps=True, promotion="float")
def entr(call: Call) -> Value:
    """-x * log(x); 0 at 0, -inf below."""
    dtype = call.float_dtype("self")
    x = call.load("self", dtype)
    zero, lowest = call.constant(0.0, dtype), call.constant(-math.inf, dtype)
    log = call.round_step(call.emit("log", x), dtype)
    product = call.emit("mul", call.emit("neg", x), log)
    at_most_zero = call.emit("select", call.emit("eq", x, zero), zero, lowest)
    inside = call.emit("or", call.emit("gt", x, zero), call.emit("isnan", x))
    return call.store(call.emit("select", inside, product, at_most_zero), dtype)


@op(
    "logit.default",
    parameters="self eps",
    flops=22,
    budget_ulp=4,
    error_scale="operand",
    half_steps=True,
    promotion="float",
    note="log of a ratio near 1 cancels",
)
def logit(call: Call) -> Value:
    """``log(x / (1 - x))``, x clamped to [eps, 1 - eps] if eps is given."""
    dtype = call.float_dtype("self")
    one = call.constant(1.0, dtype)
    x = call.load("self", dtype)
    if call.has("eps"):
        eps = float(call.number("eps", 0.0))
        low = call.round_step(call.constant(eps, dtype), dtype)
        high = call.round_step(call.emit("sub", one, low), dtype)
        if eps <= 0.5:
            x = call.emit("minimum", high, call.emit("maximum", low, x))
        else:  # the bounds in the wrong order: eager looks at the lower one first
            above = call.emit("select", call.emit("gt", x, high), high, x)
            x = call.emit("select", call.emit("lt", x, low), low, above)
    rest = call.round_step(call.emit("sub", one, x), dtype)
    ratio = call.round_step(call.emit("div", x, rest), dtype)
    return call.store(call.emit("log", ratio), dtype)


@op(
    "sinc.default",
    flops=26,
    budget_ulp=4,
    error_scale="operand",
    promotion="float",
    note="sin(pi x) loses relative accuracy at its zeros",
)
def sinc(call: Call) -> Value:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    dtype = call.float_dtype("self")
    x = call.load("self", dtype)
    zero, one = call.constant(0.0, dtype), call.constant(1.0, dtype)
    angle = call.emit("mul", call.constant(math.pi, dtype), x)
    ratio = call.emit("div", call.emit("sin", angle), angle)
    return call.store(call.emit("select", call.emit("eq", x, zero), one, ratio), dtype)


@op("nan_to_num.default", parameters="self nan posinf neginf", flops=5)
def nan_to_num(call: Call) -> Value:
    """Replace NaN and infinities by numbers."""
    dtype = call.same_dtype("self")
    x = call.load("self", dtype)
    if not is_float(dtype):
        return x
    largest = {
        "float16": 65504.0,
        "bfloat16": 3.3895313892515355e38,
        "float32": 3.4028234663852886e38,
        "float64": 1.7976931348623157e308,
    }[dtype]
    nan, high, low = (
        call.rounded(name, dtype, default)
        for name, default in (("nan", 0.0), ("posinf", largest), ("neginf", -largest))
    )
    infinity = Constant(value=math.inf, dtype=call.builder.dtype(x))
    minus_infinity = Constant(value=-math.inf, dtype=call.builder.dtype(x))
    result = call.emit("select", call.emit("eq", x, minus_infinity), low, x)
    result = call.emit("select", call.emit("eq", x, infinity), high, result)
    return call.store(call.emit("select", call.emit("isnan", x), nan, result), dtype)


@op("heaviside.default", parameters="self values", flops=3, discontinuous=True)
def heaviside(call: Call) -> Value:
    """1 above zero, ``values`` at zero, else 0; NaN gives 0 as eager does."""
    dtype = call.common_dtype("self", "values")
    x, at_zero = call.load("self", dtype), call.load("values", dtype)
    if dtype == "bool":
        return call.emit("or", x, at_zero)
    zero, one = call.constant(0, dtype), call.constant(1, dtype)
    step = call.emit("select", call.emit("gt", x, zero), one, zero)
    return call.store(call.emit("select", call.emit("eq", x, zero), at_zero, step), dtype)


@op("angle.default", flops=3, discontinuous=True, promotion="float")
def angle(call: Call) -> Value:
    """Pi for negative numbers, 0 for others, NaN for NaN."""
    dtype = call.float_dtype("self")
    x = call.load("self", dtype)
    zero, pi = call.constant(0.0, dtype), call.constant(math.pi, dtype)
    result = call.emit("select", call.emit("lt", x, zero), pi, zero)
    return call.store(call.emit("select", call.emit("isnan", x), x, result), dtype)
