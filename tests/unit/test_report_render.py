"""Text, page and notebook display of one rich report: the numbers, the words, and safety."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from report_fixture import HOSTILE, empty_report, rich_report

from fusion_advisor.records import Report
from fusion_advisor.report import (
    export_report,
    finding_html,
    notebook_html,
    render_finding,
    render_html,
    render_json,
    render_text,
)
from fusion_advisor.report.dataflow import dataflow_svg, trip_after, trips_before
from fusion_advisor.report.files import FORMATS
from fusion_advisor.report.roofline import roofline, roofline_svg
from fusion_advisor.report.view import finding_views, headline, time_by_kind

VOID = {"meta", "br", "input", "img", "link", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order, and collects what matters."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture(scope="module")
def report() -> Report:
    return rich_report()


@pytest.fixture(scope="module")
def page(report) -> Page:
    return Page(render_html(report))


def test_headline_sums_the_findings_against_the_run(report):
    # 24.0 + 1.5 + 0.6 ms of 82.0 ms
    assert headline(report) == (
        "Fusing 3 places would save about 26.1 ms of 82.0 ms per run (32 %)"
    )
    assert headline(empty_report()) == "Nothing worth fusing: all time is in matrix products."


def test_text_has_rank_place_gain_verdicts_safety_and_next_step(report):
    text = render_text(report)
    lines = text.splitlines()
    row = next(line for line in lines if line.startswith("F1") and "24.0 ms" in line)
    assert "384 MiB → 48.0 MiB" in row
    assert "32 → 4" in row
    assert "In [3], line 17 in forward" in row
    assert "mul → pow → mul → add → mul → tanh → add → mul  (× 4)" in text
    assert "    no      Memory-bound? 1.0 flop per byte; the ridge is at 7.9." in lines
    assert "0 mismatches in 37 cases, bit-equal to eager; 3 of 4 checks passed" in text
    assert 'next    %fuse_undo F1   or   advice.undo("F1")' in text  # it is in place
    assert 'next    %fuse_apply F2   or   advice.apply("F2")' in text
    assert 'next    %fuse_show F3   or   advice.fuse("F3").text' in text  # failed: not offered
    assert "whole call 82.0 ms → 61.0 ms (1.34 ×)" in text
    assert "activations.py:312 in forward (installed package)" in text


def test_top_and_all(report):
    short = render_text(report, top=1)
    assert "2 more findings: use --top 3" in short
    assert "SwiGLU" not in short
    assert "Every legal candidate" not in short
    full = render_text(report, top=0, all=True)
    assert full.count("saves 6.00 ms") == 4  # the four occurrences as candidates


def test_repeated_reasons_are_counted_once(report):
    text = render_text(report, all=True)
    assert text.count("addmm: matrix product") == 1
    assert re.search(r"relu → addmm  \(× 2\)", text)


def test_unaccounted_time_is_shown_and_adds_up(report):
    rows = time_by_kind(report.capture)
    assert rows[-1][0].startswith("unaccounted")
    # 37 elementwise ops of 0.9 ms and three others of 9 ms, of 82 ms
    assert rows[-1][1] == pytest.approx(82_000 - 37 * 900 - 3 * 9_000)
    assert sum(us for _, us, _ in rows) == pytest.approx(82_000)


def test_terminal_escapes_and_bidi_overrides_are_shown_not_sent(report):
    for text in (render_text(report, all=True), render_finding(report, "F3")):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\\x1b[31mred" in text


def test_page_has_no_network_and_only_its_own_script(page, report):
    for _, attributes in page.tags:
        for name in ("src", "href", "action"):
            value = attributes.get(name) or ""
            assert not value or value.startswith("#")
    assert page.count("script") == 1
    assert page.count("link") == page.count("iframe") == 0
    text = render_html(report)
    assert "default-src 'none'" in text
    assert "url(http" not in text
    assert "@import" not in text


def test_page_escapes_foreign_text(page, report):
    text = render_html(report)
    assert "alert('x')" not in text
    assert "alert(&#x27;x&#x27;)" in text
    assert "\x1b" not in text
    assert "</script> must" not in text  # from a comment in the kernel
    joined = "".join(page.text)
    assert joined.count("<script>alert('x')") >= 6  # shown to the reader as text


def test_page_is_accessible_in_structure(page):
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    for tag, attributes in page.tags:
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-labelledby"]
        if tag == "input":
            assert any(t == "label" and a.get("for") == attributes["id"] for t, a in page.tags)
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    references = [a[name] for _, a in page.tags for name in ("aria-labelledby",) if a.get(name)]
    assert all(part in ids for reference in references for part in str(reference).split())
    assert dict(page.tags)["html"]["lang"] == "en"


def _luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_both_themes():
    from fusion_advisor.report.page_style import STYLE

    light, dark = STYLE.split("@media (prefers-color-scheme:dark)", 1)
    for theme in (light.split("}")[0], dark.split("}")[0]):
        colors = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", theme))
        grounds = {"ink": "page card code warn-bg op kernel", "soft": "page card code memory",
                   "accent": "page card", "good": "card good-bg", "bad": "card bad-bg",
                   "warn": "card warn-bg", "k": "code", "s": "code", "c": "code", "n": "code",
                   "f": "code"}  # fmt: skip
        for text, behind in grounds.items():
            for ground in behind.split():
                bright, dim = sorted(
                    (_luminance(colors[text]), _luminance(colors[ground])), reverse=True
                )
                assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, ground)


def test_page_shows_every_part(report):
    text = render_html(report)
    for part in (
        "Findings, best first",
        "Data flow, one of 4 occurrences",
        "Is it worth it?",
        "Is it safe?",
        "The generated kernel, fused_gelu",
        '<span class="k">def</span> <span class="f">gelu_cuda</span>',
        "Roofline",
        "Before and after",
        "Not fused, and why",
        "this machine has no CUDA device",
        "predicted 1.24 ms",
        "prefers-color-scheme:dark",
        "Refused, and why",
    ):
        assert part in text, part


def test_same_report_same_bytes_whatever_the_hash_seed(tmp_path):
    """One saved report, every format and the notebook display, in two processes."""
    saved = export_report(rich_report(), tmp_path / "saved.json")
    code = (
        "import sys\n"
        "from fusion_advisor.report import notebook_html, read_text\n"
        "from fusion_advisor.report.files import FORMATS, export_report\n"
        "from fusion_advisor.serialize import load_report\n"
        "report = load_report(read_text(sys.argv[1]))\n"
        "for one in FORMATS.values():\n"
        "    export_report(report, f'{sys.argv[2]}/r{one.suffixes[0]}')\n"
        "assert 'torch' not in sys.modules\n"
        "open(f'{sys.argv[2]}/display', 'w').write(notebook_html(report))\n"
    )
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        subprocess.run(
            [sys.executable, "-c", code, str(saved), str(tmp_path / seed)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert len(names) == len(FORMATS) + 1
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name
    assert (tmp_path / "1" / "r.json").read_bytes() == saved.read_bytes()


def test_notebook_display_survives_an_untrusted_reopen(report):
    text = notebook_html(report, all=True)
    parsed = Page(text)
    assert parsed.count("style") == parsed.count("svg") == parsed.count("script") == 0
    assert all("class" not in attributes for _, attributes in parsed.tags)
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    assert len(images) == 2
    assert all((image["src"] or "").startswith("data:image/png;base64,") for image in images)
    assert all(image["alt"] for image in images)
    assert "Fusing 3 places" in text
    assert "alert('x')" not in text
    assert "Kernel" in finding_html(report, "F1")
    assert Page(finding_html(report, "F1")).count("details") >= 2


def test_nothing_to_do_renders_everywhere():
    report = empty_report()
    for text in (render_text(report), render_html(report), notebook_html(report)):
        assert "Nothing worth fusing" in text
    assert "not measured" in render_text(report)


def test_odd_numbers_do_not_break_a_page(report):
    estimate = dataclasses.replace(
        report.findings[0].estimate,
        time_before_us=float("inf"), bytes_before=0, flops=0.0, saved_mid_us=float("nan"),
    )  # fmt: skip
    finding = dataclasses.replace(report.findings[0], estimate=estimate, span=None, occurrences=())
    odd = dataclasses.replace(report, findings=(finding,))
    for text in (render_text(odd), render_html(odd), notebook_html(odd)):
        assert "unknown" in text
        assert "nan" not in text.replace("finan", "")
        assert "no source line" in text


def test_json_comes_back_equal(report):
    from fusion_advisor.serialize import load_report

    assert load_report(render_json(report)) == report


def test_memory_trips_of_the_drawing(report):
    candidate = report.findings[0].occurrences[0]
    graph = report.capture.graph
    size = 2 * 256 * 3072 * 4
    before = trips_before(graph, candidate)
    assert [trip.label for trip in before] == [
        "mul", "pow", "mul", "add", "mul", "tanh", "add", "mul",
    ]  # fmt: skip
    # the first op reads its only operand once, though it is named twice
    assert [trip.read_bytes // size for trip in before] == [1, 1, 2, 2, 2, 1, 2, 2]
    after = trip_after(graph, candidate)
    assert (after.read_bytes, after.written_bytes) == (size, size)
    drawing = dataflow_svg(graph, candidate, name="x")
    assert "8 kernels move 126 MiB" in drawing
    assert "one kernel moves 12.0 MiB" in drawing


def test_broadcast_operand_counts_its_own_size(report):
    from fusion_advisor.records import TensorSpec
    from fusion_advisor.report.dataflow import tensor_bytes

    expanded = TensorSpec(id="b", dtype="bfloat16", shape=(4, 8, 16), strides=(0, 0, 1), storage=1)
    assert tensor_bytes(expanded) == 32
    assert tensor_bytes(dataclasses.replace(expanded, shape=(0, 8, 16))) == 0


def test_what_no_one_kernel_computes_is_not_drawn_as_one(report):
    """An optimizer's step: its ops stay several launches, and none of its bytes falls away."""
    step = dataclasses.replace(report.candidates[0], inputs=(), outputs=(), shape=())
    assert dataflow_svg(report.capture.graph, step, name="x") == ""
    finding = dataclasses.replace(
        report.findings[0], occurrences=(step,), safety="display-only", rule="FUS006"
    )
    text = render_html(dataclasses.replace(report, findings=(finding,)))
    assert "Data flow" not in text
    assert "After: 1 kernel" not in text


