"""Reports made from the frozen ``Report`` record alone, in the formats of ``files.FORMATS``.

Every ``render_*`` function returns a string and touches no file; :func:`export_report`
writes one, atomically.  Nothing here imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusion_advisor.report.files import export_report, read_text, render, write_atomic
    from fusion_advisor.report.html import render_html
    from fusion_advisor.report.json import render_json
    from fusion_advisor.report.notebook import finding_html, notebook_html
    from fusion_advisor.report.text import render_finding, render_text

_HOMES = {
    "export_report": "files",
    "finding_html": "notebook",
    "notebook_html": "notebook",
    "read_text": "files",
    "render": "files",
    "render_finding": "text",
    "render_html": "html",
    "render_json": "json",
    "render_text": "text",
    "write_atomic": "files",
}

__all__ = [
    "export_report",
    "finding_html",
    "notebook_html",
    "read_text",
    "render",
    "render_finding",
    "render_html",
    "render_json",
    "render_text",
    "write_atomic",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fusion_advisor.report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fusion_advisor.report.{home}"), name)
