"""What a kernel in place must not change: who sees whose memory, versions, gradients, autocast."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from fix_support import record_call, run_text
from fused_runs import through

from fusion_advisor.analysis import find_candidates
from fusion_advisor.analysis.cost import estimate
from fusion_advisor.analysis.pipeline import ASSUMED_CEILINGS
from fusion_advisor.fixes import plan_text
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.records import CostEstimate, FusionCandidate, OpGraph
from fusion_advisor.runtime import FusedFunction

pytestmark = pytest.mark.essential

F = torch.nn.functional
Pair = tuple[torch.Tensor, torch.Tensor]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers and halves, so that int8 holds them too."""
    count = int(torch.Size(shape).numel())
    return (torch.arange(count) % 7 - 3).view(shape).to(dtype)


@contextmanager
def quietly() -> Iterator[None]:
    """Calls that run eager say so once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def chain(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes its first operand in place, and reads the second before and after."""
    h.mul_(y)
    h.relu_()
    return h + y


def fused_chain(dtype: torch.dtype) -> FusedFunction:
    """The kernel of ``chain`` where its first operand is the run's own."""

    def run(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return chain(torch.index_select(x, 0, w), y)  # a fresh tensor of any dtype

    outcome = through(run, numbers(4, 4, dtype=dtype), torch.arange(4), numbers(4, 4, dtype=dtype))
    assert outcome.fused_ops == (("mul_", "relu_", "add"),)
    outcome.kernel.reset_stats()
    return outcome.kernel


def same_tensor(dtype: torch.dtype) -> Pair:
    h = numbers(4, 4, dtype=dtype)
    return h, h


def same_memory(dtype: torch.dtype) -> Pair:
    h = numbers(4, 4, dtype=dtype)
    return h, h.view(4, 4)


def transposed(dtype: torch.dtype) -> Pair:
    h = numbers(4, 4, dtype=dtype)
    return h, h.t()


def shifted(dtype: torch.dtype) -> Pair:
    base = numbers(20, dtype=dtype)
    return base[:16].view(4, 4), base[4:].view(4, 4)


def one_row(dtype: torch.dtype) -> Pair:
    h = numbers(4, 4, dtype=dtype)
    return h, h[2]


def interleaved(dtype: torch.dtype) -> Pair:
    base = numbers(4, 8, dtype=dtype)
    return base[:, :4], base[:, 4:]


def expanded(dtype: torch.dtype) -> Pair:
    return numbers(1, 4, dtype=dtype).expand(4, 4), numbers(4, 4, dtype=dtype)


def expanded_other(dtype: torch.dtype) -> Pair:
    return numbers(4, 4, dtype=dtype), numbers(1, 4, dtype=dtype).expand(4, 4)


def neighbours(dtype: torch.dtype) -> Pair:
    base = numbers(32, dtype=dtype)
    return base[:16].view(4, 4), base[16:].view(4, 4)


def called(function: Callable[..., Any], pair: Pair) -> tuple[Any, ...]:
    """What a call gives or raises, and what its operands hold afterwards."""
    try:
        result = function(*pair)
    except RuntimeError as error:
        return ("raised", str(error).split(".")[0], *(one.tolist() for one in pair))
    return (result.dtype, result.stride(), result.tolist(), pair[1].tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_overlapping_operands_of_a_chain_that_writes_do_as_eager(dtype: torch.dtype) -> None:
    fused = fused_chain(dtype)
    for make in (same_tensor, same_memory, transposed, shifted, one_row, interleaved, expanded):
        fused.reset_stats()
        with pytest.warns(UserWarning, match="is written in place, and"):
            got = called(fused, make(dtype))
        assert got == called(chain, make(dtype)), make.__name__
        pair = make(dtype)
        assert "written in place" in fused.why_not(*pair)
    for make in (transposed, shifted, one_row, expanded):
        assert called(chain, make(dtype))[0] == "raised"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_operands_apart_run_fused_and_are_left_alone(dtype: torch.dtype) -> None:
    fused = fused_chain(dtype)
    for make in (neighbours, expanded_other):
        h, y = make(dtype)
        before, versions = (h.clone(), y.clone()), (h._version, y._version)
        fused.reset_stats()
        result = fused(h, y)
        assert fused.stats.fused == 1, fused.why_not(h, y)
        assert torch.equal(h, before[0]) and torch.equal(y, before[1])
        assert (h._version, y._version) == versions
        assert torch.equal(result, chain(h, y))


def test_operands_that_are_only_read_may_overlap() -> None:
    kernel = through(lambda a, b: torch.relu(a * b) + a, numbers(4, 4), numbers(4, 4)).kernel
    for make in (same_tensor, transposed, shifted, interleaved, expanded):
        a, b = make(torch.float32)
        assert torch.equal(kernel(a, b), torch.relu(a * b) + a), make.__name__


def test_writing_in_place_is_counted_as_eager_counts_it() -> None:
    fused = fused_chain(torch.float32)
    h, y = same_memory(torch.float32)
    with quietly():
        fused(h, y)
    twin, other = same_memory(torch.float32)
    chain(twin, other)
    assert h._version == y._version == twin._version == 2


def test_a_leaf_that_requires_a_gradient_is_refused_as_in_eager() -> None:
    fused = fused_chain(torch.float32)
    for function in (fused, chain):
        leaf = numbers(4, 4).requires_grad_()
        with quietly(), pytest.raises(RuntimeError, match="leaf Variable"):
            function(leaf, numbers(4, 4))
        assert torch.equal(leaf, numbers(4, 4))
    leaf = numbers(4, 4).requires_grad_()
    with torch.no_grad():  # eager writes it, a kernel does not
        assert torch.equal(fused(leaf, numbers(4, 4)), chain(numbers(4, 4), numbers(4, 4)))


def test_gradients_of_written_operands_are_eagers() -> None:
    fused = fused_chain(torch.float32)

    def gradients(function: Callable[..., Any], shared: bool) -> tuple[torch.Tensor, ...]:
        leaf = (numbers(4, 4) + 0.5).requires_grad_()
        h = leaf * 1.0
        y = h.detach()[:] if shared else numbers(4, 4).requires_grad_()
        with quietly():
            function(h, y).sum().backward()
        return (leaf.grad, *(() if shared else (y.grad,)))

    def out_of_place(h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(h * y) + y

    for one, two in zip(gradients(fused, False), gradients(out_of_place, False), strict=True):
        assert torch.equal(one, two)
    for function in (fused, chain):  # what mul_ saved was overwritten: autograd notices
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients(function, True)


# -- saved for backward, escaping ------------------------------------------------------------


def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * w) * torch.sigmoid(x)


def estimated(graph: OpGraph) -> tuple[FusionCandidate, CostEstimate]:
    """The first candidate, and what fusing it would change."""
    training = any(node.phase == "backward" for node in graph.nodes)
    candidate = find_candidates(graph)[0]
    cost = estimate(graph, candidate, (), ASSUMED_CEILINGS, recompute_in_backward=training)
    return candidate, cost


def test_what_backward_needs_is_made_again_and_that_is_counted() -> None:
    inputs = [numbers(256, 256).requires_grad_(), numbers(256, 256).requires_grad_()]
    with torch.enable_grad():
        trained = record(lambda: gate(*inputs).sum(), CaptureOptions(backward=True)).graph
    with torch.no_grad():
        inferred = record(lambda: gate(*inputs), CaptureOptions()).graph
    candidate, cost = estimated(trained)
    plain, cheaper = estimated(inferred)
    assert len(candidate.nodes) == len(plain.nodes) == 4
    assert len(candidate.saved) == 2 and candidate.outputs and not plain.saved  # tanh, sigmoid
    assert not set(candidate.saved) & set(candidate.outputs)
    assert dict(cost.terms)["recompute in backward"] > 0
    assert "recompute in backward" not in dict(cheaper.terms)
    assert cost.saved_mid_us < cheaper.saved_mid_us


def test_a_value_that_a_person_detaches_is_written() -> None:
    seen: list[float] = []

    def logged(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x * 2.0)
        seen.append(float(h.detach().numpy()[0, 0]))  # no op shows this
        return (h * h).sum()

    x = numbers(4, 4).requires_grad_()
    graph = record(lambda: logged(x), CaptureOptions(backward=True)).graph
    candidate = find_candidates(graph)[0]
    made = {node.op: node.outputs[0] for node in graph.nodes if node.phase == "forward"}
    assert made["aten.tanh.default"] in candidate.outputs and seen


def test_an_intermediate_that_escapes_is_written_and_that_is_counted() -> None:
    elements = 256 * 256

    def kept(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.exp(x)
        return torch.tanh(h) * h, h

    def dropped(x: torch.Tensor) -> torch.Tensor:
        h = torch.exp(x)
        return torch.tanh(h) * h

    costs = []
    for run, outputs in ((kept, 2), (dropped, 1)):
        outcome = through(run, numbers(256, 256))
        candidate, cost = estimated(outcome.graph)
        assert len(candidate.outputs) == len(outcome.kernel.signature.outputs) == outputs
        assert cost.bytes_after == 4 * elements * (1 + outputs)  # one read, each result written
        costs.append(cost)
    assert costs[0].bytes_before == costs[1].bytes_before == 4 * elements * 7


# -- autocast, lazy bits ---------------------------------------------------------------------

CHAINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gelu": lambda x, y: F.gelu(x.abs() + 1.0) + y.abs(),
    "pow": lambda x, y: (x * x).pow(2.0) * y,
    "softplus": lambda x, y: F.softplus(x) * y,
    "where": lambda x, y: torch.where(x > y, x * 2.0, y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5) + 1.0,
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_a_kernel_gives_what_eager_gives_there(
    name: str, dtype: torch.dtype
) -> None:
    run = CHAINS[name]
    x, y = numbers(4, 6, dtype=dtype), numbers(6, dtype=dtype)
    kernel = through(run, x, y).kernel
    for half in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=half), quietly():
            got, wanted = kernel(x, y), run(x, y)
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    kernel.reset_stats()
    kernel(x, y)
    assert kernel.stats.fused == 1  # and outside it runs fused again


def test_an_op_that_autocast_changes_is_no_kernels_business() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x * 2.0, y, reduction="none") + 1.0  # float32 under autocast

    x, y = numbers(4, 6, dtype=torch.bfloat16), numbers(4, 6, dtype=torch.bfloat16)
    outcome = through(run, x, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = run(x, y)
        assert wanted.dtype == torch.float32
        for kernel in outcome.kernels:
            if len(kernel.signature.operands) == 2:
                with pytest.warns(UserWarning, match="autocast"):
                    assert torch.equal(kernel(x, y), wanted)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_lazy_negative_operands_run_eager(dtype: torch.dtype) -> None:
    z = torch.complex(*(numbers(4, 6).to(dtype.to_real()) for _ in range(2))).conj()
    kernel = through(lambda x: torch.relu(x * 2.0) + 1.0, z.imag.resolve_neg()).kernel
    assert z.imag.is_neg()
    with pytest.warns(UserWarning, match="lazy conj, neg or zero bit"):
        got = kernel(z.imag)
    assert torch.equal(got, torch.relu(z.imag.resolve_neg() * 2.0) + 1.0)
    kernel.reset_stats()
    kernel(z.imag.resolve_neg())
    assert kernel.stats.fused == 1


# -- what no source text can hold -------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("    return torch.tanh(torch.exp(x) + 1.0)\n", ""),
        ("    h = torch.exp(x)\n    h = h + 1.0\n    return torch.tanh(h)\n", ""),
        ("    for _ in range(3):\n        x = torch.tanh(x)\n    return x\n", "repeated"),
        ("    return [torch.tanh(torch.exp(row)) for row in [x]][0]\n", "conditional"),
        ("    return x.sum() > 1e9 or torch.tanh(torch.exp(x))\n", "conditional"),
    ],
)
def test_source_that_cannot_hold_one_call_says_why(body: str, code: str, tmp_path: Path) -> None:
    text = f"import torch\n\n\ndef f(x):\n{body}"
    function = run_text(text, tmp_path / "person.py")["f"]
    x = numbers(4, 6)
    graph = record_call(lambda: function(x))
    candidates = find_candidates(graph, within_frame=True)
    assert candidates
    fix = plan_text(graph, candidates[0], generate_kernel(graph, candidates[0]), text)
    assert [blocker.code for blocker in fix.blockers] == ([code] if code else [])
    assert all(blocker.message for blocker in fix.blockers)
