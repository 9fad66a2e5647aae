"""Jobs beside a running cell, and the kernel's restart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chromium import screenshot
from lab_server import Server
from scenarios import CHAIN, DIGEST, SETUP, profile

pytestmark = [pytest.mark.essential, pytest.mark.slow]
Opener = Callable[..., Any]
# Runs until the test lets it end: nothing depends on how fast the machine is.
LONG = """import pathlib, time
print("running", flush=True)
while not pathlib.Path("{flag}").exists():
    time.sleep(0.05)
print("ran to its end")"""
FUNCTION = """def tail(x, w, b):
    return torch.relu(x * w + b) * 0.5 + x"""


def test_cancelling_leaves_a_running_cell_alone(opened: Opener, server: Server) -> None:
    notebook = opened(SETUP, CHAIN, LONG.format(flag="end-1"))
    notebook.run(0)
    advisor = profile(notebook)
    before = notebook.text(1)
    notebook.start(2)
    notebook.wait_for_output(2, "running")
    advisor.choose(1, "Fuse in place")
    cancel = notebook.page.get_by_role("button", name="Cancel the job")
    cancel.wait_for(state="visible")
    screenshot(notebook.page, "job-beside-a-running-cell")
    cancel.click()
    advisor.wait_for_notice("ancelled")
    assert notebook.output(2) == "running\n", "neither ended nor interrupted"
    (server.notebooks / "end-1").touch()
    notebook.wait_for_output(2, "ran to its end")
    assert notebook.output(2) == "running\nran to its end\n"
    assert notebook.text(1) == before
    # And the next job is not hurt by the one before it.
    advisor.choose(1, "Fuse in place")
    assert advisor.rungs()["CPU kernel"] == "passed"


def test_live_work_waits_for_the_running_cell_and_says_so(opened: Opener, server: Server) -> None:
    notebook = opened(
        SETUP, f"%%fuse_profile\n{FUNCTION}\ny = tail(x, w, b)", LONG.format(flag="end-2"), DIGEST
    )
    notebook.run(0)
    advisor = profile(notebook)
    digest = notebook.run(3)
    notebook.start(2)
    notebook.wait_for_output(2, "running")
    advisor.panel()
    advisor.choose(1, "Apply live")
    advisor.wait_for_notice("ueued behind the running cell")
    screenshot(notebook.page, "queued")
    assert advisor.finding("F1").get_attribute("data-state") == "open"
    (server.notebooks / "end-2").touch()
    notebook.wait_for_output(2, "ran to its end")
    advisor.finding("F1", "applied")
    assert notebook.run(3) == digest


def test_a_restart_clears_and_a_new_profile_marks_again(opened: Opener) -> None:
    notebook = opened(SETUP, CHAIN, DIGEST)
    notebook.run(0)
    advisor = profile(notebook)
    assert advisor.findings().count() >= 1
    notebook.restart()
    advisor.wait_for_no_mark(1)
    assert advisor.findings().count() == 0
    assert notebook.text(1) == CHAIN
    screenshot(notebook.page, "after-restart")
    notebook.run(0)
    profile(notebook)
