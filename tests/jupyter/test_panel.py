"""The panel's tabs over ready reports: what they say, sorting, filters, pages, hostile text."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ipywidgets.widgets import widget as widget_module
from report_fixture import HOSTILE, empty_report, kernel, rich_report

sys.path.insert(0, str(Path(__file__).parent))
from panel_support import ReadyAdvice, all_html, ended, many_findings, new_runner, widgets_of

from fusion_advisor.errors import CodegenError
from fusion_advisor.jupyter.panel.desk import CLOSED, obstacles
from fusion_advisor.jupyter.panel.findings_tab import COLUMNS, ROWS
from fusion_advisor.jupyter.panel.kernels_tab import part_text
from fusion_advisor.jupyter.panel.panel import TITLES, Panel
from fusion_advisor.records import Report
from fusion_advisor.report.view import finding_views

Open = Callable[..., Panel]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens panels, and closes them and their runner."""
    runner, panels = new_runner(), []

    def open_one(report: Report | None = None) -> Panel:
        panels.append(Panel(ReadyAdvice(report), lambda: runner))  # type: ignore[arg-type]
        return panels[-1]

    yield open_one
    for panel in panels:
        panel.close()
    runner.close()


def head(panel: Panel, name: str) -> Any:
    """The button that sorts by a column."""
    return panel.findings._heads[[column.head for column in COLUMNS].index(name)]


def text(html: str) -> str:
    """HTML as the text a person reads."""
    reader = Reader(html)
    return " ".join("".join(reader.pieces).split())


def code(html: str) -> str:
    """The text between the tags, letter by letter."""
    return "".join(Reader(html, between="").pieces)


class Reader(HTMLParser):
    """Text and tags; tags must close in order."""

    def __init__(self, html: str, between: str = " ") -> None:
        super().__init__(convert_charrefs=True)
        self.between = between
        self.pieces: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.pieces.append(self.between)
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"
        self.pieces.append(self.between)

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


# -- what the tabs say -------------------------------------------------------------------------


def test_the_summary_says_ratio_traffic_launches_share_ceilings_and_environment(opened: Open):
    panel = opened()
    assert panel.tabs.titles == TITLES
    said = text(panel.summary.value)
    # 37 of 39 ops in fused groups; 26.1 of 82 ms; 900 and 310 million bytes; 39 ops without views
    for figure in ("0.0 % → 95 %", "26.1 ms of 82.0 ms", "858 MiB → 296 MiB", "66 % less",
                   "Bandwidth at 256 MiB 14.0 GB/s", "Peak float32 110 GFLOP/s",
                   "torch 2.13.0+cpu, numba 0.68.1", "proven bitwise",
                   "F1 in place: whole call 82.0 ms → 61.0 ms"):  # fmt: skip
        assert figure in said, figure


def test_nothing_worth_fusing_says_why_on_every_tab(opened: Open):
    panel = opened(empty_report())
    assert "Nothing worth fusing: all time is in matrix products." in text(panel.summary.value)
    assert "Nothing is worth fusing here" in panel.findings._nothing.value
    assert panel.actions.box.layout.display == "none"
    assert "no finding" in panel.roofline.box.value
    assert "No kernel yet" in panel.kernel._html.value
    assert "Ceilings Not measured." in text(panel.summary.value)


def test_a_report_without_ops_opens(opened: Open):
    empty = empty_report()
    bare = dataclasses.replace(
        empty,
        capture=dataclasses.replace(
            empty.capture, graph=dataclasses.replace(empty.capture.graph, nodes=())
        ),
    )
    assert "No op was recorded." in opened(bare).ops.table.page_html.value


