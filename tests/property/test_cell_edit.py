"""Random functions: whatever is planned gives the same bits, whatever is refused says why."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fix_support import candidates_of, plan, record_call, run_text, same
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusion_advisor.fixes import edited_text

HEAD = """import math
import torch
import torch.nn.functional as F

LOG = []
SCALE = 0.75


def note(value):
    LOG.append(value.clone())
    return value


def half_turn(value):
    return torch.cat((value[..., 1:], value[..., :1]), dim=-1)


def grow(value):
    value.mul_(1.5)
    return value


class Holder:
    def __init__(self):
        self.w = torch.linspace(-1, 1, 5)
        self.eps = 1e-3

    def shift(self, value):
        return value + 0.0


HOLDER = Holder()

"""
UNARY = ("torch.tanh({})", "({}).sigmoid()", "-({})", "F.silu({})", "torch.relu({})", "({}).abs()")
BINARY = ("{} + {}", "{} * {}", "({}) - ({})", "torch.maximum({}, {})", "({}) / (({}).abs() + 1.0)")
NUMBER = (
    "{} * 0.5",
    "{} + k",
    "2.0 * ({})",
    "({}) ** 2",
    "1.5 - ({})",
    "{} + self.eps",
    "{} * SCALE",
)
CASTS = ("({}).to(dt)", "({}).float()", "({}).contiguous()", "+({})")
CALLS = ("half_turn({})", "self.shift({})", "note({})", "grow({})", "({}).clone()")
IN_PLACE = ("{0} += {1}", "{0} *= {1}", "{0}.relu_()", "{0}.mul_({1})", "{0} = {0}.add_({1})")
FOREIGN = (
    "n = {0}.shape[0]",
    "alias = {0}",
    "assert {0}.dim() == 2",
    "total = {0}.sum()",
    "LOG.append({0})",
    "note({0})",
    "pass",
    "g = half_turn({0})",
    "h = y",
    "y = x",
    "k = k * 1.0",
    "dt = x.dtype",
)


class Author:
    """Writes one random function body."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.names = ["x", "y", "b"]

    def name(self) -> str:
        return self.random.choice(self.names)

    def expression(self, depth: int) -> str:
        if depth == 0:
            return self.random.choice([self.name(), self.name(), self.name(), "self.w"])
        kind = self.random.random()
        if kind < 0.3:
            return self.random.choice(UNARY).format(self.expression(depth - 1))
        if kind < 0.6:
            parts = (self.expression(depth - 1), self.expression(depth - 1))
            return self.random.choice(BINARY).format(*parts)
        if kind < 0.8:
            return self.random.choice(NUMBER).format(self.expression(depth - 1))
        if kind < 0.86:
            return self.random.choice(CASTS).format(self.expression(depth - 1))
        if kind < 0.92:
            return self.random.choice(CALLS).format(self.expression(depth - 1))
        if kind < 0.95:
            then, other = self.expression(depth - 1), self.expression(depth - 1)
            return f"({then} if n > 1 else {other})"
        return f"(\n        {self.expression(depth - 1)}\n    )"

    def statement(self) -> str:
        kind = self.random.random()
        if kind < 0.62:
            target = self.random.choice(["h", "t", "u", self.name()])
            text = f"{target} = ({self.expression(self.random.randint(1, 3))}) + x * 0.0"
            if self.random.random() < 0.7:
                text = f"{target} = {self.expression(self.random.randint(1, 3))}"
            self.names.append(target)
            return text
        if kind < 0.76:
            return self.random.choice(IN_PLACE).format(self.name(), self.expression(1))
        return self.random.choice(FOREIGN).format(self.name())

    def body(self) -> list[str]:
        lines = []
        for _ in range(self.random.randint(2, 6)):
            line = self.statement()
            where = self.random.random()
            if where < 0.06:
                line = f"if n > 1:\n        {line}"
            elif where < 0.1:
                line = f"for _ in range(2):\n        {line}"
            elif where < 0.16:
                line += "  # é"
            lines.append(line)
        return lines

    def returned(self) -> str:
        kept = sorted({self.name() for _ in range(self.random.randint(1, 3))})
        parts = [*kept, self.expression(self.random.randint(1, 2))]
        self.random.shuffle(parts)
        return ", ".join(parts)


def arguments() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    return {
        "x": torch.randn(4, 5, generator=generator),
        "y": torch.randn(4, 5, generator=generator),
        "b": torch.randn(4, 5, generator=generator),
        "k": 0.25,
        "n": 3,
        "dt": torch.float32,
    }


