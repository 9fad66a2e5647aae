"""The Kernel tab: a finding's generated module, whole or by part, and what it needs of a GPU."""

from __future__ import annotations

import ast

import ipywidgets

from fusion_advisor.jupyter.panel.detail import resources_html
from fusion_advisor.jupyter.panel.markup import note, plain, short, source
from fusion_advisor.jupyter.panel.paging import choice
from fusion_advisor.records import KernelSource
from fusion_advisor.report.view import FindingView

PARTS = ("whole module", "CPU kernel", "CUDA kernel", "eager chain")


def part_text(kernel: KernelSource, part: str) -> str:
    """The text of one part of a generated module; empty where it was not generated."""
    names = {
        "CPU kernel": kernel.cpu_name,
        "CUDA kernel": kernel.cuda_name,
        "eager chain": kernel.eager_name,
    }
    if part not in names:
        return kernel.text
    lines = kernel.text.splitlines(keepends=True)
    for node in ast.parse(kernel.text).body:
        if isinstance(node, ast.FunctionDef) and names[part] and node.name == names[part]:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            return "".join(lines[first - 1 : node.end_lineno])
    return ""


class KernelTab:
    """Chooses a finding and a part, and shows its text."""

    def __init__(self) -> None:
        self._views: tuple[FindingView, ...] = ()
        self._finding = ipywidgets.Dropdown(
            description="Finding", layout=ipywidgets.Layout(width="26em"),
            style={"description_width": "initial"},
        )  # fmt: skip
        self._part = choice("Show", PARTS)
        self._html = ipywidgets.HTML()
        self._bar = ipywidgets.HBox(
            [self._finding, self._part], layout=ipywidgets.Layout(flex_flow="row wrap")
        )
        self.box = ipywidgets.VBox([self._bar, self._html])
        for control in (self._finding, self._part):
            control.observe(lambda _: self._show(), "value")

    def refresh(self, views: tuple[FindingView, ...], chosen: str | None) -> None:
        """Offer the findings that have a kernel, and show that of the one chosen elsewhere."""
        kept = self._finding.value
        self._views = tuple(view for view in views if view.kernel is not None)
        ids = [view.id for view in self._views]
        wanted = next((one for one in (chosen, kept) if one in ids), ids[0] if ids else None)
        options = tuple(
            (plain(f"{view.id} {view.finding.title}", 70), view.id) for view in self._views
        )
        if self._finding.options != options:
            self._finding.options = options
        self._finding.value = wanted
        self._bar.layout.display = None if ids else "none"
        self._show()

    def _show(self) -> None:
        view = next((one for one in self._views if one.id == self._finding.value), None)
        self._html.value = (
            kernel_html(view, PARTS[self._part.value])
            if view is not None
            else note("No kernel yet: choose a finding in the tab Findings and press Generate.")
        )


def kernel_html(view: FindingView, part: str) -> str:
    """One part of a finding's kernel with how to copy it, and its resources."""
    kernel = view.kernel
    if kernel is None:
        return ""
    text = part_text(kernel, part)
    if not text:
        return note(f"There is no {part}: this target was not asked for.")
    finding = short(view.id)
    return (
        f"{source(text, f'{part} of {view.id}')}"
        '<p class="fadv-soft">To copy it: select it here, or run '
        f"<code>print(advice.fuse(&quot;{finding}&quot;).text)</code> in a cell. SHA-256 of the "
        f"module: <code>{short(kernel.hash)}</code></p>"
        f"<h4>Resources on a GPU</h4>{resources_html(view.validation, view)}"
    )