def test_traffic_has_bars_with_numbers_for_the_run_and_each_finding(opened: Open):
    panel = opened()
    said = text(panel.traffic.page_html.value)
    # F1: four times eight ops over 12 MiB in and out, four kernels after; F2 three ops
    assert "F1 Elementwise chain: tanh-GELU written out × 4 Memory traffic 88 % less" in said
    assert "before 384 MiB after 48.0 MiB" in said
    assert "Kernels launched 28 fewer before 32 after 4" in said
    widths = re.findall(r"width:([\d.]+)%", panel.traffic.page_html.value)
    # bars of all findings are on one scale: F2 moves 36 of F1's 384 MiB
    assert widths[:2] == ["100.0", "12.5"] and widths[4] == "9.4"


def test_the_chosen_finding_is_told_with_verdicts_source_and_data_flow(opened: Open):
    panel = opened()
    assert panel.findings.chosen == "F1"
    said = text(panel._evidence.value)
    assert "No: Memory-bound? 1.0 flop per byte; the ridge is at 7.9." in said
    assert "self.c * (x + 0.044715 * x**3)))" in code(panel._evidence.value)
    assert "Before: 8 kernels" in said and "After: 1 kernel" in said
    assert "Textbook N(M+C) → M+NC 25.9 ms → 4.32 ms" in said
    panel.findings._rows[1].button.click()
    assert panel.findings.chosen == "F2"
    assert "not in the file: never edited" in text(panel._evidence.value)
    assert text(panel._heading.value).startswith("F2 SwiGLU gate found")


def test_roofline_points_say_their_figures_and_stand_in_a_table(opened: Open):
    panel = opened()
    drawing, points = panel.roofline.box.children
    assert "<title>F1 before: 0.188 flops per byte, 2.62 GFLOP/s</title>" in drawing.value
    said = text(widgets_of_html(points))
    assert "F1 before 0.188 2.62 2.62 GFLOP/s F1 after (estimate) 1.50 15.7 21.0 GFLOP/s" in said


def widgets_of_html(box: Any) -> str:
    return "".join(getattr(one, "value", "") for one in widgets_of(box)
                   if isinstance(getattr(one, "value", None), str))  # fmt: skip


def test_two_panels_share_no_id(opened: Open):
    ids = [set(re.findall(r' id="([^"]+)"', "".join(all_html(opened())))) for _ in range(2)]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


def test_the_kernel_tab_shows_the_module_or_one_part_of_it(opened: Open):
    panel = opened()
    made = kernel()
    assert part_text(made, "whole module") == made.text
    assert part_text(made, "CUDA kernel").startswith("@cuda.jit\ndef gelu_cuda(x, out, n):")
    assert part_text(made, "CPU kernel").startswith("@cpu_kernel\ndef gelu_cpu(x, out):")
    assert "prange" in part_text(made, "CPU kernel")
    assert part_text(dataclasses.replace(made, cuda_name=""), "CUDA kernel") == ""
    panel.kernel._part.value = 2
    said = text(panel.kernel._html.value)
    assert "i = cuda.grid(1)\n" in code(panel.kernel._html.value) and "prange" not in said
    assert "sm_80 18 0 B 0 B 0 0 B" in said and "18 registers per thread, occupancy 100 %" in said
    assert made.hash in said and 'print(advice.fuse("F1").text)' in said
    # a finding without kernel is not offered, and the choice follows the Findings tab
    assert [value for _, value in panel.kernel._finding.options] == ["F1", "F3"]
    panel.findings._rows[2].button.click()
    assert panel.kernel._finding.value == "F3"


# -- sorting, filters, pages -------------------------------------------------------------------


def test_a_click_on_a_head_sorts_and_a_second_turns_round(opened: Open):
    panel = opened(many_findings(25))
    assert panel.findings.shown_ids == [f"F{number}" for number in range(1, ROWS + 1)]
    head(panel, "Share").click()  # largest first
    assert panel.findings.shown_ids[:2] == ["F1", "F2"]
    assert head(panel, "Share").description == "Share ▾"
    head(panel, "Share").click()
    assert panel.findings.shown_ids[:2] == ["F25", "F24"]
    assert "smallest first" in head(panel, "Share").tooltip
    head(panel, "Finding").click()  # by number, not by letter: F10 after F9
    assert panel.findings.shown_ids == [f"F{number}" for number in range(1, ROWS + 1)]
    assert head(panel, "Share").description == "Share"
    head(panel, "Rule").click()  # equals stay best first
    assert panel.findings.shown_ids[:4] == ["F3", "F6", "F9", "F12"]
    assert panel.findings.chosen == "F1"  # sorting chooses nothing


