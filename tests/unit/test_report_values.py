"""Numbers with units, printable text, highlighting, and files that are whole or untouched."""

from __future__ import annotations

import dataclasses
import html
import os
import re
import stat
from pathlib import Path

import pytest
from report_fixture import KERNEL_TEXT, rich_report

from fusion_advisor.errors import ReportError
from fusion_advisor.quantities import bytes_text, percent_text, plural, time_text, times_text
from fusion_advisor.report import export_report, read_text, write_atomic
from fusion_advisor.report.files import FORMATS, check_export, format_of, write_module
from fusion_advisor.report.highlight import highlight
from fusion_advisor.report.values import dedented, one_line, op_text, printable

GOLDEN = Path(__file__).parent.parent / "golden" / "data"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0.0, "0 µs"),
        (4e-13, "0 µs"),
        (0.85, "850 ns"),
        (1.0, "1.00 µs"),
        (12.34, "12.3 µs"),
        (999.4, "999 µs"),
        (999.6, "1.00 ms"),
        (4_560.0, "4.56 ms"),
        (999_600.0, "1.00 s"),
        (1.23e6, "1.23 s"),
        (-25.0, "−25.0 µs"),
        (float("nan"), "unknown"),
        (float("inf"), "unknown"),
    ],
)
def test_time(us, text):
    assert time_text(us) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (512, "512 B"), (1024, "1.00 KiB"), (25_165_824, "24.0 MiB"), (2**41, "2.00 TiB")],
)
def test_bytes(count, text):
    assert bytes_text(count) == text


def test_shares_and_ratios():
    assert [percent_text(x) for x in (0.0, 0.0004, 0.034, 0.0995, 0.32, 1.0, -0.05)] == [
        "0.0 %", "< 0.1 %", "3.4 %", "10 %", "32 %", "100 %", "−5.0 %",
    ]  # fmt: skip
    assert times_text(3.0, 1.0) == "3.00 ×"
    assert times_text(3.0, 0.0) == "to zero"
    assert times_text(0.0, 0.0) == "no change"
    assert plural(1, "op") == "1 op"
    assert plural(1200, "op") == "1,200 ops"


def test_printable_keeps_letters_and_shows_controls():
    assert printable("größe 数\n\t→") == "größe 数\n\t→"
    assert printable("\x1b[0m\u202e\ud800\x00\u2028") == "\\x1b[0m\\u202e\\ud800\\x00\\u2028"
    assert one_line("a\n  b", 3) == "a b"
    assert one_line("abcdef", 4) == "abc…"
    assert len(one_line("x " * 600_000)) == 2_000
    assert len(op_text("aten." + "x" * 1_000_000)) == 120
    assert dedented("    a\n      b\n") == "a\n  b"


@pytest.mark.parametrize(
    "source",
    [
        KERNEL_TEXT,
        "x = (1 +",
        "'''open",
        "def",
        "",
        "    return 0.5 * x",
        "a <b> & 'c' # <i>",
        '@x\ndef f(): return \'日本\' + "\\""',
        "if True:\n  x\n y",
        "\n\n x\r\n y",
        "f'{a!r:>{w}}'",
    ],
)
def test_highlighting_changes_no_character(source):
    for inline in (False, True):
        shown = highlight(source, inline=inline)
        assert html.unescape(re.sub(r"</?span[^>]*>", "", shown)) == printable(source)


def test_highlighting_knows_its_tokens():
    shown = highlight("@jit\ndef f(x):  # why\n    return x @ 'a' + 1.5\n")
    assert '<span class="d">@</span>jit' in shown
    assert '<span class="k">def</span> <span class="f">f</span>' in shown
    assert '<span class="c"># why</span>' in shown
    assert "x @ " in shown  # an operator, not a decorator
    assert '<span class="n">1.5</span>' in shown


# -- files --------------------------------------------------------------------------------------


