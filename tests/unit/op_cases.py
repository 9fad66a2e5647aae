"""Calls of every supported overload, and a node built from each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fusion_advisor import ops
from fusion_advisor.records import Argument, OpNode, Symbol, ValueRef

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
X, Y, Z, POSITIVE, UNIT, MASK = "x", "y", "z", "positive", "unit", "mask"


@dataclass(frozen=True)
class Case:
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "".join(f",{key}={value}" for key, value in self.kwargs.items())
        return f"{self.op}({','.join(map(str, self.args))}{extra})"


def _cases() -> list[Case]:
    def case(op: str, *args: Any, **kwargs: Any) -> Case:
        return Case(op, args, kwargs)

    result = [
        case("add.Tensor", X, Y),
        case("add.Tensor", X, 0.1),
        case("add.Tensor", X, 2),
        case("add.Tensor", X, Y, alpha=0.3),
        case("add.Tensor", X, Y, alpha=2),
        case("sub.Tensor", X, Y),
        case("sub.Tensor", X, Y, alpha=0.7),
        case("sub.Tensor", X, 0.3),
        case("rsub.Scalar", X, 0.1),
        case("rsub.Tensor", X, Y),
        case("add.Scalar", X, 0.7),
        case("mul.Tensor", X, Y),
        case("mul.Tensor", X, 0.1),
        case("mul.Scalar", X, -0.5),
        case("div.Tensor", X, Y),
        case("div.Tensor", X, 3.3),
        case("div.Scalar", X, 16),
        case("div.Tensor_mode", X, Y, rounding_mode="floor"),
        case("div.Tensor_mode", X, Y, rounding_mode="trunc"),
        case("div.Tensor_mode", X, Y, rounding_mode=None),
        case("remainder.Tensor", X, Y),
        case("remainder.Scalar", X, 0.3),
        case("fmod.Tensor", X, Y),
        case("fmod.Scalar", X, -0.7),
        case("floor_divide.default", X, Y),
        case("floor_divide.default", X, 0.3),
        case("div.Tensor_mode", X, 0.3, rounding_mode="floor"),
        case("div.Tensor_mode", X, 0.3, rounding_mode="trunc"),
        case("pow.Scalar", 2, X),
        case("pow.Scalar", 0.3, X),
        case("pow.Scalar", 1, X),
        case("pow.Tensor_Tensor", POSITIVE, Y),
        case("addcmul.default", X, Y, Z),
        case("addcmul.default", X, Y, Z, value=0.3),
        case("addcdiv.default", X, Y, Z),
        case("addcdiv.default", X, Y, Z, value=0.3),
        case("lerp.Scalar", X, Y, 0.3),
        case("lerp.Scalar", X, Y, 0.7),
        case("lerp.Tensor", X, Y, UNIT),
        case("hypot.default", X, Y),
        case("copysign.Tensor", X, Y),
        case("copysign.Scalar", X, -1),
        case("atan2.default", X, Y),
        case("logaddexp.default", X, Y),
        case("logaddexp2.default", X, Y),
        case("xlogy.Tensor", X, POSITIVE),
        case("special_xlog1py.default", X, POSITIVE),
        case("special_entr.default", UNIT),
        case("logit.default", UNIT),
        case("logit.default", UNIT, 0.1),
        case("sinc.default", X),
        case("maximum.default", X, Y),
        case("minimum.default", X, Y),
        case("fmax.default", X, Y),
        case("fmin.default", X, Y),
        case("max.other", X, Y),
        case("min.other", X, Y),
        case("clamp.default", X, -0.7, 0.6),
        case("clamp.default", X, None, 0.5),
        case("clamp.default", X, -0.5),
        case("clamp.Tensor", X, Y, Z),
        case("clamp_min.default", X, 0.1),
        case("clamp_max.default", X, 0.1),
        case("clamp_min.Tensor", X, Y),
        case("clamp_max.Tensor", X, Y),
        case("gelu.default", X),
        case("gelu.default", X, approximate="tanh"),
        case("hardtanh.default", X),
        case("hardtanh.default", X, -0.3, 0.9),
        case("leaky_relu.default", X),
        case("leaky_relu.default", X, 0.1),
        case("elu.default", X),
        case("elu.default", X, 1.5, 1.2, 0.7),
        case("softplus.default", X),
        case("softplus.default", X, 2.0, 3.0),
        case("threshold.default", X, 0.1, 0.3),
        case("softshrink.default", X, 0.3),
        case("hardshrink.default", X, 0.3),
        case("_prelu_kernel.default", X, Y),
        case("log_sigmoid_forward.default", X),
        case("round.decimals", X, decimals=3),
        case("round.decimals", X, decimals=0),
        case("nan_to_num.default", X),
        case("nan_to_num.default", X, 0.1, 9.0, -9.0),
        case("heaviside.default", X, Y),
        case("where.self", MASK, X, Y),
        case("masked_fill.Scalar", X, MASK, 0.1),
        case("fill.Scalar", X, 0.1),
        case("copy.default", X, Y),
        case("threshold_backward.default", X, Y, 0),
        case("threshold_backward.default", X, Y, 0.1),
        case("tanh_backward.default", X, UNIT),
        case("sigmoid_backward.default", X, UNIT),
        case("silu_backward.default", X, Y),
        case("gelu_backward.default", X, Y),
        case("gelu_backward.default", X, Y, approximate="tanh"),
        case("hardswish_backward.default", X, Y),
        case("hardsigmoid_backward.default", X, Y),
        case("hardtanh_backward.default", X, Y, -0.1, 0.3),
        case("leaky_relu_backward.default", X, Y, 0.1, False),
        case("elu_backward.default", X, 1.5, 1.2, 0.7, False, Y),
        case("elu_backward.default", X, 1.5, 1.2, 0.7, True, Y),
        case("softplus_backward.default", X, Y, 2.0, 3.0),
        case("mish_backward.default", X, Y),
        case("native_dropout_backward.default", X, MASK, 1.1),
        case("native_dropout.default", X, 0.3, False),
        case("log_sigmoid_backward.default", X, Y, UNIT),
        case("logit.default", X, 0.8),
        case("logit.default", UNIT, 1.0),
        case("logit_backward.default", X, UNIT),
        case("logit_backward.default", X, Y, 0.1),
        case("_prelu_kernel_backward.default", X, Y, Z),
        case("rrelu_with_noise_backward.default", X, Y, Z, 0.1, 0.4, True, False),
        case("rrelu_with_noise_backward.default", X, Y, Z, 0.1, 0.1, True, False),
        case("rrelu_with_noise_backward.default", X, Y, Z, 0.1, 0.4, False, False),
        case("mse_loss.default", X, Y, 0),
        case("smooth_l1_loss.default", X, Y, 0),
        case("smooth_l1_loss.default", X, Y, 0, 0.3),
        case("huber_loss.default", X, Y, 0),
        case("huber_loss.default", X, Y, 0, 0.3),
        case("soft_margin_loss.default", X, Y, 0),
        case("binary_cross_entropy_with_logits.default", X, UNIT, None, None, 0),
        case("binary_cross_entropy_with_logits.default", X, UNIT, Y, Z, 0),
        case("mse_loss_backward.default", X, Y, Z, 0),
        case("mse_loss_backward.default", X, Y, Z, 2),
        case("smooth_l1_loss_backward.default", X, Y, Z, 0, 0.3),
        case("huber_loss_backward.default", X, Y, Z, 2, 0.3),
        case("soft_margin_loss_backward.default", X, Y, Z, 0),
        case("zeros_like.default", X),
        case("ones_like.default", X),
        case("full_like.default", X, 0.1),
    ]
    result += [
        case("pow.Tensor_Scalar", POSITIVE, e)
        for e in (0, 0.5, 1.0, 2, 3, -0.5, -1, -2, 4, 1.7, -3.0)
    ]
    result += [case("pow.Tensor_Scalar", X, e) for e in (2, 3.0, -1, 0.5, -0.5, -2, 0, 1)]
    result += [
        case(f"{name}.default", X)
        for name in (
            "neg",
            "abs",
            "reciprocal",
            "square",
            "relu",
            "sigmoid",
            "silu",
            "hardswish",
            "hardsigmoid",
            "relu6",
            "mish",
            "selu",
            "celu",
            "exp",
            "exp2",
            "expm1",
            "sin",
            "cos",
            "tan",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "erf",
            "erfc",
            "floor",
            "ceil",
            "trunc",
            "round",
            "frac",
            "sign",
            "sgn",
            "isnan",
            "isinf",
            "isfinite",
            "isposinf",
            "isneginf",
            "signbit",
            "logical_not",
            "clone",
            "positive",
            "angle",
            "deg2rad",
            "rad2deg",
            "zero",
        )
    ]
    result += [case(f"{name}.default", UNIT) for name in ("asin", "acos", "atanh")]
    result += [
        case(f"{name}.default", POSITIVE)
        for name in ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "acosh")
    ]
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        result += [case(f"{name}.Tensor", X, Y), case(f"{name}.Scalar", X, 0.1)]
    result += [case(f"logical_{name}.default", X, MASK) for name in ("and", "or", "xor")]
    result += [case("_to_copy.default", X, dtype=dtype) for dtype in FLOATS]
    result += [case("_to_copy.default", X, dtype=torch.bool)]
    return result


CASES = _cases()


def overload(op: str) -> Any:
    base, name = op.removeprefix("aten.").split(".")
    return getattr(getattr(torch.ops.aten, base), name)


def make_inputs(
    dtype: torch.dtype, n: int, seed: int = 0, *, special: bool = False
) -> dict[str, torch.Tensor]:
    """Random operands; with ``special``, infinities, NaN, signed zeros and extremes too."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> torch.Tensor:
        return torch.randn(n, generator=generator, dtype=torch.float64) * 3

    x, y, z, positive = normal(), normal(), normal(), normal().abs() + 1e-3
    unit = torch.rand(n, generator=generator, dtype=torch.float64)
    if special:
        inf, nan = float("inf"), float("nan")
        values = torch.tensor(
            [
                inf,
                -inf,
                nan,
                0.0,
                -0.0,
                1.0,
                -1.0,
                3.0,
                -3.0,
                0.5,
                6.0,
                1e-7,
                -1e-7,
                100.0,
                -100.0,
                1e30,
                -1e30,
                2.0,
                0.1,
                2.5,
                -0.5,
            ],
            dtype=torch.float64,
        )
        size = len(values)
        grid = torch.cartesian_prod(values, values)
        x[: size * size], y[: size * size] = grid[:, 0], grid[:, 1]
        z[:size], positive[:size], unit[:5] = values, values.abs(), values[2:7]
    tensors = {X: x, Y: y, Z: z, POSITIVE: positive, UNIT: unit}
    result = {name: value.to(dtype) for name, value in tensors.items()}
    result[MASK] = torch.rand(n, generator=generator) < 0.5
    return result


def to_argument(value: Any, name: str = "") -> Argument:
    if isinstance(value, torch.dtype):
        return Symbol(kind="dtype", name=str(value).removeprefix("torch."))
    return value  # numbers, text, None


def make_node(case: Case, names: dict[str, torch.Tensor]) -> OpNode:
    args = tuple(
        ValueRef(value=a) if isinstance(a, str) and a in names else to_argument(a)
        for a in case.args
    )
    kwargs = tuple((key, to_argument(value)) for key, value in case.kwargs.items())
    return OpNode(
        id="n0",
        index=0,
        op=f"aten.{case.op}",
        args=args,
        kwargs=kwargs,
        inputs=tuple(a.value for a in args if isinstance(a, ValueRef)),
        outputs=("out",),
        kind=ops.classify(case.op, pointwise_tag=True),
    )
