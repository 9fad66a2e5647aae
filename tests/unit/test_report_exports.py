"""What each exported format says: values, places, structure."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest
from markdown_it import MarkdownIt
from report_fixture import empty_report, rich_report
from report_formats import csv_rows, strict_json
from sarif_kit.validate import validation_errors

from fusion_advisor.records import Finding, OpTime, Report, SourceSpan
from fusion_advisor.report.evidence import measured_rows
from fusion_advisor.report.files import render
from fusion_advisor.report.markdown import MAX_CHARACTERS, markdown_text
from fusion_advisor.report.text import render_text
from fusion_advisor.report.view import headline
from fusion_advisor.rules import RULES

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def report() -> Report:
    return rich_report()


def with_ignored(report: Report, *places: int) -> Report:
    return dataclasses.replace(
        report,
        findings=tuple(
            dataclasses.replace(finding, ignored=place in places)
            for place, finding in enumerate(report.findings)
        ),
    )


# -- ignored findings --------------------------------------------------------------------------


def test_ignored_findings_are_counted_apart(report):
    left = with_ignored(report, 0)
    # 1.5 + 0.6 ms of 82.0 ms are left; F1's 24 ms are not promised
    assert headline(left) == "Fusing 2 places would save about 2.10 ms of 82.0 ms per run (2.6 %)"
    text = render_text(with_ignored(report, 2))
    assert "Ignored" in text
    assert "1 finding" in text
    rows = [line for line in text.splitlines() if line.startswith(("F1 ", "F2 ", "F3 "))]
    assert [line.split()[0] for line in rows[:3]] == ["F1", "F2", "F3"]
    assert "ignored" in rows[2]
    nothing = headline(with_ignored(report, 0, 1, 2))
    assert nothing == (
        "Nothing left to fuse: 3 findings ignored by comments, which would save 26.1 ms."
    )


def test_ignored_findings_in_every_export(report):
    left = with_ignored(report, 1)
    rows = csv_rows(render(left, "csv"))
    assert [(row["finding"], row["ignored"]) for row in rows] == [
        ("F1", "false"), ("F3", "false"), ("F2", "true"),
    ]  # fmt: skip
    results = json.loads(render(left, "sarif"))["runs"][0]["results"]
    assert [[one["kind"] for one in result.get("suppressions", [])] for result in results] == [
        [], ["inSource"], [],
    ]  # fmt: skip
    plan = {event["args"].get("finding") for event in trace(left) if event["tid"] == 2}
    assert plan & {"F1", "F2", "F3"} == {"F1", "F3"}
    assert "| F2 | " in render(left, "markdown")
    assert "ignored" in render(left, "html")


# -- Markdown ----------------------------------------------------------------------------------


def test_markdown_says_what_a_reviewer_needs(report):
    text = render(report, "markdown")
    first = text.splitlines()[0]
    assert first == "## Fusing 3 places would save about 26.1 ms of 82.0 ms per run (32 %)"
    assert "| F1 | " in text
    assert "| 24.0 ms (" in text
    assert "| F1 | CPU | 9.10 ms ± 210 µs | 1.18 ms ± 35.0 µs | 7.71 × | 1.24 ms | " in text
    assert "| F1 | 82.0 ms | 61.0 ms | 1.34 × | in place |" in text
    assert "<details><summary>Not fused, and why (2)</summary>" in text
    assert "| Python | 3." in text
    html = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert html.count("<table>") >= 8
    assert html.count("<pre><code") == 3


def test_markdown_fence_is_longer_than_any_in_the_source(report):
    span = dataclasses.replace(report.findings[0].span, text="x = '''\n````\n'''")
    finding = dataclasses.replace(report.findings[0], span=span)
    text = render(dataclasses.replace(report, findings=(finding,)), "markdown")
    assert "`````python\nx = '''\n````\n'''\n`````\n" in text


def test_markdown_fits_a_comment(report):
    findings = tuple(
        dataclasses.replace(report.findings[place % 3], id=f"F{place + 1}") for place in range(400)
    )
    text = render(dataclasses.replace(report, findings=findings), "markdown")
    assert len(text) <= MAX_CHARACTERS
    assert " more." in text


def test_ordinary_text_stays_readable():
    plain = "modeling_gpt2.py:573 in GPT2Model.forward (installed package) – 12 % + 3"
    assert markdown_text(plain) == plain
    assert markdown_text("1.5 ms") == "1.5 ms"
    assert markdown_text("__init__") == "&#95;&#95;init&#95;&#95;"


# -- CSV ---------------------------------------------------------------------------------------


def test_findings_csv(report):
    text = render(report, "csv")
    assert text.count("\r\n") == text.count("\n") - sum(
        row["expression"].count("\n") + row["message"].count("\n") for row in csv_rows(text)
    )
    first = csv_rows(text)[0]
    assert first["finding"] == "F1"
    assert float(first["saved_mid_us"]) == 24_000.0
    assert (first["bytes_before"], first["bytes_after"]) == (str(384 * 2**20), str(48 * 2**20))
    assert (first["cell"], first["file"], first["line"]) == ("3", "", "17")
    assert (first["measured_eager_us"], first["predicted_fused_us"]) == ("9100.0", "1240.0")
    assert "\n" in first["expression"]
    second = csv_rows(text)[1]
    assert (second["cell"], second["installed"]) == ("", "true")
    assert second["file"] == "/site-packages/transformers/activations.py"
    assert second["measured_fused_us"] == ""


def test_ops_csv_adds_up(report):
    rows = csv_rows(render(report, "ops-csv"))
    assert len(rows) == len(report.capture.graph.nodes) == 40
    assert sum(float(row["host_us"]) for row in rows) == pytest.approx(37 * 900 + 3 * 9_000)
    size = 2 * 256 * 3072 * 4
    first = rows[0]  # x * x: one distinct operand
    assert (first["op"], first["finding"]) == ("aten.mul.Tensor", "F1")
    assert (int(first["bytes_read"]), int(first["bytes_written"])) == (size, size)
    assert (rows[38]["kind"], rows[38]["bytes_read"]) == ("view", "0")
    assert first["shape"] == "2x256x3072"


def test_unknown_numbers_are_empty_cells(report):
    estimate = dataclasses.replace(
        report.findings[0].estimate, saved_mid_us=float("nan"), saved_high_us=float("inf")
    )
    finding = dataclasses.replace(report.findings[0], estimate=estimate, span=None)
    [row] = csv_rows(render(dataclasses.replace(report, findings=(finding,)), "csv"))
    assert row["saved_mid_us"] == row["saved_high_us"] == row["line"] == row["cell"] == ""


def test_empty_reports_have_headers():
    assert csv_rows(render(empty_report(), "csv")) == []
    assert render(empty_report(), "csv").startswith("finding,rule,title,")


# -- SARIF -------------------------------------------------------------------------------------


def sarif_run(report: Report) -> dict[str, Any]:
    log = strict_json(render(report, "sarif"))
    assert validation_errors(log) == []
    run: dict[str, Any] = log["runs"][0]
    return run


def test_sarif_rules_and_levels(report):
    run = sarif_run(report)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == sorted(RULES)
    assert rules[0]["help"]["markdown"].startswith("# FUS001: ")
    for result, finding in zip(run["results"], report.findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.rule
        assert result["level"] == ("warning" if finding.share >= 0.05 else "note")
        assert result["properties"]["savedMidUs"] == finding.estimate.saved_mid_us
    assert {result["level"] for result in run["results"]} == {"warning", "note"}
    assert sarif_run(empty_report())["results"] == []


def test_sarif_place_of_a_cell(report):
    location = sarif_run(report)["results"][0]["locations"][0]
    physical = location["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "cells/cell-1.py"
    # the fixture's columns were recorded without the line's text: lines alone are claimed
    assert (physical["region"]["startLine"], physical["region"]["endLine"]) == (17, 18)
    assert "startColumn" not in physical["region"]
    kinds = [(one["kind"], one["fullyQualifiedName"]) for one in location["logicalLocations"]]
    assert kinds == [
        ("notebook cell", "notebook cell 3 (id cell-1)"),
        ("function", "forward"),
        ("module", "transformer.h.0.mlp"),
    ]


def test_sarif_columns_are_utf16_units_and_paths_are_addresses(report):
    span = SourceSpan(
        kind="file", file="/a folder/größe 100%.py", line=7, end_line=8, column=9, end_column=5,
        text="x * y", utf16_column=6, utf16_end_column=5,
    )  # fmt: skip
    finding = dataclasses.replace(report.findings[0], span=span)
    run = sarif_run(dataclasses.replace(report, findings=(finding,)))
    assert run["columnKind"] == "utf16CodeUnits"
    physical = run["results"][0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "file:///a%20folder/gr%C3%B6%C3%9Fe%20100%25.py"
    assert physical["region"] == {
        "startLine": 7, "startColumn": 7, "endLine": 8, "endColumn": 6,
        "snippet": {"text": "x * y"},
    }  # fmt: skip
    for file, uri in (
        ("train.py", "train.py"),
        ("C:\\work\\train.py", "file:///C:/work/train.py"),
        ("<string>", "strings/string.py"),
        ("../a.py", "../a.py"),
    ):
        moved = dataclasses.replace(finding, span=dataclasses.replace(span, file=file))
        run = sarif_run(dataclasses.replace(report, findings=(moved,)))
        physical = run["results"][0]["locations"][0]["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == uri


def test_sarif_shows_library_code_at_the_line_that_reached_it(report):
    own = SourceSpan(kind="file", file="/mine/train.py", line=5, end_line=5, column=4, end_column=9)
    inside = set(report.findings[1].occurrences[0].nodes)
    nodes = tuple(
        dataclasses.replace(node, stack=(node.span, own)) if node.id in inside else node
        for node in report.capture.graph.nodes
    )
    graph = dataclasses.replace(report.capture.graph, nodes=nodes)
    capture = dataclasses.replace(report.capture, graph=graph)
    result = sarif_run(dataclasses.replace(report, capture=capture))["results"][1]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "file:///mine/train.py"
    [library] = result["relatedLocations"]
    assert library["physicalLocation"]["artifactLocation"]["uri"].endswith("/activations.py")
    assert "reached from here" in result["message"]["text"]


def fingerprints(report: Report) -> list[str]:
    return [one["partialFingerprints"]["fusionFinding/v1"] for one in sarif_run(report)["results"]]


def test_sarif_fingerprints_outlive_moves_and_other_figures(report):
    before = fingerprints(report)
    assert len(set(before)) == len(before)

    def moved(finding: Finding) -> Finding:
        span = dataclasses.replace(
            finding.span,
            line=finding.span.line + 40,
            end_line=finding.span.end_line + 40,
            file="/elsewhere/" + finding.span.file.rpartition("/")[2],
            execution_count=99,
        )
        estimate = dataclasses.replace(finding.estimate, saved_mid_us=1.0)
        return dataclasses.replace(
            finding, id="G" + finding.id, span=span, estimate=estimate, share=0.5, message="other"
        )

    later = dataclasses.replace(
        report, findings=tuple(moved(one) for one in report.findings), kernels=(),
        validations=(), fixes=(), applied=(),
    )  # fmt: skip
    assert fingerprints(later) == before
    text = dataclasses.replace(report.findings[0].span, text="y = other(code)")
    other = dataclasses.replace(report.findings[0], span=text)
    changed = dataclasses.replace(report, findings=(other, *report.findings[1:]))
    assert fingerprints(changed)[0] != before[0]
    # two findings that look the same stay two
    twice = dataclasses.replace(
        report, findings=(report.findings[0], dataclasses.replace(report.findings[0], id="F9"))
    )
    assert len(set(fingerprints(twice))) == 2


def test_sarif_message_makes_no_link(report):
    finding = dataclasses.replace(report.findings[0], message="[x](javascript:boom) a[0] b")
    run = sarif_run(dataclasses.replace(report, findings=(finding,)))
    assert run["results"][0]["message"]["text"].endswith("\\[x](javascript:boom) a[0] b")


# -- the trace ---------------------------------------------------------------------------------


def trace(report: Report) -> list[dict[str, Any]]:
    document = strict_json(render(report, "trace"))
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[dict[str, Any]] = document["traceEvents"]
    return events


def nanoseconds(us: float) -> int:
    ns = us * 1000
    assert ns == pytest.approx(round(ns), abs=1e-3)
    return round(ns)


def check_structure(events: list[dict[str, Any]]) -> None:
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    slices: dict[int, list[tuple[int, int]]] = {}
    for event in events:
        assert event["ph"] in {"M", "X", "C", "s", "t", "f"}
        assert event["pid"] == 1
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["tid"] in named
            start, length = nanoseconds(event["ts"]), nanoseconds(event["dur"])
            assert length >= 0
            slices.setdefault(event["tid"], []).append((start, start + length))
    for spans in slices.values():
        open_until: list[int] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], "slices cross"
            open_until.append(end)
    counters = [event["args"]["us"] for event in events if event["ph"] == "C"]
    assert all(before <= after for before, after in pairwise(counters))


def test_trace_structure_and_times(report):
    events = trace(report)
    check_structure(events)
    ops = [e for e in events if e["tid"] == 1 and e["ph"] == "X" and e["cat"] != "module"]
    assert len(ops) == 40
    assert sum(e["dur"] for e in ops) == pytest.approx(37 * 900 + 3 * 9_000)
    modules = [e["name"] for e in events if e.get("cat") == "module"]
    assert modules[:4] == ["transformer", "h", "0", "mlp"]
    plan = [e for e in events if e["tid"] == 2 and e["ph"] == "X"]
    assert [e["args"]["finding"] for e in plan] == ["F1"] * 4 + ["F2", "F3"]
    assert plan[0]["dur"] == pytest.approx(8 * 900)
    saved = [e["args"]["us"] for e in events if e["ph"] == "C"]
    assert saved[-1] == pytest.approx(26_100)
    planned = [e for e in events if e["tid"] == 3 and e["ph"] == "X"]
    assert [e["args"]["time"] for e in planned].count("estimated") == 6
    assert len(planned) == 3 + 6
    after = sum(one.estimate.time_after_mid_us for one in report.findings)
    assert sum(e["dur"] for e in planned) == pytest.approx(3 * 9_000 + after)


def test_trace_of_a_group_that_others_interrupt(report):
    """Its stretches are slices of their own, joined by arrows that begin and end inside them."""
    first = report.findings[0].occurrences[0]
    scattered = dataclasses.replace(first, nodes=first.nodes[:2] + first.nodes[5:])
    finding = dataclasses.replace(report.findings[0], occurrences=(scattered,))
    events = trace(dataclasses.replace(report, findings=(finding,)))
    check_structure(events)
    plan = [e for e in events if e["tid"] == 2 and e["ph"] == "X"]
    assert [e["name"].rpartition(" (")[2] for e in plan] == ["1 of 2)", "2 of 2)"]
    arrows = [e for e in events if e["ph"] in "stf"]
    assert [e["ph"] for e in arrows] == ["s", "f"]
    for arrow, slice in zip(arrows, plan, strict=True):
        assert slice["ts"] <= arrow["ts"] <= slice["ts"] + slice["dur"]


def test_trace_without_times_says_so(report):
    untimed = dataclasses.replace(report, capture=dataclasses.replace(report.capture, times=()))
    document = strict_json(render(untimed, "trace"))
    assert document["otherData"]["axis"].startswith("no op was timed")
    assert {event["ph"] for event in document["traceEvents"]} == {"M"}


def test_trace_takes_device_times_and_no_impossible_ones(report):
    times = (
        OpTime(node="n0", host_us=50.0, device_us=3.5),
        OpTime(node="n1", host_us=50.0, device_us=float("nan")),
        OpTime(node="n2", host_us=50.0, device_us=-1.0),
        OpTime(node="n3", host_us=50.0, device_us=0.25),
    )
    timed = dataclasses.replace(report, capture=dataclasses.replace(report.capture, times=times))
    ops = [e for e in trace(timed) if e["tid"] == 1 and e["ph"] == "X" and e["cat"] != "module"]
    assert [(e["ts"], e["dur"]) for e in ops] == [(0.0, 3.5), (3.5, 0.25)]


def test_best_first_whatever_the_numbers(report):
    swapped = dataclasses.replace(
        report, findings=(report.findings[2], report.findings[0], report.findings[1])
    )
    assert [row["finding"] for row in csv_rows(render(swapped, "csv"))] == ["F1", "F2", "F3"]
    odd = dataclasses.replace(report.findings[0].estimate, saved_mid_us=float("nan"))
    unknown = dataclasses.replace(report.findings[0], estimate=odd)
    last = dataclasses.replace(report, findings=(unknown, *report.findings[1:]))
    assert [row["finding"] for row in csv_rows(render(last, "csv"))] == ["F2", "F3", "F1"]


def test_times_before_are_called_what_they_are(report):
    assert "| measured, over all occurrences |" in render(report, "markdown")
    assert "Measured before, estimated after" in render(report, "html")
    elsewhere = dataclasses.replace(report, device=report.capture.ceilings)
    assert "| estimated, over all occurrences |" in render(elsewhere, "markdown")
    assert "Estimated before, estimated after" in render(elsewhere, "html")


def test_other_terms_are_not_explained_as_a_kernels(report):
    explained = "The fused time is the longer of memory and compute"
    estimate = dataclasses.replace(
        report.findings[0].estimate, terms=(("memory", 3.0), ("compute", 2.0))
    )
    finding = dataclasses.replace(report.findings[0], estimate=estimate)
    assert explained in render(dataclasses.replace(report, findings=(finding,)), "markdown")
    assert explained not in render(report, "markdown")  # memory and launch


# -- predicted and measured --------------------------------------------------------------------


def test_predicted_against_measured(report):
    one = measured_rows(report)[0]
    assert (one.finding, one.speedup) == ("F1", "7.71 ×")
    # 1180 against 1240 predicted: 60 off, beyond the spread of 35
    assert one.verdict == "0.952 × the prediction"
    assert dataclasses.replace(one, fused_spread_us=60.0).verdict.endswith(", within the spread")
    assert dataclasses.replace(one, predicted_us=0.0).verdict == ""