def test_every_column_sorts(opened: Open):
    panel = opened()
    first = {}
    for column in COLUMNS:
        head(panel, column.head).click()
        first[column.head] = panel.findings.shown_ids[0]
    assert first == {
        "Finding": "F1", "Rule": "F1", "What and where": "F3", "Ops": "F1", "× N": "F1",
        "Share": "F1", "Saves": "F1", "Bound": "F1", "State": "F3",
    }  # fmt: skip


def test_pages_stay_within_their_bounds(opened: Open):
    panel = opened(many_findings(25))
    pager = panel.findings.pager
    back, on = pager._back, pager._on
    assert (pager.pages, [one.disabled for one in (*back, *on)]) == (3, [True, True, False, False])
    on[1].click()
    assert panel.findings.shown_ids == [f"F{number}" for number in range(21, 26)]
    assert [one.disabled for one in (*back, *on)] == [False, False, True, True]
    assert [row.box.layout.display for row in panel.findings._rows[4:6]] == [None, "none"]
    on[0].click()  # nothing lies beyond the last page
    assert pager.page == 3
    pager._number.set_state({"value": 99})
    assert pager.page == 3 and panel.findings.shown_ids[0] == "F21"
    pager._number.set_state({"value": 2})
    assert panel.findings.shown_ids[0] == "F11"
    assert "Findings: 11 to 20 of 25" in pager._said.value
    # rows that are not shown choose nothing
    on[1].click()
    panel.findings._rows[7].button.click()
    assert panel.findings.chosen == "F1"


def test_a_filter_shows_what_matches_from_the_first_page(opened: Open):
    panel = opened(many_findings(25))
    panel.findings.pager._on[1].click()
    panel.findings._filter.value = "FUS003 tanh"
    assert panel.findings.shown_ids == [f"F{n}" for n in range(2, 26, 3)]
    assert "1 to 8 of 8 that match (25 in all)" in panel.findings.pager._said.value
    assert panel.findings.pager._buttons.layout.display == "none"
    panel.findings._filter.value = "no such thing"
    assert panel.findings.shown_ids == []
    assert "No finding matches." in panel.findings._nothing.value
    panel.findings._filter.value = ""
    assert len(panel.findings.shown_ids) == ROWS


def test_order_filter_page_and_choice_outlive_a_change_of_the_advice(opened: Open):
    panel = opened(many_findings(25))
    head(panel, "Share").click()
    head(panel, "Share").click()
    panel.findings.pager._on[0].click()
    panel.findings._rows[0].button.click()
    before = panel.findings.shown_ids
    assert panel.findings.chosen == "F15"
    advice: Any = panel._desk.advice
    advice.report = dataclasses.replace(advice.report, kernels=(("F15", kernel()),))
    advice.observers[0]()
    assert panel.findings.shown_ids == before and panel.findings.chosen == "F15"
    assert "kernel generated" in panel.findings._rows[0].cells.value
    assert panel.kernel._finding.value == "F15"


def big_report(ops: int) -> Report:
    report = rich_report()
    node = report.capture.graph.nodes[0]
    nodes = tuple(
        dataclasses.replace(
            node,
            id=f"m{number}",
            index=number,
            op="aten.sigmoid.default" if number % 1000 == 0 else "aten.mul.Tensor",
            module_path=f"h.{number % 7}.mlp",
        )
        for number in range(ops)
    )
    graph = dataclasses.replace(report.capture.graph, nodes=nodes)
    capture = dataclasses.replace(report.capture, graph=graph, times=())
    bounds = tuple((f"m{number}", "compute-bound") for number in range(0, ops, 5000))
    return dataclasses.replace(report, capture=capture, bounds=bounds)


