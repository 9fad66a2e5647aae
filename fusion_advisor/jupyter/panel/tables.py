"""The tabs that are long tables: Ops and Why not, and the points of the Roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets

from fusion_advisor.jupyter.panel.markup import MAX_NAME, MAX_TEXT, note, plain, short, table
from fusion_advisor.jupyter.panel.paging import LongTable, choice, search_box, words_of
from fusion_advisor.quantities import plain_number, shape_text, time_text
from fusion_advisor.records import Report
from fusion_advisor.report.roofline import Point, roofline, roofline_svg
from fusion_advisor.report.values import op_text
from fusion_advisor.report.view import place_text
from fusion_advisor.tables import ops_table

ANY = "any"
_SEARCHED = 400  # characters of a name or message that a filter looks at


class OpsTab:
    """``advice.ops`` with filters by text, class and module; only a page of it is rendered."""

    def __init__(self, report: Report) -> None:
        self._frame = ops_table(report).reset_index()
        frame = self._frame
        self._text = search_box("op, place, expression, finding …")
        classes = sorted({str(one) for one in frame["bound"]}) if len(frame) else []
        self._classes = [ANY, *classes]
        self._class = choice("Class", self._classes)
        self._module = ipywidgets.Combobox(
            description="Module", placeholder="begins with …",
            options=_module_names(frame["module"]) if len(frame) else (),
            layout=ipywidgets.Layout(width="22em"), style={"description_width": "4em"},
        )  # fmt: skip
        self._order = choice("Order", ("as run", "host time", "device time"))
        self._haystack = _haystack(frame)
        self._on_device = len(frame) > 0 and bool(frame["device_us"].fillna(0).gt(0).any())
        self.table = LongTable(
            "Ops",
            matching=self._matching,
            render=self._page,
            controls=(self._text, self._class, self._module, self._order),
        )
        self.box = self.table.box
        self.table.refresh(len(frame))

    def _matching(self) -> Sequence[int]:
        frame = self._frame
        if not len(frame):
            return ()
        keep = self._haystack.notna()
        for word in words_of(self._text.value):
            keep &= self._haystack.str.contains(word, regex=False)
        if self._class.value:
            keep &= frame["bound"] == self._classes[self._class.value]
        if self._module.value.strip():
            keep &= frame["module"].str.startswith(self._module.value.strip())
        chosen = frame[keep]
        if self._order.value:
            column = ("", "host_us", "device_us")[self._order.value]
            chosen = chosen.sort_values(column, ascending=False, kind="stable", na_position="last")
        return list(chosen.index)

    def _page(self, rows: Sequence[int]) -> str:
        if not rows:
            return note("No op matches." if len(self._frame) else "No op was recorded.")
        page = self._frame.loc[list(rows)]
        cells = [
            _op_cells(position, row) for position, row in zip(rows, page.itertuples(), strict=True)
        ]
        heads = ["#", "Op", "Class", "Host", "Device", "Result", "Module", "Where", "Finding"]
        if not self._on_device:
            at = heads.index("Device")
            heads, cells = heads[:at] + heads[at + 1 :], [c[:at] + c[at + 1 :] for c in cells]
        return table("Ops", heads, cells, numbers=("#", "Host", "Device"))


def _op_cells(position: int, row: Any) -> tuple[str, ...]:
    shape = shape_text(row.shape) if row.dtype else ""
    expression = short(row.expression, 60)
    phase = "" if row.phase == "forward" else f", {short(row.phase)}"
    return (
        f"{position:,}",
        f"{short(op_text(str(row.op)[:MAX_TEXT]))}<br>"
        f'<span class="fadv-soft fadv-nowrap">{short(row.kind)}{phase}</span>',
        f'<span class="fadv-nowrap">{short(row.bound)}</span>',
        _time(row.host_us),
        _time(row.device_us),
        f"{short(shape)} {short(row.dtype)}",
        short(row.module),
        f'{short(_file_name(row.where))}<br><code class="fadv-soft">{expression}</code>',
        short(row.finding),
    )


def _time(us: float | None) -> str:
    return "" if not us or us != us else short(time_text(us))


def _file_name(place: str) -> str:
    """A place without its folders; the filter still looks in them."""
    return place.replace("\\", "/").rpartition("/")[2]


def _haystack(frame: Any) -> Any:
    """What the text filter looks in, one string per op."""
    columns = ("node", "op", "kind", "module", "where", "expression", "finding", "dtype")
    pieces = [frame[name].astype(str).str.slice(0, _SEARCHED) for name in columns if name in frame]
    joined = pieces[0]
    for piece in pieces[1:]:
        joined = joined + " " + piece
    return joined.str.lower()


def _module_names(modules: Any) -> tuple[str, ...]:
    """Module paths to offer, and the paths above them; at most some hundreds."""
    names: dict[str, None] = {}
    for name in modules.unique():
        parts = plain(name, MAX_NAME).split(".")
        for depth in range(1, len(parts) + 1):
            names.setdefault(".".join(parts[:depth]))
    names.pop("", None)
    return tuple(sorted(names))[:500]


class WhyNotTab:
    """Every pair of neighbours that is not fused, with code, ops, place and reason."""

    def __init__(self, report: Report) -> None:
        self._report = report
        nodes = {node.id: node for node in report.capture.graph.nodes}
        self._rows = [_refusal(blocker, nodes) for blocker in report.why_not]
        self._lower = [" ".join(piece[:_SEARCHED] for piece in row).lower() for row in self._rows]
        self._text = search_box("op, node, place, reason …")
        counts: dict[str, int] = {}
        for row in self._rows:
            counts[row[0]] = counts.get(row[0], 0) + 1
        self._codes = [ANY, *sorted(counts, key=lambda code: (-counts[code], code))]
        offered = [f"{plain(code)} ({counts[code]:,})" for code in self._codes[1:]]
        self._code = choice("Code", (ANY, *offered), width="24em")
        self.table = LongTable(
            "Pairs that are not fused",
            matching=self._matching,
            render=self._page,
            controls=(self._text, self._code),
        )
        self.box = self.table.box
        self.table.refresh(len(self._rows))

    def _matching(self) -> Sequence[tuple[str, ...]]:
        words = words_of(self._text.value)
        code = self._codes[self._code.value]
        return [
            row
            for row, lower in zip(self._rows, self._lower, strict=True)
            if all(word in lower for word in words) and (code == ANY or row[0] == code)
        ]

    def _page(self, rows: Sequence[tuple[str, ...]]) -> str:
        if not rows:
            return note("None matches." if self._rows else "Every legal pair is fused.")
        return table(
            "Pairs that are not fused, and why", ("Code", "Ops", "Where", "Reason"),
            [
                (
                    f"<code>{short(code)}</code>",
                    f'{short(ops)}<br><span class="fadv-soft">{short(names)}</span>',
                    short(place),
                    short(message, MAX_TEXT),
                )
                for code, ops, names, place, message in rows
            ],
        )  # fmt: skip


def _refusal(blocker: Any, nodes: dict[str, Any]) -> tuple[str, ...]:
    known = [nodes[name] for name in blocker.nodes if name in nodes]
    span = next((node.span for node in known if node.span is not None), None)
    return (
        blocker.code,
        " → ".join(op_text(node.op[:MAX_TEXT]) for node in known) or "—",
        " → ".join(name[:MAX_NAME] for name in blocker.nodes),
        place_text(span) if span is not None else "",
        blocker.message,
    )


class RooflineTab:
    """The drawing, its points with their figures under the pointer, and the same as a table."""

    def __init__(self, report: Report, *, name: str) -> None:
        model = roofline(report)
        if model is None:
            why = (
                "There is nothing to draw: no finding."
                if not report.findings
                else "There is nothing to draw: this device's ceilings, or the work of the "
                "findings, are not known."
            )
            self.box = ipywidgets.HTML(note(why))
            return
        ceilings = report.device or report.capture.ceilings
        said = (
            f'<p class="fadv-soft">{short(ceilings.name if ceilings else "")}. A finding left of '
            "the ridge waits for memory: fusing moves it right, because the same work moves fewer "
            "bytes. Each point says its figures under the pointer; the table below says the same."
            "</p>"
        )
        key = (
            '<p class="fadv-key"><span><i></i>before</span><span><i class="after"></i>after '
            "fusion (estimate)</span></p>"
        )
        self._points = model.points
        roof = model.roof
        table_of_points = LongTable(
            "Points",
            matching=lambda: self._points,
            render=lambda points: table(
                "Points of the roofline",
                ("Finding", "", "Flops per byte", "GFLOP/s", "Memory roof there"),
                [_point_cells(point, roof(point.intensity)) for point in points],
                numbers=("Flops per byte", "GFLOP/s", "Memory roof there"),
            ),
        )
        table_of_points.refresh(len(self._points))
        self.box = ipywidgets.VBox(
            [ipywidgets.HTML(said + roofline_svg(model, name=name) + key), table_of_points.box]
        )


def _point_cells(point: Point, roof: float) -> tuple[str, ...]:
    return (
        short(point.finding),
        "after (estimate)" if point.fused else "before",
        plain_number(point.intensity),
        plain_number(point.gflops),
        f"{plain_number(roof)} GFLOP/s",
    )
