"""Chains that are fused and run on a CUDA device, with inputs of a size that memory decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import fusion_advisor as fa
from fusion_advisor.advice import Advice
from fusion_advisor.runtime import load_kernel


def gelu_written_out(x: torch.Tensor) -> torch.Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def silu_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def bias_relu_scale(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + bias) * scale


@dataclass(frozen=True)
class DeviceChain:
    """A chain of elementwise ops, and its inputs on a device."""

    name: str
    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    def inputs(self, device: str) -> tuple[torch.Tensor, ...]:
        """Random inputs, the same ones each time."""
        torch.manual_seed(0)
        return tuple(torch.randn(shape).to(device, self.dtype) for shape in self.shapes)


_BIG, _ROW = (4096, 3072), (3072,)
CHAINS = (
    DeviceChain("tanh-GELU float32", gelu_written_out, (_BIG,), torch.float32),
    DeviceChain("tanh-GELU bfloat16", gelu_written_out, (_BIG,), torch.bfloat16),
    DeviceChain("SiLU gate float16", silu_gate, (_BIG, _BIG), torch.float16),
    DeviceChain("bias, ReLU, scale float32", bias_relu_scale, (_BIG, _ROW, _ROW), torch.float32),
)


def profiled(chain: DeviceChain, device: str) -> tuple[Advice, tuple[torch.Tensor, ...]]:
    """Advice on one call of the chain, and the call's inputs."""
    inputs = chain.inputs(device)
    with torch.no_grad():
        advice = fa.profile(chain.function, args=inputs, title=chain.name)
    assert advice.report.findings, advice.report.nothing
    return advice, inputs


def fused_function(advice: Advice) -> Any:
    """The loaded fused function of the first finding."""
    kernel = advice.fuse(advice.report.findings[0].id)
    return load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
