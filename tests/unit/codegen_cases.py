"""Small functions whose chains are recorded, lowered and generated in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusion_advisor.analysis import find_candidates
from fusion_advisor.codegen import generate, lower
from fusion_advisor.recorder import CaptureOptions, record, replay
from fusion_advisor.records import FusedProgram, FusionCandidate, KernelSource, OpGraph


class Chain:
    """The one candidate of a recorded function, its program and kernel."""

    def __init__(
        self,
        function: Callable[..., Any],
        *args: torch.Tensor,
        name: str = "fused_chain",
        **options: Any,
    ) -> None:
        def run() -> Any:
            with torch.no_grad():
                return function(*args)

        self.recording = record(run, CaptureOptions())
        self.graph: OpGraph = self.recording.graph
        candidates = find_candidates(self.graph)
        assert len(candidates) == 1, [c.nodes for c in candidates]
        self.candidate: FusionCandidate = candidates[0]
        self.program: FusedProgram = lower(self.graph, self.candidate, name=name, **options)
        self.kernel: KernelSource = generate(self.program, self.graph)

    def arguments(self) -> tuple[Any, ...]:
        """The captured operands and numbers, in the program's order."""
        tensors = [str(p.value) for p in self.program.inputs if p.kind == "tensor"]
        values = replay.materialize(self.graph, self.recording.store, tensors)
        return tuple(
            values[str(p.value)] if p.kind == "tensor" else p.value for p in self.program.inputs
        )


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def scaled_bias(x: torch.Tensor, bias: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + bias) * rows


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def rounded_chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = x * y + 0.1
    return total, torch.relu(total) - y


def masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where((x > y) & (y > -1.0), x, y * 2.0).logical_not()


def integers(i: torch.Tensor) -> torch.Tensor:
    return torch.remainder(i * 3 - 7, 5).to(torch.int32) + 1
