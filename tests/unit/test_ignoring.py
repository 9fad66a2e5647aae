"""Ignore comments: where they count, what they name, and what they never do."""

from __future__ import annotations

import importlib
import itertools
import linecache
from pathlib import Path

import pytest
import torch

from fusion_advisor import advisor
from fusion_advisor.analysis.ignoring import find_comments
from fusion_advisor.errors import FixError, ReportError
from fusion_advisor.recorder.source import forget_cells, register_cell
from fusion_advisor.records import Finding, Report, SourceSpan
from fusion_advisor.serialize import dump_report, load_report

numbers = itertools.count()


def span(line: int, end_line: int) -> SourceSpan:
    return SourceSpan(
        kind="file", file="a.py", line=line, end_line=end_line, column=0, end_column=1
    )


@pytest.mark.parametrize(
    ("text", "line", "end_line", "covered"),
    [
        ("y = a * b  # fuse: ignore", 1, 1, True),
        ("y = a * b  # fuse: ignore[FUS001]", 1, 1, True),
        ("y = a * b  #fuse:ignore[ fus003 , Elementwise-Chain ]", 1, 1, True),
        ("y = a * b  # noqa: E501  # fuse: ignore[FUS001] it is cold code", 1, 1, True),
        ("y = a * b  # fuse: ignore[FUS003]", 1, 1, False),
        ("y = a * b  # fuse: ignore[]", 1, 1, False),
        ("y = a * b  # fuse: ignore[FUS001", 1, 1, False),  # says what is wrong, ignores nothing
        ("y = a * b  # FUSE: IGNORE", 1, 1, True),
        ("y = a * b  # fuse: ignore[FUS003]  # fuse: ignore[FUS001]", 1, 1, True),
        ("y = a * b  # fuse: ignored elsewhere", 1, 1, False),
        ("y = a * b + len('# fuse: ignore')", 1, 1, False),
        ("y = '''\n# fuse: ignore\n''' * a", 1, 3, False),
        ("y = (a  # fuse: ignore\n     * b)", 1, 2, True),
        ("y = (a\n     # fuse: ignore\n     * b)", 1, 3, True),
        ("y = (\n    a * b\n)  # fuse: ignore", 2, 2, True),  # behind the closing bracket
        ("y = f(a * b,\n      c)  # fuse: ignore", 1, 1, False),  # that line is another argument's
        ("y = a * b\nz = c  # fuse: ignore", 1, 1, False),
        ("# fuse: ignore\ny = a * b", 2, 2, False),
        ("%%fuse_profile\ny = a * b  # fuse: ignore", 2, 2, True),
        ("!echo \"it's\ny = a * b  # fuse: ignore", 2, 2, True),
        ("y = (a\n % b)  # fuse: ignore", 1, 2, True),  # a modulo, no magic
        ("y = a * b  # fuse: ignore\nz = (", 1, 1, True),
    ],
)
def test_where_a_comment_counts(text, line, end_line, covered):
    found = find_comments(text).on(span(line, end_line))
    assert any(comment.covers("FUS001") for _, comment in found) is covered


def written(folder: Path, comment: str, *, inside: str = "") -> Report:
    """The report on a chain of one expression in a file of its own."""
    path = folder / f"ignoring_{next(numbers)}.py"
    path.write_text(
        "import torch\n\ndef chain(x):\n"
        f"    return 0.5 * x * (1.0 + torch.tanh({inside}\n"
        f"        0.797 * (x + 0.0447 * x * x * x)))  {comment}\n"
    )
    linecache.checkcache(str(path))
    namespace: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    call = namespace["chain"]
    report = advisor.profile(call, (torch.randn(512, 1024),), isolated=False).report  # type: ignore[arg-type]
    assert report.findings, report.nothing
    return report


@pytest.mark.parametrize(
    ("comment", "inside", "ignored"),
    [("", "", False), ("# fuse: ignore", "", True), ("", "  # fuse: ignore", True)],
)
def test_a_finding_in_a_file(tmp_path, comment, inside, ignored):
    report = written(tmp_path, comment, inside=inside)
    assert [one.ignored for one in report.findings] == [ignored] * len(report.findings)
    assert load_report(dump_report(report)) == report


def test_only_the_rule_that_is_named(tmp_path):
    rule = written(tmp_path, "").findings[0].rule
    other = "FUS006" if rule != "FUS006" else "FUS001"
    assert not any(one.ignored for one in written(tmp_path, f"# fuse: ignore[{other}]").findings)
    assert written(tmp_path, f"# fuse: ignore[{other}, {rule}]").findings[0].ignored


