"""Timing: the join of profiler events, and what a replay measures."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch.autograd import DeviceType  # noqa: E402

from fusion_advisor.errors import CaptureError  # noqa: E402
from fusion_advisor.recorder import record, timing  # noqa: E402
from fusion_advisor.recorder.kineto import join  # noqa: E402
from fusion_advisor.recorder.program import Program  # noqa: E402


class Event:
    """A raw kineto event: every field is a method."""

    def __init__(
        self, name, device, correlation, linked, start, end, thread=1, annotation=False, stream=7
    ):
        self._values = {
            "name": name,
            "device_type": device,
            "correlation_id": correlation,
            "linked_correlation_id": linked,
            "start_ns": start,
            "end_ns": end,
            "duration_ns": end - start,
            "start_thread_id": thread,
            "is_user_annotation": annotation,
            "device_index": 0,
            "device_resource_id": stream,
        }

    def __getattr__(self, name):
        return lambda: self._values[name]


CPU, CUDA = DeviceType.CPU, DeviceType.CUDA


def _events():
    return [
        Event("fa#0", CPU, 1, 0, 0, 100),
        Event("aten::add", CPU, 2, 0, 5, 90),
        Event("cudaLaunchKernel", CPU, 900, 2, 20, 30),
        Event("void elementwise", CUDA, 901, 2, 200, 260),
        Event("fa#1", CPU, 3, 0, 110, 200),
        Event("aten::mm", CPU, 4, 0, 115, 190),
        Event("aten::empty", CPU, 5, 0, 120, 130),
        Event("gemm", CUDA, 902, 4, 300, 350),
        Event("splitk_reduce", CUDA, 903, 4, 350, 370),
        Event("Memset (Device)", CUDA, 904, 4, 370, 375),
        Event("fa#1", CUDA, 905, 3, 300, 375, annotation=True),
        Event("stray", CUDA, 906, 77, 400, 500),
    ]


@pytest.mark.parametrize("order", [0, 1])
def test_device_events_belong_to_the_op_that_launched_them(order):
    events = _events() if order == 0 else list(reversed(_events()))
    found = join(events)
    add, mm = found[0], found[1]
    assert (add.host_ns, add.device_ns, add.kernels, add.events) == (85, 60, 1, 1)
    assert (mm.host_ns, mm.device_ns, mm.kernels, mm.events) == (75, 75, 2, 2)
    assert mm.range_ns == 90
    assert set(found) == {0, 1}


def test_threads_do_not_mix():
    found = join(
        [
            Event("fa#0", CPU, 1, 0, 0, 100, thread=1),
            Event("aten::add", CPU, 2, 0, 10, 20, thread=1),
            Event("aten::mul", CPU, 3, 0, 30, 40, thread=2),
        ]
    )
    assert found[0].host_ns == 10 and found[0].events == 1


def test_clocks_beyond_the_exact_floats_and_kernels_without_a_duration():
    """Nanoseconds since 1970 do not fit a float; broken stamps (0, 0) add no time."""
    late = 1_742_960_010_112_345_678
    assert float(late) == float(late + 1)
    found = join(
        [
            Event("fa#0", CPU, 1, 0, late, late + 100),
            Event("aten::add", CPU, 2, 0, late + 1, late + 4),
            Event("lost", CUDA, 901, 2, 0, 0),
            Event("void elementwise", CUDA, 902, 2, late + 200, late + 205),
        ]
    )
    assert (found[0].range_ns, found[0].host_ns, found[0].device_ns) == (100, 3, 5)


def test_a_kernel_does_not_outlast_the_next_one_of_its_stream():
    found = join(
        [
            Event("fa#0", CPU, 1, 0, 0, 100),
            Event("aten::add", CPU, 2, 0, 5, 90),
            Event("second", CUDA, 902, 2, 210, 215),
            Event("overrun", CUDA, 901, 2, 200, 2_000_200),
            Event("third", CUDA, 903, 2, 220, 225),
            Event("elsewhere", CUDA, 904, 2, 205, 305, stream=8),
        ]
    )
    assert found[0].device_ns == 10 + 5 + 5 + 100


def test_ops_after_a_range_are_not_in_it():
    found = join(
        [
            Event("fa#0", CPU, 1, 0, 0, 10),
            Event("aten::add", CPU, 2, 0, 10, 20),
        ]
    )
    assert found[0].events == 0


def _recording(size=256):
    x, w = torch.randn(size, size), torch.randn(size, size)

    def run():
        a = x @ w
        a.add_(1)
        b, c = a.split(size // 2, dim=1)
        return torch.nn.functional.dropout(torch.tanh(b) * c, 0.5)

    return record(run)


def test_every_op_gets_its_time_and_the_rest_is_shown():
    x, w = torch.randn(512, 512), torch.randn(512, 512)
    recording = record(lambda: torch.relu((x @ w)[:2]) + 1)
    measured = timing.measure(recording.graph, recording.store, budget_s=0.5)
    assert [item.node for item in measured.times] == [node.id for node in recording.graph.nodes]
    assert all(item.host_us > 0 for item in measured.times)
    assert all(item.device_us == 0 and item.kernels == 0 for item in measured.times)
    attributed = sum(item.host_us for item in measured.times)
    assert measured.wall_us == pytest.approx(attributed + measured.rest_us)
    assert attributed <= measured.wall_us * 1.0001
    longest = max(measured.times, key=lambda item: item.host_us)
    assert longest.node == "mm_0"


def test_measuring_leaves_inputs_and_random_state_alone():
    x = torch.ones(8)

    def run():
        x.add_(1)
        return torch.nn.functional.dropout(x, 0.5)

    recording = record(run)
    state, kept = torch.get_rng_state(), x.clone()
    timing.measure(recording.graph, recording.store, budget_s=0.05)
    assert torch.equal(x, kept) and torch.equal(torch.get_rng_state(), state)
    assert recording.store.get(recording.graph.inputs[0]).tolist() == [1.0] * 8


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("block", [2, 500])
def test_the_compiled_program_computes_the_same(monkeypatch, ranges, block):
    monkeypatch.setattr(timing, "_BLOCK", block)
    recording = _recording(16)
    program = Program(recording.graph, keep=recording.graph.outputs)
    run = timing.compile_program(program, recording.store.random_states, ranges=ranges)
    with torch.no_grad():
        state = torch.get_rng_state()
        found = run({value: recording.store.get(value) for value in program.needed()})
        torch.set_rng_state(state)
    for value in recording.graph.outputs:
        if value in program.kept:
            assert value in found
    final = recording.graph.nodes[-1].outputs[0]
    assert torch.equal(found[final], recording.result)


def test_intermediates_are_let_go_in_a_replay():
    import gc

    x = torch.zeros(1000)

    def run():
        y = x
        for _ in range(50):
            y = y + 1
        return y

    recording = record(run)
    program = Program(recording.graph, keep=recording.graph.outputs)
    compiled = timing.compile_program(program, {})
    found = compiled({value: recording.store.get(value) for value in program.needed()})
    gc.collect()
    assert set(found) <= {*recording.graph.outputs, *recording.graph.inputs}


def test_medians_come_from_the_clock():
    ticks = itertools.count()
    durations = [9.0, 9.0, 1.0, 3.0, 2.0, 5.0, 4.0]  # two warm-up runs first
    now = [0.0]

    def clock():
        if next(ticks) % 2 and pending:
            now[0] += pending.pop(0)
        return now[0]

    pending: list[float] = []
    state = {"runs": 0}

    def run(inputs):
        now[0] += durations[min(state["runs"], len(durations) - 1)]
        state["runs"] += 1
        return {}

    walls = timing._wall_times(run, {}, lambda: None, lambda: None, lambda: now[0], 32.0)
    assert walls == [1.0, 3.0, 2.0, 5.0, 4.0]
    state["runs"] = 0
    walls = timing._wall_times(run, {}, lambda: None, lambda: None, lambda: now[0], 12.0)
    assert walls == [1.0, 3.0, 2.0], "never fewer than three"
    assert clock() == now[0]


def test_another_profiler_is_refused_and_left_alone():
    recording = _recording(8)
    with torch.profiler.profile() as outer, pytest.raises(CaptureError, match="Another profiler"):
        timing.measure(recording.graph, recording.store, budget_s=0.01)
    assert outer.events() is not None


def test_the_profiler_prints_nothing():
    code = (
        "import torch\n"
        "from fusion_advisor.recorder import record, timing\n"
        "r = record(lambda: torch.ones(3) + 1)\n"
        "timing.measure(r.graph, r.store, budget_s=0.01)\n"
    )
    environment = {"PATH": "", "PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert "USDT" not in done.stdout + done.stderr
    assert done.stdout == ""
