"""Where time and bytes go by the model's own structure: a tree of modules, and their classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fusion_advisor.analysis.traffic import moves_memory, op_bytes
from fusion_advisor.records import OpNode, Report

MAX_DEPTH = 24  # deeper modules count for the one at this depth
OUTSIDE = "outside any module"
ITSELF = "the model itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRow:
    """A module and what runs inside it, its children included; ``us`` is measured time."""

    name: str
    module_class: str
    us: float
    bytes: int
    ops: int  # that touch memory
    children: tuple[ModuleRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRow:
    """All modules of one class: the ops that they run themselves."""

    name: str
    modules: int
    us: float
    bytes: int
    ops: int


@dataclass(slots=True)
class _Branch:
    """A module while it is added up."""

    classes: Counter[str] = field(default_factory=Counter)
    us: float = 0.0
    bytes: int = 0
    ops: int = 0
    children: dict[str, _Branch] = field(default_factory=dict)


def op_times(report: Report) -> dict[str, float]:
    """Measured time of each op, us: on the device where the run had one."""
    times = report.capture.times
    on_device = any(time.device_us > 0 for time in times)
    return {time.node: time.device_us if on_device else time.host_us for time in times}


def module_tree(report: Report) -> tuple[ModuleRow, ...]:
    """The outermost modules, in the order they first run."""
    times, moved = op_times(report), op_bytes(report.capture.graph)
    root = _Branch()
    for node in report.capture.graph.nodes:
        path = _path(node)
        branches = [root]
        for name in path:
            branches.append(branches[-1].children.setdefault(name, _Branch()))
        branches[-1].classes[node.module_class] += 1
        for branch in branches:
            branch.us += times.get(node.id, 0.0)
            branch.bytes += sum(moved[node.id])
            branch.ops += moves_memory(node)
    return tuple(_row(name, branch) for name, branch in root.children.items())


def _path(node: OpNode) -> list[str]:
    if not node.module_path:  # the model's own forward, or a function
        return [ITSELF if node.module_class else OUTSIDE]
    return node.module_path.split(".", MAX_DEPTH)[:MAX_DEPTH]


def _row(name: str, branch: _Branch) -> ModuleRow:
    # A path without ops of its own says no class; an op outside modules has none.
    known = [one for one, _ in branch.classes.most_common() if one]
    return ModuleRow(
        name=name,
        module_class=known[0] if known else "",
        us=branch.us,
        bytes=branch.bytes,
        ops=branch.ops,
        children=tuple(_row(child, below) for child, below in branch.children.items()),
    )


def class_rows(report: Report) -> tuple[ClassRow, ...]:
    """Module classes, the one with most time first."""
    times, moved = op_times(report), op_bytes(report.capture.graph)
    members: dict[str, list[OpNode]] = {}
    for node in report.capture.graph.nodes:
        members.setdefault(node.module_class or OUTSIDE, []).append(node)
    rows = [
        ClassRow(
            name=name,
            modules=len({node.module_path for node in nodes}) if name != OUTSIDE else 0,
            us=_total(times.get(node.id, 0.0) for node in nodes),
            bytes=sum(sum(moved[node.id]) for node in nodes),
            ops=sum(moves_memory(node) for node in nodes),
        )
        for name, nodes in members.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.us, -row.bytes, row.name)))


def _total(times: Iterable[float]) -> float:
    return float(sum(times))
