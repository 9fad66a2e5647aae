"""Recipes of pointwise losses and of their backward formulas, where nothing is reduced.

Eager computes some of them by one kernel, which rounds at its end, and some by way of several
ops, each of which rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from fusion_advisor.ops.activations import minus_softplus, multiply
from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import HALF_DTYPES
from fusion_advisor.ops.exponentials import Exponent, exp_of, growth, product_exponent
from fusion_advisor.ops.scalars import Value
from fusion_advisor.ops.table import op

_MEAN, _SUM = 1, 2


def _floats(call: Call, *names: str) -> tuple[str, list[Value]]:
    """The dtype and the loaded operands."""
    dtype = call.require_float(call.one_dtype(*names))
    return dtype, [call.load(name, dtype) for name in names]


def _unreduced(call: Call) -> None:
    """Refuse a call whose result is one number."""
    if call.number("reduction", _MEAN) in (_MEAN, _SUM):
        raise call.refuse("it sums its elements up; reduction='none' does not")


def _not_averaged(call: Call) -> None:
    """Refuse a gradient that is divided by how many elements there happen to be."""
    if call.number("reduction", _MEAN) == _MEAN:
        raise call.refuse("it divides by the number of elements, and a kernel serves all sizes")


def _times(call: Call, left: Value, right: Value, dtype: str) -> Value:
    """A product that eager rounds."""
    return call.round_step(call.emit("mul", left, right), dtype)


@op("mse_loss.default", parameters="self target reduction", flops=2)
def mse_loss(call: Call) -> Value:
    """``(self - target)²``, the difference rounded."""
    _unreduced(call)
    dtype, (x, target) = _floats(call, "self", "target")
    difference = call.round_step(call.emit("sub", x, target), dtype)
    return call.store(call.emit("mul", difference, difference), dtype)


def _rounding(call: Call, dtype: str, where: str) -> Callable[[Value], Value]:
    """Rounds a step where ``dtype`` is the one in which eager rounds every step."""
    if dtype != where:
        return lambda value: value
    return lambda value: call.round_step(value, dtype)


@op("smooth_l1_loss.default", parameters="self target reduction beta", flops=10)
def smooth_l1_loss(call: Call) -> Value:
    """0.5 d²/beta below beta, d - 0.5 beta from there on, with d = |self - target|.

    float16 rounds every step.
    """
    _unreduced(call)
    dtype, (x, target) = _floats(call, "self", "target")
    step = _rounding(call, dtype, "float16")
    beta, half = step(call.wide("beta", dtype, 1.0)), call.constant(0.5, dtype)
    distance = call.emit("abs", step(call.emit("sub", x, target)))
    square = step(call.emit("mul", step(call.emit("mul", half, distance)), distance))
    near = call.emit("div", square, beta)
    far = call.emit("sub", distance, step(multiply(call, half, beta, dtype)))
    is_near = call.emit("lt", distance, beta)
    return call.store(call.emit("select", is_near, near, far), dtype)


@op("huber_loss.default", parameters="self target reduction delta", flops=8)
def huber_loss(call: Call) -> Value:
    """0.5 d² up to delta, delta (d - 0.5 delta) beyond, with d = |self - target|.

    bfloat16 rounds every step.
    """
    _unreduced(call)
    dtype, (x, target) = _floats(call, "self", "target")
    step = _rounding(call, dtype, "bfloat16")
    delta, half = step(call.wide("delta", dtype, 1.0)), call.constant(0.5, dtype)
    distance = call.emit("abs", step(call.emit("sub", x, target)))
    near = call.emit("mul", step(call.emit("mul", half, distance)), distance)
    rest = call.emit("sub", distance, step(multiply(call, half, delta, dtype)))
    far = call.emit("mul", delta, step(rest))
    is_near = call.emit("le", distance, delta)
    return call.store(call.emit("select", is_near, near, far), dtype)


def _margin(call: Call, x: Value, target: Value, dtype: str) -> Exponent:
    """``-target * x``, rounded as eager does in 16 bits."""
    exponent = product_exponent(call, call.emit("neg", target), x, dtype)
    return Exponent(call.round_step(exponent.value, dtype), exponent.rest)


@op(
    "soft_margin_loss.default",
    parameters="self target reduction",
    flops=30,
    budget_ulp=4,
    half_steps=True,
    note="the rounding of the product, worth up to |target x| = 104 ULP of its exponential, is put "
    "back in float32, which eager does not",
)
def soft_margin_loss(call: Call) -> Value:
    """``log1p(exp(-target * self))``; 16 bits round every step."""
    _unreduced(call)
    dtype, (x, target) = _floats(call, "self", "target")
    exponent = _margin(call, x, target, dtype)
    growth = call.round_step(exp_of(call, exponent, dtype), dtype)
    return call.store(call.emit("log1p", growth), dtype)


@op(
    "binary_cross_entropy_with_logits.default",
    parameters="self target weight pos_weight reduction",
    flops=40,
    budget_ulp=4,
    error_scale="operand",
    half_steps=True,
    note="(1 - target) x - log sigmoid(x) cancels; every step is rounded",
)
def binary_cross_entropy_with_logits(call: Call) -> Value:
    """(1 - target) x - w log sigmoid(x), with w = (pos_weight - 1) target + 1."""
    _unreduced(call)
    dtype, (x, target) = _floats(call, "self", "target")
    call.one_dtype("self", *(name for name in ("weight", "pos_weight") if call.has(name)))
    one = call.constant(1.0, dtype)
    likelihood: Value = call.round_step(minus_softplus(call, x, dtype)[0], dtype)
    if call.has("pos_weight"):
        more = call.round_step(call.emit("sub", call.load("pos_weight", dtype), one), dtype)
        factor = call.emit("add", _times(call, more, target, dtype), one)
        likelihood = _times(call, likelihood, call.round_step(factor, dtype), dtype)
    rest = call.round_step(call.emit("sub", one, target), dtype)
    loss: Value = call.emit("sub", _times(call, rest, x, dtype), likelihood)
    if call.has("weight"):
        loss = call.emit("mul", call.round_step(loss, dtype), call.load("weight", dtype))
    return call.store(loss, dtype)


@op("mse_loss_backward.default", parameters="grad_output self target reduction", flops=3)
def mse_loss_backward(call: Call) -> Value:
    """``2 (self - target) * gradient``, every step rounded."""
    _not_averaged(call)
    dtype, (gradient, x, target) = _floats(call, "grad_output", "self", "target")
    difference = call.round_step(call.emit("sub", x, target), dtype)
    slope = _times(call, call.constant(2.0, dtype), difference, dtype)
    return call.store(call.emit("mul", slope, gradient), dtype)


def _clipped(
    call: Call, value: Value, bound: Value, near: Value, most: Value, compare: tuple[str, str]
) -> Value:
    """``near``; ``most`` where the value is above the bound, ``-most`` below its negative."""
    is_above, is_below = compare
    above = call.emit("select", call.emit(is_above, value, bound), most, near)
    below = call.emit(is_below, value, call.emit("neg", bound))
    return call.emit("select", below, call.emit("neg", most), above)


@op(
    "smooth_l1_loss_backward.default",
    parameters="grad_output self target reduction beta",
    flops=6,
    budget_ulp=1,
    discontinuous=True,
    note="eager's vector body divides before it multiplies, its tail after",
)
def smooth_l1_loss_backward(call: Call) -> Value:
    """The gradient times d/beta between -beta and beta, with its sign beyond."""
    _not_averaged(call)
    dtype, (gradient, x, target) = _floats(call, "grad_output", "self", "target")
    beta = call.wide("beta", dtype)
    difference = call.emit("sub", x, target)
    if dtype in HALF_DTYPES:
        near = call.emit("div", call.emit("mul", difference, gradient), beta)
    else:
        near = call.emit("mul", call.emit("div", difference, beta), gradient)
    return call.store(_clipped(call, difference, beta, near, gradient, ("ge", "le")), dtype)


@op(
    "huber_loss_backward.default",
    parameters="grad_output self target reduction delta",
    flops=6,
    budget_ulp=1,
    discontinuous=True,
    note="eager's vector body rounds delta, and in 16 bits the difference, which its tail does not",
)
def huber_loss_backward(call: Call) -> Value:
    """The gradient times d between -delta and delta, times delta with its sign beyond."""
    _not_averaged(call)
    dtype, (gradient, x, target) = _floats(call, "grad_output", "self", "target")
    delta = call.rounded("delta", dtype, 1.0)
    difference = call.round_step(call.emit("sub", x, target), dtype)
    near = call.emit("mul", difference, gradient)
    most = call.emit("mul", gradient, delta)
    return call.store(_clipped(call, difference, delta, near, most, ("gt", "lt")), dtype)


@op(
    "soft_margin_loss_backward.default",
    parameters="grad_output self target reduction",
    flops=26,
    budget_ulp=4,
)
def soft_margin_loss_backward(call: Call) -> Value:
    """``-target z / (1 + z) * gradient`` with z = exp(-target * self), every step rounded."""
    _not_averaged(call)
    dtype, (gradient, x, target) = _floats(call, "grad_output", "self", "target")
    minus = call.emit("neg", target)
    # Where z is tiny only a huge gradient leaves anything: by it first.
    z = growth(call, gradient, _margin(call, x, target, dtype), dtype, also=minus)
    power = call.round_step(z.exp, dtype)
    whole = call.round_step(call.emit("add", call.constant(1.0, dtype), power), dtype)
    slope = call.round_step(call.emit("div", _times(call, minus, power, dtype), whole), dtype)
    return call.store(z.chosen(call, call.emit("mul", slope, gradient)), dtype)
