"""What people really pass: each gets a clear error of ours or a right report, and is left alone."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import os
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from left_alone import left_alone, make_quick

import fusion_advisor as fa
from fusion_advisor.errors import CaptureError, FixError, ReportError, UsageError


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2.0 + 1.0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = torch.nn.Linear(8, 8), Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.act(x))


def chain(x: torch.Tensor) -> Any:
    return torch.relu(x * 2 + 1)


X = torch.linspace(-3, 3, 128).reshape(16, 8)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    make_quick(monkeypatch, tmp_path_factory.mktemp("temporary"))


advices: list[fa.Advice] = []


@pytest.fixture(autouse=True)
def nothing_stays_in_place() -> Iterator[None]:
    """A test that fails must not take the others with it."""
    yield
    while advices:
        with suppress(FixError):
            advices.pop().undo()


def profile(model: Callable[..., Any], *args: Any, **options: Any) -> fa.Advice:
    advices.append(fa.profile(model, args, isolated=False, target="cpu", **options))
    return advices[-1]


def look_at_everything(advice: fa.Advice) -> None:
    """No view of a report may fail on an odd run."""
    assert repr(advice)
    assert set(advice._repr_mimebundle_()) == {"text/plain", "text/html"}
    for table in (advice.findings, advice.ops, advice.why_not, advice.stats()):
        assert table.columns.size


# -- wrong arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fa.profile("model(x)", (X,)), "must be callable, not str"),  # type: ignore[arg-type]
        (lambda: fa.profile(chain, X), "args must be a tuple"),  # type: ignore[arg-type]
        (lambda: fa.profile(chain, (X,), [1]), "kwargs must map"),  # type: ignore[arg-type]
        (lambda: fa.profile(chain, (X,), {1: X}), "kwargs must map"),  # type: ignore[dict-item]
        (lambda: fa.profile(chain, (X,), device="potato"), "No device 'potato'"),
        (lambda: fa.profile(chain, (X,), device=3), "device is a name"),  # type: ignore[arg-type]
        (lambda: fa.profile(chain, (X,), steps="two"), "steps must be a whole"),  # type: ignore[arg-type]
        (lambda: fa.profile(chain, (X,), max_ops=0), "max_ops must be a whole"),
        (lambda: fa.profile(chain, (X,), target="tpu"), "target must be one of"),
        (lambda: fa.profile(chain, (X,), progress=3), "progress must be callable"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_run_nothing(call: Callable[[], Any], message: str) -> None:
    with left_alone(), pytest.raises(UsageError, match=message):
        call()


def returns_generator(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x * 2


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (returns_generator, "generator, whose body has not run"),
        (coroutine, "coroutine, which has not run"),
        (lambda x: 3, "dispatched no torch op"),
    ],
)
def test_code_that_runs_no_op_is_told_so(model: Callable[..., Any], message: str) -> None:
    with left_alone(), warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that nobody awaited
        with pytest.raises(CaptureError, match=message):
            profile(model, X)


def test_meta_tensors_hold_nothing_to_profile() -> None:
    with left_alone(), pytest.raises(CaptureError, match="meta tensors, which hold no data"):
        profile(chain, X.to("meta"))


def test_a_model_that_raises_raises_its_own_error() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        try:
            raise KeyError("deep")
        except KeyError as error:
            raise ValueError("mine") from error

    with left_alone(), pytest.raises(ValueError, match=r"^mine$") as caught:
        profile(model, X)
    assert isinstance(caught.value.__cause__, KeyError)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "model" and "__torch_dispatch__" not in names
    with left_alone(), pytest.raises(RuntimeError, match="mat1 and mat2"):
        profile(lambda x: x @ x, X)  # an op that fails
    assert profile(chain, X).report.findings


# -- odd tensors --------------------------------------------------------------------------------


def quantized() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


def made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return X * 1.0


class Subclass(torch.Tensor):
    pass


ODD: dict[str, tuple[Callable[[], Any], Callable[..., Any], int]] = {
    # what goes in, the code, and how many findings there may be
    "sparse": (X.to_sparse, lambda x: (x * 2).to_dense() + 1, 0),
    "nested": (nested, lambda x: torch.relu(x * 2), 0),
    "complex": (lambda: torch.complex(X, X), lambda z: (z.conj() * 2 + z) * z, 0),
    "quantised": (quantized, torch.relu, 0),
    "dequantised": (quantized, lambda q: torch.relu(q.dequantize() * 2 + 1), 1),
    "inference tensor": (made_in_inference_mode, chain, 1),
    "eighth floats": (lambda: X.to(torch.float8_e4m3fn), lambda x: chain(x.float()), 1),
    "bytes": (lambda: torch.ones(8, dtype=torch.int8), lambda x: x * x + 1, 1),
    "empty": (lambda: torch.empty(0, 4), chain, 1),
    "one number": (lambda: torch.tensor(3.0), chain, 1),
    "needs a gradient": (lambda: X.clone().requires_grad_(), chain, 1),
    "subclass": (lambda: X.as_subclass(Subclass), chain, 1),
    "expanded": (lambda: X.expand(3, 16, 8), chain, 1),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tensors(name: str) -> None:
    make, code, most = ODD[name]
    with left_alone():
        value = make()
        before = value.clone() if not value.is_nested else None
        advice = profile(code, value)
        look_at_everything(advice)
        assert len(advice.report.findings) <= most
        assert advice.report.capture.proof.status in ("passed", "not run")
        if before is not None and not value.is_quantized and value.layout is torch.strided:
            assert torch.equal(value.float() if name == "eighth floats" else value,
                               before.float() if name == "eighth floats" else before)  # fmt: skip


@pytest.mark.parametrize("name", ["empty", "one number", "expanded", "inference tensor"])
def test_odd_tensors_are_fused_or_refused_with_a_reason(name: str) -> None:
    make, code, _ = ODD[name]
    value = make()
    advice = profile(code, value)
    expected = code(value).clone()
    with left_alone(code=(chain,)):
        for fix in advice.apply():
            assert not fix.undone or fix.reason
        assert torch.equal(code(value), expected)
        advice.undo()


def test_inference_mode_inside_and_outside() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return chain(x)

    with left_alone():
        assert len(profile(inside, X).report.capture.graph.nodes) == 3
    with torch.inference_mode():
        advice = profile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), X)
    assert advice.report.capture.proof.status == "passed"


def test_a_kernel_is_validated_and_put_in_place_under_inference_mode() -> None:
    model = Scaled()
    with left_alone(code=(Scaled.forward,)), torch.inference_mode():
        expected = model(X)
        advice = profile(model, X)
        (fix,) = advice.apply()
        assert not fix.undone, fix.reason
        assert torch.equal(model(X), expected)
        advice.undo()


def test_a_compiled_model_is_recorded_as_its_uncompiled_code() -> None:
    model = torch.compile(Net(), backend="eager")
    with left_alone():
        advice = profile(model, X)
    assert any("torch.compile" in note for note in advice.report.notes)
    assert len(advice.report.capture.graph.nodes) >= 4
    code, expected = Scaled.forward.__code__, model(X)
    for fix in advice.apply():
        assert not fix.undone or "slower" in fix.reason
    assert torch.equal(model(X), expected)
    advice.undo()
    assert Scaled.forward.__code__ is code and torch.equal(model(X), expected)


class Holder(torch.nn.Module):
    """A module that is false in a condition, with a buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(x) * 2.0 + 1.0)

    def __len__(self) -> int:
        return 0


