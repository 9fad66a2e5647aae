"""The recorder's life: runs once, stops in time, restores everything, says what it cannot do."""

from __future__ import annotations

import gc
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fusion_advisor.errors import CaptureError, UsageError  # noqa: E402
from fusion_advisor.recorder import CaptureOptions, Recorder, record, replay  # noqa: E402


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(self.inner(x)) * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        return x.sum()


def _global_state():
    module = torch.nn.modules.module
    from torch.amp.autocast_mode import autocast
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    return (
        nn.Module.__call__,
        autocast.__enter__,
        autocast.__exit__,
        len(_global_optimizer_pre_hooks),
        len(_global_optimizer_post_hooks),
        len(module._global_forward_hooks),
        torch._C._len_torch_dispatch_stack(),
        torch.is_grad_enabled(),
        gc.get_threshold(),
        gc.isenabled(),
    )


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = _global_state()
    yield
    assert _global_state() == before
    assert getattr(Recorder._active, "recorder", None) is None


def test_the_code_runs_exactly_once():
    model = Model()
    recording = record(lambda: model(torch.randn(2, 4)))
    assert model.calls == 1
    assert isinstance(recording.result, torch.Tensor)


def test_module_paths_are_those_of_the_root():
    model = Model()
    recording = record(lambda: model(torch.randn(2, 4)))
    gelus = [node for node in recording.graph.nodes if node.op == "aten.gelu.default"]
    assert [node.module_path for node in gelus] == ["blocks.0.act", "blocks.1.act"]
    assert {node.module_class for node in gelus} == {"GELU"}
    muls = [node for node in recording.graph.nodes if node.op == "aten.mul.Tensor"]
    assert [node.module_path for node in muls] == ["blocks.0", "blocks.1"]
    assert recording.module("blocks.1") is model.blocks[1]
    assert recording.codes[muls[0].id] is Block.forward.__code__
    assert recording.graph.nodes[-1].module_class == "Model"


def test_a_second_root_is_told_apart():
    model, loss = Model(), nn.Sequential(nn.Linear(1, 1))
    recording = record(lambda: loss(model(torch.randn(2, 4)).view(1, 1)))
    assert recording.graph.nodes[-1].module_path == "Sequential.0"
    assert recording.module("Sequential.0") is loss[0]


def test_modules_that_nobody_registers_are_named_by_class():
    class Parent(nn.Module):
        def forward(self, x):
            return nn.ReLU()(x)

    recording = record(lambda: Parent()(torch.ones(2)))
    assert [node.module_path for node in recording.graph.nodes if "relu" in node.op] == ["ReLU"]


def test_frames_are_numbered_by_instance():
    def helper(x):
        return x * 2 + 1

    x = torch.ones(2)
    recording = record(lambda: helper(helper(x)))
    frames = [node.frame for node in recording.graph.nodes]
    assert frames[0] == frames[1] and frames[2] == frames[3] and frames[0] != frames[2]


def test_a_frame_keeps_its_number_across_calls_it_makes():
    def helper(x):
        return x + 1

    def outer(x):
        x = x * 2
        x = helper(x)
        return x * 3

    recording = record(lambda: outer(torch.ones(2)))
    first, inner, last = [node.frame for node in recording.graph.nodes if node.inputs]
    assert first == last != inner


def test_generators_keep_their_frame():
    def steps(x):
        while True:
            x = x + 1
            yield x

    def run():
        source = steps(torch.ones(2))
        return next(source) * next(source)

    recording = record(run)
    adds = [node.frame for node in recording.graph.nodes if node.op == "aten.add.Tensor"]
    assert len(set(adds)) == 1


def test_frames_are_numbered_under_a_debugger_too():
    import sys

    def trace(frame, event, argument):
        return trace

    def helper(x):
        return x * 2 + 1

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        recording = record(lambda: helper(helper(torch.ones(2))))
    finally:
        sys.settrace(before)
    frames = [node.frame for node in recording.graph.nodes if node.inputs]
    assert frames[0] == frames[1] and frames[2] == frames[3] and frames[0] != frames[2]


def test_no_mark_stays_on_frames():
    import sys

    record(lambda: torch.ones(2) + 1)
    frame = sys._getframe()
    while frame is not None:
        assert type(frame.f_trace).__name__ != "FrameMark"
        frame = frame.f_back


def test_phases_and_optimizer():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run():
        model(torch.randn(2, 4)).backward()
        optimizer.step()

    recording = record(run, CaptureOptions(steps=5))
    phases = [node.phase for node in recording.graph.nodes]
    order = [
        phase for index, phase in enumerate(phases) if index == 0 or phases[index - 1] != phase
    ]
    assert order == ["forward", "backward", "optimizer"]
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message


