"""The report as one self-contained HTML page: no network, light and dark, usable without scripts.

The order is a reader's: what to gain, the ranked list, each finding with its evidence, where the
time goes, what was not fused and why, and the machine it was measured on.
"""

from __future__ import annotations

import base64
import hashlib

from fusion_advisor._version import __version__
from fusion_advisor.quantities import percent_text, plural, time_text
from fusion_advisor.records import Report
from fusion_advisor.report.evidence import ceiling_rows
from fusion_advisor.report.html_finding import finding_card
from fusion_advisor.report.html_tables import (
    filter_field,
    findings_table,
    measured_section,
    modules_section,
    pairs_table,
    scrolled,
)
from fusion_advisor.report.page_style import SCRIPT, STYLE
from fusion_advisor.report.roofline import roofline, roofline_svg
from fusion_advisor.report.values import escaped
from fusion_advisor.report.view import (
    FindingView,
    Summary,
    blocker_places,
    bound_counts,
    environment_rows,
    finding_views,
    ignored_sentence,
    summarize,
    time_by_kind,
)

_DRAWN = 50  # data flows: beyond these nobody looks, and drawings are what makes a page heavy
_CHARTED = 24  # bars that still make a chart


def render_html(report: Report) -> str:
    """The whole page; the same report gives the same bytes."""
    views = finding_views(report)
    summary = summarize(report)
    title = escaped(report.capture.title or "Fusion report")
    body = [
        _header(title, summary),
        "<main>",
        _findings(report, views),
        measured_section(report),
        _gains(tuple(view for view in views if not view.finding.ignored)),
        _roofline(report),
        _time(report),
        modules_section(report),
        _why_not(report),
        _environment(report),
        "</main>",
        f"<footer><p>Fusion Advisor {escaped(__version__)}. Times are medians; memory traffic "
        f"counts "
        "each op's distinct bytes read and written.</p></footer>",
    ]
    return _page(title, "\n".join(part for part in body if part))


def _page(title: str, body: str) -> str:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title} – fusion report</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _header(title: str, summary: Summary) -> str:
    facts = "".join(
        f'<div class="fact"><dt>{escaped(label)}</dt><dd class="figure">{escaped(figure)}</dd>'
        f'<dd class="why">{escaped(why)}</dd></div>'
        for label, figure, why in summary.facts
    )
    warnings = "".join(f"<li>{escaped(line)}</li>" for line in summary.warnings)
    notes = f'<ul class="notes" aria-label="Notes">{warnings}</ul>' if warnings else ""
    # Why nothing is worth it can take three sentences: too long for a heading.
    heading, _, reason = summary.headline.partition(": ")
    lead = f'<p class="lead">{escaped(reason)}</p>' if reason else ""
    return (
        '<header>\n<a class="skip" href="#findings">Skip to the findings</a>\n'
        f'<p class="run">{title}</p>\n<h1>{escaped(heading)}</h1>\n{lead}'
        f'<dl class="facts">{facts}</dl>\n{notes}\n</header>'
    )


def _findings(report: Report, views: tuple[FindingView, ...]) -> str:
    """The ranked table, the evidence of each, and those that a comment ignores, folded."""
    told = [view for view in views if not view.finding.ignored]
    left = [view for view in views if view.finding.ignored]
    parts = ['<section id="findings"><h2>Findings, best first</h2>']
    parts.append(findings_table(views) if views else '<p class="muted">None.</p>')
    parts.append("</section>")
    if told:
        parts.append("<h2>The evidence</h2>")
        parts += [
            finding_card(report, view, drawn=place < _DRAWN) for place, view in enumerate(told)
        ]
    if left:
        parts.append(
            f"<h2>Ignored by comments</h2><p>{escaped(ignored_sentence(report))}. They are in no "
            'sum above.</p><details class="ignored"><summary>Their evidence</summary>'
        )
        parts += [finding_card(report, view, drawn=False) for view in left]
        parts.append("</details>")
    return "\n".join(parts)


