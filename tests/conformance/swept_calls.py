"""What the accuracy sweep covers: one call of each op of the table, and the true value of each.

A call names an overload and its arguments; ``X`` and ``Y`` stand for tensors.  Every row of the
op table whose schema needs one or two float tensors and nothing else has a call made here by
itself; calls that need numbers are written out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusion_advisor import ops
from fusion_advisor.records import OpNode, ValueRef
from fusion_advisor.validation.aten import with_rounded_numbers
from fusion_advisor.validation.budgets import table_budget

X, Y = "x", "y"
Reference = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class SweptCall:
    """One call: ``op`` with ``args``, in which X and Y are tensors; named as a person reads it."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def arity(self) -> int:
        return 2 if Y in self.args else 1

    @property
    def name(self) -> str:
        words = [str(arg) for arg in self.args]
        words += [f"{key}={str(value).removeprefix('torch.')}" for key, value in self.kwargs]
        return f"{self.op.removeprefix('aten.')}({', '.join(words)})"

    @property
    def info(self) -> ops.OpInfo:
        found = ops.lookup(self.op)
        assert found is not None
        return found

    @property
    def second_in_unit(self) -> bool:
        """Whether the second operand is a probability: outside of 0 … 1 the op has no meaning."""
        return self.op == "aten.binary_cross_entropy_with_logits.default"

    @property
    def budget_ulp(self) -> float:
        """The op table's budget of this call."""
        return table_budget(self.node)

    @property
    def node(self) -> OpNode:
        """The call as an op of a graph, of one result."""
        names = (X, Y)[: self.arity]

        def argument(value: Any) -> Any:
            return ValueRef(value=value) if isinstance(value, str) and value in names else value

        return OpNode(
            id="n0", index=0, op=self.op, args=tuple(map(argument, self.args)),
            kwargs=self.kwargs, inputs=names, outputs=("r0",), kind=self.info.kind,
        )  # fmt: skip

    def run(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Eager's result; the first one of several."""
        return self.results(*tensors)[0]

    def results(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All of eager's results."""
        named = dict(zip((X, Y), tensors, strict=False))
        # Only strings are looked up: a number may equal none of them, a dtype has no hash problem.
        args = [named.get(arg, arg) if isinstance(arg, str) else arg for arg in self.args]
        result = overload(self.op)(*args, **dict(self.kwargs))
        return result if isinstance(result, tuple) else (result,)


@functools.cache
def overload(op: str) -> Any:
    """torch's callable of a full overload name."""
    _, base, name = op.split(".")
    return getattr(getattr(torch.ops.aten, base), name)


_NUMBERED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("add.Scalar", (X, 0.7)),
    ("sub.Scalar", (X, 0.7)),
    ("rsub.Scalar", (X, 0.1)),
    ("mul.Scalar", (X, 3.3)),
    ("div.Scalar", (X, 3.3)),
    ("copysign.Scalar", (X, -1.0)),
    ("fmod.Scalar", (X, -0.7)),
    ("remainder.Scalar", (X, 0.3)),
    ("remainder.Scalar_Tensor", (7.3, X)),
    ("floor_divide.Scalar", (X, 0.3)),
    ("floor_divide.default", (X, 0.3)),
    ("add.Tensor", (X, 0.7)),
    ("mul.Tensor", (X, 3.3)),
    ("div.Tensor", (X, 3.3)),
    *((f"{name}.Scalar", (X, 0.1)) for name in ("lt", "le", "gt", "ge", "eq", "ne")),
    *(("pow.Tensor_Scalar", (X, p)) for p in (2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.7, 4.0, -3.0)),
    *(("pow.Scalar", (base, X)) for base in (2.0, 0.3, 10.0)),
    ("xlogy.Scalar_Self", (1.7, X)),
    ("xlogy.Scalar_Other", (X, 1.7)),
    ("special_xlog1py.self_scalar", (1.7, X)),
    ("special_xlog1py.other_scalar", (X, 1.7)),
    ("clamp.default", (X, -0.7, 0.6)),
    ("clamp_min.default", (X, 0.1)),
    ("clamp_max.default", (X, 0.1)),
    ("threshold.default", (X, 0.1, 0.3)),
    ("elu.default", (X, 1.5, 1.2, 0.7)),
    ("softplus.default", (X, 2.0, 3.0)),
    ("softplus.default", (X, 0.7, 20.0)),
    ("logit.default", (X, 0.1)),
    ("binary_cross_entropy_with_logits.default", (X, Y, None, None, 0)),
    ("soft_margin_loss.default", (X, Y, 0)),
    ("mse_loss.default", (X, Y, 0)),
    ("huber_loss.default", (X, Y, 0, 0.7)),
    ("smooth_l1_loss.default", (X, Y, 0, 0.7)),
    ("softplus_backward.default", (X, Y, 1.0, 20.0)),
    ("softplus_backward.default", (X, Y, 0.7, 20.0)),
    ("elu_backward.default", (X, 1.0, 1.0, 1.0, False, Y)),
    ("elu_backward.default", (X, 1.5, 1.2, 0.7, False, Y)),
    ("elu_backward.default", (X, 1.0, 1.0, 1.0, True, Y)),
    ("threshold_backward.default", (X, Y, 0.0)),
    ("hardtanh_backward.default", (X, Y, -1.0, 1.0)),
    ("leaky_relu_backward.default", (X, Y, 0.01, False)),
)
_KEYED: tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...] = (
    ("gelu.default", (X,), (("approximate", "tanh"),)),
    ("gelu_backward.default", (X, Y), (("approximate", "tanh"),)),
    ("add.Tensor", (X, Y), (("alpha", 0.3),)),
    ("sub.Tensor", (X, Y), (("alpha", 0.7),)),
    ("round.decimals", (X,), (("decimals", 3),)),
    ("round.decimals", (X,), (("decimals", -2),)),
    ("div.Tensor_mode", (X, Y), (("rounding_mode", "floor"),)),
    ("div.Tensor_mode", (X, Y), (("rounding_mode", "trunc"),)),
    ("div.Scalar_mode", (X, 0.3), (("rounding_mode", "trunc"),)),
    ("div.Tensor_mode", (X, 0.3), (("rounding_mode", "floor"),)),
    ("div.Tensor_mode", (X, 0.3), (("rounding_mode", "trunc"),)),
    *(
        ("_to_copy.default", (X,), (("dtype", dtype),))
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.bool)
    ),
)
# Rows without float arguments, of another number of tensors, or whose result is an operand.
_NOT_SWEPT = {
    "alias": "a view",
    "where": "takes a bool mask",
    "masked_fill": "takes a bool mask",
    "native_dropout_backward": "takes a bool mask",
    "bitwise": "takes integers",
    "__and__": "takes integers",
    "__or__": "takes integers",
    "__xor__": "takes integers",
    "addcmul": "takes three tensors",
    "addcdiv": "takes three tensors",
    "lerp": "takes three tensors",
    "clamp.Tensor": "takes three tensors",
    "fill": "computes nothing from its operand",
    "zero": "computes nothing from its operand",
    "copy": "computes nothing from its operand",
    "full_like": "computes nothing from its operand",
    "scalar_tensor": "computes nothing from its operand",
    "native_dropout": "is random",
    "glu": "takes two elements of its operand",
    "floor_divide.Tensor": "is what floor_divide_ is called, as floor_divide.default",
    "__lshift__": "takes integers",
    "__rshift__": "takes integers",
    "gcd": "takes integers",
    "lcm": "takes integers",
    "ldexp": "takes an integer exponent",
    "_prelu_kernel_backward": "takes three tensors",
    "huber_loss_backward": "takes three tensors",
    "log_sigmoid_backward": "takes three tensors",
    "mse_loss_backward": "takes three tensors",
    "rrelu_with_noise_backward": "takes three tensors",
    "smooth_l1_loss_backward": "takes three tensors",
    "soft_margin_loss_backward": "takes three tensors",
    "clone": "computes nothing from its operand",
    "prelu": "takes a weight for each channel; _prelu_kernel is what computes",
    "positive": "computes nothing from its operand",
}
# Their schemas give every number a default, which does not make a call of them.
_NEED_NUMBERS = (
    *(
        "aten.clamp.default",
        "aten._to_copy.default",
        "aten.binary_cross_entropy_with_logits.default",
    ),
    *("aten.soft_margin_loss.default", "aten.huber_loss.default", "aten.mse_loss.default"),
    "aten.smooth_l1_loss.default",
)
# What models call most comes first: an interrupted sweep has done the most useful part.
_FIRST = (
    *("exp", "tanh", "gelu", "silu", "sigmoid", "relu", "erf", "log", "softplus", "rsqrt", "sqrt"),
    *("sin", "cos", "log1p", "expm1", "elu", "hardswish", "log_sigmoid", "leaky_relu", "exp2"),
    *("log2", "reciprocal", "selu", "celu"),
)


