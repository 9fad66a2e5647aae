"""Every reason not to fuse, provoked by code that really runs, beside the nearest that is legal.

The legal one must become a candidate whose kernel gives eager's results; the other must not have
the ops in one kernel, and must say why with that very code.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from fused_runs import Outcome, through

from fusion_advisor.analysis import BLOCKER_CODES
from fusion_advisor.analysis.legality import MAX_ELEMENTS
from fusion_advisor.records import OpGraph

pytestmark = pytest.mark.essential

F = torch.nn.functional
Run = Callable[..., Any]


def normal(*shape: int, **options: Any) -> torch.Tensor:
    """Random numbers, the same ones each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **options)


def exp_tanh(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.exp(x))


def running_sum(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.exp(x).cumsum(0))


def merged(x: torch.Tensor) -> torch.Tensor:
    return torch.relu((x * 2.0).view(-1)) + 1.0


def split(x: torch.Tensor) -> torch.Tensor:
    return torch.relu((x * 2.0).view(4, 2, 3)) + 1.0


def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.cat([x * 2.0, x]) + 1.0)


def copied(x: torch.Tensor) -> torch.Tensor:
    return torch.relu((x * 2.0).clone() + 1.0)


def dropped(training: bool) -> Run:
    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.relu(F.dropout(x * 2.0, 0.5, training=training) + 1.0)

    return run


def total_of_the_group(x: torch.Tensor) -> torch.Tensor:
    h = torch.exp(x)
    return torch.tanh(h + h.sum().item())


def total_of_the_input(x: torch.Tensor) -> torch.Tensor:
    total = x.sum().item()
    return torch.tanh(torch.exp(x) + total)


def counted(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2.0) + torch.arange(6.0)


def given_numbers(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2.0) + numbers


