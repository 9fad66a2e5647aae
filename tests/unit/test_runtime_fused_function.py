"""Fused functions: same results as the chain, guards, gradients, fallbacks, copies."""

from __future__ import annotations

import copy
import pickle
import sys
import types
import warnings
from typing import Any

import pytest
import runtime_samples as samples
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusion_advisor.errors import UsageError
from fusion_advisor.runtime import FusionFallbackWarning


@pytest.fixture(scope="module")
def gelu() -> dict[str, Any]:
    return samples.load(samples.GELU)


@pytest.fixture(scope="module")
def bias() -> dict[str, Any]:
    return samples.load(samples.BIAS)


@pytest.fixture(scope="module")
def two() -> dict[str, Any]:
    return samples.load(samples.TWO)


@pytest.fixture(autouse=True)
def fresh_counters(request: pytest.FixtureRequest) -> None:
    for name in ("gelu", "bias", "two"):
        if name in request.fixturenames:
            request.getfixturevalue(name)["fused"].reset_stats()


def assert_fused(function: Any, calls: int = 1) -> None:
    assert (function.stats.fused, function.stats.fallbacks) == (calls, {})


def fallback(function: Any, *args: Any) -> tuple[Any, str]:
    """The result of a call that must fall back with one warning, and the reason."""
    with pytest.warns(FusionFallbackWarning, match=function.name):
        result = function(*args)
    ((reason, count),) = function.stats.fallbacks.items()
    assert count == 1 and function.stats.fused == 0
    return result, reason


def bias_args(*shape: int, device: str = "cpu") -> list[torch.Tensor]:
    return [
        torch.randn(shape, device=device),
        torch.randn(shape[-1], device=device),
        torch.randn(shape, device=device),
        torch.randn(shape, device=device),
    ]


def test_sizes_are_run_time_values_and_no_call_falls_back(gelu: dict[str, Any]) -> None:
    function = gelu["fused"]
    shapes = [(2, 64, 32), (2, 200, 32), (1, 1, 1), (3, 0, 5), (2, 256, 700), (1, 7, 1)]
    for shape in shapes:
        x = torch.randn(shape)
        result, expected = function(x), gelu["eager_gelu"](x)
        assert result.shape == expected.shape and result.stride() == expected.stride()
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
    assert_fused(function, len(shapes))


def test_broadcast_strided_and_batch_of_one_are_bitwise_eager(bias: dict[str, Any]) -> None:
    function, eager = bias["fused"], bias["eager_bias"]
    for shape in ((2, 5, 7), (1, 5, 7), (1, 1, 7), (2, 3, 1), (4, 64, 512)):
        args = bias_args(*shape)
        assert torch.equal(function(*args), eager(*args))
    args = bias_args(2, 5, 7)
    args[3] = torch.randn(2, 5, 14)[:, :, ::2]  # z may have strides
    assert torch.equal(function(*args), eager(*args))
    assert_fused(function, 6)


def test_operands_that_lie_otherwise_are_served(bias: dict[str, Any]) -> None:
    function, eager = bias["fused"], bias["eager_bias"]

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous().transpose(0, 1)

    x, row, y, z = bias_args(4, 5, 7)
    served = [
        ((turned(x), row, turned(y), turned(z)), 0),  # the axis walks the dimensions otherwise
        ((x, row, turned(y), z), 1),  # one axis for both, of which y has two: y is copied
        ((x, row, y[:1].expand(4, 5, 7), turned(z)), 1),
        ((torch.randn(4, 5, 14)[..., ::2], row, torch.randn(4, 9, 7)[:, 2:7], z), 1),
        ((torch.randn(8, 5, 7)[::2], torch.randn(14)[::2], y, z), 1),
    ]
    for args, copied in served:
        before = function.stats.copied
        result, expected = function(*args), eager(*args)
        assert torch.equal(result, expected) and result.stride() == expected.stride()
        assert function.stats.copied - before == copied, args
    assert_fused(function, len(served))


