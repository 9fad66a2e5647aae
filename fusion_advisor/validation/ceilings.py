"""What this machine can do at most: streaming rates, arithmetic, and the cost of a call.

Measured in a few seconds, then kept in a private cache file for the same
processor, thread count and library versions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import prange

from fusion_advisor.errors import ValidationError
from fusion_advisor.quantities import bytes_text, time_text
from fusion_advisor.records import BandwidthPoint, Ceilings
from fusion_advisor.runtime import FusedFunction, Operand, Output, cpu_kernel
from fusion_advisor.runtime.intrinsics import fma
from fusion_advisor.validation.benchmark import FASTER_THAN_CEILING, floor_us

CACHE_VERSION = 1
# Bytes read plus written: from within the first-level cache to far beyond the last level.
WORKING_SETS = tuple(1 << power for power in (15, 17, 19, 21, 23, 25, 27, 28))
POINT_S = 0.04  # time spent on one working-set size and one way of streaming
SMALL_ELEMENTS = 16  # an eager op this small costs its dispatch alone
CHAIN = 16  # rounds of eight FMAs per element: enough arithmetic to leave memory behind


def measure_ceilings(
    *, device: str = "cpu", refresh: bool = False, cache_dir: str | Path | None = None
) -> Ceilings:
    """The ceilings of ``device`` (``cpu`` or ``cuda``), from the cache unless ``refresh``.

    Raises ``ValidationError`` for a device that is not here.
    """
    if device not in ("cpu", "cuda"):
        raise ValidationError(f"ceilings are measured on cpu or cuda, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValidationError(
            "no CUDA device is here to measure; use the device table (for example 'h100')"
        )
    path = _cache_path(device, cache_dir)
    if not refresh:
        known = _read(path)
        if known is not None:
            return known
    measured = _measure(device)
    _write(path, measured)
    return measured


def contradiction(ceilings: Ceilings, ops: Iterable[tuple[int, float]]) -> str:
    """How elementwise ops on the CPU (bytes moved, us taken) plainly beat the ceilings, or "".

    No op is faster than the machine: the ceilings were then measured while others used it.
    """
    if ceilings.device != "cpu":
        return ""
    for moved, taken_us in ops:
        least_us, what = max(
            (floor_us(moved, ceilings), f"moving {bytes_text(moved)}"),
            (ceilings.dispatch_us, "the dispatch of an op"),
        )
        if taken_us * FASTER_THAN_CEILING < least_us:
            return (
                f"an op took {time_text(taken_us)} where they say that {what} alone takes "
                f"{time_text(least_us)}"
            )
    return ""


def measure_again(*, device: str = "cpu", cache_dir: str | Path | None = None) -> Ceilings:
    """The best of the stored ceilings and of new measurements; the cache holds it from now on.

    What was reached once can be reached: disturbances only ever make a figure worse.
    """
    path = _cache_path(device, cache_dir)
    new, known = _measure(device), _read(path)
    best = new if known is None else _best(new, known)
    _write(path, best)
    return best


def _best(new: Ceilings, known: Ceilings) -> Ceilings:
    rates = {point.working_set_bytes: point.gb_per_s for point in known.bandwidth}
    gflops = dict(known.gflops)
    return dataclasses.replace(
        new,
        bandwidth=tuple(
            dataclasses.replace(
                point, gb_per_s=max(point.gb_per_s, rates.get(point.working_set_bytes, 0.0))
            )
            for point in new.bandwidth
        ),
        gflops=tuple((dtype, max(rate, gflops.get(dtype, 0.0))) for dtype, rate in new.gflops),
        dispatch_us=min(new.dispatch_us, known.dispatch_us),
        launch_us=min(new.launch_us, known.launch_us),
        page_fault_us_per_mb=min(new.page_fault_us_per_mb, known.page_fault_us_per_mb),
        call_us=min(new.call_us, known.call_us),
    )


def _measure(device: str) -> Ceilings:
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    threads = 0 if device == "cuda" else torch.get_num_threads()
    launch_us = _launch_us() if device == "cuda" else 0.0
    return Ceilings(
        device=device,
        name=name,
        bandwidth=tuple(
            BandwidthPoint(working_set_bytes=size, gb_per_s=_stream_gb_per_s(size, device))
            for size in WORKING_SETS
        ),
        gflops=tuple((dtype, _gflops(dtype, device)) for dtype in ("float32", "float64")),
        dispatch_us=_dispatch_us(device),
        launch_us=launch_us,
        page_fault_us_per_mb=0.0 if device == "cuda" else _page_fault_us_per_mb(),
        call_us=_call_us(device),
        threads=threads,
        origin="measured",
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    )


# --- timing ---------------------------------------------------------------------------


def _best_s(call: Callable[[], Any], device: str, budget_s: float) -> float:
    """The shortest time of one call: a ceiling is what the machine can do undisturbed."""
    call()
    synchronize(device)
    best, ends = math.inf, time.perf_counter() + budget_s
    for turn in range(100_000):
        started = time.perf_counter()
        call()
        synchronize(device)
        now = time.perf_counter()
        best = min(best, now - started)
        if turn >= 2 and now > ends:
            break
    return best


def synchronize(device: str) -> None:
    """Wait for the device's work to end (a CPU works synchronously)."""
    if device == "cuda":
        torch.cuda.synchronize()


def _events_s(call: Callable[[], Any], repeats: int) -> float:
    """Time of one call on the device's own clock."""
    call()
    event: Any = torch.cuda.Event  # its constructor is not annotated
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / repeats


# --- what is measured -----------------------------------------------------------------


def _scale(source: Any, target: Any) -> None:
    for index in prange(target.size):
        target[index] = source[index] * np.float32(0.5)