def stepped(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    torch._foreach_add_([p], [x * 2.0 + 1.0])
    return p


def added(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    return p + (x * 2.0 + 1.0)


LIBRARY = torch.library.Library("fusion_advisor_pairs", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
LIBRARY.impl("twice", lambda x: x * 2.0, "CompositeExplicitAutograd")


def of_ones_own(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.ops.fusion_advisor_pairs.twice(torch.exp(x)))


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.exp(x) * 2.0)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def rectified(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2.0


def equal_to(number: complex) -> Run:
    return lambda x: torch.where(torch.eq(x * 2.0, number), 1.0, x)


def two_widths(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = a * 2.0
    return h + b, h + c


def row_too(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = a * 2.0
    return h + b, h


def row_inside(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * 2.0 + b


def two_layouts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.exp(x)
    return y, torch.tanh(y.contiguous(memory_format=torch.channels_last))


def one_layout(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.exp(x)
    return y, torch.tanh(y.contiguous())


def input_written(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2.0)
    return x.add_(1.0).relu_()


def copy_written(x: torch.Tensor) -> torch.Tensor:
    return x.clone().mul_(2.0).add_(1.0).relu_()


def own_neighbours(x: torch.Tensor) -> torch.Tensor:
    a = x @ x
    a[:, :2].add_(a[:, 2:])
    return torch.relu(a[:, :2])


def neighbours(x: torch.Tensor) -> torch.Tensor:
    a = x @ x
    return torch.relu(a[:, :2] + a[:, 2:])


def read_again(x: torch.Tensor) -> torch.Tensor:
    y = x + 1.0
    x.zero_()
    return y * x


def not_read_again(x: torch.Tensor) -> torch.Tensor:
    y = x + 1.0
    x.zero_()
    return y * 2.0


def residual(x: torch.Tensor) -> torch.Tensor:
    h = torch.exp(x)
    return h + h @ x


def residual_of_the_input(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) + x @ x


def moved(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2.0).to("meta") + 1.0


def stayed(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2.0).to("cpu") + 1.0


def summed_up(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2.0).sum()


def autocast(second: bool) -> Run:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not second):
            h = torch.exp(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.tanh(h)

    return run


def without_gradient(second: bool) -> Run:
    def run(x: torch.Tensor) -> torch.Tensor:
        h = torch.exp(x)
        with torch.set_grad_enabled(not second):
            return torch.tanh(h)

    return run


def _inner(h: torch.Tensor) -> torch.Tensor:
    return torch.tanh(h) * 2.0


def two_frames(x: torch.Tensor) -> torch.Tensor:
    h = torch.exp(x) + 1.0
    return _inner(h)


def one_frame(x: torch.Tensor) -> torch.Tensor:
    h = torch.exp(x) + 1.0
    return torch.tanh(h) * 2.0


def used_too_early(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp(x) + 1.0
    y.sum()
    other = x @ x
    return y * other


def used_later(x: torch.Tensor) -> torch.Tensor:
    other = x @ x
    y = torch.exp(x) + 1.0
    y.sum()
    return y * other


def negated(count: int) -> Run:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = torch.neg(x)
        return x

    return run


def elsewhere(**fields: Any) -> Callable[[OpGraph], OpGraph]:
    """The recording as if its last op had run on another stream, or by another thread."""

    def change(graph: OpGraph) -> OpGraph:
        last = dataclasses.replace(graph.nodes[-1], **fields)
        return dataclasses.replace(graph, nodes=(*graph.nodes[:-1], last))

    return change


@dataclass(frozen=True)
class Case:
    """A function and the inputs of its call; ``options`` are those of ``through``."""

    run: Run
    inputs: Callable[[], tuple[Any, ...]] = lambda: (normal(4, 6),)
    options: dict[str, Any] = field(default_factory=dict)

    def outcome(self) -> Outcome:
        """Run, fused and compared with eager."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*(nested|Sparse|quantized).*")
            return through(self.run, *self.inputs(), **self.options)


def on(run: Run, *shapes: tuple[int, ...], **options: Any) -> Case:
    """A case on random numbers of these shapes."""
    return Case(run, lambda: tuple(normal(*shape) for shape in shapes), options)


def meta(elements: int) -> Case:
    return Case(lambda x: torch.relu(x * 2.0) + 1.0, lambda: (
        torch.empty(elements, device="meta"),
    ), {"change": lambda graph: dataclasses.replace(graph)})  # fmt: skip


PAIRS: dict[str, tuple[Case, Case]] = {
    "not-elementwise": (Case(running_sum), Case(exp_tanh)),
    "view": (Case(merged), Case(split)),
    "copy": (Case(joined), Case(copied)),
    "random": (Case(dropped(True)), Case(dropped(False))),
    "host-sync": (Case(total_of_the_group), Case(total_of_the_input)),
    "factory": (Case(counted), on(given_numbers, (4, 6), (6,))),
    "optimizer": (on(stepped, (4, 6), (4, 6)), on(added, (4, 6), (4, 6))),
    "unsupported-op": (Case(of_ones_own), Case(doubled)),
    "dtype": (
        Case(scaled, lambda: (normal(4, 6, dtype=torch.complex64),)),
        Case(scaled, lambda: (normal(4, 6, dtype=torch.float64),)),
    ),
    "tensor-kind": (
        Case(rectified, lambda: (normal(4, 6).to_sparse(),)),
        Case(rectified, lambda: (normal(4, 6).to_sparse().to_dense(),)),
    ),
    "argument": (Case(equal_to(1 + 0j)), Case(equal_to(1))),
    "shape": (
        on(two_widths, (4, 1), (1, 6), (1, 5)),
        on(two_widths, (4, 1), (1, 6), (1, 6)),
    ),
    "output-shape": (on(row_too, (4, 1), (1, 6)), on(row_inside, (4, 1), (1, 6))),
    "layout": (on(two_layouts, (2, 3, 4, 5)), on(one_layout, (2, 3, 4, 5))),
    "offsets": (meta(MAX_ELEMENTS + 1), meta(MAX_ELEMENTS)),
    "mutated-input": (Case(input_written), Case(copy_written)),
    "aliasing": (on(own_neighbours, (4, 4)), on(neighbours, (4, 4))),
    "mutated-between": (Case(read_again), Case(not_read_again)),
    "non-convex": (on(residual, (4, 4)), on(residual_of_the_input, (4, 4))),
    "device": (Case(moved), Case(stayed)),
    "stream": (on(exp_tanh, (4, 6), change=elsewhere(stream=7)), Case(exp_tanh)),
    "thread": (on(exp_tanh, (4, 6), change=elsewhere(thread=1)), Case(exp_tanh)),
    "phase": (
        Case(summed_up, lambda: (normal(4, 6).requires_grad_(),), {"backward": True}),
        Case(summed_up, lambda: (normal(4, 6).requires_grad_(),), {"grad": True}),
    ),
    "autocast": (Case(autocast(True)), Case(autocast(False))),
    "grad-mode": (
        Case(without_gradient(True), options={"grad": True}),
        Case(without_gradient(False), options={"grad": True}),
    ),
    "frame": (on(two_frames, (4, 6), framed=True), on(one_frame, (4, 6), framed=True)),
    "placement": (on(used_too_early, (4, 4), framed=True), on(used_later, (4, 4), framed=True)),
    "registers": (Case(negated(129)), Case(negated(128))),
}


def test_every_code_has_its_pair() -> None:
    assert PAIRS.keys() == BLOCKER_CODES.keys()


@pytest.mark.parametrize("code", PAIRS)
def test_what_the_code_forbids_is_not_fused_and_says_so(code: str) -> None:
    outcome = PAIRS[code][0].outcome()
    named = [blocker for blocker in outcome.blockers if blocker.code == code]
    assert named, (outcome.reasons, outcome.fused_ops)
    for blocker in named:
        assert blocker.message
        assert not any(set(blocker.nodes) <= set(one.nodes) for one in outcome.candidates)


@pytest.mark.parametrize("code", PAIRS)
def test_the_nearest_legal_program_is_fused(code: str) -> None:
    outcome = PAIRS[code][1].outcome()
    assert code not in outcome.reasons
    assert len(outcome.kernels) == 1 and not outcome.refusals, outcome.fused_ops
    (candidate,) = outcome.candidates
    left_out = {
        node.id
        for node in outcome.graph.nodes
        if node.kind == "elementwise" and node.id not in candidate.nodes
    }
    assert left_out == ({"zero__1"} if code == "mutated-between" else set())
