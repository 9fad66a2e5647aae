from __future__ import annotations

from random import Random

import numpy as np
import pytest
from graph_builder import GraphBuilder

from fusion_advisor.analysis import find_candidates, textbook, traffic
from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.summary import is_fused_kernel, ratios
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.analysis.work import fused_flops
from fusion_advisor.ops import lookup
from fusion_advisor.ops.elements import MOST_SETS, distinct_elements
from fusion_advisor.view_steps import follow


def test_textbook_figures() -> None:
    result = textbook.compare(3, 1e6, 2.0, 50)
    assert (result.before, result.after) == (12_000_150, 4_000_050)
    assert result.ratio == pytest.approx(3.0, abs=0.005)
    assert result.eliminated_accesses == 2 * 1e6 * 2


def test_textbook_with_compute_keeps_every_op_s_work() -> None:
    # N(M + C) against M + NC, with M = 2·10·1.0 + 5 and C = 10·0.5
    assert textbook.chain_time(4, 10, 1.0, 5, compute_per_element=0.5) == 4 * (25 + 5)
    assert textbook.chain_time(4, 10, 1.0, 5, compute_per_element=0.5, fused=True) == 25 + 4 * 5


def test_bytes_of_a_chain_with_broadcast_and_side_operands() -> None:
    b = GraphBuilder()
    x, bias, side = b.input((4, 8)), b.input((8,)), b.input((4, 8))
    y = b.op("aten.add.Tensor", x, bias)  # reads 128 + 32, writes 128
    z = b.op("aten.mul.Tensor", y, y)  # one operand, read once: 128 + 128
    out = b.op("aten.sub.Tensor", z, side)  # 128 + 128 + 128
    graph = b.build(out)
    (candidate,) = find_candidates(graph)
    model = TrafficModel(index_graph(graph))
    assert model.candidate(candidate) == (288 + 256 + 384, 128 + 32 + 128 + 128)
    assert traffic(graph, [candidate]) == (928, 416)
    assert candidate.inputs[1].dims == (None, 0)


def test_expanded_operand_counts_the_bytes_it_has() -> None:
    b = GraphBuilder()
    row = b.input((8,))
    wide = b.view("aten.expand.default", row, (4, 8), strides=(0, 1))
    out = b.op("aten.mul.Tensor", wide, b.input((4, 8)))
    model = TrafficModel(index_graph(b.build(out)))
    assert [op.total for op in model.ops] == [0, 32 + 128 + 128]


def test_in_place_reads_and_writes_and_copy_only_writes() -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4, 8)))
    x = b.inplace("aten.relu_.default", x)
    x = b.inplace("aten.copy_.default", x, b.input((4, 8)))
    model = TrafficModel(index_graph(b.build(x)))
    assert [op.total for op in model.ops] == [256, 256, 256]


def test_look_up_reads_rows_not_the_table() -> None:
    b = GraphBuilder()
    table, ids = b.input((1000, 8)), b.input((3,), "int64")
    out = b.op("aten.embedding.default", table, ids, shape=(3, 8))
    model = TrafficModel(index_graph(b.build(out)))
    assert model.ops[0].total == 96 + 24 + 96


def test_half_and_bool_sizes() -> None:
    b = GraphBuilder()
    x = b.input((10,), "bfloat16")
    out = b.op("aten.gt.Scalar", x, 0, dtype="bool")
    assert TrafficModel(index_graph(b.build(out))).total == 20 + 10


def test_ratios_count_ops_that_touch_memory() -> None:
    b = GraphBuilder()
    x = b.input((4, 8))
    y = b.op("aten.mul.Tensor", b.op("aten.exp.default", x), 2.0)
    flat = b.view("aten.view.default", y, (32,))
    out = b.op("aten._fused_rms_norm.default", flat)
    graph = b.build(out)
    model = TrafficModel(index_graph(graph))
    as_it_is, plan = ratios(model, find_candidates(graph))
    assert (as_it_is.fused_ops, as_it_is.ops) == (1, 3)
    assert (plan.fused_ops, plan.ops) == (3, 3)
    assert is_fused_kernel("triton.fused_add.default")
    assert not is_fused_kernel("aten.mul.Tensor")


def test_a_loop_reads_the_elements_it_needs_and_shared_ones_count_once() -> None:
    b = GraphBuilder()
    x = b.input((6, 8))
    made = b.op("aten.exp.default", x)  # 192 + 192
    first = b.view("aten.slice.Tensor", made, (3, 8), 0, 0, 3)
    out = b.op("aten.neg.default", first)  # 96 + 96
    (candidate,) = find_candidates(b.build(out))
    model = TrafficModel(index_graph(b.build(out)))
    assert model.candidate(candidate) == (384 + 192, 96 + 96)
    whole = b.build(out, made)
    (candidate,) = find_candidates(whole)
    model = TrafficModel(index_graph(whole))
    assert model.candidate(candidate) == (384 + 192, 192 + 192 + 96)
    assert fused_flops(index_graph(whole), candidate) == sum(
        lookup(op).flops * count
        for op, count in (("aten.exp.default", 48 + 24), ("aten.neg.default", 24))
    )


@pytest.mark.parametrize("seed", range(60))
def test_distinct_elements_are_those_that_counting_finds(seed: int) -> None:
    random = Random(seed)
    shape = (random.choice((4, 6)), random.choice((1, 5, 8)), 12)
    strides = (96 if random.random() < 0.8 else 0, 12, 1)
    elements = np.arange(1000)[:1000]
    accesses, reached = [], set()
    for _ in range(random.choice((1, 2, 3, 7))):
        steps: list[tuple[str, int, tuple[int, ...]]] = []
        for _ in range(random.randint(0, 4)):
            rank = len(follow(steps, shape, strides).shape)
            sizes = follow(steps, shape, strides).shape
            at = random.randrange(rank) if rank else 0
            kind = random.choice(("slice", "slice", "select", "permute", "split", "unsqueeze"))
            if kind == "slice" and rank:
                ends = (random.randint(-5, 5), random.randint(-3, 9), random.randint(1, 3))
                steps.append((kind, at, ends))
            elif kind == "select" and rank and sizes[at]:
                steps.append((kind, at, (random.randrange(sizes[at]),)))
            elif kind == "permute":
                steps.append((kind, 0, tuple(random.sample(range(rank), rank))))
            elif kind == "split" and rank and sizes[at] and sizes[at] % 2 == 0:
                steps.append((kind, at, (2,)))
            elif kind == "unsqueeze":
                steps.append((kind, at, ()))
        seen = follow(steps, shape, strides)
        places = np.lib.stride_tricks.as_strided(
            elements[seen.offset :], seen.shape, [8 * step for step in seen.strides]
        )
        reached |= set(places.ravel().tolist())
        accesses.append(tuple(steps))
    found = distinct_elements(shape, strides, accesses)
    if len(accesses) <= MOST_SETS:
        assert found == len(reached), accesses
    else:
        assert found >= len(reached)