def test_buffers_of_an_empty_container_are_kept_while_calls_are_compared() -> None:
    model = Holder()
    advice = profile(model, X)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    advice.apply()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    advice.undo()


@pytest.mark.parametrize("wrap", [torch.jit.script, lambda model: torch.jit.trace(model, X)])
def test_scripted_models_have_no_source_and_say_so(wrap: Callable[[Any], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = wrap(Scaled())
    with left_alone():
        advice = profile(model, X)
        look_at_everything(advice)
        for fix in advice.apply():
            assert fix.undone and fix.reason


# -- results, gradients, modes ------------------------------------------------------------------


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: int


@pytest.mark.parametrize(
    "make",
    [
        lambda y: Output(y, 3),
        lambda y: None,
        lambda y: float(y.sum()),
        lambda y: {"a": [y, (y, None)]},
        lambda y: (part for part in y),
        lambda y: types.SimpleNamespace(y=y),
    ],
)
def test_any_result_is_returned_as_it_is(make: Callable[[Any], Any]) -> None:
    made = []

    def model(x: torch.Tensor) -> Any:
        made.append(make(chain(x)))
        return made[-1]

    with left_alone():
        advice = profile(model, X)
        look_at_everything(advice)
    assert len(made) == 1 and advice.result is made[0]


def test_backward_says_what_it_summed_and_puts_gradients_back() -> None:
    model = Net()
    model(X).sum().backward()
    with left_alone(model):
        advice = profile(lambda x: {"a": model(x), "b": model(x)[0]}, X, backward=True)
    assert advice.report.capture.loss == (
        "no scalar loss was returned, so the sum of a 16×8, b 8 was differentiated"
    )
    assert advice.report.capture.with_backward
    with left_alone(model), pytest.raises(CaptureError, match="nothing to differentiate"):
        profile(torch.no_grad()(model), X, backward=True)
    with left_alone(model):
        assert profile(lambda x: model(x).mean(), X, backward=True).report.capture.loss == (
            "the returned scalar"
        )


def test_training_mode_is_called_exactly_once() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), Scaled())
    twin = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), Scaled())
    state = torch.get_rng_state()
    expected = twin(X)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    advice = profile(model, X)
    assert torch.equal(advice.result, expected)
    assert torch.equal(torch.get_rng_state(), after)
    for one, two in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(one, two)
    assert int(model[0].num_batches_tracked) == 1  # type: ignore[arg-type]
    # and checking the applied kernel repeats the call without a trace
    with left_alone(model):
        applied = advice.apply()
        assert [fix.reason for fix in applied if fix.places] == [""]
        assert all(fix.reason for fix in applied if not fix.places)  # dropout has its own place
        advice.undo()


