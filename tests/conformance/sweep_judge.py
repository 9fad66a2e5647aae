"""Errors of many float32 results at once, in units of the last place (ULP) of the true value.

A result is held against the true value (float64) and against eager's, in its vector body and in
its strided loop.  An error that lies between the true value and eager's own is eager's: it is
measured, but not charged against a budget.  Everything is one pass of compiled loops per chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

# float64 exponent fields of the smallest normal and the largest float32.
_LOWEST_FIELD, _HIGHEST_FIELD = 1023 - 126, 1023 + 127
# (this - field) << 52 are the bits of 2**(23 - e): one over a float32's last place.
_INVERSE = 2 * 1023 + 23
_OVERFLOW = 2.0**128  # what an infinite result is measured as, next to the largest float32
_OVERFLOW_ULP = 2.0**104
_NEAR_OVERFLOW = _OVERFLOW + 8 * _OVERFLOW_ULP
_COMPILED = {"error_model": "numpy", "nogil": True, "cache": False}


@dataclass(frozen=True)
class Chunk:
    """The operands and what they truly come to; ``scale`` has the ULP that counts."""

    true: np.ndarray
    scale: np.ndarray  # float64: 2**-e of each element's last place, inverted


@numba.njit(**_COMPILED)
def _inverse_ulp(true_bits: Any, operand_bits: Any, by_operand: bool, out: Any) -> None:
    for i in range(out.size):
        field = (true_bits[i] >> 52) & 0x7FF
        if by_operand:
            field = max(field, (operand_bits[i] >> 52) & 0x7FF)
        field = min(max(field, _LOWEST_FIELD), _HIGHEST_FIELD)
        out[i] = (_INVERSE - field) << 52


def inverse_ulp(true: np.ndarray, operand: np.ndarray | None) -> np.ndarray:
    """One over the ULP of each true value, or of the operand where that is larger."""
    out = np.empty(true.size, np.int64)
    other = true if operand is None else operand
    _inverse_ulp(true.view(np.int64), other.view(np.int64), operand is not None, out)
    return out.view(np.float64)


@numba.njit(**_COMPILED)
def _errors(
    got: Any, got_bits: Any, true: Any, true_bits: Any, scale: Any, one: Any, two: Any,
    errors: Any, charged: Any,
) -> int:  # fmt: skip
    """Errors, and those outside of what eager spans; -1 where a special value is to be judged."""
    special = 0
    for i in range(errors.size):
        t, g, a, b = true[i], np.float64(got[i]), np.float64(one[i]), np.float64(two[i])
        error = abs(g - t) * scale[i]
        odd = (not error < 1e300) | ((g == 0.0) & ((got_bits[i] < 0) != (true_bits[i] < 0)))
        low = a if a < b else b
        high = b if a < b else a
        low = t if t < low else low
        high = t if t > high else high
        inside = (g >= low) & (g <= high)
        errors[i] = -1.0 if odd else error
        charged[i] = -1.0 if odd else (0.0 if inside else error)
        special += odd
    return special


@numba.njit(**_COMPILED)
def _largest(bits: Any) -> int:
    """The largest of numbers that are not negative, by their bits (negative ones are skipped)."""
    most = np.int64(0)
    for i in range(bits.size):
        most = max(most, bits[i])
    return most


@numba.njit(**_COMPILED)
def _is_same(left: Any, right: Any) -> bool:
    if np.isnan(left) or np.isnan(right):
        return np.isnan(left) and np.isnan(right)
    return left == right and np.signbit(left) == np.signbit(right)


@numba.njit(**_COMPILED)
def _judge_special(
    got: Any, true: Any, scale: Any, one: Any, two: Any, errors: Any, charged: Any, found: Any
) -> None:  # fmt: skip
    """Judge what has no distance: NaN, infinities, signs of zero.

    ``found``: faults of class or sign; those that are eager's as well; where the first is.
    """
    for i in range(errors.size):
        if errors[i] >= 0.0:
            continue
        g, t = got[i], true[i]
        rounded = np.float32(t)
        if _is_same(g, rounded):
            errors[i] = charged[i] = 0.0
        elif g == 0.0 and rounded != 0.0 and abs(t) * scale[i] < 1.0:
            # What is left of a cancellation, by its operand's measure nothing: either sign will do.
            errors[i] = charged[i] = abs(t) * scale[i]
        elif (
            (np.isinf(g) or np.isinf(rounded))
            and not np.isnan(g)
            and abs(t) < _NEAR_OVERFLOW
            and (g > 0) == (t > 0)
        ):
            size = _OVERFLOW if np.isinf(g) else np.float64(abs(g))
            errors[i] = abs(size - abs(t)) / _OVERFLOW_ULP
            as_eager = _is_same(g, one[i]) or _is_same(g, two[i])
            charged[i] = 0.0 if as_eager else errors[i]
        elif _is_same(g, one[i]) or _is_same(g, two[i]):
            found[1] += 1
        else:
            found[0] += 1
            if found[2] < 0:
                found[2] = i


@dataclass
class Errors:
    """The worst of one kernel's results so far.  ``at`` are operands."""

    ulp: float = 0.0
    at: tuple[float, ...] = ()
    charged_ulp: float = 0.0
    charged_at: tuple[float, ...] = ()
    over: int = 0
    faults: int = 0
    fault_at: tuple[float, ...] = ()
    eager_faults: int = 0


