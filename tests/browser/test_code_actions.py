"""From the magic to the kernel in the cell: mark, tooltip, preview, Accept, one undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from advisor_page import AdvisorPage
from chromium import screenshot
from scenarios import CHAIN, DIGEST, EXPRESSION, SETUP, mark_latency_ms, profile

pytestmark = [pytest.mark.essential, pytest.mark.slow]
Opener = Callable[..., Any]


def test_from_mark_to_kernel_and_back(opened: Opener) -> None:
    notebook = opened(SETUP, CHAIN, DIGEST)
    assert notebook.page.locator(".cm-gutter-lint").count() == 0
    notebook.run(0)
    print(f"\nmark shown {mark_latency_ms(notebook):.0f} ms after the report")
    advisor = AdvisorPage(notebook)
    assert advisor.marked_text(1) == EXPRESSION
    assert notebook.cell(1).locator(".cm-lint-marker").count() == 1
    assert notebook.cell(0).locator(".cm-gutter-lint").count() == 0
    tooltip = advisor.tooltip(1)
    screenshot(notebook.page, "mark-and-tooltip")
    said = tooltip.inner_text()
    assert "of the run" in said and "saves" in said and "safe" in said
    digest = notebook.run(2)
    original = notebook.text(1)

    # Looking changes nothing.
    advisor.choose(1, "Fuse in place")
    preview = advisor.preview()
    screenshot(notebook.page, "preview")
    rungs = advisor.rungs()
    assert rungs["CPU kernel"] == "passed"
    assert [name for name in rungs if "sm_" in name and rungs[name] == "passed"]
    assert rungs["CUDA kernel, run natively"] == "passed"
    assert "@cuda.jit" in preview.locator(".fusion-diff").inner_text()
    advisor.press("Cancel")
    assert notebook.text(1) == original

    # Accepting edits the one cell, in one step.
    advisor.choose(1, "Fuse in place")
    advisor.preview()
    advisor.press("Accept")
    advisor.wait_for_no_mark(1)
    fused = notebook.text(1)
    assert "@cuda.jit" in fused
    assert fused.splitlines()[-1].endswith("  # tail")
    assert EXPRESSION not in fused.splitlines()[-1]
    assert advisor.finding("F1", "applied")
    screenshot(notebook.page, "fused")
    notebook.run(1)
    assert notebook.run(2) == digest
    notebook.editor(1).click()
    notebook.page.keyboard.press("Control+z")
    assert notebook.text(1) == original

    # And it is what a person keeps: the notebook alone gives the same values.
    notebook.page.keyboard.press("Control+Shift+z")
    assert notebook.text(1) == fused
    notebook.restart(and_run_all=True)
    assert notebook.output(2) == digest


def test_a_changed_cell_is_not_edited(opened: Opener) -> None:
    notebook = opened(SETUP, CHAIN, DIGEST)
    notebook.run(0)
    advisor = profile(notebook)
    advisor.choose(1, "Fuse in place")
    advisor.preview()
    # As from another tab, while the preview is open.
    changed = CHAIN.replace("* 0.5", "* 0.25")
    notebook.set_text(1, changed)
    advisor.press("Accept")
    advisor.wait_for_notice("changed")
    screenshot(notebook.page, "stale-refused")
    advisor.press("Close")
    assert notebook.text(1) == changed
    advisor.wait_for_no_mark(1)
    assert advisor.finding("F1", "stale")


# The text of the CUDA kernel adds where the ops multiply.
WRONG_KERNELS = """
import dataclasses, hashlib
import fusion_advisor.kernels as kernels
right = kernels.generate
def wrong(*arguments, **options):
    kernel = right(*arguments, **options)
    text = kernel.text.replace("libdevice.fmul_rn(", "libdevice.fadd_rn(")
    assert text != kernel.text
    return dataclasses.replace(kernel, text=text, hash=hashlib.sha256(text.encode()).hexdigest())
kernels.generate = wrong
"""


def test_a_wrong_kernel_is_shown_and_nothing_is_edited(opened: Opener) -> None:
    notebook = opened(SETUP + WRONG_KERNELS, CHAIN, DIGEST)
    notebook.run(0)
    advisor = profile(notebook)
    before = notebook.texts()
    advisor.choose(1, "Fuse in place")
    preview = advisor.preview()
    screenshot(notebook.page, "wrong-kernel")
    assert "failed" in preview.locator(".fusion-verdict").inner_text()
    assert advisor.rungs()["CUDA kernel, run natively"] == "failed"
    assert notebook.page.locator(".jp-Dialog").get_by_role("button", name="Accept").count() == 0
    notebook.page.keyboard.press("Escape")
    assert notebook.texts() == before
    assert advisor.finding("F1", "open")


def test_ignoring_is_one_comment_and_one_undo(opened: Opener) -> None:
    notebook = opened(SETUP, CHAIN.replace("  # tail", ""))
    notebook.run(0)
    advisor = profile(notebook)
    original = notebook.text(1)
    advisor.choose(1, "Ignore")
    advisor.wait_for_no_mark(1)
    assert advisor.finding("F1", "ignored")
    text = notebook.text(1)
    assert text.startswith(original)
    assert text[len(original) :].startswith("  # fuse: ignore[FUS")
    notebook.editor(1).click()
    notebook.page.keyboard.press("Control+z")
    assert notebook.text(1) == original
    advisor.wait_for_mark(1)
