"""Several notebooks, tabs and kernels, copies with equal cell ids, cells out of view, reopening."""

from __future__ import annotations

import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from advisor_page import AdvisorPage
from chromium import screenshot
from lab_server import Server
from notebook_page import NotebookPage
from scenarios import CHAIN, DIGEST, SETUP, profile

pytestmark = [pytest.mark.essential, pytest.mark.slow]
Opener = Callable[..., Any]


def test_a_copy_with_equal_cell_ids_stays_unmarked(
    opened: Opener, server: Server, context: Any
) -> None:
    notebook = opened(SETUP, CHAIN, DIGEST, name="first.ipynb")
    (server.notebooks / "copy.ipynb").write_bytes((server.notebooks / "first.ipynb").read_bytes())
    notebook.run(0)
    advisor = profile(notebook)
    # In the same page, beside the first.
    notebook.page.evaluate(
        "() => jupyterapp.commands.execute('docmanager:open', "
        "{path: 'copy.ipynb', options: {mode: 'split-right'}})"
    )
    notebook.page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.context.path === 'copy.ipynb'"
    )
    notebook.wait_until_idle()
    screenshot(notebook.page, "copied-notebook")
    assert notebook.page.locator(".fusion-mark:visible").count() == advisor_pieces(notebook)
    # Each has its own: the copy is profiled, and the first keeps its mark.
    notebook.run(0)
    notebook.run(1)
    notebook.page.wait_for_function(
        "() => document.querySelectorAll('.cm-lint-marker').length == 2"
    )
    advisor.panel()
    assert advisor.panel().locator(".fusion-notebook").count() == 2
    screenshot(notebook.page, "two-notebooks")


def advisor_pieces(notebook: NotebookPage) -> int:
    """How many pieces the marks of one cell are drawn in: syntax colours split them."""
    return int(
        notebook.page.evaluate(
            "() => Math.max(...[...document.querySelectorAll('.jp-NotebookPanel')]"
            ".map(panel => panel.querySelectorAll('.fusion-mark').length))"
        )
    )


def test_two_tabs_on_one_notebook(opened: Opener, server: Server, context: Any) -> None:
    first = opened(SETUP, CHAIN, DIGEST, name="tabs.ipynb")
    first.run(0)
    second = opened(name="tabs.ipynb")
    profile(first)
    other = AdvisorPage(second)
    other.wait_for_mark(1)
    # A tab that comes later, or is loaded again, asks for what there is.
    second.page.reload()
    second.wait_until_idle()
    other.wait_for_mark(1)


def test_a_cell_out_of_view(opened: Opener) -> None:
    notebook = opened(SETUP, CHAIN, *[f"{n}\n" * 30 for n in range(40)], name="long.ipynb")
    notebook.page.evaluate(
        "() => { jupyterapp.shell.currentWidget.content.notebookConfig = {"
        "...jupyterapp.shell.currentWidget.content.notebookConfig, windowingMode: 'full'}; }"
    )
    notebook.run(0)
    notebook.run(1)
    notebook.cell(41)
    advisor = AdvisorPage(notebook)
    notebook.page.wait_for_function("() => document.querySelectorAll('.fusion-mark').length === 0")
    advisor.finding("F1", "open").get_by_role("button", name="Fuse in place").click()
    advisor.preview()
    advisor.press("Accept")
    advisor.finding("F1", "applied")
    assert "@cuda.jit" in notebook.text(1)
    advisor.finding("F1").locator(".fusion-jump")
    advisor.wait_for_no_mark(1)


def test_a_kernel_without_the_package_explains_itself(
    opened: Opener, server: Server, tmp_path: Path
) -> None:
    # A Python of its own, with the kernel's packages beside it but not ours.
    server.add_kernel("bare", "Bare Python", bare_python(tmp_path))
    notebook = opened("x = 1", "x + 1", name="bare.ipynb", kernel="bare")
    advisor = AdvisorPage(notebook)
    assert "Not loaded" in advisor.panel().inner_text()
    notebook.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
    notebook.page.evaluate(
        "() => { void jupyterapp.commands.execute('fusion-advisor:profile-cell'); }"
    )
    dialog = notebook.page.locator(".jp-Dialog")
    dialog.wait_for(state="visible")
    screenshot(notebook.page, "kernel-without-the-package")
    assert "pip install fusion-advisor" in dialog.inner_text()
    notebook.page.keyboard.press("Escape")
    assert notebook.texts() == ["x = 1", "x + 1"]
    assert notebook.run(1) == "NameError: name 'x' is not defined", "nothing was run"


def bare_python(folder: Path) -> str:
    """A Python that finds everything of this one, but not ``fusion_advisor``."""
    venv.create(folder / "bare", symlinks=True)
    packages = next((folder / "bare" / "lib").glob("python3*")) / "site-packages"
    paths = [path for path in sys.path if path.endswith("site-packages")]
    # Paths in a .pth file are searched, but .pth files in them (an editable install) are not run.
    (packages / "beside.pth").write_text("\n".join(paths), encoding="utf-8")
    return str(folder / "bare" / "bin" / "python")


def test_a_reopened_untrusted_notebook_shows_its_report(opened: Opener, server: Server) -> None:
    notebook = opened(SETUP, CHAIN, name="kept.ipynb")
    notebook.run(0)
    profile(notebook)
    notebook.save()
    saved = server.read("kept.ipynb")
    assert "Fusing 1 place" in str(saved.cells[1].outputs)
    # From somebody else: the same outputs under a name that this server never trusted.
    from nbformat import v4, write

    for cell in saved.cells:
        cell.id = v4.new_code_cell().id
    saved.cells[1].source += "\n# from somebody else"
    write(saved, server.notebooks / "untrusted.ipynb")
    reopened = opened(name="untrusted.ipynb")
    outputs = reopened.cell(1).locator(".jp-OutputArea")
    outputs.get_by_text("Fusing 1 place").first.wait_for(state="visible")
    screenshot(reopened.page, "reopened-untrusted")
    assert "false" in str(
        reopened.page.evaluate(
            "() => String(jupyterapp.shell.currentWidget.content.model.cells.get(1).trusted)"
        )
    )
    text = outputs.inner_text()
    assert "Memory traffic" in text and "F1" in text
    assert outputs.locator("table").count() >= 2
    # Old outputs are not findings of this session.
    assert AdvisorPage(reopened).findings().count() == 0
