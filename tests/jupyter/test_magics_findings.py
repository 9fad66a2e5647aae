"""The magics after a profile: show, apply, undo, export; completion, history, configuration."""

from __future__ import annotations

import hashlib
import types
from dataclasses import replace
from typing import Any

import pytest

from fusion_advisor.errors import FixError
from fusion_advisor.jupyter.cell_edit import edited_text, text_diff
from fusion_advisor.jupyter.options import PROFILE_OPTIONS, parse
from fusion_advisor.jupyter.progress import Progress
from fusion_advisor.records import Blocker, Fix, TextEdit


@pytest.fixture
def profiled(loaded, advisor):
    loaded.run_cell("%fuse_profile 1", store_history=True)
    return loaded


def test_show_generates_validates_and_prints_the_kernel(profiled, advisor, capsys):
    capsys.readouterr()
    profiled.run_cell("%fuse_show f1 --target cuda")
    out = capsys.readouterr().out
    assert advisor.advices[0].calls == [("fuse", "F1", "cuda"), ("validate", "F1")]
    assert "@cuda.jit" in out
    assert "18 registers, 0 spills" in out
    assert "F2" not in out


def test_apply_and_undo_say_what_changed(profiled, advisor, capsys):
    capsys.readouterr()
    profiled.run_cell("%fuse_apply F1 F2 --where module")
    out = capsys.readouterr().out
    assert advisor.advices[0].calls == [("apply", ["F1", "F2"], "module")]
    assert "whole call 82.0 ms → 61.0 ms (1.34 ×)" in out
    assert "MLP.forward" in out
    assert "undo: %fuse_undo F1" in out
    profiled.run_cell("%fuse_apply --all")
    assert advisor.advices[0].calls[-1] == ("apply", ["F1", "F2", "F3"], None)
    profiled.run_cell("%fuse_undo F1")
    assert advisor.advices[0].calls[-1] == ("undo", "F1")
    assert "taken out: MLP.forward" in capsys.readouterr().out


def test_a_second_kernel_at_the_same_lines_is_refused_with_what_to_do():
    pytest.importorskip("torch")
    from fusion_advisor.fixes.text_edits import apply_edits

    edits = [TextEdit(start=0, end=4, new="one"), TextEdit(start=2, end=6, new="two")]
    with pytest.raises(FixError, match=r"another kernel is in place.* take that one out first"):
        apply_edits("a text", edits)


def test_equal_places_taken_out_are_one_line(profiled, advisor, capsys, monkeypatch):
    monkeypatch.setattr(advisor.advices[-1], "undo", lambda finding=None: ["one GELU"] * 2)
    profiled.run_cell("%fuse_undo")
    assert capsys.readouterr().out == "taken out: one GELU  (× 2)\n"


def test_match_reaches_the_kernel(profiled, advisor):
    profiled.run_cell("%fuse_show f1 --match fast")
    profiled.run_cell("%fuse_apply F1 --match fast")
    asked = [call for call in advisor.advices[0].calls if call[0] in ("fuse", "apply")]
    assert asked == [("fuse", "F1", None, "fast"), ("apply", "F1", None, "fast")]


def test_unknown_and_missing_findings_are_named(profiled, loaded, capsys):
    for line, message in (
        ("%fuse_apply F9", "there is no finding 'F9' (there are: F1, F2, F3)"),
        ("%fuse_apply", "%fuse_apply needs a finding (F1, F2, F3) or --all"),
        ("%fuse_apply F1 --all", "not both"),
        ("%fuse_apply F1 --where moon", "--where is one of function, module, file"),
        ("%fuse_apply F1 --match quick", "--match is one of eager, fast"),
        ("%fuse_show 'F1", "No closing quotation"),
        ("%fuse_export", "needs one file name"),
        ("%fuse_export x.docx", "end the name in one of .txt, .html, .md, .json"),
    ):
        capsys.readouterr()
        assert not profiled.run_cell(line).success
        out = capsys.readouterr().out
        assert message in out
        assert "Traceback" not in out


def test_before_any_profile(loaded, capsys):
    for line in ("%fuse_show F1", "%fuse_apply --all", "%fuse_export r.html"):
        assert not loaded.run_cell(line).success
        assert "nothing was profiled yet" in capsys.readouterr().out
    assert loaded.run_cell("%fuse_undo").success


def test_export_writes_and_a_read_only_path_is_left_alone(profiled, tmp_path, capsys, monkeypatch):
    target = tmp_path / "my report.txt"
    assert profiled.run_cell(f"%fuse_export '{target}'").success
    assert "Fusing 3 places" in target.read_text()
    target.write_text("mine")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert not profiled.run_cell(f"%fuse_export '{target}'").success
    assert target.read_text() == "mine"
    assert "read-only" in capsys.readouterr().out