def test_of_fifty_thousand_ops_one_page_is_rendered(opened: Open):
    panel = opened(big_report(50_000))
    table = panel.ops.table
    assert table.page_html.value.count("<tr>") == 1 + 50
    assert "Ops: 1 to 50 of 50,000" in table.pager._said.value and table.pager.pages == 1_000
    table.pager._number.value = 1_000
    assert text(table.page_html.value).split("Finding")[1].startswith(" 49,950 mul")
    panel.ops._text.value = "sigmoid"
    assert "1 to 50 of 50 that match (50,000 in all)" in table.pager._said.value
    panel.ops._module.value = "h.3"
    assert "of 7 that match" in table.pager._said.value  # 1000 k = 3 (mod 7): k = 4, 11, … 46
    panel.ops._text.value = panel.ops._module.value = ""
    panel.ops._class.value = panel.ops._classes.index("compute-bound")
    assert "1 to 10 of 10 that match" in table.pager._said.value
    total = sum(len(html) for html in all_html(panel))
    assert total < 300_000  # characters that travel to the page


def test_ops_in_order_of_their_time(opened: Open):
    panel = opened()
    panel.ops._order.value = 1
    first = text(panel.ops.table.page_html.value).split("Finding")[1]
    assert first.startswith(" 37 addmm matmul ")  # 9 ms, before 37 ops of 0.9 ms
    assert ">Device</th>" not in panel.ops.table.page_html.value  # nothing ran on one


def test_why_not_is_filtered_by_code_message_node_and_place(opened: Open):
    panel = opened()
    table = panel.why_not.table
    assert table.page_html.value.count("<tr>") == 1 + 3
    assert [text for text, _ in panel.why_not._code.options] == [
        "any", "not-elementwise (2)", "escapes (1)",
    ]  # fmt: skip
    panel.why_not._code.value = 2
    assert "escapes" in table.page_html.value and "addmm" not in table.page_html.value
    panel.why_not._code.value = 0
    for words, count in (("matrix product", 2), ("n37", 2), ("n99", 1), ("In [3], line 17", 1),
                         ("addmm n99", 0)):  # fmt: skip
        panel.why_not._text.value = words
        assert table.pager.total == count, words
    assert "None matches." in table.page_html.value


# -- hostile text ------------------------------------------------------------------------------


def hostile_report() -> Report:
    """Every foreign name and message is hostile, and some are a million characters long."""
    long = HOSTILE + "x" * 1_000_000
    report = rich_report()
    graph = report.capture.graph
    nodes = tuple(
        dataclasses.replace(node, module_path=long, module_class=long, op=f"aten.{HOSTILE}.x")
        for node in graph.nodes
    )
    span = report.findings[0].span
    assert span is not None
    span = dataclasses.replace(
        span, file=f"/x/{long}", kind="file", function=long, text=f"{long}\n" * 3
    )
    findings = tuple(
        dataclasses.replace(
            finding, title=long, message=long, span=span, notes=(long,), rule=HOSTILE,
            verdicts=tuple(dataclasses.replace(v, question=long, reason=long)
                           for v in finding.verdicts),
        )
        for finding in report.findings
    )  # fmt: skip
    why_not = tuple(dataclasses.replace(one, message=long, code=long) for one in report.why_not)
    return dataclasses.replace(
        report,
        capture=dataclasses.replace(
            report.capture, title=long, graph=dataclasses.replace(graph, nodes=nodes)
        ),
        findings=findings,
        why_not=why_not,
        notes=(long,),
    )


