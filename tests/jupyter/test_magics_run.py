"""The body of ``%fuse_profile`` runs as the person's own code: value, output, errors, lines."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from ipykernel.compiler import XCachingCompiler

from fusion_advisor.recorder.source import find_cell

HEADLINE = "Fusing 3 places would save about 26.1 ms"


def run(shell: Any, text: str, *, history: bool = True) -> Any:
    return shell.run_cell(text, store_history=history)


def test_value_is_shown_once_and_before_the_report(loaded, capsys):
    result = run(loaded, "%%fuse_profile\nx = 7000\nx + 1")
    out = capsys.readouterr().out
    assert result.success
    assert out.count("7001") == 1
    assert out.index("7001") < out.index(HEADLINE)
    assert loaded.user_ns["_"] == 7001
    assert loaded.user_ns["Out"][1] == 7001
    assert loaded.user_ns["x"] == 7000


def test_line_magic_shows_once_and_binds_when_assigned(loaded, capsys):
    run(loaded, "%fuse_profile 7000 + 1")
    assert capsys.readouterr().out.count("7001") == 1
    run(loaded, "y = %fuse_profile 30 + 2")
    out = capsys.readouterr().out
    assert loaded.user_ns["y"] == 32
    assert "32\n" not in out.split(HEADLINE)[0]


def test_semicolon_and_none_silence_the_value(loaded, capsys):
    run(loaded, "%%fuse_profile\n'secret' + 'word';  # quiet")
    assert "secretword" not in capsys.readouterr().out
    loaded.ast_node_interactivity = "none"
    run(loaded, "%%fuse_profile\n'secret' + 'word'")
    assert "secretword" not in capsys.readouterr().out


def test_braces_and_dollars_are_not_expanded(loaded):
    assert run(loaded, "%%fuse_profile\nd = {'a': 1}; s = f\"{d['a']}$HOME\"").success
    assert loaded.user_ns["s"] == "1$HOME"
    loaded.user_ns["name"] = 5
    assert run(loaded, 't = %fuse_profile f"{name}$name"').success
    assert loaded.user_ns["t"] == "5$name"


def test_magics_and_shell_lines_inside_the_cell(loaded):
    assert run(loaded, "%%fuse_profile\n%precision 3\nn = !echo 5\nz = [0] * int(n[0])").success
    assert loaded.user_ns["z"] == [0] * 5


def test_top_level_await_is_refused_before_anything_runs(loaded, advisor, capsys):
    result = run(loaded, "%%fuse_profile\nran = True\nimport asyncio\nawait asyncio.sleep(0)")
    assert "ran" not in loaded.user_ns
    assert advisor.advices == []
    assert type(result.error_in_exec).__name__ == "UsageError"
    out = capsys.readouterr().out
    assert "top-level await" in out
    assert "Traceback" not in out
    # an await inside a function is fine
    assert run(loaded, "%%fuse_profile\nasync def f():\n    await g()\n1").success


def test_syntax_error_gives_no_report(loaded, advisor, capsys):
    result = run(loaded, "%%fuse_profile\n1 +")
    out = capsys.readouterr().out
    assert isinstance(result.error_in_exec, SyntaxError)
    assert HEADLINE not in out
    assert advisor.advices == []
    assert out.count("SyntaxError") == 1
    assert ":2\n" in out or "line 2" in out  # of the cell, not of the body


@pytest.mark.parametrize(
    "magic", ["%fuse_profile f(x))", "%%fuse_profile\nf(x))", "y = %fuse_profile f(x))"]
)
def test_a_syntax_error_looks_as_in_a_plain_cell(loaded, capsys, magic):
    run(loaded, "f(x))")
    plain = capsys.readouterr().out
    run(loaded, magic)
    out = capsys.readouterr().out
    last = plain.splitlines()[-2:]
    assert "SyntaxError: unmatched ')'" in "".join(last)
    assert out.splitlines()[-2:] == last
    assert "f(x))\n" in out
    assert "IPython" not in out and "Traceback" not in out
    # One that is raised inside running code still shows where.
    run(loaded, "def inner():\n    compile('1 +', 'text', 'exec')\ninner()")
    assert "in inner" in capsys.readouterr().out
    assert "showsyntaxerror" not in vars(loaded)


def test_error_gives_one_traceback_of_the_persons_code(loaded, advisor, capsys):
    result = run(loaded, "%%fuse_profile\ndef f():\n    raise KeyError('mine')\nf()")
    out = capsys.readouterr().out
    assert isinstance(result.error_in_exec, KeyError)
    assert out.count("KeyError: 'mine'") == 1
    assert out.count("Traceback") == 1
    assert "conftest.py" not in out  # the advisor's frames are left out
    assert "raise KeyError('mine')" in out
    assert "----> 4 f()" in out
    assert advisor.advices == []
    assert run(loaded, "%%fuse_profile\n1").success  # and the next one works


def test_interrupt_propagates_so_that_queued_cells_stop(loaded, capsys):
    result = run(loaded, "%%fuse_profile\nbefore = 1\nraise KeyboardInterrupt\nafter = 1")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert not result.success
    assert loaded.user_ns["before"] == 1
    assert "after" not in loaded.user_ns
    assert HEADLINE not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("runs_first", "said"), [(True, "the code itself had run"), (False, "is taken back")]
)
def test_interrupt_of_our_own_work_is_one_line(
    loaded, advisor, monkeypatch, capsys, runs_first, said
):
    def profile_code(run, **options):
        if runs_first:
            run()
        raise KeyboardInterrupt

    monkeypatch.setattr(advisor, "profile_code", profile_code)
    result = loaded.run_cell("%%fuse_profile\nran = 1")
    shown = capsys.readouterr().out
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert ("ran" in loaded.user_ns) == runs_first
    assert "KeyboardInterrupt: stopped; " in shown and said in shown
    assert "Traceback" not in shown and "magics.py" not in shown


def test_error_of_ours_is_one_line(loaded, advisor, monkeypatch, capsys):
    from fusion_advisor.errors import CaptureError

    def broken(run, **options):
        raise CaptureError("nothing was recorded: the cell ran no op")

    monkeypatch.setattr(advisor, "profile_code", broken)
    result = run(loaded, "%%fuse_profile\n1")
    out = capsys.readouterr().out
    assert isinstance(result.error_in_exec, CaptureError)
    assert out.strip().splitlines()[-1] == "CaptureError: nothing was recorded: the cell ran no op"
    assert "Traceback" not in out


@pytest.mark.parametrize(
    "cell", ["%%time\n%%fuse_profile\n7000 + 1", "%%fuse_profile\n%%time\n7000 + 1"]
)
def test_nests_with_time_in_either_order(loaded, advisor, capsys, cell):
    assert run(loaded, cell).success
    out = capsys.readouterr().out
    assert "Wall time" in out
    assert HEADLINE in out
    assert out.count("7001\n") == 1
    assert len(advisor.advices) == 1


def test_nested_profile_gives_one_message_and_one_report(loaded, advisor, capsys):
    assert run(loaded, "%%fuse_profile\nz = 3\n%fuse_profile z + 6998").success
    out = capsys.readouterr().out
    assert out.count("already being profiled") == 1
    assert out.count(HEADLINE) == 1
    assert out.count("7001") == 1
    assert len(advisor.advices) == 1
    assert run(loaded, "%%fuse_profile\n%%fuse_profile\n7000 + 1").success
    out = capsys.readouterr().out
    assert out.count("already being profiled") == 1
    assert out.count("7001") == 1


def test_runs_once_and_in_the_callers_scope(loaded):
    run(
        loaded,
        "n = 0\ndef f():\n    global n\n    n += 1\n    k = 7\n    y = %fuse_profile k * 3\n   "
        " return y",
    )
    run(loaded, "r = f()")
    assert loaded.user_ns["r"] == 21
    assert loaded.user_ns["n"] == 1


def test_options_reach_the_advisor_and_the_namespace(loaded, advisor, tmp_path):
    target = tmp_path / "r.html"
    given = f'--backward --device h100 --target cuda --steps 3 --export "{target}" -o adv'
    assert run(loaded, f"%fuse_profile {given} 1 + 1").success
    options = advisor.advices[0].options
    assert (options["backward"], options["device"], options["target"], options["steps"]) == (
        True, "h100", "cuda", 3,
    )  # fmt: skip
    assert loaded.user_ns["adv"] is advisor.advices[0]
    assert target.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%fuse_profile --nope x", "unknown option --nope"),
        ("%fuse_profile --top zero x", "--top needs a whole number"),
        ("%fuse_profile --target tpu x", "--target is one of cpu, cuda, both"),
        ("%fuse_profile --export report.docx x", "end the name in one of .txt, .html, .md, .json"),
        ("%fuse_profile -o 1x x", "-o needs a variable name"),
        ("%fuse_profile --steps", "--steps needs a value"),
        ("%fuse_profile", "no call of a model in this session"),
        ("%%fuse_profile model(x)\n1", "takes options only on its first line"),
    ],
)
def test_wrong_use_says_so_in_one_line_and_runs_nothing(loaded, advisor, capsys, line, message):
    loaded.user_ns["x"] = None
    assert not run(loaded, line).success
    out = capsys.readouterr().out
    assert message in out
    assert "Traceback" not in out
    assert advisor.advices == []


def test_minus_expression_after_double_dash(loaded):
    loaded.user_ns["x"] = 4
    run(loaded, "y = %fuse_profile -- -x")
    assert loaded.user_ns["y"] == -4
    run(loaded, "y = %fuse_profile -1 * x")
    assert loaded.user_ns["y"] == -4


def _span(shell: Any, name: str) -> Any:
    """The span of the innermost frame that called ``note()`` there."""
    return shell.user_ns["spans"][name]


NOTE = """
spans = {}
def note(name):
    import sys
    frame = sys._getframe(1)
    from fusion_advisor.recorder.source import span_of
    spans[name] = span_of(frame.f_code, frame.f_lasti)
    return 1
