"""The roofline: attained work against bytes moved, under this device's ceilings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fusion_advisor.quantities import plain_number
from fusion_advisor.records import Ceilings, Report
from fusion_advisor.report.values import escaped

Scale = Callable[[float], float]  # a value to its place in the drawing
_WIDTH, _HEIGHT = 860, 380
_MOST_FINDINGS = 40  # the best ones; more points hide each other
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 20, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A finding before or after: flops per byte, and GFLOP/s at the estimated time."""

    finding: str
    intensity: float
    gflops: float
    fused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The roofs (GB/s by working set, GFLOP/s of the dtype) and the points under them."""

    slow_gb_per_s: float  # large working sets: memory
    fast_gb_per_s: float  # small ones: cache
    peak_gflops: float
    dtype: str
    points: tuple[Point, ...]

    def roof(self, intensity: float) -> float:
        """Best GFLOP/s from memory at ``intensity`` flops per byte."""
        return min(self.peak_gflops, intensity * self.slow_gb_per_s)


def roofline(report: Report) -> Roofline | None:
    """The model of the plot; ``None`` where no ceilings or no findings are known."""
    ceilings = report.device or report.capture.ceilings
    if ceilings is None or not ceilings.bandwidth or not ceilings.gflops:
        return None
    points: list[Point] = []
    for finding in report.findings:
        if finding.ignored or len(points) >= 2 * _MOST_FINDINGS:
            continue
        estimate = finding.estimate
        for fused, moved, us in (
            (False, estimate.bytes_before, estimate.time_before_us),
            (True, estimate.bytes_after, estimate.time_after_mid_us),
        ):
            if moved > 0 and us > 0 and estimate.flops > 0:
                points.append(
                    Point(
                        finding=finding.id,
                        intensity=estimate.flops / moved,
                        gflops=estimate.flops / us / 1e3,
                        fused=fused,
                    )
                )
    if not points:
        return None
    dtype, peak = _peak(ceilings)
    speeds = [point.gb_per_s for point in ceilings.bandwidth]
    return Roofline(
        slow_gb_per_s=ceilings.bandwidth[-1].gb_per_s,
        fast_gb_per_s=max(speeds),
        peak_gflops=peak,
        dtype=dtype,
        points=tuple(points),
    )


def _peak(ceilings: Ceilings) -> tuple[str, float]:
    by_dtype = dict(ceilings.gflops)
    if "float32" in by_dtype:
        return "float32", by_dtype["float32"]
    return ceilings.gflops[0]


def axes(model: Roofline) -> tuple[float, float, float, float]:
    """Axis limits (intensity low/high, GFLOP/s low/high), whole powers of ten around everything."""
    intensities = [point.intensity for point in model.points]
    rates = [point.gflops for point in model.points]
    ridge = model.peak_gflops / model.slow_gb_per_s
    low_x = 10 ** math.floor(math.log10(min([*intensities, ridge]) / 1.5))
    high_x = 10 ** math.ceil(math.log10(max([*intensities, ridge]) * 2))
    low_y = 10 ** math.floor(math.log10(min([*rates, low_x * model.slow_gb_per_s])))
    high_y = 10 ** math.ceil(math.log10(max([*rates, model.peak_gflops]) * 1.2))
    return low_x, high_x, low_y, high_y


def point_text(point: Point) -> str:
    """A point in words: what a pointer over it, and a screen reader, says."""
    return (
        f"{point.finding} {'after' if point.fused else 'before'}: "
        f"{plain_number(point.intensity)} flops per byte, {plain_number(point.gflops)} GFLOP/s"
    )


def roofline_svg(model: Roofline, *, name: str = "roofline") -> str:
    """Inline SVG, coloured by the page's style sheet; ``name`` makes its ids unique."""
    low_x, high_x, low_y, high_y = axes(model)
    span_x, span_y = math.log10(high_x / low_x), math.log10(high_y / low_y)

    def x(intensity: float) -> float:
        return _LEFT + math.log10(intensity / low_x) / span_x * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        share = math.log10(min(max(rate, low_y), high_y) / low_y) / span_y
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    described = "; ".join(point_text(point) for point in model.points)
    identifier = escaped(name)
    parts = [
        f'<svg class="roofline" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-labelledby="{identifier}-t {identifier}-d">',
        f'<title id="{identifier}-t">Roofline of the findings</title>',
        f'<desc id="{identifier}-d">{escaped(described)}</desc>',
        *_grid(x, y, (low_x, high_x, low_y, high_y)),
        *_roofs(model, x, y, low_x, high_x),
        *_points(model, x, y),
        "</svg>",
    ]
    return "".join(parts)


