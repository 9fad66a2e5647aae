"""The time model: what an op costs, what a fused kernel would cost, and what bounds an op.

Time of a kernel = max(compute, memory), plus a part of the smaller of the two (they overlap only
partly), plus first touch of fresh memory, plus what a launch or call costs.  Memory time is bytes
over the measured ceiling *for where the bytes come from*: an operand last touched ``d`` bytes of
traffic ago streams at the rate measured for a working set of ``d``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.graph_index import GraphIndex
from fusion_advisor.analysis.kernel_time import (
    BANDWIDTH_SHARE_WORST,
    FRESH_ABOVE_BYTES,
    IDLE,
    PEAK_SHARE_HIGH,
    PEAK_SHARE_LOW,
    PEAK_SHARE_MID,
    RECYCLED_FAULT_SHARE_WORST,
    UNHIDDEN_MID,
    Bandwidth,
    Parts,
    estimate_registers,
    occupancy,
    reuse_distances,
)
from fusion_advisor.analysis.partition import element_count, item_bytes
from fusion_advisor.analysis.quick_records import quickly
from fusion_advisor.analysis.textbook import compare
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.analysis.work import fused_flops, op_flops, recipe
from fusion_advisor.ops.dtypes import opmath
from fusion_advisor.records import (
    Bound,
    Ceilings,
    CostEstimate,
    FusionCandidate,
    OpGraph,
    OpTime,
)

# A fused call's guard, plan look-up and launch, where the ceilings do not hold a measurement.
DEFAULT_CALL_US = 8.0
# An op is bound by the largest of overhead, memory and compute, if that explains at least this
# share of its measured time; otherwise its class is unknown.
EXPLAINED_SHARE = 0.25

_cost_estimate = quickly(CostEstimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fused:
    """What a group's kernel would take (low, middle, high), and its ops' work without dispatch."""

    bytes_before: int
    bytes_after: int
    flops: float
    us: tuple[float, float, float]
    terms: tuple[tuple[str, float], ...]
    registers: int
    occupancy: float
    textbook: tuple[float, float]
    limit: tuple[float, Bound]  # the longest part of the ops' time, and what it is spent on


class CostModel:
    """Times of the ops and candidates of one run on one device.

    ``times`` are measurements on the device of ``ceilings``; leave them out to estimate for a
    device that is not here.  ``spread`` is how far such a time may be off, as a part of it (the
    run's interquartile range over its median): savings are no surer than what they are taken from.
    """

    def __init__(
        self,
        index: GraphIndex,
        traffic: TrafficModel,
        times: Iterable[OpTime],
        ceilings: Ceilings,
        *,
        recompute_in_backward: bool = False,
        spread: float = 0.0,
    ) -> None:
        self.index = index
        self.traffic = traffic
        self.ceilings = ceilings
        self.recompute_in_backward = recompute_in_backward
        self.spread = min(1.0, spread)
        self.on_device = not ceilings.device.startswith("cpu")
        self.bandwidth = Bandwidth(ceilings)
        self._gflops = dict(ceilings.gflops)
        self._measured: list[OpTime | None] = [None] * len(index.nodes)
        for time in times:
            position = index.positions.get(time.node)
            if position is not None:
                self._measured[position] = time
        self._reuse = reuse_distances(index, traffic)
        self._known_fused: dict[tuple[object, ...], _Fused] = {}
        self._estimates: dict[tuple[str, ...], CostEstimate] = {}
        self.call_us = ceilings.call_us or DEFAULT_CALL_US
        # Layers repeat: calls of one form with equal reuse cost the same, and are one class.
        self._class_of = [0] * len(index.nodes)
        self._classes: list[Parts] = [IDLE]
        self._classify()
        self.host_bound = self._host_bound()
        self.op_us: list[float] = [self._op_time(i) for i in range(len(index.nodes))]
        self._limits = [self._limit(parts) for parts in self._classes]

    # -- ops -----------------------------------------------------------------------------------

    def _classify(self) -> None:
        known: dict[tuple[object, ...], int] = {}
        calls, reuse = self.index.calls, self._reuse
        for position, op in enumerate(self.traffic.ops):
            if not op.total:
                continue
            key = (calls[position], op.total, reuse[position])
            number = known.get(key)
            if number is None:
                number = known[key] = len(self._classes)
                self._classes.append(self._model_parts(position))
            self._class_of[position] = number

    def _parts(self, position: int) -> Parts:
        return self._classes[self._class_of[position]]

    def _model_parts(self, position: int) -> Parts:
        op, node = self.traffic.ops[position], self.index.nodes[position]
        memory = 0.0
        for size, distance in zip(op.reads, self._reuse[position], strict=True):
            memory += self.bandwidth.time_us(size, max(op.total, distance))
        written = sum(op.writes)
        memory += self.bandwidth.time_us(written, op.total)
        touch = 0.0 if node.mutates else self._first_touch(written, 0.0)
        flops = op_flops(self.index, position)
        compute = self._compute_us(flops, self._rate_dtype(position), PEAK_SHARE_MID)
        return Parts(memory, compute, touch)

    def _op_time(self, position: int) -> float:
        """Measured time, else the model's."""
        measured = self._measured[position]
        if measured is not None:
            if not self.on_device:
                return measured.host_us
            host = measured.host_us if self.host_bound else 0.0
            return max(host, measured.device_us)
        idle = self.traffic.ops[position].idle
        kernel = self._parts(position).total(UNHIDDEN_MID)
        if not self.on_device:
            return self.ceilings.dispatch_us + kernel
        device = 0.0 if idle else self.ceilings.launch_us + kernel
        return max(self.ceilings.dispatch_us, device) if self.host_bound else device

    def _host_bound(self) -> bool:
        """On an accelerator: whether the host cannot keep the device busy over the whole run."""
        if not self.on_device:
            return True
        host = device = 0.0
        for position, measured in enumerate(self._measured):
            if measured is not None:
                host += measured.host_us
                device += measured.device_us
                continue
            host += self.ceilings.dispatch_us
            if not self.traffic.ops[position].idle:
                device += self.ceilings.launch_us + self._parts(position).total(UNHIDDEN_MID)
        return host > device

    def kernel_us(self, position: int) -> float:
        """The model's time of the op without what dispatch or launch costs."""
        return self._parts(position).total(UNHIDDEN_MID)

    def bound(self, position: int) -> Bound:
        """What limits the op: overhead, memory or compute."""
        most, limit = self._limits[self._class_of[position]]
        return limit if most >= EXPLAINED_SHARE * self.op_us[position] else "unknown"

    def _limit(self, parts: Parts) -> tuple[float, Bound]:
        return self._longest(self._overhead_us, parts.memory + parts.first_touch, parts.compute)

    @property
    def _overhead_us(self) -> float:
        """What an op costs besides its work: a launch where the queue is full, or a dispatch."""
        hidden = self.on_device and not self.host_bound
        return self.ceilings.launch_us if hidden else self.ceilings.dispatch_us

    @staticmethod
    def _longest(overhead: float, memory: float, compute: float) -> tuple[float, Bound]:
        """The longest of three times, and what something that takes as long is bound by."""
        most = max(overhead, memory, compute)
        if most <= 0:
            return most, "unknown"
        if most == overhead:
            return most, "overhead-bound"
        return most, "memory-bound" if most == memory else "compute-bound"

    # -- candidates ----------------------------------------------------------------------------

    def estimate(self, candidate: FusionCandidate) -> CostEstimate:
        """What one kernel in place of the candidate's ops would change."""
        known = self._estimates.get(candidate.nodes)
        if known is None:
            known = self._estimates[candidate.nodes] = self._estimate(candidate)
        return known

    def unsure_us(self, members: Sequence[int]) -> float:
        """How far what was measured of some ops may be off, in microseconds, either way."""
        if not self.spread:
            return 0.0
        return self.spread * sum([self.op_us[m] for m in members if self._measured[m] is not None])

    def _estimate(self, candidate: FusionCandidate) -> CostEstimate:
        index = self.index
        members = [index.positions[node] for node in candidate.nodes]
        ops = self.traffic.ops
        working = [m for m in members if ops[m].total]
        # Layers repeat: groups of equal ops cost the same but for what was measured of each.
        key = (
            tuple([self._class_of[m] for m in members]),
            candidate.shape,
            len(candidate.inputs),
            len(candidate.outputs),
            candidate.nodes if candidate.regions else (),
        )
        fused = self._known_fused.get(key)
        if fused is None:
            fused = self._known_fused[key] = self._fused(candidate, members)
        before_us = 0.0
        for m in members:
            before_us += self.op_us[m]
        recompute = before_us if self.recomputes(candidate) else 0.0
        low, mid, high = [self._with_call(time, k) + recompute for k, time in enumerate(fused.us)]
        unsure = self.unsure_us(members)
        terms = (*fused.terms, ("recompute in backward", recompute)) if recompute else fused.terms
        most, limit = fused.limit
        return _cost_estimate(
            bytes_before=fused.bytes_before,
            bytes_after=fused.bytes_after,
            launches_before=self._launches(working),
            launches_after=1,
            flops=fused.flops,
            time_before_us=before_us,
            time_after_low_us=low,
            time_after_mid_us=mid,
            time_after_high_us=high,
            saved_low_us=before_us - unsure - high,
            saved_mid_us=before_us - mid,
            saved_high_us=before_us + unsure - low,
            textbook_before_us=fused.textbook[0],
            textbook_after_us=fused.textbook[1],
            registers=fused.registers,
            occupancy=fused.occupancy,
            bound=limit if most >= EXPLAINED_SHARE * before_us else "unknown",
            terms=terms,
        )

    def _fused(self, candidate: FusionCandidate, members: Sequence[int]) -> _Fused:
        """What does not depend on how long each op was seen to take."""
        index = self.index
        before_bytes, after_bytes = self.traffic.candidate(candidate)
        flops = fused_flops(index, candidate)
        memory = self._fused_memory_us(candidate, members, after_bytes)
        written = sum(self.traffic.size(self.index.numbers[value]) for value in candidate.outputs)
        peak_us = self._compute_us(flops, self._rate_dtype(members[-1]), 1.0)
        touch = self._first_touch(written, 0.0)
        low = max(memory, peak_us / PEAK_SHARE_HIGH) + touch
        compute_mid = peak_us / PEAK_SHARE_MID
        unhidden = UNHIDDEN_MID * min(memory, compute_mid)
        high = (
            memory / BANDWIDTH_SHARE_WORST
            + peak_us / PEAK_SHARE_LOW
            + self._first_touch(written, RECYCLED_FAULT_SHARE_WORST)
        )
        terms = (
            ("call", self.call_us),
            ("launch", self.ceilings.launch_us),
            ("memory", memory),
            ("compute", compute_mid),
            ("unhidden", unhidden),
            ("first touch", touch),
        )
        registers = estimate_registers(index, candidate, members)
        parts = [self._parts(m) for m in members]
        return _Fused(
            bytes_before=before_bytes,
            bytes_after=after_bytes,
            flops=flops,
            us=(low, max(memory, compute_mid) + unhidden + touch, high),
            terms=tuple((name, value) for name, value in terms if value),
            registers=registers,
            occupancy=occupancy(registers),
            textbook=self._textbook(
                candidate, sum(1 for m in members if self.traffic.ops[m].total)
            ),
            limit=self._longest(
                self._overhead_us * len(members),
                sum(part.memory + part.first_touch for part in parts),
                sum(part.compute for part in parts),
            ),
        )

    def _with_call(self, kernel: float, scenario: int) -> float:
        """Add what the call costs; on a device a busy queue hides the host (scenario 0: always)."""
        if not self.on_device:
            return self.call_us + kernel
        device = self.ceilings.launch_us + kernel
        hidden = scenario == 0 or (scenario == 1 and not self.host_bound)
        return device if hidden else max(self.call_us, device)

    def _fused_memory_us(
        self, candidate: FusionCandidate, members: Sequence[int], whole: int
    ) -> float:
        """Each operand from where its first reader finds it; results at the kernel's own size."""
        traffic, numbers = self.traffic, self.index.numbers
        distance: dict[int, float] = {}
        for member in members:
            for memory, far in zip(traffic.read_from[member], self._reuse[member], strict=True):
                distance.setdefault(memory, far)
        time = 0.0
        seen: set[int] = set()
        # Loops run one after the other: what a second one reads again it finds where the first
        # one's reading left it.
        for region in ([one] for one in candidate.regions) if candidate.regions else (None,):
            again = frozenset(seen)
            for value, size in traffic.read(candidate, region):
                memory = traffic.memory[value]
                if memory not in seen or memory in again:
                    far = 0.0 if memory in again else distance.get(memory, 0.0)
                    time += self.bandwidth.time_us(size, max(whole, far))
                seen.add(memory)
        for name in candidate.outputs:
            time += self.bandwidth.time_us(traffic.size(numbers[name]), whole)
        return time

    def recomputes(self, candidate: FusionCandidate) -> bool:
        """Whether the run's backward would have to run the candidate's eager ops again."""
        first = self.index.nodes[self.index.positions[candidate.nodes[0]]]
        if not self.recompute_in_backward or first.phase != "forward":
            return False
        values = self.index.values
        return bool(candidate.saved) or any(
            values[value].requires_grad for value in candidate.outputs
        )

    def _launches(self, members: Sequence[int]) -> int:
        """Measured kernels where there are any, else one per op that touches memory."""
        total = 0
        for member in members:
            measured = self._measured[member]
            total += measured.kernels if measured is not None and measured.kernels else 1
        return total

    def _textbook(self, candidate: FusionCandidate, ops: int) -> tuple[float, float]:
        """The textbook's two times: main-memory rate, one launch or dispatch per op."""
        elements = element_count(candidate.shape)
        item = item_bytes(self.index.values[candidate.outputs[0]].dtype)
        per_access = item / (self.bandwidth.memory_rate * 1e3)
        per_launch = self.ceilings.launch_us if self.on_device else self.ceilings.dispatch_us
        both = compare(max(ops, 1), elements, per_access, per_launch)
        return both.before, both.after

    # -- terms ---------------------------------------------------------------------------------

    def _first_touch(self, size: int, recycled_share: float) -> float:
        """Page faults of a fresh result on the CPU, in us."""
        share = 1.0 if size > FRESH_ABOVE_BYTES else recycled_share
        return self.ceilings.page_fault_us_per_mb * (size / 1e6) * share

    def _compute_us(self, flops: float, dtype: str, share: float) -> float:
        rate = self._gflops.get(dtype) or self._gflops.get("float32")
        return flops / (rate * share * 1e3) if rate else 0.0

    def _rate_dtype(self, position: int) -> str:
        """The dtype whose arithmetic rate applies: float32 for 16-bit elementwise work."""
        node = self.index.nodes[position]
        if not node.outputs:
            return "float32"
        dtype = self.index.values[node.outputs[0]].dtype
        return opmath(dtype) if recipe(self.index, position) is not None else dtype


def estimate(
    graph: OpGraph,
    candidate: FusionCandidate,
    times: Iterable[OpTime],
    ceilings: Ceilings,
    *,
    recompute_in_backward: bool = False,
) -> CostEstimate:
    """The estimate of one candidate; use :class:`CostModel` for many of one graph."""
    index = index_graph(graph)
    model = CostModel(
        index,
        TrafficModel(index),
        times,
        ceilings,
        recompute_in_backward=recompute_in_backward,
    )
    return model.estimate(candidate)


def add_estimates(estimates: Sequence[CostEstimate]) -> CostEstimate:
    """The sum over several occurrences of one program; its class and terms are summed too."""
    first = estimates[0]
    if len(estimates) == 1:
        return first
    terms: dict[str, float] = {}
    for each in estimates:
        for name, value in each.terms:
            terms[name] = terms.get(name, 0.0) + value
    bounds = [each.bound for each in estimates]
    return replace(
        first,
        **{name: sum(getattr(each, name) for each in estimates) for name in _SUMMED},
        bound=max(bounds, key=bounds.count),
        terms=tuple(terms.items()),
    )


_SUMMED = (
    "bytes_before", "bytes_after", "launches_before", "launches_after", "flops",
    "time_before_us", "time_after_low_us", "time_after_mid_us", "time_after_high_us",
    "saved_low_us", "saved_mid_us", "saved_high_us", "textbook_before_us", "textbook_after_us",
)  # fmt: skip
