"""Mistakes that fusing tools are known for, each as a small run through recording, analysis,
generation and substitution.

Every case says what is right.  What may be fused is fused and must give eager's results in the
recorded run; what may not is refused, with the code that says why.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fused_runs import through

from fusion_advisor.analysis import find_candidates
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.runtime import load_function
from fusion_advisor.validation import whole_call

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")

HERE, FAMILIES = "unit/test_fault_classes.py", "unit/test_fault_families.py"
EFFECTS, DEVICE = "unit/test_legality_effects.py", "gpu/test_fault_classes_on_device.py"

# The classes by the numbers of the list they were collected in, and the tests of each.
SECTIONS = {
    "in place, views, aliasing": (1, 2, 4, 5, 7, 8, 10, 11),
    "broadcasting, 0-dim operands": (13, 14),
    "promotion, numbers, casts": (16, 17, 19, 20, 22, 23),
    "integer division, powers": (25, 26, 28, 29),
    "NaN, infinities, signed zeros": (31, 32, 34, 35, 37, 38, 40, 41),
    "low precision, rounding": (43, 44, 46, 47),
    "shapes, strides, memory": (49, 50, 52, 53, 55, 56),
    "gradients, modules, random numbers, autocast": (58, 59, 61, 62, 64, 65, 67),
    "kernels and their cost": (94, 95, 97, 98, 100, 101),
}
TESTS: dict[int, tuple[str, ...]] = {
    1: (f"{HERE}::test_dtype_view_is_read_before_its_storage_is_overwritten",
        f"{FAMILIES}::test_a_dtype_view_is_read_before_the_write"),
    2: (f"{HERE}::test_copy_then_mutating_the_source",),
    4: (f"{FAMILIES}::test_several_views_of_one_intermediate",),
    5: (f"{HERE}::test_op_that_returns_its_input_is_not_a_copy",
        f"{HERE}::test_writing_what_contiguous_may_return",
        f"{HERE}::test_writing_what_a_cast_may_return",
        f"{FAMILIES}::test_what_returns_its_input_passes_writes_on"),
    7: (f"{HERE}::test_expanded_operand_out_of_place",
        f"{EFFECTS}::test_overlapping_operands_of_a_chain_that_writes_do_as_eager"),
    8: (f"{HERE}::test_transposed_view_of_the_written_tensor",
        f"{EFFECTS}::test_overlapping_operands_of_a_chain_that_writes_do_as_eager"),
    10: (f"{HERE}::test_result_written_in_place_after_the_kernel",
         f"{EFFECTS}::test_writing_in_place_is_counted_as_eager_counts_it",
         f"{EFFECTS}::test_gradients_of_written_operands_are_eagers"),
    11: (f"{EFFECTS}::test_a_leaf_that_requires_a_gradient_is_refused_as_in_eager",),
    13: (f"{HERE}::test_shape_comes_from_all_operands",
         f"{FAMILIES}::test_the_shape_comes_from_all_operands"),
    14: (f"{HERE}::test_zero_dim_tensor_of_a_wider_dtype",
         f"{FAMILIES}::test_zero_dim_operands_of_other_dtypes",
         f"{DEVICE}::test_a_zero_dim_tensor_of_the_cpu_is_read_on_the_host"),
    16: (f"{HERE}::test_promotion_and_rounding",),
    17: (f"{HERE}::test_promotion_and_rounding",),
    19: (f"{HERE}::test_promotion_and_rounding",),
    20: (f"{HERE}::test_promotion_and_rounding",
         f"{FAMILIES}::test_what_eager_refuses_is_refused_by_the_function_too"),
    22: (f"{HERE}::test_promotion_and_rounding",
         f"{FAMILIES}::test_whole_numbers_wrap_and_stay_exact"),
    23: (f"{HERE}::test_promotion_and_rounding", f"{HERE}::test_integer_powers_are_exact",
         f"{FAMILIES}::test_whole_numbers_wrap_and_stay_exact"),
    25: (f"{HERE}::test_signs_of_remainders", f"{FAMILIES}::test_pairs_of_special_values",
         f"{FAMILIES}::test_signs_of_whole_quotients"),
    26: (f"{HERE}::test_integer_division_by_a_tensor_is_fused",
         f"{HERE}::test_float_remainder_by_zero_is_nan",
         "unit/test_integer_arithmetic.py::test_a_zero_divisor_raises_torchs_own_error_and_is_counted"),
    28: (f"{HERE}::test_powers_at_zero_and_below",
         f"{FAMILIES}::test_activations_at_special_values"),
    29: (f"{HERE}::test_integer_powers_are_exact",
         f"{FAMILIES}::test_what_eager_refuses_is_refused_by_the_function_too"),
    31: (f"{HERE}::test_extrema_keep_nan_from_either_side",
         f"{HERE}::test_special_values_through_activations",
         f"{FAMILIES}::test_pairs_of_special_values"),
    32: (f"{FAMILIES}::test_no_kernel_calls_a_builtin_maximum",
         f"{DEVICE}::test_nan_and_signed_zeros_pass_a_kernel"),
    34: (f"{HERE}::test_adding_zero_is_not_nothing",
         f"{FAMILIES}::test_pairs_of_special_values"),
    35: (f"{HERE}::test_special_values_through_activations",
         f"{FAMILIES}::test_pairs_of_special_values"),
    37: (f"{HERE}::test_special_values_through_activations",
         f"{FAMILIES}::test_activations_at_special_values"),
    38: (f"{HERE}::test_special_values_through_activations",
         f"{FAMILIES}::test_activations_at_special_values"),
    40: (f"{HERE}::test_special_values_through_activations",
         f"{FAMILIES}::test_activations_at_special_values"),
    41: (f"{HERE}::test_special_values_through_activations",
         f"{FAMILIES}::test_kernels_compute_in_their_own_types"),
    43: (f"{HERE}::test_promotion_and_rounding",
         f"{FAMILIES}::test_casts_in_the_middle_survive"),
    44: (f"{HERE}::test_promotion_and_rounding", f"{FAMILIES}::test_pairs_of_special_values"),
    46: (f"{HERE}::test_promotion_and_rounding",
         f"{FAMILIES}::test_no_product_is_contracted_into_a_sum"),
    47: (f"{HERE}::test_promotion_and_rounding",
         f"{FAMILIES}::test_casts_in_the_middle_survive"),
    49: ("unit/test_legality_pairs.py::test_the_nearest_legal_program_is_fused",
         "unit/test_runtime_layouts.py::test_largest_offset_is_the_last_element_of_any_view"),
    50: (f"{HERE}::test_channels_last_stays_channels_last",
         f"{FAMILIES}::test_results_lie_as_eagers_do"),
    52: (f"{HERE}::test_sizes_of_one_with_odd_strides_and_odd_offsets",
         f"{HERE}::test_one_element_of_any_stride_is_recorded_and_compared",
         f"{FAMILIES}::test_results_lie_as_eagers_do"),
    53: (f"{HERE}::test_sizes_of_one_with_odd_strides_and_odd_offsets",
         f"{FAMILIES}::test_results_lie_as_eagers_do"),
    55: (f"{FAMILIES}::test_results_given_with_out_are_written",),
    56: (f"{HERE}::test_lazy_conjugates_are_refused",
         f"{EFFECTS}::test_lazy_negative_operands_run_eager"),
    58: (f"{HERE}::test_gradient_through_the_kernel",
         f"{FAMILIES}::test_gradients_pass_what_eagers_pass"),
    59: (f"{HERE}::test_intermediate_that_is_returned_is_written",
         f"{EFFECTS}::test_an_intermediate_that_escapes_is_written_and_that_is_counted",
         f"{EFFECTS}::test_what_backward_needs_is_made_again_and_that_is_counted"),
    61: (f"{HERE}::test_dropout_splits_a_chain",
         f"{DEVICE}::test_dropout_between_kernels_draws_what_eager_draws"),
    62: (f"{HERE}::test_fusing_consumes_no_random_numbers_and_no_buffers",),
    64: (f"{FAMILIES}::test_ops_without_torchs_tag_are_known",),
    65: (f"{HERE}::test_autocast_chain_and_the_same_chain_without",
         f"{EFFECTS}::test_under_autocast_a_kernel_gives_what_eager_gives_there"),
    67: ("unit/test_bad_input.py::test_hooks_shared_and_looped_modules",),
    94: (f"{FAMILIES}::test_small_tensors_are_not_worth_a_kernel",),
    95: (f"{DEVICE}::test_a_thousand_launches_keep_the_order_of_a_side_stream",
         "gpu/test_on_device.py::test_a_launch_is_ordered_on_the_callers_stream"),
    97: ("unit/test_runtime_loading.py::test_source_is_found_by_tracebacks_and_inspect",
         "unit/test_runtime_compile_cache.py::"
         "test_another_process_finds_both_twins_and_survives_damage"),
    98: (f"{FAMILIES}::test_kernels_compute_in_their_own_types",
         f"{DEVICE}::test_whole_numbers_wrap_and_floats_overflow_in_their_own_types"),
    100: (f"{FAMILIES}::test_a_driver_older_than_the_toolkit_leaves_the_model_eager",),
    101: (f"{FAMILIES}::test_small_tensors_are_not_worth_a_kernel",),
}  # fmt: skip


def test_every_class_has_tests_that_exist() -> None:
    numbers = [number for section in SECTIONS.values() for number in section]
    assert sorted(TESTS) == sorted(numbers) and len(numbers) == len(set(numbers)) == 51
    root = Path(__file__).parents[1]
    for number, tests in TESTS.items():
        assert tests
        for test in tests:
            path, _, name = test.partition("::")
            tree = ast.parse((root / path).read_text(encoding="utf-8"))
            found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in found, (number, test)


# -- in place, views, aliasing -----------------------------------------------------------------


def test_dtype_view_is_read_before_its_storage_is_overwritten() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.view(torch.int32) + 1
        x.zero_()
        return y * 2

    x = torch.tensor([5, 7])
    outcome = through(run, x)
    assert outcome.result.tolist() == [12, 2, 16, 2] and x.tolist() == [0, 0]


def test_copy_then_mutating_the_source() -> None:
    def run(target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target[:] = source[:]
        source.mul_(3)
        return target - 1

    source = torch.arange(6.0).view(2, 3)
    outcome = through(run, torch.zeros(2, 3), source)
    assert torch.equal(outcome.result, torch.arange(6.0).view(2, 3) - 1)
    assert torch.equal(source, torch.arange(6.0).view(2, 3) * 3)
    assert not outcome.kernels


def test_op_that_returns_its_input_is_not_a_copy() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.9, training=False)
        y += 4
        return y.neg()

    x = torch.ones(3)
    outcome = through(run, x)
    assert outcome.result.tolist() == [-5.0] * 3 and x.tolist() == [5.0] * 3
    assert not outcome.kernels and "mutated-input" in outcome.reasons


def test_writing_what_contiguous_may_return() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        h = x.contiguous()  # copies here; for contiguous operands it is x itself
        h.mul_(2.0)
        h.add_(1.0)
        return h

    outcome = through(run, torch.ones(4, 3).t())
    assert not outcome.kernels and "mutated-input" in outcome.reasons


def test_writing_what_a_cast_may_return() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h.mul_(2.0)
        h.add_(1.0)
        return h

    outcome = through(run, torch.ones(3, dtype=torch.float64))
    assert not outcome.kernels and "mutated-input" in outcome.reasons


def test_in_place_on_an_own_copy_is_fused() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        h = x.clone()
        h.mul_(2.0)
        h.add_(1.0)
        return h

    x = torch.ones(3)
    outcome = through(run, x)
    assert outcome.fused_ops == (("clone", "mul_", "add_"),)
    assert outcome.result.tolist() == [3.0] * 3 and x.tolist() == [1.0] * 3


def test_expanded_operand_out_of_place() -> None:
    outcome = through(lambda y: y * 2 + 1, torch.ones(1).expand(4))
    assert outcome.result.tolist() == [3.0] * 4 and len(outcome.kernels) == 1


def test_transposed_view_of_the_written_tensor() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        a = x * 1.0
        return (a + a.t()) * 2.0

    outcome = through(run, torch.arange(9.0).view(3, 3))
    assert torch.equal(outcome.result, outcome.result.t())


@pytest.mark.parametrize("other", [torch.bfloat16, torch.float16, torch.float64])
def test_written_tensor_keeps_its_dtype_outside_the_guards(other: torch.dtype) -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x * 2.0
        h.mul_(y)
        return h + 1.0

    fused = through(run, torch.randn(8), torch.randn(8)).kernel
    x, y = torch.randn(8).to(other), torch.randn(8)
    with pytest.warns(UserWarning, match="dtype"):
        result = fused(x, y)
    assert result.dtype == other and torch.equal(result, run(x, y))


def test_written_operand_keeps_its_dtype_and_the_caller_keeps_his_tensor() -> None:
    def run(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x @ w
        h.mul_(y)
        h.relu_()
        return h + 1.0

    fused = through(run, torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)).kernel
    h, y = torch.randn(4, 4).bfloat16(), torch.randn(4, 4)
    before = h.clone()
    with pytest.warns(UserWarning, match="dtype"):
        result = fused(h, y)
    assert torch.equal(h, before)
    assert torch.equal(result, before.clone().mul_(y).relu_() + 1.0)


def test_in_place_form_refuses_what_eager_refuses() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x * 2.0
        h.mul_(y)
        return h + 1.0

    fused = through(run, torch.randn(3, 4), torch.randn(3, 4)).kernel
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError):
            fused(torch.randn(4), torch.randn(3, 4))  # mul_ cannot grow its own tensor


def test_operand_written_before_backward_is_not_kept_for_it() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x @ w
        y = torch.relu(h * 2.0 + 1.0)
        h[0] = 0.0
        return y, h

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    run(x, w)[0].sum().backward()  # eager keeps nothing of h
    trained, inferred = through(run, x, w, grad=True), through(run, x, w)
    assert trained.fused_ops == (("add", "relu"),) and "mutated-input" in trained.reasons
    assert inferred.fused_ops == (("mul", "add", "relu"),)


# -- broadcasting, 0-dim operands, promotion ---------------------------------------------------


def test_shape_comes_from_all_operands() -> None:
    a, b, k = torch.ones(3, 1), torch.ones(1, 4), torch.arange(4.0)
    outcome = through(lambda a, b, k: (a * 2).mul(b).add(k), a, b, k)
    assert outcome.result[2].tolist() == [2.0, 3.0, 4.0, 5.0] and len(outcome.kernels) == 1
    wide = through(lambda x, y: (x.exp() * y) + 1.0, torch.ones(4), torch.ones(5, 1))
    assert wide.result.shape == (5, 4)


def test_zero_dim_tensor_of_a_wider_dtype() -> None:
    s = torch.tensor([2.5, 9.0], dtype=torch.float64)[0]
    outcome = through(lambda x, s: x * s + s, torch.arange(3.0), s)
    assert outcome.result.dtype == torch.float32 and outcome.result.tolist() == [2.5, 5.0, 7.5]
    fused = outcome.kernel
    with pytest.warns(UserWarning, match="dtype"):
        assert fused(torch.arange(3.0), s.float()).dtype == torch.float32


PROMOTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], torch.dtype, list[Any]]] = {
    "where of two numbers": (
        lambda m: torch.where(m, -0.0, 0.0) * 2,
        (torch.tensor([True, False]),),
        torch.float32,
        [0.0, 0.0],
    ),
    "where of a half tensor and a number": (
        lambda m: torch.where(m, torch.ones(2, dtype=torch.float16), 3.0) + 1,
        (torch.tensor([True, False]),),
        torch.float16,
        [2.0, 4.0],
    ),
    "where of integers and a float": (
        lambda m, i: torch.where(m, i, 1.5) + 0,
        (torch.tensor([True, False]), torch.tensor([5, 6])),
        torch.float32,
        [5.0, 1.5],
    ),
    "integers clamped by a float": (
        lambda x: torch.clamp_min(x, 1.5) + 0,
        (torch.tensor([0, 1, 2, 3]),),
        torch.float32,
        [1.5, 1.5, 2.0, 3.0],
    ),
    "integers divided": (
        lambda i: (i / 2) * 0.5,
        (torch.tensor([7, -7]),),
        torch.float32,
        [1.75, -1.75],
    ),
    "booleans added": (
        lambda b: (b + b) * 2,
        (torch.tensor([True, False]),),
        torch.int64,
        [2, 0],
    ),
    "int8 wraps before abs": (
        lambda x: torch.where(x * x < 0, (x * x).abs(), x * x),
        (torch.tensor([12, 20], dtype=torch.int8),),
        torch.int8,
        [112, 112],
    ),
    "integers beyond 2**53": (
        lambda x: x * 3 - x * 2,
        (torch.tensor([2**60 + 1]),),
        torch.int64,
        [2**60 + 1],
    ),
    "explicit down-cast": (
        lambda x: x.to(torch.bfloat16).float() * 1000,
        (torch.tensor([1.001]),),
        torch.float32,
        [1000.0],
    ),
    "half to even": (
        lambda x: (x * 1.0).to(torch.bfloat16),
        (torch.tensor([1 + 2**-8, 1 + 3 * 2**-8]),),
        torch.bfloat16,
        [1.0, 1.015625],
    ),
    "largest half": (
        lambda x: (x * 1.0).half(),
        (torch.tensor([65520.0, 65519.0]),),
        torch.float16,
        [INF, 65504.0],
    ),
    "no contraction": (
        lambda x: x * x - (1 + 2**-11),
        (torch.tensor([1 + 2**-12]),),
        torch.float32,
        [0.0],
    ),
    "tie after a rounded division": (
        lambda s: (s / 3 == (s / 3).amax()).to(torch.int64) * 1,
        (torch.tensor([1.0, 2.0, 5.0, 5.0], dtype=torch.bfloat16),),
        torch.int64,
        [0, 0, 1, 1],
    ),
}


@pytest.mark.parametrize("name", PROMOTIONS)
def test_promotion_and_rounding(name: str) -> None:
    run, inputs, dtype, values = PROMOTIONS[name]
    outcome = through(run, *inputs)
    assert outcome.result.dtype == dtype and outcome.result.tolist() == values
    assert outcome.kernels or outcome.refusals or outcome.reasons


def test_another_default_dtype_is_noticed() -> None:
    def run(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ((i / 3) * 2) + x

    inputs = torch.tensor([1, 2, 4]), torch.randn(3)
    fused = through(run, *inputs).kernel
    fused(*inputs)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.warns(UserWarning, match="default dtype"):
            result = fused(*inputs)
        assert torch.equal(result, run(*inputs))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(fused(*inputs), run(*inputs)) and fused.stats.fused == 3


@pytest.mark.parametrize("number", [2**63, -(2**63), 2**62, -1])
def test_whole_numbers_that_need_more_bits(number: int, tmp_path: Path) -> None:
    text = "import torch\ndef run(x, n):\n    return torch.relu(x * n) * 0.5\n"
    path = tmp_path / "numbers_run.py"
    path.write_text(text, encoding="utf-8")
    scope: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), scope)  # a file of its own: n is no literal in it
    run, x = scope["run"], torch.randn(8)
    with torch.no_grad():
        graph = record(lambda: run(x, 3), CaptureOptions()).graph
    kernel = generate_kernel(graph, find_candidates(graph)[0], source=text)
    fused = load_function(kernel.text, kernel.entry, kernel.hash)
    fused.reset_stats()  # one text is loaded once
    fused(x, 3)  # what follows takes the path of a call like it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(fused(x, number), run(x, number))
    assert bool(fused.stats.fallbacks) is (number >= 2**63)


# -- integer division, powers ------------------------------------------------------------------


def test_signs_of_remainders() -> None:
    a = torch.tensor([-7.0, 7.0, -7.0])
    b = torch.tensor([3.0, -3.0, -3.0])

    def run(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.remainder(a, b) + 0.0,
            torch.fmod(a, b) + 0.0,
            torch.div(a, b, rounding_mode="floor") + 0.0,
            torch.div(a, b, rounding_mode="trunc") + 0.0,
        )

    outcome = through(run, a, b)
    assert [part.tolist() for part in outcome.result] == [
        [2, -2, -1],
        [-1, 1, -1],
        [-3, -3, 2],
        [-2, -2, 2],
    ]
    assert outcome.kernels


@pytest.mark.parametrize("op", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integer_division_by_a_tensor_is_fused(op: Callable[..., Any]) -> None:
    a, b = torch.tensor([7, -8, 2**62 + 3]), torch.tensor([2, 3, -3])
    outcome = through(lambda a, b: op(a, b) + 1, a, b)
    assert len(outcome.kernels) == 1
    assert outcome.result.tolist() == (op(a, b) + 1).tolist()


def test_float_remainder_by_zero_is_nan() -> None:
    outcome = through(lambda x: torch.remainder(x, 0.0) + 1.0, torch.tensor([1.0, -1e-20]))
    assert outcome.result.isnan().all() and len(outcome.kernels) == 1


def test_powers_at_zero_and_below() -> None:
    x = torch.tensor([0.0, -2.0, NAN])
    outcome = through(lambda x: ((x**0) + 0.0, (x**-2) + 0.0, (x**3) + 0.0), x)
    zeroth, inverse, cube = outcome.result
    assert zeroth.tolist() == [1.0] * 3 and cube[1] == -8.0
    assert inverse[0] == INF and inverse[1] == 0.25 and inverse[2].isnan()
    root = through(lambda x: (x ** (1 / 3)) + 0.0, torch.tensor([-8.0]))
    assert root.result.isnan().all()


def test_integer_powers_are_exact() -> None:
    outcome = through(lambda x: (x**39) + 0, torch.tensor([3]))
    assert outcome.result.item() == 3**39
    tensor = through(lambda x, y: torch.pow(x, y) + 0, torch.tensor([11, 2]), torch.tensor([7, -1]))
    assert tensor.result.tolist() == [11**7, 0]


# -- NaN, infinities, signed zeros -------------------------------------------------------------

SPECIAL = torch.tensor([NAN, INF, -INF, 0.0, -0.0, -200.0, -40.0, -13.24, 0.5, 30.0, 40.0, 1e4])
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_min": lambda x: x.clamp_min(0.0),
    "hardtanh": F.hardtanh,
    "softplus": F.softplus,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "rsqrt": torch.rsqrt,
    "ceil": torch.ceil,
    "frac": torch.frac,
    "neg": torch.neg,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_special_values_through_activations(name: str) -> None:
    op = ACTIVATIONS[name]
    # Eager's own GELU of an infinity is NaN or not, by the number of elements.
    x = SPECIAL[~SPECIAL.isinf()] if name == "gelu" else SPECIAL
    outcome = through(lambda x: -op(x), x)  # neg keeps NaN, infinities and signs of zero
    fused, eager = outcome.kernel(x), outcome.result
    assert torch.equal(fused.isnan(), eager.isnan())
    assert torch.equal(fused.isinf(), eager.isinf())
    known = ~eager.isnan()
    assert torch.equal(torch.signbit(fused[known]), torch.signbit(eager[known]))


def test_extrema_keep_nan_from_either_side() -> None:
    n, o = torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN])
    outcome = through(
        lambda a, b: (torch.maximum(a, b) + 0.0, torch.minimum(a, b) + 0.0, torch.fmax(a, b) + 0.0),
        n,
        o,
    )
    high, low, ignoring = outcome.result
    assert high.isnan().all() and low.isnan().all() and ignoring.tolist() == [1.0, 1.0]
    assert outcome.kernels


def test_adding_zero_is_not_nothing() -> None:
    outcome = through(lambda x, z: torch.ceil(x) + z, torch.tensor([-0.5]), torch.zeros(1))
    assert not torch.signbit(outcome.kernel(torch.tensor([-0.5]), torch.zeros(1))).item()
    kept = through(lambda x: (x * 1) * 1, torch.tensor([-0.0])).kernel
    assert torch.signbit(kept(torch.tensor([-0.0]))).item()


# -- shapes, strides ---------------------------------------------------------------------------


def test_channels_last_stays_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    y = torch.randn(3, 1, 1)
    outcome = through(lambda x, y: torch.relu(x * 2 + y), x, y)
    fused = outcome.kernel(x, y)
    assert fused.stride() == x.stride() and torch.equal(fused, outcome.result)


def test_sizes_of_one_with_odd_strides_and_odd_offsets() -> None:
    x = torch.randn(3, 4672)[:1, :4640]
    outcome = through(lambda x: x.mul(2).add(1), x)
    assert torch.equal(outcome.kernel(x), x.clone() * 2 + 1)
    base = torch.arange(33.0)
    shifted = through(lambda x: torch.relu(x - 5) * 2, base[1:]).kernel
    assert torch.equal(shifted(base[1:]), (torch.relu(base - 5) * 2)[1:])


def test_one_element_of_any_stride_is_recorded_and_compared() -> None:
    x = torch.randn(3)[::2][:1].as_strided((1,), (77,))
    outcome = through(lambda x: x * 2 + 1, x)
    assert torch.equal(outcome.kernel(x), outcome.result)
    assert whole_call.compare([x], [x.clone()]).equal


def test_lazy_conjugates_are_refused() -> None:
    z = torch.tensor([1 + 2j])
    outcome = through(lambda z: z.conj() * 1 + z.conj(), z)
    assert outcome.result.item() == 2 - 4j and not outcome.kernels
    assert outcome.reasons & {"dtype", "tensor-kind"}


# -- gradients, modules, random numbers, autocast ----------------------------------------------


def test_gradient_through_the_kernel() -> None:
    x = torch.tensor([-1.0, 2.0, NAN], requires_grad=True)
    fused = through(lambda x: torch.sigmoid(torch.relu(x) * 3), x.detach()).kernel
    fused(x).sum().backward()
    slope = torch.sigmoid(torch.tensor([0.0, 6.0]))
    assert x.grad is not None and x.grad[2].isnan()
    assert torch.allclose(x.grad[:2], torch.stack([torch.zeros(()), 3 * (slope * (1 - slope))[1]]))


def test_result_written_in_place_after_the_kernel() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    fused = through(lambda w: (w * 2.0).exp(), w.detach()).kernel
    y = fused(w)
    y.add_(1.0)  # eager refuses its backward; a recompute does not need y
    assert y._version == 1
    y.sum().backward()
    assert torch.allclose(w.grad, 2 * torch.exp(2 * w.detach()))
    v = torch.tensor([1.0, 2.0], requires_grad=True)
    h = v * 1.0
    y = fused(h)
    h.add_(1.0)  # what the recompute needs: must be noticed, not silently wrong
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_intermediate_that_is_returned_is_written() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.exp(x)
        return torch.tanh(h) * h, h

    outcome = through(run, torch.arange(4.0))
    assert len(outcome.kernel.signature.outputs) == 2


def test_dropout_splits_a_chain() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.relu(x) * 2, 0.5) * 1.0 + 0.0

    torch.manual_seed(1)
    wanted, state = run(torch.ones(8)), torch.get_rng_state()
    torch.manual_seed(1)
    outcome = through(run, torch.ones(8))
    assert torch.equal(outcome.result, wanted) and torch.equal(torch.get_rng_state(), state)
    assert set(outcome.result.tolist()) <= {0.0, 4.0} and "random" in outcome.reasons
    assert all("bernoulli_" not in names for names in outcome.fused_ops)


def test_fusing_consumes_no_random_numbers_and_no_buffers() -> None:
    norm = torch.nn.BatchNorm1d(3)
    twin = copy.deepcopy(norm)
    x = torch.randn(4, 3)
    twin(x)
    state = torch.get_rng_state()
    through(lambda x: torch.relu(norm(x) * 2.0 + 1.0), x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(norm.running_mean, twin.running_mean) and norm.num_batches_tracked == 1


def test_autocast_chain_and_the_same_chain_without() -> None:
    linear = torch.nn.Linear(4, 4)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.gelu(linear(x)) + x

    outcome = through(run, torch.randn(2, 4))
    assert outcome.result.dtype == torch.float32
    half, x = torch.randn(2, 4).bfloat16(), torch.randn(2, 4)
    assert outcome.kernel(half, x).dtype == torch.float32 and outcome.kernel.stats.fused == 2
    with pytest.warns(UserWarning, match="dtype"):
        wide = outcome.kernel(half.float(), x)
    assert torch.equal(wide, F.gelu(half.float()) + x)
