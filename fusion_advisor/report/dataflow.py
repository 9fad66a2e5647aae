"""Memory trips of a fused group, before and after, and the drawing of them.

Before, every op reads its operands from memory and writes its result back; after, one kernel
reads the group's inputs once and writes what is used later.  That is what the drawing shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusion_advisor.ops.elements import distinct_elements
from fusion_advisor.quantities import bytes_text, plural, shape_text
from fusion_advisor.records import FusionCandidate, OpGraph, TensorSpec
from fusion_advisor.report.values import escaped, op_text

MAX_DRAWN_OPS = 12  # a longer group is drawn by its ends
_ROW = 44
_TOP = 54
_ITEM_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """What one kernel reads and writes: (tensor description, bytes) for each distinct tensor."""

    label: str
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]

    @property
    def read_bytes(self) -> int:
        return sum(size for _, size in self.reads)

    @property
    def written_bytes(self) -> int:
        return sum(size for _, size in self.writes)


def tensor_bytes(spec: TensorSpec) -> int:
    """Distinct bytes of a tensor: an expanded (stride 0) dimension counts once."""
    elements = math.prod(
        size
        for size, stride in zip(spec.shape, spec.strides, strict=True)
        if stride != 0 or size == 0
    )
    return elements * _ITEM_BYTES.get(spec.dtype, 4)


def trips_before(graph: OpGraph, candidate: FusionCandidate) -> tuple[Trip, ...]:
    """One trip per op of the group, in order."""
    values = {spec.id: spec for spec in graph.values}
    nodes = {node.id: node for node in graph.nodes}
    return tuple(
        Trip(
            label=op_text(node.op),
            reads=_sizes(node.inputs, values),
            writes=_sizes(node.outputs, values),
        )
        for node in (nodes[name] for name in candidate.nodes if name in nodes)
        if node.kind not in ("view", "metadata")
    )


def trip_after(graph: OpGraph, candidate: FusionCandidate) -> Trip:
    """The fused kernel's only trip; of what it reads in part it moves that part."""
    values = {spec.id: spec for spec in graph.values}
    names = tuple(dict.fromkeys(operand.value for operand in candidate.inputs))
    reads = list(_sizes(names, values))
    for place, name in enumerate(name for name in names if name in values):
        views = [
            access.steps
            for region in candidate.regions
            for access in region.accesses
            if access.value == name
        ]
        if views:
            spec = values[name]
            count = distinct_elements(spec.shape, spec.strides, views)
            reads[place] = (reads[place][0], count * _ITEM_BYTES.get(spec.dtype, 4))
    return Trip(
        label="one fused kernel",
        reads=tuple(reads),
        writes=_sizes(candidate.outputs, values),
    )


def _sizes(names: tuple[str, ...], values: dict[str, TensorSpec]) -> tuple[tuple[str, int], ...]:
    known = (values[name] for name in names if name in values)
    return tuple((f"{shape_text(spec.shape)} {spec.dtype}", tensor_bytes(spec)) for spec in known)


# -- drawing -----------------------------------------------------------------------------------


def dataflow_svg(graph: OpGraph, candidate: FusionCandidate, *, name: str) -> str:
    """Inline SVG, coloured by the page's style sheet; ``name`` makes its ids unique.

    Empty for a group that no one kernel computes, as the ops of an optimizer's step.
    """
    if not candidate.outputs:
        return ""
    before, after = trips_before(graph, candidate), trip_after(graph, candidate)
    rows = _rows(before)
    height = _TOP + max(len(rows), 3) * _ROW + 16
    total_before = sum(trip.read_bytes + trip.written_bytes for trip in before)
    total_after = after.read_bytes + after.written_bytes
    description = (
        f"Before: {plural(len(before), 'kernel')} move {bytes_text(total_before)} between "
        f"memory and "
        f"processor. After: one kernel moves {bytes_text(total_after)}."
    )
    identifier = escaped(name)
    parts = [
        f'<svg class="flow" viewBox="0 0 860 {height}" role="img" '
        f'aria-labelledby="{identifier}-t {identifier}-d">',
        f'<title id="{identifier}-t">Data flow before and after fusion</title>',
        f'<desc id="{identifier}-d">{escaped(description)}</desc>',
        _arrowheads(identifier),
        _heading(0, f"Before: {plural(len(before), 'kernel')}", bytes_text(total_before)),
        _heading(450, "After: 1 kernel", bytes_text(total_after)),
        _memory(0, height),
        _memory(450, height),
    ]
    for position, row in enumerate(rows):
        parts.append(_drawn_row(row, _TOP + position * _ROW, identifier))
    parts.append(_drawn_kernel(rows, after, height, identifier))
    parts.append("</svg>")
    return "".join(parts)


