"""Ours, eager and torch.compile side by side on a tanh-GELU written out (4096 x 3072 float32).

    python tests/benchmarks/bench_gelu.py

All three allocate their output.  They are timed by turns in one run; the figures are medians and
interquartile ranges, the claim is the ratio.  Exit status 1 when ours gives wrong
values, is less than five times as fast as eager, or touches more fresh memory than eager does.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from bench_rows import holds, write_row

import fusion_advisor as fa
from fusion_advisor.runtime import load_kernel

SHAPE = (4096, 3072)
ROUNDS = 15
LEAST_RATIO = 5.0


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


def main() -> int:
    """Run the race, print the table, keep the row."""
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
        faults = {
            "ours": page_faults(lambda: fused(x)),
            "one op": page_faults(lambda: x * 0.5) + 16,  # a few pages are anybody's
            "eager": page_faults(lambda: written_out_gelu(x)),
        }
    eager = times["eager"][0]
    threads = torch.get_num_threads()
    print(f"tanh-GELU written out, {SHAPE[0]}x{SHAPE[1]} float32, {threads} threads")
    for name, (median, spread) in times.items():
        figures = f"{median * 1e3:9.2f} ms ± {spread * 1e3:6.2f}   {eager / median:6.2f} x eager"
        print(f"{name:14} {figures}")
    print(f"largest difference from eager: {worst:.3g}; fused calls {fused.stats.fused}")
    row = {name: {"median_s": median, "iqr_s": spread} for name, (median, spread) in times.items()}
    write_row(
        "gelu_tanh_written_out", {"n": x.numel(), "dtype": "float32", "faults": faults, **row}
    )
    kept = [
        holds("ours, times as fast as eager", eager / times["ours"][0], least=LEAST_RATIO),
        holds("largest difference from eager", worst, at_most=1e-5),
        holds(
            "page faults, ours over one eager op", faults["ours"], at_most=1.1 * faults["one op"]
        ),
        holds("fused calls", fused.stats.fused, least=ROUNDS),
    ]
    return int(not all(kept))


def page_faults(call: Callable[[], object], calls: int = 5) -> float:
    """Pages touched for the first time, per call."""
    call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls


if __name__ == "__main__":
    sys.exit(main())
