"""What every report says, worked out once: headline, findings in words, where the time goes.

Text, page and notebook display differ in markup only; the sentences and numbers are made here.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from fusion_advisor.analysis.traffic import moves_memory
from fusion_advisor.quantities import (
    bytes_text,
    percent_text,
    plain_number,
    plural,
    time_text,
    times_text,
)
from fusion_advisor.records import (
    IN_PLACE_ALREADY,
    AppliedFix,
    Capture,
    CostEstimate,
    Finding,
    Fix,
    KernelSource,
    OpNode,
    Report,
    SourceSpan,
    TimingPair,
    ValidationResult,
    Verdict,
)
from fusion_advisor.report.values import name_text, one_line, op_text

FAST = "Its kernel rounds less often than eager (match=fast): results differ within the budget."
MAX_NAMED_OPS = 8  # a longer chain is told by its ends


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """A finding with all that was done about it, and the words for it."""

    finding: Finding
    rank: int
    place: str
    ops: tuple[str, ...]
    kernel: KernelSource | None
    validation: ValidationResult | None
    fixes: tuple[Fix, ...]
    applied: AppliedFix | None

    @property
    def id(self) -> str:
        return self.finding.id

    @property
    def estimate(self) -> CostEstimate:
        return self.finding.estimate

    @property
    def count(self) -> int:
        """How many times the same program runs from this place."""
        return len(self.finding.occurrences)

    @property
    def what(self) -> str:
        """The ops in order: ``pow → mul → add → tanh``, times how often."""
        names = self.ops
        if len(names) > MAX_NAMED_OPS:
            hidden = len(names) - 6
            names = (*names[:3], f"… {hidden} more …", *names[-3:])
        times = f"  (× {self.count})" if self.count > 1 else ""
        return " → ".join(names) + times

    @property
    def saving(self) -> str:
        return time_text(self.estimate.saved_mid_us)

    @property
    def saving_range(self) -> str:
        low, high = self.estimate.saved_low_us, self.estimate.saved_high_us
        return f"{time_text(low)} to {time_text(high)}"

    @property
    def share(self) -> str:
        return percent_text(self.finding.share)

    @property
    def traffic(self) -> str:
        return f"{bytes_text(self.estimate.bytes_before)} → {bytes_text(self.estimate.bytes_after)}"

    @property
    def launches(self) -> str:
        return f"{self.estimate.launches_before:,} → {self.estimate.launches_after:,}"

    @property
    def in_place(self) -> bool:
        return self.applied is not None and not self.applied.undone

    @property
    def state(self) -> str:
        """One or two words: how far this finding has come."""
        if self.in_place:
            return "in place"
        if self.finding.ignored:
            return "ignored"
        if self.applied is not None:
            return "not applied" if self.applied.reason.startswith("not applied") else "taken out"
        if self.validation is not None:
            names = {
                "passed": "validated",
                "failed": "failed validation",
                "not run": "not validated",
            }
            return names[self.validation.status]
        return "kernel generated" if self.kernel is not None else "found"

    @property
    def safety(self) -> str:
        """Whether it is safe, in a sentence that says on what evidence."""
        if self.validation is not None:
            sentence = validation_sentence(self.validation)
            return f"{sentence} {FAST}" if self.rounds_less else sentence
        return {
            "safe": "Legal to fuse; validated against eager before anything is put in place.",
            "unsafe": "May change results: read the notes before you apply it.",
            "display-only": "Shown only: it is not applied automatically.",
        }[self.finding.safety]

    @property
    def rounds_less(self) -> bool:
        """Whether the kernel is one of ``match="fast"``."""
        return self.kernel is not None and self.kernel.program.match == "fast"

    @property
    def next_magic(self) -> str:
        """The line to type next in a notebook."""
        if self.in_place:
            return f"%fuse_undo {self.id}"
        if self.finding.safety == "display-only" or self._refused:
            return f"%fuse_show {self.id}"
        return f"%fuse_apply {self.id}{' --match fast' if self.rounds_less else ''}"

    @property
    def next_python(self) -> str:
        """The same step from Python."""
        if self.in_place:
            return f'advice.undo("{self.id}")'
        if self.finding.safety == "display-only":
            return f'advice.finding("{self.id}").message'
        if self._refused:
            return f'advice.fuse("{self.id}").text'
        match = ', match="fast"' if self.rounds_less else ""
        return f'advice.apply("{self.id}"{match})'

    @property
    def _refused(self) -> bool:
        return self.validation is not None and self.validation.status == "failed"


def finding_views(report: Report) -> tuple[FindingView, ...]:
    """All findings with kernel, validation, fixes and last application: best first, then those
    that a comment ignores.
    """
    nodes = {node.id: node for node in report.capture.graph.nodes}
    kernels, validations = dict(report.kernels), dict(report.validations)
    fixes = dict(report.fixes)
    applied = {fix.finding: fix for fix in report.applied}
    return tuple(
        FindingView(
            finding=finding,
            rank=rank,
            place=place_text(finding.span),
            ops=_op_names(finding, nodes),
            kernel=kernels.get(finding.id),
            validation=validations.get(finding.id),
            fixes=fixes.get(finding.id, ()),
            applied=applied.get(finding.id),
        )
        for rank, finding in enumerate((*_best_first(report), *ignored(report)), start=1)
    )


def _best_first(report: Report) -> list[Finding]:
    def saving(finding: Finding) -> float:
        us = finding.estimate.saved_mid_us
        return us if math.isfinite(us) else 0.0

    return sorted(counted(report), key=saving, reverse=True)


def counted(report: Report) -> tuple[Finding, ...]:
    """The findings that headline and sums are about."""
    return tuple(finding for finding in report.findings if not finding.ignored)


def ignored(report: Report) -> tuple[Finding, ...]:
    """The findings that a ``# fuse: ignore`` comment stands at."""
    return tuple(finding for finding in report.findings if finding.ignored)