def test_suffix_chooses_the_format(tmp_path):
    report = rich_report()
    assert export_report(report, tmp_path / "r.HTML").read_text().startswith("<!DOCTYPE html>")
    assert "Fusing 3 places" in export_report(report, tmp_path / "r.txt").read_text()
    with pytest.raises(ReportError, match=r"end the name in one of \.txt, \.html, \.md, \.json"):
        export_report(report, tmp_path / "r.pdf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.HTML", "r.txt"]


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("r.json", "json"),
        ("r.trace.json", "trace"),
        ("R.PERFETTO.JSON", "trace"),
        ("r.sarif", "sarif"),
        ("r.sarif.json", "sarif"),
        ("r.csv", "csv"),
        ("my.ops.csv", "ops-csv"),
        ("ops.csv", "csv"),  # a name, not a suffix
        ("trace.json", "json"),
        ("r.md", "markdown"),
    ],
)
def test_the_longest_known_suffix_counts(name, format):
    assert format_of(name) == format


def test_a_misspelt_folder_is_an_error_and_is_not_made(tmp_path):
    target = tmp_path / "biuld" / "r.json"
    for write in (
        lambda: check_export(target),
        lambda: export_report(rich_report(), target),
        lambda: write_atomic(target, "x"),
    ):
        with pytest.raises(ReportError, match=r"there is no folder \S+/biuld; make it, or choose"):
            write()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "d.html").mkdir()
    with pytest.raises(ReportError, match="it is a folder"):
        check_export(tmp_path / "d.html")


@pytest.mark.parametrize("name", ["a\0b.json", "x" * 300 + ".json", "~nobody-of-that-name/r.json"])
def test_a_name_no_file_can_have_is_an_error_of_ours(tmp_path, name):
    with pytest.raises(ReportError, match="cannot write"):
        write_atomic(name if name.startswith("~") else tmp_path / name, "x")
    with pytest.raises(ReportError, match="cannot read"):
        read_text(name if name.startswith("~") else tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    target = tmp_path / "r.txt"
    target.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ReportError, match="No space left on device"):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["r.txt"]


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_report_that_cannot_be_rendered_leaves_the_old_file(tmp_path, name):
    target = tmp_path / f"r{FORMATS[name].suffixes[0]}"
    target.write_text("old")
    broken = dataclasses.replace(rich_report(), findings=(None,))
    with pytest.raises((ReportError, AttributeError)):
        export_report(broken, target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    target = tmp_path / "r.txt"
    target.write_text("old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["r.txt"]


def test_folders_links_and_modes(tmp_path):
    with pytest.raises(ReportError, match="it is a folder"):
        write_atomic(tmp_path, "x")
    with pytest.raises(ReportError, match="cannot write"):
        write_atomic(Path("/proc/version/r.txt"), "x")
    target = tmp_path / "real.txt"
    target.write_text("old")
    target.chmod(0o640)
    (tmp_path / "link.txt").symlink_to(target)
    write_atomic(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_unreadable_files_are_explained(tmp_path):
    with pytest.raises(ReportError, match="No such file"):
        read_text(tmp_path / "no.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReportError, match="not UTF-8 text"):
        read_text(tmp_path / "bad.json")


def test_a_module_is_written_over_modules_alone(tmp_path: Path) -> None:
    kernel = (GOLDEN / "gelu_float32.py.txt").read_text("utf-8")
    target = tmp_path / "kernels.py"
    for earlier in ("", kernel, '"""Fused kernels\n\nMade by Fusion Advisor.\n"""\nx = 1\n'):
        target.write_text(earlier)
        assert write_module(target, "new = 1\n").read_text() == "new = 1\n"
    # A source that a kernel was edited into begins like one, and goes on.
    for mine in ("import torch\n", "#!/usr/bin/env python\n", f"{kernel}\n\nprint('mine')\n"):
        target.write_text(mine)
        with pytest.raises(ReportError, match=r"kernels\.py is a file of yours"):
            write_module(target, "new")
        assert target.read_text() == mine


def test_pipes_stay_pipes_and_links_to_themselves_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    (tmp_path / "link.html").symlink_to(pipe)
    for name in ("pipe.html", "link.html"):
        with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
            write_atomic(tmp_path / name, "new")
            assert reader.read() == b"new"
    assert pipe.is_fifo() and (tmp_path / "link.html").is_symlink()
    loop = tmp_path / "loop.html"
    loop.symlink_to(loop)
    with pytest.raises(ReportError, match=r"cannot write .*loop\.html: "):
        write_atomic(loop, "new")
    assert loop.is_symlink()


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    target = tmp_path / f"{'n' * 250}.html"
    assert write_atomic(target, "new").read_text() == "new"
