"""Tables of the HTML page: findings, predicted against measured, modules.

They are complete without scripts; with them they sort and filter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fusion_advisor.quantities import bytes_text, percent_text, time_text
from fusion_advisor.records import Report
from fusion_advisor.report.evidence import applied_rows, measured_rows
from fusion_advisor.report.html_finding import status_tag
from fusion_advisor.report.modules import ModuleRow, class_rows, module_tree
from fusion_advisor.report.values import MAX_NAME, escaped
from fusion_advisor.report.view import FindingView

_FIRST_ROWS = 100  # findings listed at once: laying out a table of a thousand takes a second
_OPEN_DEPTH = 2  # levels of the module tree that stand open
_MOST_ROWS = 2_000  # modules drawn; a page with more is no overview


def scrolled(label: str, table: str) -> str:
    """A table that scrolls sideways by itself, by keyboard too."""
    name = escaped(label)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def pairs_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="where">{escaped(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{body}</tbody></table>"


def _head(columns: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<th scope="col"{f" class={chr(34)}{style}{chr(34)}" if style else ""}>{name}</th>'
        for name, style in columns
    )
    return f"<thead><tr>{cells}</tr></thead>"


def _number(value: float) -> str:
    """What a column is sorted by; what is unknown comes last."""
    return f"{value:.6g}" if math.isfinite(value) else "-1"


# -- findings ----------------------------------------------------------------------------------


def findings_table(views: Sequence[FindingView]) -> str:
    """The ranked findings; ``data-v`` is what a column sorts by."""
    largest = max((view.finding.share for view in views), default=0.0) or 1.0
    rows = [_finding_row(view, largest) for view in views]
    first, rest = "".join(rows[:_FIRST_ROWS]), "".join(rows[_FIRST_ROWS:])
    head = _head(
        (
            ("Finding", ""), ("What and where", ""), ("Saves per run", "num"), ("Share", ""),
            ("Memory traffic", "num"), ("Kernels", "num"), ("State", ""),
        )
    )  # fmt: skip
    more = f'<tbody class="more">{rest}</tbody>' if rest else ""
    table = f'<table class="sortable" id="ranked">{head}<tbody>{first}</tbody>{more}</table>'
    # A box and a style rule, so that all rows can be had without scripts.
    box = (
        '<p class="all"><input type="checkbox" id="every"><label for="every">Show all '
        f"{len(rows):,} findings, not the first {_FIRST_ROWS:,} alone</label></p>"
        if rest
        else ""
    )
    field = filter_field("ranked", "Filter by op, place, rule or state")
    return f"{field}{box}{scrolled('Ranked findings', table)}"


def filter_field(table: str, label: str) -> str:
    """A search field for a table; hidden until the script that serves it has run."""
    return (
        f'<div class="filter" data-for="{table}" hidden><label for="{table}-q">{label}</label>'
        f'<input id="{table}-q" type="search" autocomplete="off">'
        '<span class="shown" role="status"></span></div>'
    )


def _finding_row(view: FindingView, largest: float) -> str:
    estimate = view.estimate
    width = max(0.0, min(100.0, 100 * view.finding.share / largest))
    saved_bytes = estimate.bytes_before - estimate.bytes_after
    saved_kernels = estimate.launches_before - estimate.launches_after
    return (
        f'<tr><th scope="row" data-v="{view.rank}"><a href="#{escaped(view.id, MAX_NAME)}">'
        f"{escaped(view.id, MAX_NAME)}</a>"
        f'<br><span class="muted">{escaped(view.finding.rule, MAX_NAME)}</span></th>'
        f'<td class="where">{escaped(view.finding.title)}<br>'
        f'<span class="muted">{escaped(view.place)}</span></td>'
        f'<td class="num" data-v="{_number(estimate.saved_mid_us)}">{escaped(view.saving)}<br>'
        f'<span class="muted">{escaped(view.saving_range)}</span></td>'
        f'<td class="nowrap" data-v="{_number(view.finding.share)}">{escaped(view.share)}'
        f'<span class="bar"><i style="width:{width:.1f}%"></i></span></td>'
        f'<td class="num" data-v="{_number(saved_bytes)}">{escaped(view.traffic)}</td>'
        f'<td class="num" data-v="{_number(saved_kernels)}">{escaped(view.launches)}</td>'
        f"<td>{status_tag(view)}</td></tr>"
    )


# -- predicted and measured --------------------------------------------------------------------


def measured_section(report: Report) -> str:
    """What was timed, beside what was predicted; empty where nothing was."""
    kernels = "".join(
        f'<tr><th scope="row">{escaped(one.finding, MAX_NAME)}</th><td>{escaped(one.target)}, '
        f'{escaped(one.inputs, MAX_NAME)} inputs</td><td class="num">{escaped(one.eager)}</td>'
        f'<td class="num">{escaped(one.fused)}</td><td class="num">{escaped(one.speedup)}</td>'
        f'<td class="num">{escaped(one.predicted)}</td><td>{escaped(one.verdict)}</td></tr>'
        for one in measured_rows(report)
    )
    calls = "".join(
        f'<tr><th scope="row">{escaped(finding, MAX_NAME)}</th><td class="num">{before}</td>'
        f'<td class="num">{after}</td><td class="num">{ratio}</td>'
        f'<td class="where">{escaped(state)}</td></tr>'
        for finding, before, after, ratio, state in applied_rows(report)
    )
    parts = []
    if kernels:
        head = _head(
            (
                ("Finding", ""), ("On", ""), ("Eager", "num"), ("Fused", "num"),
                ("Speed-up", "num"), ("Predicted", "num"), ("Fused, measured", ""),
            )
        )  # fmt: skip
        parts.append(
            '<p class="muted">One call of each kernel, by turns with eager on the same inputs; '
            "median ± interquartile range.</p>"
            + scrolled("Kernels timed", f"<table>{head}<tbody>{kernels}</tbody></table>")
        )
    if calls:
        head = _head(
            (
                ("Finding", ""), ("Whole call before", "num"), ("After", "num"),
                ("Speed-up", "num"), ("Now", ""),
            )
        )  # fmt: skip
        parts.append(
            '<p class="muted">The whole call, with the kernels in place and without.</p>'
            + scrolled("Whole calls timed", f"<table>{head}<tbody>{calls}</tbody></table>")
        )
    if not parts:
        return ""
    return f"<section><h2>Predicted and measured</h2>{''.join(parts)}</section>"


# -- modules -----------------------------------------------------------------------------------


def modules_section(report: Report) -> str:
    """Time, bytes and ops by class and by the tree of modules; empty without modules."""
    tree, classes = module_tree(report), class_rows(report)
    if not any(node.module_path or node.module_class for node in report.capture.graph.nodes):
        return ""
    total = sum(row.us for row in tree) or 1.0
    body = "".join(
        f'<tr><th scope="row" class="where">{escaped(row.name, MAX_NAME)}</th>'
        f'<td class="num" data-v="{row.modules}">{row.modules or ""}</td>'
        f'<td class="num" data-v="{row.ops}">{row.ops:,}</td>'
        f'<td class="num" data-v="{_number(row.us)}">{escaped(time_text(row.us))}</td>'
        f'<td class="nowrap" data-v="{_number(row.us)}">{_share(row.us / total)}</td>'
        f'<td class="num" data-v="{row.bytes}">{escaped(bytes_text(row.bytes))}</td></tr>'
        for row in classes[:_MOST_ROWS]
    )
    head = _head(
        (
            ("Class", ""), ("Modules", "num"), ("Ops", "num"), ("Time", "num"),
            ("Share of the ops\u2019 time", ""), ("Memory traffic", "num"),
        )
    )  # fmt: skip
    return (
        "<section><h2>By module</h2>"
        '<p class="muted">Measured time of the ops that each class runs itself, and of each module '
        "with what is in it.</p>"
        + scrolled(
            "Time by module class",
            f'<table class="sortable">{head}<tbody>{body}</tbody></table>',
        )
        + f'<div class="tree" tabindex="0" role="region" aria-label="Modules">{_TREE_HEAD}'
        f"{_tree(tree, total)}</div></section>"
    )


def _share(share: float) -> str:
    width = max(0.0, min(100.0, 100 * share))
    return (
        f'{escaped(percent_text(share))}<span class="bar"><i style="width:{width:.1f}%"></i></span>'
    )


def _tree(rows: Sequence[ModuleRow], total: float) -> str:
    """Nested ``<details>``: closed below the first levels, usable without scripts."""
    budget = [_MOST_ROWS]

    def drawn(row: ModuleRow, depth: int) -> str:
        budget[0] -= 1
        if budget[0] < 0:
            return "" if budget[0] < -1 else '<div class="leaf">… more modules</div>'
        text = _tree_line(row, total)
        if not row.children:
            return f'<div class="leaf">{text}</div>'
        inside = "".join(drawn(child, depth + 1) for child in row.children)
        opened = " open" if depth < _OPEN_DEPTH else ""
        return f"<details{opened}><summary>{text}</summary>{inside}</details>"

    return "".join(drawn(row, 0) for row in rows)


_TREE_HEAD = (
    '<div class="leaf head"><span class="module">Module</span><span class="num">Ops</span>'
    '<span class="num">Traffic</span><span class="num">Time</span><span class="num">Share</span>'
    '<span class="bar"></span></div>'
)


def _tree_line(row: ModuleRow, total: float) -> str:
    of = f' <span class="muted">{escaped(row.module_class, MAX_NAME)}</span>'
    width = max(0.0, min(100.0, 100 * row.us / total))
    return (
        f'<span class="module"><b>{escaped(row.name, MAX_NAME)}</b>{of if row.module_class else ""}'
        f'</span><span class="num">{row.ops:,}</span>'
        f'<span class="num">{escaped(bytes_text(row.bytes))}</span>'
        f'<span class="num">{escaped(time_text(row.us))}</span>'
        f'<span class="num">{escaped(percent_text(row.us / total))}</span>'
        f'<span class="bar"><i style="width:{width:.1f}%"></i></span>'
    )
