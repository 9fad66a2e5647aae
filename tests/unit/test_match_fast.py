"""``match="fast"``: fewer roundings than eager, none of those that the code asks for left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import kernel_harness as harness
import pytest
import torch
from codegen_cases import Chain

from fusion_advisor.recorder import replay
from fusion_advisor.records import Target
from fusion_advisor.validation import contractions, cuda_compiler, validate

pytestmark = pytest.mark.essential

HALVES = (torch.bfloat16, torch.float16)


def residual(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * y + z) * x - z


def through_16_bits(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (x * y).to(torch.bfloat16).float() + z


def through_both(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return ((x + y).half() * 3.0).to(torch.bfloat16) * z.to(torch.bfloat16)


def lerped(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(torch.lerp(x, y, 0.3), y, z, value=-0.7) + torch.sigmoid(z)


def compared(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.where(x * y > z, x + y, x - z) * y


def chain(function: Callable[..., Any], dtype: torch.dtype, match: Any = "fast") -> Chain:
    torch.manual_seed(3)
    arguments = [torch.randn(33, 40).to(dtype) for _ in range(3)]
    return Chain(function, *arguments[: function.__code__.co_argcount], match=match)


def called(one: Chain, *args: torch.Tensor) -> torch.Tensor:
    """The kernel's result for a function's own arguments, which are told apart by their capture."""
    recorded = one.arguments()
    torch.manual_seed(3)
    own = [torch.randn(33, 40).to(args[0].dtype) for _ in args]
    places = [next(n for n, x in enumerate(own) if torch.equal(x, y)) for y in recorded]
    result: torch.Tensor = harness.load(one.kernel)[one.kernel.entry](*(args[n] for n in places))
    return result


def roundings(one: Chain) -> list[str]:
    """The nodes whose results are rounded to 16 bits."""
    return [s.node for s in one.program.statements if s.dtype in ("bfloat16", "float16")]


def validated(one: Chain, *targets: Target) -> Any:
    inputs = tuple(operand.value for operand in one.candidate.inputs)
    nodes, outputs = one.candidate.computed, one.candidate.outputs
    return validate(
        one.kernel, one.graph, one.candidate,
        reference=replay.subgraph(one.graph, nodes, inputs, outputs),
        reference64=replay.subgraph(one.graph, nodes, inputs, outputs, high_precision=True),
        captured=None, ceilings=None, measure=False, targets=targets,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_intermediates_stay_in_float32_and_the_result_is_nearer(dtype: torch.dtype) -> None:
    fast, eager = chain(residual, dtype), chain(residual, dtype, "eager")
    assert (len(roundings(fast)), len(roundings(eager))) == (1, 5)
    assert 'match="fast"' in fast.kernel.text and 'match="fast"' not in eager.kernel.text
    torch.manual_seed(5)
    args = [torch.randn(200, 200).to(dtype) for _ in range(3)]
    truth = residual(*(one.double() for one in args))
    near = (called(fast, *args).double() - truth).abs().mean()
    far = (residual(*args).double() - truth).abs().mean()
    assert near < 0.7 * far
    assert harness.differing(called(eager, *args), residual(*args)) == 0


def test_products_join_one_sum_each() -> None:
    one = chain(residual, torch.float32)
    counts = Counter(statement.opcode for statement in one.program.statements)
    assert (counts["fma"], counts["mul"], counts["add"], counts["sub"]) == (2, 0, 0, 0)
    x, y, z = (torch.randn(33, 40) for _ in range(3))
    inner = torch.relu((x.double() * y.double() + z.double()).float())
    expected = (inner.double() * x.double() - z.double()).float()  # each rounded once
    assert harness.differing(called(one, x, y, z), expected) == 0
    kept = Chain(rounded_product, x, y, match="fast")  # the product is needed itself
    assert Counter(s.opcode for s in kept.program.statements)["fma"] == 0
    assert contractions.contraction_problem(kept.kernel, "cpu") == ""


def rounded_product(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product = x * y
    return product, product + 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_down_casts_in_the_code_survive(dtype: torch.dtype) -> None:
    args = [torch.randn(64, 33).to(dtype) for _ in range(3)]
    one = chain(through_16_bits, dtype)
    x, y, z = (tensor.float() for tensor in args)
    expected = (x * y).to(torch.bfloat16).float() + z
    assert harness.differing(called(one, *args), expected) == 0
    both = chain(through_both, dtype)
    assert len(set(roundings(both))) == 4 if dtype == torch.float32 else 3
    if dtype == torch.float32:
        inner = ((x + y).half().float() * 3.0).to(torch.bfloat16).float()
        expected = (inner * z.to(torch.bfloat16).float()).to(torch.bfloat16)
        assert harness.differing(called(both, *args), expected) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_infinities_and_zeros_come_out_as_in_float32(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 3e4])
    grids = torch.meshgrid(values, values, values, indexing="ij")
    args = [grid.reshape(-1, 8).to(dtype) for grid in grids]
    for function in (residual, compared):
        got = called(chain(function, dtype), *args)
        wide = function(*(one.float().double() for one in args))  # 64 bits: nothing overflows
        expected = wide.to(dtype)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got.isinf(), expected.isinf())
        zero = expected == 0
        assert torch.equal(got[zero].signbit(), expected[zero].signbit())


@pytest.mark.parametrize(
    ("function", "dtype", "targets"),
    [
        (residual, torch.float32, ("cpu", "cuda")),
        (through_both, torch.float16, ("cuda",)),
        (compared, torch.bfloat16, ("cpu",)),
        (lerped, torch.float16, ("cuda",)),
    ],
)
def test_the_ladder_judges_by_budgets_of_its_own(
    function: Callable[..., Any], dtype: torch.dtype, targets: tuple[Target, ...]
) -> None:
    missing = bool(cuda_compiler.toolchain_missing())
    result = validated(chain(function, dtype), *(("cpu",) if missing else targets))
    failed = [(rung.name, rung.detail) for rung in result.rungs if rung.status == "failed"]
    assert result.status == "passed", failed
    assert result.worst_share <= 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_wrong_fast_kernel_is_rejected(dtype: torch.dtype) -> None:
    """One that rounds to bfloat16 in the middle, and one that is 8 ULP of float32 off."""
    one = chain(residual, dtype)
    lines = one.kernel.text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("@cpu_kernel"))
    for number in range(start, len(lines)):
        line = lines[number]
        if "relu = " in line and dtype == torch.bfloat16:
            body, _, comment = line.partition("  #")
            name, _, value = body.partition(" = ")
            cast = f"cpu_math.bf16_to_f32(cpu_math.f32_to_bf16({value}))"
            lines[number] = f"{name} = {cast}  #{comment}"
            break
        if "cpu_math.fma(" in line and dtype == torch.float32:
            lines[number] = line.replace("cpu_math.fma(", "float32(1.000001) * cpu_math.fma(")
            break
    else:
        raise AssertionError("there is no such line")
    text = "\n".join(lines) + "\n"
    one.kernel = replace(one.kernel, text=text, hash=hashlib.sha256(text.encode()).hexdigest())
    result = validated(one, "cpu")
    failed = {rung.name: rung.detail for rung in result.rungs if rung.status == "failed"}
    assert "wrong elements" in failed["CPU kernel"]
