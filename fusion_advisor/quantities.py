"""Numbers with units, as every message and report writes them: functions of numbers alone."""

from __future__ import annotations

import math

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def plain_number(value: float, digits: int = 3) -> str:
    """``value`` with about ``digits`` significant digits, never in exponent form."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    value = float(f"{value:.{digits}g}")  # first, or 999.6 becomes 1000 with a digit too many
    magnitude = math.floor(math.log10(abs(value)))
    decimals = max(0, digits - 1 - magnitude)
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.replace("-", "−")


def time_text(us: float) -> str:
    """Microseconds in the unit a person would choose: ``850 ns``, ``12.3 µs``, ``4.56 ms``."""
    size = abs(us)
    if not math.isfinite(us):
        return "unknown"
    if size < 0.0005:  # half a nanosecond: what is left of two equal times
        return "0 µs"
    if size >= 999_500:
        return f"{plain_number(us / 1e6)} s"
    if size >= 999.5:
        return f"{plain_number(us / 1e3)} ms"
    if size >= 0.9995:
        return f"{plain_number(us)} µs"
    return f"{plain_number(us * 1e3)} ns"


def bytes_text(count: float) -> str:
    """Bytes in binary units: ``512 B``, ``24.0 MiB``."""
    if not math.isfinite(count):
        return "unknown"
    size, unit = float(count), 0
    while abs(size) >= 1023.5 and unit < len(_BYTE_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} B" if unit == 0 else f"{plain_number(size)} {_BYTE_UNITS[unit]}"


def percent_text(fraction: float) -> str:
    """A share: ``12 %``, ``3.4 %``, ``< 0.1 %``."""
    if not math.isfinite(fraction):
        return "unknown"
    value = fraction * 100
    if 0 < abs(value) < 0.1:
        return "< 0.1 %"
    return (
        f"{value:.0f} %".replace("-", "−")
        if abs(value) >= 9.95
        else (f"{value:.1f} %".replace("-", "−"))
    )


def times_text(before: float, after: float) -> str:
    """How many times less: ``3.0 ×``; ``no change`` and ``to zero`` are said in words."""
    if not (math.isfinite(before) and math.isfinite(after)):
        return "unknown"
    if after <= 0:
        return "no change" if before <= 0 else "to zero"
    return f"{before / after:.2f} ×"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 kernel``, ``3 kernels``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def shape_text(shape: tuple[int, ...]) -> str:
    """``2×256×3072``; a 0-dimensional tensor is ``scalar``."""
    return "×".join(str(size) for size in shape) if shape else "scalar"