def test_hostile_text_is_shown_escaped_and_shortened(opened: Open):
    panel = opened(hostile_report())
    for html in all_html(panel):
        if html.startswith("<style>"):
            continue
        reader = Reader(html)
        assert not {name for name, _ in reader.tags} & {"script", "iframe", "img", "a", "object"}
        for _, attributes in reader.tags:
            assert not [name for name in attributes if name.startswith("on")]
        assert "\x1b" not in html and "\u202e" not in html
        assert len(html) < 150_000
    shown = "".join("".join(Reader(html).pieces) for html in all_html(panel))
    assert "<script>alert('x')</script>" in shown  # as text
    labels = [
        getattr(one, name)
        for one in widgets_of(panel)
        for name in ("description", "tooltip", "placeholder")
        if isinstance(getattr(one, name, None), str)
    ]
    assert all("\x1b" not in one and len(one) < 1_000 for one in labels)
    options = [
        option if isinstance(option, str) else option[0]
        for one in widgets_of(panel)
        for option in getattr(one, "options", ())
    ]
    assert len(options) > 10 and all(
        len(one) <= 160 and "\x1b" not in one and "\u202e" not in one for one in options
    )


# -- what is possible, and errors --------------------------------------------------------------


def test_buttons_are_off_with_the_reason(opened: Open):
    panel = opened()
    reasons = {
        view.id: obstacles(view, closed=False, working="")
        for view in finding_views(panel._desk.advice.report)
    }
    assert reasons == {
        "F1": {"generate": "the kernel is there already", "validate": "it was validated already",
               "apply": "it is in place already", "undo": ""},
        "F2": {"generate": "", "validate": "", "apply": "", "undo": "it is not in place"},
        "F3": {"generate": "the kernel is there already", "validate": "it was validated already",
               "apply": "its kernel failed validation", "undo": "it is not in place"},
    }  # fmt: skip
    panel.findings._rows[2].button.click()
    apply = panel.actions.buttons["apply"]
    assert apply.disabled and apply.tooltip == "Not possible: its kernel failed validation"
    assert "Apply: its kernel failed validation" in panel.actions.reasons.value
    assert panel.actions.cancel.disabled
    said = text(panel.actions.checks.value)
    assert "CPU kernel failed 3 of 1024 elements differ" in said  # the failed rung, told in place


def test_an_advice_that_was_closed_says_so(opened: Open):
    panel = opened()
    advice: Any = panel._desk.advice
    advice.closed = True
    advice.observers[0]()
    panel.findings._rows[1].button.click()
    for action in ("generate", "validate", "apply"):
        assert panel.actions.buttons[action].disabled  # type: ignore[index]
        assert panel.actions.buttons[action].tooltip == f"Not possible: {CLOSED}"  # type: ignore[index]
    assert f"Generate, Validate, Apply: {CLOSED}" in panel.actions.reasons.value
    panel.findings._rows[0].button.click()
    assert not panel.actions.buttons["undo"].disabled  # what is in place can still be taken out


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CodegenError(f"no text for this {HOSTILE}"), "generate F2: no text for this <script>"),
        (RuntimeError("a bug of ours"), "generate F2: RuntimeError: a bug of ours"),
    ],
)
def test_errors_are_shown_in_place(
    opened: Open, error: Exception, said: str, capsys: pytest.CaptureFixture[str]
):
    panel = opened()
    advice: Any = panel._desk.advice

    def fail(_: str) -> None:
        raise error

    advice.on_fuse = fail
    panel.findings._rows[1].button.click()
    panel.actions.buttons["generate"].click()
    ended(panel, "F2")
    assert 'role="alert"' in panel.actions.said.value
    assert said in text(panel.actions.said.value)
    assert not panel.actions.buttons["generate"].disabled  # it may be tried again
    assert capsys.readouterr() == ("", "")


# -- closing -----------------------------------------------------------------------------------


def test_a_closed_panel_leaves_no_widget_and_no_watcher():
    before = set(widget_module._instances)
    runner, advice = new_runner(), ReadyAdvice()
    panel = Panel(advice, lambda: runner)  # type: ignore[arg-type]
    assert len(set(widget_module._instances) - before) > 100
    panel.close()
    assert set(widget_module._instances) == before
    assert advice.observers == []
    panel.close()  # a second time does nothing
    panel.refresh()
    runner.close()
