"""The run as a trace in Chrome's JSON format, with the plan laid over it: for Perfetto.

Three threads share one time axis, that of the measured ops one after the other: the run as it is,
inside its modules; the plan, a slice over the ops of each fused group; and the run as planned,
where the fused kernels take the times that are estimated for them.  A counter adds up the saving.
Times are whole nanoseconds, so that slices nest exactly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fusion_advisor.records import Finding, OpNode, Report
from fusion_advisor.report.values import name_text, one_line, op_text
from fusion_advisor.report.view import counted, headline, place_text

_MAX_DEPTH = 24  # modules inside modules; deeper ones are drawn flat
_AS_IT_IS, _PLAN, _PLANNED = 1, 2, 3
_THREADS = {
    _AS_IT_IS: "as it is (measured)",
    _PLAN: "plan: ops that become one step",
    _PLANNED: "as planned (fused kernels estimated)",
}

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    """One op on the time axis, in ns."""

    node: OpNode
    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


def render_trace(report: Report) -> str:
    """The trace; the same report gives the same bytes."""
    slices = _laid_out(report)
    groups = _groups(report)
    events = [
        _named("process_name", 0, "Fusion Advisor"),
        *(_named("thread_name", thread, name) for thread, name in _THREADS.items()),
        *_module_slices(slices),
        *(_op_slice(one, groups) for one in slices),
        *_plan_slices(slices, groups),
        *_planned_slices(slices, groups),
    ]
    document = {
        "displayTimeUnit": "ns",
        "otherData": {
            "title": one_line(report.capture.title),
            "headline": headline(report),
            "axis": "measured times of the ops, one after the other"
            if slices
            else "no op was timed: there is nothing to lay out",
            "attributed_us": _us(sum(one.length for one in slices)),
            "wall_us": report.capture.wall_us,
        },
        "traceEvents": events,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _named(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": 1, "tid": thread, "ts": 0, "name": what, "args": {"name": name}}


def _slice(thread: int, name: str, start: int, length: int, kind: str, **args: Any) -> Event:
    return {
        "ph": "X", "pid": 1, "tid": thread, "ts": _us(start), "dur": _us(length),
        "name": name or "?", "cat": kind, "args": args,
    }  # fmt: skip


def _laid_out(report: Report) -> tuple[_Slice, ...]:
    """The timed ops in order, each beginning where the one before it ended."""
    on_device = any(time.device_us > 0 for time in report.capture.times)
    times = {
        time.node: time.device_us if on_device else time.host_us for time in report.capture.times
    }
    slices, now = [], 0
    for node in report.capture.graph.nodes:
        # NaN and what is not a time take none.
        us = times.get(node.id, 0.0)
        length = round(us * 1000) if 0 < us < 1e12 else 0
        if length > 0:
            slices.append(_Slice(node=node, start=now, length=length))
            now += length
    return tuple(slices)


# -- as it is ----------------------------------------------------------------------------------


def _module_slices(slices: Sequence[_Slice], depth: int = 0) -> Iterator[Event]:
    """Outer modules first; ops in a row with one path so far are in one slice."""
    if depth >= _MAX_DEPTH:
        return

    def prefix(one: _Slice) -> tuple[str, ...]:
        return tuple(one.node.module_path.split(".", depth + 1)[: depth + 1])

    for path, together in groupby(slices, key=prefix):
        inside = list(together)
        if len(path) <= depth or not path[-1]:
            continue
        name = name_text(path[-1])
        yield _slice(
            _AS_IT_IS, name, inside[0].start, inside[-1].end - inside[0].start, "module",
            path=one_line(".".join(path)),
        )  # fmt: skip
        yield from _module_slices(inside, depth + 1)


def _op_slice(one: _Slice, groups: _Groups) -> Event:
    node = one.node
    args = {
        "op": name_text(node.op),
        "module": one_line(node.module_path),
        "class": name_text(node.module_class),
        "where": place_text(node.span),
        "phase": node.phase,
    }
    group = groups.of_node.get(node.id)
    if group is not None:
        args["finding"] = name_text(group.finding.id)
    return _slice(_AS_IT_IS, op_text(node.op), one.start, one.length, node.kind, **args)


# -- the plan ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One occurrence of a finding: a kernel in the plan."""

    finding: Finding
    number: int

    @property
    def name(self) -> str:
        return f"{name_text(self.finding.id)}: {one_line(self.finding.title, 80)}"

    @property
    def saved_us(self) -> float:
        return _finite(self.finding.estimate.saved_mid_us / len(self.finding.occurrences))

    @property
    def after_ns(self) -> int:
        after = self.finding.estimate.time_after_mid_us / len(self.finding.occurrences)
        return max(0, round(_finite(after) * 1000))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    of_node: dict[str, _Group]


