"""PNG plots for notebooks, where style sheets and SVG do not survive.  matplotlib, lazily."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

from fusion_advisor.records import Report
from fusion_advisor.report.roofline import Roofline, axes, roofline
from fusion_advisor.report.view import counted

_BEFORE, _AFTER, _LINE, _INK = "#b4552d", "#1f6fb2", "#5b6770", "#1f2328"
_SHOWN = 8  # bars beyond this are unreadable


def traffic_png(report: Report) -> bytes | None:
    """Memory traffic and time before and after, one pair of bars per finding; or ``None``."""
    findings = counted(report)[:_SHOWN]
    if not findings:
        return None
    figure = _figure(7.2, 0.9 + 0.42 * len(findings))
    if figure is None:
        return None
    names = [finding.id for finding in findings]
    bytes_axis, time_axis = figure.subplots(1, 2)
    estimates = [finding.estimate for finding in findings]
    _bars(
        bytes_axis, names, "MiB moved",
        [estimate.bytes_before / 2**20 for estimate in estimates],
        [estimate.bytes_after / 2**20 for estimate in estimates],
    )  # fmt: skip
    _bars(
        time_axis, names, "ms (estimate)",
        [estimate.time_before_us / 1e3 for estimate in estimates],
        [estimate.time_after_mid_us / 1e3 for estimate in estimates],
    )  # fmt: skip
    bytes_axis.legend(["before", "after"], frameon=False, fontsize=8, loc="best")
    return _png(figure)


def roofline_png(report: Report) -> bytes | None:
    """The roofline of the findings; ``None`` without ceilings or without matplotlib."""
    model = roofline(report)
    figure = _figure(7.2, 3.4) if model is not None else None
    if model is None or figure is None:
        return None
    axis = figure.subplots()
    low_x, high_x, low_y, high_y = axes(model)
    _roof(axis, model, low_x, high_x)
    for fused, color, label in ((False, _BEFORE, "before"), (True, _AFTER, "after fusion")):
        points = [point for point in model.points if point.fused is fused]
        axis.scatter(
            [point.intensity for point in points], [point.gflops for point in points],
            color=color, label=label, zorder=3, s=34,
        )  # fmt: skip
        for point in points if fused else ():
            axis.annotate(point.finding, (point.intensity, point.gflops), xytext=(6, -10),
                          textcoords="offset points", fontsize=8)  # fmt: skip
    axis.set(
        xscale="log", yscale="log", xlim=(low_x, high_x), ylim=(low_y, high_y),
        xlabel="flops per byte moved", ylabel="GFLOP/s",
    )  # fmt: skip
    axis.legend(frameon=False, fontsize=8, loc="lower right")
    return _png(figure)


def data_uri(png: bytes) -> str:
    """A PNG as a ``data:`` address."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _figure(width: float, height: float) -> Any:
    """A figure of our own, not pyplot's: the person's backend and figures stay as they are."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), dpi=110, layout="constrained", facecolor="white")


def _bars(axis: Any, names: list[str], label: str, before: list[float], after: list[float]) -> None:
    places = range(len(names))
    before = [value if math.isfinite(value) else 0.0 for value in before]
    after = [value if math.isfinite(value) else 0.0 for value in after]
    axis.barh([place - 0.19 for place in places], before, 0.36, color=_BEFORE)
    axis.barh([place + 0.19 for place in places], after, 0.36, color=_AFTER)
    axis.set_yticks(list(places), names)
    axis.invert_yaxis()
    axis.set_xlabel(label, fontsize=9)
    _plain(axis)


def _roof(axis: Any, model: Roofline, low_x: float, high_x: float) -> None:
    ridge = min(max(model.peak_gflops / model.slow_gb_per_s, low_x), high_x)
    xs = [low_x, ridge, high_x]
    axis.plot(xs, [model.roof(x) for x in xs], color=_LINE, linewidth=1.6)
    axis.annotate(
        f"memory {model.slow_gb_per_s:.3g} GB/s, {model.dtype} {model.peak_gflops:.3g} GFLOP/s",
        (0.02, 0.94), xycoords="axes fraction", fontsize=8, color=_INK,
    )  # fmt: skip
    axis.grid(True, which="major", color="#d8dde2", linewidth=0.6)
    _plain(axis)


def _plain(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.tick_params(labelsize=8, colors=_INK)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})  # same bytes every time
    return buffer.getvalue()
