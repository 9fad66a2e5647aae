"""Numbers about the whole run: fusion ratios, and why nothing is worth fusing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fusion_advisor.analysis.cost import CostModel
from fusion_advisor.analysis.findings import Threshold
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.quantities import time_text
from fusion_advisor.records import FusionCandidate, FusionRatio

# Kernels that are several ops in one already, by namespace or by how their name begins.
_FUSED_NAMESPACES = frozenset({"triton", "inductor", "fusion_advisor", "xformers", "apex"})
_FUSED_PREFIXES = ("_fused_", "fused_", "triton_")


def is_fused_kernel(op: str) -> bool:
    """Whether the op is an already fused kernel, by its name."""
    namespace, _, rest = op.partition(".")
    return namespace in _FUSED_NAMESPACES or rest.startswith(_FUSED_PREFIXES)


def ratios(model: TrafficModel, candidates: Iterable[FusionCandidate]) -> tuple[FusionRatio, ...]:
    """Ops inside fused groups over ops that touch memory: as it is, and in the plan."""
    index = model.index
    working = [not op.idle for op in model.ops]
    fused: set[int] = set()
    known: dict[int, bool] = {}  # by the call's form
    for position, (node, call) in enumerate(zip(index.nodes, index.calls, strict=True)):
        if call not in known:
            known[call] = is_fused_kernel(node.op)
        if known[call] and working[position]:
            fused.add(position)
    planned = {index.positions[node] for candidate in candidates for node in candidate.nodes}
    planned = {position for position in planned if working[position]}
    ops = sum(working)
    return (
        FusionRatio(name="as it is", fused_ops=len(fused), ops=ops),
        FusionRatio(name="plan", fused_ops=len(fused | planned), ops=ops),
    )


def nothing_text(
    model: CostModel,
    candidates: Sequence[FusionCandidate],
    *,
    best_us: float,
    least: Threshold,
    frame_groups: int,
) -> str:
    """One sentence or two on why no finding is reported.

    ``frame_groups`` counts the forward's groups that lie in one place of the source.
    """
    index = model.index
    time: defaultdict[str, float] = defaultdict(float)
    for position, node in enumerate(index.nodes):
        time[node.kind] += model.op_us[position]
    total = sum(time.values())
    if not index.nodes or total <= 0:
        return "Nothing was recorded that takes time."
    kind, most = max(time.items(), key=lambda item: item[1])
    first = f"{most / total:.0%} of the ops' time is in {kind} ops."
    if not candidates:
        count = sum(info is not None for info in index.infos)
        if count < 2:
            return f"{first} There is {'one' if count else 'no'} elementwise op in it."
        return (
            f"{first} No two of the {count} elementwise ops can share a kernel: "
            "each stands between ops that need whole rows, or no kernel is made for it."
        )
    groups = "1 group" if len(candidates) == 1 else f"{len(candidates)} groups"
    legal = f"{groups} of ops can legally share a kernel"
    phases = [index.nodes[index.positions[each.nodes[0]]].phase for each in candidates]
    behind = sum(phase != "forward" for phase in phases)
    if behind:
        legal += f", {behind} of them outside the forward, where the source does not run op by op"
    if not frame_groups:
        return f"{first} {legal}{';' if behind else ','} but none lies in one place of the source."
    again = any(model.recomputes(candidate) for candidate in candidates)
    if best_us <= 0:
        why = " (backward would run the eager ops again, which costs more than fusing saves)"
        than = f"a fused call costs more than it would save{why if again else ''}."
        return f"{first} {legal}{';' if behind else ', but'} {than}"
    counted = " (with the eager ops that backward would run again)" if again else ""
    return (
        f"{first} {legal}; the best place would save {time_text(best_us)}{counted}, "
        f"below the {time_text(least.us)} that count ({least.reason})."
    )
