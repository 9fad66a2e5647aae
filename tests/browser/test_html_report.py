"""The exported page in a real browser: offline, silent, accessible, quick with 1,000 findings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chromium import Watched, screenshot
from report_fixture import HOSTILE, rich_report

from fusion_advisor.records import Report
from fusion_advisor.report import render_html

pytestmark = pytest.mark.essential
OPENING_SECONDS = 3.0


@pytest.fixture
def shown(context: Any, tmp_path: Path) -> Callable[..., tuple[Any, Watched, float]]:
    """Opens a report offline in light or dark, and says how long that took."""

    def show(report: Report, scheme: str = "light") -> tuple[Any, Watched, float]:
        file = tmp_path / "report.html"
        file.write_text(render_html(report), encoding="utf-8")
        context.set_offline(True)
        page = context.new_page()
        page.emulate_media(color_scheme=scheme)
        watched = Watched()
        watched.watch(page)
        begun = time.perf_counter()
        page.goto(file.as_uri(), wait_until="load")
        # Laid out and painted, not only parsed.
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        return page, watched, time.perf_counter() - begun

    return show


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_offline_silent_and_accessible(shown: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page, watched, _ = shown(rich_report(), scheme)
    screenshot(page, f"html-report-{scheme}")
    assert watched.errors == []
    assert all(url.startswith(("file:", "data:")) for url in watched.requests)
    # What is folded away or not yet laid out is looked at too.
    page.evaluate("() => document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.add_style_tag(content="article { content-visibility: visible !important }")
    results = axe.Axe().run(page)
    assert serious(results) == []


def serious(results: Any) -> list[str]:
    """Violations that axe calls serious or critical, with where they are."""
    return [
        f"{found['id']}: {node['target']} {node['failureSummary']}"
        for found in results.response["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


def test_hostile_names_are_text(shown: Any) -> None:
    report = rich_report()
    long = dataclasses.replace(
        report, notes=(HOSTILE, "x" * 1_000_000, "`</style>` ${1} {{ }} <img src=x onerror=boom()>")
    )
    page, watched, _ = shown(long)
    assert watched.errors == []
    assert page.evaluate("() => document.querySelectorAll('img[src=x], script').length") == (
        page.evaluate("() => document.querySelectorAll('script').length")
    )
    assert "<script>alert('x')</script>" in page.inner_text("body")
    width = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, "a long name must not stretch the page"


def test_a_thousand_findings_open_quickly(shown: Any) -> None:
    report = rich_report()
    findings = tuple(
        dataclasses.replace(report.findings[index % 3], id=f"F{index + 1}")
        for index in range(1_000)
    )
    page, watched, seconds = shown(dataclasses.replace(report, findings=findings))
    print(f"\n1,000 findings: {seconds:.2f} s to load and paint")
    assert watched.errors == []
    assert "F1000" in page.content()
    assert seconds <= OPENING_SECONDS
