"""The pointwise chains of real models that kernels are raced on, and one torch op beside each.

A chain takes tensors and gives one tensor or several.  ``one_op`` is a single torch op on the same
operands (one for each result, where there are several): what a fused kernel can hope for where
memory decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Inputs = tuple[torch.Tensor, ...]
COLUMNS = 1000  # of the (rows, columns) tensors; rows follow from the number of elements


@dataclass(frozen=True)
class Chain:
    """A named chain.  ``inputs(n, dtype)`` makes its operands; ``n`` counts elements of a result.

    ``reads`` and ``writes`` count full-size tensors.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[int, torch.dtype], Inputs]
    one_op: Callable[..., Any]
    reads: int
    writes: int = 1


def _full(count: int, *, rows: int = 0, columns: int = 0) -> Callable[[int, torch.dtype], Inputs]:
    """``count`` full tensors, then ``columns`` row vectors, then ``rows`` column vectors."""

    def make(n: int, dtype: torch.dtype) -> Inputs:
        width = min(n, COLUMNS)
        shapes = [(n // width, width)] * count
        shapes += [(width,)] * columns  # type: ignore[list-item]
        shapes += [(n // width, 1)] * rows
        return tuple(torch.randn(shape).to(dtype) for shape in shapes)

    return make


def bias_gelu_tanh(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GPT-2's activation, written out as its authors did."""
    y = x + bias
    return 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))


def bias_gelu_erf(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """BERT's activation, written out."""
    y = x + bias
    return y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0)))


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Llama's gate."""
    return torch.nn.functional.silu(gate) * up


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """CLIP's activation."""
    return x * torch.sigmoid(1.702 * x)


def residual_scale(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """A scaled branch added to the stream, as in Inception-ResNet and Granite."""
    return residual + x * 0.22


def rope(
    first: torch.Tensor, second: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding of the two halves of each head."""
    return first * cos - second * sin, second * cos + first * sin


def _rope_inputs(n: int, dtype: torch.dtype) -> Inputs:
    half = 50  # of a head's width; n counts the elements of one result
    length = min(200, n // half)
    heads = max(1, n // (half * length))
    first, second = torch.randn(heads, length, 2 * half).to(dtype).chunk(2, dim=-1)
    angles = torch.randn(length, half)
    return first, second, angles.cos().to(dtype), angles.sin().to(dtype)


def rms_norm_scale(x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """The pointwise part of RMSNorm, the mean of squares given per row."""
    return weight * (x * torch.rsqrt(mean.abs() + 1e-6))


def modulate(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """AdaLN's modulation in DiT."""
    return x * (1 + scale) + shift


def soft_cap(x: torch.Tensor) -> torch.Tensor:
    """Gemma 2's cap on logits."""
    return torch.tanh(x / 30.0) * 30.0


def dropout_eval(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """Dropout at inference as some models write it: scaled by what is kept, then added."""
    return (x * 0.9 + residual) * 0.5


def adam_update(
    parameter: torch.Tensor, gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of Adam, out of place."""
    mean = mean * 0.9 + gradient * 0.1
    square = square.abs() * 0.999 + gradient * gradient * 0.001
    return parameter - 1e-3 * mean / (torch.sqrt(square) + 1e-8), mean, square


def hardswish(x: torch.Tensor) -> torch.Tensor:
    """MobileNetV3's activation, written out."""
    return x * torch.clamp(x + 3.0, 0.0, 6.0) / 6.0


def focal_terms(logit: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Terms of the focal loss before the sum."""
    p = torch.sigmoid(logit)
    entropy = torch.clamp_min(logit, 0.0) - logit * target + torch.log1p(torch.exp(-logit.abs()))
    p_t = p * target + (1 - p) * (1 - target)
    return entropy * (1 - p_t) ** 2


def mask_scale(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention scores before the softmax."""
    return torch.where(mask > 0, scores * 0.125, -10000.0)


def layer_scale(x: torch.Tensor, residual: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """ConvNeXt's and CaiT's LayerScale on a residual branch."""
    return residual + gamma * x


def bias_relu_mul_add(
    x: torch.Tensor, other: torch.Tensor, bias: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    """Bias, ReLU, a gate and a shift."""
    return torch.relu(x + bias) * other + shift


def _half(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def _add(x: torch.Tensor, y: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x + y


def _mul(x: torch.Tensor, y: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    return x * y


def _addcmul(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(x, y, z)


def _two(first: torch.Tensor, second: torch.Tensor, cos: torch.Tensor, _: torch.Tensor) -> Inputs:
    return first * cos, second * cos


def _three(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, s: torch.Tensor) -> Inputs:
    return p + g, m + s, g * 0.5


CHAINS = (
    Chain("bias-GELU tanh", bias_gelu_tanh, _full(1, columns=1), _add, 1),
    Chain("bias-GELU erf", bias_gelu_erf, _full(1, columns=1), _add, 1),
    Chain("SwiGLU", swiglu, _full(2), _mul, 2),
    Chain("quick-GELU", quick_gelu, _full(1), _half, 1),
    Chain("residual scale", residual_scale, _full(2), _add, 2),
    Chain("RoPE", rope, _rope_inputs, _two, 2, 2),
    Chain("RMSNorm scale", rms_norm_scale, _full(1, columns=1, rows=1), _mul, 1),
    Chain("AdaLN modulate", modulate, _full(1, columns=2), _addcmul, 1),
    Chain("logit soft-cap", soft_cap, _full(1), _half, 1),
    Chain("dropout eval", dropout_eval, _full(2), _add, 2),
    Chain("Adam update", adam_update, _full(4), _three, 4, 3),
    Chain("hardswish", hardswish, _full(1), _half, 1),
    Chain("focal-loss terms", focal_terms, _full(2), _mul, 2),
    Chain("mask, scale", mask_scale, _full(2), _mul, 2),
    Chain("layer scale", layer_scale, _full(2, columns=1), _addcmul, 2),
    Chain("bias, ReLU, mul, add", bias_relu_mul_add, _full(2, columns=2), _mul, 2),
)
