"""Recipes of the backward formulas that eager runs as single kernels."""

from __future__ import annotations

import math

from fusion_advisor.ops.activations import (
    GELU_CUBE,
    SQRT_2_OVER_PI,
    SQRT_HALF,
    gelu_inner,
    multiply,
    sigmoid_of,
)
from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.exponentials import growth, product_exponent
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op

_MISH_IS_LINEAR = 30.0
_ONE_SIXTH_FLOAT32 = 0.1666666716337204  # eager's constant is float32 in every dtype


def _inputs(call: Call, *names: str) -> tuple[str, list[Value]]:
    """The promoted dtype and the loaded operands."""
    dtype = call.require_float(call.common_dtype(*names))
    return dtype, [call.load(name, dtype) for name in names]


def _square_from_one(call: Call, value: Value, dtype: str) -> Value:
    """1 - value², one fused multiply-add as in eager."""
    return call.emit("fma", call.emit("neg", value), value, call.constant(1.0, dtype))


@op(
    "threshold_backward.default",
    parameters="grad_output self threshold",
    flops=2,
    discontinuous=True,
)
def threshold_backward(call: Call) -> Value:
    """0 where x is at most the threshold, else the gradient."""
    dtype = call.require_number(call.common_dtype("grad_output", "self"))
    gradient, x = call.load("grad_output", dtype), call.load("self", dtype)
    below = call.emit("le", x, call.wide("threshold", dtype))
    return call.store(call.emit("select", below, call.constant(0, dtype), gradient), dtype)


@op("tanh_backward.default", parameters="grad_output output", flops=3)
def tanh_backward(call: Call) -> Value:
    """``g * (1 - t*t)``."""
    dtype, (gradient, tanh) = _inputs(call, "grad_output", "output")
    return call.store(call.emit("mul", gradient, _square_from_one(call, tanh, dtype)), dtype)


@op("sigmoid_backward.default", parameters="grad_output output", flops=3)
def sigmoid_backward(call: Call) -> Value:
    """(g * (1 - s)) * s; float16 rounds after each step."""
    dtype, (gradient, sigmoid) = _inputs(call, "grad_output", "output")
    rest: Value = call.emit("sub", call.constant(1.0, dtype), sigmoid)
    if dtype == "float16":
        rest = call.round_step(rest, dtype)
    product: Value = call.emit("mul", gradient, rest)
    if dtype == "float16":
        product = call.round_step(product, dtype)
    return call.store(call.emit("mul", product, sigmoid), dtype)