def advice_only(finding: Finding) -> str:
    """Why no kernel is made of a finding; empty for those that a kernel serves."""
    if finding.safety != "display-only":
        return ""
    return f"{finding.id} is advice without a kernel ({finding.rule}: {finding.title})"


def _op_names(finding: Finding, nodes: dict[str, OpNode]) -> tuple[str, ...]:
    if not finding.occurrences:
        return ()
    shown = finding.occurrences[0].nodes
    return tuple(op_text(nodes[node].op) if node in nodes else name_text(node) for node in shown)


def place_text(span: SourceSpan | None) -> str:
    """Where something stands: ``In [3], line 4`` or ``model.py:17 in forward``."""
    if span is None:
        return "no source line (compiled or built-in code)"
    if span.kind == "cell":
        number = "?" if span.execution_count is None else str(span.execution_count)
        place = f"In [{number}], line {span.line}"
    else:
        name = span.file.replace("\\", "/").rsplit("/", 1)[-1]
        place = f"{name_text(name)}:{span.line}"
    if span.function and span.function != "<module>":
        place += f" in {name_text(span.function)}"
    return place + (" (installed package)" if span.installed else "")


def validation_sentence(result: ValidationResult) -> str:
    """The outcome of the ladder in one sentence with its figures."""
    run = sum(rung.status == "passed" for rung in result.rungs)
    skipped = sum(rung.status == "not run" for rung in result.rungs)
    rungs = f"{run} of {plural(len(result.rungs), 'check')} passed"
    if skipped:
        rungs += f", {skipped} not run here"
    if result.status == "failed":
        failed = next((rung for rung in result.rungs if rung.status == "failed"), None)
        why = f": {failed.name}: {one_line(failed.detail)}" if failed else ""
        return f"Not safe, not applied: validation failed{why}"
    if result.status == "not run":
        return f"Not validated yet ({rungs})."
    return (
        f"Validated: {result.mismatches:,} mismatches in {plural(result.cases, 'case')}, "
        f"{error_text(result)}; "
        f"{rungs}."
    )


def error_text(result: ValidationResult) -> str:
    """The worst error as a share of its budget, and in ULP where nothing cancelled."""
    if not result.worst_share and not result.worst_ulp:
        return "bit-equal to eager"
    distance = (
        f"worst {plain_number(result.worst_ulp)} ULP, where {plain_number(result.budget_ulp)} are "
        "allowed"
    )
    if not result.worst_share:
        return f"{distance}"
    share = f"{percent_text(result.worst_share)} of its error budget"
    if not result.worst_ulp:
        return f"worst error {share}"
    return f"worst error {share}; without cancellation {distance}"


def timing_sentence(pair: TimingPair) -> str:
    """Measured eager and fused time of one kernel, beside what was predicted."""
    text = (
        f"{pair.target.upper() if pair.target == 'cpu' else 'CUDA'}, {pair.inputs or 'own'} "
        f"inputs: "
        f"eager {time_text(pair.eager_us)} ± {time_text(pair.eager_spread_us)}, "
        f"fused {time_text(pair.fused_us)} ± {time_text(pair.fused_spread_us)} "
        f"({times_text(pair.eager_us, pair.fused_us)})"
    )
    if pair.predicted_us > 0:
        text += f"; predicted {time_text(pair.predicted_us)}"
    return text


