"""Whole classes of known mistakes: the same program over dtypes, shapes, layouts and values.

A program is recorded on its first inputs and fused; its kernel must then give eager's results on
all of them.  ``test_fault_classes`` says which class is where.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused_runs import through

from fusion_advisor.analysis import find_candidates
from fusion_advisor.analysis.cost import estimate
from fusion_advisor.analysis.findings import MIN_SAVING_US
from fusion_advisor.analysis.pipeline import ASSUMED_CEILINGS
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.runtime import launch_cuda

pytestmark = pytest.mark.essential

F = torch.nn.functional
INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 20.0, -20.0)


def special(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(SPECIAL, dtype=dtype)


def agree(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Same kind of tensor, same NaNs, same signs of zero, and the same values."""
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    if not got.is_floating_point():
        assert torch.equal(got, wanted)
        return
    assert torch.equal(got.isnan(), wanted.isnan())
    known = ~wanted.isnan()
    assert torch.equal(torch.signbit(got[known]), torch.signbit(wanted[known]))
    assert torch.equal(got[known], wanted[known])


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every two special values beside each other, but for two zeros of different sign.

    Of those eager's maximum is one or the other, by the number of elements.
    """
    values = special(dtype)
    a, b = values.repeat_interleave(len(values)), values.repeat(len(values))
    kept = (a != 0) | (b != 0) | (torch.signbit(a) == torch.signbit(b))
    return a[kept].clone(), b[kept].clone()


def several_kinds(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.maximum(a, b) + 0.0, torch.minimum(a, b) * 1.0, torch.fmax(a, b) * 1.0


def clamped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.clamp(a, min=b)) + F.hardtanh(a) * 1.0


def zeros_signed(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        -a,
        a + 0.0,
        a * 1.0,
        torch.ceil(a * 0.5) + 0.0,
        torch.minimum(a, b),
        torch.copysign(a, b),
    )


def floor_family(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.remainder(a, b) * 1.0, torch.fmod(a, b) * 1.0, torch.trunc(a) + torch.round(b)


def products(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return a * b - a, a * a + b, (a - b) * 3.0 - a, a / 3.0 * b


def equal_after_division(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a / 3.0) == (b / 3.0)) & (a * 0.1 >= b * 0.1)


FAMILIES: dict[str, Callable[..., Any]] = {
    "NaN from either operand": several_kinds,
    "NaN through bounds": clamped,
    "signed zeros": zeros_signed,
    "remainders": floor_family,
    "products feeding sums": products,
    "equality after a rounded division": equal_after_division,
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pairs_of_special_values(name: str, dtype: torch.dtype) -> None:
    outcome = through(FAMILIES[name], *pairs(dtype), exact=True)
    assert outcome.kernels and not outcome.refusals and not outcome.reasons


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_product_is_contracted_into_a_sum(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(4096, dtype=dtype, generator=generator) for _ in range(2))
    assert len(through(products, a, b, exact=True).kernels) == 4


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers_wrap_and_stay_exact(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.min + 1, info.max, info.max - 1, 0, 1, 7, 100], dtype=dtype)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = x * x + 3
        return torch.where(p < 5, p.abs(), p), x * 3 - x * 2, -x, x**3 + 1

    assert len(through(run, x, exact=True).kernels) == 3  # the negation stands alone


@pytest.mark.parametrize("dtype", WHOLE[:4], ids=str)
def test_signs_of_whole_quotients(dtype: torch.dtype) -> None:
    x = torch.arange(-9, 10, dtype=dtype)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.remainder(x, 4) + 0,
            torch.fmod(x, -4) + 0,
            torch.div(x, -3, rounding_mode="floor") + 0,
            torch.div(x, 3, rounding_mode="trunc") + 0,
        )

    outcome = through(run, x, exact=True)
    assert outcome.result[0].tolist() == [n % 4 for n in range(-9, 10)]
    assert outcome.result[2].tolist() == [n // -3 for n in range(-9, 10)]
    assert len(outcome.kernels) == 4 or outcome.reasons  # or refused, never another sign


def test_what_eager_refuses_is_refused_by_the_function_too() -> None:
    difference = through(lambda a, b: (a - b) * 2, torch.ones(3), torch.ones(3)).kernel
    powers = through(lambda x: (x**2) + 1.0, torch.ones(3)).kernel
    true = torch.ones(3, dtype=torch.bool)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="bool"):
            difference(true, true)
        assert torch.equal(powers(torch.tensor([3, -4, 0])), torch.tensor([10.0, 17.0, 1.0]))
    with pytest.raises(RuntimeError, match="negative integer powers"):
        torch.pow(torch.tensor([2]), -1)  # what no recording can hold


@pytest.mark.parametrize("small", [torch.bfloat16, torch.float16, torch.int8, torch.float64])
def test_casts_in_the_middle_survive(small: torch.dtype) -> None:
    x = torch.tensor([1.001, -3.25, 1 + 2**-8, 1 + 3 * 2**-8, 100.5, -0.0, 65.519])
    kernel = through(lambda x: (x * 1.0).to(small).float() * 1000.0, x).kernel
    agree(kernel(x), (x * 1.0).to(small).float() * 1000.0)


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "far out": lambda x: F.softplus(x) * 1.0,
    "far left": lambda x: F.gelu(x, approximate="tanh") * 1.0,
    "domain": lambda x: torch.log(x) * torch.sqrt(x),
    "logistic": lambda x: F.silu(x) * torch.sigmoid(x),
    "powers": lambda x: (x**0) * (x**-2),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_activations_at_special_values(name: str, dtype: torch.dtype) -> None:
    run, x = ACTIVATIONS[name], special(dtype)
    got, wanted = through(run, x).kernel(x), run(x)
    assert torch.equal(got.isnan(), wanted.isnan()) and torch.equal(got.isinf(), wanted.isinf())
    known = wanted.isfinite()
    rtol = {torch.float64: 1e-13, torch.bfloat16: 2**-7, torch.float16: 2**-9}[dtype]
    torch.testing.assert_close(got[known], wanted[known], rtol=rtol, atol=1e-300 + rtol * 1e-6)


# -- shapes ------------------------------------------------------------------------------------

SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((3, 1), (1, 4), (4,)),
    ((4,), (5, 1), ()),
    ((), (2, 3), (1, 1)),
    ((2, 1, 3), (4, 1), (1,)),
    ((0, 3), (1, 3), (3,)),
)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_shape_comes_from_all_operands(shapes: tuple[tuple[int, ...], ...]) -> None:
    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (a * 2.0).mul(b).add(c)

    inputs = tuple(torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
                   for shape in shapes)  # fmt: skip
    outcome = through(run, *inputs)
    assert outcome.result.shape == torch.broadcast_shapes(*shapes)
    if outcome.result.numel():
        agree(outcome.kernel(*inputs), run(*inputs))


@pytest.mark.parametrize(
    ("dtype", "other"),
    [(torch.float32, torch.float64), (torch.bfloat16, torch.int64), (torch.float16, torch.float32),
     (torch.int8, torch.int64), (torch.int32, torch.float64), (torch.float64, torch.bool)],
)  # fmt: skip
def test_zero_dim_operands_of_other_dtypes(dtype: torch.dtype, other: torch.dtype) -> None:
    x, s = torch.arange(6).to(dtype), torch.tensor([9, 2, 1]).to(other)[1]
    outcome = through(lambda x, s: x * s + s, x, s)
    assert outcome.result.dtype == (x * s).dtype
    agree(outcome.kernel(x, s), x * s + s)


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "channels last": lambda d: torch.arange(120).to(d).view(2, 4, 5, 3).permute(0, 3, 1, 2),
    "channels last, 3 dimensions": lambda d: (
        torch.arange(240).to(d).view(2, 4, 5, 2, 3).permute(0, 4, 1, 2, 3)
    ),
    "permuted": lambda d: torch.arange(24).to(d).view(2, 3, 4).permute(2, 0, 1),
    "a window": lambda d: torch.arange(40).to(d).view(5, 8)[1:4, 2:7],
    "odd stride of size 1": lambda d: torch.arange(40).to(d).view(5, 8)[:1, :6],
    "off by one": lambda d: torch.arange(34).to(d)[1:],
    "off by three": lambda d: torch.arange(36).to(d)[3:],
    "every second": lambda d: torch.arange(40).to(d)[::2],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_lie_as_eagers_do(name: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[name](dtype)
    outcome = through(lambda x: torch.relu(x * 2.0 - 5.0) + x, x)
    agree(outcome.kernel(x), torch.relu(x * 2.0 - 5.0) + x)


# -- views and writes --------------------------------------------------------------------------

WINDOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "complex and back": lambda z: torch.view_as_real(torch.view_as_complex(z)),
    "flat, every second": lambda z: z.view(-1)[::2],
    "transposed": lambda z: z.t(),
    "one row, expanded": lambda z: z[0].expand(3, 2),
    "as bits": lambda z: z.view(torch.int32),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_several_views_of_one_intermediate(name: str) -> None:
    window = WINDOWS[name]

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x + 1.0
        return window(z) * 10, z, z.view(2, 2) * 2.0

    x = torch.arange(4.0).view(2, 2)
    outcome = through(run, x)
    assert torch.equal(outcome.result[0], window(x + 1.0) * 10)
    assert torch.equal(outcome.result[1], x + 1.0)


@pytest.mark.parametrize("to", [torch.int32, torch.float32, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("source", [torch.int64, torch.float64], ids=str)
def test_a_dtype_view_is_read_before_the_write(source: torch.dtype, to: torch.dtype) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.view(to) + 1
        x.zero_()
        return y * 2

    x = torch.tensor([5, 7, -1]).to(source)
    twin = x.clone()
    outcome = through(run, x)
    assert torch.equal(outcome.result.nan_to_num(), run(twin).nan_to_num()) and not x.any()


IDENTITIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout in evaluation": lambda x: F.dropout(x, 0.9, training=False),
    "contiguous": lambda x: x.contiguous(),
    "cast to its own dtype": lambda x: x.to(x.dtype),
    "reshape": lambda x: x.reshape(3),
    "expansion": lambda x: x.expand(3),
    "identity module": torch.nn.Identity(),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_returns_its_input_passes_writes_on(name: str) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = IDENTITIES[name](x)
        y += 4
        return y.neg() * 2.0

    x = torch.ones(3)
    outcome = through(run, x)
    assert x.tolist() == [5.0] * 3 and outcome.result.tolist() == [-10.0] * 3
    assert all("add_" not in names for names in outcome.fused_ops)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_results_given_with_out_are_written(dtype: torch.dtype) -> None:
    x, target = torch.arange(6).to(dtype).view(2, 3), torch.zeros(3, 2, dtype=dtype).t()

    def run(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        given = torch.add(x * 2, 1, out=target)
        return given * 3

    outcome = through(run, x, target)
    assert torch.equal(target, x * 2 + 1) and target.stride() == (1, 2)
    assert torch.equal(outcome.result, (x * 2 + 1) * 3)


@pytest.mark.parametrize(
    "op",
    [F.hardswish, F.logsigmoid, F.mish, F.hardsigmoid, lambda x: x.to(torch.bfloat16),
     lambda x: F.prelu(x, torch.tensor([0.25])), lambda x: torch.floor_divide(x, 2.0),
     lambda x: F.threshold(x, 0.5, -1.0)],
)  # fmt: skip
def test_ops_without_torchs_tag_are_known(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.linspace(-4.0, 4.0, 24)
    outcome = through(lambda x: op(x * 1.5) * 2.0, x)
    assert len(outcome.kernels) == 1 and not outcome.refusals, outcome.reasons


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_pass_what_eagers_pass(dtype: torch.dtype) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.clamp(x, max=2.0) * 3.0) + x.abs()

    grads = []
    kernel = through(run, special(dtype)).kernel
    for function in (kernel, run):
        x = special(dtype).requires_grad_()
        function(x).sum().backward()
        grads.append(x.grad)
    agree(grads[0], grads[1])


# -- kernels and their cost --------------------------------------------------------------------


def test_no_kernel_calls_a_builtin_maximum() -> None:
    """``max`` of Python and of CUDA drop NaN, each in its own way."""
    x = torch.randn(8)
    with torch.no_grad():
        graph = record(lambda: clamped(x, x + 1.0), CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    tree = ast.parse(generate_kernel(graph, candidate).text)
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"max", "min", "math.fmax", "libdevice.fmaxf", "libdevice.fminf"}


def test_kernels_compute_in_their_own_types() -> None:
    big = torch.tensor([1e38, -1e38])
    assert through(lambda x: (x * 10.0) / 10.0, big).kernel(big).tolist() == [INF, -INF]
    top = torch.tensor([2**31 - 1], dtype=torch.int32)
    assert through(lambda x: (x + 1) * 1, top).kernel(top).tolist() == [-(2**31)]
    x = torch.tensor([-1.0, 0.0, 1e3])
    logs = through(lambda x: torch.log(x) + torch.exp(x), x).kernel(x)
    assert logs[0].isnan() and logs[1] == -INF and logs[2] == INF


@pytest.mark.parametrize(("elements", "worth"), [(16, False), (4096, False), (2**26, True)])
def test_small_tensors_are_not_worth_a_kernel(elements: int, worth: bool) -> None:
    x = torch.empty(elements, device="meta")
    graph = record(lambda: torch.relu(x * 2.0 - 1.0), CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    saved = estimate(graph, candidate, (), ASSUMED_CEILINGS).saved_mid_us
    assert (saved >= MIN_SAVING_US) is worth, saved


def test_a_driver_older_than_the_toolkit_leaves_the_model_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = pytest.importorskip("numba.cuda.cudadrv.driver")
    said = "Call to cuLinkAddData results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
    for error in (driver.CudaAPIError(222, said), driver.LinkerError(f"[222] {said}")):
        assert "driver is older than the toolkit" in launch_cuda.refusal(error)
    assert "cannot be launched here" in launch_cuda.refusal(driver.CudaAPIError(2, "no memory"))
    assert launch_cuda.refusal(RuntimeError("CUDA error: an illegal memory access")) == ""
    x = torch.randn(8)
    kernel = through(lambda x: torch.relu(x * 2.0), x).kernel
    kernel.reset_stats()

    def refused(*_: object) -> None:
        raise launch_cuda.CannotLaunchError(launch_cuda.refusal(driver.CudaAPIError(222, said)))

    monkeypatch.setattr(kernel, "_launch", refused)
    for inputs in (x, x.clone().requires_grad_()):
        kernel._forced = None
        kernel.reset_stats()
        with pytest.warns(UserWarning, match="update the driver"):
            assert torch.equal(kernel(inputs), torch.relu(x * 2.0))
    assert torch.equal(kernel(x), torch.relu(x * 2.0))  # without a second attempt
    assert kernel.stats.fused == 0 and sum(kernel.stats.fallbacks.values()) == 2
    kernel._forced = None
