"""Known mistakes that only a CUDA device can show; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from fusion_advisor.analysis import find_candidates, why_not
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.runtime import load_function

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def fused_of(function, *inputs):
    """The fused function of a chain that is one kernel."""
    with torch.no_grad():
        graph = record(lambda: function(*inputs), CaptureOptions()).graph
    (candidate,) = find_candidates(graph)
    kernel = generate_kernel(graph, candidate)
    fused = load_function(kernel.text, kernel.entry, kernel.hash)
    fused.reset_stats()
    return fused


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_zero_dim_tensor_of_the_cpu_is_read_on_the_host(dtype):
    x = torch.arange(12.0, device="cuda")
    s = torch.tensor([2, 9]).to(dtype)[0]  # a view, on the CPU
    fused = fused_of(lambda x, s: x * s + s, x, s)
    result = fused(x, s)
    assert fused.stats.fused == 1
    assert result.device == x.device and torch.equal(result, x * s + s)


def test_nan_and_signed_zeros_pass_a_kernel():
    x = torch.tensor([float("nan"), -1.0, 2.0, 0.0, -0.0], device="cuda")

    def run(x):
        return -(torch.clamp(torch.relu(x), max=1.5) + 0.0)

    result, wanted = fused_of(run, x)(x), run(x)
    assert torch.equal(result.isnan(), wanted.isnan())
    known = ~wanted.isnan()
    assert torch.equal(result[known], wanted[known])
    assert torch.equal(torch.signbit(result[known]), torch.signbit(wanted[known]))


def test_whole_numbers_wrap_and_floats_overflow_in_their_own_types():
    top = torch.tensor([2**31 - 1], dtype=torch.int32, device="cuda")
    assert fused_of(lambda x: (x + 1) * 1, top)(top).tolist() == [-(2**31)]
    big = torch.tensor([1e38], device="cuda")
    assert fused_of(lambda x: (x * 10.0) / 10.0, big)(big).tolist() == [float("inf")]


def test_ops_on_two_streams_are_not_one_kernel():
    x = torch.randn(64, device="cuda")
    side = torch.cuda.Stream()

    def run(x):
        h = torch.exp(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            return torch.tanh(h)

    graph = record(lambda: run(x), CaptureOptions()).graph
    candidates = find_candidates(graph)
    assert candidates == ()
    assert "stream" in {blocker.code for blocker in why_not(graph, candidates)}


def test_a_thousand_launches_keep_the_order_of_a_side_stream():
    x = torch.randn(1 << 16, device="cuda")
    fused = fused_of(lambda x: torch.relu(x * 2.0) + 1.0, x)
    fused(x)  # compiled
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = torch.zeros_like(x)
        for _ in range(1000):
            y = fused(y)
            y = y * 0.25
    side.synchronize()
    wanted = torch.zeros_like(x)
    for _ in range(1000):
        wanted = (torch.relu(wanted * 2.0) + 1.0) * 0.25
    assert torch.equal(y, wanted)


def test_dropout_between_kernels_draws_what_eager_draws():
    x = torch.ones(4096, device="cuda")

    def run(x):
        return torch.nn.functional.dropout(torch.relu(x * 2.0), 0.5) * 1.0 + 0.0

    torch.cuda.manual_seed(1)
    wanted, state = run(x), torch.cuda.get_rng_state()
    torch.cuda.manual_seed(1)
    graph = record(lambda: run(x), CaptureOptions())
    assert torch.equal(graph.result, wanted)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    random = {node.id for node in graph.graph.nodes if node.kind == "random"}
    assert random and all(random.isdisjoint(one.nodes) for one in find_candidates(graph.graph))