def applied_sentence(fix: AppliedFix) -> str:
    """What applying did to the whole call, and the way back."""
    where = plural(len(fix.places), "place") if fix.places else one_line(fix.where)
    if fix.reason == IN_PLACE_ALREADY:
        return (
            f"{fix.finding} {fix.reason}; to put it in another way: %fuse_undo {fix.finding} first"
        )
    if fix.undone:
        return f"{fix.finding} is not in place: {one_line(fix.reason) or 'undone'}"
    measured = (
        f"whole call {time_text(fix.before_us)} → {time_text(fix.after_us)} "
        f"({times_text(fix.before_us, fix.after_us)}), "
        if fix.before_us > 0 and fix.after_us > 0
        else "whole call not timed, for only a module's call on plain data is run again; "
    )
    return f"{fix.finding} in place: {measured}{where} changed; undo: %fuse_undo {fix.finding}"


# -- the whole run -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The run as a whole."""

    headline: str
    facts: tuple[tuple[str, str, str], ...]  # label, figure, explanation
    warnings: tuple[str, ...]


def summarize(report: Report) -> Summary:
    """The headline, the figures beside it, and what limits them."""
    return Summary(
        headline=headline(report),
        facts=tuple(_facts(report)),
        warnings=tuple(_warnings(report)),
    )


def headline(report: Report) -> str:
    """One sentence: what to gain, or that there is nothing."""
    where = "" if report.device is None else f" on {one_line(report.device.name)} (estimate)"
    if not report.findings:
        reason = one_line(report.nothing) or "no group of ops would get faster."
        return f"Nothing worth fusing{where}: {reason}"
    findings = counted(report)
    if not findings:
        return f"Nothing left to fuse{where}: {ignored_sentence(report)}."
    saved = sum(finding.estimate.saved_mid_us for finding in findings)
    places = plural(len(findings), "place")
    text = f"Fusing {places} would save about {time_text(saved)}"
    run_us = run_time_us(report)
    if run_us > 0:
        text += f" of {time_text(run_us)}"
        return f"{text} per run{where} ({percent_text(min(1.0, saved / run_us))})"
    return f"{text} per run{where}"


def ignored_sentence(report: Report) -> str:
    """How much comments ignore; empty where they ignore nothing."""
    left = ignored(report)
    if not left:
        return ""
    saved = time_text(sum(finding.estimate.saved_mid_us for finding in left))
    return f"{plural(len(left), 'finding')} ignored by comments, which would save {saved}"


def run_time_us(report: Report) -> float:
    """The time of a run that savings are part of: measured, or estimated for another device."""
    return report.wall_us or (report.capture.wall_us if report.device is None else 0.0)


def _facts(report: Report) -> list[tuple[str, str, str]]:
    capture = report.capture
    facts = [
        (
            "Time per run",
            time_text(capture.wall_us) if capture.wall_us else "not measured",
            ("" if report.device is None else "measured here, not there: ") + _wall_text(capture),
        )
    ]
    if report.device is not None:
        facts.append(
            (
                "Estimated time",
                time_text(run_time_us(report)),
                f"on {one_line(report.device.name)}, from its data sheet; savings and shares refer "
                "to it",
            )
        )
    if report.bytes_before:
        saved = 1 - report.bytes_after / report.bytes_before
        facts.append(
            (
                "Memory traffic",
                f"{bytes_text(report.bytes_before)} → {bytes_text(report.bytes_after)}",
                f"{percent_text(saved)} less with every legal group fused; each op's distinct "
                "reads and writes",
            )
        )
    before, after = launches(report)
    if before:
        facts.append(
            ("Kernels launched", f"{before:,} → {after:,}", "with every legal group fused")
        )
    ratios = ", ".join(
        f"{one_line(ratio.name)} {percent_text(ratio.fused_ops / ratio.ops if ratio.ops else 0.0)}"
        for ratio in report.ratios
    )
    facts.append(
        (
            "Ops",
            f"{compute_ops(capture):,}",
            f"{len(capture.graph.nodes):,} dispatched, views included"
            + (f"; in fused groups: {ratios}" if ratios else ""),
        )
    )
    if ignored(report):
        left = plural(len(ignored(report)), "finding")
        facts.append(("Ignored", left, "by # fuse: ignore comments; not in the sums"))
    facts.append(("Recording", proof_word(capture), one_line(capture.proof.message)))
    return facts


def _wall_text(capture: Capture) -> str:
    if not capture.wall_us:
        return "no replay was timed"
    if not capture.wall_spread_us:
        return "one warmed, uninstrumented replay: its spread is not known"
    spread = time_text(capture.wall_spread_us)
    return f"median of warmed, uninstrumented replays (spread {spread})"


