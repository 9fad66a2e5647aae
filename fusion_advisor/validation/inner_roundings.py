"""What the roundings within one op come to, where its operands are not those that eager had.

A kernel gives eager's bits for eager's operands.  Where an operand may be another one, an op of n
roundings is up to n half ULP off the true value there, each at the size of what is rounded: of the
result, or of the terms where these may cancel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusion_advisor.ops import functional_name
from fusion_advisor.records import OpNode
from fusion_advisor.validation.intervals import ulp

# Roundings within an op, where more than one (a factor that is rounded to the dtype counts twice:
# its error is relative to the result).
_ROUNDINGS = {
    "addcdiv": 3, "addcmul": 2, "deg2rad": 3, "hardsigmoid": 3, "hardsigmoid_backward": 2,
    "hardswish": 4, "hardswish_backward": 4, "huber_loss": 4, "lerp": 3, "log_sigmoid_backward": 4,
    "logit_backward": 4, "mse_loss": 2, "mse_loss_backward": 3, "native_dropout_backward": 2,
    "_prelu_kernel_backward": 2, "rad2deg": 3, "sigmoid_backward": 3, "smooth_l1_loss": 4,
    "tanh_backward": 3,
}  # fmt: skip
_SUMS = frozenset("add addcdiv addcmul lerp rsub sub".split())  # of these the terms may cancel

# ULP that eager's own slopes are off in float64, where they take an error near 1 times x: of the
# tanh GELU up to 41 times before the tanh is 1 itself (at 6.9), of mish 2 x up to 18.7, of silu x
# up to 36.7.
_FLOAT64_OFF = {"gelu_backward": 41.0, "mish_backward": 40.0, "silu_backward": 37.0}


def inner_room(
    node: OpNode,
    eager: Mapping[str, torch.Tensor],
    value: str,
    low: torch.Tensor,
    high: torch.Tensor,
) -> torch.Tensor | None:
    """Room on either side of an image from ``low`` to ``high``; None for an op that rounds once."""
    result = eager[value]
    roundings = _roundings(node)
    if roundings < 2 or not result.dtype.is_floating_point:
        return None
    size = torch.fmax(low.abs(), high.abs())
    if functional_name(node.op).split(".")[1] in _SUMS:
        wide = result.to(torch.float64)
        for name in node.inputs:
            term = eager[name].to(torch.float64)
            terms = torch.fmax(term.abs(), (wide - term).abs()).broadcast_to(size.shape)
            size = torch.fmax(size, torch.nan_to_num(terms, posinf=0.0))
    halves = (torch.float16, torch.bfloat16)
    computed = torch.float32 if result.dtype in halves else result.dtype
    return roundings / 2 * ulp(size, computed)


def eager_off(node: OpNode) -> float:
    """How far eager's own float64 result may be from the true one, in ULP."""
    base = functional_name(node.op).split(".")[1]
    if base == "gelu_backward" and not any(item == "tanh" for _, item in node.kwargs):
        return 1.0
    return _FLOAT64_OFF.get(base, 1.0)


def _roundings(node: OpNode) -> int:
    base = functional_name(node.op).split(".")[1]
    if base in ("add", "sub", "rsub"):
        scaled = len(node.args) > 2 or any(name == "alpha" for name, _ in node.kwargs)
        return 2 if scaled else 1
    return _ROUNDINGS.get(base, 1)
