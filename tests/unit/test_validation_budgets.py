"""Budgets: what a fused result may be, fixed by the inputs alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import validation_kernels as kernels

from fusion_advisor.validation import budgets, ladder
from fusion_advisor.validation.bits import ulp_distance
from fusion_advisor.validation.budgets import OutputBudget, budget
from fusion_advisor.validation.compare import compare
from fusion_advisor.validation.intervals import ulp


def _budget(chain: Callable[..., Any], *tensors: torch.Tensor, own: Any = None) -> OutputBudget:
    graph, candidate = kernels.record(chain, *tensors)
    named = {
        operand.value: tensor for operand, tensor in zip(candidate.inputs, tensors, strict=True)
    }
    return budget(graph, candidate, named, op_budget=own)[0]


def _only(op: str, ulps: float) -> Callable[[Any], float]:
    return lambda node: ulps if node.op == op else 0.0


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (torch.float32, 1.0, 2.0**-23),
        (torch.float32, -3.0, 2.0**-22),
        (torch.float32, 0.0, 2.0**-149),
        (torch.float32, 1e-40, 2.0**-149),
        (torch.float32, math.inf, 2.0**104),
        (torch.bfloat16, 1.0, 2.0**-7),
        (torch.float16, 1024.0, 1.0),
        (torch.float64, 0.75, 2.0**-53),
    ],
)
def test_ulp_is_the_spacing_of_the_dtype(dtype: torch.dtype, value: float, expected: float) -> None:
    assert float(ulp(torch.tensor([value], dtype=torch.float64), dtype)) == expected


def test_exact_ops_leave_no_room_at_all() -> None:
    x = torch.randn(100)
    allowed = _budget(lambda x: torch.relu(x * 2.0 + 1.0), x)
    assert allowed.ways == ()
    wrong = allowed.eager.clone()
    wrong[7] = torch.nextafter(wrong[7], torch.tensor(9.0))
    found = compare(wrong, allowed)
    assert (found.mismatches, found.worst_ulp, found.budget_ulp) == (1, 1.0, 0.0)
    assert "element [7]" in found.first


def test_room_is_carried_through_the_derivative() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    chain = lambda x: torch.exp(x) * 100.0  # noqa: E731
    allowed = _budget(chain, x, own=_only("aten.exp.default", 2.0))
    way = allowed.ways[0]
    spacing = ulp(torch.exp(x).double(), torch.float32) * 100
    width = (way.high - way.low) / spacing
    assert bool(((width > 3.0) & (width < 6.0)).all()), width
    # The same size of error in a product of 1e-3 is far below the sum it is added to.
    hidden = _budget(lambda x: torch.exp(x) * 1e-6 + 1000.0, x, own=_only("aten.exp.default", 2.0))
    assert compare(hidden.eager, hidden).mismatches == 0
    assert float((hidden.ways[0].high - hidden.ways[0].low).max()) == 0.0


def test_a_number_counts_as_float32_holds_it() -> None:
    # float32(1.7) is a little more than 1.7: the power is 37 ULP larger, and eager's strided loop
    # computes the smaller one.  An ULP above the larger is an ULP from a true value.
    x = torch.full((64,), 1e20)
    allowed = _budget(lambda x: x**1.7, x)
    assert float(allowed.eager[0]) == pytest.approx(
        float(x[0].double() ** float(torch.tensor(1.7)))
    )
    above = torch.nextafter(allowed.eager, allowed.eager * 2)
    assert compare(above, allowed).mismatches == 0
    for _ in range(4):
        above = torch.nextafter(above, allowed.eager * 2)
    assert compare(above, allowed).mismatches == 64


def test_the_flip_of_an_inner_rounding_to_16_bits_is_allowed() -> None:
    # The logarithm, -5.974, lies next to the middle of two float16, to which it is rounded.
    y = torch.full((4,), 0.0025424957275390625, dtype=torch.float16)
    allowed = _budget(lambda y: torch.xlogy(1.7, y), y)
    flipped = torch.nextafter(allowed.eager, torch.full_like(allowed.eager, -100.0))
    assert flipped[0] == -10.1640625
    assert compare(flipped, allowed).mismatches == 0
    beyond = flipped
    for _ in range(2):
        beyond = torch.nextafter(beyond, torch.full_like(beyond, -100.0))
    assert compare(beyond, allowed).mismatches == 4
    plain = _budget(torch.log, torch.full((4,), 0.3, dtype=torch.float16))
    assert compare(torch.nextafter(plain.eager, plain.eager * 2), plain).mismatches == 4


def test_cancellation_widens_the_room_in_ulp_but_not_in_size() -> None:
    x = torch.full((4,), 1.0)
    allowed = _budget(lambda x: torch.exp(x) - 2.7182817, x, own=_only("aten.exp.default", 1.0))
    way = allowed.ways[0]
    assert 2e-7 < float((way.high - way.low)[0]) < 1e-6


@pytest.mark.parametrize(
    ("divide", "results"),
    [
        (torch.remainder, ((0,), (0, 1))),
        (torch.floor_divide, ((7,), (6, 13))),
    ],
)
def test_a_divisor_cast_from_next_to_1_is_not_taken_for_0(
    divide: Callable[..., Any], results: tuple[tuple[int, ...], ...]
) -> None:
    # exp(-1e-9) rounds to 1, which a float further down would be cast to 0: eager raises there.
    # exp of the second is next to 2, and may be cast to 1 as well.
    x, n = torch.tensor([-1e-9, 0.6931472]), torch.tensor([7, 13])
    allowed = _budget(lambda x, n: divide(n, torch.exp(x).to(torch.int64)), x, n)
    for place, possible in enumerate(results):
        for value in range(20):
            result = allowed.eager.clone()
            result[place] = value
            assert (compare(result, allowed).mismatches == 0) == (value in possible), value


@pytest.mark.parametrize("wave", [torch.sin, torch.cos, torch.tan])
def test_a_large_angle_known_to_a_few_ulp_may_be_any_phase(wave: Callable[..., Any]) -> None:
    x = torch.tensor([0.5, 22.0, 23.0])
    allowed = _budget(lambda x: wave(torch.exp(x)), x, own=_only("aten.exp.default", 2.0))
    other = allowed.eager.clone()
    other[1:] = wave(torch.nextafter(torch.exp(x[1:]), torch.tensor(math.inf)))
    assert compare(other, allowed).mismatches == 0
    other[0] += 1e-3  # a small angle has no such room
    assert compare(other, allowed).mismatches == 1
    far = allowed.eager.clone()
    far[1:] = 0.3  # the interval spans whole periods, wherever its ends lie
    assert compare(far, allowed).mismatches == 0


def test_zero_between_the_ends_is_part_of_an_image() -> None:
    x = torch.tensor([1.0])
    near = float(torch.exp(x)) + 2.0**-22  # one ULP from eager's value
    allowed = _budget(
        lambda x: torch.abs(torch.exp(x) - near),
        x,
        own=_only("aten.exp.default", 2.0),
    )
    assert compare(torch.tensor([0.0]), allowed).mismatches == 0
    assert float(allowed.ways[0].low[0]) == 0.0


def test_an_exact_zero_has_no_room() -> None:
    x = torch.tensor([0.0, -math.inf])
    allowed = _budget(lambda x: torch.tanh(torch.exp(x) * 0.0), x)
    wrong = allowed.eager + 1e-30
    assert compare(wrong, allowed).mismatches == 2


def test_a_rounding_flip_in_bfloat16_is_allowed_only_near_the_boundary() -> None:
    x = torch.linspace(-3, 3, 513).bfloat16()
    allowed = _budget(torch.tanh, x, own=_only("aten.tanh.default", 2.0))
    way = allowed.ways[0]
    free = way.high > way.low
    assert int(free.sum()) < 60, "most elements are far from a rounding boundary"
    wrong = torch.nextafter(allowed.eager, torch.full_like(allowed.eager, 9.0))
    assert compare(wrong, allowed).mismatches > 400


def test_elements_at_a_jump_are_counted_apart_and_must_take_one_side() -> None:
    # exp(x) * 2 lands on 2.0 exactly at x = 0: floor may give 1 or 2 there, nothing else.
    x = torch.tensor([0.0, 0.3])
    chain = lambda x: torch.floor(torch.exp(x) * 2.0) * 10.0  # noqa: E731
    allowed = _budget(chain, x, own=_only("aten.exp.default", 2.0))
    assert allowed.ambiguous is not None
    assert allowed.ambiguous.tolist() == [True, False]
    for value, wrong in ((10.0, 0), (20.0, 0), (15.0, 1), (30.0, 1)):
        actual = torch.tensor([value, 20.0])
        assert compare(actual, allowed).mismatches == wrong, value
    assert compare(torch.tensor([20.0, 10.0]), allowed).mismatches == 1


def test_a_small_remainder_is_known_less_well_which_is_no_jump() -> None:
    x = torch.tensor([1.3138885812669088e-10, 0.4], dtype=torch.float64)
    allowed = _budget(lambda x: torch.remainder(torch.sigmoid(x), 0.001) * x, x)
    # The first is a little above 500 times 0.001: wide in ULP, with no multiple inside.
    assert allowed.ambiguous is None or not bool(allowed.ambiguous[0])
    assert compare(torch.nextafter(allowed.eager, torch.ones(())), allowed).mismatches == 0
    jumping = _budget(lambda x: torch.remainder(torch.sigmoid(x), 0.5) + 0.0, torch.zeros(1))
    assert jumping.ambiguous is not None and bool(jumping.ambiguous[0])


@pytest.mark.parametrize("pick", [torch.fmax, torch.maximum, torch.clamp_min])
def test_the_larger_of_two_exact_numbers_is_exact_but_for_a_zeros_sign(
    pick: Callable[..., Any],
) -> None:
    x = torch.tensor([2.0, -1.0, -0.0], dtype=torch.float64)
    y = torch.tensor([1.0, -3.0, 0.0], dtype=torch.float64)
    allowed = _budget(lambda x, y: pick(x, y) * 1.0, x, y)
    assert compare(torch.tensor([2.0, -1.0, -0.0], dtype=torch.float64), allowed).mismatches == 0
    assert compare(torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64), allowed).mismatches == 0
    above = torch.nextafter(allowed.eager, torch.tensor(9.0, dtype=torch.float64))
    assert compare(above, allowed).mismatches == 3
    floored = _budget(lambda x, y: torch.floor(pick(x, y)), x, y)
    assert floored.ambiguous is None


def test_a_fraction_just_below_1_is_one_side_of_its_jump() -> None:
    x = torch.tensor([0.0002])  # its cosine is 1 in float32, or up to 4 ULP less
    allowed = _budget(lambda x: torch.frac(torch.cos(x)), x)
    for value, wrong in ((1 - 2**-24, 0), (1 - 2**-22, 0), (0.0, 0), (0.5, 1), (0.99, 1)):
        assert compare(torch.tensor([value]), allowed).mismatches == wrong, value


def test_a_jump_of_16_bits_has_sides_as_wide_as_its_operand() -> None:
    """exp(x) may be 0.494 to 0.508: on one side of the threshold several numbers of bfloat16."""
    x = torch.tensor([math.log(0.5)]).to(torch.bfloat16)  # its exponential is 0.5009
    chain = lambda x: torch.threshold(torch.exp(x), 0.4985, -3.0)  # noqa: E731
    allowed = _budget(chain, x, own=_only("aten.exp.default", 2.0**16 * 1.5))
    at = float(torch.exp(x))
    step = 2.0**-8
    assert float(chain(x)) == at > 0.4985
    for value, wrong in ((at, 0), (at + 2 * step, 0), (at + 3 * step, 1), (-3.0, 0), (-2.0, 1)):
        actual = torch.tensor([value]).to(torch.bfloat16)
        assert compare(actual, allowed).mismatches == wrong, value


@pytest.mark.parametrize(
    "chain",
    [
        lambda x: torch.rad2deg(torch.exp(x)) + 0.0,
        lambda x: torch.ops.aten.tanh_backward(x, torch.exp(x - 3.0)) + 0.0,
        lambda x: torch.nn.functional.hardswish(torch.exp(x - 1.0)) + 0.0,
        lambda x: torch.addcmul(x, torch.exp(x), x, value=-0.7) + 0.0,
    ],
)
def test_inner_roundings_have_room_once_their_operand_moves(
    chain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The op on exponentials that are one ULP up or down, as a kernel may well have them."""
    x = torch.linspace(-1.0, 2.0, 4001)
    allowed = _budget(chain, x, own=_only("aten.exp.default", 4.0))
    true = torch.exp
    for towards in (math.inf, -math.inf):
        end = torch.tensor(towards)
        monkeypatch.setattr(torch, "exp", lambda x, end=end: torch.nextafter(true(x), end))
        result = chain(x)
        assert not torch.equal(result, allowed.eager)
        assert compare(result, allowed).mismatches == 0


