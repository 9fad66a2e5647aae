"""The magics over the real pipeline: what goes wrong leaves notebook and model as they were."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from left_alone import left_alone, make_quick  # noqa: E402

import fusion_advisor  # noqa: E402

MODEL = """
import torch
class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2.0 + 1.0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.act = torch.nn.Linear(8, 8), Scaled()
    def forward(self, x):
        if x.dim() != 2:
            raise ValueError("two dimensions, please")
        return self.linear(self.act(x))
model, x = Net(), torch.linspace(-3, 3, 128).reshape(16, 8)
"""


@pytest.fixture
def notebook(
    shell: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    make_quick(monkeypatch, tmp_path_factory.mktemp("temporary"))
    assert fusion_advisor.profile.__module__ == sys.modules["fusion_advisor.advisor"].__name__
    shell.run_line_magic("load_ext", "fusion_advisor")
    assert shell.run_cell(MODEL, store_history=True).success
    return shell


def run(shell: Any, text: str) -> Any:
    return shell.run_cell(text, store_history=True)


def untouched(shell: Any) -> Any:
    namespace = shell.user_ns
    return left_alone(
        namespace["model"], code=(namespace["Scaled"].forward, namespace["Net"].forward)
    )


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("%fuse_profile unknown(x)", NameError, "unknown"),
        ("%fuse_profile model(x[0])", ValueError, "two dimensions, please"),
        ("%fuse_profile model(x) +", SyntaxError, "invalid syntax"),
        ("%fuse_profile 1 + 1", Exception, "dispatched no torch op"),
        ("%fuse_profile --device potato model(x)", Exception, "No device 'potato'"),
        ("%fuse_profile model.act(x.to('meta'))", Exception, "hold no data"),
        ("%%fuse_profile\nmodel(x)\nraise KeyboardInterrupt", KeyboardInterrupt, ""),
        ("%fuse_show F99999", Exception, "nothing was profiled yet"),
        ("%fuse_apply", Exception, "nothing was profiled yet"),
        ("%fuse_export /dev/null/report.html", Exception, "nothing was profiled yet"),
    ],
)
def test_what_goes_wrong(
    notebook: Any, capsys: pytest.CaptureFixture[str], line: str, error: type, message: str
) -> None:
    names = set(notebook.user_ns)
    with untouched(notebook):
        result = run(notebook, line)
    assert isinstance(result.error_in_exec or result.error_before_exec, error)
    shown = capsys.readouterr().out
    assert message in shown and "Fusing" not in shown
    assert message == "" or error is not Exception or "Traceback" not in shown  # ours: one line
    assert {name for name in set(notebook.user_ns) - names if not name.startswith("_")} == set()


def test_profile_apply_in_lower_case_and_undo(
    notebook: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    expected = notebook.user_ns["model"](notebook.user_ns["x"])
    with untouched(notebook):
        assert run(notebook, "%fuse_profile --target cpu -o adv model(x);").success
        name = notebook.user_ns["adv"].report.findings[0].id
        assert run(notebook, f"%fuse_apply {name.lower()}").success
        assert f"{name} in place" in capsys.readouterr().out
        assert run(notebook, "y = model(x)").success
        assert torch.allclose(notebook.user_ns["y"], expected)
        assert notebook.user_ns["adv"].stats()["fused_calls"].tolist() == [1]
        assert not run(notebook, f"%fuse_export {tmp_path}").success  # a folder
        assert run(notebook, f"%fuse_undo {name.lower()}").success
        assert run(notebook, "%fuse_undo").success
        assert "Nothing was in place" in capsys.readouterr().out
    assert list(tmp_path.glob("*.html")) == []


def test_applying_twice_says_so_and_the_report_still_shows_it_in_place(
    notebook: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with untouched(notebook):
        assert run(notebook, "%fuse_profile --target cpu -o adv model(x);").success
        advice = notebook.user_ns["adv"]
        name = advice.report.findings[0].id
        assert run(notebook, f"%fuse_apply {name}").success
        capsys.readouterr()
        assert run(notebook, f"%fuse_apply {name}").success
        shown = capsys.readouterr().out
        assert f"{name} is in place already" in shown and "not in place" not in shown
        assert [fix.undone for fix in advice.report.applied] == [False]
        assert run(notebook, "%fuse_undo").success


def test_the_object_of_a_with_block_is_shown_as_its_advice(notebook: Any) -> None:
    import fusion_advisor

    model, x = notebook.user_ns["model"], notebook.user_ns["x"]
    with fusion_advisor.capture(target="cpu") as recorded:
        assert "has not ended" in repr(recorded)
        model(x)
    assert repr(recorded) == repr(recorded.advice)
    data, _ = notebook.display_formatter.format(recorded)
    assert {"text/plain", "text/html"} <= set(data)


def test_a_second_finding_at_the_same_lines_says_what_to_do(
    notebook: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with untouched(notebook):
        for name in ("first", "second"):
            assert run(notebook, f"%fuse_profile --target cpu -o {name} model(x);").success
        first, second = (
            notebook.user_ns[name].report.findings[0].id for name in ("first", "second")
        )
        assert run(notebook, f"%fuse_apply {first}").success
        capsys.readouterr()
        assert run(notebook, f"%fuse_apply {second}").success
        shown = capsys.readouterr().out
        assert f"{second} is not in place" in shown and "another kernel is in place there" in shown
        assert run(notebook, "%fuse_undo").success


def test_advice_without_a_kernel_is_shown_and_left_out(
    notebook: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = (
        "net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)\n"
        "for p in net.parameters(): p.grad = torch.ones_like(p)\n"
        "opt.step()"
    )
    assert run(notebook, steps).success
    assert run(notebook, "%%fuse_profile --target cpu -o adv\nopt.step()").success
    (finding,) = notebook.user_ns["adv"].report.findings
    assert finding.rule == "FUS006"
    capsys.readouterr()
    assert run(notebook, f"%fuse_show {finding.id}").success
    assert "foreach=True" in capsys.readouterr().out or finding.message
    assert run(notebook, "%fuse_apply --all").success
    assert "is not in place: not applied" in capsys.readouterr().out
    assert not run(notebook, f"%fuse_apply {finding.id} --cell").success
    shown = capsys.readouterr().out
    assert "advice without a kernel" in shown and "Traceback" not in shown


def test_estimates_say_so(notebook: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(notebook, "%fuse_profile --device h100 --target cpu model(x);").success
    shown = " ".join(capsys.readouterr().out.split())
    assert "on NVIDIA H100 SXM (estimate)" in shown
    assert "estimated for NVIDIA H100 SXM, which is not in this machine" in shown
    assert "measured here, not there: " in shown