def test_channels_last_in_channels_last_out() -> None:
    space = samples.load(samples.CHANNELS)
    x = torch.randn(2, 3, 8, 5).to(memory_format=torch.channels_last)
    args = (x, torch.randn(3, 1, 1))
    result, expected = space["fused"](*args), space["eager_channels"](*args)
    assert result.stride() == expected.stride() == x.stride()
    torch.testing.assert_close(result, expected)
    assert_fused(space["fused"])
    space["fused"].reset_stats()
    result = space["fused"](x.contiguous(), args[1])
    assert result.is_contiguous() and space["fused"].stats.copied == 1
    assert_fused(space["fused"])
    # Eager's sigmoid differs in the last place between its vector and its strided loop.
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("short", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_16_bit_chain_rounds_after_every_op(short: str, dtype: torch.dtype) -> None:
    text = samples.half(samples.SWIGLU, short, str(dtype).removeprefix("torch."))
    space = samples.load(text)
    args = [torch.randn(65, 33).to(dtype) for _ in range(2)]
    args[0][0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])
    result, positive = space["fused"](*args)
    expected, expected_positive = space["eager_swiglu"](*args)
    torch.testing.assert_close(result, expected, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(positive, expected_positive) and positive.dtype is torch.bool
    assert_fused(space["fused"])


def test_run_time_number_and_tensor_without_dimensions() -> None:
    space = samples.load(samples.SCALED)
    function, eager = space["fused"], space["eager_scaled"]
    x = torch.randn(4, 5)
    for factor in (2.5, -0.0, float("inf")):
        args = (x, torch.tensor(0.5), factor)
        assert torch.equal(function(*args), eager(*args))
    assert_fused(function, 3)
    function.reset_stats()
    result, reason = fallback(function, x, torch.tensor(0.5), 2)
    assert reason == "scalar factor: int instead of float64"
    assert torch.equal(result, (x + 0.5) * 2)


def test_gradients_once_and_twice(two: dict[str, Any]) -> None:
    args = [torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(two["fused"], args)
    assert torch.autograd.gradgradcheck(two["fused"], args)
    assert two["fused"].stats.fallbacks == {}


def test_gradient_of_an_operand_passed_twice(two: dict[str, Any]) -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    first, second = two["fused"](x, x)
    (grad,) = torch.autograd.grad(first.sum() + second.sum(), x, create_graph=True)
    torch.testing.assert_close(grad, 2 * x + x.exp())
    (again,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(again, 2 + x.exp())
    assert_fused(two["fused"])


def test_only_what_eager_makes_differentiable_is(two: dict[str, Any]) -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    y = torch.randn(5, dtype=torch.float64)
    product, power = two["fused"](x, y)
    assert product.requires_grad and not power.requires_grad
    product.sum().backward()
    assert torch.equal(x.grad, y) and y.grad is None
    with torch.no_grad():
        assert not two["fused"](x, y)[0].requires_grad
    assert_fused(two["fused"], 2)


def test_unused_output_leaves_no_gradient(two: dict[str, Any]) -> None:
    x, y = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    two["fused"](x, y)[1].sum().backward()
    assert x.grad is None or not x.grad.any()
    torch.testing.assert_close(y.grad, y.detach().exp())


def test_parameters_and_inference_mode_are_fused(bias: dict[str, Any]) -> None:
    function, eager = bias["fused"], bias["eager_bias"]
    args = bias_args(2, 5, 7)
    args[1] = torch.nn.Parameter(args[1])
    function(*args).sum().backward()
    fused_grad, args[1].grad = args[1].grad, None
    eager(*args).sum().backward()
    assert torch.equal(fused_grad, args[1].grad)
    with torch.inference_mode():
        result = function(*args)
        assert result.is_inference() and torch.equal(result, eager(*args))
    with torch.no_grad():
        assert torch.equal(function(*args), eager(*args))
    assert_fused(function, 3)


class Subclass(torch.Tensor):
    pass


class Mode(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: [a[0].double(), *a[1:]], "dtype is float64"),
        (lambda a: [a[0], a[1].expand(5, 7), *a[2:]], "broadcasts differently"),
        (lambda a: [a[0][:1], *a[1:]], "broadcasts differently"),
        (lambda a: [a[0], a[1][:1], *a[2:]], "broadcasts differently"),
        (lambda a: [a[0][0], a[1], a[2][0], a[3][0]], "2 dimensions, not 3"),
        (lambda a: [a[0].as_subclass(Subclass), *a[1:]], "Subclass"),
        (lambda a: [torch._neg_view(a[0]), *a[1:]], "neg"),
        (lambda a: [*a[:3], 1.0], "float, not a plain tensor"),
        (lambda a: [torch.complex(a[0], a[0]), *a[1:3], a[3].new_zeros(())], "complex64"),
    ],
)
def test_outside_the_guards_eager_runs_and_is_counted(
    bias: dict[str, Any], change: Any, reason: str
) -> None:
    args = change(bias_args(2, 5, 7))
    try:
        expected = bias["eager_bias"](*args)
    except RuntimeError as error:
        with pytest.raises(type(error)), pytest.warns(FusionFallbackWarning):
            bias["fused"](*args)
        assert reason in next(iter(bias["fused"].stats.fallbacks))
        return
    result, why = fallback(bias["fused"], *args)
    assert torch.equal(result, expected) and type(result) is type(expected)
    assert reason in why


def test_errors_are_eagers_own(bias: dict[str, Any]) -> None:
    args = bias_args(2, 5, 7)
    args[2] = torch.randn(2, 5, 6)
    with (
        pytest.warns(FusionFallbackWarning, match="eager refuses"),
        pytest.raises(RuntimeError, match="size of tensor"),
    ):
        bias["fused"](*args)
    with pytest.warns(FusionFallbackWarning), pytest.raises(TypeError):
        bias["fused"](*args[:2])
    sparse = torch.eye(7).to_sparse()
    with (
        pytest.warns(FusionFallbackWarning, match="sparse"),
        pytest.raises((RuntimeError, NotImplementedError)),
    ):
        bias["fused"](sparse, *args[1:])


def test_warned_once_per_reason_and_counted_every_time(gelu: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            gelu["fused"](torch.randn(2, 3, 4, dtype=torch.float64))
        gelu["fused"](torch.randn(3, 4))
    assert [warning.category for warning in seen] == [FusionFallbackWarning] * 2
    assert seen[0].filename == __file__
    assert sorted(gelu["fused"].stats.fallbacks.values()) == [1, 3]


def test_cached_plans_do_not_outlive_their_guards(gelu: dict[str, Any]) -> None:
    """The fast path must see each change of state that the first call did not have."""
    function, x = gelu["fused"], torch.randn(2, 3, 8)
    function(x)
    with Mode() as mode, pytest.warns(FusionFallbackWarning, match="dispatch mode"):
        function(x)
    assert "aten.tanh.default" in mode.ops
    with pytest.warns(FusionFallbackWarning, match="functorch"):
        mapped = torch.func.vmap(function)(x.expand(4, 2, 3, 8))
    torch.testing.assert_close(mapped[1], gelu["eager_gelu"](x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.warns(FusionFallbackWarning, match="forward-mode"):
            tangent = torch.autograd.forward_ad.unpack_dual(function(dual)).tangent
    assert tangent is not None
    with pytest.warns(FusionFallbackWarning, match="torch.jit is tracing"):
        traced = torch.jit.trace(function, (x,), check_trace=False)
    assert "aten::tanh" in str(traced.graph)
    neg = torch._neg_view(x)
    with pytest.warns(FusionFallbackWarning, match="neg"):
        torch.testing.assert_close(function(neg), gelu["eager_gelu"](-x))
    assert function.stats.fused == 1
    y = x.clone().requires_grad_()
    assert function(y).requires_grad and not function(x).requires_grad
    with torch.no_grad():
        assert not function(y).requires_grad
    assert function(y).requires_grad


def test_autocast_that_changes_nothing_stays_fused(bias: dict[str, Any]) -> None:
    args = bias_args(2, 5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(bias["fused"](*args), bias["eager_bias"](*args))
    assert_fused(bias["fused"])


def test_autocast_that_changes_a_dtype_runs_eager() -> None:
    text = samples.TWO.replace("torch.exp(y)", "torch.mm(y[None], y[:, None])[0, 0] * y")
    space = samples.load(text.replace("float64", "float32"))
    args = [torch.randn(6) for _ in range(2)]
    space["fused"](*args)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.warns(FusionFallbackWarning, match="autocast"),
    ):
        space["fused"](*args)


def test_under_torch_compile_the_eager_chain_is_traced(gelu: dict[str, Any]) -> None:
    function = gelu["fused"]
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    x = torch.randn(2, 3, 8)
    torch._dynamo.reset()
    result = torch.compile(lambda v: function(v) + 1.0, backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(result, gelu["eager_gelu"](x) + 1.0)
    assert len(graphs) == 1 and "tanh" in str(graphs[0].graph)
    torch._dynamo.reset()


def test_default_device_does_not_unfuse(gelu: dict[str, Any]) -> None:
    with torch.device("cpu"):
        gelu["fused"](torch.randn(2, 3, 4))
        gelu["fused"](torch.randn(2, 3, 4))
    assert_fused(gelu["fused"], 2)


def test_inputs_random_state_and_aliases_are_left_alone(bias: dict[str, Any]) -> None:
    x = torch.randn(2, 5, 7)
    before, state = x.clone(), torch.get_rng_state()
    result = bias["fused"](x, x[0, 0], x, x)
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)
    assert torch.equal(result, bias["eager_bias"](x, x[0, 0], x, x))
    assert_fused(bias["fused"])


def test_many_shapes_keep_the_plan_cache_bounded(gelu: dict[str, Any]) -> None:
    from fusion_advisor.runtime import fused_function

    for size in range(1, fused_function._MOST_PLANS // 8 + 3):
        gelu["fused"](torch.zeros(1, 1, size))
    assert len(gelu["fused"]._plans) <= fused_function._MOST_PLANS


def test_eager_runs_once_per_kind_of_contiguous_arguments(monkeypatch: Any) -> None:
    space = samples.load(samples.GELU)
    function, calls = space["fused"], []
    from fusion_advisor.runtime import plan

    observe = plan._observe
    monkeypatch.setattr(plan, "_observe", lambda *a, **k: calls.append(1) or observe(*a, **k))
    for length in (3, 4, 50, 64):
        result = function(torch.randn(2, length, 8))
        assert result.stride() == (8 * length, 8, 1)
    assert len(calls) == 1
    function(torch.randn(1, 4, 8))
    function(torch.randn(2, 4, 8, requires_grad=True))
    assert len(calls) == 3
    assert_fused(function, 6)


def test_prepare_gives_the_arrays_of_either_target(bias: dict[str, Any]) -> None:
    function, args = bias["fused"], bias_args(2, 5, 8)
    args[3] = torch.randn(2, 5, 16)[:, :, ::2]
    out = (torch.full((2, 5, 8), 7.0),)
    cpu = function.prepare(args, "cpu", out)
    assert [array.shape for array in cpu.arrays] == [(10, 8), (8,), (10, 8), (10, 8), (10, 8)]
    assert cpu.arrays[3].strides == (64, 8) and cpu.sizes == cpu.strides == ()
    cpu.kernel.py_func(*cpu.arguments)
    assert torch.equal(out[0], bias["eager_bias"](*args))
    cuda = function.prepare(args, "cuda", out)
    assert [array.shape for array in cuda.arrays] == [(80,), (8,), (80,), (159,), (80,)]
    assert [*map(int, cuda.sizes)] == [10, 8] and [*map(int, cuda.strides)] == [16, 2]
    assert {type(number).__name__ for number in (*cuda.sizes, *cuda.strides)} == {"uint32"}


def test_prepare_and_run_refuse_with_the_reason(bias: dict[str, Any]) -> None:
    args = bias_args(2, 5, 7)
    with pytest.raises(UsageError, match="dtype is float64"):
        bias["fused"].prepare([args[0].double(), *args[1:]])
    for wrong in (torch.empty(2, 5, 8), torch.empty(2, 5, 7).double(), torch.empty(5, 2, 7).mT):
        with pytest.raises(UsageError, match=r"out\[0\] must be"):
            bias["fused"].run_cpu(args, (wrong,))
    assert bias["fused"].why_not(*args) == ""


def test_both_twins_write_every_element(bias: dict[str, Any]) -> None:
    args = bias_args(3, 5, 7)
    expected = bias["eager_bias"](*args)
    for parallel in (False, True):
        out = (torch.full((3, 5, 7), torch.nan),)
        bias["fused"].run_cpu(args, out, parallel=parallel)
        assert torch.equal(out[0], expected)


# -- into given tensors --------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 4000])  # by addresses, and by arrays on all threads
def test_results_are_written_into_given_tensors(bias: dict[str, Any], rows: int) -> None:
    function, args = bias["fused"], bias_args(rows, 5, 8)
    expected = bias["eager_bias"](*args)
    out = torch.full_like(expected, torch.nan)
    version = out._version
    for _ in range(2):
        assert function.into(out, *args) is out
        assert torch.equal(out, expected)
    assert out._version == version + 2
    assert function.stats.fused == 2 and not function.stats.fallbacks


def test_an_operand_may_be_overwritten_but_not_read_elsewhere(bias: dict[str, Any]) -> None:
    function, args = bias["fused"], bias_args(3, 5, 8)
    expected = bias["eager_bias"](*args)
    assert torch.equal(function.into(args[0], *args), expected)
    memory = torch.randn(128)
    args = bias_args(3, 5, 8)
    args[0] = memory[:120].view(3, 5, 8)
    before = memory.clone()
    with pytest.raises(UsageError, match="shares memory with x, which is read at other elements"):
        function.into(memory[8:].view(3, 5, 8), *args)
    assert torch.equal(memory, before)


def test_given_tensors_that_do_not_fit_stay_as_they_were(bias: dict[str, Any]) -> None:
    args = bias_args(2, 5, 7)
    for wrong in (torch.zeros(2, 5, 8), torch.zeros(2, 5, 7).double(), torch.zeros(2, 7, 5).mT):
        with pytest.raises(UsageError, match=r"out\[0\] must be"):
            bias["fused"].into(wrong, *args)
        assert not wrong.any()
    args[0].requires_grad_()
    with pytest.raises(UsageError, match="no gradients"):
        bias["fused"].into(torch.zeros(2, 5, 7), *args)
    with torch.no_grad():
        bias["fused"].into(torch.zeros(2, 5, 7), *args)


def test_what_is_no_plain_tensor_is_not_written(bias: dict[str, Any]) -> None:
    args = bias_args(2, 5, 7)
    out = torch.zeros(2, 5, 7)
    with pytest.raises(UsageError, match=r"out\[0\] has a lazy neg bit"):
        bias["fused"].into(torch._neg_view(out), *args)
    assert not out.any()
    with pytest.raises(UsageError, match=r"out\[0\] is a NoneType, not a tensor"):
        bias["fused"].into(None, *args)
    given = [out]
    assert bias["fused"].into(given, *args) is given
    assert torch.equal(out, bias["eager_bias"](*args))


def test_where_eager_runs_its_results_are_copied(bias: dict[str, Any]) -> None:
    args = [one.double() for one in bias_args(2, 5, 7)]
    out = torch.zeros(2, 5, 7, dtype=torch.float64)
    with pytest.warns(FusionFallbackWarning, match="dtype is float64"):
        bias["fused"].into(out, *args)
    assert torch.equal(out, bias["eager_bias"](*args))
    with pytest.raises(UsageError, match=r"out\[0\] must be"):
        bias["fused"].into(out.float(), *args)


def test_two_results_never_go_into_one_memory() -> None:
    from fusion_advisor.runtime.given_outputs import fill

    memory = torch.zeros(12)
    with pytest.raises(UsageError, match=r"out\[1\] shares memory with another"):
        fill((memory[:8], memory[4:]), (torch.ones(8), torch.ones(8)))
    assert not memory.any()
    fill((memory[:6], memory[6:]), (torch.ones(6), torch.full((6,), 2.0)))
    assert memory.tolist() == [1.0] * 6 + [2.0] * 6


def test_forced_eager_is_not_counted(gelu: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 4)
    with gelu["fused"].forced_eager():
        assert torch.equal(gelu["fused"](x), gelu["eager_gelu"](x))
    gelu["fused"](x)
    assert_fused(gelu["fused"])


def test_copies_and_pickles(gelu: dict[str, Any]) -> None:
    function = gelu["fused"]
    assert copy.deepcopy({"f": function})["f"] is function and copy.copy(function) is function
    assert pickle.loads(pickle.dumps(function)) is function
    name = function.__module__
    del sys.modules[name]  # as in another process
    x = torch.randn(2, 3, 4)
    again = pickle.loads(pickle.dumps(function))
    assert again is not function and torch.equal(again(x), function(x))

    module = types.ModuleType("written_by_a_person")
    exec(samples.GELU, vars(module))
    own = vars(module)["fused_gelu"]
    with pytest.raises(pickle.PicklingError, match="cannot be pickled"):
        pickle.dumps(own)
    sys.modules[module.__name__] = module
    try:
        assert pickle.loads(pickle.dumps(own)) is own
    finally:
        del sys.modules[module.__name__]