def test_hooks_shared_and_looped_modules() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = Scaled()
            self.first = torch.nn.Linear(8, 8, bias=False)
            self.second = torch.nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight  # tied
            self.again = self.act  # one module, two names

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = self.act(self.first(x))
            return self.again(self.second(x))

    model, seen = Odd(), []
    model.act.register_forward_hook(lambda *_: seen.append("after"))
    model.act.register_forward_pre_hook(lambda *_: seen.append("before"))
    with left_alone(model, code=(Scaled.forward,)):
        advice = profile(model, X)
        assert seen == ["before", "after"] * 4
        assert [len(one.occurrences) for one in advice.report.findings] == [4]
        expected = model(X)
        for where in ("function", "module"):
            assert [fix.reason for fix in advice.apply(where=where)] == [""]
            seen.clear()
            assert torch.allclose(model(X), expected)
            assert seen == ["before", "after"] * 4
            assert advice.stats()["fused_calls"].tolist() == [4]
            advice.undo()


def test_autocast_and_grad_modes_are_the_callers() -> None:
    model = Net()
    for mode in (torch.no_grad(), torch.enable_grad(), torch.autocast("cpu", torch.bfloat16)):
        with mode, left_alone(model):
            advice = profile(model, X)
            assert advice.result.requires_grad is torch.is_grad_enabled()
            assert advice.report.capture.proof.status == "passed"


def test_a_profile_inside_a_profile_is_refused_and_the_outer_one_survives() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(CaptureError, match="already running in this thread"):
            profile(chain, x)
        return chain(x)

    with left_alone():
        assert len(profile(model, X).report.capture.graph.nodes) == 3
    with left_alone(), fa.capture(isolated=False) as run:
        with pytest.raises(CaptureError, match="already running"), fa.capture():
            pass
        chain(X)
    assert len(run.advice.report.capture.graph.nodes) == 3


def test_profiles_in_threads_are_apart() -> None:
    found: dict[int, int] = {}

    def work(ops: int) -> None:
        def model(x: torch.Tensor) -> torch.Tensor:
            for _ in range(ops):
                x = x + 1
            return x

        found[ops] = len(profile(model, X).report.capture.graph.nodes)

    threads = [threading.Thread(target=work, args=(ops,)) for ops in (2, 5, 9)]
    with left_alone():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {2: 2, 5: 5, 9: 9}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_recordings_of_several_threads_end_in_any_order(order: tuple[int, ...]) -> None:
    from fusion_advisor.recorder.context import Context

    with left_alone():
        contexts = [Context(2, print) for _ in order]
        for context in contexts:
            context.install()
        for number in order:
            contexts[number].uninstall()


# -- with capture() -----------------------------------------------------------------------------


def test_capture_early_error_and_return() -> None:
    with left_alone(), fa.capture(isolated=False) as run:
        chain(X)
        with pytest.raises(CaptureError, match="the block has not ended"):
            _ = run.advice
    assert run.advice.report.capture.title == "with block"

    def fails() -> None:
        nonlocal run
        with fa.capture(isolated=False) as run:
            chain(X)
            raise KeyError("mine")

    with left_alone(), pytest.raises(KeyError, match="mine"):
        fails()
    with pytest.raises(CaptureError, match="the block ended with KeyError"):
        _ = run.advice
    with pytest.raises(CaptureError, match="the block ended with KeyError"):
        _ = run.findings

    def returns_inside() -> Any:
        with fa.capture(isolated=False) as inner:
            return inner, chain(X)

    with left_alone():
        inner, result = returns_inside()
    assert torch.equal(result, chain(X)) and inner.report.findings


