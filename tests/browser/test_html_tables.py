"""The page's tables: they sort and filter with scripts, and are complete without."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from chromium import Watched, screenshot
from report_fixture import empty_report, rich_report
from test_html_report import serious

from fusion_advisor.records import Report
from fusion_advisor.report import render_html

pytestmark = pytest.mark.essential


def twelve_findings() -> Report:
    """F1 to F12, best first, the tenth ignored; every third in a library."""
    report = rich_report()
    findings = []
    for place in range(12):
        one = report.findings[place % 3]
        estimate = dataclasses.replace(
            one.estimate, saved_mid_us=12_000.0 - 1_000 * place, bytes_before=2**20 * (place + 2),
            bytes_after=2**20,
        )  # fmt: skip
        findings.append(
            dataclasses.replace(
                one, id=f"F{place + 1}", estimate=estimate, share=0.12 - 0.01 * place,
                ignored=place == 9,
            )
        )  # fmt: skip
    return dataclasses.replace(report, findings=tuple(findings))


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """Opens a report, with or without scripts."""
    contexts = []

    def show(report: Report, *, scripts: bool = True, width: int = 1200) -> tuple[Any, Watched]:
        context = browser.new_context(
            java_script_enabled=scripts, viewport={"width": width, "height": 900}
        )
        contexts.append(context)
        file = tmp_path / "report.html"
        file.write_text(render_html(report), encoding="utf-8")
        page, watched = context.new_page(), Watched()
        watched.watch(page)
        page.goto(file.as_uri(), wait_until="load")
        return page, watched

    yield show
    for context in contexts:
        context.close()


def order(page: Any) -> list[str]:
    return [
        text.split()[0] for text in page.locator("#ranked tbody tr:visible th").all_inner_texts()
    ]


IN_ORDER = [f"F{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 10)]


def test_sorting_by_a_column_and_back(opened: Any) -> None:
    page, watched = opened(twelve_findings())
    assert order(page) == IN_ORDER  # the ignored one last
    by_bytes = page.get_by_role("button", name="Memory traffic", exact=True).first
    by_bytes.click()
    assert order(page) == [f"F{number}" for number in range(12, 0, -1)]  # most saved first
    assert by_bytes.locator("..").get_attribute("aria-sort") == "descending"
    by_bytes.press("Enter")
    assert order(page) == [f"F{number}" for number in range(1, 13)]
    assert page.locator("#ranked th[aria-sort]").count() == 1
    page.get_by_role("button", name="Finding", exact=True).click()
    assert order(page) == IN_ORDER  # by rank, as numbers: F2 before F11
    assert watched.errors == []


def test_filtering_narrows_table_and_evidence(opened: Any) -> None:
    page, watched = opened(twelve_findings())
    field = page.get_by_label("Filter by op, place, rule or state")
    field.fill("installed PACKAGE")
    assert order(page) == ["F2", "F5", "F8", "F11"]
    assert page.locator("#ranked").locator("xpath=../..").locator(".shown").inner_text() == (
        "4 of 12 shown"
    )
    assert page.locator("article:visible").count() == 4
    field.fill("")
    assert order(page) == IN_ORDER
    assert page.locator("article:visible").count() == 11  # the ignored one is folded away
    assert watched.errors == []


def test_without_scripts_everything_is_there(opened: Any) -> None:
    page, _ = opened(twelve_findings(), scripts=False)
    assert order(page) == IN_ORDER
    assert page.locator(".filter:visible").count() == 0
    assert page.locator("th button").count() == 0
    page.locator("summary", has_text="Their evidence").click()
    page.locator("#F10").wait_for(state="visible")
    names = page.locator(".tree .module b:visible")
    assert names.all_inner_texts() == ["transformer", "h", "0", "outside any module"]
    names.nth(2).click()
    assert names.all_inner_texts() == [
        "transformer", "h", "0", "mlp", "outside any module",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_accessible_and_never_wider_than_the_window(opened: Any, scheme: str, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page, watched = opened(twelve_findings(), width=width)
    page.emulate_media(color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.add_style_tag(content="article { content-visibility: visible !important }")
    screenshot(page, f"html-tables-{scheme}-{width}")
    assert serious(axe.Axe().run(page)) == []
    assert page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert watched.errors == []


def test_nothing_to_do_has_a_short_heading(opened: Any) -> None:
    page, watched = opened(empty_report())
    assert page.locator("h1").inner_text() == "Nothing worth fusing"
    assert "all time is in matrix products" in page.locator("header .lead").inner_text()
    assert watched.errors == []


def test_many_findings_are_listed_in_part_and_all_can_be_had(opened: Any) -> None:
    report = twelve_findings()
    findings = tuple(
        dataclasses.replace(
            report.findings[0],
            id=f"F{place + 1}",
            title=f"the {place + 1}st",
            share=1 / (place + 1),
        )
        for place in range(130)
    )
    many = dataclasses.replace(report, findings=findings)
    for scripts in (True, False):
        page, watched = opened(many, scripts=scripts)
        assert len(order(page)) == 100
        page.get_by_label("Show all 130 findings").check()
        assert len(order(page)) == 130
        page.get_by_label("Show all 130 findings").uncheck()
        assert watched.errors == []
        assert page.locator("svg.flow").count() == 50
        assert page.locator("article").count() == 130
    page, _ = opened(many)
    share = page.get_by_role("button", name="Share", exact=True)
    share.click()
    share.click()  # least first: the last ones come to the front
    assert order(page) == [f"F{number}" for number in range(130, 30, -1)]
    page.get_by_label("Filter by op, place, rule or state").fill("the 7st")
    assert order(page) == ["F7"]  # though it stands among those that are not listed
