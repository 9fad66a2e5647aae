"""Ctrl-C in the middle of each stage: everything is as it was, and the next profile works."""

from __future__ import annotations

import copy
import os
import signal
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from left_alone import left_alone, make_quick

import fusion_advisor as fa
from fusion_advisor.recorder import timing


def nothing() -> None:
    """What the model calls in the middle; tests put something else here."""


between: Callable[[], None] = nothing


class First(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2.0 + 1.0)


class Second(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x - 3.0) * 0.5


class Model(torch.nn.Module):
    """Two chains in two functions; buffers and random numbers in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = First(), Second()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(self.first(x))
        between()
        return self.drop(self.norm(self.second(x)))


EARLIER = '"""Fused kernels\n\nMade by Fusion Advisor.\n"""\n'

CODE = (First.forward, Second.forward, Model.forward)


REAL_MEASURE = timing.measure


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    make_quick(monkeypatch, tmp_path_factory.mktemp("temporary"))


@pytest.fixture
def real_timing(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "measure", partial(REAL_MEASURE, budget_s=0.2))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(3)
    made = Model()
    made(torch.randn(4, 8)).sum().backward()  # gradients that must survive
    return made


X = torch.linspace(-3, 3, 128).reshape(16, 8)


def interrupt(monkeypatch: pytest.MonkeyPatch, target: str, call: int = 1) -> list[int]:
    """Press Ctrl-C when ``target`` is called for the ``call``-th time; the list counts calls."""
    owner_name, name = target.rsplit(".", 1)
    try:
        owner: Any = __import__(owner_name, fromlist=[""])
    except ModuleNotFoundError:
        home, kind = owner_name.rsplit(".", 1)
        owner = getattr(__import__(home, fromlist=[""]), kind)
    original, calls = getattr(owner, name), []

    def pressed(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, pressed)
    return calls


def as_called_once(model: Model) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Buffers and random state after one plain call, which this leaves no trace of."""
    twin, before = copy.deepcopy(model), torch.get_rng_state()
    twin(X)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    return {name: buffer.clone() for name, buffer in twin.named_buffers()}, after


def profile(model: Model, **options: Any) -> fa.Advice:
    return fa.profile(model, (X,), isolated=False, target="cpu", **options)


def in_profiler() -> bool:
    return bool(torch._C._autograd._profiler_enabled())


STAGES = {
    "proving": ("fusion_advisor.recorder.program.Program.run_step", 3),
    "replaying": ("fusion_advisor.recorder.timing._restorer", 1),
    "reading the profiler": ("fusion_advisor.recorder.timing.join", 2),
    "describing the machine": ("fusion_advisor.advisor.environment", 1),
    "analysing": ("fusion_advisor.analysis.pipeline.find_findings", 1),
    "reporting": ("fusion_advisor.advisor.Report", 1),
    "building the graph": ("fusion_advisor.recorder.dispatch.build_recording", 1),
    "looking at what is alive": ("fusion_advisor.recorder.liveness.seal", 1),
}


@pytest.mark.parametrize("stage", STAGES)
def test_while_profiling(
    model: Model, monkeypatch: pytest.MonkeyPatch, real_timing: None, stage: str
) -> None:
    buffers, random_state = as_called_once(model)
    target, call = STAGES[stage]
    gradients = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]  # type: ignore[union-attr]
    with monkeypatch.context() as patch, left_alone(code=CODE, random=False):
        calls = interrupt(patch, target, call)
        with pytest.raises(KeyboardInterrupt):
            profile(model)
        assert len(calls) >= call, "the stage was not reached"
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    for parameter, (gradient, value) in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient and torch.equal(gradient, value)  # type: ignore[arg-type]
    assert profile(model).report.capture.proof.status == "passed"


@pytest.mark.parametrize("profiling", [False, True])
def test_while_timing(
    model: Model, monkeypatch: pytest.MonkeyPatch, real_timing: None, profiling: bool
) -> None:
    """Inside a timed replay, without and with torch's profiler running."""
    pressed = []

    def waiter(device: str) -> Callable[[], None]:
        def wait() -> None:
            if in_profiler() is profiling and len(pressed) < 2:
                pressed.append(1)
                if len(pressed) == 2:
                    signal.raise_signal(signal.SIGINT)

        return wait

    buffers, random_state = as_called_once(model)
    with monkeypatch.context() as patch, left_alone(code=CODE, random=False):
        patch.setattr(timing, "_waiter", waiter)
        with pytest.raises(KeyboardInterrupt):
            profile(model)
    assert len(pressed) == 2 and not in_profiler()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(model.norm.running_mean, buffers["norm.running_mean"])  # type: ignore[arg-type]
    assert profile(model).report.capture.wall_us > 0


