"""Integer division, powers, shifts, ldexp: both kernels against eager and Python integers."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from forms_support import recorded
from kernel_harness import load

from fusion_advisor import workers
from fusion_advisor.analysis import find_candidates
from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.partition import Partition, make_candidate
from fusion_advisor.codegen import generate, lower
from fusion_advisor.errors import ValidationError
from fusion_advisor.runtime import FusionFallbackWarning
from fusion_advisor.validation import arrays, in_process
from fusion_advisor.validation.cuda_compiler import compile_cuda
from fusion_advisor.validation.execution import ExecutionRequest
from fusion_advisor.validation.native_module import translate
from fusion_advisor.validation.session import RaisingCase, Session

pytestmark = pytest.mark.essential

INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
LARGE = 40_000  # elements: the parallel twin


def kernel_of(function, *args):
    """The kernel of a call's only computing op, its recording and candidate."""
    recording = recorded(function, *args)
    index = index_graph(recording.graph)
    (place,) = (i for i, node in enumerate(index.nodes) if node.kind == "elementwise")
    candidate = make_candidate(index, Partition(index).look([place]), "one", ())
    kernel = generate(lower(recording.graph, candidate, name="fused"), recording.graph)
    return kernel, recording, candidate


def fused_of(function, *args):
    kernel, _, _ = kernel_of(function, *args)
    return load(kernel)[kernel.entry]


def natively(function, *args):
    """What the CUDA kernel's own IR gives on this CPU."""
    kernel, recording, candidate = kernel_of(function, *args)
    compiled = compile_cuda(kernel, (9, 0))
    host = translate(compiled.modules, compiled.name, compiled.architecture)
    (seen,) = arrays.seen_regions(recording.graph, candidate, args)
    spec = arrays.launch_spec(kernel.program, (seen,), ())
    outcomes = workers.run_isolated(
        "fusion_advisor.validation.execution:execute",
        ExecutionRequest(cases=(("only", spec),), host=host),
        timeout_s=120.0,
    )
    assert not any(outcome.trespasses for outcome in outcomes)
    return outcomes[0].outputs[0].tolist()


def pairs(dtype, *, zero=False):
    """Every pair of telling values: both signs, extremes, powers of two; divisors without 0."""
    info = torch.iinfo(getattr(torch, dtype))
    telling = {0, 1, 2, 3, 5, 7, 8, 100, info.max - 1, info.max, 2**53 + 1, 2**62 + 3}
    telling |= {-value for value in telling} | {info.min, info.min + 1}
    values = sorted(value for value in telling if info.min <= value <= info.max)
    chosen = [(a, b) for a, b in itertools.product(values, values) if zero or b != 0]
    left, right = zip(*chosen, strict=True)
    return torch.tensor(left, dtype=info_dtype(dtype)), torch.tensor(right, dtype=info_dtype(dtype))


def info_dtype(dtype):
    return getattr(torch, dtype)


def wrapped(value, dtype):
    info = torch.iinfo(info_dtype(dtype))
    return (value - info.min) % (info.max - info.min + 1) + info.min


def truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


