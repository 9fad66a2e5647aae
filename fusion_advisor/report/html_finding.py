"""One finding on the HTML page: source, data flow, verdicts, kernel, checks, ways to apply it."""

from __future__ import annotations

from fusion_advisor.quantities import plain_number, plural, time_text
from fusion_advisor.records import Report, ValidationResult
from fusion_advisor.report.dataflow import dataflow_svg
from fusion_advisor.report.evidence import before_text, term_rows, terms_explained, textbook_text
from fusion_advisor.report.highlight import highlight
from fusion_advisor.report.values import escaped, excerpt
from fusion_advisor.report.view import (
    FindingView,
    applied_sentence,
    question_text,
    timing_sentence,
)

_TAGS = {
    "in place": "good",
    "validated": "good",
    "failed validation": "bad",
    "taken out": "warn",
    "not applied": "warn",
    "not validated": "warn",
}


def status_tag(view: FindingView) -> str:
    """The finding's state as a coloured word."""
    return f'<span class="tag {_TAGS.get(view.state, "")}">{escaped(view.state)}</span>'


def finding_card(report: Report, view: FindingView, *, drawn: bool = True) -> str:
    """The whole card; ``drawn`` with the memory trips and tables, which are many elements."""
    finding = view.finding
    parts = [
        f'<article class="card" id="{escaped(view.id)}"><div class="top"><h3>'
        f'<span class="id">{escaped(view.id)}</span> {escaped(finding.title)}</h3>'
        f"{status_tag(view)}</div>",
        f'<p class="lead">Saves about <strong>{escaped(view.saving)}</strong> per run '
        f"({escaped(view.share)}; {escaped(view.saving_range)}).</p>",
        f"<p>{escaped(finding.message)}</p>" if finding.message else "",
        _source(view),
        _flow(report, view) if drawn else "",
        _verdicts(view),
        f"<h4>Is it safe?</h4><p>{escaped(view.safety)}</p>",
        "".join(f'<p class="muted">{escaped(note)}</p>' for note in finding.notes),
        _refusals(view),
        f"<p><strong>{escaped(applied_sentence(view.applied))}</strong></p>"
        if view.applied
        else "",
        f'<p class="next">Next, in the notebook: <code>{escaped(view.next_magic)}</code> · '
        f"in Python: <code>{escaped(view.next_python)}</code> · "
        f"about the rule: <code>fusion-advisor explain {escaped(finding.rule)}</code></p>",
        _estimate(report, view) if drawn else _brief_estimate(report, view),
        _checks(view.validation) if view.validation is not None else "",
        _kernel(view),
        "</article>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _source(view: FindingView) -> str:
    span = view.finding.span
    heading = f"<h4>{escaped(view.place)}</h4>"
    if span is None or not span.text:
        return heading + f"<p><code>{escaped(view.what)}</code></p>"
    lines = highlight(excerpt(span.text)).split("\n")
    numbered = "\n".join(
        f'<span class="no">{span.line + offset}</span>{line}' for offset, line in enumerate(lines)
    )
    return (
        f'{heading}<pre tabindex="0" aria-label="Source of {escaped(view.id)}">{numbered}</pre>'
        f'<p class="muted">{escaped(view.what)}</p>'
    )


def _flow(report: Report, view: FindingView) -> str:
    if not view.finding.occurrences:
        return ""
    drawing = dataflow_svg(
        report.capture.graph, view.finding.occurrences[0], name=f"flow-{view.id}"
    )
    if not drawing:
        return ""
    times = f", one of {view.count} occurrences" if view.count > 1 else ""
    return f"<h4>Data flow{times}</h4>{drawing}"


def _verdicts(view: FindingView) -> str:
    if not view.finding.verdicts:
        return ""
    items = "".join(
        f'<li class="{"yes" if verdict.holds else "no"}"><b>{"Yes" if verdict.holds else "No"}: '
        f"{escaped(question_text(verdict))}</b>{escaped(verdict.reason)}</li>"
        for verdict in view.finding.verdicts
    )
    return f'<h4>Is it worth it?</h4><ul class="verdicts">{items}</ul>'


def _refusals(view: FindingView) -> str:
    rows = "".join(
        f"<li><code>{escaped(fix.where)}</code>: {escaped(blocker.message)}</li>"
        for fix in view.fixes
        for blocker in fix.blockers
    )
    return f"<h4>Refused, and why</h4><ul>{rows}</ul>" if rows else ""


def _estimate(report: Report, view: FindingView) -> str:
    estimate = view.estimate
    after = (
        f"{time_text(estimate.time_after_mid_us)} ({time_text(estimate.time_after_low_us)} to "
        f"{time_text(estimate.time_after_high_us)})"
    )
    source = f"{before_text(report).capitalize()} before, estimated after"
    models = [(source, time_text(estimate.time_before_us), after)]
    if estimate.textbook_before_us > 0:
        models.append(
            (
                "Textbook, N(M + C) → M + NC",
                time_text(estimate.textbook_before_us),
                time_text(estimate.textbook_after_us),
            )
        )
    compared = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="num">{escaped(before)}</td>'
        f'<td class="num">{escaped(fused)}</td></tr>'
        for name, before, fused in models
    )
    terms = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="num">{escaped(us)}</td>'
        f'<td class="where">{escaped(meaning)}</td></tr>'
        for name, us, meaning in term_rows(estimate)
    )
    others = _table(
        [
            ("Limited by", estimate.bound),
            (
                "Arithmetic",
                f"{plain_number(estimate.flops / 1e6)} million operations"
                if estimate.flops > 0
                else "unknown",
            ),
            ("Registers (estimate)", str(estimate.registers) if estimate.registers else "unknown"),
        ]
    )
    return (
        "<details><summary>How the saving is estimated</summary>"
        '<table><thead><tr><th scope="col">Time, all occurrences</th>'
        '<th scope="col" class="num">Before</th><th scope="col" class="num">Fused</th></tr></thead>'
        f"<tbody>{compared}</tbody></table>"
        + (
            f"<h4>The fused time, term by term</h4><table><tbody>{terms}</tbody></table>"
            f'<p class="muted">{escaped(terms_explained(estimate))}</p>'
            if terms
            else ""
        )
        + f"{others}</details>"
    )


