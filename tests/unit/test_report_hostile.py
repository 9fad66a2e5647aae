"""Hostile text in every place of a report breaks no format, and a million characters are cut."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_fixture import rich_report
from report_formats import HOSTILE_TEXTS, Tags, csv_rows, hostile_report, strict_json
from sarif_kit.validate import validation_errors

from fusion_advisor.records import Report
from fusion_advisor.report.files import FORMATS, render
from fusion_advisor.report.markdown import MAX_CHARACTERS, markdown_text
from fusion_advisor.report.notebook import notebook_html
from fusion_advisor.report.sarif import SCHEMA
from fusion_advisor.serialize import load_report

pytestmark = pytest.mark.essential
# What a terminal, browser or editor acts on, besides new lines and tabs.
ACTIVE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@functools.cache
def plain_tags() -> tuple[int, frozenset[str]]:
    page = Tags(render(rich_report(), "html"))
    return page.tags.count("script"), frozenset(page.attributes)


def check_text(text: str) -> None:
    assert not ACTIVE.search(text)
    text.encode()  # no lone surrogate


def check_html(text: str) -> None:
    check_text(text)
    page = Tags(text)
    scripts, attributes = plain_tags()
    assert page.tags.count("script") == scripts
    assert page.attributes <= attributes
    assert "img" not in page.tags


GFM = MarkdownIt("gfm-like", {"html": True, "linkify": False})
AUTOLINK = re.compile(r"\b(https?|ftp)://|\bwww\.|[\w.+-]@[\w-]", re.I)  # read before references


def check_markdown(text: str) -> None:
    check_text(text)
    assert len(text) <= MAX_CHARACTERS
    html = GFM.render(text)
    assert not AUTOLINK.search(re.sub(r"^(`{3,})python\n.*?^\1$", "", text, flags=re.S | re.M))
    page = Tags(html)
    allowed = {
        "h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
        "strong", "ul", "li", "pre", "code",
    }  # fmt: skip
    assert set(page.tags) <= allowed, set(page.tags) - allowed
    assert page.attributes <= {"class"}  # of a code block's language
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.S)
    assert {len(re.findall("<t[hd]", row)) for row in rows} <= {2, 3, 4, 5, 7, 8}
    outside = re.sub(r"<pre>.*?</pre>", "", html, flags=re.S)
    prose = "".join(Tags(outside).text)
    assert not re.search(r"(?<![\w/])[@#]\w", prose)  # a mention or an issue's number


def check_csv(text: str) -> None:
    check_text(text)
    for row in csv_rows(text):
        for name, cell in row.items():
            numeric = re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", cell)
            assert numeric or not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d")), name
            assert len(cell) <= 20_001


def check_sarif(text: str) -> None:
    log = strict_json(text)
    assert validation_errors(log) == []
    assert log["$schema"] == SCHEMA
    for shown in strings(log):
        check_text(shown)


def strings(value: Any) -> Iterator[str]:
    """Every string of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)


def check_trace(text: str) -> None:
    for event in strict_json(text)["traceEvents"]:
        assert len(event["name"]) <= 130
        check_text(event["name"])


def check_json(text: str) -> None:
    assert text.isascii()
    strict_json(text)


CHECKS = {
    "text": check_text,
    "html": check_html,
    "markdown": check_markdown,
    "csv": check_csv,
    "ops-csv": check_csv,
    "sarif": check_sarif,
    "trace": check_trace,
    "json": check_json,
}


def check_all(report: Report, longest: int) -> None:
    assert set(CHECKS) == set(FORMATS)
    for name, check in CHECKS.items():
        text = render(report, name)
        check(text)
        assert name == "json" or len(text) <= longest, name
    assert load_report(render(report, "json")) == report


@pytest.mark.parametrize("name", HOSTILE_TEXTS)
def test_hostile_text_everywhere(name):
    report = hostile_report(HOSTILE_TEXTS[name])
    check_all(report, longest=1_500_000)
    display = notebook_html(report, plots=False)
    check_text(display)
    assert not {"script", "img", "style"} & set(Tags(display).tags)


def test_a_million_characters_are_whole_in_json_alone():
    report = hostile_report(HOSTILE_TEXTS["million"])
    assert load_report(render(report, "json")) == report
    for name in FORMATS:
        assert name == "json" or "n" * 5_000 not in render(report, name), name


@settings(max_examples=25, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60))
def test_any_text_everywhere(text):
    check_all(hostile_report(text), longest=600_000)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="\\`*_{}[]<>()#+-.!|~@&$^:/= wxa1\n\"'", max_size=24))
def test_markdown_text_is_text(text):
    """In prose, a heading and a table cell: what comes out is the words, nothing else."""
    shown = markdown_text(text)
    assert not AUTOLINK.search(shown)
    html = GFM.render(f"## {shown}\n\nx {shown}\n\n| a | b |\n|---|---|\n| {shown} | {shown} |\n")
    page = Tags(html)
    assert set(page.tags) <= {"h2", "p", "table", "thead", "tbody", "tr", "th", "td"}
    words = " ".join("".join(page.text).replace("\u200b", "").split())
    plain = " ".join(text.split())
    assert words == " ".join(f"{plain} x {plain} a b {plain} {plain}".split())
