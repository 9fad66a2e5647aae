"""The right kernels that faults are planted in: chains of many shapes, dtypes and ops."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from codegen_cases import Chain, gelu_new
from validation_kernels import Problem

from fusion_advisor.codegen import generate, lower
from fusion_advisor.ops.calls import flat_arguments
from fusion_advisor.recorder import replay

F = torch.nn.functional


def _normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 2).to(dtype)


def _whole(*shape: int, dtype: torch.dtype = torch.int64, low: int = -20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(low, 40, shape, generator=generator).to(dtype)


def _bias_rows(x: Any, bias: Any, rows: Any) -> Any:
    return torch.relu(x + bias) * rows + x


def _two_halves(x: Any, y: Any) -> Any:
    total = x * y + 0.1
    return total, torch.relu(total) - y


def _half_clamped(x: Any, y: Any, z: Any) -> Any:
    return torch.clamp(x * y - z, -1.5, 2.0)


def _remainders(i: Any) -> Any:
    return torch.remainder(i * 3 - 7, 5).to(torch.int32) + 1


def _masked(x: Any, y: Any) -> Any:
    keep = (x >= y) & (y > -1.0)
    return torch.where(keep, x, y * 2.0), keep


def _wide(x: Any, y: Any) -> Any:
    return (x * 0.1 + y) / 3.0 - x


def _channels(x: Any, scale: Any, shift: Any) -> Any:
    return torch.relu(x * scale[:, None, None] + shift[:, None, None])


def _five(x: Any, a: Any, b: Any) -> Any:
    return x * a + b - x


def _alpha(x: Any, y: Any) -> Any:
    return torch.add(x, y, alpha=0.3) * y


def _scaled(x: Any, s: Any, y: Any) -> Any:
    return x * s - y


def _quotients(i: Any, j: Any) -> Any:
    return torch.div(i, 3, rounding_mode="trunc") - j // 7


def _steps(x: Any, y: Any) -> Any:
    sign = torch.sign(x)
    return torch.floor(x) + torch.round(y) * sign, sign <= y


def _mixed(x: Any, y: Any, m: Any) -> Any:
    return (x.float() + y * m).to(torch.float16)


def _curves(x: Any, y: Any) -> Any:
    return F.gelu(x) * F.silu(y)


def _bits(i: Any, j: Any) -> Any:
    return (i * j + 3) ^ j, i < j


def _parts(x: Any, cosine: Any) -> Any:
    y = x * cosine
    return y, -y[..., 4:], y[..., :4] + 1.0


def _unchanged(x: Any) -> Any:
    same = x * 1.0
    return same, same - 0.0


def _itself(x: Any, y: Any) -> Any:
    return (x - x) + y


def _turned(x: Any, y: Any) -> Any:
    return (x * 2.0).transpose(0, 1) + y


def _algebra(x: Any, y: Any) -> Any:
    return (x - y) * 0.0 + torch.maximum(x, y)


def _divided(i: Any, j: Any) -> Any:
    return i // j - torch.remainder(j, i)


def _numbers(x: Any, y: Any) -> Any:
    return torch.relu(x * 0.3 - y) * 1.7 + y


@dataclass(frozen=True)
class Case:
    """A chain and its operands; ``at_run_time``: its numbers are arguments of the kernel."""

    function: Callable[..., Any]
    operands: Callable[[], tuple[torch.Tensor, ...]]
    at_run_time: bool = False


CASES: dict[str, Case] = {
    "gelu": Case(gelu_new, lambda: (_normal(4, 8, 64),)),
    "bias and rows": Case(_bias_rows, lambda: (_normal(6, 40), _normal(40), _normal(6, 1))),
    "two bfloat16 results": Case(
        _two_halves,
        lambda: (_normal(9, 30, dtype=torch.bfloat16), _normal(9, 30, dtype=torch.bfloat16)),
    ),
    "clamped float16": Case(
        _half_clamped,
        lambda: (
            _normal(301, dtype=torch.float16),
            _normal(301, dtype=torch.float16, seed=2),
            _normal(301, dtype=torch.float16, seed=3),
        ),
    ),
    "remainders": Case(_remainders, lambda: (_whole(7, 9),)),
    "masked": Case(_masked, lambda: (_normal(3, 5, 7), _normal(3, 5, 7, seed=4))),
    "float64": Case(
        _wide,
        lambda: (_normal(2, 3, 4, 5, dtype=torch.float64), _normal(4, 1, dtype=torch.float64)),
    ),
    "channels last": Case(
        _channels,
        lambda: (
            _normal(2, 8, 5, 6).to(memory_format=torch.channels_last),
            _normal(8),
            _normal(8, seed=2),
        ),
    ),
    "five dimensions": Case(
        _five, lambda: (_normal(2, 3, 4, 5, 6), _normal(2, 1, 4, 1, 6), _normal(5, 6))
    ),
    "alpha": Case(_alpha, lambda: (_normal(12, 10), _normal(12, 20)[:, ::2])),
    "0-dim operand": Case(_scaled, lambda: (_normal(5, 33), _normal(), _normal(33))),
    "quotients": Case(
        _quotients,
        lambda: (_whole(6, 11, dtype=torch.int32), _whole(11, dtype=torch.int32)),
    ),
    "steps": Case(_steps, lambda: (_normal(17, 3), _normal(17, 3, seed=5))),
    "mixed": Case(
        _mixed,
        lambda: (
            _normal(4, 25, dtype=torch.bfloat16),
            _normal(4, 25),
            _normal(25) > 0,
        ),
    ),
    "curves": Case(_curves, lambda: (_normal(10, 21), _normal(10, 1).expand(10, 21))),
    "wrapping integers": Case(_bits, lambda: (_whole(8, 13), _whole(8, 13, low=-3))),
    "parts": Case(_parts, lambda: (_normal(2, 3, 8), _normal(8))),
    "unchanged": Case(_unchanged, lambda: (_normal(40, 3),)),
    "itself": Case(_itself, lambda: (_normal(50), _normal(50, seed=8))),
    "turned": Case(_turned, lambda: (_normal(6, 9), _normal(9, 6))),
    "divided": Case(
        _divided,
        lambda: (_whole(6, 11, low=1), _whole(11, low=1)),
    ),
    "run-time numbers": Case(_numbers, lambda: (_normal(7, 12), _normal(7, 1)), at_run_time=True),
    "large": Case(_bias_rows, lambda: (_normal(1024, 1024), _normal(1024), _normal(1024, 1))),
    "algebra": Case(_algebra, lambda: (_normal(1, 64), _normal(3, 64))),
}


@functools.cache
def right(name: str) -> Problem:
    """The generated kernel of a chain with everything that ``validate`` needs."""
    case = CASES[name]
    chain = Chain(case.function, *case.operands())
    if case.at_run_time:
        numbers = frozenset(
            (node.id, place)
            for node in chain.graph.nodes
            for place, argument in enumerate(flat_arguments(node))
            if isinstance(argument, float)
        )
        chain.program = lower(
            chain.graph, chain.candidate, name="fused_chain", runtime_scalars=numbers
        )
        chain.kernel = generate(chain.program, chain.graph)
    return of_chain(chain)


def of_chain(chain: Chain) -> Problem:
    """A recorded chain's kernel, with its references and captured inputs."""
    graph, candidate = chain.graph, chain.candidate
    names = tuple(operand.value for operand in candidate.inputs)
    return Problem(
        chain.kernel,
        graph,
        candidate,
        replay.subgraph(graph, candidate.computed, names, candidate.outputs),
        replay.materialize(graph, chain.recording.store, names),
    )
