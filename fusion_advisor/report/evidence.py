"""What a finding's figures rest on: the addends of the time model, and predicted against measured.

Worked out once, for every report that shows them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusion_advisor.quantities import bytes_text, plain_number, time_text, times_text
from fusion_advisor.records import AppliedFix, CostEstimate, Report
from fusion_advisor.report.values import one_line

# How the addends go together (analysis.cost): said once above every table of them.
_SUM_EXPLAINED = (
    "The fused time is the longer of memory and compute, the unhidden rest of the shorter, what "
    "fresh memory costs, and the call. Low and high vary how well the two overlap."
)
_TERMS = {
    "call": "host cost of calling the fused function",
    "launch": "starting a kernel on the device",
    "launches": "starting the kernels",
    "memory": "moving the bytes at the measured bandwidth of where they come from",
    "compute": "the arithmetic at the rate this device reaches for it",
    "unhidden": "the part of the shorter of the two that the longer does not hide",
    "first touch": "page faults of freshly allocated results",
    "recompute in backward": "running the eager ops again for their gradients",
}


def term_rows(estimate: CostEstimate) -> tuple[tuple[str, str, str], ...]:
    """Name, time and meaning of each addend of the fused time, over all occurrences."""
    return tuple(
        (one_line(name, 60), time_text(us), _TERMS.get(name, "")) for name, us in estimate.terms
    )


def terms_explained(estimate: CostEstimate) -> str:
    """How the terms of a kernel go together; empty for estimates made of other terms."""
    names = {name for name, _ in estimate.terms}
    return _SUM_EXPLAINED if {"memory", "compute"} <= names else ""


def before_text(report: Report) -> str:
    """Where the time before comes from, in a word."""
    return "measured" if report.device is None else "estimated"


def textbook_text(estimate: CostEstimate) -> str:
    """The textbook's N(M + C) → M + NC for the same group; empty where it was not worked out."""
    if estimate.textbook_before_us <= 0:
        return ""
    return (
        f"{time_text(estimate.textbook_before_us)} → {time_text(estimate.textbook_after_us)} "
        f"({times_text(estimate.textbook_before_us, estimate.textbook_after_us)})"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One kernel timed beside eager on the same inputs, and what was predicted for it; us."""

    finding: str
    target: str
    inputs: str
    eager_us: float
    eager_spread_us: float
    fused_us: float
    fused_spread_us: float
    predicted_us: float  # 0: nothing was predicted for this target

    @property
    def speedup(self) -> str:
        return times_text(self.eager_us, self.fused_us)

    @property
    def eager(self) -> str:
        return f"{time_text(self.eager_us)} ± {time_text(self.eager_spread_us)}"

    @property
    def fused(self) -> str:
        return f"{time_text(self.fused_us)} ± {time_text(self.fused_spread_us)}"

    @property
    def predicted(self) -> str:
        return time_text(self.predicted_us) if self.predicted_us > 0 else "not predicted"

    @property
    def verdict(self) -> str:
        """By how much the prediction was off, and whether that is more than the spread."""
        if self.predicted_us <= 0 or self.fused_us <= 0:
            return ""
        inside = abs(self.fused_us - self.predicted_us) <= self.fused_spread_us
        within = ", within the spread" if inside else ""
        return f"{plain_number(self.fused_us / self.predicted_us)} × the prediction{within}"


def measured_rows(report: Report) -> tuple[Measured, ...]:
    """Every timing of a kernel, in the order of the findings."""
    validations = dict(report.validations)
    return tuple(
        Measured(
            finding=finding.id,
            target="CPU" if pair.target == "cpu" else pair.target.upper(),
            inputs=pair.inputs or "own",
            eager_us=pair.eager_us,
            eager_spread_us=pair.eager_spread_us,
            fused_us=pair.fused_us,
            fused_spread_us=pair.fused_spread_us,
            predicted_us=pair.predicted_us,
        )
        for finding in report.findings
        if finding.id in validations
        for pair in validations[finding.id].timings
    )


def applied_rows(report: Report) -> tuple[tuple[str, str, str, str, str], ...]:
    """What putting kernels in place did to the whole call: finding, before, after, ratio, state."""
    return tuple(
        (
            fix.finding,
            time_text(fix.before_us),
            time_text(fix.after_us),
            times_text(fix.before_us, fix.after_us),
            _state(fix),
        )
        for fix in report.applied
        if fix.before_us > 0 and fix.after_us > 0
    )


def ceiling_rows(report: Report) -> tuple[tuple[str, str], ...]:
    """What the device can do, which every estimate rests on."""
    ceilings = report.device or report.capture.ceilings
    if ceilings is None:
        return ()
    origin = "measured here" if ceilings.origin == "measured" else "from its data sheet"
    when = f" at {one_line(ceilings.measured_at, 40)}" if ceilings.measured_at else ""
    bandwidth = ", ".join(
        f"{plain_number(point.gb_per_s)} GB/s at {bytes_text(point.working_set_bytes)}"
        for point in ceilings.bandwidth
    )
    rows = [
        ("Ceilings", f"{one_line(ceilings.name, 80)}, {origin}{when}"),
        ("Bandwidth by working set", bandwidth or "unknown"),
        (
            "Arithmetic",
            ", ".join(f"{name} {plain_number(rate)} GFLOP/s" for name, rate in ceilings.gflops)
            or "unknown",
        ),
        ("One eager op", f"{time_text(ceilings.dispatch_us)} of dispatch"),
    ]
    for name, us in (("A kernel launch", ceilings.launch_us), ("A fused call", ceilings.call_us)):
        if us > 0:
            rows.append((name, time_text(us)))
    if ceilings.page_fault_us_per_mb > 0:
        rows.append(("Fresh memory", f"{time_text(ceilings.page_fault_us_per_mb)} per MB"))
    return tuple(rows)


def _state(fix: AppliedFix) -> str:
    return f"taken out: {one_line(fix.reason) or 'undone'}" if fix.undone else "in place"