def test_long_groups_are_drawn_by_their_ends(report):
    names = tuple(f"n{index}" for index in range(30))
    candidate = dataclasses.replace(report.candidates[0], nodes=names)
    drawing = dataflow_svg(report.capture.graph, candidate, name="x")
    assert "… 18 more ops, " in drawing
    assert drawing.count('class="op"') == 12


def test_roofline_points_and_roof(report):
    model = roofline(report)
    assert model is not None
    assert (model.slow_gb_per_s, model.fast_gb_per_s, model.peak_gflops) == (14.0, 60.0, 110.0)
    assert model.roof(1.0) == 14.0
    assert model.roof(100.0) == 110.0
    before, after = model.points[:2]
    estimate = report.findings[0].estimate
    assert before.intensity == pytest.approx(estimate.flops / estimate.bytes_before)
    assert after.intensity == pytest.approx(8 * before.intensity)
    assert after.gflops == pytest.approx(estimate.flops / 4_800.0 / 1e3)
    assert roofline(empty_report()) is None


def test_states(report):
    assert [view.state for view in finding_views(report)] == [
        "in place", "found", "failed validation",
    ]  # fmt: skip
    undone = dataclasses.replace(
        report, applied=(dataclasses.replace(report.applied[0], undone=True, reason="slower"),)
    )
    assert finding_views(undone)[0].state == "taken out"
    assert "F1 is not in place: slower" in render_text(undone)


