"""Ops from outside: from registration to a validated kernel, and what is refused."""

from __future__ import annotations

import pytest
import torch
from forms_support import checked, one_group, recorded

import fusion_advisor as fa
from fusion_advisor.analysis import find_candidates, why_not
from fusion_advisor.errors import UsageError, ValidationError
from fusion_advisor.kernels import generate_kernel, validate_elsewhere, validate_kernel

pytestmark = pytest.mark.essential


@torch.library.custom_op("fusion_advisor_tests::soft_cap", mutates_args=())
def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return cap * torch.tanh(x / cap)


@soft_cap.register_fake
def _(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.empty_like(x)


soft_cap.register_autograd(
    lambda context, gradient: (gradient * (1 - torch.tanh(context.x / context.cap) ** 2), None),
    setup_context=lambda ctx, inputs, output: ctx.__dict__.update(x=inputs[0], cap=inputs[1]),
)


@torch.library.custom_op("fusion_advisor_tests::halves", mutates_args=())
def halves(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x + y) * 0.5, (x - y) * 0.5


@torch.library.custom_op("fusion_advisor_tests::single_only", mutates_args=())
def single_only(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise RuntimeError("float32 only")
    return x * 3


@torch.library.custom_op("fusion_advisor_tests::row_sum", mutates_args=())
def row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


@torch.library.custom_op("fusion_advisor_tests::add_into", mutates_args={"x"})
def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


NAME = "fusion_advisor_tests::soft_cap"


@pytest.fixture(autouse=True)
def nothing_stays_registered():
    yield
    for name in (NAME, "fusion_advisor_tests::halves", "fusion_advisor_tests::single_only"):
        try:
            fa.unregister_op(name)
        except UsageError:
            pass


def capped(call, slope=1.0):
    dtype = call.require_float(call.same_dtype("x"))
    x, cap = call.load("x", dtype), call.wide("cap", dtype)
    share = call.round_step(call.emit("div", x, cap), dtype)
    tanh = call.round_step(call.emit("tanh", share), dtype)
    if slope != 1.0:
        tanh = call.emit("mul", tanh, call.constant(slope, dtype))
    return call.store(call.emit("mul", cap, tanh), dtype)


def chain(x, y):
    return torch.relu(torch.ops.fusion_advisor_tests.soft_cap(x * 2, 5.0) + y)


def inputs():
    torch.manual_seed(3)
    return torch.randn(5, 33), torch.randn(33)


def test_an_unknown_op_ends_a_group():
    graph = recorded(chain, *inputs()).graph
    (candidate,) = find_candidates(graph)
    assert len(candidate.nodes) == 2
    assert any("not known to be elementwise" in one.message for one in why_not(graph, [candidate]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_registered_op_is_fused_and_validated(dtype):
    fa.register_op(NAME, flops=26, budget_ulp=4)(capped)
    x, y = (tensor.to(dtype) for tensor in inputs())
    _, candidate, kernel = one_group(chain, x, y)
    assert len(candidate.nodes) == 4
    assert "torch.ops.fusion_advisor_tests.soft_cap.default(" in kernel.text


def test_profile_finds_validates_and_applies_it():
    fa.register_op(torch.ops.fusion_advisor_tests.soft_cap.default, flops=26, budget_ulp=4)(capped)
    with torch.no_grad():
        advice = fa.profile(chain, args=(torch.randn(300, 500), torch.randn(500)))
    (candidate,) = advice.report.candidates
    assert len(candidate.nodes) == 4
    assert advice.report.capture.proof.status == "passed"
    advice.close()


def test_the_validator_rejects_a_wrong_recipe():
    fa.register_op(NAME, flops=26, budget_ulp=4)(lambda call: capped(call, 1.001))
    recording = recorded(chain, *inputs())
    (candidate,) = find_candidates(recording.graph)
    with pytest.raises(AssertionError):
        checked(recording, candidate)


def test_it_may_be_registered_again_and_taken_out():
    fa.register_op(NAME, budget_ulp=4)(lambda call: capped(call, 1.001))
    fa.register_op(NAME, budget_ulp=4)(capped)
    assert len(one_group(chain, *inputs())[1].nodes) == 4
    fa.unregister_op(NAME)
    assert len(one_group(chain, *inputs())[1].nodes) == 2
    with pytest.raises(UsageError, match="was not added"):
        fa.unregister_op(NAME)


def test_several_results():
    @fa.register_op("fusion_advisor_tests::halves", flops=4)
    def recipe(call):
        dtype = call.require_float(call.common_dtype("x", "y"))
        x, y, half = call.load("x", dtype), call.load("y", dtype), call.constant(0.5, dtype)
        results = []
        for opcode in ("add", "sub"):
            step = call.round_step(call.emit(opcode, x, y), dtype)
            results.append(call.store(call.emit("mul", step, half), dtype))
        return tuple(results)

    x, y = inputs()[0], inputs()[0] + 1

    def call(x, y):
        first, second = torch.ops.fusion_advisor_tests.halves(x * 2, y)
        return first + 1, second * 3

    assert len(one_group(call, x, y)[1].outputs) == 2


def test_an_op_without_float64_is_validated_without_that_reference():
    @fa.register_op("fusion_advisor_tests::single_only")
    def recipe(call):
        dtype = call.require_float(call.same_dtype("x"))
        return call.store(call.emit("mul", call.load("x", dtype), call.constant(3.0, dtype)), dtype)

    with torch.no_grad():
        advice = fa.profile(
            lambda x: torch.ops.fusion_advisor_tests.single_only(torch.exp(x)) * 2,
            args=inputs()[:1],
        )
    capture, (candidate,) = advice.report.capture, advice.report.candidates
    assert len(candidate.nodes) == 3
    kernel = generate_kernel(capture.graph, candidate)
    result = validate_kernel(capture, candidate, kernel, targets=("cpu",), measure=False)
    rungs = {rung.name: rung for rung in result.rungs}
    assert result.status == "passed", result.rungs
    assert rungs["float64 reference"].status == "not run"
    assert "float32 only" in rungs["float64 reference"].detail
    advice.close()


def test_another_process_does_not_have_it():
    fa.register_op(NAME, budget_ulp=4)(capped)
    with torch.no_grad():
        advice = fa.profile(chain, args=inputs())
    (candidate,) = advice.report.candidates
    kernel = generate_kernel(advice.report.capture.graph, candidate)
    with pytest.raises(ValidationError, match="in this process alone"):
        validate_elsewhere(advice.report.capture, candidate, kernel)
    advice.close()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("aten::relu", {}, "has a recipe already"),
        ("aten::mm", {}, "is a matmul op"),
        ("aten::sum", {}, "is a reduction op"),
        ("no_such_library::op", {}, "define it first"),
        ("soft cap", {}, "is no name of an op"),
        (7, {}, "is no name of an op"),
        (NAME, {"budget_ulp": -1}, "a number from 0 on"),
        (NAME, {"budget_ulp": float("nan")}, "a number from 0 on"),
        (NAME, {"budget_ulp": "4"}, "not a number"),
        (NAME, {"flops": -2}, "a number from 0 on"),
        (NAME, {"error_scale": "operands"}, "it is 'result' or 'operand'"),
        (NAME, {"budget_ulp": 9}, "needs a note"),
        ("fusion_advisor_tests::add_into", {}, "functional form"),
    ],
)
def test_what_cannot_be_right_is_refused(name, settings, message):
    with pytest.raises(UsageError, match=message):
        fa.register_op(name, **settings)(capped)


def test_an_op_is_also_named_without_its_overload():
    packet = getattr(torch.ops.fusion_advisor_tests, NAME.split("::")[-1])
    fa.register_op(packet, budget_ulp=4)(capped)
    fa.unregister_op(packet)
    with pytest.raises(UsageError, match="was not added"):
        fa.unregister_op(NAME)


def _stored_wide(call):
    return call.builder.cast(call.load("x", call.same_dtype("x")), "float64")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda call: call.emit("bessel", call.load("x", "float32")), "no opcode 'bessel'"),
        (lambda call: call.emit("and", call.load("x", "float32"), call.load("x", "float32")),
         "and does not work on float32. .*call.require_float"),
        (lambda call: call.emit("add", call.load("x", "float32"), call.load("x", "float64")),
         "add mixes float32 and float64"),
        (_stored_wide, "gave .* where its recipe gives float64"),
        (lambda call: (capped(call), capped(call)), "gave 1 results where its recipe gives 2"),
        (lambda call: call.nonsense, "raises AttributeError"),
        (lambda call: 3.0, "raises"),
        (lambda call: call.store(call.load("y", "float32"), "float32"), "neither a tensor nor"),
        (None, "not a function"),
    ],
    ids=["opcode", "dtype", "mixed", "result", "two", "attribute", "number", "parameter", "none"],
)  # fmt: skip
def test_a_recipe_that_cannot_be_right_is_refused(recipe, message):
    with pytest.raises(UsageError, match=message):
        fa.register_op(NAME, budget_ulp=4)(recipe)
    assert len(find_candidates(recorded(chain, *inputs()).graph)[0].nodes) == 2


def test_an_op_that_reduces_is_refused():
    with pytest.raises(UsageError, match="it is not elementwise"):
        fa.register_op("fusion_advisor_tests::row_sum")(lambda call: call.operand("x").value)
