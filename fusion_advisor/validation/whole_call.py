"""Check and time a whole call before and after kernels were put in place.

Each kernel is validated on its own against error budgets; this is the check that the
pieces were *wired* right: same outputs for the same inputs, and not slower.  The call is
run several times, so what a call changes on the side (random state, module buffers) is
put back after each run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from fusion_advisor.validation.bits import same_bytes

# Relative to the largest magnitude of the output.  A kernel's own error is a few ULP; a matrix
# product and a normalisation behind it can amplify that by the square root of their length, so
# 2**10 ULP of the dtype is what honest rounding can reach in a deep model, and far below what a
# swapped operand or a missing term gives.
WIRING_TOLERANCE_ULP = 1024.0
MIN_ROUNDS = 5
MAX_ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``equal`` within the wiring tolerance; ``bitwise`` to the bit; ``detail`` says where not."""

    equal: bool
    bitwise: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Interleaved medians and interquartile ranges in microseconds."""

    before_us: float
    before_spread_us: float
    after_us: float
    after_spread_us: float
    rounds: int


def only_data(value: Any) -> bool:
    """Whether arguments are data that a call leaves as it is: no cache, iterator or file."""
    if isinstance(value, Mapping):
        return all(only_data(item) for item in value.values())
    if isinstance(value, list | tuple):
        return all(only_data(item) for item in value)
    plain = (torch.Tensor, torch.dtype, torch.device, bool, int, float, complex, str)
    return value is None or isinstance(value, plain)


@contextmanager
def preserved_state(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Put the random state and every buffer of ``modules`` back, bit for bit, on leaving.

    A buffer that the call replaced by another tensor is the old one again.
    """
    every = {id(inner): inner for module in modules for inner in module.modules()}
    tables = [(inner._buffers, dict(inner._buffers)) for inner in every.values()]
    found = {id(one): one for _, table in tables for one in table.values() if one is not None}
    buffers = list(found.values())
    saved = [buffer.detach().clone() for buffer in buffers]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, old in zip(buffers, saved, strict=True):
                    if not _same_bits(buffer, old):
                        buffer.copy_(old)
            for table, entries in tables:
                if any(table.get(name) is not one for name, one in entries.items()):
                    table.update(entries)


def _tensors(result: Any) -> list[torch.Tensor]:
    # Hugging Face's outputs are registered pytrees; other objects contribute their attributes.
    leaves, _ = tree_flatten(result)
    found: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf.detach())
        elif hasattr(leaf, "__dict__"):
            inner, _ = tree_flatten(dict(vars(leaf)))
            found.extend(value.detach() for value in inner if isinstance(value, torch.Tensor))
    return found


def snapshot(result: Any) -> list[torch.Tensor]:
    """Copies of every tensor in ``result``, in order."""
    return [tensor.clone() for tensor in _tensors(result)]


def _same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return same_bytes(left, right)


def compare(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> Comparison:
    """Compare two runs' tensors: count, dtypes, shapes, then values."""
    if len(before) != len(after):
        return Comparison(
            equal=False, bitwise=False, detail=f"{len(before)} tensors became {len(after)}"
        )
    bitwise = True
    for position, (left, right) in enumerate(zip(before, after, strict=True)):
        if left.shape != right.shape or left.dtype != right.dtype:
            detail = (
                f"output {position}: {left.dtype}{tuple(left.shape)} became "
                f"{right.dtype}{tuple(right.shape)}"
            )
            return Comparison(equal=False, bitwise=False, detail=detail)
        if _same_bits(left, right):
            continue
        bitwise = False
        problem = _difference(left, right)
        if problem:
            return Comparison(equal=False, bitwise=False, detail=f"output {position}: {problem}")
    detail = "bitwise equal" if bitwise else "equal within rounding"
    return Comparison(equal=True, bitwise=bitwise, detail=detail)


def _difference(left: torch.Tensor, right: torch.Tensor) -> str:
    if not left.is_floating_point():
        return f"{int((left != right).sum())} of {left.numel()} elements differ"
    wide_left, wide_right = left.double(), right.double()
    odd_left, odd_right = ~torch.isfinite(wide_left), ~torch.isfinite(wide_right)
    if not torch.equal(odd_left, odd_right) or not _same_bits(
        wide_left[odd_left].nan_to_num(nan=3.0), wide_right[odd_right].nan_to_num(nan=3.0)
    ):
        return "NaN or infinity at other places"
    finite = ~odd_left
    if not bool(finite.any()):
        return ""
    worst = float((wide_left[finite] - wide_right[finite]).abs().max())
    scale = float(wide_left[finite].abs().max())
    allowed = WIRING_TOLERANCE_ULP * torch.finfo(left.dtype).eps * max(scale, 1e-30)
    if worst > allowed:
        return f"largest difference {worst:.3g}, allowed {allowed:.3g}"
    return ""


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_interleaved(
    call: Callable[[], object],
    switch: Callable[[bool], None],
    *,
    budget_s: float = 4.0,
) -> CallTimes:
    """Time ``call`` with the kernels out (``switch(False)``) and in (``switch(True)``) by turns.

    By turns, because a machine's clock and load drift over seconds: both medians then see the
    same weather.  The state of the last switch is *in*.
    """
    switch(True)
    call()
    times: dict[bool, list[float]] = {False: [], True: []}
    started = time.perf_counter()
    while len(times[True]) < MIN_ROUNDS or (
        time.perf_counter() - started < budget_s and len(times[True]) < MAX_ROUNDS
    ):
        for inserted in (False, True):
            switch(inserted)
            _synchronize()
            begin = time.perf_counter()
            call()
            _synchronize()
            times[inserted].append((time.perf_counter() - begin) * 1e6)
        if len(times[True]) >= 2 and time.perf_counter() - started > 5 * budget_s:
            break
    before, after = times[False], times[True]
    return CallTimes(
        before_us=statistics.median(before),
        before_spread_us=_interquartile(before),
        after_us=statistics.median(after),
        after_spread_us=_interquartile(after),
        rounds=len(after),
    )


def _interquartile(samples: Sequence[float]) -> float:
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low
