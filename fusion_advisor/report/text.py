"""The report as plain text: for a terminal, a log, or ``text/plain`` in a notebook."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fusion_advisor.quantities import bytes_text, percent_text, plural, time_text
from fusion_advisor.records import Report
from fusion_advisor.report.values import MAX_CODE, excerpt, one_line, printable, shortened
from fusion_advisor.report.view import (
    FindingView,
    applied_sentence,
    blocker_places,
    bound_counts,
    finding_views,
    place_text,
    question_text,
    summarize,
    time_by_kind,
    timing_sentence,
)

WIDTH = 100


def render_text(
    report: Report, *, top: int = 10, all: bool = False, saved: str | None = None
) -> str:
    """Headline, figures, ranked findings and why-not list.

    ``top`` limits the findings (0: every one); ``all`` adds the legal candidates that are not
    worth it and the whole why-not list.  ``saved`` is for a shell: the next step is then a
    command on the report's JSON file of that name ("": not saved yet).
    """
    summary = summarize(report)
    views = finding_views(report)
    shown = views if top <= 0 else views[:top]
    told = [view for view in shown if all or not view.finding.ignored]
    blocks = [
        "\n".join([one_line(report.capture.title or "Fusion report"), *_wrapped(summary.headline)]),
        "\n".join(_facts(summary.facts)),
    ]
    if shown:
        blocks.append(_findings_table(shown))
        blocks.extend(_finding(view, saved) for view in told)
    if len(shown) < len(views):
        blocks.append(f"{plural(len(views) - len(shown), 'more finding')}: use --top {len(views)}.")
    if report.applied:
        blocks.append("\n".join(applied_sentence(fix) for fix in report.applied))
    blocks.extend(_rest(report, everything=all))
    if summary.warnings:
        blocks.append("\n".join(_bullets(summary.warnings, title="Notes")))
    return "\n\n".join(block for block in blocks if block)


def render_whole_text(report: Report) -> str:
    """Everything, as a file."""
    return render_text(report, top=0, all=True) + "\n"


def render_finding(report: Report, finding_id: str, *, kernel: bool = True) -> str:
    """One finding in full: verdicts, checks, timings, ways to apply it, and its kernel text."""
    view = next(view for view in finding_views(report) if view.id == finding_id)
    lines = [_finding(view)]
    if view.validation is not None:
        rows = [
            (f"  {rung.name}", rung.status, one_line(rung.detail)) for rung in view.validation.rungs
        ]
        lines.append("\n".join(["Checks", *_table(rows)]))
        timings = [f"  {timing_sentence(pair)}" for pair in view.validation.timings]
        lines.append("\n".join(["Measured", *timings]) if timings else "")
    for fix in view.fixes:
        lines.extend(f"Refused ({one_line(b.code)}): {one_line(b.message)}" for b in fix.blockers)
    if kernel and view.kernel is not None:
        lines.append(printable(shortened(view.kernel.text, MAX_CODE)).rstrip())
    return "\n\n".join(line for line in lines if line)


def _facts(facts: tuple[tuple[str, str, str], ...]) -> list[str]:
    label_width = max(len(label) for label, _, _ in facts)
    figure_width = max(len(figure) for _, figure, _ in facts)
    return [
        f"  {label:<{label_width}}  {figure:<{figure_width}}  {why}".rstrip()
        for label, figure, why in facts
    ]


def _findings_table(views: tuple[FindingView, ...]) -> str:
    header = ("", "saves", "share", "memory traffic", "kernels", "state", "where")
    rows = [
        (view.id, view.saving, view.share, view.traffic, view.launches, view.state, view.place)
        for view in views
    ]
    return "\n".join(_table([header, *rows]))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = (
        [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    )
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _finding(view: FindingView, saved: str | None = None) -> str:
    finding = view.finding
    lines = [f"{view.id}  {one_line(finding.title)}  [{one_line(finding.rule)}]"]
    lines.append(f"    where   {view.place}")
    if finding.span is not None and finding.span.text:
        source = excerpt(finding.span.text).splitlines()
        lines.extend(f"            {line}" for line in source[:6])
        if len(source) > 6:
            lines.append(f"            … {len(source) - 6} more lines")
    lines.append(f"    what    {view.what}")
    lines.append(
        f"    gain    {view.saving} ({view.share} of the run; {view.saving_range}), memory traffic "
        f"{view.traffic}, kernels {view.launches}"
    )
    for verdict in finding.verdicts:
        mark = "yes" if verdict.holds else "no "
        lines.append(f"    {mark}     {question_text(verdict)} {one_line(verdict.reason)}")
    lines.extend(f"    note    {one_line(note)}" for note in finding.notes)
    lines.append(f"    safe?   {view.safety}")
    lines.append(f"    next    {_next_step(view, saved)}")
    return "\n".join(lines)


def _next_step(view: FindingView, saved: str | None) -> str:
    if saved is None:
        return f"{view.next_magic}   or   {view.next_python}"
    if view.finding.safety == "display-only":
        return f"fusion-advisor explain {one_line(view.finding.rule)}"
    if saved:
        return f"fusion-advisor kernel {one_line(saved)} {view.id}"
    return f"--export report.json, then: fusion-advisor kernel report.json {view.id}"


def _rest(report: Report, *, everything: bool) -> list[str]:
    blocks = []
    spent = time_by_kind(report.capture)
    if spent:
        total = report.capture.wall_us or sum(us for _, us, _ in spent) or 1.0
        rows = [
            (f"  {kind}", time_text(us), percent_text(us / total), plural(ops, "op") if ops else "")
            for kind, us, ops in spent
        ]
        blocks.append("\n".join(["Where the time goes", *_table(rows)]))
    bounds = bound_counts(report)
    if bounds:
        blocks.append("Ops by limit: " + ", ".join(f"{count:,} {name}" for name, count in bounds))
    if everything and report.candidates:
        blocks.append(_candidates(report))
    reasons = blocker_places(report)
    if reasons:
        limit = len(reasons) if everything else 5
        rows = [(f"  {code}", ops, place, message) for code, ops, place, message in reasons[:limit]]
        more = [f"  … {len(reasons) - limit} more: use --all"] if len(reasons) > limit else []
        blocks.append("\n".join(["Not fused, and why", *_table(rows), *more]))
    return blocks


def _candidates(report: Report) -> str:
    nodes = {node.id: node for node in report.capture.graph.nodes}
    rows = []
    for candidate, estimate in zip(report.candidates, report.estimates, strict=False):
        first = nodes.get(candidate.nodes[0]) if candidate.nodes else None
        rows.append(
            (
                f"  {one_line(candidate.id)}",
                plural(len(candidate.nodes) - len(candidate.views), "op"),
                f"saves {time_text(estimate.saved_mid_us)}",
                f"{bytes_text(estimate.bytes_before)} → {bytes_text(estimate.bytes_after)}",
                place_text(first.span) if first is not None else "",
            )
        )
    return "\n".join(["Every legal candidate", *_table(rows)])


def _bullets(lines: tuple[str, ...], *, title: str) -> list[str]:
    found = [title]
    for line in lines:
        found.extend(textwrap.wrap(line, WIDTH, initial_indent="  · ", subsequent_indent="    "))
    return found


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH) or [""]