def test_a_comment_that_is_wrong_is_said(tmp_path):
    report = written(tmp_path, "# fuse: ignore[FUS01, banana]")
    assert not report.findings[0].ignored
    [note] = [note for note in report.notes if "ignore comment" in note]
    assert note.startswith("ignoring_")
    assert ".py:5: the ignore comment names FUS01, banana, which is no rule" in note
    empty = written(tmp_path, "# fuse: ignore[]")
    assert any("names no rule: write # fuse: ignore[FUS001]" in note for note in empty.notes)


def test_a_cell_and_the_line_that_called_a_library(tmp_path, monkeypatch):
    """Library code cannot carry a comment: the person's own expression that reached it does."""
    from fusion_advisor.recorder import source

    library = tmp_path / "site-packages" / "some_library.py"
    library.parent.mkdir()
    library.write_text(
        "import torch\n\ndef gelu(x):\n"
        "    return 0.5 * x * (1.0 + torch.tanh(0.797 * (x + 0.0447 * x * x * x)))\n"
    )
    namespace: dict[str, object] = {}
    exec(compile(library.read_text(), str(library), "exec"), namespace)

    def profiled(raw: str) -> tuple[Finding, ...]:
        name = f"<ipython-input-{next(numbers)}-x>"
        register_cell(name, cell_id="c", execution_count=7, raw=raw, first_line=2)
        cell = compile("\n".join(raw.splitlines()[1:]), name, "exec")
        scope = {"gelu": namespace["gelu"], "x": torch.randn(512, 1024)}
        return advisor.profile_code(lambda: exec(cell, scope), isolated=False).report.findings

    assert source.is_installed(str(library))
    try:
        plain = profiled("%%fuse_profile\ny = gelu(x)")
        assert plain[0].rule == "FUS004"
        assert not plain[0].ignored
        assert profiled("%%fuse_profile\ny = gelu(x)  # fuse: ignore[FUS004]")[0].ignored
        # called from two lines, one of them ignored: it is still advice for the other
        both = profiled("%%fuse_profile\ny = gelu(x)  # fuse: ignore\nz = gelu(x)")
        assert [len(one.occurrences) for one in both] == [2]
        assert not both[0].ignored
        all_of_them = "%%fuse_profile\ny = gelu(x)  # fuse: ignore\nz = gelu(x)  # fuse: ignore"
        assert profiled(all_of_them)[0].ignored
    finally:
        forget_cells()


def test_applying_all_leaves_the_ignored_alone(tmp_path, monkeypatch):
    name = f"ignoring_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n\ndef chain(x, w):\n"
        "    y = ((x * 2.0 + 1.0).tanh() * x - 3.0) @ w  # fuse: ignore\n"
        "    return (y * 0.5 - 1.0).tanh() * y - 4.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    chain = importlib.import_module(name).chain
    args = (torch.randn(1024, 1024), torch.randn(1024, 1024))
    advice = advisor.profile(chain, args, isolated=False)
    by_line = {finding.span.line: finding for finding in advice.report.findings if finding.span}
    assert {line: one.ignored for line, one in by_line.items()} == {4: True, 5: False}
    assert [fix.finding for fix in advice.apply()] == [by_line[5].id]
    advice.undo()
    with pytest.raises(ReportError, match="is a file of yours"):
        advice.export(tmp_path / f"{name}.py")
    assert "def chain" in (tmp_path / f"{name}.py").read_text()
    advice.export_module(tmp_path / "fused_chain.py")
    assert f"not exported, {by_line[4].id}: ignored by a comment" in advice.report.notes
    advice.close()


def test_exporting_a_module_of_nothing_but_ignored_findings_says_why(tmp_path):
    path = tmp_path / f"ignoring_{next(numbers)}.py"
    path.write_text("def chain(x):\n    return (x * 2.0).tanh() * x - 3.0  # fuse: ignore\n")
    namespace: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    advice = advisor.profile(namespace["chain"], (torch.randn(1024, 1024),), isolated=False)  # type: ignore[arg-type]
    assert advice.apply() == []
    with pytest.raises(FixError, match=r"no finding can be .*: F\d+: ignored by a comment"):
        advice.export_module(tmp_path / "fused_chain.py")
    assert not (tmp_path / "fused_chain.py").exists()
    advice.close()
