"""Time and bytes by module: what is inside counts for what holds it, and nothing twice."""

from __future__ import annotations

import dataclasses

import pytest
from report_fixture import empty_report, rich_report

from fusion_advisor.records import OpTime, Report
from fusion_advisor.report.evidence import ceiling_rows, term_rows, textbook_text
from fusion_advisor.report.html import render_html
from fusion_advisor.report.modules import MAX_DEPTH, ModuleRow, class_rows, module_tree


def with_modules(*modules: tuple[str, str]) -> Report:
    """The fixture's first ops, one per (path, class), of 100 us each."""
    report = rich_report()
    nodes = tuple(
        dataclasses.replace(node, module_path=path, module_class=name)
        for node, (path, name) in zip(report.capture.graph.nodes, modules, strict=False)
    )
    kept = {node.id for node in nodes}
    graph = dataclasses.replace(report.capture.graph, nodes=nodes)
    times = tuple(OpTime(node=name, host_us=100.0) for name in sorted(kept))
    return dataclasses.replace(
        report,
        capture=dataclasses.replace(report.capture, graph=graph, times=times),
        findings=(),
        candidates=(),
        estimates=(),
    )


def shape(rows: tuple[ModuleRow, ...]) -> list[object]:
    return [(row.name, row.module_class, row.us, row.ops, shape(row.children)) for row in rows]


def test_tree_adds_up_what_is_inside():
    report = with_modules(
        ("net.0", "Linear"), ("net.0.act", "GELU"), ("net.0.act", "GELU"), ("net", "Sequential"),
        ("", "Model"), ("head", "Linear"), ("", ""),
    )  # fmt: skip
    assert shape(module_tree(report)) == [
        ("net", "Sequential", 400.0, 4, [
            ("0", "Linear", 300.0, 3, [("act", "GELU", 200.0, 2, [])]),
        ]),
        ("the model itself", "Model", 100.0, 1, []),
        ("head", "Linear", 100.0, 1, []),
        ("outside any module", "", 100.0, 1, []),
    ]  # fmt: skip
    assert sum(row.us for row in module_tree(report)) == 700.0


def test_classes_count_their_own_ops_alone():
    report = with_modules(
        ("a", "Linear"), ("a.act", "GELU"), ("b", "Linear"), ("b.act", "GELU"), ("b.act", "GELU")
    )
    assert [(row.name, row.modules, row.us, row.ops) for row in class_rows(report)] == [
        ("GELU", 2, 300.0, 3), ("Linear", 2, 200.0, 2),
    ]  # fmt: skip


def test_bytes_add_up_to_those_of_the_run():
    report = rich_report()
    rows = module_tree(report)
    assert sum(row.bytes for row in rows) == sum(row.bytes for row in class_rows(report))
    size = 2 * 256 * 3072 * 4
    # the first chain, op by op: distinct tensors read, and the result
    reads = [1, 1, 2, 2, 2, 1, 2, 2]
    first = with_modules(*[("m", "M")] * 8)
    assert module_tree(first)[0].bytes == size * (sum(reads) + 8)


def test_a_bottomless_path_is_cut():
    report = with_modules((".".join("a" * 500_000), "Deep"))
    depth, rows = 0, module_tree(report)
    while rows:
        depth, rows = depth + 1, rows[0].children
    assert depth == MAX_DEPTH
    assert len(render_html(report)) < 200_000


def test_device_times_count_where_there_are_any():
    report = with_modules(("a", "A"), ("b", "B"))
    times = (
        OpTime(node="n0", host_us=90.0, device_us=5.0),
        OpTime(node="n1", host_us=10.0, device_us=7.0),
    )
    capture = dataclasses.replace(report.capture, times=times)
    rows = module_tree(dataclasses.replace(report, capture=capture))
    assert [row.us for row in rows] == [5.0, 7.0]


def test_the_page_shows_terms_textbook_measured_modules_and_ceilings():
    report = rich_report()
    text = render_html(report)
    for part in (
        "Textbook, N(M + C) → M + NC",
        "moving the bytes at the measured bandwidth",
        "Predicted and measured",
        "0.952 × the prediction",
        "Whole call before",
        "By module",
        "of dispatch",
        "14.0 GB/s at",
    ):
        assert part in text, part
    assert "By module" not in render_html(empty_report())
    assert "Predicted and measured" not in render_html(empty_report())


def test_term_and_ceiling_words():
    report = rich_report()
    estimate = report.findings[0].estimate
    assert [(name, us) for name, us, _ in term_rows(estimate)] == [
        ("memory", "3.84 ms"), ("launch", "960 µs"),
    ]  # fmt: skip
    assert textbook_text(estimate) == "25.9 ms → 4.32 ms (6.00 ×)"
    assert textbook_text(dataclasses.replace(estimate, textbook_before_us=0.0)) == ""
    strange = dataclasses.replace(estimate, terms=(("a new term", 2.0),))
    assert term_rows(strange) == (("a new term", "2.00 µs", ""),)
    rows = dict(ceiling_rows(report))
    assert rows["Ceilings"].endswith("measured here") or "measured here at" in rows["Ceilings"]
    assert ceiling_rows(dataclasses.replace(report, capture=empty_report().capture)) in (
        (), ceiling_rows(empty_report()),
    )  # fmt: skip
    with pytest.raises(KeyError):
        rows["Fresh memory"]  # not measured in the fixture: not told