def _fma_chains(source: Any, target: Any, factor: Any, term: Any) -> None:
    # Eight independent chains per element hide the latency of one FMA.
    for index in prange(target.size):
        a = source[index]
        b, c, d, e, f, g, h = a, a, a, a, a, a, a
        for _ in range(CHAIN):
            a, b = fma(a, factor, term), fma(b, term, factor)
            c, d = fma(c, factor, factor), fma(d, term, term)
            e, f = fma(a, factor, e), fma(f, factor, b)
            g, h = fma(g, term, c), fma(h, factor, d)
        target[index] = a + b + c + d + e + f + g + h


_scale_kernel = cpu_kernel(_scale)
_fma_kernel = cpu_kernel(_fma_chains)


def _stream_gb_per_s(working_set: int, device: str) -> float:
    """Bytes read plus written per second, equal streams, the best of three implementations.

    The serial one waits for no other thread, so that a busy machine still gives a usable figure.
    """
    count = working_set // 8  # float32: half is read, half written
    source = torch.ones(count, device=device)
    target = torch.ones(count, device=device)
    half = torch.tensor(0.5, device=device)
    if device == "cuda":
        seconds = _events_s(lambda: torch.mul(source, half, out=target), 20)
        return working_set / seconds / 1e9
    seconds = _best_s(lambda: torch.mul(source, half, out=target), device, POINT_S)
    one, two = source.numpy(), target.numpy()
    for kernel in (_scale_kernel, _scale_kernel.serial):
        seconds = min(seconds, _best_s(functools.partial(kernel, one, two), device, POINT_S))
    return working_set / seconds / 1e9


def _gflops(dtype: str, device: str) -> float:
    """Fused multiply-adds counted as two operations, on data that stays in cache."""
    if device == "cuda":
        size = 2048
        left = torch.ones(size, size, device=device, dtype=getattr(torch, dtype))
        seconds = _events_s(lambda: torch.mm(left, left), 5)
        return 2 * size**3 / seconds / 1e9
    kind = np.dtype(dtype).type
    count = 1 << 16
    source, target = np.full(count, 0.5, dtype), np.empty(count, dtype)
    factor, term = kind(0.999), kind(0.001)
    # One call takes a fifth of a millisecond: some of hundreds find a busy machine's cores free.
    call = functools.partial(_fma_kernel, source, target, factor, term)
    seconds = _best_s(call, device, POINT_S)
    return 2 * 8 * CHAIN * count / seconds / 1e9


def _median_call_us(call: Callable[[], Any], calls: int = 200, samples: int = 15) -> float:
    for _ in range(calls):
        call()
    times = []
    for _ in range(samples):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - started) / calls * 1e6)
    return statistics.median(times)


def _dispatch_us(device: str) -> float:
    """Host cost of one small eager op."""
    small = torch.ones(SMALL_ELEMENTS, device=device)
    with torch.no_grad():
        return _median_call_us(lambda: small * 0.5)


def _launch_us() -> float:
    """Device time of one kernel that does nothing but start."""
    small = torch.ones(SMALL_ELEMENTS, device="cuda")
    return _events_s(lambda: small.mul_(1.0), 200) * 1e6


def _halve(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def _call_us(device: str) -> float:
    """Host cost of one call of a fused function on a small tensor."""
    if device == "cuda":
        return 0.0  # a launch through the driver: measured with the kernel itself
    probe = FusedFunction(
        "ceiling_probe", eager=_halve, cpu=_scale_kernel, rank=1, groups=((0,),),
        operands=(Operand("x", "float32", (0,)),), outputs=(Output("out", "float32"),),
    )  # fmt: skip
    small = torch.ones(SMALL_ELEMENTS)
    with torch.no_grad():
        return _median_call_us(lambda: probe(small))


def _page_fault_us_per_mb() -> float:
    """First-touch cost of fresh memory: writing to new pages against writing again."""
    size = 32 << 20
    fresh, again = [], []
    for _ in range(3):
        memory = np.empty(size, np.uint8)
        started = time.perf_counter()
        memory[::4096] = 1
        middle = time.perf_counter()
        memory[::4096] = 2
        again.append(time.perf_counter() - middle)
        fresh.append(middle - started)
        del memory
    return max(0.0, (min(fresh) - min(again)) * 1e6 / (size / 1e6))


# --- the cache ------------------------------------------------------------------------


def cpu_name() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cache_path(device: str, cache_dir: str | Path | None) -> Path:
    """A file named by everything the figures depend on."""
    if cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        cache_dir = Path(base) / "fusion_advisor" / "ceilings"
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    key = (CACHE_VERSION, device, name, torch.get_num_threads(), torch.__version__,
           numba.__version__, platform.node())  # fmt: skip
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:20]
    return Path(cache_dir) / f"{device}-{digest}.json"


def _read(path: Path) -> Ceilings | None:
    """The cached ceilings; None where there are none or the file is not what was written."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(
            BandwidthPoint(working_set_bytes=int(size), gb_per_s=float(rate))
            for size, rate in data.pop("bandwidth")
        )
        gflops = tuple((str(name), float(rate)) for name, rate in data.pop("gflops"))
        known = Ceilings(bandwidth=points, gflops=gflops, **data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    sound = len(points) == len(WORKING_SETS) and all(point.gb_per_s > 0 for point in points)
    return known if sound and known.dispatch_us > 0 else None


def _write(path: Path, ceilings: Ceilings) -> None:
    """Replace the cache file in one step; a place that cannot be written costs only time."""
    data = dataclasses.asdict(ceilings)
    data["bandwidth"] = [(p.working_set_bytes, p.gb_per_s) for p in ceilings.bandwidth]
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
