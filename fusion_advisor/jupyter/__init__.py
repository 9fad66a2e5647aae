"""The notebook door: ``%load_ext fusion_advisor`` calls :func:`load`.

Everything that loading puts into the shell (magics, hooks, completers, configuration) is
taken out by :func:`unload`.
"""

from __future__ import annotations

from typing import Any

from fusion_advisor import workers
from fusion_advisor.jupyter.magics import FuseMagics
from fusion_advisor.recorder.source import forget_cells

_loaded: dict[int, FuseMagics] = {}  # by shell, so that loading twice changes nothing
_unloaded: dict[int, FuseMagics] = {}  # in the cell that runs: %reload_ext unloads, then loads


def load(shell: Any) -> None:
    """Register the magics, their completion, the hook that knows which cell runs, and the comm."""
    if id(shell) not in _loaded:
        magics = FuseMagics(shell=shell, earlier=_unloaded.pop(id(shell), None))
        magics.install()
        workers.warm_up()  # ready by the time of the first profile
        _loaded[id(shell)] = magics


def unload(shell: Any) -> None:
    """Undo what is in place live, and take magics, completion, hooks and comm out again.

    Findings are kept until the running cell ends, for a reload.
    """
    magics = _loaded.pop(id(shell), None)
    if magics is None:
        return
    magics.uninstall()
    if magics.book.is_running:
        _keep_until_the_cell_ends(shell, magics)
    else:
        forget_cells()


def _keep_until_the_cell_ends(shell: Any, magics: FuseMagics) -> None:
    _unloaded[id(shell)] = magics

    def end(result: Any = None) -> None:
        shell.events.unregister("post_run_cell", end)
        if _unloaded.pop(id(shell), None) is magics and id(shell) not in _loaded:
            forget_cells()

    shell.events.register("post_run_cell", end)


__all__ = ["FuseMagics", "load", "unload"]
