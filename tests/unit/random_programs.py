"""Random chains and small DAGs of elementwise ops over awkward operands, as plain data.

A program can be printed, run eagerly on its own operands, and run again on operands of other
sizes.  Everything random is drawn by Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

F = torch.nn.functional
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OTHERS = (torch.int64, torch.int32, torch.uint8, torch.bool)

UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "log1p of abs": lambda x: torch.log1p(torch.abs(x)),
    "sqrt of abs": lambda x: torch.sqrt(torch.abs(x)),
    "rsqrt": lambda x: torch.rsqrt(torch.square(x) + 1.5),
    "reciprocal": lambda x: torch.reciprocal(torch.abs(x) + 0.75),
    "square": torch.square,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "atan": torch.atan,
    "silu": F.silu,
    "gelu": F.gelu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "elu": F.elu,
    "leaky relu": lambda x: F.leaky_relu(x, 0.1),
    "logsigmoid": F.logsigmoid,
    "clone": torch.clone,
    "nan_to_num": torch.nan_to_num,
    "isfinite": torch.isfinite,
    "logical_not": torch.logical_not,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": torch.add,
    "-": torch.sub,
    "*": torch.mul,
    "/": lambda x, y: x / (torch.abs(y) + 1 if isinstance(y, torch.Tensor) else y or 3),
    "maximum": lambda x, y: torch.maximum(x, y) if isinstance(y, torch.Tensor) else x + y,
    "add alpha": lambda x, y: torch.add(x, y, alpha=2),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "lt": torch.lt,
    "ge": torch.ge,
    "copysign": torch.copysign,
    "atan2": lambda x, y: torch.atan2(x, y) if isinstance(y, torch.Tensor) else x - y,
    "masked_fill": lambda x, y: x.masked_fill(torch.as_tensor(y) > 0, 1.0),
}
SCALAR: dict[str, Callable[[Any, Any], Any]] = {
    "pow": lambda x, n: torch.pow(x, n),
    "clamp": lambda x, n: torch.clamp(x, min=-abs(n), max=abs(n) + 1),
    "rsub": lambda x, n: n - x,
    "rdiv": lambda x, n: n / (torch.abs(x) + 1),
    "remainder": lambda x, n: torch.remainder(x, n or 2),
    "threshold": lambda x, n: F.threshold(x, 0.25, float(n)),
}
IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "sub_": lambda x, y: x.sub_(y),
    "relu_": lambda x, _: x.relu_(),
    "tanh_": lambda x, _: x.tanh_(),
    "clamp_": lambda x, _: x.clamp_(-1, 1),
}
VIEWS: dict[str, Callable[[Any, int], Any]] = {
    "head": lambda x, n: x[..., : n + 1],
    "tail": lambda x, n: x[..., n:],
    "from the back": lambda x, n: x[..., -n - 1 :],
    "every other": lambda x, n: x[..., n % 3 :: 2],
    "rows": lambda x, n: x[n % 2 : 4],
    "row": lambda x, n: x[n % max(x.shape[0], 1)],
    "last": lambda x, _: x.select(-1, -1),
    "narrow": lambda x, n: x.narrow(-1, n % 2, max(x.shape[-1] - 2, 0)),
    "unsqueeze": lambda x, n: x.unsqueeze(n % (x.dim() + 1)),
    "expand": lambda x, n: x.unsqueeze(0).expand(n % 3 + 1, *x.shape),
    "wide column": lambda x, _: x[..., :1].expand_as(x),
    "transpose": lambda x, _: x.transpose(0, -1),
    "permute": lambda x, n: x.permute(*range(n % x.dim(), x.dim()), *range(n % x.dim())),
    "split": lambda x, _: x.unflatten(-1, (-1, 2)),
    "squeeze": lambda x, n: x.squeeze(n % max(x.dim(), 1)),
}
CASTS = {str(dtype): dtype for dtype in (*FLOATS, torch.bool, torch.int64)}
NUMBERS = (0, 1, 2, -1, 3, 0.5, -0.5, 1.5, 0.1, 1e-3, 100.0, True, False)
LAYOUTS = ("plain", "transposed", "sliced", "offset", "expanded", "odd size-1", "channels_last")


@dataclass(frozen=True)
class Operand:
    """A tensor: dtype, which dimensions it has (1 where broadcast), and how it lies in memory."""

    dtype: torch.dtype
    dims: tuple[bool, ...]  # aligned from the right
    layout: str
    seed: int

    def make(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor for an iteration space of ``shape``."""
        own = shape[len(shape) - len(self.dims) :]
        sizes = tuple(n if full else 1 for n, full in zip(own, self.dims, strict=True))
        return laid_out(sizes, self.dtype, self.layout, self.seed)


def laid_out(sizes: tuple[int, ...], dtype: torch.dtype, layout: str, seed: int) -> torch.Tensor:
    """Random values of a size in a memory layout that torch code meets."""
    generator = torch.Generator().manual_seed(seed)

    def fresh(sizes: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(sizes, generator=generator, dtype=torch.float64) * 2
        if dtype == torch.bool:
            return values > 0
        return values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype)

    if layout == "transposed" and len(sizes) >= 2:
        return fresh((*sizes[:-2], sizes[-1], sizes[-2])).transpose(-1, -2)
    if layout == "sliced" and sizes:
        return fresh((*sizes[:-1], 2 * sizes[-1] + 1))[..., 1 : 2 * sizes[-1] + 1 : 2]
    if layout == "offset" and sizes:
        return fresh((sizes[0] + 1, *sizes[1:]))[1:]
    if layout == "expanded" and sizes:
        return fresh((1, *sizes[1:])).expand(sizes)
    if layout == "odd size-1" and 1 in sizes:
        dense = fresh(sizes)
        strides = tuple(77 if n == 1 else s for n, s in zip(sizes, dense.stride(), strict=True))
        return dense.as_strided(sizes, strides)
    if layout == "channels_last" and len(sizes) == 4:
        return fresh(sizes).contiguous(memory_format=torch.channels_last)
    return fresh(sizes)