def test_several_steps_within_a_range_are_all_right() -> None:
    """A quotient by what may be 0 has no two sides: floor gives any whole number there."""
    x = torch.tensor([1.0])  # its exponential may be e as float32 has it
    chain = lambda x: torch.floor(x / (torch.exp(x) - math.e)) * 1.0  # noqa: E731
    allowed = _budget(chain, x)
    for value in (float(allowed.eager), -3.0, 12345.0, -1e9):
        assert compare(torch.tensor([value]), allowed).mismatches == 0, value


def test_the_sign_of_a_nan_that_was_computed_is_not_compared() -> None:
    x = torch.tensor([-1.0, 4.0])
    allowed = _budget(lambda x: torch.signbit(torch.sqrt(x)) * 1.0, x)
    assert compare(torch.tensor([0.0, 0.0]), allowed).mismatches == 0
    assert compare(torch.tensor([1.0, 0.0]), allowed).mismatches == 0
    assert compare(torch.tensor([0.0, 1.0]), allowed).mismatches == 1
    given = _budget(lambda x: torch.signbit(x) * 1.0, torch.tensor([-math.nan, math.nan]))
    assert given.unspecified is None


def test_a_half_read_by_glu_is_as_inexact_as_its_operand() -> None:
    x = torch.tensor([0.3, math.inf, 0.2, -0.7])
    allowed = _budget(lambda x: torch.nn.functional.glu(torch.tan(x)) * 2.0, x)
    assert compare(allowed.eager, allowed).mismatches == 0
    assert compare(allowed.eager * 1.001, allowed).mismatches == 1  # the other is NaN


