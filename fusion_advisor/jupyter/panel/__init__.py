"""The widget panel: ``advice.widget()`` and ``%fuse_profile --panel``.  Widgets come when shown."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fusion_advisor.errors import MissingDependencyError, UsageError
from fusion_advisor.jupyter.progress import show

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice
    from fusion_advisor.jupyter.cells import Cell

INSTALL = "the panel needs ipywidgets 8: pip install 'ipywidgets>=8'"
NO_KERNEL = (
    "the panel is made of widgets, and there is no notebook kernel here: print(advice) shows the "
    "report, advice.findings the table, and advice.export('report.html') writes a page"
)


def check_possible() -> Any:
    """The shell that widgets can be shown from; an error that says what to use instead."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        raise UsageError(NO_KERNEL)
    try:
        import ipywidgets
    except ImportError as error:
        raise MissingDependencyError(INSTALL) from error
    if int(ipywidgets.__version__.split(".")[0]) < 8:
        raise MissingDependencyError(f"{INSTALL} (here is {ipywidgets.__version__})")
    return shell


def open_panel(advice: Advice) -> Any:
    """A panel for ``advice``, made but not yet shown."""
    shell = check_possible()
    from fusion_advisor.jupyter.jobs import runner_of
    from fusion_advisor.jupyter.panel.panel import Panel

    return Panel(advice, partial(runner_of, shell))


class ShownPanels:
    """Panels that magics have shown, by the cell they stand under.

    A front end clears a cell's output when the cell runs again: the panel there is then closed,
    or its widgets, and with them its advice and tensors, would stay until the kernel ends.
    """

    def __init__(self) -> None:
        self._by_cell: dict[str, tuple[int | None, list[Any]]] = {}

    def show(self, advice: Advice, cell: Cell | None) -> None:
        """Show a new panel as an output of its own, below the report."""
        made = open_panel(advice)
        show(made.bundle())
        if cell is None or cell.cell_id is None:
            return  # a front end that does not name its cells: nothing tells which one ran again
        number, panels = self._by_cell.get(cell.cell_id, (None, []))
        if number != cell.execution_count:
            for old in panels:
                old.close()
            panels = []
        self._by_cell[cell.cell_id] = (cell.execution_count, [*panels, made])


__all__ = ["ShownPanels", "check_possible", "open_panel"]