def test_a_kernel_that_rounds_less_often_is_called_so_wherever_it_is_judged():
    report = rich_report()
    (finding, kernel), *others = report.kernels
    program = dataclasses.replace(kernel.program, match="fast")
    fast = dataclasses.replace(
        report,
        kernels=((finding, dataclasses.replace(kernel, program=program)), *others),
        applied=(),
    )
    views = {view.id: view for view in finding_views(fast)}
    assert "rounds less often than eager" in views[finding].safety
    assert views[finding].next_magic == f"%fuse_apply {finding} --match fast"
    assert views[finding].next_python == f'advice.apply("{finding}", match="fast")'
    assert "rounds less often" in render_text(fast)
    assert "rounds less often" not in render_text(report)
    plain = next(view for view in finding_views(report) if view.id == finding)
    assert "match" not in plain.next_magic + plain.next_python


def test_what_was_not_timed_says_why() -> None:
    report = rich_report()
    (fix, *_) = report.applied
    timed = dataclasses.replace(fix, before_us=2000.0, after_us=1000.0, undone=False, reason="")
    untimed = dataclasses.replace(timed, before_us=0.0, after_us=0.0)
    assert "whole call 2.00 ms → 1.00 ms" in render_text(
        dataclasses.replace(report, applied=(timed,))
    )
    text = render_text(dataclasses.replace(report, applied=(untimed,)))
    assert "whole call not timed, for only a module's call" in text and "→ 0 µs" not in text


def test_hostile_text_is_hostile():
    assert all(mark in HOSTILE for mark in ("<script>", "\x1b", "\u202e", "$", '"'))


def test_roofline_points_say_what_they_are_and_two_drawings_share_no_id(report):
    model = roofline(report)
    drawn = roofline_svg(model, name="panel-1")
    assert drawn.count("<circle") == drawn.count("</title></circle>") == len(model.points)
    # 12 flops per element of 4 bytes: 8 kernels move 16 times that element, one moves it twice
    assert "<title>F1 before: 0.188 flops per byte, 2.62 GFLOP/s</title>" in drawn
    assert "<title>F1 after: 1.50 flops per byte, 15.7 GFLOP/s</title>" in drawn
    ids = set(re.findall(r' id="([^"]+)"', drawn))
    assert ids and not ids & set(re.findall(r' id="([^"]+)"', roofline_svg(model)))