def variants() -> Iterator[dict[str, Any]]:
    """Other calls of the same function: equal tensors, another dtype, another branch."""
    yield arguments()
    shared = arguments()
    yield {**shared, "y": shared["x"]}
    doubled = arguments()
    yield {**doubled, "x": doubled["x"].double()}
    halved = arguments()
    yield {**halved, "x": halved["x"].half(), "dt": torch.float16}
    yield {**arguments(), "n": 1, "k": 2}


def outcome(namespace: dict[str, Any], given: dict[str, Any]) -> tuple[Any, ...]:
    """Result or error, the arguments afterwards, and everything that was logged."""
    namespace["LOG"].clear()
    namespace["HOLDER"].w = torch.linspace(-1, 1, 5)
    try:
        result: Any = namespace["f"](namespace["HOLDER"], **given)
    except (RuntimeError, AssertionError, UnboundLocalError) as error:
        return (type(error).__name__,)
    log = [one.clone() for one in namespace["LOG"] if isinstance(one, torch.Tensor)]
    after = [given[name].clone() for name in ("x", "y", "b")]
    return (result, after, log, namespace["HOLDER"].w.clone())


counter = itertools.count()


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False))
def test_planned_functions_do_the_same(tmp_path: Path, source: random.Random) -> None:
    author = Author(source)
    lines = [*author.body(), f"return {author.returned()}"]
    text = HEAD + "def f(self, x, y, b, k, n, dt):\n    " + "\n    ".join(lines) + "\n"
    number = next(counter)
    namespace = run_text(text, tmp_path / f"case_{number}.py")
    if len(outcome(namespace, arguments())) == 1:
        return  # raises by itself
    graph = record_call(lambda: namespace["f"](namespace["HOLDER"], **arguments()))
    for candidate in candidates_of(graph):
        fix = plan(graph, candidate, text)
        assert bool(fix.blockers) != bool(fix.edits)
        if fix.blockers:
            assert all(one.code and len(one.message) > 10 for one in fix.blockers)
            continue
        new_text = edited_text(fix, text)
        changed = run_text(new_text, tmp_path / f"case_{number}_fused.py")
        for given_arguments in variants():
            copy = {
                k: v.clone() if isinstance(v, torch.Tensor) else v
                for k, v in given_arguments.items()
            }
            if given_arguments["x"] is given_arguments["y"]:
                copy["y"] = copy["x"]
            wanted = outcome(namespace, given_arguments)
            assert same(wanted, outcome(changed, copy)), new_text


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.randoms(use_true_random=False))
def test_planned_cells_leave_the_same_globals(tmp_path: Path, source: random.Random) -> None:
    author = Author(source)
    start = "self = HOLDER\nx, y, b = DATA\nk, n, dt = 0.25, 3, torch.float32\n"
    body = "\n".join(
        line.replace("\n    ", "\n") if "(\n" in line else line for line in author.body()
    )
    text = (
        HEAD
        + "DATA = [torch.arange(20.0).view(4, 5) / 7 - i for i in range(3)]\n"
        + start
        + body
        + "\n"
    )
    number = next(counter)
    try:
        wanted = run_text(text, tmp_path / f"cell_{number}.py")
    except (RuntimeError, AssertionError):
        return
    graph = record_call(lambda: run_text(text, tmp_path / f"cell_{number}.py"))
    for candidate in candidates_of(graph):
        fix = plan(graph, candidate, text)
        assert bool(fix.blockers) != bool(fix.edits)
        if fix.blockers:
            continue
        new_text = edited_text(fix, text)
        got = run_text(new_text, tmp_path / f"cell_{number}_fused.py")
        for name, value in wanted.items():
            if isinstance(value, torch.Tensor | float | int):
                assert same(value, got[name]), f"{name}\n{new_text}"
        assert same(wanted["LOG"], got["LOG"])


@pytest.mark.parametrize("seed", range(2))
def test_enough_is_planned(tmp_path: Path, seed: int) -> None:
    """The property above would hold for a planner that refuses everything."""
    source = random.Random(seed)
    planned = refused = 0
    for number in range(12):
        author = Author(source)
        lines = [*author.body(), f"return {author.returned()}"]
        text = HEAD + "def f(self, x, y, b, k, n, dt):\n    " + "\n    ".join(lines) + "\n"
        namespace = run_text(text, tmp_path / f"count_{number}.py")
        if len(outcome(namespace, arguments())) == 1:
            continue
        graph = record_call(lambda n=namespace: n["f"](n["HOLDER"], **arguments()))
        for candidate in candidates_of(graph):
            if plan(graph, candidate, text).blockers:
                refused += 1
            else:
                planned += 1
    assert planned >= 5, f"{planned} planned, {refused} refused"