def _grid(x: Scale, y: Scale, limits: tuple[float, float, float, float]) -> list[str]:
    low_x, high_x, low_y, high_y = limits
    parts = []
    for power in range(round(math.log10(low_x)), round(math.log10(high_x)) + 1):
        at = x(10.0**power)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{_HEIGHT - _BOTTOM}"/>'
        )
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{10.0**power:g}</text>"
        )
    for power in range(round(math.log10(low_y)), round(math.log10(high_y)) + 1):
        at = y(10.0**power)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{10.0**power:g}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) // 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">'
        "flops per byte moved</text>"
        f'<text class="axis" transform="translate(16 {_HEIGHT // 2 - 10}) rotate(-90)" '
        'text-anchor="middle">GFLOP/s</text>'
    )
    return parts


def _roofs(model: Roofline, x: Scale, y: Scale, low_x: float, high_x: float) -> list[str]:
    parts = []
    for rate, style, name in (
        (model.slow_gb_per_s, "roof", "memory"),
        (model.fast_gb_per_s, "roof cache", "cache"),
    ):
        if name == "cache" and rate < 1.2 * model.slow_gb_per_s:
            continue
        ridge = min(max(model.peak_gflops / rate, low_x), high_x)
        points = f"{x(low_x):.1f},{y(low_x * rate):.1f} {x(ridge):.1f},{y(ridge * rate):.1f}"
        end = f" {x(high_x):.1f},{y(model.peak_gflops):.1f}" if name == "memory" else ""
        parts.append(f'<polyline class="{style}" points="{points}{end}"/>')
        # The memory roof is named below its slope, the cache's above its end, clear of the axis.
        at = low_x * (ridge / low_x) ** 0.42 if name == "memory" else ridge
        right, below = (0, 22) if name == "memory" else (8, -8)
        parts.append(
            f'<text class="roof-text" x="{x(at) + right:.1f}" y="{y(at * rate) + below:.1f}">'
            f"{name} {plain_number(rate)} GB/s</text>"
        )
    parts.append(
        f'<text class="roof-text" x="{_WIDTH - _RIGHT - 6}" y="{y(model.peak_gflops) - 8:.1f}" '
        f'text-anchor="end">{escaped(model.dtype)} {plain_number(model.peak_gflops)} GFLOP/s</text>'
    )
    return parts


def _points(model: Roofline, x: Scale, y: Scale) -> list[str]:
    parts = []
    by_finding: dict[str, list[Point]] = {}
    for point in model.points:
        by_finding.setdefault(point.finding, []).append(point)
    labels: dict[tuple[int, int], list[str]] = {}  # findings at one spot share a label
    for finding, pair in by_finding.items():
        if len(pair) == 2:
            (x1, y1), (x2, y2) = ((x(point.intensity), y(point.gflops)) for point in pair)
            parts.append(
                f'<line class="move" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
            )
        for point in pair:
            style = "after" if point.fused else "before"
            at_x, at_y = x(point.intensity), y(point.gflops)
            parts.append(
                f'<circle class="point {style}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="5.5">'
                f"<title>{escaped(point_text(point))}</title></circle>"
            )
            if point.fused:
                labels.setdefault((round(at_x / 12), round(at_y / 12)), []).append(finding)
    for (column, row), findings in labels.items():
        parts.append(
            f'<text class="point-text" x="{column * 12 + 10}" y="{row * 12 + 18}">'
            f"{escaped(', '.join(findings))}</text>"
        )
    return parts