def _finite(value: float) -> float:
    return value if -1e12 < value < 1e12 else 0.0


def _groups(report: Report) -> _Groups:
    found: dict[str, _Group] = {}
    number = 0
    for finding in counted(report):
        for occurrence in finding.occurrences:
            number += 1
            group = _Group(finding=finding, number=number)
            for node in occurrence.nodes:
                found.setdefault(node, group)
    return _Groups(of_node=found)


def _plan_slices(slices: Sequence[_Slice], groups: _Groups) -> Iterator[Event]:
    """A slice over each stretch of a group's ops, arrows between them, and the saving so far."""
    stretches: dict[int, list[tuple[int, int]]] = {}
    members: dict[int, _Group] = {}
    for number, together in groupby(slices, key=lambda one: _number(one, groups)):
        inside = list(together)
        if number:
            members[number] = groups.of_node[inside[0].node.id]
            stretches.setdefault(number, []).append((inside[0].start, inside[-1].end))
    for number, parts in stretches.items():
        group = members[number]
        for part, (start, end) in enumerate(parts, start=1):
            of = f" ({part} of {len(parts)})" if len(parts) > 1 else ""
            yield _slice(
                _PLAN, group.name + of, start, end - start, "plan",
                finding=name_text(group.finding.id), rule=name_text(group.finding.rule),
                saved_us_estimate=group.saved_us, where=place_text(group.finding.span),
            )  # fmt: skip
        yield from _arrows(number, parts)
    yield from _counter(stretches, members)


def _number(one: _Slice, groups: _Groups) -> int:
    group = groups.of_node.get(one.node.id)
    return group.number if group is not None else 0


def _arrows(number: int, parts: list[tuple[int, int]]) -> Iterator[Event]:
    """From the first stretch of a group through the others; each stands inside its slice."""
    if len(parts) < 2:
        return
    for place, (start, end) in enumerate(parts):
        phase = "s" if place == 0 else "f" if place == len(parts) - 1 else "t"
        event: Event = {
            "ph": phase, "pid": 1, "tid": _PLAN, "ts": _us((start + end) // 2),
            "id": number, "name": "one step", "cat": "plan",
        }  # fmt: skip
        yield {**event, "bp": "e"} if phase == "f" else event


def _counter(
    stretches: dict[int, list[tuple[int, int]]], members: dict[int, _Group]
) -> Iterator[Event]:
    saved = 0.0
    for end, number in sorted((parts[-1][1], number) for number, parts in stretches.items()):
        saved += members[number].saved_us
        yield {
            "ph": "C", "pid": 1, "tid": 0, "ts": _us(end), "name": "saved time (estimate)",
            "args": {"us": round(saved, 3)},
        }  # fmt: skip


def _planned_slices(slices: Sequence[_Slice], groups: _Groups) -> Iterator[Event]:
    """The run again, each group in its estimated time where its last op stood."""
    last = {_number(one, groups): place for place, one in enumerate(slices)}
    now = 0
    for place, one in enumerate(slices):
        group = groups.of_node.get(one.node.id)
        if group is None:
            yield _slice(
                _PLANNED, op_text(one.node.op), now, one.length, one.node.kind, time="measured"
            )
            now += one.length
        elif last[group.number] == place:
            yield _slice(
                _PLANNED, group.name, now, group.after_ns, "fused", time="estimated",
                finding=name_text(group.finding.id),
            )  # fmt: skip
            now += group.after_ns