def not_swept(op: str) -> str:
    """Why an op of the table has no call here; "" if it should have one."""
    short = op.removeprefix("aten.")
    base = short.partition(".")[0]
    return (
        _NOT_SWEPT.get(short)
        or _NOT_SWEPT.get(base)
        or (_NOT_SWEPT["bitwise"] if base.startswith("bitwise") else "")
    )


def _plain(op: str) -> SweptCall | None:
    """The call of an op with nothing but its one or two tensors, where its schema allows it."""
    arguments = overload(op)._schema.arguments
    needed = [a for a in arguments if not a.has_default_value()]
    if not 1 <= len(needed) <= 2 or any(str(a.type) != "Tensor" for a in needed):
        return None
    return SweptCall(op, (X, Y)[: len(needed)])


def swept_calls() -> tuple[SweptCall, ...]:
    """Every call, the most used ops first, then by name; one argument before two."""
    found: dict[str, SweptCall] = {}
    for row in ops.rows():
        written_out = row.name in _NEED_NUMBERS or not_swept(row.name)
        call = None if written_out else _plain(row.name)
        if call is not None:
            found[call.name] = call
    written = [SweptCall(f"aten.{op}", args) for op, args in _NUMBERED]
    written += [SweptCall(f"aten.{op}", args, kwargs) for op, args, kwargs in _KEYED]
    found |= {call.name: call for call in written}

    def order(call: SweptCall) -> tuple[Any, ...]:
        base = call.op.split(".")[1].removesuffix("_forward")
        place = _FIRST.index(base) if base in _FIRST else len(_FIRST)
        return call.arity, place, call.budget_ulp == 0, call.name

    return tuple(sorted(found.values(), key=order))


