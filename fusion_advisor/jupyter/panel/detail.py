"""Everything about one finding, as the Findings tab shows it: functions of report and work."""

from __future__ import annotations

from fusion_advisor.jupyter.panel.desk import WAITING, Work
from fusion_advisor.jupyter.panel.markup import MAX_TEXT, note, short, source, table, tag
from fusion_advisor.quantities import percent_text, plural, time_text
from fusion_advisor.records import Report, ValidationResult
from fusion_advisor.report.dataflow import dataflow_svg
from fusion_advisor.report.view import (
    FindingView,
    applied_sentence,
    question_text,
    timing_sentence,
)


def heading_html(view: FindingView) -> str:
    """Title, state and saving of a finding."""
    times = f" × {view.count}" if view.count > 1 else ""
    return (
        f"<h3>{short(view.id)}{times} {short(view.finding.title)} {tag(view.state)}</h3>"
        f"<p>Saves about <strong>{short(view.saving)}</strong> per run ({short(view.share)} of it; "
        f"{short(view.saving_range)}). {short(view.finding.message, MAX_TEXT)}</p>"
    )


def evidence_html(report: Report, view: FindingView, *, name: str) -> str:
    """Verdicts, source, data flow before and after, safety, refusals, and the estimate's terms."""
    finding = view.finding
    span = finding.span
    excerpt = source(span.text, f"Source of {view.id}") if span is not None and span.text else ""
    flow = (
        dataflow_svg(report.capture.graph, finding.occurrences[0], name=name)
        if finding.occurrences
        else ""
    )
    notes = "".join(f"<li>{short(one, MAX_TEXT)}</li>" for one in finding.notes)
    return "".join(
        (
            _verdicts(view),
            f"<h4>{short(view.place)}</h4>{excerpt}",
            f'<p class="fadv-soft">{short(view.what, MAX_TEXT)}</p>',
            f"<h4>Data flow{', one of ' + str(view.count) if view.count > 1 else ''}</h4>{flow}"
            if flow
            else "",
            f"<h4>Is it safe?</h4><p>{short(view.safety, MAX_TEXT)}</p>",
            f"<ul>{notes}</ul>" if notes else "",
            _refusals(view),
            _estimate(view),
            f"<p>The rule: <code>fusion-advisor explain {short(finding.rule)}</code></p>",
        )
    )


def _verdicts(view: FindingView) -> str:
    items = "".join(
        f'<li class="{"yes" if verdict.holds else "no"}"><b>{"Yes" if verdict.holds else "No"}: '
        f"{short(question_text(verdict))}</b>{short(verdict.reason, MAX_TEXT)}</li>"
        for verdict in view.finding.verdicts
    )
    return f'<h4>Is it worth it?</h4><ul class="fadv-verdicts">{items}</ul>' if items else ""


def _refusals(view: FindingView) -> str:
    rows = "".join(
        f"<li>not in the {short(fix.where)}: {short(blocker.message, MAX_TEXT)}</li>"
        for fix in view.fixes
        for blocker in fix.blockers
    )
    return f"<h4>Refused, and why</h4><ul>{rows}</ul>" if rows else ""


def _estimate(view: FindingView) -> str:
    estimate = view.estimate
    rows = [
        ("Time before", time_text(estimate.time_before_us)),
        (
            "Time after, low / mid / high",
            f"{time_text(estimate.time_after_low_us)} / {time_text(estimate.time_after_mid_us)} / "
            f"{time_text(estimate.time_after_high_us)}",
        ),
        ("Memory traffic", view.traffic),
        ("Kernels", view.launches),
        ("Limited by", estimate.bound),
    ]
    if estimate.textbook_before_us > 0:
        before, after = estimate.textbook_before_us, estimate.textbook_after_us
        rows.append(("Textbook N(M+C) → M+NC", f"{time_text(before)} → {time_text(after)}"))
    rows += [(f"Term: {name}", time_text(us)) for name, us in estimate.terms]
    cells = [(short(name), short(figure)) for name, figure in rows]
    return (
        "<details><summary>How the saving is estimated</summary>"
        + table("How the saving is estimated", ("What", "Figure"), cells, numbers=("Figure",))
        + "</details>"
    )