@dataclass(frozen=True)
class Step:
    """``kind`` and ``name`` of an op; what it reads, counted back from the newest tensor."""

    kind: str
    name: str
    first: int
    second: int | bool | float | None  # index counted back, or a number
    second_is_tensor: bool


@dataclass(frozen=True)
class Program:
    """Operands, steps, and which results are kept."""

    shape: tuple[int, ...]
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    kept: tuple[int, ...]  # counted back among the results

    def inputs(self, shape: tuple[int, ...] | None = None) -> list[torch.Tensor]:
        """Fresh operands for the program's own or another iteration space."""
        return [operand.make(self.shape if shape is None else shape) for operand in self.operands]

    def run(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run eagerly.  A step that torch refuses is skipped: nothing is rare in torch."""
        values = list(inputs)
        made: list[torch.Tensor] = []
        for step in self.steps:
            try:
                result = self._step(step, values, made)
            except (RuntimeError, TypeError, IndexError, ZeroDivisionError):
                continue
            values.append(result)
            made.append(result)
        if not made:
            return ()
        return tuple(made[-1 - (index % len(made))] for index in dict.fromkeys((0, *self.kept)))

    def _step(
        self, step: Step, values: list[torch.Tensor], made: list[torch.Tensor]
    ) -> torch.Tensor:
        first = values[-1 - step.first % len(values)]
        second: Any = step.second
        if step.second_is_tensor:
            second = values[-1 - int(step.second or 0) % len(values)]
        if step.kind == "unary":
            return UNARY[step.name](first)
        if step.kind == "binary":
            return BINARY[step.name](first, second)
        if step.kind == "scalar":
            return SCALAR[step.name](first, second)
        if step.kind == "view":
            return VIEWS[step.name](first, int(step.second or 0))
        if step.kind == "cast":
            return first.to(CASTS[step.name])
        target = made[-1 - step.first % len(made)]  # in-place ops on intermediates only
        return IN_PLACE[step.name](target, second)


def _index() -> st.SearchStrategy[int]:
    return st.one_of(st.just(0), st.integers(0, 5))


def steps() -> st.SearchStrategy[Step]:
    """One op with its operands."""
    tensor_or_number = st.one_of(
        st.tuples(_index(), st.just(True)),
        st.tuples(st.sampled_from(NUMBERS), st.just(False)),
    )

    def make(kind: str, name: str, first: int, second: tuple[Any, bool]) -> Step:
        return Step(kind, name, first, *second)

    number = st.tuples(st.sampled_from(NUMBERS), st.just(False))
    nothing = st.just((None, False))
    return st.one_of(
        st.builds(make, st.just("unary"), st.sampled_from(sorted(UNARY)), _index(), nothing),
        st.builds(
            make, st.just("binary"), st.sampled_from(sorted(BINARY)), _index(), tensor_or_number
        ),
        st.builds(make, st.just("scalar"), st.sampled_from(sorted(SCALAR)), _index(), number),
        st.builds(make, st.just("cast"), st.sampled_from(sorted(CASTS)), _index(), nothing),
        st.builds(
            make, st.just("in place"), st.sampled_from(sorted(IN_PLACE)), _index(), tensor_or_number
        ),
    )


def view_steps() -> st.SearchStrategy[Step]:
    """A view of a recent result."""
    return st.builds(
        lambda name, first, number: Step("view", name, first, number, False),
        st.sampled_from(sorted(VIEWS)),
        st.integers(0, 2),
        st.integers(0, 5),
    )


@st.composite
def viewed_programs(draw: st.DrawFn) -> Program:
    """2 to 5 ops with views between them; whole results and parts of them are kept together."""
    plain = draw(programs(most_steps=5))
    steps: list[Step] = []
    for step in plain.steps:
        steps.append(step)
        steps += draw(st.lists(view_steps(), max_size=2))
        if steps[-1].kind == "view":
            steps.append(Step("scalar", "rsub", 0, 1.5, False))
    kept = draw(st.lists(st.integers(0, 8), max_size=4))
    return replace(plain, steps=tuple(steps), kept=tuple(kept))


@st.composite
def programs(draw: st.DrawFn, most_steps: int = 12) -> Program:
    """2 to 12 ops over 1 to 4 operands, the first of which has every dimension."""
    shape = draw(
        st.sampled_from([(37,), (5, 8), (3, 1, 7), (1, 9), (2, 3, 4, 5), (4, 0), (1, 1), (2, 3, 6)])
    )
    rank = len(shape)
    main = draw(st.sampled_from(FLOATS))
    operands = [Operand(main, (True,) * rank, draw(st.sampled_from(LAYOUTS)), 0)]
    for number in range(draw(st.integers(0, 3))):
        dtype = draw(st.one_of(st.just(main), st.sampled_from((*FLOATS, *OTHERS))))
        own = draw(st.integers(0, rank))
        dims = tuple(draw(st.booleans()) for _ in range(own))
        operands.append(Operand(dtype, dims, draw(st.sampled_from(LAYOUTS)), number + 1))
    return Program(
        shape=shape,
        operands=tuple(operands),
        steps=tuple(draw(st.lists(steps(), min_size=2, max_size=most_steps))),
        kept=tuple(draw(st.lists(st.integers(0, 8), max_size=2))),
    )
