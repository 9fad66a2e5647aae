"""Recipes of activation functions, in the operation order of eager's CPU kernels."""

from __future__ import annotations

import math

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import opmath
from fusion_advisor.ops.exponentials import SUBNORMAL_BELOW, exp_of, product_exponent
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
GELU_CUBE = 0.044715
SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
# exp(-37) is a float32 to 0.007 ULP, as no other whole number's exponential is.
_MISH_SHIFT = 37.0
_MISH_SCALE = math.exp(-_MISH_SHIFT)

# The keyword under which a glu reads its second half where the two are values of their own.
SECOND_HALF = "second"

_GELU_NOTE = (
    "1 + erf cancels in the left tail, so the error scales with x; eager's contiguous float32 "
    "kernel is another library's, differs from its strided one and gives NaN at +inf"
)


@op("relu.default")
def relu(call: Call) -> Value:
    """max(x, 0), keeping NaN and -0.0."""
    dtype = call.require_number(call.same_dtype("self"))
    value = call.emit("maximum", call.constant(0, dtype), call.load("self", dtype))
    return call.store(value, dtype)


def sigmoid_of(call: Call, value: Value, dtype: str) -> Value:
    """1 / (1 + exp(-x)) in the computing dtype."""
    one = call.constant(1.0, dtype)
    return call.emit("div", one, call.emit("add", one, call.emit("exp", call.emit("neg", value))))


@op("sigmoid.default", flops=20, budget_ulp=4, promotion="float")
def sigmoid(call: Call) -> Value:
    """``1 / (1 + exp(-x))``."""
    dtype = call.float_dtype("self")
    return call.store(sigmoid_of(call, call.load("self", dtype), dtype), dtype)


@op("silu.default", flops=20, budget_ulp=4)
def silu(call: Call) -> Value:
    """Sigmoid-weighted x: ``x / (1 + exp(-x))``."""
    dtype = call.require_float(call.same_dtype("self"))
    x, one = call.load("self", dtype), call.constant(1.0, dtype)
    denominator = call.emit("add", one, call.emit("exp", call.emit("neg", x)))
    return call.store(call.emit("div", x, denominator), dtype)


@op("glu.default", parameters="self dim", flops=28, budget_ulp=4, halves=True)
def glu(call: Call) -> Value:
    """The first half times the sigmoid of the second.

    In float32 below -87, where the sigmoid has lost bits, the first half over its inverse.
    """
    dtype = call.require_float(call.same_dtype("self"))
    first = call.load("self", dtype)
    second = call.load(SECOND_HALF if call.has(SECOND_HALF) else "self", dtype)
    one = call.constant(1.0, dtype)
    inverse = call.emit("add", one, call.emit("exp", call.emit("neg", second)))
    result = call.emit("mul", first, call.emit("div", one, inverse))
    if dtype == "float32":
        tiny = call.emit("lt", second, call.constant(SUBNORMAL_BELOW, dtype))
        result = call.emit("select", tiny, call.emit("div", first, inverse), result)
    return call.store(result, dtype)


def gelu_inner(call: Call, x: Value, dtype: str) -> Value:
    """sqrt(2/pi) * (x + 0.044715 x³), its sum one fused multiply-add as in eager."""
    cube = call.emit("mul", call.emit("mul", x, x), x)
    total = call.emit("fma", call.constant(GELU_CUBE, dtype), cube, x)
    return call.emit("mul", call.constant(SQRT_2_OVER_PI, dtype), total)


@op(
    "gelu.default",
    parameters="self *approximate",
    flops=26,
    budget_ulp=4,
    error_scale="operand",
    note=_GELU_NOTE,
)
def gelu(call: Call) -> Value:
    """``x/2 * (1 + erf(x/sqrt 2))`` or its tanh approximation."""
    dtype = call.require_float(call.same_dtype("self"))
    x, one, half = call.load("self", dtype), call.constant(1.0, dtype), call.constant(0.5, dtype)
    if call.text("approximate", "none") == "tanh":
        tanh = call.emit("tanh", gelu_inner(call, x, dtype))
        result = call.emit("mul", call.emit("mul", half, x), call.emit("add", one, tanh))
    else:
        erf = call.emit("erf", call.emit("mul", x, call.constant(SQRT_HALF, dtype)))
        result = call.emit("mul", call.emit("mul", x, half), call.emit("add", one, erf))
    return call.store(result, dtype)


def _relu6_of_shifted(call: Call, x: Value, dtype: str) -> Value:
    """min(max(x + 3, 0), 6)"""
    shifted = call.emit("add", x, call.constant(3.0, dtype))
    low = call.emit("maximum", call.constant(0.0, dtype), shifted)
    return call.emit("minimum", call.constant(6.0, dtype), low)


