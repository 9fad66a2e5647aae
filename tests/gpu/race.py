"""Fused CUDA kernels against eager, torch.compile and a device copy of the same bytes.

    python tests/gpu/race.py [FILE.json]

One row per chain: GB/s of the fused kernel, the same of a device copy that moves as many bytes,
and the times of eager, fused and torch.compile.  Each part of a row fails alone, with its reason.
Times are medians of CUDA events, the contestants by turns in one run.  Exit status: 0 every part
gave a figure, 1 a part failed, 3 no CUDA device.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from device_chains import CHAINS, DeviceChain, fused_function, profiled

DONE, PART_FAILED, NO_DEVICE = 0, 1, 3
ROUNDS, CALLS = 25, 20
HEADER = ("kernel", "fused GB/s", "copy GB/s", "eager µs", "fused µs", "compile µs", "largest diff")


def main(arguments: list[str]) -> int:
    """Race every chain, print the table, write the JSON if a name is given."""
    if not torch.cuda.is_available():
        print(f"no CUDA device (torch {torch.__version__}): nothing was timed")
        return NO_DEVICE
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    rows, reasons = [], []
    for chain in CHAINS:
        row, failed = race(chain)
        rows.append(row)
        reasons += failed
    print(table(rows))
    for reason in reasons:
        print(reason)
    if arguments:
        Path(arguments[0]).write_text(json.dumps({"rows": rows, "failed": reasons}, indent=2))
    return PART_FAILED if reasons else DONE


def race(chain: DeviceChain) -> tuple[dict[str, Any], list[str]]:
    """A row of figures, and why the missing ones are missing."""
    row: dict[str, Any] = {"kernel": chain.name}
    reasons: list[str] = []

    def part(name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:
            text = (str(error).strip().splitlines() or [""])[0]
            reasons.append(f"{chain.name}, {name}: {type(error).__name__}: {text[:200]}")
            return None

    inputs = part("inputs", lambda: chain.inputs("cuda"))
    if inputs is None:
        return row, reasons
    expected = part("eager", lambda: chain.function(*inputs))
    if expected is None:
        return row, reasons
    moved = sum(t.numel() * t.element_size() for t in (*inputs, expected))
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")  # read once, written once
    target = torch.empty_like(source)
    contestants: dict[str, Callable[[], Any]] = {
        "copy": lambda: target.copy_(source),
        "eager": lambda: chain.function(*inputs),
    }
    fused = part("fused", lambda: fused_function(profiled(chain, "cuda")[0]))
    if fused is not None:
        contestants["fused"] = lambda: fused(*inputs)
    compiled = part("torch.compile", lambda: torch.compile(chain.function))
    if compiled is not None:
        contestants["compile"] = lambda: compiled(*inputs)
    with torch.no_grad():
        for name, call in list(contestants.items()):
            result = part(name, call)  # compiled and warm
            if result is None:
                del contestants[name]
            elif name == "fused":
                row["largest_diff"] = float((result.double() - expected.double()).abs().max())
                if fused.stats.fallbacks:
                    reasons.append(f"{chain.name}, fused: fell back: {dict(fused.stats.fallbacks)}")
        times = part("timing", lambda: by_turns(contestants)) or {}
    row |= {f"{name}_us": us for name, us in times.items()}
    for name in ("fused", "copy"):
        if name in times:
            row[f"{name}_gb_per_s"] = moved / (times[name] * 1e3)
    return row, reasons


def by_turns(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median microseconds of one call of each, measured by turns on the current stream."""
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) * 1e3 / CALLS)
    return {name: statistics.median(values) for name, values in samples.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as aligned text; what is missing is a dash."""
    keys = ("fused_gb_per_s", "copy_gb_per_s", "eager_us", "fused_us", "compile_us", "largest_diff")
    cells = [HEADER]
    for row in rows:
        figures = [f"{row[key]:.4g}" if key in row else "–" for key in keys]
        cells.append((row["kernel"], *figures))
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:],
                                                                       strict=True))])
        for line in cells
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
