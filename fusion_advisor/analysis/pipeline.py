"""The whole analysis of one capture, each stage once over one index."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

from fusion_advisor.analysis.chains import (
    Grouping,
    explain,
    group_ops,
    group_within_frames,
    index_graph,
)
from fusion_advisor.analysis.cost import CostModel
from fusion_advisor.analysis.findings import (
    MIN_SAVING_US,
    MIN_SHARE,
    find_findings,
    in_forward,
    threshold,
)
from fusion_advisor.analysis.optimizer import find_optimizer_step
from fusion_advisor.analysis.partition import make_candidate
from fusion_advisor.analysis.summary import nothing_text, ratios
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.records import (
    BandwidthPoint,
    Blocker,
    Bound,
    Capture,
    Ceilings,
    CostEstimate,
    Finding,
    FusionCandidate,
    FusionRatio,
)

# Stands in where a capture has no ceilings: a slow laptop core, so that savings are not oversold.
ASSUMED_CEILINGS = Ceilings(
    device="cpu",
    name="assumed CPU",
    bandwidth=(BandwidthPoint(working_set_bytes=2**20, gb_per_s=20.0),),
    gflops=(("float32", 30.0), ("float64", 15.0)),
    dispatch_us=2.0,
    origin="table",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalysisOptions:
    """What may be chosen.

    ``device`` are the ceilings of a device that is not here: all times, before and after, are
    then estimated for it.  ``min_saving_us`` and ``min_share`` bound what is reported.
    """

    device: Ceilings | None = None
    min_saving_us: float = MIN_SAVING_US
    min_share: float = MIN_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """All that is said about a capture; ``estimates`` go with ``candidates`` one to one."""

    candidates: tuple[FusionCandidate, ...]
    estimates: tuple[CostEstimate, ...]
    findings: tuple[Finding, ...]
    why_not: tuple[Blocker, ...]
    ratios: tuple[FusionRatio, ...]
    bounds: tuple[tuple[str, Bound], ...]
    bytes_before: int
    bytes_after: int
    wall_us: float  # what shares refer to: measured, or estimated for ``options.device``
    nothing: str
    notes: tuple[str, ...] = ()


def analyze(
    capture: Capture, *, first_id: int = 1, options: AnalysisOptions | None = None
) -> Analysis:
    """Candidates, findings and numbers of one capture; findings are named from ``F<first_id>``.

    Raises AnalysisError where the recording contradicts itself.
    """
    with _collector_paused():
        return _analyze(capture, first_id, options or AnalysisOptions())


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Records make no cycles, and the collector would walk all of them over and over."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # what is new lives on: straight to the oldest generation
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _analyze(capture: Capture, first_id: int, options: AnalysisOptions) -> Analysis:
    index = index_graph(capture.graph)
    whole = group_ops(index)
    why_not, ends = explain(whole)
    candidates = whole.candidates(ends)
    framed = group_within_frames(whole)
    traffic = TrafficModel(index)
    ceilings = options.device or capture.ceilings or ASSUMED_CEILINGS
    here = options.device is None
    measured = here and capture.wall_us > 0
    model = CostModel(
        index,
        traffic,
        capture.times if here else (),
        ceilings,
        recompute_in_backward=any(node.phase == "backward" for node in index.nodes),
        spread=capture.wall_spread_us / capture.wall_us if measured else 0.0,
    )
    wall_us = capture.wall_us if measured else sum(model.op_us)
    least = threshold(
        wall_us,
        capture.wall_spread_us if measured else 0.0,
        min_saving_us=options.min_saving_us,
        min_share=options.min_share,
    )
    ids: Iterator[str] = (f"F{number}" for number in count(first_id))
    placed = _placed(framed, candidates)
    findings, best = find_findings(model, placed, ids=ids, wall_us=wall_us, least=least)
    step = find_optimizer_step(model, ids=ids, wall_us=wall_us, least=least)
    if step is not None:
        findings = (*findings, step)
    findings = _explained(findings, candidates, framed)
    estimates = tuple([model.estimate(candidate) for candidate in candidates])
    before = traffic.total
    after = before + sum(one.bytes_after - one.bytes_before for one in estimates)
    return Analysis(
        candidates=candidates,
        estimates=estimates,
        findings=findings,
        why_not=why_not,
        ratios=ratios(traffic, candidates),
        bounds=tuple(
            [
                (node.id, model.bound(i))
                for i, (node, op) in enumerate(zip(index.nodes, traffic.ops, strict=True))
                if not op.idle
            ]
        ),
        bytes_before=before,
        bytes_after=after,
        wall_us=wall_us,
        nothing=""
        if findings
        else nothing_text(
            model,
            candidates,
            best_us=best,
            least=least,
            frame_groups=sum(in_forward(index, candidate) for candidate in placed),
        ),
        notes=_notes(capture, options),
    )


def _placed(
    framed: Grouping, candidates: tuple[FusionCandidate, ...]
) -> tuple[FusionCandidate, ...]:
    """The groups within frames; those of the whole run are the same records."""
    known = {candidate.id: candidate for candidate in candidates}
    return tuple(
        [
            known.get(name) or make_candidate(framed.index, piece, name, ())
            for piece, name in zip(framed.pieces, framed.names, strict=True)
        ]
    )


def _explained(
    findings: tuple[Finding, ...], candidates: tuple[FusionCandidate, ...], framed: Grouping
) -> tuple[Finding, ...]:
    """The findings with occurrences that say where each group ends, and why."""
    if not findings:
        return ()
    ends = dict(zip(framed.names, explain(framed)[1], strict=True))
    named = {each.id for each in candidates}  # these say it of the whole run

    def explained(each: FusionCandidate) -> FusionCandidate:
        if each.id in named or each.id not in ends:
            return each
        return replace(each, blockers=tuple(ends[each.id]))

    return tuple(
        replace(finding, occurrences=tuple([explained(each) for each in finding.occurrences]))
        for finding in findings
    )


def _notes(capture: Capture, options: AnalysisOptions) -> tuple[str, ...]:
    if options.device is not None:
        return (
            f"savings and shares are estimated for {options.device.name}, which is not in this "
            "machine, from its data sheet; times of ops, and what applying reports, are measured "
            "here",
        )
    if capture.ceilings is None:
        return ("no ceilings were measured on this machine; assumed ones stand in",)
    return ()
