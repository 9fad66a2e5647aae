"""A notebook open in JupyterLab or Notebook 7, as a person works in it."""

from __future__ import annotations

import re
from typing import Any

from chromium import TIMEOUT_MS, Watched
from lab_server import Server

# What the page's own state says; the extension itself is only ever looked at and clicked.
PANEL = "jupyterapp.shell.currentWidget"
IDLE = f"""() => {{
    if (!window.jupyterapp || !{PANEL}) return false;
    const context = {PANEL}.sessionContext;
    return !!context && !!context.session && !!context.session.kernel
        && context.session.kernel.status === 'idle' && !!{PANEL}.content.model;
}}"""
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class NotebookPage:
    """One tab with one notebook."""

    def __init__(self, page: Any, server: Server, notebook: str, watched: Watched) -> None:
        self.page = page
        self.server = server
        self.notebook = notebook
        self.watched = watched

    @classmethod
    def open(cls, context: Any, server: Server, notebook: str) -> NotebookPage:
        """Open it in a new tab, and wait until its kernel is idle."""
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        watched = Watched()
        watched.watch(page)
        page.goto(server.address(notebook))
        opened = cls(page, server, notebook, watched)
        opened.wait_until_idle()
        return opened

    def wait_until_idle(self) -> None:
        self.page.wait_for_function(IDLE)

    # -- cells -----------------------------------------------------------------------------

    def text(self, index: int) -> str:
        """The text of a cell, byte for byte."""
        return str(
            self.page.evaluate(
                f"i => {PANEL}.content.model.sharedModel.cells[i].getSource()", index
            )
        )

    def texts(self) -> list[str]:
        return list(
            self.page.evaluate(
                f"() => {PANEL}.content.model.sharedModel.cells.map(cell => cell.getSource())"
            )
        )

    def set_text(self, index: int, text: str) -> None:
        """Type another text over the whole cell."""
        self.page.evaluate(
            f"([i, text]) => {PANEL}.content.model.sharedModel.cells[i].setSource(text)",
            [index, text],
        )

    def cell(self, index: int) -> Any:
        """The cell on the page, brought into view."""
        self.page.evaluate(
            f"async i => {{ const nb = {PANEL}.content; nb.activeCellIndex = i;"
            " await nb.scrollToItem(i, 'smart'); }",
            index,
        )
        return (
            self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")
            .locator("visible=true")
            .first
        )

    def editor(self, index: int) -> Any:
        return self.cell(index).locator(".cm-content").first

    def output(self, index: int) -> str:
        """All that a cell printed, displayed or raised, as text."""
        outputs = self.page.evaluate(
            f"i => {PANEL}.content.model.sharedModel.cells[i].getOutputs()", index
        )
        texts = []
        for output in outputs:
            if output["output_type"] == "stream":
                texts.append(joined(output["text"]))
            elif output["output_type"] == "error":
                texts.append(f"{output['ename']}: {output['evalue']}")
            else:
                texts.append(joined(output["data"].get("text/plain", "")))
        return ANSI.sub("", "\n".join(texts))

    def wait_for_output(self, index: int, text: str) -> None:
        """Until a cell has printed ``text``: the kernel's status is no sign of a cell's end, since
        a message that is served beside a running cell makes it idle too.
        """
        self.page.wait_for_function(
            f"([i, text]) => JSON.stringify({PANEL}.content.model.sharedModel.cells[i]"
            ".getOutputs()).includes(text)",
            arg=[index, text],
        )

    # -- running ---------------------------------------------------------------------------

    def start(self, index: int) -> None:
        """Begin to run a cell; does not wait for it."""
        self.page.evaluate(
            f"i => {{ {PANEL}.content.activeCellIndex = i;"
            " void jupyterapp.commands.execute('notebook:run-cell'); }",
            index,
        )

    def run(self, index: int) -> str:
        """Run a cell to its end; its output."""
        self.page.evaluate(
            f"async i => {{ {PANEL}.content.activeCellIndex = i;"
            " await jupyterapp.commands.execute('notebook:run-cell'); }",
            index,
        )
        self.wait_until_idle()
        return self.output(index)

    def run_all(self) -> None:
        self.page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
        self.wait_until_idle()

    def restart(self, *, and_run_all: bool = False) -> None:
        """Restart the kernel through the menu's command and its question."""
        command = "notebook:restart-run-all" if and_run_all else "notebook:restart-kernel"
        self.page.evaluate(
            f"() => {{ window.restarted = jupyterapp.commands.execute('{command}'); }}"
        )
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.page.evaluate("() => window.restarted")
        self.wait_until_idle()

    def ask_kernel(self, expression: str) -> str:
        """``repr`` of an expression in the kernel, without touching the notebook."""
        answer = self.page.evaluate(
            f"""async expression => {{
                const kernel = {PANEL}.sessionContext.session.kernel;
                const future = kernel.requestExecute({{
                    code: '', silent: true, store_history: false,
                    user_expressions: {{ value: expression }},
                }});
                const reply = await future.done;
                return reply.content.user_expressions.value;
            }}""",
            expression,
        )
        assert answer["status"] == "ok", answer
        return str(answer["data"]["text/plain"])

    def command(self, name: str) -> Any:
        return self.page.evaluate("name => jupyterapp.commands.execute(name)", name)

    def save(self) -> None:
        self.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")

    # -- what went wrong -------------------------------------------------------------------

    def own_errors(self) -> list[str]:
        """Errors on the console that name us: in their text, their address or their stack."""
        return [
            error
            for error in self.watched.errors
            if re.search(r"fusion[-_ ]?advisor", error, re.IGNORECASE)
        ]


def joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
