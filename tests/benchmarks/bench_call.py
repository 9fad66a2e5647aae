"""What a call of a fused function costs: ``python tests/benchmarks/bench_call.py``.

Three small operands on the CPU: guards, allocation, launch.  Beside it the same three ops eagerly
and one eager op; and the host's part of a CUDA call, which is the same guards and allocation, then
the packing of addresses, up to the driver.  Processor time, the minimum of samples taken by turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from bench_rows import holds, write_row

import fusion_advisor as fa
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.runtime import launch, launch_cuda, load_kernel
from fusion_advisor.runtime.plan import make_plan

LIMIT_US = 6.0
CUDA_LIMIT_US = 10.0
CALLS, SAMPLES = 2_000, 40


def chain(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Three eager ops."""
    return torch.relu(x * y + z)


def least_us(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least processor time of one call of each, in microseconds."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(SAMPLES):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.process_time() - start) / CALLS * 1e6)
    return best


def starts_on_the_host(fused: Any, args: tuple[torch.Tensor, ...]) -> None:
    """Let a function do all that a CUDA call does on the host, for tensors of the CPU."""
    signature = fused.signature
    plan = make_plan(signature, args, with_gradient=False, target="cuda")
    first = launch.cuda_launch(fused.cuda, signature, plan, args, launch.allocate(plan))
    packed = launch_cuda.PackedArguments(signature, plan, first)
    fused(*args)
    quick = fused._recent_plan(args)
    quick.entry = None
    launch_cuda._raw_stream_getter = lambda: lambda index: 0
    quick.cuda_entry = launch_cuda.make_entry(packed, plan, None, lambda *words: (0,), int)


def main() -> int:
    """Run, print, keep the row; 1 where the bound is missed."""
    x, y, z = (torch.randn(4, 64) for _ in range(3))
    with torch.no_grad():
        report = fa.profile(chain, (x, y, z), isolated=False).report
        kernel = generate_kernel(report.capture.graph, report.candidates[0])
        fused = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
        cuda = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
        starts_on_the_host(cuda, (x, y, z))
        out = torch.empty(4, 64)
        best = least_us(
            {
                "fused": lambda: fused(x, y, z),
                "fused, into": lambda: fused.into(out, x, y, z),
                "CUDA, host": lambda: cuda(x, y, z),
                "eager, 3 ops": lambda: chain(x, y, z),
                "eager, 1 op": lambda: torch.relu(x),
            }
        )
    print("one call on three small CPU tensors")
    for name, us in best.items():
        print(f"  {name:14} {us:6.2f} us   {best['eager, 3 ops'] / us:5.2f} x eager")
    write_row("small_call", {name.replace(", ", "_"): us for name, us in best.items()})
    kept = holds("fused call, us", best["fused"], at_most=LIMIT_US)
    kept &= holds("host part of a CUDA call, us", best["CUDA, host"], at_most=CUDA_LIMIT_US)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
