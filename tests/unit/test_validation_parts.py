"""Inputs, layouts, timing and ceilings: the parts that rungs are made of."""

from __future__ import annotations

import itertools
import json
import math
import mmap
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import validation_kernels as kernels

from fusion_advisor.codegen import lower
from fusion_advisor.errors import ValidationError
from fusion_advisor.records import BandwidthPoint, Ceilings
from fusion_advisor.validation import arrays, benchmark, ceilings, process_state, special_values
from fusion_advisor.validation.bits import ulp_distance
from fusion_advisor.validation.execution import _unwritten
from fusion_advisor.validation.guarded import POISONS, GuardedArray
from fusion_advisor.validation.in_process import foreign_arguments
from fusion_advisor.validation.inputs import Case, build_cases


def test_cases_keep_the_layout_and_change_the_sizes() -> None:
    one = kernels.scaled_add()
    cases = build_cases(one.kernel.program, one.graph, one.candidate, one.captured)
    names = [case.name for case in cases]
    assert names[0] == "captured inputs"
    assert len(set(names)) == len(names) >= 12
    for case in cases[1:]:
        x, y = case.tensors
        assert x.shape == y.shape
        assert x.is_contiguous()
        if y.numel() and y.shape[0] > 1 and y.shape[1] > 1:
            assert y.stride(1) == 1
            assert y.stride(0) > y.shape[1], "the strided operand must have gaps"
    elements = [case.tensors[0].numel() for case in cases]
    assert {0, 1, 256, 257} <= set(elements)
    assert any(count % 256 for count in elements)
    assert any(case.tensors[0].storage_offset() % 4 for case in cases)
    special = next(case for case in cases if case.name == "special values along axis 1")
    x = special.tensors[0]
    assert torch.isnan(x).any()
    assert torch.isinf(x).any()
    assert (torch.signbit(x) & (x == 0)).any()
    assert ((x != 0) & (x.abs() < torch.finfo(torch.float32).smallest_normal)).any()


def test_integers_reach_the_ends_of_their_dtype_whatever_was_captured() -> None:
    x = torch.tensor([torch.iinfo(torch.int64).min, 3, torch.iinfo(torch.int64).max - 1])
    for captured in (x, torch.tensor([1, 2, 3])):
        graph, candidate = kernels.record(lambda x: x.clamp(min=0) + 1, captured)
        program = lower(graph, candidate, name="clamped")
        cases = build_cases(program, graph, candidate, {candidate.inputs[0].value: captured})
        seen = {value for case in cases for value in case.tensors[0].flatten().tolist()}
        info = torch.iinfo(torch.int64)
        # Ends, their neighbours, and what float32 and float64 do not hold.
        assert {info.min, info.min + 1, info.max - 1, info.max, 2**24 + 1, 2**53 + 1} <= seen


def _met(left: torch.Tensor, right: torch.Tensor) -> set[tuple[str, str]]:
    pairs = zip(left.flatten().tolist(), right.flatten().tolist(), strict=True)
    return {(repr(one), repr(two)) for one, two in pairs}  # NaN equals its name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_every_pair_of_special_values_meets(dtype: torch.dtype) -> None:
    table = special_values.special_table(dtype)
    assert table.numel() <= special_values.PRIME
    operands = {
        "whole": torch.zeros(3, 2, 4, dtype=dtype),
        "other": torch.zeros(3, 2, 4, dtype=dtype),
        "column": torch.zeros(4, dtype=dtype),
        "row": torch.zeros(3, 1, 1, dtype=dtype),
        "second column": torch.zeros(4, dtype=dtype),
        "middle": torch.zeros(2, 1, dtype=dtype),
    }
    graph, candidate = kernels.record(
        lambda a, b, c, d, e, f: (((a + b) * c) + d) * e + f, *operands.values()
    )
    program = lower(graph, candidate, name="sums")
    cases = build_cases(program, graph, candidate, None)
    every = {(repr(one), repr(two)) for one in table.tolist() for two in table.tolist()}
    for one, two in itertools.combinations(range(len(operands)), 2):
        met = set()
        for case in cases:
            if case.name.startswith("special values"):
                left, right = torch.broadcast_tensors(case.tensors[one], case.tensors[two])
                met |= _met(left, right)
        assert every <= met, (list(operands)[one], list(operands)[two])