DIVISIONS = {
    "floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), lambda a, b: a // b),
    "trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), truncated),
    "remainder": (torch.remainder, lambda a, b: a % b),
    "fmod": (torch.fmod, lambda a, b: a - truncated(a, b) * b),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", DIVISIONS)
def test_quotients_and_remainders_are_exact_for_all_signs_and_wrap(name, dtype):
    function, exact = DIVISIONS[name]
    x, y = pairs(dtype)
    # (Eager itself dies where it truncates the smallest integer by -1: it is not asked.)
    fused = fused_of(function, torch.ones_like(x), torch.ones_like(y))
    expected = [wrapped(exact(a, b), dtype) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    for parallel in (False, True)[: 1 + (dtype == "int32")]:
        (result,) = fused.run_cpu((x, y), parallel=parallel)
        assert result.tolist() == expected
    assert fused(x, y).tolist() == expected  # by addresses
    if name != "trunc":
        assert function(x, y).tolist() == expected


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
@pytest.mark.parametrize("name", ["trunc", "remainder"])
def test_the_cuda_kernel_neither_traps_nor_differs(name, dtype):
    function, exact = DIVISIONS[name]
    x, y = pairs(dtype, zero=True)
    kernel_x, kernel_y = torch.ones_like(x), torch.ones_like(y)
    kernel, recording, candidate = kernel_of(function, kernel_x, kernel_y)
    assert "zero_divisor" not in kernel.text.split("@cpu_kernel")[0]
    compiled = compile_cuda(kernel, (9, 0))
    host = translate(compiled.modules, compiled.name, compiled.architecture)
    (seen,) = arrays.seen_regions(recording.graph, candidate, (x, y))
    spec = arrays.launch_spec(kernel.program, (seen,), ())
    (outcome, _) = workers.run_isolated(
        "fusion_advisor.validation.execution:execute",
        ExecutionRequest(cases=(("only", spec),), host=host),
        timeout_s=120.0,
    )
    rows = zip(x.tolist(), y.tolist(), outcome.outputs[0].tolist(), strict=True)
    assert all(found == wrapped(exact(a, b or 1), dtype) for a, b, found in rows)
    assert outcome.zero_divisor is None


@pytest.mark.parametrize("rounding", ["floor", "trunc"])  # trunc: where eager's process dies
def test_a_known_divisor_of_minus_one_wraps(rounding):
    least = torch.iinfo(torch.int64).min
    x = torch.tensor([least, least + 1, 7])
    fused = fused_of(lambda x: torch.div(x, -1, rounding_mode=rounding), torch.ones_like(x))
    assert fused(x).tolist() == [least, -(least + 1), -7]
    assert "zero_divisor" not in fused.cpu.py_func.__code__.co_varnames


def test_quotients_beyond_53_bits_are_exact():
    x, y = torch.tensor([2**62 + 3, -(2**62) - 3]), torch.tensor([3, 3])
    fused = fused_of(lambda x, y: x // y, torch.ones_like(x), y)
    assert fused(x, y).tolist() == [(2**62 + 3) // 3, (-(2**62) - 3) // 3]


@pytest.mark.parametrize("count", [5, LARGE])
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_zero_divisor_raises_torchs_own_error_and_is_counted(name, count):
    function, _ = DIVISIONS[name]
    x, y = torch.arange(count) - 2, torch.ones(count, dtype=torch.int64)
    fused = fused_of(function, x, y)
    y[count - 1] = 0
    before = x.clone(), y.clone()
    with pytest.raises(RuntimeError) as of_eager:
        function(x, y)
    for attempt in range(3):  # while it is planned, and on the fast path
        telling = pytest.warns(FusionFallbackWarning) if not attempt else nullcontext()
        with telling, pytest.raises(RuntimeError) as raised:
            fused(x, y)
        assert str(raised.value) == str(of_eager.value) == "ZeroDivisionError"
    assert fused.stats.fallbacks == {"a divisor is zero": 3}
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    y[count - 1] = 3  # the kind of call is not given up for one value
    assert torch.equal(fused(x, y), function(x, y))
    assert fused.stats.fused == 1


@pytest.mark.parametrize("count", [5, LARGE])
@pytest.mark.parametrize("overwritten", [0, 1])
def test_a_zero_divisor_is_found_in_the_operand_that_results_overwrite(overwritten, count):
    fused = fused_of(lambda x, y: x // y, *torch.ones(2, count, dtype=torch.int64))
    fused.reset_stats()
    operands = torch.arange(count) + 7, torch.full((count,), 2)
    expected = operands[0] // operands[1]
    operands[1][1] = 0
    before = operands[0].clone(), operands[1].clone()
    with pytest.warns(FusionFallbackWarning), pytest.raises(RuntimeError, match="ZeroDivision"):
        fused.into(operands[overwritten], *operands)
    assert torch.equal(operands[0], before[0])
    assert torch.equal(operands[1], before[1])
    operands[1][1] = 2
    version = operands[overwritten]._version
    assert torch.equal(fused.into(operands[overwritten], *operands), expected)
    assert operands[overwritten]._version == version + 1


def test_a_zero_that_no_result_shows_raises_as_well():
    def call(x, y):
        return torch.where(y == 0, x, x // y)

    x, y = torch.arange(6), torch.ones(6, dtype=torch.int64)
    recording = recorded(call, x, y)
    (candidate,) = find_candidates(recording.graph)
    kernel = generate(lower(recording.graph, candidate, name="fused"), recording.graph)
    fused = load(kernel)[kernel.entry]
    assert torch.equal(fused(y, x), x)  # in the order of their first use
    y[2] = 0
    with (
        pytest.warns(FusionFallbackWarning, match="a divisor is zero"),
        pytest.raises(RuntimeError, match="ZeroDivisionError"),
    ):
        fused(y, x)


def test_a_view_that_might_hide_a_zero_divisor_is_not_read_through():
    def part(x, y):
        return (x // y)[1:] + 1

    def whole(x, y):
        return (x // y).t() + 1

    x = torch.arange(12).reshape(3, 4)
    y = torch.ones_like(x)
    assert not find_candidates(recorded(part, x, y).graph)
    assert len(find_candidates(recorded(whole, x, y).graph)) == 1
    assert len(find_candidates(recorded(lambda x: (x // 3)[1:] + 1, x).graph)) == 1


def test_a_zero_divisor_behind_a_view_is_among_the_validators_cases():
    def call(x, y):
        return (x // y).t() + 1

    x = torch.arange(12).reshape(3, 4)
    recording = recorded(call, x, torch.ones_like(x))
    (candidate,) = find_candidates(recording.graph)
    assert candidate.regions
    kernel = generate(lower(recording.graph, candidate, name="fused"), recording.graph)
    session = Session(kernel, recording.graph, candidate, call, call, None)
    session.prepare()
    assert session.raising
    assert all((one.case.tensors[1] == 0).any() for one in session.raising)
    tried = [replace(session, prepared=session.prepared[:1], raising=session.raising[:1])]
    tried += [replace(tried[0], raising=[RaisingCase(session.raising[0].case, KeyError("1"))])]
    assert in_process.check_calls(tried[0]).cases == 2
    with pytest.raises(ValidationError, match="eager KeyError"):
        in_process.check_calls(tried[1])


def test_an_empty_result_of_what_is_not_empty_is_left_to_eager():
    def call(x, y, z):
        return x // y + z

    x, y, z = torch.ones(1, 1).long(), torch.ones(1, 1).long(), torch.ones(2, 3).long()
    recording = recorded(call, x, y, z)
    (candidate,) = find_candidates(recording.graph)
    kernel = generate(lower(recording.graph, candidate, name="fused"), recording.graph)
    fused = load(kernel)[kernel.entry]
    with pytest.warns(FusionFallbackWarning), pytest.raises(RuntimeError, match="ZeroDivision"):
        fused(x, torch.zeros_like(y), z[:0])


@pytest.mark.parametrize(
    "call", [lambda y: 7 // y, lambda y: 7 % y, lambda y: torch.remainder(-7, y)]
)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_number_is_divided_by_a_tensor(call, dtype):
    y = torch.tensor([1, 2, 3, 100, 127], dtype=info_dtype(dtype))
    fused = fused_of(call, y)
    assert fused(y).tolist() == call(y).tolist()
    assert fused(y).dtype == y.dtype


def test_negative_numbers_wrap_in_uint8():
    x = torch.tensor([0, 7, 254, 255], dtype=torch.uint8)
    fused = fused_of(lambda x: x // -1, x)
    assert fused(x).tolist() == [0, 0, 0, 1]  # by 255


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["pow", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm"])
def test_powers_shifts_and_common_factors_are_eagers_on_both_targets(name, dtype):
    function = getattr(torch, name)
    x, y = pairs(dtype, zero=True)
    if name in ("gcd", "lcm") and dtype in ("int32", "int64"):  # eager is undefined there
        keep = (x != torch.iinfo(x.dtype).min) & (y != torch.iinfo(x.dtype).min)
        x, y = x[keep], y[keep]
    expected = function(x, y).tolist()
    fused = fused_of(function, x, y)
    assert fused(x, y).tolist() == expected
    if dtype == ("int64" if name == "pow" else "int8"):
        assert natively(function, x, y) == expected


def test_powers_follow_a_table():
    table = [  # base, exponent, result: negative exponents give the inverse rounded towards zero
        (0, 0, 1), (0, 5, 0), (0, -1, 0), (1, -7, 1), (-1, -7, -1), (-1, -8, 1), (2, -1, 0),
        (-3, 3, -27), (3, 39, 3**39), (7, 22, 7**22), (2, 63, -(2**63)), (2, 64, 0),
    ]  # fmt: skip
    base, exponent, expected = (torch.tensor(column) for column in zip(*table, strict=True))
    fused = fused_of(torch.pow, base, exponent)
    assert fused(base, exponent).tolist() == expected.tolist()


def test_shifts_follow_a_table():
    table = [  # value, count, left, right
        (-5, 1, -10, -3), (5, 62, 2**62, 0), (5, 63, -(2**63), 0), (-5, 63, -(2**63), -1),
        (5, 64, 0, 0), (-5, 64, 0, -1), (5, -1, 0, 0), (-5, -1, 0, -1), (-5, -(2**63), 0, -1),
    ]  # fmt: skip
    value, count, left, right = (torch.tensor(column) for column in zip(*table, strict=True))
    assert fused_of(torch.bitwise_left_shift, value, count)(value, count).tolist() == left.tolist()
    assert fused_of(lambda x, n: x >> n, value, count)(value, count).tolist() == right.tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_ldexp_rounds_once_and_its_exponent_wraps_to_32_bits(dtype):
    info = torch.finfo(info_dtype(dtype))
    values = [1.0, -1.5, 1 + info.eps, info.max, info.tiny, info.smallest_normal * 1.25, 3.1]
    values += [float("inf"), float("nan"), 0.0, -0.0]
    counts = [
        0,
        1,
        -1,
        15,
        -24,
        -25,
        -26,
        -148,
        -149,
        -150,
        127,
        300,
        -1050,
        -1074,
        -2100,
        2**31 - 1,
    ]
    counts += [2**31, 2**32 + 3, -(2**40), 2**63 - 1]
    rows = list(itertools.product(values, counts))
    x = torch.tensor([row[0] for row in rows], dtype=torch.float64).to(info_dtype(dtype))
    n = torch.tensor([row[1] for row in rows])
    expected = torch.ldexp(x, n)
    result = fused_of(torch.ldexp, x, n)(x, n)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(
        torch.signbit(result[~expected.isnan()]), expected[~expected.isnan()].signbit()
    )
    if dtype == "float64":
        found = np.array(natively(torch.ldexp, x, n))
        np.testing.assert_array_equal(found, expected.numpy())
