"""Fused CPU kernels of 16 chains against eager, torch.compile, one torch op and a ceiling.

    python tests/benchmarks/bench_chains.py [--sizes 1e4,1e6,3e7] [--dtypes float32,bfloat16]
        [--chains words] [--rounds N]

Everything is timed by turns in one run, outputs fresh except for ``ours_out`` and ``ceiling``,
which write into the same memory each time.  ``ceiling`` reads and writes as many full
tensors of the same element size and computes next to nothing.  Rows go to build/bench.json: medians
and interquartile ranges in seconds.  Exit status 1 where a bound at the end is missed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent))

import numba
import numpy as np
import torch
from bench_rows import holds, write_row
from chains import CHAINS, Chain
from numba import prange

from fusion_advisor.analysis import find_candidates
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, Recording, record, replay
from fusion_advisor.records import FusionCandidate, OpGraph
from fusion_advisor.runtime import load_kernel
from fusion_advisor.runtime.cpu_kernels import SERIAL_BELOW

SIZES = (10_000, 1_000_000, 30_000_000)
ROUNDS = {10_000: 200, 1_000_000: 40, 30_000_000: 9}
CONTESTANTS = ("eager", "compile", "best_torch_op", "ours", "ours_fast", "ours_out", "ceiling")
NEAR = {
    torch.float32: 1e-5,
    torch.bfloat16: 0.05,
}  # relative to the largest element: a sanity check

Times = dict[str, tuple[float, float]]


def main() -> int:
    """Run the rows asked for, print ratios, hold them against the bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--chains", default="", help="words that names must hold, by commas")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    sizes = [int(float(size)) for size in options.sizes.split(",")]
    dtypes = [getattr(torch, name) for name in options.dtypes.split(",")]
    words = options.chains.split(",")
    chains = [chain for chain in CHAINS if any(word in chain.name for word in words)]
    rows: dict[tuple[int, torch.dtype], list[Times]] = {}
    failed = []
    print("medians; times in µs, then how often as fast as eager | torch.compile")
    for n, dtype, chain in itertools.product(sizes, dtypes, chains):
        rounds = options.rounds or ROUNDS.get(n, max(5, int(3e8 / n)))
        try:
            times = race(chain, n, dtype, rounds, with_compile=not options.no_compile)
        except Exception as error:
            failed.append(f"{chain.name}, {n}, {dtype}: {type(error).__name__}: {error}")
            traceback.print_exc()
            continue
        rows.setdefault((n, dtype), []).append(times)
        print(line(chain, n, dtype, times), flush=True)
    kept = [bounds(n, dtype, every) for (n, dtype), every in rows.items()]
    for failure in failed:
        print(f"  FAILED {failure}")
    return int(bool(failed) or not all(kept))


def race(chain: Chain, n: int, dtype: torch.dtype, rounds: int, *, with_compile: bool) -> Times:
    """Time the contestants on one chain; the row goes to build/bench.json."""
    torch.manual_seed(0)
    inputs = chain.inputs(n, dtype)
    with torch.no_grad():
        calls = contestants(chain, inputs, with_compile=with_compile)
        check(chain, dtype, calls)
        times = by_turns(calls, rounds)
    figures: dict[str, Any] = {name: times[name][0] for name in CONTESTANTS if name in times}
    spread = {name: times[name][1] for name in CONTESTANTS if name in times}
    name = str(dtype).removeprefix("torch.")
    write_row(f"{chain.name}, {n}, {name}", {"n": n, "dtype": name, **figures, "spread": spread})
    return times


def contestants(
    chain: Chain, inputs: tuple[torch.Tensor, ...], *, with_compile: bool
) -> dict[str, Callable[[], Any]]:
    """Calls by name.  Kernels are generated from a recording of the very call."""
    eager = chain.function
    recording = record(lambda: eager(*inputs), CaptureOptions(with_source=False))
    groups = [Group(recording, candidate) for candidate in find_candidates(recording.graph)]
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: eager(*inputs),
        "best_torch_op": lambda: chain.one_op(*inputs),
        "ours": lambda: [group.exact(*group.operands) for group in groups],
        "ours_fast": lambda: [group.fast(*group.operands) for group in groups],
        "ours_out": lambda: [group.exact.into(group.out, *group.operands) for group in groups],
        "ceiling": ceiling(chain, groups[0].out[0].numel(), inputs[0].dtype),
    }
    if with_compile:
        torch._dynamo.reset()
        compiled = torch.compile(eager, dynamic=False)
        compiled(*inputs)
        calls["compile"] = lambda: compiled(*inputs)
    return calls


class Group:
    """A fused group of a recorded call: its kernels, operands, and outputs that are there already.

    Chains that share nothing but operands (the two results of a rotary embedding) are several.
    """

    def __init__(self, recording: Recording, candidate: FusionCandidate) -> None:
        names = [operand.value for operand in candidate.inputs]
        known = replay.materialize(recording.graph, recording.store, set(names))
        self.operands = tuple(known[name] for name in names)
        self.exact, self.fast = (_fused(recording.graph, candidate, m) for m in ("eager", "fast"))
        self.out = self.exact.prepare(self.operands, "cpu", None).outputs


def _fused(graph: OpGraph, candidate: FusionCandidate, match: Literal["eager", "fast"]) -> Any:
    kernel = generate_kernel(graph, candidate, targets=("cpu",), match=match)
    return load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]