def _rows(before: tuple[Trip, ...]) -> tuple[Trip | str, ...]:
    if len(before) <= MAX_DRAWN_OPS:
        return before
    ends = MAX_DRAWN_OPS // 2
    hidden = before[ends:-ends]
    moved = sum(trip.read_bytes + trip.written_bytes for trip in hidden)
    note = f"… {len(hidden)} more ops, {bytes_text(moved)} …"
    return (*before[:ends], note, *before[-ends:])


def _arrowheads(identifier: str) -> str:
    return (
        "<defs>"
        + "".join(
            f'<marker id="{identifier}-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path class="{kind}-head" d="M0 0L8 4L0 8z"/></marker>'
            for kind in ("read", "write")
        )
        + "</defs>"
    )


def _heading(x: int, text: str, moved: str) -> str:
    return (
        f'<text class="flow-title" x="{x}" y="16">{escaped(text)}</text>'
        f'<text class="flow-note" x="{x}" y="36">{escaped(moved)} moved</text>'
    )


def _memory(x: int, height: int) -> str:
    middle = (_TOP + height - 10) / 2
    return (
        f'<rect class="memory" x="{x}" y="{_TOP - 6}" width="30" height="{height - _TOP - 4}" '
        f'rx="4"/>'
        f'<text class="memory-text" transform="translate({x + 19} {middle:.0f}) rotate(-90)" '
        'text-anchor="middle">memory</text>'
    )


def _drawn_row(row: Trip | str, y: int, identifier: str) -> str:
    if isinstance(row, str):
        return f'<text class="flow-note" x="186" y="{y + 24}">{escaped(row)}</text>'
    reads = (
        f"{len(row.reads)} × " if len(row.reads) > 1 and len({s for _, s in row.reads}) == 1 else ""
    )
    size = row.reads[0][1] if reads else row.read_bytes
    return (
        _arrow(34, 182, y + 13, "read", f"read {reads}{bytes_text(size)}", identifier)
        + _arrow(182, 34, y + 33, "write", f"write {bytes_text(row.written_bytes)}", identifier)
        + f'<rect class="op" x="186" y="{y + 3}" width="190" height="32" rx="5"/>'
        f'<text class="op-text" x="281" y="{y + 24}" text-anchor="middle">'
        f"{escaped(row.label[:24])}</text>"
    )


def _arrow(start: int, end: int, y: int, kind: str, text: str, identifier: str) -> str:
    middle = (start + end) // 2
    return (
        f'<line class="{kind}" x1="{start}" y1="{y}" x2="{end}" y2="{y}" '
        f'marker-end="url(#{identifier}-{kind})"/>'
        f'<text class="arrow-text" x="{middle}" y="{y - 4}" text-anchor="middle">{escaped(text)}'
        f"</text>"
    )


def _drawn_kernel(rows: tuple[Trip | str, ...], after: Trip, height: int, identifier: str) -> str:
    bottom = height - 14
    labels = [row if isinstance(row, str) else row.label for row in rows]
    parts = [
        f'<rect class="kernel" x="636" y="{_TOP - 4}" width="216" height="{bottom - _TOP}" rx="8"/>'
    ]
    step = min(_ROW, (bottom - _TOP - 20) / max(len(labels), 1))
    for position, label in enumerate(labels):
        y = _TOP + 22 + position * step
        parts.append(
            f'<text class="op-text" x="744" y="{y:.0f}" text-anchor="middle">'
            f"{escaped(label[:26])}</text>"
        )
    parts += _kernel_arrows(after.reads, "read", _TOP + 10, identifier)
    first = bottom - 14 - 22 * (min(len(after.writes), 4) - 1)
    parts += _kernel_arrows(after.writes, "write", first, identifier)
    return "".join(parts)


def _kernel_arrows(
    tensors: tuple[tuple[str, int], ...], kind: str, y: int, identifier: str
) -> list[str]:
    """At most four arrows; the fourth stands for the rest."""
    drawn = list(tensors[:4])
    if len(tensors) > 4:
        rest = sum(size for _, size in tensors[3:])
        drawn = [*tensors[:3], (f"{len(tensors) - 3} more", rest)]
    start, end = (484, 632) if kind == "read" else (632, 484)
    return [
        _arrow(start, end, y + 22 * position, kind, f"{kind} {bytes_text(size)}", identifier)
        for position, (_, size) in enumerate(drawn)
    ]