def test_cell_edit_is_proposed_as_the_next_input(profiled, advisor, capsys):
    raw = "y = x * 2 + 1"
    profiled.run_cell("x = 3")
    profiled.run_cell(raw)
    start = raw.index("x * 2")
    fix = Fix(
        finding="F1", where="cell", title="", safety="safe",
        edits=(TextEdit(start=0, end=0, new="# kernel\n"),
               TextEdit(start=start, end=len(raw), new="fused(x)")),
        old_hash=hashlib.sha256(raw.encode()).hexdigest(),
    )  # fmt: skip
    advisor.advices[0].cell_fix = lambda finding: fix
    assert profiled.run_cell("%fuse_apply F1 --cell").success
    out = capsys.readouterr().out
    assert "-y = x * 2 + 1" in out
    assert "+y = fused(x)" in out
    assert profiled.rl_next_input == "# kernel\ny = fused(x)"
    blocked = Fix(
        finding="F1", where="cell", title="", safety="display-only",
        blockers=(Blocker(code="loop", nodes=(), message="it runs in a loop"),),
    )  # fmt: skip
    advisor.advices[0].cell_fix = lambda finding: blocked
    assert not profiled.run_cell("%fuse_apply F1 --cell").success
    assert "cannot be edited into the text: it runs in a loop" in capsys.readouterr().out


def test_edits_that_do_not_fit_are_refused():
    from fusion_advisor.errors import FixError

    fix = Fix(finding="F1", where="cell", title="", safety="safe",
              edits=(TextEdit(start=0, end=3, new=""),
                     TextEdit(start=2, end=4, new="")))  # fmt: skip
    with pytest.raises(FixError, match="do not fit"):
        edited_text("abcdef", fix)
    assert "+b" in text_diff("a", "b", name="cell")


def test_config_lists_and_changes_the_defaults(loaded, advisor, capsys):
    loaded.run_cell("%config FuseMagics")
    assert "FuseMagics.top" in capsys.readouterr().out
    loaded.run_cell("%config FuseMagics.target = 'cpu'")
    loaded.run_cell("%config FuseMagics.top = 1")
    capsys.readouterr()
    loaded.run_cell("%fuse_profile 1")
    assert advisor.advices[-1].options["target"] == "cpu"
    assert "2 more findings: use --top 3" in capsys.readouterr().out


def test_the_latest_profiles_are_kept_and_those_with_a_kernel_in_place(loaded, advisor):
    magics = loaded.magics_manager.registry["FuseMagics"]
    loaded.run_cell("%config FuseMagics.keep = 2")
    loaded.run_cell("%fuse_profile 1")
    in_place = advisor.advices[0]
    assert any(not fix.undone for fix in in_place.report.applied)
    for _ in range(3):
        loaded.run_cell("%fuse_profile 1")
        advisor.advices[-1].report = replace(advisor.advices[-1].report, applied=())
    assert magics.advices == [in_place, *advisor.advices[-2:]]
    in_place.report = replace(in_place.report, applied=())
    loaded.run_cell("%fuse_profile 1")
    assert magics.advices == advisor.advices[-2:]


@pytest.mark.filterwarnings("ignore:.*Completer.complete:PendingDeprecationWarning")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%fuse_profile --ba", ["--backward"]),
        ("%%fuse_profile --t", ["--target", "--top"]),
        ("%fuse_profile --target c", ["cpu", "cuda"]),
        ("%fuse_profile --device h", ["h100-sxm", "h100-pcie", "h200"]),
        ("%fuse_show F", ["F1", "F2", "F3"]),
        ("%fuse_apply F1 f", ["F1", "F2", "F3"]),
        ("%fuse_apply --where m", ["module"]),
        ("%fuse_apply F1 --match f", ["fast"]),
        ("%fuse_show F1 --match ", ["eager", "fast"]),
        ("%fuse_undo F2", ["F2"]),
    ],
)
def test_completion(profiled, line, expected):
    _, matches = profiled.complete(None, line, len(line))
    assert [match for match in matches if match in expected] == expected
    assert set(matches) == set(expected)


@pytest.mark.filterwarnings("ignore:.*Completer.complete:PendingDeprecationWarning")
def test_python_completion_still_works_in_the_expression(profiled):
    profiled.user_ns["long_model_name"] = 1
    _, matches = profiled.complete(None, "%fuse_profile long_mod", 22)
    assert "long_model_name" in matches
    _, matches = profiled.complete(None, "%fuse_profile --all long_model_name.bit_l", 41)
    assert any(match.endswith(".bit_length") for match in matches)


