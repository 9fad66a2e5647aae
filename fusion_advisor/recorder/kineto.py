"""Joins the profiler's raw events to ops.

Each op runs inside a range of its own name; events are walked with one stack per
thread.  A device event belongs to the op in whose range its launch happened, which
its linked correlation id names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import DeviceType

PREFIX = "fa#"


@dataclass(slots=True)
class OpEvents:
    """What the profiler saw of one op.  ``events`` counts host events inside its range."""

    host_ns: int = 0
    range_ns: int = 0
    events: int = 0
    device_ns: int = 0
    kernels: int = 0


def join(events: Iterable[Any]) -> dict[int, OpEvents]:
    """Host and device time by op number, from raw kineto events.

    ``host_ns`` sums the outermost events inside the op's range: the op with all it
    calls, without the range's own cost.
    """
    every = list(events)
    host = [
        event
        for event in every
        if event.device_type() == DeviceType.CPU and event.linked_correlation_id() == 0
    ]
    host.sort(key=lambda event: (event.start_thread_id(), event.start_ns(), -event.duration_ns()))
    found: dict[int, OpEvents] = {}
    owner: dict[int, int] = {}  # correlation id of a host event -> op
    stack: list[tuple[int, int | None, bool]] = []  # end, op, is the op's own range
    thread = None
    for event in host:
        if event.start_thread_id() != thread:
            thread, stack = event.start_thread_id(), []
        start, duration = event.start_ns(), event.duration_ns()
        while stack and stack[-1][0] <= start:
            stack.pop()
        name = event.name()
        own = name.startswith(PREFIX)
        if own:
            number: int | None = int(name[len(PREFIX) :])
            seen = found.setdefault(int(name[len(PREFIX) :]), OpEvents())
            seen.range_ns += duration
        else:
            number = stack[-1][1] if stack else None
            if number is not None:
                found[number].events += 1
                if stack[-1][2]:
                    found[number].host_ns += duration
        if number is not None:
            owner[event.correlation_id()] = number
        stack.append((start + duration, number, own))
    _add_device_events(every, owner, found)
    return found


def _add_device_events(
    events: list[Any], owner: dict[int, int], found: dict[int, OpEvents]
) -> None:
    work = [
        event
        for event in events
        # An annotation's shadow on the device is no work.
        if event.device_type() != DeviceType.CPU
        and not event.is_user_annotation()
        and not event.name().startswith(PREFIX)
    ]
    for event, duration in zip(work, _durations_ns(work), strict=True):
        number = owner.get(event.linked_correlation_id())
        if number is None:
            continue
        found[number].device_ns += duration
        if not event.name().startswith(("Memcpy", "Memset")):
            found[number].kernels += 1


def _durations_ns(work: list[Any]) -> list[int]:
    """Durations that end where the next on the same stream starts: a stream runs one at a time.

    Profilers of some drivers report kernels that outlast the ones behind them by far.
    """
    streams: dict[tuple[int, int], list[int]] = {}
    for place, event in enumerate(work):
        stream = (event.device_index(), event.device_resource_id())
        streams.setdefault(stream, []).append(place)
    durations = [event.duration_ns() for event in work]
    for places in streams.values():
        places.sort(key=lambda place: work[place].start_ns())
        for place, behind in itertools.pairwise(places):
            durations[place] = min(
                durations[place], work[behind].start_ns() - work[place].start_ns()
            )
    return durations
