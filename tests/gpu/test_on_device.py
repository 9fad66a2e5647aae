"""Generated CUDA kernels on a CUDA device; skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest
import torch
from device_chains import CHAINS, DeviceChain, fused_function, profiled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


@pytest.fixture(params=CHAINS, ids=lambda chain: chain.name)
def chain(request: pytest.FixtureRequest) -> DeviceChain:
    return request.param


def test_the_ladder_passes_with_its_rung_on_the_device(chain):
    advice, _ = profiled(chain, "cuda")
    try:
        result = advice.validate(advice.report.findings[0].id)
        rungs = {rung.name: rung for rung in result.rungs}
        assert result.status == "passed", [r for r in result.rungs if r.status == "failed"]
        assert rungs["CUDA device"].status == "passed", rungs["CUDA device"].detail
    finally:
        advice.close()


def test_a_call_runs_the_kernel_and_agrees_with_eager(chain):
    advice, inputs = profiled(chain, "cuda")
    try:
        fused = fused_function(advice)
        with torch.no_grad():
            expected, actual = chain.function(*inputs), fused(*inputs)
        assert (fused.stats.fused, dict(fused.stats.fallbacks)) == (1, {})
        # The ladder judges within its budgets; here only a wholly wrong launch should show.
        assert torch.allclose(actual.double(), expected.double(), rtol=2e-2, atol=1e-3)
    finally:
        advice.close()


def test_a_launch_is_ordered_on_the_callers_stream():
    """The input is written on a side stream, after a wait, just before the call on that stream."""
    chain = CHAINS[0]
    advice, (x,) = profiled(chain, "cuda")
    try:
        fused = fused_function(advice)
        with torch.no_grad():
            fused(x)  # compiled before anything is ordered
            expected = chain.function(x + 1)
            late = torch.zeros_like(x)
            torch.cuda.synchronize()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                torch.cuda._sleep(50_000_000)  # cycles: a kernel on another stream would overtake
                late.copy_(x + 1)
                actual = fused(late)
            side.synchronize()
        assert torch.allclose(actual, expected, atol=1e-5)
        assert fused.stats.fused == 2
    finally:
        advice.close()


def test_gradients_on_the_device():
    chain = CHAINS[0]
    advice, (x,) = profiled(chain, "cuda")
    try:
        fused = fused_function(advice)
        one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
        chain.function(one).sum().backward()
        fused(two).sum().backward()
        assert torch.equal(one.grad, two.grad)  # backward recomputes the eager chain
        assert fused.stats.fused == 1
    finally:
        advice.close()


def test_an_applied_kernel_runs_on_the_device_and_is_undone_bitwise():
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(256, 1024)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.up(x)
            return torch.relu(h * 0.5 + 1.0) * h

    import fusion_advisor as fa

    model = Block().cuda().eval()
    x = torch.randn(512, 256, device="cuda")
    with torch.no_grad():
        before = model(x)
        advice = fa.profile(model, args=(x,))
        try:
            assert advice.report.findings, advice.report.nothing
            applied = advice.apply()
            model(x)
            advice.undo()
            assert torch.equal(model(x), before)
            assert applied and all(fix.places or fix.reason for fix in applied)
        finally:
            advice.close()