def test_sizes_leave_every_remainder_and_pass_16_bits() -> None:
    for shape in ((5,), (3, 4)):
        graph, candidate = kernels.record(lambda x: torch.relu(x) * 2, torch.zeros(shape))
        program = lower(graph, candidate, name="doubled")
        cases = build_cases(program, graph, candidate, None)
        counts = [case.tensors[0].numel() for case in cases]
        assert {count % 8 for count in counts} == set(range(8))
        assert max(counts) > 1 << 16


def test_broadcast_operands_stay_broadcast() -> None:
    one = kernels.bias_relu_scale()
    for case in build_cases(one.kernel.program, one.graph, one.candidate, None):
        x, bias, _ = case.tensors
        assert bias.shape == x.shape[-1:]


def test_a_launch_walks_the_groups() -> None:
    one = kernels.scaled_add()
    x = torch.arange(6.0).reshape(2, 3)
    wide = torch.arange(20.0).reshape(2, 10)
    seen = arrays.seen_regions(one.graph, one.candidate, (x, wide[:, 4:7]))
    spec = arrays.launch_spec(one.kernel.program, seen, ())
    assert spec.sizes == (2, 3)
    y = spec.operands[1]
    assert (y.sizes, y.strides, y.strided) == ((2, 3), (10, 1), True)
    assert y.data.tolist() == list(np.arange(4.0, 17.0))
    swapped = arrays.seen_regions(one.graph, one.candidate, (wide[:, 4:7], x))
    with pytest.raises(ValidationError, match="not dense"):
        arrays.launch_spec(one.kernel.program, swapped, ())


def test_outputs_come_back_in_iteration_order() -> None:
    from dataclasses import replace

    program = replace(kernels.scaled_add().kernel.program, groups=((1,), (0,)))
    data = np.arange(6, dtype=np.float32)
    result = arrays.output_tensor(program.spaces[0], "float32", (2, 3), data)
    assert result.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert result.stride() == (1, 2)


@pytest.mark.parametrize("at_start", [False, True])
def test_guarded_arrays_see_what_was_written_beside_them(at_start: bool) -> None:
    memory = GuardedArray(5, np.dtype(np.float32), POISONS[0], at_start=at_start)
    assert memory.array.shape == (5,)
    assert memory.trespass() == ""
    everything = np.frombuffer(memory.array.base.base, np.uint8)
    first = memory.array.ctypes.data - everything.ctypes.data
    everything[first + 20 if at_start else first - 1] = 1
    assert memory.trespass() == ("past the end" if at_start else "before the start")
    page = mmap.PAGESIZE
    touched = first % page if at_start else (first + 20) % page
    assert touched == 0, "the side that no canary is on must touch a trap page"


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3)])
def test_foreign_arguments_are_made_of_any_shape(shape: tuple[int, ...]) -> None:
    found = dict(foreign_arguments(Case(name="any", tensors=(torch.zeros(shape),) * 2)))
    assert "dtype of operand 1" in found
    assert ("one column of operand 0" in found) == (0 not in shape and shape != ())


def test_large_integers_that_differ_are_apart() -> None:
    x = torch.tensor([2**60, 2**60, 5])
    assert ulp_distance(x, x + torch.tensor([1, 0, 2])).tolist() == [1.0, 0.0, 2.0]


def _interrupted_after_changing_everything() -> tuple[str, ...]:
    before = process_state.snapshot()
    with process_state.preserved():
        torch.rand(1)
        random.random()
        np.random.rand()
        np.seterr(over="raise")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.use_deterministic_algorithms(True)
        torch.set_flush_denormal(True)
        torch.set_autocast_enabled("cpu", True)
        raise KeyboardInterrupt(*process_state.changed_since(before))


def test_settings_and_random_states_are_put_back_after_an_interrupt() -> None:
    before = process_state.snapshot()
    with pytest.raises(KeyboardInterrupt) as stopped:
        _interrupted_after_changing_everything()
    assert len(stopped.value.args) == 10
    assert process_state.changed_since(before) == ()


