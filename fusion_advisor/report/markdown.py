"""The report as GitHub-flavoured Markdown, for a pull request or an issue comment.

Foreign text is written as character references wherever it could be structure, so it starts no
table cell, link, emphasis, HTML or mention.  The whole stays below what a comment may hold.
"""

from __future__ import annotations

import re

from fusion_advisor.quantities import percent_text, time_text
from fusion_advisor.records import Report
from fusion_advisor.report.evidence import (
    applied_rows,
    before_text,
    measured_rows,
    term_rows,
    terms_explained,
    textbook_text,
)
from fusion_advisor.report.values import excerpt, one_line
from fusion_advisor.report.view import (
    FindingView,
    applied_sentence,
    blocker_places,
    environment_rows,
    finding_views,
    question_text,
    summarize,
    time_by_kind,
)

MAX_CHARACTERS = 60_000  # GitHub refuses a comment of more than 65,536
_MAX_ROWS = 50
_MAX_CELL = 300
_STRUCTURE = re.compile(
    r"[\\`*{}\[\]<>&|~$^!#]|(?<![^\W_])_|_(?![^\W_])|://|(?i:www\.)|@"
    r"|^[-+=]|^\d+[.)](?=\s|$)"
)


def render_markdown(report: Report) -> str:
    """Headline, figures, findings, and folds for details; shorter where it would be too long."""
    text = ""
    for details, rows in ((10, _MAX_ROWS), (3, 20), (0, 10), (0, 0)):
        text = _rendered(report, details=details, rows=rows)
        if len(text) <= MAX_CHARACTERS:
            break
    return text


def _rendered(report: Report, *, details: int, rows: int) -> str:
    summary = summarize(report)
    views = finding_views(report)
    parts = [
        f"## {markdown_text(summary.headline)}",
        f"Run: {markdown_text(report.capture.title or 'not named')}",
        _table(("Figure", "Value", "Note"), summary.facts),
        _findings(views, rows),
        "\n\n".join(_detail(report, view) for view in views[:details]),
        _measured(report),
        _fold("Where the time goes", _time(report)),
        _why_not(report, rows),
        _fold("Measured on", _table(("", ""), environment_rows(report))),
        "\n".join(f"- {markdown_text(line)}" for line in summary.warnings[: max(rows, 5)]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_text(text: str, width: int = 2_000) -> str:
    """Foreign text on one line, as text and nothing else, also in a table cell or a heading."""
    flat = one_line(text, width)
    return _STRUCTURE.sub(_reference, flat)


def _reference(match: re.Match[str]) -> str:
    text = "".join(f"&#{ord(character)};" for character in match[0])
    # GitHub looks for mentions after it has read the references: a zero-width space parts them.
    after = match.string[match.end() : match.end() + 1]
    return f"{text}&#8203;" if match[0] in "@#" and (after.isalnum() or after == "_") else text


def fenced(code: str) -> str:
    """Source in a fence longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{code}\n{fence}"


def _table(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    if not rows:
        return ""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(markdown_text(cell, _MAX_CELL) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _fold(summary: str, body: str) -> str:
    """A closed ``<details>``; ``summary`` is safe already."""
    if not body:
        return ""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _findings(views: tuple[FindingView, ...], most: int) -> str:
    rows = tuple(
        (
            view.id,
            view.finding.title,
            view.place,
            f"{view.saving} ({view.saving_range})",
            view.share,
            view.traffic,
            view.launches,
            view.state,
        )
        for view in views[:most]
    )
    header = (
        "Finding", "What", "Where", "Saves per run", "Share", "Memory traffic", "Kernels", "State",
    )  # fmt: skip
    more = f"\n\n{len(views) - most:,} more." if len(views) > most else ""
    return _table(header, rows) + more


def _detail(report: Report, view: FindingView) -> str:
    finding, estimate = view.finding, view.estimate
    text = finding.span.text if finding.span is not None else ""
    verdicts = "\n".join(
        f"- **{'Yes' if one.holds else 'No'}: {markdown_text(question_text(one))}** "
        f"{markdown_text(one.reason)}"
        for one in finding.verdicts
    )
    rows = [
        (
            "Time before",
            time_text(estimate.time_before_us),
            f"{before_text(report)}, over all occurrences",
        ),
        (
            "Time after",
            time_text(estimate.time_after_mid_us),
            f"estimated, {time_text(estimate.time_after_low_us)} to "
            f"{time_text(estimate.time_after_high_us)}",
        ),
        *((f"· {name}", us, meaning) for name, us, meaning in term_rows(estimate)),
    ]
    if textbook_text(estimate):
        rows.append(("Textbook model", textbook_text(estimate), "N(M + C) → M + NC"))
    body = [
        markdown_text(finding.message),
        fenced(excerpt(text)) if text else "",
        f"Ops: {markdown_text(view.what)}",
        verdicts,
        f"Is it safe? {markdown_text(view.safety)}",
        "\n".join(f"- Note: {markdown_text(note)}" for note in finding.notes),
        f"**{markdown_text(applied_sentence(view.applied))}**" if view.applied else "",
        _table(("Time", "", ""), tuple(rows)),
        terms_explained(estimate),
    ]
    summary = (
        f"<strong>{markdown_text(view.id)}</strong> {markdown_text(finding.title, 200)}: saves "
        f"{markdown_text(view.saving)} ({markdown_text(finding.rule)}, {markdown_text(view.state)})"
    )
    return _fold(summary, "\n\n".join(part for part in body if part))


def _measured(report: Report) -> str:
    kernels = _table(
        ("Finding", "Target", "Eager", "Fused", "Speed-up", "Predicted", "Measured against it"),
        tuple(
            (one.finding, one.target, one.eager, one.fused, one.speedup, one.predicted, one.verdict)
            for one in measured_rows(report)[:_MAX_ROWS]
        ),
    )
    calls = _table(
        ("Finding", "Whole call before", "After", "Speed-up", "Now"),
        applied_rows(report)[:_MAX_ROWS],
    )
    body = "\n\n".join(part for part in (kernels, calls) if part)
    return f"### Predicted and measured\n\n{body}" if body else ""


def _time(report: Report) -> str:
    spent = time_by_kind(report.capture)
    total = report.capture.wall_us or sum(us for _, us, _ in spent) or 1.0
    rows = tuple(
        (kind, f"{ops:,}" if ops else "", time_text(us), percent_text(us / total))
        for kind, us, ops in spent
    )
    return _table(("Kind of op", "Ops", "Time", "Share"), rows)


def _why_not(report: Report, most: int) -> str:
    rows = blocker_places(report)
    more = f"\n\n{len(rows) - most:,} more." if len(rows) > most else ""
    table = _table(("Code", "Ops", "Where", "Reason"), rows[:most])
    return _fold(f"Not fused, and why ({len(rows):,})", table + more if table else "")