def test_backward_ops_name_the_place_of_their_forward_op():
    model = Model()
    recording = record(lambda: model(torch.randn(2, 4)), CaptureOptions(backward=True))
    assert recording.loss == "the returned scalar"
    nodes = recording.graph.nodes
    (forward, backward) = (
        [node for node in nodes if node.op == f"aten.gelu{name}.default"]
        for name in ("", "_backward")
    )
    assert [node.sequence for node in backward] == [node.sequence for node in reversed(forward)]
    assert backward[0].span == forward[1].span
    assert backward[0].module_path == "blocks.1.act"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_training_stops_after_the_optimizer_steps():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modes = []

    def run():
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).backward()
            optimizer.step()
            modes.append(torch._C._len_torch_dispatch_stack())

    recording = record(run)
    assert "2 optimizer steps" in recording.truncated
    assert model.calls == 5
    assert modes == [1, 0, 0, 0, 0]  # the mode is really gone
    optimizer_ops = [node for node in recording.graph.nodes if node.phase == "optimizer"]
    assert optimizer_ops
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message


def test_a_loop_over_calls_stops_after_the_steps():
    model = Model()
    modes = []

    def run():
        with torch.no_grad():
            for _ in range(4):
                model(torch.ones(2, 4))
                modes.append(torch._C._len_torch_dispatch_stack())

    recording = record(run, CaptureOptions(steps=1))
    assert model.calls == 4
    assert "call 2 of Model" in recording.truncated
    assert modes == [1, 0, 0, 0]
    sums = [node for node in recording.graph.nodes if node.op == "aten.sum.default"]
    assert len(sums) == 1


def test_activations_called_in_a_loop_are_no_steps():
    act = nn.GELU()
    x = torch.ones(3)

    def run():
        y = x
        for _ in range(6):
            y = act(y)
        return y

    recording = record(run)
    assert not recording.truncated
    assert len(recording.graph.nodes) == 6


def test_the_op_limit_stops_recording_and_the_code_goes_on():
    def run():
        y = torch.zeros(1)
        for _ in range(100):
            y = y + 1
        return y

    recording = record(run, CaptureOptions(max_ops=10))
    assert recording.result.item() == 100
    assert len(recording.graph.nodes) == 10 and "max_ops" in recording.truncated
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message


def test_errors_of_the_code_propagate_unchanged():
    class Broken(nn.Module):
        def forward(self, x):
            x = x + 1
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        record(lambda: nn.Sequential(Broken())(torch.ones(2)))
    files = [entry.path for entry in caught.traceback]
    assert not any(str(file).endswith("context.py") for file in files)


def test_an_interrupt_propagates_and_everything_is_restored():
    def run():
        torch.ones(2) + 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(run)
    assert record(lambda: torch.ones(2) + 1).graph.nodes


@pytest.mark.parametrize("stage", ["_before", "_after"])
def test_an_interrupt_in_our_bookkeeping_propagates(monkeypatch, stage):
    def interrupted(self, *args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, stage, interrupted)
    with pytest.raises(KeyboardInterrupt):
        record(lambda: torch.ones(2) + 1)


def test_an_error_of_ours_spares_the_code(monkeypatch):
    def broken(self, *args):
        raise RuntimeError("bookkeeping")

    monkeypatch.setattr(Recorder, "_after", broken)
    ran = []

    def run():
        ran.append(torch.ones(2) + 1)

    with pytest.raises(CaptureError, match="bookkeeping"):
        record(run)
    assert torch.equal(ran[0], torch.full((2,), 2.0))


def test_a_failing_backward_restores_gradients():
    model = Model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.grad for parameter in model.parameters()]

    def fail(gradient):
        raise ValueError("hook")

    model.blocks[0].inner.weight.register_hook(fail)
    with pytest.raises(ValueError, match="hook"):
        record(lambda: model(torch.ones(2, 4)), CaptureOptions(backward=True))
    assert all(
        parameter.grad is gradient
        for parameter, gradient in zip(model.parameters(), before, strict=True)
    )


def test_nested_recordings_are_refused_before_anything_runs():
    ran = []
    with pytest.raises(CaptureError, match="already running"):
        record(lambda: record(lambda: ran.append(1)))
    assert not ran


def test_nothing_to_record_is_said():
    with pytest.raises(CaptureError, match="no torch op"):
        record(lambda: 1)
    with pytest.raises(CaptureError, match="no torch op"):
        record(_in_a_thread)


def _in_a_thread():
    thread = threading.Thread(target=lambda: torch.ones(2) + 1)
    thread.start()
    thread.join()


def test_values_of_other_threads_are_inputs():
    made = []

    def run():
        thread = threading.Thread(target=lambda: made.append(torch.ones(2) + 1))
        thread.start()
        thread.join()
        return made[0] * 2

    recording = record(run)
    assert [node.op for node in recording.graph.nodes] == ["aten.mul.Tensor"]
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "passed"


def test_fake_tensors_are_refused_with_the_reason():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3)
    with pytest.raises(CaptureError, match="fake tensors"):
        record(lambda: x + 1)


