"""A run against its baseline: what got worse, by how much, and what cannot be compared.

Counts and bytes are exact and compared as they are; times only on the same machine, and only
beyond what their own spread explains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fusion_advisor.errors import ReportError
from fusion_advisor.quantities import bytes_text, percent_text, plain_number, plural, time_text
from fusion_advisor.report.baseline import Figures
from fusion_advisor.report.markdown import markdown_text
from fusion_advisor.report.values import name_text, one_line

# Ceilings of one machine, measured twice, differ by less, unless it is busy: then its times are
# no measure either.
CEILING_RATIO = 1.5


# -- comparing ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much worse is still fine; fractions, except ``time_spreads``.

    ``ratio_drop`` is in points of the ratio.  A time may grow by the larger of ``time`` of the
    baseline and ``time_spreads`` times the larger of the two spreads (interquartile ranges).
    ``rules`` may have no finding at all.
    """

    ratio_drop: float = 0.01
    bytes_growth: float = 0.01
    kernels_growth: float = 0.01
    time: float = 0.10
    # A median of 15 runs has a standard error of a quarter of their spread; two runs of a
    # program minutes apart differ by several of those.
    time_spreads: float = 3.0
    rules: tuple[str, ...] = ()


Outcome = Literal["ok", "better", "regressed", "not compared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure: as it was, as it is, how far it might go."""

    metric: str
    outcome: Outcome
    baseline: str
    now: str
    limit: str
    note: str = ""
    unit: str
    values: tuple[float, float, float | None]  # baseline, now, limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All lines, and what a reader should know besides."""

    title: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        return any(line.outcome == "regressed" for line in self.lines)

    @property
    def headline(self) -> str:
        """One sentence with the count."""
        worse = sum(line.outcome == "regressed" for line in self.lines)
        if worse:
            return f"Regressed: {worse} of {len(self.lines)} figures beyond the limit"
        skipped = sum(line.outcome == "not compared" for line in self.lines)
        more = f" ({skipped} not compared)" if skipped else ""
        return f"No regression in {len(self.lines) - skipped} figures{more}"


def compare(baseline: Figures, now: Figures, limits: Limits) -> Comparison:
    """Every figure against its limit; ``ReportError`` where the two are not of one thing."""
    _check_comparable(baseline, now)
    known = dict(baseline.findings)
    found = dict(now.findings)
    lines = [
        _ratio(baseline, now, limits),
        _grown("memory traffic", baseline.bytes, now.bytes, limits.bytes_growth, bytes_text),
        _grown("kernels", baseline.kernels, now.kernels, limits.kernels_growth, _count),
        *(_rule(code, known.get(code, 0), found.get(code, 0)) for code in limits.rules),
        _time(baseline, now, limits),
    ]
    return Comparison(title=one_line(now.title), lines=tuple(lines), notes=_notes(baseline, now))


def _check_comparable(baseline: Figures, now: Figures) -> None:
    for what, old, new in (
        ("of", baseline.title or "an unnamed run", now.title or "an unnamed run"),
        ("of a", _passes(baseline), _passes(now)),
        ("of", _timed_on(baseline), _timed_on(now)),
    ):
        if old != new:
            raise ReportError(
                f"cannot compare: the baseline is {what} {name_text(old)}, this report {what} "
                f"{name_text(new)}; write a baseline of it with --write-baseline"
            )
    if baseline.modules and now.modules and not set(baseline.modules) & set(now.modules):
        raise ReportError(
            "cannot compare: another model (the baseline's modules: "
            f"{one_line(', '.join(baseline.modules), 200)}; now: "
            f"{one_line(', '.join(now.modules), 200)}); write a new baseline with --write-baseline"
        )


def _passes(figures: Figures) -> str:
    return "forward and backward pass" if figures.backward else "forward pass"


def _timed_on(figures: Figures) -> str:
    if figures.estimated_for:
        return f"times estimated for {figures.estimated_for}"
    return "times measured where it ran"


def _ratio(baseline: Figures, now: Figures, limits: Limits) -> Line:
    least = max(0.0, baseline.ratio - limits.ratio_drop)
    return Line(
        metric="fusion ratio",
        outcome=_outcome(baseline.ratio - now.ratio, baseline.ratio - least),
        baseline=f"{percent_text(baseline.ratio)} ({baseline.fused_ops:,} of {baseline.ops:,} ops)",
        now=f"{percent_text(now.ratio)} ({now.fused_ops:,} of {now.ops:,} ops)",
        limit=f"at least {percent_text(least)}",
        unit="fraction",
        values=(baseline.ratio, now.ratio, least),
    )


def _grown(
    metric: str, before: int, after: int, growth: float, text: Callable[[float], str]
) -> Line:
    most = before * (1 + growth)
    return Line(
        metric=metric,
        outcome=_outcome(after - before, most - before),
        baseline=text(before),
        now=f"{text(after)} ({_change(before, after)})",
        limit=f"at most {text(most)} (+{plain_number(100 * growth)} %)",
        unit="bytes" if metric == "memory traffic" else "count",
        values=(before, after, most),
    )


def _outcome(worse_by: float, allowed: float) -> Outcome:
    # Products of floats: a limit met exactly is met.
    if worse_by > allowed + 1e-9 * max(1.0, abs(allowed)):
        return "regressed"
    return "better" if worse_by < -1e-12 else "ok"


def _change(before: float, after: float) -> str:
    if before <= 0:
        return "no change" if after == before else "from nothing"
    change = 100 * (after / before - 1)
    return f"{'+' if change > 0 else ''}{plain_number(change, 2)} %"


def _count(value: float) -> str:
    return f"{int(value):,}"


def _rule(code: str, before: int, after: int) -> Line:
    return Line(
        metric=f"{code} findings",
        outcome="regressed" if after else "better" if before else "ok",
        baseline=str(before),
        now=str(after),
        limit="none",
        unit="count",
        values=(before, after, 0),
    )


def _time(baseline: Figures, now: Figures, limits: Limits) -> Line:
    reason = _why_no_time(baseline, now)
    noise = limits.time_spreads * max(baseline.wall_spread_us, now.wall_spread_us)
    tolerance = limits.time * baseline.wall_us
    most = baseline.wall_us + max(tolerance, noise)
    because = (
        f"{plain_number(limits.time_spreads)} × the spread"
        if noise > tolerance
        else f"+{plain_number(100 * limits.time)} %"
    )
    worse_by = now.wall_us - baseline.wall_us
    outcome = _outcome(worse_by, most - baseline.wall_us)
    if outcome == "better" and -worse_by <= max(tolerance, noise):
        outcome = "ok"  # what is not slower inside the noise is not faster either
    return Line(
        metric="time per run",
        outcome="not compared" if reason else outcome,
        baseline=_spread_text(baseline),
        now=_spread_text(now),
        limit="" if reason else f"at most {time_text(most)} ({because})",
        note=reason,
        unit="us",
        values=(baseline.wall_us, now.wall_us, None if reason else most),
    )


def _spread_text(figures: Figures) -> str:
    if not 0 < figures.wall_us < math.inf:
        return "not measured"
    return f"{time_text(figures.wall_us)} ± {time_text(figures.wall_spread_us)}"


def _why_no_time(baseline: Figures, now: Figures) -> str:
    """Why times are not compared; empty where they are."""
    for which, figures in (("baseline", baseline), ("report", now)):
        if not 0 < figures.wall_us < math.inf:
            return f"the {which} has no measured time"
        if not 0 < figures.wall_spread_us < math.inf:
            return f"the {which} was timed once: its spread is not known"
    old, new = baseline.machine, now.machine
    for what, one, other in (
        ("processor", old.cpu, new.cpu),
        ("threads", str(old.threads), str(new.threads)),
        ("devices", ", ".join(old.devices), ", ".join(new.devices)),
        ("device", old.device, new.device),
    ):
        if one != other:
            return (
                f"another machine ({what}: {name_text(one) or 'none'}, now "
                f"{name_text(other) or 'none'})"
            )
    for what, before, after in (
        ("memory bandwidth", old.bandwidth_gb_per_s, new.bandwidth_gb_per_s),
        ("dispatch time", old.dispatch_us, new.dispatch_us),
    ):
        least, most = sorted((before, after))
        if not (least > 0 and most <= CEILING_RATIO * least < math.inf):  # not a number: neither
            return (
                f"the machine's {what} was {plain_number(before)} and is now {plain_number(after)}:"
                " another machine, or a busy one"
            )
    return ""


def _notes(baseline: Figures, now: Figures) -> tuple[str, ...]:
    notes = []
    if baseline.inputs != now.inputs:
        notes.append(
            f"the inputs differ (baseline: {one_line(', '.join(baseline.inputs), 200) or 'none'}; "
            f"now: {one_line(', '.join(now.inputs), 200) or 'none'}): bytes and times follow them"
        )
    if baseline.modules != now.modules:
        notes.append("the model's outermost modules are not all the same")
    if now.ignored:
        notes.append(f"{plural(now.ignored, 'finding')} ignored by comments: not counted")
    return tuple(notes)


# -- showing -----------------------------------------------------------------------------------


def comparison_text(comparison: Comparison) -> str:
    """For a terminal or a log."""
    widths = [
        max([len(getattr(line, name)) for line in comparison.lines], default=0)
        for name in ("outcome", "metric", "baseline", "now")
    ]
    rows = [
        f"  {line.outcome:<{widths[0]}}  {line.metric:<{widths[1]}}  baseline "
        f"{line.baseline:<{widths[2]}}  now {line.now:<{widths[3]}}  {_limit(line)}".rstrip()
        for line in comparison.lines
    ]
    notes = [f"  note: {note}" for note in comparison.notes]
    return "\n".join([comparison.headline, *rows, *notes, *_hint(comparison.lines)])


def _limit(line: Line) -> str:
    return f"limit {line.limit}" if line.limit else line.note


def _hint(lines: Sequence[Line]) -> list[str]:
    outcomes = {line.outcome for line in lines}
    if "better" in outcomes and "regressed" not in outcomes:
        return ["  better than the baseline: keep it with --write-baseline"]
    return []


def comparison_markdown(comparison: Comparison) -> str:
    """For a pull request or a job's summary."""
    rows = [
        f"| {'**regressed**' if line.outcome == 'regressed' else line.outcome} | "
        + " | ".join(
            markdown_text(cell)
            for cell in (line.metric, line.baseline, line.now, line.limit or line.note)
        )
        + " |"
        for line in comparison.lines
    ]
    notes = [f"- Note: {markdown_text(note)}" for note in comparison.notes]
    return "\n".join(
        [
            f"## {markdown_text(comparison.headline)}",
            "",
            f"Run: {markdown_text(comparison.title or 'not named')}",
            "",
            "| | Figure | Baseline | Now | Limit |",
            "|---|---|---|---|---|",
            *rows,
            *(["", *notes] if notes else []),
        ]
    )


def comparison_json(comparison: Comparison) -> str:
    """For a program."""
    document = {
        "regressed": comparison.regressed,
        "headline": comparison.headline,
        "title": comparison.title,
        "figures": [
            {
                "metric": line.metric,
                "outcome": line.outcome,
                "unit": line.unit,
                "baseline": line.values[0],
                "now": line.values[1],
                "limit": line.values[2],
                "note": line.note,
            }
            for line in comparison.lines
        ],
        "notes": list(comparison.notes),
    }
    return json.dumps(document, indent=1)