def test_comparison_under_a_where_takes_either_branch_whole() -> None:
    x = torch.tensor([0.0, 1.0])
    chain = lambda x: torch.where(torch.exp(x) > 1.0, x + 5.0, x - 5.0)  # noqa: E731
    allowed = _budget(chain, x, own=_only("aten.exp.default", 2.0))
    assert compare(torch.tensor([5.0, 6.0]), allowed).mismatches == 0
    assert compare(torch.tensor([-5.0, 6.0]), allowed).mismatches == 0
    assert compare(torch.tensor([0.0, 6.0]), allowed).mismatches == 1
    assert compare(torch.tensor([5.0, -4.0]), allowed).mismatches == 1


def test_overflow_boundary_may_go_to_infinity_and_nan_must_stay_nan() -> None:
    x = torch.tensor([88.722839, math.nan, 100.0])
    # The first exp is 5 ULP beyond the largest float32.
    allowed = _budget(torch.exp, x, own=_only("aten.exp.default", 8.0))
    largest = torch.finfo(torch.float32).max
    assert compare(torch.tensor([math.inf, math.nan, math.inf]), allowed).mismatches == 0
    assert compare(torch.tensor([largest, math.nan, math.inf]), allowed).mismatches == 0
    assert compare(torch.tensor([largest, 0.0, math.inf]), allowed).mismatches == 1
    assert compare(torch.tensor([largest, math.nan, largest]), allowed).mismatches == 1


