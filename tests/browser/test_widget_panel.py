"""The widget panel (``%%fuse_profile --panel``), its tabs and buttons clicked in the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chromium import TIMEOUT_MS, screenshot
from scenarios import DIGEST, FUSED_CALLS, SETUP
from test_html_report import serious

pytestmark = [pytest.mark.essential, pytest.mark.slow]
Opener = Callable[..., Any]
CELL = """%%fuse_profile --panel
def tail(x, w, b):
    return torch.relu(x * w + b) * 0.5 + x
y = tail(x, w, b)"""
AGAIN = "y = tail(x, w, b)\n" + DIGEST
TABS = ("Summary", "Findings", "Roofline", "Ops", "Traffic", "Kernel", "Why not")


def test_validate_apply_and_undo_by_mouse(opened: Opener) -> None:
    from playwright.sync_api import expect

    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    notebook = opened(SETUP, CELL, AGAIN)
    notebook.run(0)
    notebook.run(1)
    digest = notebook.run(2)
    panel = notebook.cell(1).locator(".fusion-advisor-panel").first
    panel.wait_for(state="visible")
    assert panel.get_by_role("tab").all_inner_texts() == list(TABS)
    for tab in TABS:
        panel.get_by_role("tab", name=tab, exact=True).click()
        panel.scroll_into_view_if_needed()
        screenshot(notebook.page, f"widget-{tab.lower().replace(' ', '-')}")
    panel.get_by_role("tab", name="Findings", exact=True).click()
    apply, undo = (panel.get_by_role("button", name=name, exact=True) for name in ("Apply", "Undo"))
    assert not undo.is_enabled()
    apply.click()
    expect(undo).to_be_enabled(timeout=TIMEOUT_MS)
    screenshot(notebook.page, "widget-applied")
    assert not apply.is_enabled()
    calls = int(notebook.ask_kernel(FUSED_CALLS))
    assert notebook.run(2) == digest
    assert int(notebook.ask_kernel(FUSED_CALLS)) == calls + 1
    undo.click()
    expect(apply).to_be_enabled(timeout=TIMEOUT_MS)
    assert notebook.run(2) == digest
    assert int(notebook.ask_kernel(FUSED_CALLS)) <= calls + 1
    assert serious(axe.run(notebook.page, context=".fusion-advisor-panel")) == []
