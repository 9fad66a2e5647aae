"""What the Summary and Traffic tabs say: functions of the report alone."""

from __future__ import annotations

from collections.abc import Sequence

from fusion_advisor.jupyter.panel.markup import BAR_KEY, MAX_TEXT, bar_pair, note, short, table
from fusion_advisor.quantities import bytes_text, percent_text, plain_number, plural, time_text
from fusion_advisor.records import Ceilings, Report
from fusion_advisor.report.view import (
    FindingView,
    applied_sentence,
    bound_counts,
    environment_rows,
    launches,
    run_time_us,
    summarize,
    time_by_kind,
)


def summary_html(report: Report) -> str:
    """Headline, figures, what is in place, where the time goes, ceilings and environment."""
    summary = summarize(report)
    facts = "".join(
        f'<div><dt>{short(label)}</dt><dd class="fadv-figure">{short(figure)}</dd>'
        f'<dd class="fadv-soft">{short(why, MAX_TEXT)}</dd></div>'
        for label, figure, why in (*_ratio_facts(report), *summary.facts)
    )
    last = {fix.finding: fix for fix in report.applied}
    applied = "".join(
        note(short(applied_sentence(fix), MAX_TEXT), "" if fix.undone else "good")
        for fix in last.values()
    )
    warnings = "".join(f"<li>{short(line, MAX_TEXT)}</li>" for line in summary.warnings)
    return "".join(
        (
            f'<div class="fadv-soft">{short(report.capture.title or "Fusion report")}</div>',
            f"<h3>{short(summary.headline, MAX_TEXT)}</h3>",
            f'<dl class="fadv-facts">{facts}</dl>',
            applied,
            _time(report),
            _ceilings(report.device or report.capture.ceilings),
            "<h4>Measured on</h4>",
            table(
                "Environment",
                ("What", "Value"),
                [(short(name), short(value, MAX_TEXT)) for name, value in environment_rows(report)],
            ),
            f"<h4>To know</h4><ul>{warnings}</ul>" if warnings else "",
        )
    )


def _ratio_facts(report: Report) -> list[tuple[str, str, str]]:
    """The fusion ratio as it is and as planned, and the share of the run that findings save."""
    shares = [
        (ratio.name, percent_text(ratio.fused_ops / ratio.ops))
        for ratio in report.ratios
        if ratio.ops
    ]
    facts = []
    if shares:
        first, *rest = shares
        figure = " → ".join([first[1], *(figure for name, figure in rest if name == "plan")])
        said = "; ".join(f"{figure} {name}" for name, figure in shares)
        facts.append(("Fusion ratio", figure, f"ops in fused groups: {said}"))
    run_us, saved_us = (
        run_time_us(report),
        sum(finding.estimate.saved_mid_us for finding in report.findings),
    )
    if report.findings and run_us > 0:
        facts.append(
            (
                "Share of the run to save",
                percent_text(min(1.0, saved_us / run_us)),
                f"{time_text(saved_us)} of {time_text(run_us)}, in "
                f"{plural(len(report.findings), 'finding')}",
            )
        )
    return facts


def _time(report: Report) -> str:
    rows = time_by_kind(report.capture)
    if not rows:
        return ""
    total = report.capture.wall_us or sum(us for _, us, _ in rows) or 1.0
    bounds = ", ".join(f"{plural(count, 'op')} {name}" for name, count in bound_counts(report))
    return (
        "<h4>Where the time goes</h4>"
        + table(
            "Time by kind of op",
            ("Kind of op", "Ops", "Time", "Share of the run"),
            [
                (
                    short(kind),
                    f"{ops:,}" if ops else "",
                    short(time_text(us)),
                    short(percent_text(us / total)),
                )
                for kind, us, ops in rows
            ],
            numbers=("Ops", "Time", "Share of the run"),
        )
        + (f'<p class="fadv-soft">{short(bounds)}</p>' if bounds else "")
    )


def _ceilings(ceilings: Ceilings | None) -> str:
    if ceilings is None:
        return "<h4>Ceilings</h4><p>Not measured.</p>"
    origin = "measured here" if ceilings.origin == "measured" else "from its data sheet"
    rows = [
        (
            f"Bandwidth at {bytes_text(point.working_set_bytes)}",
            f"{plain_number(point.gb_per_s)} GB/s",
        )
        for point in ceilings.bandwidth
    ]
    rows += [(f"Peak {dtype}", f"{plain_number(rate)} GFLOP/s") for dtype, rate in ceilings.gflops]
    rows += [
        (name, time_text(us))
        for name, us in (
            ("Dispatch of one op", ceilings.dispatch_us),
            ("Launch of one kernel", ceilings.launch_us),
            ("First touch of 1 MB", ceilings.page_fault_us_per_mb),
            ("Call of one fused function", ceilings.call_us),
        )
        if us > 0
    ]
    return f"<h4>Ceilings of {short(ceilings.name)}, {origin}</h4>" + table(
        "Ceilings of the device",
        ("Ceiling", "Figure"),
        [(short(name), short(figure)) for name, figure in rows],
        numbers=("Figure",),
    )


# -- traffic -----------------------------------------------------------------------------------


def run_traffic_html(report: Report) -> str:
    """Bytes and launches of the whole run, before and after."""
    before, after = launches(report)
    parts = ["<h4>The whole run, with every legal group fused</h4>"]
    if report.bytes_before:
        parts.append(_bytes_bars("Memory traffic", report.bytes_before, report.bytes_after))
    if before:
        parts.append(_count_bars("Kernels launched", before, after))
    if len(parts) == 1:
        parts.append("<p>No memory traffic was recorded.</p>")
    return "".join((*parts, BAR_KEY))


def finding_traffic_html(views: Sequence[FindingView]) -> str:
    """The same for some findings, bars of one kind on one scale."""
    most_bytes = max((view.estimate.bytes_before for view in views), default=0)
    most_launches = max((view.estimate.launches_before for view in views), default=0)
    parts = []
    for view in views:
        one = view.estimate
        parts.append(
            f"<h4>{short(view.id)} {short(view.finding.title)}"
            f"{f' × {view.count}' if view.count > 1 else ''}</h4>"
            + _bytes_bars("Memory traffic", one.bytes_before, one.bytes_after, most_bytes)
            + _count_bars(
                "Kernels launched", one.launches_before, one.launches_after, most_launches
            )
        )
    return "".join(parts)


def _bytes_bars(name: str, before: int, after: int, most: int = 0) -> str:
    scale = max(most, before, after, 1)
    less = f"{percent_text(1 - after / before)} less" if before else ""
    return bar_pair(
        f'{name}<br><span class="fadv-soft">{short(less)}</span>',
        (before / scale, bytes_text(before)),
        (after / scale, bytes_text(after)),
    )


def _count_bars(name: str, before: int, after: int, most: int = 0) -> str:
    scale = max(most, before, after, 1)
    return bar_pair(
        f'{name}<br><span class="fadv-soft">{before - after:,} fewer</span>',
        (before / scale, f"{before:,}"),
        (after / scale, f"{after:,}"),
    )