def test_a_training_loop_is_recorded_for_two_steps_and_trains_as_ever() -> None:
    def train(steps: int) -> tuple[Net, list[float], str]:
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        losses, truncated = [], ""
        with fa.capture(isolated=False, steps=steps) if steps else nullcontext() as run:
            for _ in range(5):
                optimizer.zero_grad()
                loss = model(X).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        if run is not None:
            truncated = run.advice.report.capture.truncated
            phases = {node.phase for node in run.advice.report.capture.graph.nodes}
            assert phases == {"forward", "backward", "optimizer"}
        return model, losses, truncated

    with left_alone(random=False):
        plain, losses, _ = train(0)
        recorded, same_losses, truncated = train(2)
    assert same_losses == losses and losses[-1] < losses[0]
    assert "after 2 optimizer steps" in truncated
    for one, two in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(one, two)


# -- another device -----------------------------------------------------------------------------


def test_estimates_for_another_device_refer_to_its_own_time() -> None:
    from fusion_advisor.devices import find_device
    from fusion_advisor.report import render_html, render_text
    from fusion_advisor.serialize import dump_report, load_report

    big = torch.ones(2048, 2048)
    with left_alone():
        report = profile(chain, big, device="h100").report
    h100 = find_device("h100")
    assert report.device == h100 and report.capture.ceilings is not None
    assert report.capture.ceilings.origin == "measured"
    assert report.capture.times and report.capture.wall_us == 500.0 * 3  # measured here, kept
    (finding,) = report.findings
    # Three kernels of 16.8 MB in and out, from memory or cache: microseconds, not milliseconds.
    bytes_us = 3 * 2 * big.nbytes / (h100.bandwidth[-1].gb_per_s * 1e3)
    assert bytes_us * 0.3 < report.wall_us < bytes_us * 3
    assert finding.share == pytest.approx(finding.estimate.saved_mid_us / report.wall_us)
    assert 0 < finding.share < 1
    for text in (render_text(report), render_html(report)):
        assert f"on {h100.name} (estimate)" in text
        assert f"estimated for {h100.name}, which is not in this" in " ".join(text.split())
    assert load_report(dump_report(report)) == report


# -- advice without a kernel --------------------------------------------------------------------


@pytest.fixture
def optimizer_advice() -> fa.Advice:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with fa.capture(isolated=False, target="cpu") as run:
        optimizer.step()
    return run.advice


def test_the_optimizer_is_advice_only(optimizer_advice: fa.Advice, tmp_path: Path) -> None:
    from fusion_advisor.cli import main

    advice = optimizer_advice
    (finding,) = advice.report.findings
    assert finding.rule == "FUS006"
    for ask in (advice.fuse, advice.validate, advice.cell_fix):
        with pytest.raises(UsageError, match=r"advice without a kernel.*foreach=True"):
            ask(finding.id.lower())
    with left_alone():
        (fix,) = advice.apply()
        assert fix.undone and "advice without a kernel" in fix.reason and fix.places == ()
        assert "is not in place: not applied" in repr(advice.apply(finding.id))
        assert advice.undo() == [] and advice.stats().empty
        with pytest.raises(FixError, match="no finding can be exported"):
            advice.export_module(tmp_path / "fused_model.py")
    assert not advice.report.kernels and not advice.report.validations
    look_at_everything(advice)
    assert "advice.fuse" not in repr(advice) and "%fuse_apply" not in repr(advice)
    path = advice.export(tmp_path / "report.json")
    assert main(["kernel", str(path), finding.id]) == 2


def test_no_findings_still_gives_tables_and_nothing_to_apply() -> None:
    advice = profile(lambda x: x @ x.T, X)
    assert advice.report.findings == () and advice.report.nothing
    look_at_everything(advice)
    assert advice.findings.empty and len(advice.ops) == 2
    assert advice.apply() == [] and repr(advice.apply()) == "nothing to apply"
    assert advice.undo() == []
    with pytest.raises(UsageError, match=r"no finding 'F1' here \(there are: none\)"):
        advice.apply("F1")


# -- applying, in all orders --------------------------------------------------------------------


