"""What eager's other loops give is eager's too; nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_validation_budgets import _budget

from fusion_advisor.analysis import find_candidates
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.validation.budgets import budget
from fusion_advisor.validation.compare import compare


def _by(found: list[float], allowed: Any) -> int:
    """How many of these results the budget turns down."""
    return compare(torch.tensor(found, dtype=allowed.eager.dtype), allowed).mismatches


def test_either_zero_of_softshrink_is_eagers_and_nothing_else() -> None:
    x = torch.tensor([-0.25, 0.25, 2.0])
    allowed = _budget(lambda x: torch.nn.functional.softshrink(x, 0.5), x)
    assert _by([0.0, 0.0, 1.5], allowed) == _by([-0.0, 0.0, 1.5], allowed) == 0
    assert _by([-0.0, -0.0, 1.5], allowed) == 1  # no loop gives this
    above, tiny = math.nextafter(1.5, 2), 1e-45
    assert _by([tiny, 0.0, 1.5], allowed) == 1
    assert _by([0.0, 0.0, float(torch.tensor(above + 2e-7))], allowed) == 1


def test_a_nan_that_one_loop_ignores_may_come_out_or_not() -> None:
    """elu's gradient compares in both loops, but the other way round."""
    gradient, x = torch.tensor([2.0, 2.0]), torch.tensor([math.nan, 1.0])

    def chain(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.elu_backward(gradient, 1.0, 1.5, 1.0, False, x) * 1.0

    strided = x.repeat_interleave(2)[::2]
    loops = [chain(gradient, strided)[0], chain(gradient.repeat(64), x.repeat(64))[0]]
    assert math.isnan(loops[1]) and float(loops[0]) == 3.0  # else there is nothing to see here
    allowed = _budget(chain, gradient, strided)
    assert _by([math.nan, 3.0], allowed) == _by([3.0, 3.0], allowed) == 0
    assert _by([2.0, 3.0], allowed) == _by([3.0, math.nan], allowed) == 1


def test_a_number_that_fills_stays_of_no_dimension() -> None:
    x, number = torch.tensor(3, dtype=torch.int16), torch.tensor(0.3)
    allowed = _budget(lambda x, number: torch.fill(x * 0.5, number) * 1.0, x, number)
    assert compare(torch.tensor(0.3), allowed).mismatches == 0
    assert compare(torch.tensor(0.5), allowed).mismatches == 1


def test_an_infinity_behind_either_zero_has_either_sign() -> None:
    x = torch.tensor([-0.25, 2.0])
    chain: Callable[..., Any] = lambda x: 1.0 / torch.nn.functional.softshrink(x, 0.5)  # noqa: E731
    allowed = _budget(chain, x)
    assert _by([math.inf, 1 / 1.5], allowed) == _by([-math.inf, 1 / 1.5], allowed) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scaled_sum_of_16_bits_is_rounded_once_or_twice(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2000, generator=generator).to(dtype) for _ in range(2))
    allowed = _budget(lambda x, y: torch.add(x, y, alpha=0.3), x, y)
    factor = torch.tensor(0.3).to(dtype)
    once = (x.double() + factor.double() * y.double()).float().to(dtype)
    twice = x + factor * y
    assert not torch.equal(once, twice)
    assert compare(once, allowed).mismatches == compare(twice, allowed).mismatches == 0
    beyond = torch.nextafter(torch.maximum(once, twice), torch.tensor(math.inf, dtype=dtype))
    assert compare(beyond, allowed).mismatches == 2000


def test_a_sum_that_is_not_scaled_stays_exact() -> None:
    x = torch.randn(300).to(torch.bfloat16)
    assert _budget(lambda x, y: x + y, x, x.flip(0)).ways == ()


