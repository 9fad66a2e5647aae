"""The accuracy sweep: its table is complete, current and within the budgets; a sample is repeated.

``make sweep`` runs all of it.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import maths_digest
import sweep
import sweep_judge
import sweep_kernels
import sweep_table
from sweep_kernels import Kernel
from swept_calls import SweptCall, not_swept, reference, swept_calls

from fusion_advisor import ops
from fusion_advisor.validation.cuda_compiler import toolchain_missing

pytestmark = pytest.mark.essential

CALLS = {call.name: call for call in swept_calls()}
BUDGETED = [call for call in CALLS.values() if call.budget_ulp and call.arity == 1]
# A prime, so that every exponent and all low bits come up: 127 thousand of 2**32 inputs.
STRIDE = 33_791
# One call of each op with a budget, and some of those that must equal eager; the CUDA kernel's IR
# and 16 bits for a share of them.
SAMPLE = [
    *{call.op: call.name for call in CALLS.values() if call.budget_ulp}.values(),
    *[call.name for call in CALLS.values() if not call.budget_ulp][::6],
]
ON_BOTH = SAMPLE[::5]
HALVES = list(zip(SAMPLE[::6], itertools.cycle(("float16", "bfloat16")), strict=False))


def test_every_op_of_the_table_is_swept_or_says_why_not() -> None:
    swept = {call.op for call in CALLS.values()}
    for row in ops.rows():
        assert (row.name in swept) != bool(not_swept(row.name)), row.name


def test_the_kept_table_has_every_call_within_the_budget_of_the_op_table() -> None:
    table = sweep_table.load()
    names = {sweep_table.key(call, dtype) for call in CALLS.values() for dtype in sweep.DTYPES}
    assert set(table) == names
    found = [
        f"{call.name} {dtype}: {problem}"
        for call in CALLS.values()
        for dtype in sweep.DTYPES
        for problem in _wrong(call, table[sweep_table.key(call, dtype)])
    ]
    assert found == []


def _wrong(call: SweptCall, row: dict[str, Any]) -> list[str]:
    if "open" in row:
        return [row["open"]]
    found = sweep_table.problems(row)
    if row["budget_ulp"] != call.budget_ulp:
        found.append("the budget is another one now: run make sweep")
    missing = [target for target in sweep.TARGETS if target not in row]
    return found + [f"was not swept on {target}" for target in missing]


def test_the_kept_table_is_about_the_kernels_that_are_generated_now() -> None:
    table = sweep_table.load()
    stale = []
    for call in CALLS.values():
        source = sweep_kernels.source_of(call, torch.float32)
        kept = table[sweep_table.key(call, "float32")]["cpu"]["digest"]
        if sweep_kernels.kernel(call, source, "cpu").digest != kept:
            stale.append(call.op.split(".")[1])
    ops_text = ",".join(dict.fromkeys(stale))
    assert not stale, f'their kernels have changed: run make sweep ARGS="--ops {ops_text}"'


def test_the_page_shows_the_kept_table() -> None:
    assert sweep_table.PAGE.read_text(encoding="utf-8") == sweep_table.render(sweep_table.load())


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_all_float32_keeps_the_budget(name: str) -> None:
    call = CALLS[name]
    targets = tuple(sweep.TARGETS) if name in ON_BOTH else ("cpu",)
    if "cuda" in targets and toolchain_missing():
        pytest.skip(toolchain_missing())
    row = sweep.measure(
        call, "float32", sweep.kernels_of(call, "float32", targets), STRIDE, offset=17
    )
    assert row["cpu"]["inputs"] > 100_000
    assert sweep_table.problems(row) == []


@pytest.mark.parametrize("target", list(sweep.TARGETS))
@pytest.mark.parametrize(
    "name",
    [
        "elu_backward.default(x, 1.0, 1.0, 1.0, False, y)",
        "softplus_backward.default(x, y, 1.0, 20.0)",
    ],
)
def test_a_huge_gradient_does_not_show_what_a_subnormal_exponential_has_lost(
    name: str, target: str
) -> None:
    if target == "cuda" and toolchain_missing():
        pytest.skip(toolchain_missing())
    call = CALLS[name]
    gradient, x = (
        side.ravel().astype(np.float32)
        for side in np.meshgrid(np.geomspace(1e20, 3.4e38, 64), np.linspace(-200.0, -85.0, 1024))
    )
    (kernel,) = sweep.kernels_of(call, "float32", (target,)).values()
    result = np.empty_like(x)
    kernel.prepare()(gradient, x, result)
    true = gradient.astype(np.float64) * np.exp(x.astype(np.float64))  # of both, below -85
    assert (np.abs(result - true) * sweep_judge.inverse_ulp(true, None)).max() < 4.0


@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_all_16_bit_inputs_keep_the_budget(name: str, dtype: str) -> None:
    call = CALLS[name]
    row = sweep.measure(call, dtype, sweep.kernels_of(call, dtype, ("cpu",)), stride=1)
    assert row["cpu"]["inputs"] >= 1 << 16
    assert sweep_table.problems(row) == []


# --- the yardstick itself ----------------------------------------------------------------------


def _elu(x: Any, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> Any:
    return x * scale if x > 0 else alpha * scale * mpmath.expm1(x * inner)


def _power(base: Any, exponent: Any) -> Any:
    if base < 0 and exponent != int(exponent):
        return mpmath.nan
    return base**exponent


def _entropy(x: Any) -> Any:
    return -x * mpmath.log(x) if x > 0 else (mpmath.mpf(0) if x == 0 else -mpmath.inf)


def _single(value: float) -> Any:
    """A number as a float32 kernel knows it."""
    return mpmath.mpf(float(np.float32(value)))


def _softplus(x: Any, beta: float, threshold: float) -> Any:
    return x if x * beta > threshold else mpmath.log1p(mpmath.exp(beta * x)) / beta


SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
EXACT: dict[str, Callable[[Any], Any]] = {
    **{
        f"{name}.default(x)": getattr(mpmath, name)
        for name in (
            *("exp", "expm1", "log", "log10", "log1p", "tanh", "sinh", "cosh", "erf", "erfc"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sqrt"),
        )
    },
    "exp2.default(x)": lambda x: mpmath.mpf(2) ** x,
    "log2.default(x)": lambda x: mpmath.log(x, 2),
    "rsqrt.default(x)": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid.default(x)": lambda x: 1 / (1 + mpmath.exp(-x)),
    "silu.default(x)": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu.default(x)": lambda x: x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2,
    "gelu.default(x, approximate=tanh)": lambda x: (
        x / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))
    ),
    "mish.default(x)": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "log_sigmoid_forward.default(x)": lambda x: -mpmath.log1p(mpmath.exp(-x)),
    "softplus.default(x)": lambda x: _softplus(x, 1.0, 20.0),
    "softplus.default(x, 2.0, 3.0)": lambda x: _softplus(x, 2.0, 3.0),
    "softplus.default(x, 0.7, 20.0)": lambda x: _softplus(x, _single(0.7), 20.0),
    "elu.default(x)": _elu,
    "celu.default(x)": _elu,
    "selu.default(x)": lambda x: _elu(x, SELU_ALPHA, SELU_SCALE),
    "elu.default(x, 1.5, 1.2, 0.7)": lambda x: _elu(x, 1.5, _single(1.2), _single(0.7)),
    "logit.default(x)": lambda x: mpmath.log(x / (1 - x)),
    "sinc.default(x)": lambda x: mpmath.sinc(mpmath.pi * x),
    "special_entr.default(x)": _entropy,
    **{
        f"pow.Tensor_Scalar(x, {power})": lambda x, power=power: _power(x, _single(power))
        for power in (2.0, 3.0, 0.5, -0.5, -1.0, -2.0, 1.7, 4.0, -3.0)
    },
    **{
        f"pow.Scalar({base}, x)": lambda x, base=base: _single(base) ** x
        for base in (2.0, 0.3, 10.0)
    },
    "xlogy.Scalar_Self(1.7, x)": lambda x: _single(1.7) * mpmath.log(x),
    "xlogy.Scalar_Other(x, 1.7)": lambda x: x * mpmath.log(_single(1.7)),
    "special_xlog1py.self_scalar(1.7, x)": lambda x: _single(1.7) * mpmath.log1p(x),
    "special_xlog1py.other_scalar(x, 1.7)": lambda x: x * mpmath.log1p(_single(1.7)),
    "logit.default(x, 0.1)": lambda x: EXACT["logit.default(x)"](
        min(max(x, mpmath.mpf(0.1)), mpmath.mpf(1.0 - 0.1))
    ),
}


@pytest.mark.parametrize("call", BUDGETED, ids=lambda call: call.name)
def test_the_true_values_are_true(call: SweptCall) -> None:
    """Against mpmath, at random numbers and wherever the kept table has its largest errors."""
    generator = np.random.default_rng(5)
    points = list(generator.standard_normal(30) * 4.0)
    points += list(np.exp(generator.uniform(-80.0, 80.0, 30)) * generator.choice([-1, 1], 30))
    points += [*generator.uniform(0.0, 1.0, 20), *(1.0 + generator.exponential(3.0, 20))]
    row = sweep_table.load().get(sweep_table.key(call, "float32"), {})
    points += [row.get(who, {}).get("at", [1.0])[0] for who in ("cpu", "cuda", "eager")]
    x = np.array(points, np.float32)
    true = reference(call)(torch.from_numpy(x.astype(np.float64))).numpy()
    by_operand = call.info.error_scale == "operand"
    scale = sweep_judge.inverse_ulp(true, x.astype(np.float64) if by_operand else None)
    checked = 0
    for value, found, per_ulp in zip(x, true, scale, strict=True):
        with mpmath.workprec(400):
            exact = EXACT[call.name](mpmath.mpf(float(value)))
        if not isinstance(exact, mpmath.mpf) or not mpmath.isfinite(exact):
            continue  # complex outside of the domain: NaN, which the sweep's special values cover
        if abs(exact) < 2.0**128 and math.isfinite(found):
            checked += 1
            assert abs(exact - float(found)) * per_ulp < 1e-4, (float(value), float(found), exact)
    assert checked >= 20


def _planted(call: SweptCall, change: Callable[[np.ndarray, np.ndarray], None]) -> dict[str, Any]:
    """The row of a kernel whose results were changed: ``change(operand, results)``."""
    right = sweep.kernels_of(call, "float32", ("cpu",))["cpu"]

    def prepare() -> Callable[..., None]:
        run = right.prepare()

        def wrong(x: np.ndarray, out: np.ndarray) -> None:
            run(x, out)
            change(x, out)

        return wrong

    kernel = Kernel("planted", right.outputs, prepare)
    return sweep.measure(call, "float32", {"cpu": kernel}, STRIDE)


def _off_by(steps: int, low: float, high: float) -> Callable[[np.ndarray, np.ndarray], None]:
    def change(x: np.ndarray, out: np.ndarray) -> None:
        bits = out.view(np.int32)
        bits[(x > low) & (x < high)] += steps

    return change


def _put(value: float, where: Callable[[np.ndarray], Any]) -> Callable[[Any, Any], None]:
    def change(x: np.ndarray, out: np.ndarray) -> None:
        out[where(x)] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("exp.default(x)", _off_by(2, 1.0, 1.01), "results over the budget"),
        ("exp.default(x)", _put(0.0, np.isnan), "NaN, infinities or signs wrong"),
        ("exp.default(x)", _put(3.4e38, np.isposinf), "NaN, infinities or signs wrong"),
        ("tanh.default(x)", _put(0.0, lambda x: np.signbit(x) & (x == 0)), "signs wrong"),
        ("sin.default(x)", _put(-0.0, lambda x: x == 0), "signs wrong"),
        ("log.default(x)", _off_by(1, 0.0, 1e-44), ""),  # one ULP is within two
        ("log.default(x)", _off_by(3, 0.0, 1e-40), "results over the budget"),
        ("relu.default(x)", _off_by(1, 1.0, 1.01), "results over the budget"),
        ("relu.default(x)", _put(0.0, lambda x: np.signbit(x) & (x == 0)), "results over"),
    ],
)
def test_planted_errors_are_found(
    name: str, change: Callable[[np.ndarray, np.ndarray], None], expected: str
) -> None:
    found = sweep_table.problems(_planted(CALLS[name], change))
    assert bool(found) == bool(expected)
    assert not expected or expected in " ".join(found)


def test_an_error_between_eager_and_the_truth_is_not_charged() -> None:
    true = np.array([1.0, 1.0, 1.0, 1.0])
    step = 2.0**-23
    eager = np.array([1.0 + 10 * step] * 4, np.float32)
    got = np.array([1.0 + 5 * step, 1.0 + 10 * step, 1.0 + 11 * step, 1.0 - step], np.float32)
    chunk = sweep_judge.Chunk(true, sweep_judge.inverse_ulp(true, None))
    judged = sweep_judge.judge(got, chunk, eager)
    assert judged.errors.tolist() == [5.0, 10.0, 11.0, 1.0]
    assert judged.charged.tolist() == [0.0, 0.0, 11.0, 1.0]


def test_the_scale_of_a_cancelling_op_is_its_operands() -> None:
    true, operand = np.array([2.0**-30, 4.0]), np.array([1.0, 1.0])
    got = np.array([2.0**-30 + 2.0**-23, 4.0 + 2.0**-21], np.float32)
    by_result = sweep_judge.Chunk(true, sweep_judge.inverse_ulp(true, None))
    by_operand = sweep_judge.Chunk(true, sweep_judge.inverse_ulp(true, operand))
    nothing = np.full(2, np.nan, np.float32)
    assert sweep_judge.judge(got, by_result, nothing).errors.tolist() == [2.0**30, 1.0]
    assert sweep_judge.judge(got, by_operand, nothing).errors.tolist() == [1.0, 1.0]


def test_a_digest_follows_what_a_kernel_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "out[i] = cpu_math.tanh(x[i])"
    other = "out[i] = cpu_math.log(x[i])"
    before = maths_digest.digest(text, single=True), maths_digest.digest(other, single=True)
    definitions = dict(maths_digest._definitions("float32_math"))
    # tanh calls exp, exp has its coefficients: three steps away.
    definitions["_EXP_TAIL"] = definitions["_LOG"]
    kept = maths_digest._definitions
    monkeypatch.setattr(
        maths_digest, "_definitions", lambda m: definitions if m == "float32_math" else kept(m)
    )
    after = maths_digest.digest(text, single=True), maths_digest.digest(other, single=True)
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
