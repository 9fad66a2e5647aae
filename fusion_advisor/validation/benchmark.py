"""Interleaved timing of two ways to compute the same thing, on one machine, in one run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusion_advisor.quantities import bytes_text, time_text
from fusion_advisor.records import Ceilings

MIN_ROUNDS = 9
MAX_ROUNDS = 400
SAMPLE_US = 40.0  # calls are grouped until a sample is well above the clock's own 0.1 us
# Ceilings are measured on a machine that others use as well; a kernel may meet a quieter moment,
# or find in cache what the ceiling's streams did not.  Beyond this factor it did not do the work.
FASTER_THAN_CEILING = 2.0


@dataclass(frozen=True)
class Sample:
    """Median and interquartile range of one call, in microseconds."""

    median_us: float
    spread_us: float
    rounds: int


def interleaved(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    budget_s: float = 0.6,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] | None = None,
) -> tuple[Sample, Sample]:
    """Time two calls in alternation, so that whatever disturbs one disturbs the other.

    Which of the two goes first alternates as well.  Both run once before, unmeasured.
    """
    calls = (first, second)
    wait = synchronize or _nothing
    repeats = tuple(_calls_per_sample(call, clock, wait) for call in calls)
    samples: tuple[list[float], list[float]] = ([], [])
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = clock()
        for turn in range(MAX_ROUNDS):
            for index in (0, 1) if turn % 2 == 0 else (1, 0):
                samples[index].append(_timed(calls[index], repeats[index], clock, wait))
            if turn + 1 >= MIN_ROUNDS and clock() - started > budget_s:
                break
    finally:
        if collecting:
            gc.enable()
    return _summary(samples[0]), _summary(samples[1])


def _nothing() -> None:
    return None


def _timed(
    call: Callable[[], Any],
    repeats: int,
    clock: Callable[[], float],
    wait: Callable[[], None],
) -> float:
    wait()
    started = clock()
    for _ in range(repeats):
        call()
    wait()
    return (clock() - started) / repeats * 1e6


def _calls_per_sample(
    call: Callable[[], Any], clock: Callable[[], float], wait: Callable[[], None]
) -> int:
    call()
    once_us = max(_timed(call, 1, clock, wait), 0.05)
    return max(1, min(1000, round(SAMPLE_US / once_us)))


def _summary(samples: list[float]) -> Sample:
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return Sample(median_us=middle, spread_us=high - low, rounds=len(samples))


def floor_us(bytes_moved: int, ceilings: Ceilings) -> float:
    """The least time in which ``bytes_moved`` can be read and written on the measured device."""
    rates = [
        point.gb_per_s
        for point in ceilings.bandwidth
        # Smaller working sets stream faster, and a kernel may read a part from a nearer cache.
        if point.working_set_bytes >= bytes_moved / 4
    ]
    if not rates:
        rates = [point.gb_per_s for point in ceilings.bandwidth[-1:]]
    best = max(rates, default=0.0)
    return bytes_moved / (best * 1e3) if best else 0.0


def impossible(fused_us: float, bytes_moved: int, ceilings: Ceilings) -> str:
    """Why a time cannot be that of the whole work, or ""."""
    least = floor_us(bytes_moved, ceilings)
    if fused_us * FASTER_THAN_CEILING >= least:
        return ""
    return (
        f"{time_text(fused_us)} is {least / fused_us:.1f} times faster than "
        f"{bytes_text(bytes_moved)} can stream on {ceilings.name} ({time_text(least)}): it cannot "
        "have done the work"
    )


def bytes_of(tensors: list[torch.Tensor]) -> int:
    """Bytes reached by distinct tensors; a broadcast (stride 0) dimension counts once."""
    total = 0
    for tensor in {id(item): item for item in tensors}.values():
        count = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            count *= size if stride or size == 0 else 1
        total += count * tensor.element_size()
    return total