@op("hardswish.default", flops=7)
def hardswish(call: Call) -> Value:
    """``x * relu6(x + 3) / 6``."""
    dtype = call.require_float(call.same_dtype("self"))
    x = call.load("self", dtype)
    product = call.emit("mul", x, _relu6_of_shifted(call, x, dtype))
    return call.store(call.emit("div", product, call.constant(6.0, dtype)), dtype)


@op("hardsigmoid.default", flops=6)
def hardsigmoid(call: Call) -> Value:
    """``relu6(x + 3) / 6``."""
    dtype = call.require_float(call.same_dtype("self"))
    inner = _relu6_of_shifted(call, call.load("self", dtype), dtype)
    return call.store(call.emit("div", inner, call.constant(6.0, dtype)), dtype)


@op("relu6.default", flops=2)
def relu6(call: Call) -> Value:
    """``min(max(x, 0), 6)``."""
    dtype = call.require_number(call.same_dtype("self"))
    low = call.emit("maximum", call.constant(0, dtype), call.load("self", dtype))
    return call.store(call.emit("minimum", call.constant(6, dtype), low), dtype)


@op("hardtanh.default", parameters="self min_val max_val", flops=2)
def hardtanh(call: Call) -> Value:
    """``min(max(x, min_val), max_val)``."""
    dtype = call.require_number(call.same_dtype("self"))
    low, high = call.rounded("min_val", dtype, -1), call.rounded("max_val", dtype, 1)
    value = call.emit("maximum", low, call.load("self", dtype))
    return call.store(call.emit("minimum", high, value), dtype)


@op("leaky_relu.default", parameters="self negative_slope", flops=2)
def leaky_relu(call: Call) -> Value:
    """X above zero, else ``slope * x``."""
    dtype = call.require_float(call.same_dtype("self"))
    x, slope = call.load("self", dtype), call.wide("negative_slope", dtype, 0.01)
    positive = call.emit("gt", x, call.constant(0.0, dtype))
    return call.store(call.emit("select", positive, x, call.emit("mul", x, slope)), dtype)


@op("_prelu_kernel.default", parameters="self weight", flops=2)
def prelu(call: Call) -> Value:
    """X above zero, else ``weight * x``."""
    dtype = call.require_float(call.same_dtype("self"))
    x, weight = call.load("self", dtype), call.load("weight", dtype)
    positive = call.emit("gt", x, call.constant(0.0, dtype))
    return call.store(call.emit("select", positive, x, call.emit("mul", weight, x)), dtype)


def exponential_unit(
    call: Call, alpha: Value, scale: Value, input_scale: Value, dtype: str
) -> Value:
    """Input times scale above zero, expm1(x*input_scale)*(alpha*scale) below."""
    x = call.load("self", dtype)
    negative = call.emit("lt", x, call.constant(0.0, dtype))
    below = call.emit(
        "mul",
        call.emit("expm1", call.emit("mul", x, input_scale)),
        multiply(call, alpha, scale, dtype),
    )
    return call.store(call.emit("select", negative, below, call.emit("mul", x, scale)), dtype)


def multiply(call: Call, left: Value, right: Value, dtype: str) -> Value:
    """Product of two values, folded when both are literals (rounded as the kernel would)."""
    if isinstance(left, str) or isinstance(right, str):
        return call.emit("mul", left, right)
    return call.builder.constant(left.value * right.value, opmath(dtype))


@op("elu.default", parameters="self alpha scale input_scale", flops=20, budget_ulp=4)
def elu(call: Call) -> Value:
    """X above zero, else ``alpha * expm1(x)``, each side scaled."""
    dtype = call.require_float(call.same_dtype("self"))
    alpha, scale, input_scale = (
        call.wide(name, dtype, 1) for name in ("alpha", "scale", "input_scale")
    )
    return exponential_unit(call, alpha, scale, input_scale, dtype)


@op("celu.default", parameters="self alpha", flops=20, budget_ulp=4)
def celu(call: Call) -> Value:
    """X above zero, else ``alpha * expm1(x / alpha)``."""
    dtype = call.require_float(call.same_dtype("self"))
    alpha = float(call.number("alpha", 1.0))
    if alpha == 0.0:
        raise call.refuse("alpha is 0")
    return exponential_unit(
        call,
        call.constant(alpha, dtype),
        call.constant(1.0, dtype),
        call.constant(1.0 / alpha, dtype),
        dtype,
    )


@op("selu.default", flops=20, budget_ulp=4)
def selu(call: Call) -> Value:
    """ELU with the two constants of self-normalising networks."""
    dtype = call.require_float(call.same_dtype("self"))
    return exponential_unit(
        call,
        call.constant(SELU_ALPHA, dtype),
        call.constant(SELU_SCALE, dtype),
        call.constant(1.0, dtype),
        dtype,
    )