def test_unwritten_and_unstable_elements_are_told_apart() -> None:
    first = np.frombuffer(bytes([POISONS[0]] * 4 + [1] * 8), np.float32)
    second = np.frombuffer(bytes([POISONS[1]] * 4 + [1] * 4 + [2] * 4), np.float32)
    unwritten, unstable = _unwritten("out", first, second)
    assert "1 of 3" in unwritten
    assert "depend on" in unstable
    assert _unwritten("out", first[1:2], second[1:2]) == []


class _Clock:
    """A clock that only moves when the timed functions say so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_interleaved_timing_alternates_and_takes_medians() -> None:
    clock, order = _Clock(), []
    slow: Iterator[float] = iter([1e-3] * 3 + [1.0] + [1e-3] * 1000)

    def first() -> None:
        order.append("first")
        clock.now += next(slow)  # one outlier among many

    def second() -> None:
        order.append("second")
        clock.now += 2e-3

    one, two = benchmark.interleaved(first, second, budget_s=0.05, clock=clock)
    assert one.median_us == pytest.approx(1000.0)
    assert two.median_us == pytest.approx(2000.0)
    assert one.spread_us < 1.0
    measured = order[4:]
    assert measured[:4] == ["first", "second", "second", "first"]


def _ceilings() -> Ceilings:
    points = ((1 << 15, 100.0), (1 << 20, 50.0), (1 << 27, 10.0))
    return Ceilings(
        device="cpu", name="test", dispatch_us=1.0, gflops=(("float32", 100.0),),
        bandwidth=tuple(BandwidthPoint(working_set_bytes=n, gb_per_s=g) for n, g in points),
    )  # fmt: skip


def test_faster_than_the_ceiling_is_impossible() -> None:
    moved = 1 << 27  # 134 MB at 10 GB/s: 13.4 ms
    assert benchmark.floor_us(moved, _ceilings()) == pytest.approx(moved / 10e3)
    assert benchmark.impossible(13_000.0, moved, _ceilings()) == ""
    assert benchmark.impossible(8_000.0, moved, _ceilings()) == ""
    assert "cannot have done the work" in benchmark.impossible(1_000.0, moved, _ceilings())


def test_bytes_count_a_broadcast_dimension_once() -> None:
    x = torch.ones(4, 1).expand(4, 100)
    assert benchmark.bytes_of([x, x, torch.ones(10, dtype=torch.bfloat16)]) == 16 + 20


def test_ceilings_are_cached_and_a_broken_cache_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    points = tuple(
        BandwidthPoint(working_set_bytes=size, gb_per_s=float(size % 97 + 1))
        for size in ceilings.WORKING_SETS
    )
    calls = []

    def measure(device: str) -> Ceilings:
        calls.append(device)
        return replace(_ceilings(), bandwidth=points, call_us=float(len(calls)))

    monkeypatch.setattr(ceilings, "_measure", measure)
    first = ceilings.measure_ceilings(cache_dir=tmp_path)
    assert ceilings.measure_ceilings(cache_dir=tmp_path) == first
    assert len(calls) == 1
    assert ceilings.measure_ceilings(cache_dir=tmp_path, refresh=True).call_us == 2.0
    (file,) = tmp_path.glob("*.json")
    for broken in ("", "{", "[]", json.dumps({"bandwidth": [[1, 2]], "gflops": []}), "\x00" * 9):
        file.write_text(broken)
        count = len(calls)
        assert ceilings.measure_ceilings(cache_dir=tmp_path).bandwidth == points
        assert len(calls) == count + 1
    assert not list(tmp_path.glob("*.tmp"))


def test_ceilings_of_a_device_that_is_not_here() -> None:
    with pytest.raises(ValidationError, match="cpu or cuda"):
        ceilings.measure_ceilings(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValidationError, match="device table"):
            ceilings.measure_ceilings(device="cuda")


def test_streaming_rate_and_costs_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "POINT_S", 0.01)
    rate = ceilings._stream_gb_per_s(1 << 21, "cpu")
    assert 0.1 < rate < 5_000
    assert 0.1 < ceilings._dispatch_us("cpu") < 10_000
    assert math.isfinite(ceilings._page_fault_us_per_mb())
