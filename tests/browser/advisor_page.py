"""The extension as a person sees it: marks, tooltip, preview, panel.  Looks and clicks only."""

from __future__ import annotations

from typing import Any

from notebook_page import NotebookPage

MARK = ".fusion-mark"
TOOLTIP = ".cm-tooltip-lint"
PREVIEW = ".jp-Dialog .fusion-proposal"
PANEL = "#fusion-advisor-panel"


class AdvisorPage:
    """What the extension shows around one notebook."""

    def __init__(self, notebook: NotebookPage) -> None:
        self.notebook = notebook
        self.page = notebook.page

    # -- marks -----------------------------------------------------------------------------

    def marks(self, index: int) -> Any:
        return self.notebook.cell(index).locator(MARK)

    def wait_for_mark(self, index: int) -> Any:
        mark = self.marks(index).first
        mark.wait_for(state="visible")
        return mark

    def wait_for_no_mark(self, index: int) -> None:
        self.marks(index).first.wait_for(state="detached")

    def marked_text(self, index: int) -> str:
        """The marked characters of a cell; a mark may be drawn in several pieces."""
        return "".join(self.marks(index).all_text_contents())

    def tooltip(self, index: int) -> Any:
        """Hover the mark until its tooltip is there."""
        self.page.mouse.move(1, 1)
        self.wait_for_mark(index).hover()
        tooltip = self.page.locator(TOOLTIP)
        tooltip.wait_for(state="visible")
        return tooltip

    def choose(self, index: int, action: str) -> None:
        """Click an action in the mark's tooltip."""
        self.tooltip(index).get_by_role("button", name=action).first.click()

    # -- preview ---------------------------------------------------------------------------

    def preview(self) -> Any:
        preview = self.page.locator(PREVIEW)
        preview.wait_for(state="visible")
        return preview

    def rungs(self) -> dict[str, str]:
        """Name to status of the rungs that the open preview lists."""
        rows = self.preview().locator(".fusion-rungs tbody tr")
        return {
            row.locator("th").inner_text(): str(row.get_attribute("data-status"))
            for row in rows.all()
        }

    def press(self, button: str) -> None:
        """A button of the dialog in front; waits until that dialog has gone."""
        dialog = self.page.locator(".jp-Dialog").last
        shown = dialog.element_handle()
        dialog.locator(".jp-Dialog-button", has_text=button).click()
        shown.wait_for_element_state("hidden")

    # -- panel -----------------------------------------------------------------------------

    def panel(self) -> Any:
        """The side panel, opened if it is not."""
        panel = self.page.locator(PANEL)
        if not panel.is_visible():
            self.page.evaluate(f"() => jupyterapp.shell.activateById('{PANEL[1:]}')")
            panel.wait_for(state="visible")
        return panel

    def findings(self) -> Any:
        return self.panel().locator(".fusion-finding")

    def finding(self, name: str, state: str | None = None) -> Any:
        """One finding in the panel, in ``state`` where given."""
        wanted = f"[data-state='{state}']" if state else ""
        item = self.panel().locator(f".fusion-finding[data-finding='{name}']{wanted}").first
        item.wait_for(state="visible")
        return item

    def wait_for_notice(self, text: str) -> None:
        """Until the page says ``text`` anywhere: panel, dialog or notification."""
        self.page.get_by_text(text).first.wait_for(state="visible")