# The true value, in float64 from the float32 operands' exact values.
# torch's own float64 op serves except where its formula cancels.


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.erfc(x * -math.sqrt(0.5))


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    value = x * torch.sigmoid(2 * inner)
    # The cube of a large number times a vanished sigmoid: 0 times inf.
    return torch.where(x < -1e10, -0.0, value)


def _gelu_tanh_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    share, rest = torch.sigmoid(2 * inner), torch.sigmoid(-2 * inner)
    return gradient * (share + 2 * x * share * rest * slope)


def _mish(x: torch.Tensor) -> torch.Tensor:
    # tanh(log(1 + e)) = e(e + 2) / (e(e + 2) + 2)
    e = torch.exp(x.clamp(max=100.0))
    n = e * (e + 2)
    return torch.where(x < -1e4, -0.0, x * (n / (n + 2)))


def _silu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x < -700.0, -0.0, torch.nn.functional.silu(x))


def _logit(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    if eps is not None:
        x = torch.where(x.isnan(), x, x.clamp(eps, 1 - eps))
    # x - (1 - x) is exact near a half, where the quotient is near 1.
    near = torch.log1p((x - (1 - x)) / (1 - x))
    return torch.where((x - 0.5).abs() < 0.25, near, torch.log(x / (1 - x)))


def _sinc(x: torch.Tensor) -> torch.Tensor:
    # sin(pi x) by the distance to the nearest integer, which is exact.
    whole = torch.round(x)
    rest = x - whole
    sign = torch.where(torch.remainder(whole, 2.0) == 1.0, -1.0, 1.0)
    sine = sign * torch.sin(math.pi * rest)
    return torch.where(x == 0, 1.0, sine / (math.pi * x))


_REFERENCES: Mapping[str, Reference] = {
    "gelu.default(x)": _gelu,
    "gelu.default(x, approximate=tanh)": _gelu_tanh,
    "gelu_backward.default(x, y, approximate=tanh)": _gelu_tanh_backward,
    "mish.default(x)": _mish,
    "silu.default(x)": _silu,
    "logit.default(x)": _logit,
    "logit.default(x, 0.1)": lambda x: _logit(x, 0.1),
    "sinc.default(x)": _sinc,
}


def reference(call: SweptCall, dtype: torch.dtype = torch.float32) -> Reference:
    """The true value of a call, from float64 operands, to well below a float32 ULP.

    Numbers among the arguments count as eager takes them: rounded.
    """
    found = _REFERENCES.get(call.name)
    if found is not None:
        return found
    node = with_rounded_numbers(call.node, dtype)
    args = tuple(arg.value if isinstance(arg, ValueRef) else arg for arg in node.args)
    return replace(call, args=args, kwargs=node.kwargs).run