def _brief_estimate(report: Report, view: FindingView) -> str:
    """The same figures in a sentence: tables for a thousand findings make a page slow."""
    estimate = view.estimate
    terms = ", ".join(f"{name} {us}" for name, us, _ in term_rows(estimate))
    textbook = textbook_text(estimate)
    text = (
        f"{before_text(report).capitalize()} before {time_text(estimate.time_before_us)}, "
        "estimated after "
        f"{time_text(estimate.time_after_mid_us)} ({time_text(estimate.time_after_low_us)} to "
        f"{time_text(estimate.time_after_high_us)}; {terms or 'no terms'}); "
        f"textbook {textbook or 'not worked out'}; limited by {estimate.bound}."
    )
    return f"<p>How the saving is estimated: {escaped(text)}</p>"


def _checks(result: ValidationResult) -> str:
    styles = {"passed": "good", "failed": "bad", "not run": ""}
    rungs = "".join(
        f'<tr><th scope="row">{escaped(rung.name)}</th>'
        f'<td><span class="tag {styles[rung.status]}">{escaped(rung.status)}</span></td>'
        f'<td class="where">{escaped(rung.detail)}</td>'
        f'<td class="num">{escaped(time_text(rung.seconds * 1e6)) if rung.seconds else ""}</td>'
        f"</tr>"
        for rung in result.rungs
    )
    timings = "".join(f"<li>{escaped(timing_sentence(pair))}</li>" for pair in result.timings)
    resources = "".join(
        f"<li>{escaped(one.architecture)}: {plural(one.registers, 'register')}, "
        f"{plural(one.spill_bytes, 'byte')} spilled, "
        f"{plural(one.fused_multiply_adds, 'fused multiply-add')}</li>"
        for one in result.resources
    )
    opened = " open" if result.status == "failed" else ""
    return (
        f"<details{opened}><summary>Checks: {escaped(result.status)}</summary><table><thead><tr>"
        '<th scope="col">Check</th><th scope="col">Result</th><th scope="col">Detail</th>'
        f'<th scope="col" class="num">Took</th></tr></thead><tbody>{rungs}</tbody></table>'
        + (f"<h4>Measured beside eager</h4><ul>{timings}</ul>" if timings else "")
        + (f"<h4>CUDA resources</h4><ul>{resources}</ul>" if resources else "")
        + "</details>"
    )


def _kernel(view: FindingView) -> str:
    if view.kernel is None:
        return ""
    return (
        f"<details><summary>The generated kernel, {escaped(view.kernel.entry)}</summary>"
        f'<pre tabindex="0" aria-label="Kernel of {escaped(view.id)}">'
        f"{highlight(view.kernel.text)}</pre>"
        f'<p class="muted">SHA-256 {escaped(view.kernel.hash)}</p></details>'
    )


def _table(rows: list[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><th scope="row">{escaped(name)}</th><td class="where">{escaped(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table><tbody>{body}</tbody></table>"