def test_ids_in_any_case_and_twice() -> None:
    model = Net()
    advice = profile(model, X)
    name = advice.report.findings[0].id
    with left_alone(model, code=(Scaled.forward,)):
        assert [fix.reason for fix in advice.apply([name.lower(), name, f" {name} "])] == [""]
        assert [fix.reason for fix in advice.apply(name.lower())] == ["is in place already"]
        assert advice.undo(name.lower())
        with pytest.raises(UsageError, match="where must be one of"):
            advice.apply(where="everywhere")


@pytest.mark.parametrize("order", ["first", "last"])
def test_two_profiles_of_one_model_undone_in_either_order(order: str) -> None:
    model = Net()
    expected = model(X)
    with left_alone(model, code=(Scaled.forward,)):
        one, two = profile(model, X), profile(model, X)
        assert [fix.reason for fix in one.apply()] == [""]
        (second,) = two.apply()
        assert second.undone and "already in" in second.reason
        for advice in (one, two) if order == "first" else (two, one):
            advice.undo()
        assert torch.equal(model(X), expected)
        assert [fix.reason for fix in two.apply()] == [""]  # now there is room
        two.undo()


def test_profiling_a_model_with_kernels_in_place() -> None:
    """The kernels' own eager chains are not found once more, nor counted as fallbacks."""
    model = Net()
    expected = model(X)
    with left_alone(model, code=(Scaled.forward,)), warnings.catch_warnings():
        warnings.simplefilter("error")
        first = profile(model, X)
        first.apply()
        again = profile(model, X)
        assert torch.equal(again.result, expected)
        assert again.report.findings == () and "in place already" in again.report.nothing
        assert any("fused kernels that are in place" in note for note in again.report.notes)
        assert again.apply() == []
        assert first.stats()["fallbacks"].tolist() == [0]
        first.undo()
        assert torch.equal(model(X), expected)
        assert profile(model, X).report.findings


def test_a_model_that_is_gone() -> None:
    model = Net()
    with fa.capture(isolated=False, target="cpu") as run:
        model(X)
    gone = weakref.ref(model)
    advice = run.advice
    del model
    gc.collect()
    assert gone() is None  # an advice does not keep the model of a block alive
    with left_alone(code=(Scaled.forward,)):
        (fix,) = advice.apply(where="module")
        assert fix.undone and "not applied" in fix.reason
        assert [fix.reason for fix in advice.apply()] == [""]  # the class is still there
        advice.undo()


def test_closing_lets_go_of_the_model() -> None:
    model = Net()
    advice = profile(model, X)
    gone = weakref.ref(model)
    advice.apply()
    advice.close()
    advice.result = None
    del model
    gc.collect()
    assert gone() is None
    assert advice.undo()
    assert Scaled()(X).shape == X.shape and advice.stats().empty


def test_a_model_that_was_trained_since_is_validated_on_synthetic_inputs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Scaled())
    advice = profile(model, X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).sum().backward()
    optimizer.step()
    with left_alone(model, code=(Scaled.forward,)):
        assert [fix.reason for fix in advice.apply()] == [""]
        rung = next(one for one in advice.validate(advice.report.findings[0].id).rungs
                    if one.name == "inputs")  # fmt: skip
        assert "synthetic only" in rung.detail
        advice.undo()


def test_one_instance_only() -> None:
    model, other = Net(), Net()
    advice = profile(model, X)
    with left_alone(model, other, code=(Scaled.forward,)):
        assert [fix.reason for fix in advice.apply(where="module")] == [""]
        assert type(model.act) is not Scaled and type(other.act) is Scaled
        model(X), other(X)
        assert advice.stats()["fused_calls"].tolist() == [1]
        advice.undo()


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_persons_own_file(tmp_path: Path, newline: str) -> None:
    source = newline.join(
        ["# größe", "import torch", "", "def chain(x):", "    return torch.relu(x * 2.0 + 1.0)", ""]
    ).encode()
    path = tmp_path / "my_model.py"
    path.write_bytes(source)
    path.chmod(0o640)
    module = types.ModuleType("my_model")
    exec(compile(source, os.fspath(path), "exec"), vars(module))
    advice = profile(module.chain, X)
    expected = module.chain(X)
    with left_alone():
        (fix,) = advice.apply(where="file")
        assert fix.reason == "" and fix.places == (str(path),)
        edited = types.ModuleType("edited")
        exec(compile(path.read_bytes(), os.fspath(path), "exec"), vars(edited))
        assert b"@cuda.jit" in path.read_bytes() or b"cpu_kernel" in path.read_bytes()
        assert torch.equal(edited.chain(X), expected)
        assert path.stat().st_mode & 0o777 == 0o640
        advice.undo()
    assert path.read_bytes() == source and os.listdir(tmp_path) == ["my_model.py"]
    advice.apply(where="file")
    path.write_bytes(path.read_bytes() + b"# mine\n")
    with pytest.raises(FixError, match="was edited after the fix"):
        advice.undo()
    assert path.read_bytes().endswith(b"# mine\n")


