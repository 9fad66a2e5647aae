"""Ours, eager and torch.compile side by side on a tanh-GELU written out (4096 x 3072 float32).

    python tests/benchmarks/bench_gelu.py [build/bench.json]

All three allocate their output.  They are timed by turns in one run; the figures are medians and
interquartile ranges, the claim is the ratio.  Exit status 1 when ours gives wrong values.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fusion_advisor as fa
from fusion_advisor.runtime import load_kernel

SHAPE = (4096, 3072)
ROUNDS = 15


def written_out_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU's tanh approximation in eight eager ops."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def by_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """Median and interquartile range, in seconds, of each call, timed by turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - begin)
    result = {}
    for name, values in samples.items():
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        result[name] = (middle, high - low)
    return result


def main(path: Path) -> int:
    """Run the race, print the table, write the JSON."""
    torch.manual_seed(0)
    x = torch.randn(SHAPE)
    with torch.no_grad():
        advice = fa.profile(written_out_gelu, args=(x,), title="tanh-GELU written out")
        if not advice.report.findings:
            print(f"no finding: {advice.report.nothing}")
            return 1
        finding = advice.report.findings[0]
        kernel = advice.fuse(finding.id)
        fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
        compiled = torch.compile(written_out_gelu)
        worst = float((fused(x) - written_out_gelu(x)).abs().max())
        times = by_turns(
            {
                "eager": lambda: written_out_gelu(x),
                "torch.compile": lambda: compiled(x),
                "ours": lambda: fused(x),
            },
            ROUNDS,
        )
    eager = times["eager"][0]
    threads = torch.get_num_threads()
    print(f"tanh-GELU written out, {SHAPE[0]}x{SHAPE[1]} float32, {threads} threads")
    for name, (median, spread) in times.items():
        figures = f"{median * 1e3:9.2f} ms ± {spread * 1e3:6.2f}   {eager / median:6.2f} x eager"
        print(f"{name:14} {figures}")
    print(f"largest difference from eager: {worst:.3g}; fused calls {fused.stats.fused}")
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {"name": "gelu_tanh_written_out", "n": SHAPE[0] * SHAPE[1], "dtype": "float32"}
    row |= {name: {"median_s": median, "iqr_s": spread} for name, (median, spread) in times.items()}
    saved = {"torch": torch.__version__, "rows": [row]}
    path.write_text(json.dumps(saved, indent=2), encoding="utf-8")
    return 0 if worst < 1e-5 and fused.stats.fused > ROUNDS else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench.json")))