def proof_word(capture: Capture) -> str:
    """How the replay proof ended, in a word or two."""
    proof = capture.proof
    if proof.status == "passed":
        if not proof.compared_values:
            return "replayed, nothing to compare"  # no result came back from the run
        return "proven, within tolerance" if proof.tolerant_nodes else "proven bitwise"
    return "not proven" if proof.status == "failed" else "proof not run"


def compute_ops(capture: Capture) -> int:
    """Ops that touch memory: views, metadata ops and unwritten new tensors do not count."""
    return sum(moves_memory(node) for node in capture.graph.nodes)


def launches(report: Report) -> tuple[int, int]:
    """Kernels as it is and with every legal group fused; device counts where the run had any."""
    counted = sum(time.kernels for time in report.capture.times)
    before = counted or compute_ops(report.capture)
    saved = sum(estimate.launches_before - estimate.launches_after for estimate in report.estimates)
    return before, max(0, before - saved)


def _warnings(report: Report) -> list[str]:
    capture = report.capture
    found = []
    if capture.truncated:
        found.append(f"Recording stopped early: {one_line(capture.truncated)}")
    if capture.proof.status == "failed":
        found.append(
            "The recording could not be proven by replay, so fixes that touch the unproven part "
            f"are refused: {one_line(capture.proof.message)}"
        )
    seen: set[str] = set()
    for note in (*capture.notes, *report.notes):
        text = one_line(note)
        if text and text not in seen:
            seen.add(text)
            found.append(text)
    return found


def question_text(verdict: Verdict) -> str:
    """A verdict's question as one: ``Long enough?``."""
    text = one_line(verdict.question).rstrip("?")
    return text[:1].upper() + text[1:] + "?"


def time_by_kind(capture: Capture) -> tuple[tuple[str, float, int], ...]:
    """Attributed time by op kind (kind, us, ops), largest first, then the unaccounted rest."""
    kinds = {node.id: node.kind for node in capture.graph.nodes}
    on_device = any(time.device_us > 0 for time in capture.times)
    spent: Counter[str] = Counter()
    ops: Counter[str] = Counter()
    for time in capture.times:
        kind = kinds.get(time.node, "other")
        spent[kind] += time.device_us if on_device else time.host_us  # type: ignore[assignment]
        ops[kind] += 1
    rows = sorted(
        ((kind, us, ops[kind]) for kind, us in spent.items()), key=lambda row: (-row[1], row[0])
    )
    if not rows:
        return ()
    rest = capture.wall_us - sum(us for _, us, _ in rows)
    return (*rows, ("unaccounted (Python, waiting, overlap)", rest, 0))


def bound_counts(report: Report) -> tuple[tuple[str, int], ...]:
    """How many ops are memory-, compute- or overhead-bound, most first."""
    counts = Counter(bound for _, bound in report.bounds)
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def environment_rows(report: Report) -> tuple[tuple[str, str], ...]:
    """What the run was recorded with and on, and how it was proven."""
    environment, proof = report.capture.environment, report.capture.proof
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages)
    compared = f"{proof.status}: {plural(proof.compared_values, 'value')} compared"
    compared += ", in a separate process" if proof.isolated else ""
    return (
        ("Recorded", environment.recorded_at or "unknown"),
        ("Python", environment.python),
        ("Packages", packages or "unknown"),
        ("Processor", f"{environment.cpu or 'unknown'}, {plural(environment.threads, 'thread')}"),
        ("Devices", ", ".join(environment.devices) or "no accelerator"),
        ("Platform", environment.platform or "unknown"),
        ("Replay proof", f"{compared}. {proof.message}"),
    )


def blocker_places(report: Report) -> tuple[tuple[str, str, str, str], ...]:
    """The why-not list: code, ops, place, reason; repeated reasons are counted once."""
    nodes = {node.id: node for node in report.capture.graph.nodes}
    rows: dict[tuple[str, str, str, str], int] = {}
    for blocker in report.why_not:
        known = [nodes[name] for name in blocker.nodes if name in nodes]
        ops = " → ".join(op_text(node.op) for node in known) or "—"
        span = next((node.span for node in known if node.span is not None), None)
        place = place_text(span) if span is not None else ""
        key = (one_line(blocker.code), ops, place, one_line(blocker.message))
        rows[key] = rows.get(key, 0) + 1
    return tuple(
        (code, ops + (f"  (× {count})" if count > 1 else ""), place, message)
        for (code, ops, place, message), count in rows.items()
    )