"""


@pytest.mark.parametrize("above", ["", "\n\n", "%%time\n"])
def test_spans_speak_of_the_cell_as_typed(loaded, above):
    run(loaded, NOTE)
    cell = above + "%%fuse_profile --steps 2\n\nq = 0\nü = 1; note('here')"
    assert run(loaded, cell).success
    span = _span(loaded, "here")
    assert span.kind == "cell"
    assert span.text == "note('here')"
    assert cell.split("\n")[span.line - 1] == "ü = 1; note('here')"
    assert span.execution_count == 2


def test_line_magic_spans_and_plain_cells_with_blank_lines(loaded):
    run(loaded, NOTE)
    cell = "\n\nb = 2\nü = %fuse_profile --steps 2 note('line')\nnote('plain')"
    assert run(loaded, cell).success
    for name in ("line", "plain"):
        span = _span(loaded, name)
        assert span.text == f"note('{name}')"
        assert f"note('{name}')" in cell.split("\n")[span.line - 1]


def test_lines_end_where_python_ends_them(loaded):
    """A form feed, a vertical tab and U+2028 in a string or comment end no line."""
    run(loaded, NOTE)
    cell = "a = 'x\u2028y\x85z'  # \x0c \x0b\nb = 'p\u2029'; note('here')\n"
    for above in ("", "%%fuse_profile\n"):
        assert run(loaded, above + cell).success
        span = _span(loaded, "here")
        assert span.text == "note('here')"
        assert span.line == above.count("\n") + 2
        assert (span.utf16_column, span.utf16_end_column) == (10, 22)


def test_cells_run_before_loading_are_known(shell, advisor):
    run(shell, NOTE)
    run(shell, "\ndef old():\n    return note('old')")
    run(shell, "%load_ext fusion_advisor")
    run(shell, "%fuse_profile old()")
    span = _span(shell, "old")
    assert (span.text, span.line, span.execution_count) == ("note('old')", 3, 2)


@pytest.mark.parametrize("ends", [1, 3])
def test_cells_run_before_loading_are_known_with_line_ends_at_their_end(
    shell, advisor, monkeypatch, ends
):
    # A notebook's kernel names code by the cell's whole text; the history is without its end.
    monkeypatch.setattr(shell, "compile", XCachingCompiler())
    run(shell, NOTE)
    text = "def old():\n    return note('old')" + "\n" * ends
    run(shell, text)
    run(shell, "%load_ext fusion_advisor")
    run(shell, "%fuse_profile old()")
    span = _span(shell, "old")
    assert (span.text, span.line, span.execution_count) == ("note('old')", 2, 2)
    book = shell.magics_manager.registry["FuseMagics"].book
    assert book.text_with_hash(hashlib.sha256(text.encode()).hexdigest()) == text


def test_cell_id_is_kept_across_a_nested_run_cell(loaded):
    loaded.run_cell("get_ipython().run_cell('1')\n", store_history=True, cell_id="abc")
    book = loaded.magics_manager.registry["FuseMagics"].book
    assert book._running == []
    raw = "get_ipython().run_cell('1')\n"
    name = loaded.compile.get_code_name(raw, loaded.transform_cell(raw), 1)
    assert find_cell(name).cell_id == "abc"


def test_hook_works_with_and_without_an_argument(loaded):
    book = loaded.magics_manager.registry["FuseMagics"].book
    run(loaded, "1")
    book.before()
    assert book.current().raw == "1"
    book.after()


def test_traceback_line_numbers_survive_continued_magic_lines(loaded, capsys):
    cell = "%%fuse_profile\nn = !echo \\\n  5\n1/0"
    assert not run(loaded, cell).success
    assert "1/0" in capsys.readouterr().out


def _state(shell: Any) -> tuple[Any, ...]:
    return (
        set(shell.magics_manager.magics["line"]),
        set(shell.magics_manager.magics["cell"]),
        [type(one).__name__ for one in shell.configurables].count("FuseMagics"),
        {name: list(found) for name, found in shell.events.callbacks.items()},
        set(shell.strdispatchers["complete_command"].strs),
        set(shell.magics_manager.registry) - {"ExtensionMagics"},
    )


def test_load_twice_and_unload_restores_the_shell(shell, advisor):
    before = _state(shell)
    run(shell, "%load_ext fusion_advisor")
    run(shell, "%reload_ext fusion_advisor")
    assert _state(shell)[2] == 1
    run(shell, "%fuse_profile 1")
    run(shell, "%unload_ext fusion_advisor")
    assert _state(shell) == before
    assert ("undo", None) in advisor.advices[0].calls
    assert not run(shell, "%fuse_profile 1").success


def test_a_model_call_can_be_repeated_with_or_without_a_semicolon():
    torch = pytest.importorskip("torch")
    from fusion_advisor.jupyter.history import repeatable_call

    names = {"model": torch.nn.Linear(2, 2), "x": torch.zeros(1, 2), "f": print}
    for text in ("model(x)", " model(x) ;"):
        again = repeatable_call(text, names)
        assert again is not None
        assert torch.equal(again(), names["model"](names["x"]))

    class Cache:
        """Keeps what it was given, as a key-value cache does."""

    names |= {"cache": Cache(), "kept": {"mask": names["x"]}, "parts": [names["x"]]}
    for text in ("model(*parts)", "model(kept['mask'])", "model(x, **{})"):
        assert repeatable_call(text, names) is not None, text
    for text in (
        "model(x, cache)",
        "model(x, past=cache)",
        "model(x, [cache])",
        "model(kept['no'])",
    ):
        assert repeatable_call(text, names) is None, text
    for text in ("model(f(x))", "f(x)", "y = model(x)", "model(x); model(x)", "model(", ""):
        assert repeatable_call(text, names) is None, text


def test_a_mistyped_config_does_not_stop_a_reload(shell, capsys):
    run(shell, "%load_ext fusion_advisor")
    try:
        run(shell, "%config FuseMagics.top = 0")  # refused, and yet in the shell's own from now on
        run(shell, "%config FuseMagics.target = 'cpu'")
        capsys.readouterr()
        assert run(shell, "%reload_ext fusion_advisor").success
        assert "FuseMagics.top = 0 is left out: " in capsys.readouterr().out
        magics = shell.magics_manager.registry["FuseMagics"]
        assert (magics.top, magics.target) == (10, "cpu")
        assert magics.settings.value("top") == 10
        assert shell.find_line_magic("fuse_profile") is not None
        assert sum(type(one) is type(magics) for one in shell.configurables) == 1
    finally:
        shell.config.pop("FuseMagics", None)