@op(
    "silu_backward.default",
    parameters="grad_output self",
    flops=27,
    budget_ulp=4,
    error_scale="operand",
    note="1 + x(1 - s) cancels around x = -1.28; eager is 16.5 ULP off: its rounding of s comes "
    "x times into the slope up to x = 17, where s becomes 1",
)
def silu_backward(call: Call) -> Value:
    """(g * s) * (1 + x(1 - s)), its sum one fused multiply-add; in float32 1 - s as exp(-x) s."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    one = call.constant(1.0, dtype)
    power = call.emit("exp", call.emit("neg", x))
    sigmoid = call.emit("div", one, call.emit("add", one, power))
    rest = call.emit("sub", one, sigmoid)
    slope = call.emit("fma", x, rest, one)
    if dtype == "float32":
        # The gradient last: its product with s may lose bits, which the slope would show.
        exact = call.emit("mul", x, call.emit("mul", power, sigmoid))
        positive = call.emit("gt", x, call.constant(0.0, dtype))
        above = call.emit("fma", sigmoid, exact, sigmoid)
        share = call.emit("select", positive, above, call.emit("mul", sigmoid, slope))
        return call.store(call.emit("mul", gradient, share), dtype)
    return call.store(call.emit("mul", call.emit("mul", gradient, sigmoid), slope), dtype)


def _tanh_gelu_slope(call: Call, x: Value, dtype: str) -> Value:
    """Derivative of the tanh GELU: 0.5(1 + t) + 0.5x(1 - t²) * inner'.

    In float32 1 + t and 1 - t² come from exp(-2|inner|), for their difference from t = 1.
    """
    one, half = call.constant(1.0, dtype), call.constant(0.5, dtype)
    inner = gelu_inner(call, x, dtype)
    square = call.emit("mul", x, x)
    inner_slope = call.emit(
        "mul",
        call.constant(SQRT_2_OVER_PI, dtype),
        call.emit(
            "fma",
            multiply(call, call.constant(3.0, dtype), call.constant(GELU_CUBE, dtype), dtype),
            square,
            one,
        ),
    )
    if dtype == "float32":
        minus_two = call.constant(-2.0, dtype)
        power = call.emit("exp", call.emit("mul", minus_two, call.emit("abs", inner)))
        large = call.emit("div", one, call.emit("add", one, power))
        small = call.emit("mul", power, large)
        positive = call.emit("gt", inner, call.constant(0.0, dtype))
        left = call.emit("select", positive, large, small)
        steep = call.emit("mul", call.emit("add", x, x), call.emit("mul", large, small))
        return call.emit("add", left, call.emit("mul", steep, inner_slope))
    tanh = call.emit("tanh", inner)
    left = call.emit("mul", half, call.emit("add", one, tanh))
    steep = call.emit("mul", call.emit("mul", half, x), _square_from_one(call, tanh, dtype))
    return call.emit("add", left, call.emit("mul", steep, inner_slope))


@op(
    "gelu_backward.default",
    parameters="grad_output self *approximate",
    flops=44,
    budget_ulp=4,
    error_scale="operand",
    note="cdf + x pdf cancels; eager's contiguous float32 kernel is another library's; with tanh "
    "eager is 16.8 ULP off: its rounding near 1 comes up to 22 times into the slope around x = 5",
)
def gelu_backward(call: Call) -> Value:
    """Gradient of either GELU."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    if call.text("approximate", "none") == "tanh":
        slope = _tanh_gelu_slope(call, x, dtype)
    else:
        one, half = call.constant(1.0, dtype), call.constant(0.5, dtype)
        erf = call.emit("erf", call.emit("mul", x, call.constant(SQRT_HALF, dtype)))
        cdf = call.emit("mul", half, call.emit("add", one, erf))
        square = call.emit("mul", call.emit("mul", x, x), call.constant(-0.5, dtype))
        normal = call.constant(1 / math.sqrt(2 * math.pi), dtype)
        pdf = call.emit("mul", normal, call.emit("exp", square))
        slope = call.emit("fma", x, pdf, cdf)
    return call.store(call.emit("mul", gradient, slope), dtype)


@op("hardswish_backward.default", parameters="grad_output self", flops=6, discontinuous=True)
def hardswish_backward(call: Call) -> Value:
    """0 up to -3, g * (x/3 + 0.5) below 3, then g."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    three = call.constant(3.0, dtype)
    slope = call.emit("add", call.emit("div", x, three), call.constant(0.5, dtype))
    above = call.emit("ge", x, three)
    middle = call.emit("select", above, gradient, call.emit("mul", gradient, slope))
    below = call.emit("le", x, call.constant(-3.0, dtype))
    return call.store(call.emit("select", below, call.constant(0.0, dtype), middle), dtype)


def _between(call: Call, x: Value, low: Value, high: Value, slope: Value, dtype: str) -> Value:
    """``slope`` where x lies between the bounds, else 0."""
    inside = call.emit("and", call.emit("gt", x, low), call.emit("lt", x, high))
    return call.emit("select", inside, slope, call.constant(0.0, dtype))


@op("hardsigmoid_backward.default", parameters="grad_output self", flops=4, discontinuous=True)
def hardsigmoid_backward(call: Call) -> Value:
    """g/6 between -3 and 3, else 0."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    low, high = call.constant(-3.0, dtype), call.constant(3.0, dtype)
    scaled = call.emit("mul", gradient, call.constant(_ONE_SIXTH_FLOAT32, dtype))
    return call.store(_between(call, x, low, high, scaled, dtype), dtype)


