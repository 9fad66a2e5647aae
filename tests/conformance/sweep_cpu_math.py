"""Measures the largest error of the CPU maths over float32 inputs, all 2**32 of them if asked.

    nice python tests/conformance/sweep_cpu_math.py --stride 1 --write docs/cpu_math.md

The reference is float64 maths of torch (itself checked against mpmath in the tests).  An error is
in units of the last place of the true value; inputs whose class (NaN, infinite, sign of zero)
differs from the correctly rounded value are counted apart.  Two-operand functions are swept over
pseudo-random bit patterns.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import prange

from fusion_advisor.runtime import cpu_kernel, cpu_math

CHUNK = 1 << 18  # the arrays of one chunk stay in the cache
UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh"),
    *("sigmoid", "erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "asinh", "acosh"),
    *("atanh", "sqrt", "rsqrt"),
)
BINARY = ("pow", "hypot", "atan2", "fmod")
# Below this eager itself overflows in exp(-x) and gives 0, as ours does; the true value is
# subnormal or nearly so.
SIGMOID_FLOOR = -87.0
# By the float64 exponent field of the true value: one over its last place in float32, which is
# 2**(e - 23) with e at least -126.
PER_ULP = 2.0 ** (23.0 - np.clip(np.arange(2048.0) - 1023.0, -126.0, 128.0))


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of one sweep."""

    name: str
    inputs: int
    worst_ulp: float
    worst_at: tuple[float, ...]
    mismatches: int
    first_mismatch: tuple[float, ...]


@numba.njit(error_model="numpy", nogil=True)
def _errors(got: Any, true: Any, true_bits: Any, errors: Any) -> None:
    """Error of each element in ulp of the true value; -1 where the class differs."""
    for i in range(got.size):
        g, t = np.float64(got[i]), true[i]
        rounded = np.float64(np.float32(t))
        if np.isnan(t) or np.isnan(g):
            errors[i] = 0.0 if np.isnan(t) and np.isnan(g) else -1.0
        elif np.isinf(rounded) or np.isinf(g):
            # Next to the overflow threshold either neighbour is within one ulp.
            near = abs(t) > 3.402823e38 and abs(g) > 3.402823e38
            errors[i] = 0.0 if rounded == g else (1.0 if near and (t > 0) == (g > 0) else -1.0)
        elif g == 0.0 and t == 0.0:
            errors[i] = 0.0 if np.signbit(g) == np.signbit(t) else -1.0
        else:
            errors[i] = abs(g - t) * PER_ULP[(true_bits[i] >> 52) & 0x7FF]


@functools.cache
def kernel_of(name: str) -> Any:
    """A CPU kernel that applies one function to every element."""
    function = getattr(cpu_math, name)

    def unary(x: Any, out: Any) -> None:
        for i in prange(out.size):
            out[i] = function(x[i])

    def binary(x: Any, y: Any, out: Any) -> None:
        for i in prange(out.size):
            out[i] = function(x[i], y[i])

    return cpu_kernel(binary if name in BINARY else unary)


def reference(name: str) -> Callable[..., np.ndarray]:
    """The function on float64 arrays."""
    function = getattr(torch, name)

    def apply(*arrays: np.ndarray) -> np.ndarray:
        tensors = [torch.from_numpy(array.astype(np.float64)) for array in arrays]
        result: np.ndarray = function(*tensors).numpy()
        return result

    return apply


def inputs(name: str, stride: int, offset: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
    """Chunks of float32 operands: every ``stride``-th bit pattern, or random pairs of patterns."""
    with np.errstate(all="ignore"):
        if name in BINARY:
            generator = np.random.default_rng(offset)
            for _ in range(max(1, (1 << 30) // stride // CHUNK)):
                yield from _pairs(generator)
            return
        for start in range(offset, 1 << 32, CHUNK * stride):
            stop = min(start + CHUNK * stride, 1 << 32)
            bits = np.arange(start, stop, stride, dtype=np.uint64).astype(np.uint32)
            yield (bits.view(np.float32),)


def _pairs(generator: np.random.Generator) -> Iterator[tuple[np.ndarray, ...]]:
    bits = generator.integers(0, 1 << 32, (2, CHUNK // 2), dtype=np.uint32).view(np.float32)
    yield bits[0], bits[1]
    # Ordinary magnitudes, where results are neither 0 nor inf; y with few digits, so that it is
    # often an integer.
    x = (generator.standard_normal(CHUNK // 2) * 8.0).astype(np.float32)
    y = (np.round(generator.standard_normal(CHUNK // 2) * 64.0) / 8.0).astype(np.float32)
    yield x, y


def measure(name: str, stride: int, offset: int = 0) -> Measured:
    """Sweep one function."""
    kernel, true = kernel_of(name), reference(name)
    count, mismatches, worst = 0, 0, 0.0
    worst_at: tuple[float, ...] = ()
    first: tuple[float, ...] = ()
    for operands in inputs(name, stride, offset):
        if name == "sigmoid":
            operands = (operands[0][~(operands[0] < SIGMOID_FLOOR)],)
        got = np.empty_like(operands[0])
        errors = np.empty(got.size, np.float64)
        kernel.serial(*operands, got)
        expected = true(*operands)
        _errors(got, expected, expected.view(np.int64), errors)
        count += got.size
        if not errors.size:
            continue
        wrong = np.flatnonzero(errors < 0)
        mismatches += wrong.size
        if wrong.size and not first:
            first = tuple(float(operand[wrong[0]]) for operand in operands)
        at = int(np.argmax(errors))
        if errors[at] > worst:
            worst = float(errors[at])
            worst_at = tuple(float(operand[at]) for operand in operands)
    return Measured(name, count, worst, worst_at, mismatches, first)


def render(results: list[Measured]) -> str:
    """The table kept in the documentation."""
    lines = [
        "# Accuracy of the CPU maths",
        "",
        "Largest error of `fusion_advisor.runtime.cpu_math` on float32, in units of the last place",
        "of the true value, against float64 maths.  Made by `tests/conformance/sweep_cpu_math.py`;",
        "the tests repeat it over a sample.  `sigmoid` is `1/(1 + exp(-x))`, as eager computes it,",
        f"measured from x = {SIGMOID_FLOOR:g} upwards (below, eager's own result underflows).",
        "",
        "| function | inputs | largest error (ulp) | at | NaN, inf or sign wrong |",
        "|---|---|---|---|---|",
    ]
    for row in results:
        at = ", ".join(f"{value:.9g}" for value in row.worst_at)
        inputs_text = "all 2^32" if row.inputs == 1 << 32 else f"{row.inputs:,}"
        lines.append(
            f"| `{row.name}` | {inputs_text} | {row.worst_ulp:.3f} | {at} | {row.mismatches} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Command line: sweep, print each result, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="test every n-th bit pattern")
    parser.add_argument("--functions", default=",".join((*UNARY, *BINARY)))
    parser.add_argument("--write", type=Path, help="write the table to this file")
    options = parser.parse_args()
    results = []
    for name in options.functions.split(","):
        started = time.monotonic()
        row = measure(name, options.stride)
        results.append(row)
        print(row, f"{time.monotonic() - started:.0f} s", flush=True)
    if options.write:
        options.write.write_text(render(results), encoding="utf-8")
    sys.exit(1 if any(row.mismatches for row in results) else 0)


if __name__ == "__main__":
    main()