def test_a_compiled_module_is_said_to_run_eagerly():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    x = torch.ones(2, 3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(x)
        recording = record(lambda: compiled(x))
        function = torch.compile(lambda t: t * 2 + 1, backend="eager")
        function(x)
        of_function = record(lambda: function(x))
        torch._dynamo.reset()
    assert any("torch.compile" in note for note in recording.notes)
    assert any("torch.compile" in note for note in of_function.notes)
    assert {"aten.addmm.default", "aten.relu.default"} <= {n.op for n in recording.graph.nodes}


def test_autocast_is_noted_on_its_ops_only():
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)

    def run():
        y = x + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = linear(y)
            z = torch.nn.functional.gelu(h) + x
        return z * 2

    recording = record(run)
    state = {node.id: node.autocast for node in recording.graph.nodes}
    assert state["add_0"] is None
    nodes = recording.graph.nodes
    assert next(n for n in nodes if n.op == "aten.addmm.default").autocast == "bfloat16"
    assert next(n for n in nodes if n.op == "aten.gelu.default").autocast == "bfloat16"
    assert nodes[-1].autocast is None
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "passed"


def test_grad_mode_is_noted():
    x = torch.ones(2, requires_grad=True)

    def run():
        with torch.no_grad():
            a = x * 2
        return a + x

    first, second = record(run).graph.nodes
    assert (first.grad_enabled, second.grad_enabled) == (False, True)
    assert first.sequence is None and second.sequence is not None


def test_random_ops_are_replayed_from_their_state():
    def run():
        x = torch.rand(4)
        torch.manual_seed(7)
        y = torch.nn.functional.dropout(torch.ones(64), 0.5)
        generator = torch.Generator().manual_seed(3)
        return x, y, torch.rand(4, generator=generator)

    state = torch.get_rng_state()
    torch.manual_seed(1)
    recording = record(run)
    after = torch.get_rng_state()
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message
    assert torch.equal(torch.get_rng_state(), after)  # the replay draws from nobody
    torch.set_rng_state(state)


def test_recording_does_not_change_the_result_or_the_random_state():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).train()
    import copy

    twin = copy.deepcopy(model)
    x = torch.randn(8, 4)
    torch.manual_seed(5)
    plain = model(x)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    recording = record(lambda: twin(x))
    assert torch.equal(plain, recording.result)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model[2].running_mean, twin[2].running_mean)
    assert twin[2].num_batches_tracked == 1


def test_hooks_of_the_person_run_and_are_recorded():
    module = nn.GELU()
    seen = []
    module.register_forward_hook(lambda m, i, o: seen.append(o.shape))
    module.register_forward_pre_hook(lambda m, i: (i[0] * 2,))
    recording = record(lambda: module(torch.ones(3)))
    assert seen == [torch.Size([3])]
    assert [node.op for node in recording.graph.nodes if node.inputs] == [
        "aten.mul.Tensor",
        "aten.gelu.default",
    ]


def test_checkpointed_modules_are_recorded():
    from torch.utils.checkpoint import checkpoint

    model = Model()

    def run():
        x = torch.randn(2, 4, requires_grad=True)
        return checkpoint(model, x, use_reentrant=False)

    recording = record(run, CaptureOptions(backward=True))
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message


def test_vmap_and_grad_transforms_are_recorded():
    x = torch.randn(3, 4)
    recording = record(lambda: torch.func.vmap(torch.func.grad(lambda t: t.sin().sum()))(x))
    assert torch.allclose(recording.result, x.cos())
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "passed"


def test_host_reads_are_recorded_with_their_number():
    recording = record(lambda: torch.tensor([1.5]).sum().item())
    node = recording.graph.nodes[-1]
    assert node.kind == "host-sync" and recording.store.numbers[node.id] == 1.5


def test_a_mode_of_the_person_keeps_working_inside():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops += 1
            return func(*args, **(kwargs or {}))

    model = Model()

    def run():
        with Counter() as counter:
            for _ in range(3):
                model(torch.ones(2, 4))
        return counter.ops

    recording = record(run, CaptureOptions(steps=1))
    assert recording.result % 3 == 0 and "call 2" in recording.truncated


def test_options_are_checked():
    with pytest.raises(UsageError, match="steps"):
        CaptureOptions(steps=0)


def test_a_recorder_is_for_one_block():
    recorder = Recorder()
    with pytest.raises(CaptureError, match="after the block"):
        recorder.finish()
    with recorder:
        torch.ones(1)
    with pytest.raises(CaptureError, match="once"), recorder:
        pass


def test_a_recording_lets_the_model_go():
    import weakref

    def run():
        model = nn.Linear(2, 2)
        return weakref.ref(model), record(lambda: model(torch.ones(1, 2)))

    gone, recording = run()
    recording.result = None
    gc.collect()
    assert gone() is None
    assert recording.module("") is None