def test_an_operand_that_is_broadcast_may_be_contracted_or_not() -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(1, 64, generator=generator)
    output = torch.linspace(-0.9, 0.9, 20).reshape(20, 1)
    chain = torch.ops.aten.tanh_backward.default
    allowed = _budget(lambda g, y: chain(g, y), gradient.expand(20, 64).contiguous(), output)
    whole = chain(gradient.expand(20, 64).contiguous(), output.expand(20, 64).contiguous())
    assert not torch.equal(whole, allowed.eager)
    assert compare(whole, allowed).mismatches == 0
    assert compare(whole * (1 + 2e-6), allowed).mismatches > 1000


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_a_remainder_that_vectors_lose_may_be_exact_or_nan(name: str) -> None:
    x = torch.full((64,), -20.0)
    y = torch.full((64,), 1.5 * 2.0**-149)
    x[1], y[1] = 5.5, 2.0
    allowed = _budget(getattr(torch, name), x, y)
    assert math.isnan(float(allowed.eager[0]))
    exact = getattr(torch, name)(x[:1], y[:1])
    result = torch.cat([exact.expand(1), allowed.eager[1:2], exact.expand(62)])
    assert compare(result, allowed).mismatches == 0
    result[1] = math.nan
    assert compare(result, allowed).mismatches == 1


def test_a_dividend_known_no_better_than_its_divisor_may_leave_any_rest() -> None:
    x, y = torch.tensor([20.0, 0.5]), torch.tensor([1e-3, 1e-3])  # exp(20) is known to 64
    allowed = _budget(lambda x, y: torch.remainder(torch.exp(x), y), x, y)
    assert allowed.ambiguous is None
    assert _by([0.0003, float(allowed.eager[1])], allowed) == 0
    assert _by([-0.0003, float(allowed.eager[1])], allowed) == 1
    assert _by([0.0011, float(allowed.eager[1])], allowed) == 1


def test_a_rest_moves_with_its_divisor_as_often_as_that_fits() -> None:
    x = torch.full((4,), 9.0)
    y = torch.tensor([-1.2, -1.25, 0.3, 0.7])  # gelu of these is known to some ULP, 9 / it is far

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x, torch.nn.functional.gelu(y))

    allowed = _budget(chain, x, y)
    divisor = torch.nn.functional.gelu(y)
    for _ in range(2):  # a divisor that is off by an ULP or two gives a rest that is
        divisor = torch.nextafter(divisor, torch.full((4,), torch.inf))
        assert compare(torch.remainder(x, divisor), allowed).mismatches == 0
    assert compare(torch.remainder(x, divisor * 1.0001), allowed).mismatches == 4


def test_what_is_written_in_place_has_the_targets_dtype() -> None:
    x = torch.randn(50, dtype=torch.float16)
    wide = torch.randn(50)

    def chain(x: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        y.add_(wide)
        y.gt_(0.5)
        return y

    with torch.no_grad():
        graph = record(lambda: chain(x, wide), CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    known = dict(zip(graph.inputs, (x, wide), strict=True))
    (allowed,) = budget(graph, candidate, known)
    assert allowed.eager.dtype == torch.float16
    assert torch.equal(allowed.eager, chain(x, wide))


def test_a_memory_format_of_other_dimensions_is_left_aside() -> None:
    x = torch.randn(1, 2, 3, 4)
    last = torch.channels_last
    allowed = _budget(lambda x: x.to(torch.bfloat16, memory_format=last), x)
    assert compare(x.to(torch.bfloat16), allowed).mismatches == 0


def test_a_result_of_0_dim_operands_may_be_that_of_a_longer_tensor() -> None:
    x, y = (torch.randn(4096, generator=torch.manual_seed(3)).bfloat16() for _ in range(2))
    chain: Callable[..., Any] = lambda x, y: torch.sub(x, y, alpha=0.3)  # noqa: E731
    whole = chain(x, y)
    alone = torch.stack([chain(a, b) for a, b in zip(x, y, strict=True)])
    place = int(torch.nonzero(whole != alone)[0])  # eager differs from itself in a fifth of them
    allowed = _budget(chain, x[place], y[place])
    assert compare(whole[place], allowed).mismatches == 0
    assert compare(alone[place], allowed).mismatches == 0
    assert compare(whole[place] + 1, allowed).mismatches == 1
