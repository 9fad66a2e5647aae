"""The report inside a notebook: static HTML that survives untrusted reopening and nbconvert.

An untrusted notebook loses ``<style>`` and ``<svg>``; inline ``style=``, ``<details>`` and PNG
data addresses stay, so the display is made of those.  Colours are left to the front end's theme.
"""

from __future__ import annotations

from fusion_advisor.quantities import percent_text, plural, time_text
from fusion_advisor.records import Report
from fusion_advisor.report.highlight import highlight
from fusion_advisor.report.plots import data_uri, roofline_png, traffic_png
from fusion_advisor.report.values import escaped, excerpt
from fusion_advisor.report.view import (
    FindingView,
    applied_sentence,
    blocker_places,
    finding_views,
    question_text,
    summarize,
    time_by_kind,
    timing_sentence,
)

_CELL = (
    "padding:4px 10px;text-align:left;vertical-align:top;"
    "border-bottom:1px solid rgba(128,128,128,.3)"
)
_RIGHT = _CELL.replace("text-align:left", "text-align:right;white-space:nowrap")
_SOFT = "opacity:.75"
_PRE = (
    "padding:8px 10px;margin:6px 0;overflow:auto;max-height:28em;line-height:1.45;"
    "border:1px solid rgba(128,128,128,.35);border-radius:4px;font-size:12px"
)
_SUMMARY = "cursor:pointer;padding:3px 0"
_STATE_COLORS = {"in place": "#2c8a4b", "validated": "#2c8a4b", "failed validation": "#c9444c"}


def notebook_html(report: Report, *, top: int = 10, all: bool = False, plots: bool = True) -> str:
    """Headline, figures, ranked table, one fold per finding, and folds for the rest."""
    summary = summarize(report)
    views = finding_views(report)
    shown = views if top <= 0 else views[:top]
    parts = [
        '<div style="max-width:1000px;line-height:1.45">',
        f'<div style="{_SOFT}">{escaped(report.capture.title or "Fusion report")}</div>',
        f'<div style="font-size:1.3em;font-weight:600;margin:2px 0 8px">'
        f"{escaped(summary.headline)}</div>",
        _facts(summary.facts),
        _table(shown),
        "".join(finding_fold(view) for view in shown),
        f"<div>{plural(len(views) - len(shown), 'more finding')}: <code>--top {len(views)}"
        f"</code></div>"
        if len(shown) < len(views)
        else "",
        "".join(
            f"<div><strong>{escaped(applied_sentence(fix))}</strong></div>"
            for fix in report.applied
        ),
        _plots(report) if plots and views else "",
        _time(report),
        _why_not(report, limit=0 if all else 50),
        _candidates(report) if all else "",
        _notes(summary.warnings),
        "</div>",
    ]
    return "".join(parts)


def finding_html(report: Report, finding_id: str) -> str:
    """One finding, unfolded, with its kernel."""
    view = next(view for view in finding_views(report) if view.id == finding_id)
    return f'<div style="max-width:1000px;line-height:1.45">{finding_fold(view, opened=True)}</div>'


def _facts(facts: tuple[tuple[str, str, str], ...]) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escaped(label)}</th>'
        f'<td style="{_CELL};white-space:nowrap"><strong>{escaped(figure)}</strong></td>'
        f'<td style="{_CELL};{_SOFT}">{escaped(why)}</td></tr>'
        for label, figure, why in facts
    )
    return f'<table style="margin:0 0 10px"><tbody>{rows}</tbody></table>'


