"""The widget panel (``%%fuse_profile --panel``), its tabs and buttons clicked in the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chromium import screenshot
from scenarios import DIGEST, SETUP
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
    panel.get_by_role("button", name="Apply").first.click()
    panel.get_by_text("in place").first.wait_for(state="visible")
    screenshot(notebook.page, "widget-applied")
    assert notebook.run(2) == digest
    panel.get_by_role("button", name="Undo").first.click()
    panel.get_by_text("in place").first.wait_for(state="hidden")
    assert notebook.run(2) == digest
    assert serious(axe.run(notebook.page, context=".fusion-advisor-panel")) == []