def _gains(views: tuple[FindingView, ...]) -> str:
    if not views:
        return ""
    blocks = []
    more = plural(len(views) - _CHARTED, "smaller finding") if len(views) > _CHARTED else ""
    views = views[:_CHARTED]
    estimates = [view.estimate for view in views]
    for label, before, after in (
        (
            "Memory traffic",
            [one.bytes_before for one in estimates],
            [one.bytes_after for one in estimates],
        ),
        (
            "Kernels launched",
            [one.launches_before for one in estimates],
            [one.launches_after for one in estimates],
        ),
    ):
        largest = max([*before, *after, 1])
        rows = "".join(
            _bar_pair(view, label, one / largest, other / largest)
            for view, one, other in zip(views, before, after, strict=True)
        )
        blocks.append(f'<h3>{label}</h3><div class="pair">{rows}</div>')
    key = (
        '<p class="key"><span><i></i>before</span>'
        '<span><i class="after"></i>after fusion</span></p>'
    )
    return (
        '<section><h2>Before and after</h2><div class="card">'
        + "<br>".join(blocks)
        + key
        + (f'<p class="muted">{more} not drawn.</p>' if more else "")
        + "</div></section>"
    )


def _bar_pair(view: FindingView, label: str, before: float, after: float) -> str:
    text = view.traffic if label == "Memory traffic" else view.launches
    first, _, second = text.partition(" → ")
    return (
        f'<span class="name">{escaped(view.id)}</span>'
        f'<span class="track"><i style="width:{100 * before:.1f}%"></i></span><span>'
        f"{escaped(first)}</span>"
        f'<span class="track"><i class="after" style="width:{100 * after:.1f}%"></i></span>'
        f"<span>{escaped(second)}</span>"
    )


def _roofline(report: Report) -> str:
    model = roofline(report)
    if model is None:
        return ""
    ceilings = report.device or report.capture.ceilings
    name = escaped(ceilings.name) if ceilings is not None else ""
    origin = (
        "measured here" if ceilings is not None and ceilings.origin == "measured" else "data sheet"
    )
    return (
        '<section><h2>Roofline</h2><div class="card">'
        f'<p class="muted">{name}, {origin}. A finding left of the ridge waits for memory: fusing '
        "moves it right, because the same work moves fewer bytes.</p>"
        f"{roofline_svg(model)}"
        '<p class="key"><span><i></i>before</span><span><i class="after"></i>after fusion '
        "(estimate)</span></p></div></section>"
    )


def _time(report: Report) -> str:
    rows = time_by_kind(report.capture)
    if not rows:
        return ""
    total = report.capture.wall_us or sum(us for _, us, _ in rows) or 1.0
    body = "".join(
        f'<tr><th scope="row">{escaped(kind)}</th><td class="num">{f"{ops:,}" if ops else ""}</td>'
        f'<td class="num">{escaped(time_text(us))}</td><td>{escaped(percent_text(us / total))}'
        f'<span class="bar"><i style="width:{max(0.0, min(100.0, 100 * us / total)):.1f}%"></i>'
        f"</span>"
        "</td></tr>"
        for kind, us, ops in rows
    )
    bounds = ", ".join(f"{plural(count, 'op')} {name}" for name, count in bound_counts(report))
    return (
        '<section><h2>Where the time goes</h2><div class="scroll" tabindex="0" role="region" '
        'aria-label="Time by kind of op"><table><thead><tr><th scope="col">Kind of op</th>'
        '<th scope="col" class="num">Ops</th><th scope="col" class="num">Time</th>'
        f'<th scope="col">Share of the run</th></tr></thead><tbody>{body}</tbody></table></div>'
        f'<p class="muted">{escaped(bounds)}</p></section>'
    )


def _why_not(report: Report) -> str:
    rows = blocker_places(report)
    if not rows:
        return ""
    body = "".join(
        f'<tr><th scope="row"><code>{escaped(code)}</code></th><td class="where">{escaped(ops)}'
        f"</td>"
        f'<td class="where">{escaped(place)}</td><td class="where">{escaped(message)}</td></tr>'
        for code, ops, place, message in rows
    )
    return (
        "<section><h2>Not fused, and why</h2>"
        + filter_field("why-not", "Filter by op, place or reason")
        + '<div class="scroll" tabindex="0" role="region" aria-label="Pairs that are not fused">'
        '<table id="why-not"><thead><tr><th scope="col">Code</th><th scope="col">Ops</th>'
        '<th scope="col">Where</th><th scope="col">Reason</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div></section>"
    )


def _environment(report: Report) -> str:
    table = pairs_table((*environment_rows(report), *ceiling_rows(report)))
    return f"<section><h2>Measured on</h2>{scrolled('Environment', table)}</section>"