def _table(views: tuple[FindingView, ...]) -> str:
    if not views:
        return ""
    heads = (
        "Finding",
        "What and where",
        "Saves per run",
        "Share",
        "Memory traffic",
        "Kernels",
        "State",
    )
    right = {"Saves per run", "Memory traffic", "Kernels"}
    head = "".join(
        f'<th scope="col" style="{_RIGHT if name in right else _CELL}">{name}</th>'
        for name in heads
    )
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escaped(view.id)}</th>'
        f'<td style="{_CELL}">{escaped(view.finding.title)}<br>'
        f'<span style="{_SOFT}">{escaped(view.place)}</span></td>'
        f'<td style="{_RIGHT}">{escaped(view.saving)}</td><td style="{_CELL}">'
        f"{escaped(view.share)}</td>"
        f'<td style="{_RIGHT}">{escaped(view.traffic)}</td>'
        f'<td style="{_RIGHT}">{escaped(view.launches)}</td>'
        f'<td style="{_CELL};white-space:nowrap">{_state(view)}</td></tr>'
        for view in views
    )
    return (
        f'<table style="margin:0 0 8px"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )


def _state(view: FindingView) -> str:
    color = _STATE_COLORS.get(view.state)
    style = f' style="color:{color};font-weight:600"' if color else ""
    return f"<span{style}>{escaped(view.state)}</span>"


def finding_fold(view: FindingView, *, opened: bool = False) -> str:
    """A ``<details>`` with everything about one finding."""
    finding = view.finding
    verdicts = "".join(
        f"<li><strong>{'Yes' if verdict.holds else 'No'}: {escaped(question_text(verdict))}"
        f"</strong> {escaped(verdict.reason)}</li>"
        for verdict in finding.verdicts
    )
    source = (
        f'<pre style="{_PRE}">{highlight(excerpt(finding.span.text), inline=True)}</pre>'
        if finding.span is not None and finding.span.text
        else ""
    )
    refusals = "".join(
        f"<li>not in the {escaped(fix.where)}: {escaped(blocker.message)}</li>"
        for fix in view.fixes
        for blocker in fix.blockers
    )
    notes = "".join(f"<li>{escaped(note)}</li>" for note in finding.notes)
    return (
        f'<details{" open" if opened else ""}><summary style="{_SUMMARY}"><strong>'
        f"{escaped(view.id)}</strong> "
        f"{escaped(finding.title)}: {escaped(view.saving)} ({escaped(view.share)})</summary>"
        f'<div style="margin:4px 0 10px 18px"><div>{escaped(finding.message)}</div>'
        f'<div style="{_SOFT}">{escaped(view.place)} · {escaped(view.what)}</div>{source}'
        f"<div>Memory traffic {escaped(view.traffic)}, kernels {escaped(view.launches)}, saves "
        f"{escaped(view.saving_range)}.</div><ul>{verdicts}{notes}{refusals}</ul>"
        f"<div><strong>Is it safe?</strong> {escaped(view.safety)}</div>"
        f"{_checks(view)}{_kernel(view, opened=opened)}"
        f'<div style="margin-top:6px">Next: <code>{escaped(view.next_magic)}</code> or '
        f"<code>{escaped(view.next_python)}</code></div></div></details>"
    )


def _checks(view: FindingView) -> str:
    if view.validation is None:
        return ""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escaped(rung.name)}</th>'
        f'<td style="{_CELL};white-space:nowrap">{escaped(rung.status)}</td>'
        f'<td style="{_CELL}">{escaped(rung.detail)}</td></tr>'
        for rung in view.validation.rungs
    )
    timings = "".join(
        f"<div>{escaped(timing_sentence(pair))}</div>" for pair in view.validation.timings
    )
    return (
        f'{timings}<details><summary style="{_SUMMARY}">Checks: '
        f"{escaped(view.validation.status)}</summary>"
        f"<table><tbody>{rows}</tbody></table></details>"
    )


def _kernel(view: FindingView, *, opened: bool) -> str:
    if view.kernel is None:
        return ""
    return (
        f'<details{" open" if opened else ""}><summary style="{_SUMMARY}">Kernel '
        f"<code>{escaped(view.kernel.entry)}</code></summary>"
        f'<pre style="{_PRE}">{highlight(view.kernel.text, inline=True)}</pre></details>'
    )


def _plots(report: Report) -> str:
    images = []
    for png, text in (
        (
            traffic_png(report),
            "Bars: memory traffic and time of each finding before and after fusion",
        ),
        (
            roofline_png(report),
            "Roofline: findings before and after fusion under this device's ceilings",
        ),
    ):
        if png is not None:
            images.append(
                f'<img alt="{escaped(text)}" src="{data_uri(png)}" '
                f'style="max-width:100%;margin:6px 0">'
            )
    if not images:
        return ""
    return (
        f'<details><summary style="{_SUMMARY}">Before and after, roofline</summary>'
        f"{''.join(images)}</details>"
    )


def _time(report: Report) -> str:
    spent = time_by_kind(report.capture)
    if not spent:
        return ""
    total = report.capture.wall_us or sum(us for _, us, _ in spent) or 1.0
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escaped(kind)}</th>'
        f'<td style="{_RIGHT}">{escaped(time_text(us))}</td>'
        f'<td style="{_RIGHT}">{escaped(percent_text(us / total))}</td></tr>'
        for kind, us, _ in spent
    )
    return (
        f'<details><summary style="{_SUMMARY}">Where the time goes</summary>'
        f"<table><tbody>{rows}</tbody></table></details>"
    )


def _why_not(report: Report, *, limit: int) -> str:
    reasons = blocker_places(report)
    if not reasons:
        return ""
    shown = reasons[:limit] if limit else reasons
    rows = "".join(
        f'<tr><td style="{_CELL}"><code>{escaped(code)}</code></td><td style="{_CELL}">'
        f"{escaped(ops)}</td>"
        f'<td style="{_CELL}">{escaped(place)}</td><td style="{_CELL}">{escaped(message)}</td></tr>'
        for code, ops, place, message in shown
    )
    more = (
        f"<div>{len(reasons) - len(shown)} more: <code>--all</code></div>"
        if len(reasons) > len(shown)
        else ""
    )
    return (
        f'<details><summary style="{_SUMMARY}">Not fused, and why ({len(reasons)})</summary>'
        f"<table><tbody>{rows}</tbody></table>{more}</details>"
    )


def _candidates(report: Report) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{escaped(candidate.id)}</th>'
        f'<td style="{_RIGHT}">{plural(len(candidate.nodes) - len(candidate.views), "op")}</td>'
        f'<td style="{_RIGHT}">{escaped(time_text(estimate.saved_mid_us))}</td></tr>'
        for candidate, estimate in zip(report.candidates, report.estimates, strict=False)
    )
    return (
        f'<details><summary style="{_SUMMARY}">Every legal candidate ({len(report.candidates)}'
        f")</summary>"
        f"<table><tbody>{rows}</tbody></table></details>"
    )


def _notes(warnings: tuple[str, ...]) -> str:
    items = "".join(f"<li>{escaped(line)}</li>" for line in warnings)
    return f'<ul style="{_SOFT};margin:8px 0">{items}</ul>' if items else ""