@pytest.mark.parametrize(
    "name", ["fuse_profile", "fuse_show", "fuse_apply", "fuse_undo", "fuse_export"]
)
def test_every_magic_has_help(loaded, name):
    assert "Usage" in loaded.magics_manager.magics["line"][name].__doc__


def test_help_names_every_option(loaded):
    text = loaded.magics_manager.magics["line"]["fuse_profile"].__doc__
    assert all(option.flags[0] in text for option in PROFILE_OPTIONS)


# -- options ------------------------------------------------------------------------------------


def test_the_expression_keeps_its_quotes_and_spaces():
    found, rest = parse('--top 3 -o  adv f("--top  9",  x)', PROFILE_OPTIONS, "%m")
    assert found == {"top": 3, "output": "adv"}
    assert rest == 'f("--top  9",  x)'
    found, rest = parse("--export='a b.html' --all x", PROFILE_OPTIONS, "%m")
    assert found == {"export": "a b.html", "all": True}
    assert rest == "x"


# -- history ------------------------------------------------------------------------------------


@pytest.fixture
def with_model(loaded):
    torch = pytest.importorskip("torch")
    loaded.user_ns.update(torch=torch, model=torch.nn.Linear(2, 2), x=torch.ones(1, 2))
    loaded.user_ns["box"] = types.SimpleNamespace(model=torch.nn.Linear(2, 2))
    return loaded


def cells(shell: Any, *texts: str) -> Any:
    result = None
    for text in texts:
        result = shell.run_cell(text, store_history=True)
    return result


def test_bare_magic_repeats_the_last_model_call(with_model, advisor, capsys):
    assert cells(with_model, "y = model(x)", "z = 1", "%fuse_profile").success
    assert "%fuse_profile model(x)    (from In[1])" in capsys.readouterr().out
    assert advisor.advices[0].options["title"] == "model(x)"


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("%%time\nq = 1\nbox.model(input=x)", "box.model(input=x)"),
        ("model(x[:1] + 1)", "model(x[:1] + 1)"),
        ("model(x)\n%fuse_profile", "model(x)"),
    ],
)
def test_bare_magic_finds_calls_in_other_forms(with_model, advisor, cell, text):
    cells(with_model, cell, *([] if "%fuse" in cell else ["%fuse_profile"]))
    assert [advice.options["title"] for advice in advisor.advices] == [text]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("model(torch.ones(1, 2))", "its arguments contain calls"),
        ("with torch.no_grad():\n    model(x)", "stands inside another statement"),
        ("w = x; model(w); del w", "w is no longer defined"),
    ],
)
def test_bare_magic_lists_what_it_does_not_repeat(with_model, advisor, capsys, cell, reason):
    assert not cells(with_model, cell, "%fuse_profile").success
    out = capsys.readouterr().out
    assert reason in out
    assert "  %fuse_profile model(" in out
    assert advisor.advices == []


def test_bare_magic_names_each_call_once(with_model, advisor, capsys):
    assert not cells(with_model, "y = model(x).sum(); z = model(x).sum()", "%fuse_profile").success
    assert capsys.readouterr().out.count("  %fuse_profile model(x)") == 1


# -- progress -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_terminal_hears_only_of_what_takes_over_a_second(capsys):
    clock = Clock()
    progress = Progress(in_kernel=False, clock=clock)
    progress("recording", 0.0)
    clock.now = 0.9
    progress("timing", 0.4)
    assert capsys.readouterr().err == ""
    clock.now = 1.5
    progress("timing", 0.5)
    progress("analysing", 0.9)
    assert capsys.readouterr().err == "Fusion Advisor: analysing (90%)\n"


def test_kernel_display_is_one_and_ends_on_the_last_word(loaded, monkeypatch):
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, data: dict[str, str], *, raw: bool) -> None:
            shown.append(("update", data["text/plain"]))

    def display(data: dict[str, str], *, raw: bool, display_id: Any) -> Handle:
        shown.append(("display", data["text/plain"]))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    clock = Clock()
    progress = Progress(in_kernel=True, clock=clock)
    progress("recording", 0.0)
    clock.now = 2.0
    progress("analysing: groups", 0.9)
    clock.now = 2.25
    progress("analysing: cost", 0.95)
    clock.now = 2.5
    progress.finish()
    assert [kind for kind, _ in shown] == ["display", "update", "update", "update"]
    assert shown[-1][1] == "Fusion Advisor: done after 2.5 s (recording 2.0 s · analysing 0.5 s)"