@op(
    "hardtanh_backward.default",
    parameters="grad_output self min_val max_val",
    flops=3,
    discontinuous=True,
)
def hardtanh_backward(call: Call) -> Value:
    """The gradient between the bounds, else 0."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    low, high = call.wide("min_val", dtype), call.wide("max_val", dtype)
    return call.store(_between(call, x, low, high, gradient, dtype), dtype)


@op(
    "leaky_relu_backward.default",
    parameters="grad_output self negative_slope self_is_result",
    flops=2,
    discontinuous=True,
)
def leaky_relu_backward(call: Call) -> Value:
    """The gradient above zero, else ``slope * g``."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    scaled = call.emit("mul", gradient, call.wide("negative_slope", dtype))
    positive = call.emit("gt", x, call.constant(0.0, dtype))
    return call.store(call.emit("select", positive, gradient, scaled), dtype)


@op(
    "elu_backward.default",
    parameters="grad_output alpha scale input_scale is_result self_or_result",
    flops=20,
    budget_ulp=4,
    discontinuous=True,
)
def elu_backward(call: Call) -> Value:
    """Gradient of ELU from its input or its result."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self_or_result")
    alpha, scale, input_scale = (
        call.wide(name, dtype) for name in ("alpha", "scale", "input_scale")
    )
    steep = multiply(call, alpha, scale, dtype)
    below: Value = call.emit("mul", gradient, input_scale)
    if call.flag("is_result", False):
        below = call.emit("mul", below, call.emit("add", x, steep))
    else:
        exponent = product_exponent(call, x, input_scale, dtype)
        slope = multiply(call, input_scale, steep, dtype)
        power = growth(call, gradient, exponent, dtype, also=slope)
        plain = call.emit("mul", call.emit("mul", below, steep), power.exp)
        below = power.chosen(call, plain)
    positive = call.emit("gt", x, call.constant(0.0, dtype))
    return call.store(
        call.emit("select", positive, call.emit("mul", gradient, scale), below), dtype
    )


@op(
    "softplus_backward.default",
    parameters="grad_output self beta threshold",
    flops=20,
    budget_ulp=4,
)
def softplus_backward(call: Call) -> Value:
    """Gradient g where beta*x > threshold, else g*z/(z + 1) with z = exp(beta*x)."""
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    scaled = product_exponent(call, x, call.wide("beta", dtype), dtype)
    z = growth(call, gradient, scaled, dtype)
    whole = call.emit("add", z.exp, call.constant(1.0, dtype))
    soft = z.chosen(call, call.emit("div", call.emit("mul", gradient, z.exp), whole))
    linear = call.emit("gt", scaled.value, call.wide("threshold", dtype))
    return call.store(call.emit("select", linear, gradient, soft), dtype)


@op(
    "mish_backward.default",
    parameters="grad_output self",
    flops=70,
    budget_ulp=4,
    error_scale="operand",
    note="tanh + x s (1 - tanh²) cancels around x = -1.2; eager is 16 ULP off: its rounding of "
    "tanh near 1 comes 2x times into the slope up to x = 8",
)
def mish_backward(call: Call) -> Value:
    """``g * (t + x s (1 - t*t))`` with t = tanh(softplus(x))."""
    call.one_dtype("grad_output", "self")
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    if dtype == "float32":
        return call.store(call.emit("mul", gradient, _mish_slope(call, x, dtype)), dtype)
    sigmoid = sigmoid_of(call, x, dtype)
    tanh = call.emit("tanh", call.emit("log1p", call.emit("exp", x)))
    slope = call.emit(
        "fma", call.emit("mul", x, sigmoid), _square_from_one(call, tanh, dtype), tanh
    )
    return call.store(call.emit("mul", gradient, slope), dtype)


def _mish_slope(call: Call, x: Value, dtype: str) -> Value:
    """n/(n + 2) + 4x e/(n + 2) (e + 1)/(n + 2), with e = exp(x) and n = e(e + 2)."""
    # From 30 on it is 1, before anything overflows; and NaN at infinity, as eager's.
    linear = call.constant(_MISH_IS_LINEAR, dtype)
    exp, two = call.emit("exp", call.emit("minimum", linear, x)), call.constant(2.0, dtype)
    growth = call.emit("mul", exp, call.emit("add", exp, two))
    whole = call.emit("add", growth, two)
    share = call.emit("div", exp, whole)
    is_linear, zero = call.emit("gt", x, linear), call.constant(0.0, dtype)
    steep = call.emit("mul", x, call.emit("select", is_linear, zero, share))
    rest = call.emit("div", call.emit("add", exp, call.constant(1.0, dtype)), whole)
    quarter = call.emit("mul", steep, rest)
    return call.emit("fma", call.constant(4.0, dtype), quarter, call.emit("div", growth, whole))


@op("log_sigmoid_backward.default", parameters="grad_output self buffer", flops=8)
def log_sigmoid_backward(call: Call) -> Value:
    """The gradient times 1 - z/(1 + z) below zero and z/(1 + z) above, z being the buffer.

    On a GPU the buffer has no elements, and the call is refused for its shape.
    """
    dtype, (gradient, x, z) = _inputs(call, "grad_output", "self", "buffer")
    one, zero = call.constant(1.0, dtype), call.constant(0.0, dtype)
    share = call.emit("div", z, call.emit("add", one, z))
    negative = call.emit("lt", x, zero)
    # (0 - (-1) z/(1 + z) in eager: no negative zero comes of it.)
    above = call.emit("add", zero, share)
    slope = call.emit("select", negative, call.emit("sub", one, share), above)
    return call.store(call.emit("mul", slope, gradient), dtype)


@op(
    "logit_backward.default",
    parameters="grad_output self eps",
    flops=10,
    discontinuous=True,
)
def logit_backward(call: Call) -> Value:
    """``g / (x (1 - x))``; outside of eps to 1 - eps 0, without eps NaN outside of 0 to 1.

    16 bits round every step.
    """
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    one = call.constant(1.0, dtype)
    given = call.has("eps")
    low = call.rounded("eps", dtype, 0.0)
    high = call.round_step(call.emit("sub", one, low), dtype) if given else one
    outside = call.constant(0.0 if given else math.nan, dtype)
    rest = call.round_step(call.emit("sub", one, x), dtype)
    slope = call.emit("div", gradient, call.round_step(call.emit("mul", x, rest), dtype))
    is_outside = call.emit("or", call.emit("lt", x, low), call.emit("gt", x, high))
    return call.store(call.emit("select", is_outside, outside, slope), dtype)


@op("_prelu_kernel_backward.default", parameters="grad_output self weight", flops=4)
def prelu_backward(call: Call) -> tuple[Value, Value]:
    """Gradients of input and weight: g and 0 above zero, else ``weight * g`` and ``x * g``."""
    dtype, (gradient, x, weight) = _inputs(call, "grad_output", "self", "weight")
    positive, zero = call.emit("gt", x, call.constant(0.0, dtype)), call.constant(0.0, dtype)
    of_input = call.emit("select", positive, gradient, call.emit("mul", weight, gradient))
    of_weight = call.emit("select", positive, zero, call.emit("mul", x, gradient))
    return call.store(of_input, dtype), call.store(of_weight, dtype)


@op(
    "rrelu_with_noise_backward.default",
    parameters="grad_output self noise lower upper training self_is_result",
    flops=2,
    discontinuous=True,
)
def rrelu_backward(call: Call) -> Value:
    """In training ``noise * g``; else leaky_relu's, its slope in the middle of the bounds."""
    lower, upper = (float(call.number(name, 0.0)) for name in ("lower", "upper"))
    if call.flag("training", False):  # however near the bounds, and in any order
        dtype, (gradient, noise) = _inputs(call, "grad_output", "noise")
        return call.store(call.emit("mul", gradient, noise), dtype)
    dtype, (gradient, x) = _inputs(call, "grad_output", "self")
    scaled = call.emit("mul", gradient, call.constant((lower + upper) / 2, dtype))
    positive = call.emit("gt", x, call.constant(0.0, dtype))
    return call.store(call.emit("select", positive, gradient, scaled), dtype)


@op("native_dropout_backward.default", parameters="grad_output mask scale", flops=2)
def native_dropout_backward(call: Call) -> Value:
    """``g * mask * scale``."""
    dtype = call.require_float(call.same_dtype("grad_output"))
    gradient = call.load("grad_output", dtype)
    kept = call.load("mask", dtype)
    product = call.round_step(call.emit("mul", gradient, kept), dtype)
    return call.store(call.emit("mul", product, call.wide("scale", dtype)), dtype)
