"""What moving bytes and computing take: bandwidth by working set, the parts of a kernel's time.

The same for an op that was recorded and for a fused kernel that is not there yet.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from fusion_advisor.analysis.graph_index import GraphIndex
from fusion_advisor.analysis.partition import item_bytes
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.records import Ceilings, FusionCandidate

# Share of the fused-multiply-add peak that elementwise code reaches (dimensionless): polynomials
# are multiply-add chains with selects and conversions between them.  Generated tanh-GELU kernels
# reach between a quarter and all of it.
PEAK_SHARE_LOW, PEAK_SHARE_MID, PEAK_SHARE_HIGH = 0.25, 0.5, 1.0
# Share of the shorter of compute and memory that is not hidden behind the longer.
UNHIDDEN_MID = 0.25  # 0 at best (low), 1 at worst (high)
# Bandwidth is shared with whatever else runs, and streams other than one read and one write
# differ from the measured one: the pessimistic rate is this share of the ceiling.
BANDWIDTH_SHARE_WORST = 0.75
# glibc gives blocks above 32 MiB (the most its threshold adapts to) back to the system when they
# are freed, so that every fresh one is faulted in page by page; smaller ones are mostly recycled.
FRESH_ABOVE_BYTES = 32 * 2**20
RECYCLED_FAULT_SHARE_WORST = 0.2  # measured: 4 MB outputs paid a fifth of the full fault cost


# Registers of one CUDA thread: addressing and bounds, a 64-bit pointer per operand, values.
BASE_REGISTERS = 14
REGISTERS_PER_OPERAND = 2
MAX_REGISTERS = 255
REGISTERS_PER_SM, THREADS_PER_SM, THREADS_PER_BLOCK, REGISTER_GRANULE = 65536, 2048, 256, 8


@dataclass(frozen=True, slots=True)
class Parts:
    """Addends of one kernel's time, in us (overhead apart)."""

    memory: float
    compute: float
    first_touch: float

    def total(self, unhidden: float) -> float:
        """Time of the kernel when ``unhidden`` of the shorter part shows."""
        longer, shorter = max(self.memory, self.compute), min(self.memory, self.compute)
        return longer + unhidden * shorter + self.first_touch


IDLE = Parts(0.0, 0.0, 0.0)


class Bandwidth:
    """Streaming rate by working set: straight lines between the measured points."""

    def __init__(self, ceilings: Ceilings) -> None:
        points = sorted(ceilings.bandwidth, key=lambda point: point.working_set_bytes)
        self._sizes = [math.log2(max(1, point.working_set_bytes)) for point in points]
        self._rates = [max(point.gb_per_s, 1e-9) for point in points]
        self._known: dict[float, float] = {}  # layers repeat, and so do their working sets

    @property
    def memory_rate(self) -> float:
        """GB/s at the largest working set: main memory."""
        return self._rates[-1] if self._rates else 1.0

    def rate(self, working_set: float) -> float:
        """GB/s for bytes that come from a working set of this size."""
        rate = self._known.get(working_set)
        if rate is None:
            rate = self._known[working_set] = self._interpolate(working_set)
        return rate

    def _interpolate(self, working_set: float) -> float:
        if not self._rates:
            return 1.0
        size = math.log2(max(1.0, working_set))
        k = bisect_left(self._sizes, size)
        if k == 0:
            return self._rates[0]
        if k == len(self._sizes):
            return self._rates[-1]
        low, high = self._sizes[k - 1], self._sizes[k]
        part = (size - low) / (high - low)
        return self._rates[k - 1] + part * (self._rates[k] - self._rates[k - 1])

    def time_us(self, size: float, working_set: float) -> float:
        """Time to move ``size`` bytes (1 GB/s is 1000 bytes per us)."""
        return size / (self.rate(working_set) * 1e3)


def reuse_distances(index: GraphIndex, traffic: TrafficModel) -> list[tuple[float, ...]]:
    """Per op and distinct memory read: bytes of traffic since the memory was last touched.

    What the run reads first was last touched in the run before, one whole run's traffic ago.
    """
    moved = 0.0
    total = float(traffic.total)
    touched = [-1.0] * len(index.specs)  # by memory
    result: list[tuple[float, ...]] = []
    for op, reads, writes in zip(traffic.ops, traffic.read_from, traffic.written_to, strict=True):
        far = [moved - touched[memory] if touched[memory] >= 0 else total for memory in reads]
        result.append(tuple(far))
        moved += op.total
        for memory in reads:
            touched[memory] = moved
        for memory in writes:
            touched[memory] = moved
    return result


def estimate_registers(
    index: GraphIndex, candidate: FusionCandidate, members: Sequence[int]
) -> int:
    """Registers of a CUDA thread that computes one element, before ptxas has its say."""
    last: dict[str, int] = {}
    for k, member in enumerate(members):
        for value in index.nodes[member].inputs:
            last[value] = k
    for value in candidate.outputs:
        last.setdefault(value, len(members))
    ends = [0] * (len(members) + 1)
    seen: set[str] = set()
    live = most = 0
    for k, member in enumerate(members):
        node = index.nodes[member]
        for value in (*node.inputs, *node.outputs):
            if value not in seen:
                seen.add(value)
                width = 2 if item_bytes(index.values[value].dtype) == 8 else 1
                live += width
                ends[last.get(value, k)] += width
        most = max(most, live)
        live -= ends[k]
    operands = len(candidate.inputs) + len(candidate.outputs)
    return min(MAX_REGISTERS, BASE_REGISTERS + REGISTERS_PER_OPERAND * operands + most)


def occupancy(registers: int) -> float:
    """Resident threads over the most an SM holds (sm_80 and later), in blocks of 256 threads."""
    rounded = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
    blocks = REGISTERS_PER_SM // (max(rounded, REGISTER_GRANULE) * THREADS_PER_BLOCK)
    return min(1.0, blocks * THREADS_PER_BLOCK / THREADS_PER_SM)
