"""The notebook door: ``%load_ext fusion_advisor`` calls :func:`load`.

Everything that loading puts into the shell (magics, hooks, completers, configuration) is
taken out by :func:`unload`.
"""

from __future__ import annotations

from typing import Any

from fusion_advisor import workers
from fusion_advisor.jupyter.magics import FuseMagics

_loaded: dict[int, FuseMagics] = {}  # by shell, so that loading twice changes nothing


def load(shell: Any) -> None:
    """Register the magics, their completion, and the hook that knows which cell runs."""
    if id(shell) not in _loaded:
        magics = FuseMagics(shell=shell)
        magics.install()
        workers.warm_up()  # ready by the time of the first profile
        _loaded[id(shell)] = magics


def unload(shell: Any) -> None:
    """Undo what is in place live, and take magics, completion and hooks out again."""
    magics = _loaded.pop(id(shell), None)
    if magics is not None:
        magics.uninstall()


__all__ = ["FuseMagics", "load", "unload"]
