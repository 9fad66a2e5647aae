"""Chains with their fused kernels on a device: made from a recording of the very call."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from chains import Chain

from fusion_advisor.analysis import find_candidates
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record, replay
from fusion_advisor.runtime import load_kernel
from fusion_advisor.validation.budgets import budget
from fusion_advisor.validation.compare import compare
from fusion_advisor.validation.fast_budgets import fast_budget

LAYOUTS = ("aligned", "off by one", "rows with gaps", "transposed", "broadcast")
ROUNDS, CALLS = 15, 10


class Groups:
    """The fused groups of one call, with the operands that they had in it."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: tuple[torch.Tensor, ...],
        device: str,
        match: Literal["eager", "fast"],
    ) -> None:
        recording = record(lambda: function(*inputs), CaptureOptions(with_source=False))
        self.graph, self.match = recording.graph, match
        self.candidates = find_candidates(recording.graph)
        if not self.candidates:
            raise AssertionError("no group was found")
        self.functions: list[Any] = []
        self.operands: list[tuple[torch.Tensor, ...]] = []
        target: Literal["cpu", "cuda"] = "cpu" if device == "cpu" else "cuda"
        for candidate in self.candidates:
            names = [operand.value for operand in candidate.inputs]
            known = replay.materialize(recording.graph, recording.store, set(names))
            self.operands.append(tuple(known[name] for name in names))
            kernel = generate_kernel(self.graph, candidate, targets=(target,), match=match)
            self.functions.append(load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry])
        self._out: list[Any] = []

    def call(self) -> list[Any]:
        """All groups once, into fresh memory."""
        return [
            function(*operands)
            for function, operands in zip(self.functions, self.operands, strict=True)
        ]

    def call_into(self) -> list[Any]:
        """All groups once, into the memory of the first such call."""
        if not self._out:
            self._out = self.call()
        return [
            function.into(out, *operands)
            for function, out, operands in zip(
                self.functions, self._out, self.operands, strict=True
            )
        ]

    def call_the_long_way(self) -> list[Any]:
        """``call`` by numba's own launch, as the first call of a kind is."""
        for function in self.functions:
            for plan, _ in function._recent:
                plan.cuda_entry = None
        return self.call()

    @property
    def fallbacks(self) -> dict[str, int]:
        """Reasons for which a call ran eager."""
        found: dict[str, int] = {}
        for function in self.functions:
            found |= dict(function.stats.fallbacks)
        return found

    @property
    def copied(self) -> int:
        """Calls that laid an operand out anew first."""
        return sum(function.stats.copied for function in self.functions)

    def judge(self) -> dict[str, Any]:
        """Results against what the budgets allow, eager having run on the same device."""
        mismatches, worst, first = 0, 0.0, ""
        allowed_by = fast_budget if self.match == "fast" else budget
        results = self.call()
        for candidate, operands, result in zip(
            self.candidates, self.operands, results, strict=True
        ):
            names = [operand.value for operand in candidate.inputs]
            allowed = allowed_by(self.graph, candidate, dict(zip(names, operands, strict=True)))
            for actual, limit in zip(tensors(result), allowed, strict=True):
                found = compare(actual, limit)
                mismatches += found.mismatches
                worst, first = max(worst, found.worst_ulp), first or found.first
        return {"mismatches": mismatches, "worst_ulp": worst, "first": first}


def judged(chain: Chain, inputs: tuple[torch.Tensor, ...], device: str) -> dict[str, Any]:
    """Both matches of a chain judged; ``failed`` where an element is out of its budget."""
    row: dict[str, Any] = {}
    wrong = []
    for match in ("eager", "fast"):
        groups = Groups(chain.function, inputs, device, match)  # type: ignore[arg-type]
        found = groups.judge()
        row |= {
            f"{match}_mismatches": found["mismatches"],
            f"{match}_worst_ulp": found["worst_ulp"],
        }
        if found["mismatches"]:
            wrong.append(f"{match}: {found['first']}")
        if groups.fallbacks:
            wrong.append(f"{match} ran eager: {next(iter(groups.fallbacks))}")
    return row | ({"failed": "; ".join(wrong)} if wrong else {})


def laid_out(
    chain: Chain, n: int, dtype: torch.dtype, device: str, layout: str
) -> tuple[torch.Tensor, ...] | None:
    """A chain's inputs lying as said; None where that chain has no such form."""
    torch.manual_seed(0)
    inputs = tuple(one.to(device) for one in chain.inputs(n, dtype))
    if layout == "aligned":
        return inputs
    if any(one.dim() != 2 for one in inputs if one.numel() == inputs[0].numel()):
        return None
    return tuple(_moved(one, layout, inputs[0].shape, place) for place, one in enumerate(inputs))


def _moved(tensor: torch.Tensor, layout: str, full: torch.Size, place: int) -> torch.Tensor:
    if tensor.shape != full:
        return tensor
    rows, columns = tensor.shape
    if layout == "off by one":
        memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
        return memory[1:].view(rows, columns).copy_(tensor)
    if layout == "rows with gaps":
        memory = torch.empty(rows, columns + 24, dtype=tensor.dtype, device=tensor.device)
        return memory[:, :columns].copy_(tensor)
    if layout == "transposed":
        return tensor.t().contiguous().t()
    return tensor[:, :1].expand(rows, columns) if place == 1 else tensor


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """All tensors of nested results."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if not isinstance(result, (tuple, list)):
        return ()
    return tuple(tensor for part in result for tensor in tensors(part))


def copies_of(moved: int, device: str) -> Callable[[], Any]:
    """A copy on the device that moves as many bytes: half read, half written."""
    source = torch.zeros(moved // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def by_turns(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, float]:
    """Median microseconds of one call of each, the contestants by turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            with _timed(device, samples[name]):
                for _ in range(CALLS):
                    call()
    return {name: statistics.median(values) for name, values in samples.items()}


@contextlib.contextmanager
def _timed(device: str, into: list[float]) -> Iterator[None]:
    if device == "cpu":
        begin = time.perf_counter()
        yield
        into.append((time.perf_counter() - begin) * 1e6 / CALLS)
        return
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    yield
    last.record()
    last.synchronize()
    into.append(first.elapsed_time(last) * 1e3 / CALLS)