@op("softplus.default", parameters="self beta threshold", flops=34, budget_ulp=4)
def softplus(call: Call) -> Value:
    """The input itself where beta*x > threshold, else log1p(exp(beta*x)) / beta."""
    dtype = call.require_float(call.same_dtype("self"))
    x, beta = call.load("self", dtype), call.wide("beta", dtype, 1)
    scaled = product_exponent(call, x, beta, dtype)
    linear = call.emit("gt", scaled.value, call.wide("threshold", dtype, 20))
    soft = call.emit("div", call.emit("log1p", exp_of(call, scaled, dtype)), beta)
    return call.store(call.emit("select", linear, x, soft), dtype)


@op("mish.default", flops=54, budget_ulp=4)
def mish(call: Call) -> Value:
    """``x * tanh(log1p(exp(x)))``; in float32 below -87 ``x * exp(x)``, which it comes to there.

    exp(x) has lost bits below -87, and a hundred times its error would be seen; so it is taken
    at x + 37, and scaled back at the end.
    """
    dtype = call.require_float(call.same_dtype("self"))
    x = call.load("self", dtype)
    if dtype != "float32":
        tanh = call.emit("tanh", call.emit("log1p", call.emit("exp", x)))
        return call.store(call.emit("mul", x, tanh), dtype)
    tiny = call.emit("lt", x, call.constant(SUBNORMAL_BELOW, dtype))
    raised = call.emit("add", x, call.constant(_MISH_SHIFT, dtype))
    exp = call.emit("exp", call.emit("select", tiny, raised, x))
    scaled = call.emit("mul", call.emit("mul", x, exp), call.constant(_MISH_SCALE, dtype))
    result = call.emit("mul", x, call.emit("tanh", call.emit("log1p", exp)))
    return call.store(call.emit("select", tiny, scaled, result), dtype)


def minus_softplus(call: Call, x: Value, dtype: str) -> tuple[Value, Value]:
    """log sigmoid(x) = min(0, x) - log1p(exp(-|x|)) in the computing dtype; the exponential."""
    power = call.emit("exp", call.emit("neg", call.emit("abs", x)))
    low = call.emit("minimum", call.constant(0.0, dtype), x)
    return call.emit("sub", low, call.emit("log1p", power)), power


@op("log_sigmoid_forward.default", flops=34, budget_ulp=4)
def log_sigmoid_forward(call: Call) -> tuple[Value, Value]:
    """min(0, x) - log1p(exp(-|x|)), and the exponential that backward reads."""
    dtype = call.require_float(call.same_dtype("self"))
    result, buffer = minus_softplus(call, call.load("self", dtype), dtype)
    return call.store(result, dtype), call.store(buffer, dtype)


@op("native_dropout.default", parameters="input p train", flops=0)
def native_dropout(call: Call) -> tuple[Value, Value]:
    """Out of training: the input, and a mask that keeps everything."""
    if "train" not in call.operands or call.flag("train", True):
        raise call.refuse("in training it draws random numbers")
    return call.operand("input").value, call.builder.constant(1, "bool")


@op("threshold.default", parameters="self threshold value", flops=2, discontinuous=True)
def threshold(call: Call) -> Value:
    """``value`` up to the threshold, else x."""
    dtype = call.require_number(call.same_dtype("self"))
    x = call.load("self", dtype)
    below = call.emit("le", x, call.wide("threshold", dtype))
    return call.store(call.emit("select", below, call.wide("value", dtype), x), dtype)


@op("softshrink.default", parameters="self lambd", flops=5)
def softshrink(call: Call) -> Value:
    """Input x - l above l, x + l below -l, 0 between; NaN stays."""
    dtype = call.require_float(call.same_dtype("self"))
    x, bound = call.load("self", dtype), call.wide("lambd", dtype, 0.5)
    minus_bound = call.emit("neg", bound)
    middle = call.emit("select", call.emit("isnan", x), x, call.constant(0.0, dtype))
    below = call.emit("select", call.emit("lt", x, minus_bound), call.emit("add", x, bound), middle)
    above = call.emit("select", call.emit("gt", x, bound), call.emit("sub", x, bound), below)
    return call.store(above, dtype)


@op("hardshrink.default", parameters="self lambd", flops=4, discontinuous=True)
def hardshrink(call: Call) -> Value:
    """0 where -l <= x <= l, else x."""
    dtype = call.require_float(call.same_dtype("self"))
    x, bound = call.load("self", dtype), call.rounded("lambd", dtype, 0.5)
    inside = call.emit(
        "and", call.emit("ge", x, call.emit("neg", bound)), call.emit("le", x, bound)
    )
    return call.store(call.emit("select", inside, call.constant(0.0, dtype), x), dtype)