def check(chain: Chain, dtype: torch.dtype, calls: dict[str, Callable[[], Any]]) -> None:
    """A contestant that computes something else is no contestant.

    Results are compared without regard to their order, which is the kernel's own.
    """
    expected = tensors(calls["eager"]())
    for name in ("ours", "ours_fast", "ours_out", "compile"):
        got = tensors(calls[name]()) if name in calls else expected
        if len(got) != len(expected):
            raise AssertionError(f"{chain.name}: {name} gives {len(got)} results")
        for wanted in expected:
            scale = float(wanted.float().abs().max())
            worst = min(float((one.float() - wanted.float()).abs().max()) for one in got)
            if not worst <= NEAR[dtype] * scale:
                raise AssertionError(f"{name} differs from eager by {worst:g} of {scale:g}")


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """All tensors of nested results."""
    if isinstance(result, torch.Tensor):
        return (result,)
    return tuple(tensor for part in result for tensor in tensors(part))


def ceiling(chain: Chain, n: int, dtype: torch.dtype) -> Callable[[], object]:
    """A loop over as many full arrays in and out, of the same element size, that only adds."""
    like = {4: np.float32, 2: np.uint16, 8: np.float64}[dtype.itemsize]
    arrays = [np.ones(n, like) for _ in range(chain.reads + chain.writes)]
    loop = streaming_loop(chain.reads, chain.writes, n >= SERIAL_BELOW)
    loop(*arrays)
    return lambda: loop(*arrays)


@functools.cache
def streaming_loop(reads: int, writes: int, parallel: bool) -> Any:
    """The compiled loop; stores are ordinary ones, as a kernel's are."""
    read = [f"x{number}" for number in range(reads)]
    written = [f"y{number}" for number in range(writes)]
    total = " + ".join(f"{name}[i]" for name in read)
    stores = "".join(f"        {name}[i] = total\n" for name in written)
    text = f"def loop({', '.join(read + written)}):\n    for i in prange(y0.size):\n"
    text += f"        total = {total}\n{stores}"
    namespace: dict[str, Any] = {"prange": prange}
    exec(text, namespace)
    return numba.njit(parallel=parallel)(namespace["loop"])


def by_turns(calls: dict[str, Callable[[], object]], rounds: int) -> Times:
    """Median and interquartile range, in seconds, of each call, timed by turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            result = call()
            samples[name].append(time.perf_counter() - begin)
            del result  # its memory is given back outside the time of the next
    found = {}
    for name, values in samples.items():
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        found[name] = (middle, high - low)
    return found


def line(chain: Chain, n: int, dtype: torch.dtype, times: Times) -> str:
    """One row of the table."""
    name = str(dtype).removeprefix("torch.")
    head = f"{chain.name:20} {n:>9} {name:8}"
    cells = []
    for contestant in CONTESTANTS:
        if contestant not in times:
            continue
        median = times[contestant][0]
        cell = f"{contestant} {median * 1e6:.0f}"
        if contestant.startswith("ours"):
            cell += f" ({times['eager'][0] / median:.2f}"
            cell += f" | {times['compile'][0] / median:.2f})" if "compile" in times else ")"
        cells.append(cell)
    return f"{head} {', '.join(cells)}"


def mean_ratio(rows: Sequence[Times], over: str, under: str) -> float:
    """The geometric mean of how often as fast ``under`` is as ``over``."""
    return math.exp(statistics.fmean(math.log(row[over][0] / row[under][0]) for row in rows))


def bounds(n: int, dtype: torch.dtype, rows: Sequence[Times]) -> bool:
    """Print the geometric means over the chains and whether they keep the bounds."""
    print(f"{len(rows)} chains of {n} elements, {dtype}: geometric means")
    kept = []

    def least(what: str, over: str, under: str, bound: float) -> None:
        if all(over in row and under in row for row in rows):
            kept.append(holds(f"{what}, {under}", mean_ratio(rows, over, under), least=bound))

    if (n, dtype) == (1_000_000, torch.float32):
        least("times as fast as torch.compile", "compile", "ours_fast", 1.5)
        least("times as fast as eager", "eager", "ours_fast", 3.0)
        least("times as fast as torch.compile", "compile", "ours", 1.3)
        least("times as fast as eager", "eager", "ours", 2.5)
    elif (n, dtype) == (1_000_000, torch.bfloat16):
        least("times as fast as torch.compile", "compile", "ours_fast", 1.5)
        least("times as fast as torch.compile", "compile", "ours", 1.0)
    elif (n, dtype) == (30_000_000, torch.float32):
        least("times as fast as torch.compile", "compile", "ours", 1.0)
        least("times as fast as one torch op", "best_torch_op", "ours", 1 / 1.15)
        least("share of the ceiling", "ceiling", "ours_out", 0.85)
    else:
        least("times as fast as eager", "eager", "ours", 0.0)
        least("times as fast as torch.compile", "compile", "ours", 0.0)
    slow = [row for row in rows if row["ours"][0] > 1.05 * row["eager"][0]]
    print(f"  {len(slow)} of {len(rows)} chains are more than 5 % slower than eager")
    return all(kept)


if __name__ == "__main__":
    sys.exit(main())
