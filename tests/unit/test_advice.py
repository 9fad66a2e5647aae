"""Applying and taking back, on a live model: what is wrong or slower must not stay."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import math
from pathlib import Path

import pytest
import torch

import fusion_advisor as fa
from fusion_advisor.advisor import ProfileOptions
from fusion_advisor.applying import Applier
from fusion_advisor.errors import FusionAdvisorError, ReportError, UsageError
from fusion_advisor.records import Rung
from fusion_advisor.serialize import dump_report, load_report


class WrittenOut(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 4096)
        self.act = WrittenOut()
        self.second = torch.nn.Linear(4096, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.first(x)))


def _advice(rows: int = 512) -> tuple[Block, torch.Tensor, fa.Advice]:
    torch.manual_seed(0)
    model, x = Block(), torch.randn(rows, 64)
    model(x)
    return model, x, fa.profile(model, (x,), isolated=False)


@pytest.fixture(scope="module")
def profiled() -> tuple[Block, torch.Tensor, fa.Advice]:
    return _advice()


def test_finding_names_the_expression(profiled: tuple[Block, torch.Tensor, fa.Advice]) -> None:
    _, _, advice = profiled
    finding = advice.report.findings[0]
    assert finding.span is not None
    assert Path(finding.span.file).name == "test_advice.py"
    assert finding.span.text.startswith("0.5 * x * (1.0 + torch.tanh(")
    assert len(finding.occurrences[0].nodes) == 8
    assert finding.estimate.launches_before == 8 and finding.estimate.launches_after == 1
    n_bytes = 512 * 4096 * 4
    assert finding.estimate.bytes_after == 2 * n_bytes
    # seven ops of one operand read and write once; the last multiplies two tensors; the add too
    assert finding.estimate.bytes_before == (6 * 2 + 2 * 3) * n_bytes


def test_apply_checks_counts_and_undo_is_exact(
    profiled: tuple[Block, torch.Tensor, fa.Advice],
) -> None:
    model, x, advice = profiled
    before = model(x).detach().clone()
    keys = list(model.state_dict())
    code = WrittenOut.forward.__code__
    applied = advice.apply("F" + advice.report.findings[0].id[1:])
    assert [fix.reason for fix in applied] == [""]
    assert WrittenOut.forward.__code__ is not code
    assert applied[0].before_us > 0 and applied[0].after_us > 0
    for rows in (3, 64, 512):
        x_rows = torch.randn(rows, 64, requires_grad=True)
        model(x_rows).sum().backward()
        assert x_rows.grad is not None
    stats = advice.stats()
    assert stats["fused_calls"].tolist() == [3] and stats["fallbacks"].tolist() == [0]
    clone = copy.deepcopy(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert torch.equal(clone(x), model(x)) and list(clone.state_dict()) == keys
    places = advice.undo()
    assert any("WrittenOut.forward" in place for place in places)
    assert WrittenOut.forward.__code__ is code
    assert torch.equal(model(x), before)
    assert all(fix.undone for fix in advice.report.applied)


def test_an_invalid_kernel_is_not_applied(
    profiled: tuple[Block, torch.Tensor, fa.Advice],
) -> None:
    _, _, advice = profiled
    finding = advice.report.findings[0]
    kernel, validation = advice.fuse(finding.id), advice.validate(finding.id)
    bad = dataclasses.replace(
        validation,
        status="failed",
        rungs=(Rung(name="CPU kernel", status="failed", detail="3 elements differ"),),
    )
    applier = Applier(advice._open_recording())
    code = WrittenOut.forward.__code__
    outcome = applier.apply(advice.report, [(finding, kernel, bad)], where="function")
    assert "3 elements differ" in outcome[0].reason and outcome[0].undone
    assert WrittenOut.forward.__code__ is code


def test_a_wrong_kernel_that_slipped_through_is_found_on_the_recorded_run(
    profiled: tuple[Block, torch.Tensor, fa.Advice], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, advice = profiled
    finding = advice.report.findings[0]
    kernel, validation = advice.fuse(finding.id), advice.validate(finding.id)
    monkeypatch.setattr("fusion_advisor.applying.load_function", lambda *_: lambda x: x * 0.25)
    code = WrittenOut.forward.__code__
    outcome = Applier(advice._open_recording()).apply(
        advice.report, [(finding, kernel, validation)], where="function"
    )
    assert "other values" in outcome[0].reason
    assert WrittenOut.forward.__code__ is code


@pytest.mark.parametrize("spread_us", [1.0, 200.0], ids=["quiet", "busy machine"])
def test_what_is_slower_is_taken_back(
    profiled: tuple[Block, torch.Tensor, fa.Advice],
    monkeypatch: pytest.MonkeyPatch,
    spread_us: float,
) -> None:
    from fusion_advisor.validation import whole_call

    model, x, advice = profiled
    slow = whole_call.CallTimes(
        before_us=100.0,
        before_spread_us=spread_us,
        after_us=150.0,
        after_spread_us=spread_us,
        rounds=9,
    )
    monkeypatch.setattr(whole_call, "time_interleaved", lambda *_, **__: slow)
    code = WrittenOut.forward.__code__
    applied = advice.apply()
    assert "slower" in applied[0].reason and applied[0].undone
    assert WrittenOut.forward.__code__ is code
    monkeypatch.undo()
    assert torch.isfinite(model(x)).all()


def test_report_survives_json(
    profiled: tuple[Block, torch.Tensor, fa.Advice], tmp_path: Path
) -> None:
    _, _, advice = profiled
    text = dump_report(advice.report)
    assert load_report(text) == advice.report
    path = advice.export(tmp_path / "report.json")
    assert fa.load(path) == advice.report


def test_bad_requests_are_ours(
    profiled: tuple[Block, torch.Tensor, fa.Advice], tmp_path: Path
) -> None:
    model, x, advice = profiled
    with pytest.raises(UsageError, match="there is no finding 'F999'"):
        advice.fuse("F999")
    with pytest.raises(UsageError, match="target must be one of"):
        fa.profile(model, (x,), target="tpu")
    with pytest.raises(UsageError, match="args must be a tuple"):
        fa.profile(model, x)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="where must be one of"):
        advice.apply(where="everywhere")
    with pytest.raises(FusionAdvisorError, match=r"\.html"):
        advice.export(tmp_path / "report.pdf")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ReportError):
        advice.export(tmp_path / "folder.html")


def test_match_stays_with_the_finding_until_another_is_asked_for(
    profiled: tuple[Block, torch.Tensor, fa.Advice],
) -> None:
    _, _, advice = profiled
    name = advice.report.findings[0].id
    eager = advice.fuse(name, match="eager")
    fast = advice.fuse(name, match="fast")
    assert fast.program.match == "fast" and 'match="fast"' in fast.text
    assert advice.fuse(name) is fast
    assert advice.fuse(name, "cpu").program.match == "fast"
    assert advice.fuse(name, match="eager").program == eager.program
    with pytest.raises(UsageError, match="match must be eager or fast, not 'quick'"):
        advice.fuse(name, match="quick")  # type: ignore[arg-type]


def test_ids_are_never_reused() -> None:
    _, _, first = _advice(64)
    _, _, second = _advice(64)
    first_ids = {finding.id for finding in first.report.findings}
    assert first_ids.isdisjoint(finding.id for finding in second.report.findings)


def test_closed_advice_says_so() -> None:
    _, _, advice = _advice(64)
    advice.close()
    with pytest.raises(UsageError, match="closed"):
        advice.apply()


def test_the_proof_can_be_left_out() -> None:
    torch.manual_seed(0)
    advice = fa.profile(Block(), (torch.randn(8, 64),), prove=False)
    assert advice.report.capture.proof.status == "not run"
    assert "prove=False" in advice.report.capture.proof.message


def test_options_are_the_same_everywhere_and_a_wrong_name_says_which_there_are() -> None:
    own = {
        "profile": {"model", "args", "kwargs"},
        "profile_code": {"run", "rerun"},
        "capture": set(),
    }
    names = {one.name for one in dataclasses.fields(ProfileOptions)}
    for function, arguments in own.items():
        shown = inspect.signature(getattr(fa, function)).parameters
        left_out = {"backward"} if function == "capture" else set()
        assert set(shown) == arguments | names - left_out
        assert shown["steps"].default == 2
    with pytest.raises(UsageError, match=r"no option 'devise' \(did you mean device\?"):
        fa.profile(torch.relu, (torch.ones(2),), devise="h100")
    with pytest.raises(UsageError, match="no option 'backward'"), fa.capture(backward=True):
        pass
    for wrong in (-1, float("nan"), True, "2"):
        with pytest.raises(UsageError, match="min_saving_us must be a number"):
            fa.profile(torch.relu, (torch.ones(2),), min_saving_us=wrong)


def test_a_least_saving_hides_what_saves_less() -> None:
    inputs = (torch.randn(2048, 512),)
    advice = fa.profile(lambda x: torch.exp(x) * 2 + 1, inputs, prove=False, min_saving_us=1e12)
    assert advice.report.findings == ()
    assert advice.report.nothing
