"""Optimizer steps that update parameters one by one: advice, never a kernel (FUS006)."""

from __future__ import annotations

from collections.abc import Iterator

from fusion_advisor.analysis.cost import CostModel
from fusion_advisor.analysis.findings import Threshold, op_name, widest_span
from fusion_advisor.quantities import time_text
from fusion_advisor.records import Blocker, CostEstimate, Finding, FusionCandidate, Verdict

MIN_PARAMETERS = 4  # fewer gain nothing from a multi-tensor step


def find_optimizer_step(
    model: CostModel, *, ids: Iterator[str], wall_us: float, least: Threshold
) -> Finding | None:
    """Advice for the run's per-parameter optimizer ops, if a multi-tensor step would pay off.

    The finding's only occurrence is display-only: its nodes are the optimizer's ops, it has no
    operands and carries the blocker that says why no kernel is made of it.
    """
    index = model.index
    steps = [
        i
        for i, node in enumerate(index.nodes)
        if node.phase == "optimizer" and node.kind != "optimizer" and model.traffic.ops[i].writes
    ]
    parameters = {index.values[v].storage for i in steps for v in index.nodes[i].mutates}
    kinds = {index.nodes[i].op for i in steps}
    if len(parameters) < MIN_PARAMETERS or len(steps) < 2 * len(kinds):
        return None
    overhead = model.ceilings.launch_us if model.on_device else model.ceilings.dispatch_us
    before = sum(model.op_us[i] for i in steps)
    moving = sum(model.kernel_us(i) for i in steps)
    # One multi-tensor launch per kind of op; `fused` needs one in all.
    mid, low = moving + overhead * len(kinds), moving + overhead
    high = moving + 2 * overhead * len(kinds)
    if before - mid < least.us:
        return None
    unsure = model.unsure_us(steps)
    moved = sum(model.traffic.ops[i].total for i in steps)
    nodes = tuple(index.nodes[i].id for i in steps)
    names = ", ".join(sorted({op_name(op) for op in kinds}))
    return Finding(
        id=next(ids),
        rule="FUS006",
        title=f"optimizer updates {len(parameters)} tensors one by one",
        message=(
            f"{len(steps)} ops ({names}) update {len(parameters)} tensors; "
            "`foreach=True` or `fused=True` does it in a few launches. "
            f"Estimated {time_text(before)} → {time_text(mid)}."
        ),
        span=widest_span([index.nodes[i].span for i in steps]),
        occurrences=(
            FusionCandidate(
                id="optimizer",
                nodes=nodes,
                inputs=(),
                outputs=(),
                shape=(),
                pattern="dag",
                blockers=(
                    Blocker(
                        code="mutated-input",
                        nodes=nodes[:1],
                        message="an optimizer writes its parameters in place, each on its own",
                    ),
                ),
            ),
        ),
        estimate=CostEstimate(
            bytes_before=moved,
            bytes_after=moved,
            launches_before=len(steps),
            launches_after=len(kinds),
            flops=0.0,
            time_before_us=before,
            time_after_low_us=low,
            time_after_mid_us=mid,
            time_after_high_us=high,
            saved_low_us=before - unsure - high,
            saved_mid_us=before - mid,
            saved_high_us=before + unsure - low,
            bound="overhead-bound",
            terms=(("memory", moving), ("launches", overhead * len(kinds))),
        ),
        share=(before - mid) / wall_us if wall_us > 0 else 0.0,
        verdicts=(
            Verdict(
                question="several ops", holds=True, reason=f"{len(steps)} ops of {len(kinds)} kinds"
            ),
        ),
        safety="display-only",
    )