@dataclass(frozen=True)
class Judged:
    """One chunk's errors; ``needs_strided`` if eager's other form may explain what is charged."""

    errors: np.ndarray
    charged: np.ndarray
    faults: int
    eager_faults: int
    first_fault: int
    worst: float
    worst_charged: float


def judge(
    got: np.ndarray, chunk: Chunk, eager: np.ndarray, other: np.ndarray | None = None
) -> Judged:
    """The errors of float32 results; ``other`` is eager's other form where it is known."""
    other = eager if other is None else other
    errors, charged = np.empty(got.size), np.empty(got.size)
    special = _errors(
        got, got.view(np.int32), chunk.true, chunk.true.view(np.int64), chunk.scale,
        eager, other, errors, charged,
    )  # fmt: skip
    found = np.array([0, 0, -1], np.int64)
    if special:
        _judge_special(got, chunk.true, chunk.scale, eager, other, errors, charged, found)
    return Judged(
        errors, charged, int(found[0]), int(found[1]), int(found[2]),
        _as_float(_largest(errors.view(np.int64))), _as_float(_largest(charged.view(np.int64))),
    )  # fmt: skip


def _as_float(bits: int) -> float:
    return float(np.array([bits], np.int64).view(np.float64)[0])


def record(found: Errors, judged: Judged, operands: tuple[np.ndarray, ...], budget: float) -> None:
    """Take a chunk into what was found so far."""

    def at(place: int) -> tuple[float, ...]:
        return tuple(float(operand[place]) for operand in operands)

    if judged.worst > found.ulp:
        found.ulp, found.at = judged.worst, at(int(judged.errors.argmax()))
    if judged.worst_charged > found.charged_ulp:
        found.charged_ulp = judged.worst_charged
        found.charged_at = at(int(judged.charged.argmax()))
    if judged.worst_charged > budget:
        found.over += int((judged.charged > budget).sum())
    if judged.faults and not found.faults:
        found.fault_at = at(judged.first_fault)
    found.faults += judged.faults
    found.eager_faults += judged.eager_faults


@numba.njit(**_COMPILED)
def _count_different(left: Any, right: Any, magnitude: Any, infinity: Any) -> int:
    """How many differ in their bits, any NaN being equal to any NaN (integers: no NaN)."""
    different = 0
    for i in range(left.size):
        both_nan = ((left[i] & magnitude) > infinity) & ((right[i] & magnitude) > infinity)
        different += (left[i] != right[i]) & (not both_nan)
    return different


@numba.njit(**_COMPILED)
def _is_apart(left: Any, right: Any) -> Any:
    """Not 0 where any bit differs; without a branch, so that it is done by whole vectors."""
    found = left[0] ^ right[0]
    for i in range(left.size):
        found |= left[i] ^ right[i]
    return found


# Bits but the sign, and those of infinity, by the width of a float; None: no NaN to be told.
_FLOAT_BITS = {
    "float32": (np.int32(0x7FFFFFFF), np.int32(0x7F800000)),
    "float64": (np.int64(0x7FFFFFFFFFFFFFFF), np.int64(0x7FF0000000000000)),
    "float16": (np.int16(0x7FFF), np.int16(0x7C00)),
    "bfloat16": (np.int16(0x7FFF), np.int16(0x7F80)),
}


def count_different(left: np.ndarray, right: np.ndarray, dtype: str) -> int:
    """How many results of a dtype differ in their bits."""
    whole = np.dtype(f"i{left.dtype.itemsize}").type
    one, two = left.view(whole), right.view(whole)
    if not _is_apart(one, two):
        return 0
    magnitude, infinity = _FLOAT_BITS.get(dtype, (whole(0), whole(0)))
    return int(_count_different(one, two, magnitude, infinity))


def first_different(left: np.ndarray, right: np.ndarray, dtype: str) -> int:
    """The first place where they differ."""
    for start in range(0, left.size, 256):
        part = slice(start, start + 256)
        if count_different(left[part], right[part], dtype):
            for i in range(start, min(start + 256, left.size)):
                if count_different(left[i : i + 1], right[i : i + 1], dtype):
                    return i
    raise ValueError("nothing differs")
