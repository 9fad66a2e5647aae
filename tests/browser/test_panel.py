"""The side panel, commands, settings and looks: by mouse, by keyboard, for a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from advisor_page import PANEL, AdvisorPage
from chromium import screenshot
from scenarios import CHAIN, DIGEST, SETUP, profile
from test_html_report import serious

pytestmark = [pytest.mark.essential, pytest.mark.slow]
Opener = Callable[..., Any]
SECOND = """%%fuse_profile
def gate(x, w):
    return torch.sigmoid(x * w) * x * 0.5 + w
z = gate(x, w)"""
THEME = "() => jupyterapp.commands.execute('apputils:change-theme', {theme: '%s'})"


def two_findings(opened: Opener) -> tuple[Any, AdvisorPage]:
    """A notebook with a finding in cell 1 and one in cell 3."""
    notebook = opened(SETUP, CHAIN, DIGEST, SECOND)
    notebook.run(0)
    notebook.run(1)
    advisor = profile(notebook, 3)
    advisor.wait_for_mark(1)
    return notebook, advisor


def test_by_mouse(opened: Opener) -> None:
    notebook, advisor = two_findings(opened)
    panel = advisor.panel()
    assert advisor.findings().count() == 2
    assert "Saves" in panel.inner_text()
    screenshot(notebook.page, "panel")
    panel.get_by_role("searchbox").fill("sigmoid")
    assert advisor.findings().count() == 1
    notebook.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    advisor.findings().first.locator(".fusion-jump").click()
    assert active_cell(notebook) == 3
    panel.get_by_role("searchbox").fill("nothing is called so")
    assert advisor.findings().count() == 0
    panel.get_by_role("searchbox").fill("")
    advisor.findings().last.get_by_role("button", name="Explain").click()
    notebook.page.get_by_text("Why it matters").first.wait_for(state="visible")
    screenshot(notebook.page, "explain")


def test_by_keyboard_alone(opened: Opener) -> None:
    notebook, advisor = two_findings(opened)
    panel = advisor.panel()
    panel.get_by_role("searchbox").focus()
    press = notebook.page.keyboard.press
    press("Tab")
    order = []
    for _ in range(30):
        order.append(
            notebook.page.evaluate(
                "() => document.activeElement.innerText || document.activeElement.tagName"
            )
        )
        if order[-1].startswith("Fuse in place"):
            break
        press("Tab")
    assert order[-1].startswith("Fuse in place"), order
    press("Enter")
    advisor.preview()
    # The focus goes to the button that does not edit, and stays in the dialog.
    notebook.page.wait_for_function(
        "() => document.activeElement.matches('.jp-Dialog .jp-Dialog-button.jp-mod-reject')"
    )
    press("Tab")
    assert notebook.page.evaluate("() => !!document.activeElement.closest('.jp-Dialog')")
    press("Escape")
    notebook.page.locator(".jp-Dialog").wait_for(state="detached")
    assert notebook.text(1) == CHAIN and notebook.text(3) == SECOND


def test_commands_and_settings(opened: Opener) -> None:
    notebook, advisor = two_findings(opened)
    commands = notebook.page.evaluate(
        "() => jupyterapp.commands.listCommands().filter(c => c.startsWith('fusion-advisor:'))"
    )
    labels = notebook.page.evaluate("ids => ids.map(id => jupyterapp.commands.label(id))", commands)
    print(f"\n{dict(zip(commands, labels, strict=True))}")
    for wanted in ("Profile", "Next", "Previous", "Fuse", "Undo", "Report", "Export"):
        assert [label for label in labels if wanted.lower() in label.lower()], (wanted, labels)
    # Marks off and on again.
    change = "on => jupyterapp.commands.execute('fusion-advisor:toggle-marks')"
    notebook.page.evaluate(change)
    advisor.wait_for_no_mark(1)
    notebook.page.evaluate(change)
    advisor.wait_for_mark(1)
    notebook.page.keyboard.press("Control+Shift+c")
    notebook.page.locator(".lm-CommandPalette-input, .jp-modal-command-palette input").first.fill(
        "fusion advisor"
    )
    notebook.page.locator(".lm-CommandPalette-item").first.wait_for(state="visible")
    screenshot(notebook.page, "palette")
    assert notebook.page.locator(".lm-CommandPalette-item").count() >= 6


def test_accessible_in_light_and_dark(opened: Opener) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    notebook, advisor = two_findings(opened)
    advisor.panel()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.page.evaluate(THEME % theme)
        notebook.page.wait_for_function(
            "theme => document.body.dataset.jpThemeName === theme", arg=theme
        )
        advisor.tooltip(3)
        screenshot(notebook.page, f"panel-{theme.split()[-1].lower()}")
        assert serious(axe.run(notebook.page, context=PANEL)) == []
        assert serious(axe.run(notebook.page, context=".cm-tooltip-lint")) == []
    advisor.choose(3, "Fuse in place")
    advisor.preview()
    assert serious(axe.run(notebook.page, context=".jp-Dialog .fusion-proposal")) == []


HOSTILE_CELL = """%%fuse_profile
label = "</script><img src=x onerror=alert(1)> `${1}` \\x1b[31m \\u202e"
def tail(x, w, b):
    return torch.relu(x * w + b) * 0.5 + x  # </script><img src=x onerror=alert(2)>
y = (tail(x, w, b), "</script><img src=x onerror=alert(3)>")[0]"""


def test_hostile_text_is_text(opened: Opener) -> None:
    notebook = opened(
        SETUP, HOSTILE_CELL, name="</script><img src=x onerror=alert(4)>.ipynb".replace("/", "∕")
    )
    notebook.run(0)
    advisor = profile(notebook)
    advisor.panel()
    tooltip = advisor.tooltip(1)
    screenshot(notebook.page, "hostile")
    assert notebook.page.locator("img[src='x']").count() == 0
    assert tooltip.locator("img").count() == 0


def active_cell(notebook: Any) -> int:
    return int(
        notebook.page.evaluate("() => jupyterapp.shell.currentWidget.content.activeCellIndex")
    )