# -- calls that must not be repeated ------------------------------------------------------------


def test_a_training_step_is_not_run_again_to_check_kernels() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    advice = profile(step, X)
    assert any("not repeated" in note and "optimizer step" in note for note in advice.report.notes)
    with left_alone(model, code=(Scaled.forward,)):
        advice.apply()
        advice.undo()
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["written in place", "grown", "backward"])
def test_arguments_and_gradients_are_not_touched_again(kind: str) -> None:
    model, calls = Net(), []
    cache, buffer = types.SimpleNamespace(items=[]), X.clone()

    def call(x: torch.Tensor, cache: Any = None) -> torch.Tensor:
        calls.append(1)
        y = model(x)
        if kind == "written in place":
            x.add_(1)
        elif kind == "grown":
            cache.items.append(y)
        else:
            y.sum().backward()
        return y

    arguments = (buffer, cache) if kind == "grown" else (buffer,)
    advice = profile(call, *arguments)
    after = buffer.clone()
    with left_alone(model, code=(Scaled.forward,)):
        assert [fix.reason for fix in advice.apply()] == [""]
        advice.undo()
    assert len(calls) == 1 and torch.equal(buffer, after) and len(cache.items) <= 1


def test_a_buffer_that_is_replaced_in_each_call_is_put_back() -> None:
    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + 1
            return super().forward(x)

    model = Counting()
    advice = profile(model, X)
    assert int(model.count) == 1
    with left_alone(model, code=(Scaled.forward,)):
        assert [fix.reason for fix in advice.apply()] == [""]
        advice.undo()
    assert int(model.count) == 1


def test_a_call_that_does_not_run_twice() -> None:
    model, source = Net(), iter([X])

    def once() -> torch.Tensor:
        return model(next(source))

    advice = profile(once)
    with left_alone(model, code=(Scaled.forward,)):
        (fix,) = advice.apply()
        assert fix.reason == "" and fix.after_us == 0.0  # checked on the recorded run alone
        advice.undo()


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".html", ".json", ".txt"])
def test_reports_that_cannot_be_written(tmp_path: Path, suffix: str) -> None:
    advice = profile(chain, X)
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    file = tmp_path / "file"
    file.write_text("mine")
    read_only = tmp_path / f"read_only{suffix}"
    read_only.write_text("mine")
    read_only.chmod(0o444)
    wrong = [folder, file / f"below{suffix}", tmp_path / "report.docx", tmp_path / "report"]
    wrong += [] if os.geteuid() == 0 else [read_only]  # root may write everything
    with left_alone():
        for path in wrong:
            with pytest.raises(ReportError):
                advice.export(path)
    assert file.read_text() == read_only.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def _damaged(text: str) -> dict[str, str]:
    data = json.loads(text)
    return {
        "empty": "",
        "cut": text[: len(text) // 2],
        "not JSON": "hello",
        "a list": "[]",
        "a number": "3",
        "nothing in it": "{}",
        "newer": json.dumps({**data, "schema_version": 999}),
        "a field of another type": text.replace('"nodes"', '"knots"', 1),
        "deep": "[" * 100_000,
        "an id that is a half's": text.replace('"v0"', '"v0#x"'),
        "an id that is a repeat's": text.replace('"mul_0"', '"mul_0@1"'),
        "a huge number": '{"schema_version": ' + "9" * 5000 + "}",
    }


@pytest.mark.parametrize("kind", list(_damaged("{}")))
def test_damaged_reports(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "report.json"
    profile(chain, X).export(path)
    path.write_text(_damaged(path.read_text())[kind])
    before = path.read_bytes()
    with left_alone(), pytest.raises(ReportError):
        fa.load(path)
    assert path.read_bytes() == before


def test_reports_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(ReportError, match="not UTF-8"):
        fa.load(path)
    with pytest.raises(ReportError, match="cannot read"):
        fa.load(tmp_path / "absent.json")
    with pytest.raises(ReportError, match="cannot read"):
        fa.load(tmp_path)