def test_in_the_persons_code(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with left_alone(model, code=CODE), monkeypatch.context() as patch:
        patch.setitem(globals(), "between", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            profile(model, backward=True)
        with pytest.raises(KeyboardInterrupt), fa.capture(isolated=False) as run:
            model(X)
    with pytest.raises(fa.FusionAdvisorError, match="ended with KeyboardInterrupt"):
        _ = run.advice
    assert profile(model).report.findings


def test_in_the_backward_pass(model: Model) -> None:
    class Pressed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            raise KeyboardInterrupt

    x = X.clone().requires_grad_()
    kept = x.grad = torch.ones_like(x)
    with left_alone(model, code=CODE), pytest.raises(KeyboardInterrupt):
        fa.profile(lambda x: model.linear(Pressed.apply(x)), (x,), backward=True, isolated=False)
    assert x.grad is kept and torch.equal(kept, torch.ones_like(x))


def test_while_measuring_ceilings(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fusion_advisor.validation import measure_ceilings

    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    with monkeypatch.context() as patch, left_alone():
        calls = interrupt(patch, "fusion_advisor.validation.ceilings._gflops")
        with pytest.raises(KeyboardInterrupt):
            measure_ceilings(device="cpu", refresh=True)
        assert calls
    assert not list((tmp_path / "fusion_advisor" / "ceilings").glob("*"))


# -- putting in place ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validated() -> tuple[Model, fa.Advice]:
    """Two findings with valid kernels, none in place; every test puts it back so."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        torch.manual_seed(3)
        model = Model()
        model(torch.randn(4, 8)).sum().backward()
        advice = profile(model.eval())
        for finding in advice.report.findings:
            assert advice.validate(finding.id).status == "passed"
    return model, advice


@pytest.fixture
def advised(model: Model) -> tuple[Model, fa.Advice]:
    advice = profile(model.eval())
    assert len(advice.report.findings) == 2
    return model, advice


RUNGS = ("program", "inputs", "CPU kernel", "fused call", "gradients", "guards", "after timing")


def test_on_each_rung(model: Model) -> None:
    """On the way up, and again from the ground each time: no rung leaves anything behind."""
    wanted = [""]
    seen = []

    def progress(stage: str, fraction: float) -> None:
        seen.append(stage.partition(": ")[2])
        if wanted[0] and seen[-1] == wanted[0]:
            signal.raise_signal(signal.SIGINT)

    advice = profile(model.eval(), progress=progress)
    finding = advice.report.findings[0].id
    for rung in RUNGS:
        wanted[0] = rung
        with left_alone(model, code=CODE), pytest.raises(KeyboardInterrupt):
            advice.validate(finding)
        assert rung in seen, "no such rung"
        assert not advice.report.validations
    wanted[0] = ""
    assert advice.validate(finding).status == "passed"


MAKING = {
    "generating": ("fusion_advisor.kernels.lower", 1),
    "writing the text": ("fusion_advisor.kernels.generate", 2),
    "making inputs": ("fusion_advisor.validation.session.build_cases", 1),
    "comparing": ("fusion_advisor.validation.session.compare", 3),
    "running in another process": ("fusion_advisor.workers._Template._receive", 2),
    "timing a kernel": ("fusion_advisor.validation.benchmark.interleaved", 1),
}
INSIDE = {
    "loading": ("fusion_advisor.applying.load_function", 2),
    "checking the recorded run": ("fusion_advisor.applying.run_substituted", 2),
    "between two functions": ("fusion_advisor.applying.apply_function", 2),
    "in the middle of a swap": ("fusion_advisor.fixes.live_function._install", 2),
    "keeping": ("fusion_advisor.fixes.undo.ChangeStack.keep", 1),
    "counting": ("fusion_advisor.runtime.FusedFunction.reset_stats", 2),
}


@pytest.mark.parametrize("stage", MAKING)
def test_while_making_kernels(
    advised: tuple[Model, fa.Advice], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    model, advice = advised
    target, call = MAKING[stage]
    with monkeypatch.context() as patch, left_alone(model, code=CODE):
        calls = interrupt(patch, target, call)
        with pytest.raises(KeyboardInterrupt):
            advice.apply()
        assert len(calls) >= call, "the stage was not reached"
    assert advice.stats().empty and not advice.report.applied
    finding = advice.report.findings[-1].id
    assert advice.validate(finding, measure=False).status == "passed"


@pytest.mark.parametrize("stage", INSIDE)
def test_while_applying(
    validated: tuple[Model, fa.Advice], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    model, advice = validated
    target, call = INSIDE[stage]
    known = len(advice.report.applied)
    with monkeypatch.context() as patch, left_alone(model, code=CODE):
        calls = interrupt(patch, target, call)
        with pytest.raises(KeyboardInterrupt):
            advice.apply()
        assert len(calls) >= call, "the stage was not reached"
    assert advice.stats().empty and len(advice.report.applied) == known
    before = model(X)
    assert [fix.reason for fix in advice.apply()] == ["", ""]  # and then it works
    assert torch.allclose(model(X), before)
    assert advice.stats()["fused_calls"].tolist() == [1, 1]
    advice.undo()
    assert torch.equal(model(X), before)


@pytest.mark.parametrize("call", [1, 2, 4])
def test_while_the_call_is_checked_and_timed(
    validated: tuple[Model, fa.Advice], monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """In the eager call, the fused call, and a timed one: no kernel stays forced to run eager."""
    model, advice = validated
    calls: list[int] = []

    def press() -> None:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, left_alone(model, code=CODE):
        patch.setitem(globals(), "between", press)
        with pytest.raises(KeyboardInterrupt):
            advice.apply()
    assert len(calls) == call
    advice.apply()
    model(X)
    assert advice.stats()["fused_calls"].tolist() == [1, 1]
    advice.undo()


def test_while_undoing_everything_is_still_taken_out(
    validated: tuple[Model, fa.Advice], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, advice = validated
    before = model(X)
    with left_alone(model, code=CODE):
        advice.apply()
        with monkeypatch.context() as patch:
            interrupt(patch, "fusion_advisor.fixes.live_function._install", 1)
            with pytest.raises(KeyboardInterrupt):
                advice.undo()
        assert torch.equal(model(X), before)
        assert advice.stats().empty
        assert all(fix.undone for fix in advice.report.applied)
        assert advice.undo() == []


def test_while_exporting(
    validated: tuple[Model, fa.Advice], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, advice = validated
    for name in ("report.html", "report.json", "report.txt", "fused_model.py"):
        path = tmp_path / name
        path.write_text(EARLIER)
        write = advice.export_module if name.endswith(".py") else advice.export
        for target in ("os.fdopen", "os.replace"):
            with monkeypatch.context() as patch, left_alone():
                calls = interrupt(patch, target)
                with pytest.raises(KeyboardInterrupt):
                    write(path)
                assert calls
            assert path.read_text() == EARLIER
            assert not list(tmp_path.glob(".*"))  # the half-written one is gone
    assert all(one.read_text() == EARLIER for one in tmp_path.iterdir())


def test_while_a_file_is_edited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "import torch\n\ndef chain(x):\n    return torch.relu(x * 2.0 + 1.0)\n"
    path = tmp_path / "my_chain.py"
    path.write_text(source)
    module = types.ModuleType("my_chain")
    exec(compile(source, os.fspath(path), "exec"), vars(module))
    advice = fa.profile(module.chain, (X,), isolated=False, target="cpu")
    with monkeypatch.context() as patch, left_alone():
        calls = interrupt(patch, "os.replace", 1)
        with pytest.raises(KeyboardInterrupt):
            advice.apply(where="file")
        assert calls
    assert path.read_text() == source and os.listdir(tmp_path) == ["my_chain.py"]


@pytest.mark.slow
def test_at_any_moment(model: Model) -> None:
    """Ctrl-C after 6 delays spread over profiling, applying and undoing."""

    def all_of_it() -> None:
        advice = profile(model, max_ops=3)
        advice.apply()
        advice.undo()

    model.eval()
    all_of_it()  # warm: what is compiled once is compiled now
    begin = time.perf_counter()
    all_of_it()
    whole_s = time.perf_counter() - begin
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        for part in range(6):
            interrupted = False
            with left_alone(model, code=CODE):
                signal.setitimer(signal.ITIMER_REAL, whole_s * (part + 0.5) / 6)
                advice = None
                try:
                    advice = profile(model, max_ops=3)
                    advice.apply()
                except KeyboardInterrupt:
                    interrupted = True
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    if advice is not None:
                        advice.undo()
            assert interrupted or part > 3
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert profile(model).apply()[0].reason == ""