# -- checks ------------------------------------------------------------------------------------


def checks_html(validation: ValidationResult | None, work: Work | None) -> str:
    """The validation ladder: while it is climbed, and with its figures once it was."""
    if work is not None and work.outcome is None and work.rungs:
        *done, now = work.rungs
        rows = [(short(rung), tag("done"), "", "") for rung in done]
        rows.append((short(now), tag("running"), "", ""))
        return "<h4>Checks, as they run</h4>" + _rungs(rows)
    if validation is None:
        return ""
    rows = [
        (
            short(rung.name),
            tag(rung.status),
            short(rung.detail, MAX_TEXT),
            short(time_text(rung.seconds * 1e6)) if rung.seconds else "",
        )
        for rung in validation.rungs
    ]
    timings = "".join(f"<li>{short(timing_sentence(one))}</li>" for one in validation.timings)
    return (
        f"<h4>Checks {tag(validation.status)}</h4>"
        + _rungs(rows)
        + (f"<h4>Measured beside eager</h4><ul>{timings}</ul>" if timings else "")
    )


def _rungs(rows: list[tuple[str, str, str, str]]) -> str:
    return table("Checks", ("Check", "Result", "Detail", "Took"), rows, numbers=("Took",))


def resources_html(validation: ValidationResult | None, view: FindingView) -> str:
    """Registers, spills and occupancy: estimated, and as the CUDA compiler reports them."""
    estimate = view.estimate
    said = []
    if estimate.registers:
        said.append(
            f"Estimated before compiling: {plural(estimate.registers, 'register')} per thread, "
            f"occupancy {percent_text(estimate.occupancy)}."
        )
    rows = [
        (
            short(one.architecture),
            f"{one.registers:,}",
            f"{one.spill_bytes:,} B",
            f"{one.shared_bytes:,} B",
            f"{one.fused_multiply_adds:,}",
            f"{one.cubin_bytes:,} B",
        )
        for one in (validation.resources if validation is not None else ())
    ]
    if not rows:
        said.append("Compiled figures come with Validate, where the CUDA compiler is installed.")
        return f"<p>{' '.join(said)}</p>"
    heads = (
        "Architecture",
        "Registers",
        "Spilled",
        "Shared memory",
        "Fused multiply-adds",
        "Machine code",
    )
    return f"<p>{' '.join(said)}</p>" + table("CUDA resources", heads, rows, numbers=heads[1:])


# -- work --------------------------------------------------------------------------------------


def standing_html(work: Work | None, view: FindingView) -> str:
    """Where the work on a finding stands, and what is in place: errors too, in one sentence each.

    Of what was applied and undone the report tells: it may have been done elsewhere.
    """
    applied = view.applied
    told = (
        note(short(applied_sentence(applied), MAX_TEXT), "" if applied.undone else "good")
        if applied is not None
        else ""
    )
    return f'{_work(work)}<div role="status">{told}</div>'


def _work(work: Work | None) -> str:
    if work is None or (
        work.outcome is not None
        and work.outcome.status == "done"
        and work.action in ("apply", "undo")
    ):
        return ""
    if work.outcome is None:
        said = work.queued or work.stage
        count = f" (check {len(work.rungs)})" if work.rungs else ""
        waiting = work.stage == WAITING or bool(work.queued)
        text = f"{work.action} {work.finding}: {said}{'' if waiting else count}"
        return f'<div role="status">{short(text, MAX_TEXT)}</div>'
    kind = {"done": "good", "failed": "bad", "cancelled": ""}[work.outcome.status]
    role = "alert" if kind == "bad" else "status"
    return f'<div role="{role}">{note(short(work.message, MAX_TEXT), kind)}</div>'