@pytest.mark.parametrize("other_is_nan", [True, False])
def test_a_nan_on_one_side_is_allowed_only_where_eagers_own_loops_differ_in_it(
    other_is_nan: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager's gelu of infinity is infinite in its strided loop, NaN in its vector one."""
    infinite, nan = torch.tensor([math.inf]), torch.tensor([math.nan])
    loops = [nan, nan if other_is_nan else infinite]
    monkeypatch.setattr(budgets, "other_results", lambda *_: loops)
    monkeypatch.setattr(budgets.Chain, "_run", lambda self, inputs: with_nan(self.nodes, inputs))

    def with_nan(nodes: Any, inputs: Any) -> dict[str, torch.Tensor]:
        return {**inputs, nodes[0].outputs[0]: nan}

    allowed = _budget(torch.nn.functional.gelu, infinite)
    assert compare(nan, allowed).mismatches == 0
    assert compare(infinite, allowed).mismatches == int(other_is_nan)


def test_a_nan_where_eager_has_none_is_a_mismatch_whatever_the_true_value_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.ones(1)
    true = torch.tensor([math.nan], dtype=torch.float64)
    monkeypatch.setattr(budgets.Chain, "_evaluate", lambda *_: true)
    allowed = _budget(torch.exp, x)
    assert compare(torch.exp(x), allowed).mismatches == 0
    assert compare(torch.tensor([math.nan]), allowed).mismatches == 1


def test_casts_out_of_range_are_not_compared() -> None:
    x = torch.tensor([1e30, -300.0, math.nan, 5.9])
    allowed = _budget(lambda x: x.to(torch.int32) + 1, x)
    wrong = allowed.eager.clone()
    wrong[0] = wrong[2] = 77
    assert compare(wrong, allowed).mismatches == 0
    wrong[3] = 77
    assert compare(wrong, allowed).mismatches == 1
    wrong[1] = 77
    assert compare(wrong, allowed).mismatches == 2


def test_zeros_differ_and_nans_do_not() -> None:
    x = torch.tensor([-0.0, math.nan])
    allowed = _budget(torch.neg, x)
    assert compare(torch.tensor([-0.0, -math.nan]), allowed).mismatches == 1
    assert compare(torch.tensor([0.0, math.nan]), allowed).mismatches == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulp_distance_counts_representable_numbers(dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    up = torch.nextafter(one, one * 2)
    assert float(ulp_distance(up, one)) == 1.0
    assert float(ulp_distance(one * 2, one)) == 2.0 ** -math.log2(torch.finfo(dtype).eps)
    zero = torch.zeros(1, dtype=dtype)
    assert float(ulp_distance(-zero, zero)) == 1.0
    tiny = torch.nextafter(zero, one)
    assert float(ulp_distance(-tiny, tiny)) == 3.0
    assert float(ulp_distance(one / zero, one)) == float(ulp_distance(-one / zero, -one))
    assert math.isinf(float(ulp_distance(zero / zero, one)))


def test_wrong_dtype_or_shape_is_a_mismatch_not_a_crash() -> None:
    allowed = _budget(torch.neg, torch.ones(3))
    assert compare(torch.ones(3, dtype=torch.float64), allowed).mismatches == 3
    assert "float32[4]" in compare(torch.ones(4), allowed).first


def test_errors_are_shares_of_their_budgets_and_ulps_leave_cancellation_out() -> None:
    x = torch.tensor([0.3, -6.0])  # 1 + tanh(-6) has lost most of its digits
    allowed = _budget(lambda x: 1 + torch.tanh(x), x, own=_only("aten.tanh.default", 8.0))
    low, high = allowed.ways[0].low, allowed.ways[0].high
    assert float((high - low)[1] / allowed.eager[1].double().abs()) > 1e-3
    halfway = (allowed.eager.double() + high) / 2
    noise = torch.stack([allowed.eager[0], halfway[1].float()])
    found = compare(noise, allowed)
    assert found.mismatches == 0
    assert found.worst_ulp == 0.0
    assert 0.3 < found.worst_share < 0.7
    off = torch.stack([torch.nextafter(allowed.eager[0], torch.tensor(9.0)), noise[1]])
    found = compare(off, allowed)
    assert (found.mismatches, found.worst_ulp) == (0, 1.0)
    assert found.worst_ulp <= found.budget_ulp < 10
    beyond = (allowed.eager.double() + 3 * (high - allowed.eager.double())).float()
    assert compare(beyond, allowed).worst_share > 2


def test_the_tanh_gelus_slope_has_the_room_that_eager_itself_needs() -> None:
    x = torch.linspace(-6, 6, 20_001)
    gradient = torch.ones_like(x)
    slope = torch.ops.aten.gelu_backward.default
    true = slope(gradient.double(), x.double(), approximate="tanh")
    eager = slope(gradient, x, approximate="tanh").double()
    off = (eager - true).abs() / ulp(torch.maximum(true.abs(), gradient.double()), torch.float32)
    assert 4 < float(off.max()) < 32
    allowed = _budget(lambda g, x: slope(g, x, approximate="tanh"), gradient, x)
    assert compare(true.float(), allowed).mismatches == 0
    for approximate, most in (("tanh", 40), ("none", 6)):
        (way,) = _budget(lambda g, x, a=approximate: slope(g, x, approximate=a), gradient, x).ways
        assert float((way.high - way.low).max()) < 2 * most * 2.0**-23


def test_the_end_of_a_domain_within_an_interval_is_part_of_the_image() -> None:
    """An error function that may be 1 has an inverse that may be infinite."""
    x = torch.tensor([3.7153])
    allowed = _budget(lambda x: torch.atanh(torch.erf(x)) * 1.0, x)
    last = torch.atanh(torch.tensor(1 - 2.0**-24))
    for value in (last, torch.tensor(math.inf)):
        assert compare(value.reshape(1), allowed).mismatches == 0
    assert compare(torch.tensor([7.0]), allowed).mismatches == 1


def test_what_is_too_small_for_eager_may_be_the_smallest_number() -> None:
    x = torch.tensor([5e-324, 0.0], dtype=torch.float64)
    allowed = _budget(lambda x: torch.log1p(x) * 1.0, x)
    assert compare(torch.tensor([5e-324, 0.0], dtype=torch.float64), allowed).mismatches == 0
    assert compare(torch.tensor([0.0, 5e-324], dtype=torch.float64), allowed).mismatches == 1


def test_functions_of_integers_are_judged_by_their_true_value() -> None:
    """Eager's vector loop has cosh overflow before its time."""
    x = torch.full((64,), 89)
    allowed = _budget(lambda x: torch.cosh(x), x, own=_only("aten.cosh.default", 4.0))
    right = torch.cosh(x.double()).float()
    assert bool(torch.isfinite(right).all())
    assert compare(right, allowed).mismatches == 0
    assert compare(right * 0.99999, allowed).mismatches == 64


def test_integers_that_a_float_does_not_hold_are_no_measure_of_a_chain() -> None:
    exact, beyond = torch.tensor([2**24, -(2**24)]), torch.tensor([3, 2**24 + 1])
    assert not ladder._rounds_integers((exact, torch.rand(2)), {torch.float32})
    assert ladder._rounds_integers((torch.rand(2), beyond), {torch.float32})
    assert ladder._rounds_integers((torch.tensor([257]),), {torch.float32, torch.bfloat16})
