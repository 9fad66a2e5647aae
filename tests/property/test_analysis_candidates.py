"""Random programs: every candidate is legal by the slow checker, and pairs are explained."""

from __future__ import annotations

import math

import pytest
from graph_builder import GraphBuilder, broadcast
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_checker import lonely, only_kept, problems

from fusion_advisor.analysis import find_candidates, why_not
from fusion_advisor.analysis import growth as growth_module
from fusion_advisor.analysis.graph_index import broadcasts_to
from fusion_advisor.records import OpGraph

SHAPES = ((4, 8), (4, 1), (1, 8), (8,), (), (8, 4))
UNARY = ("aten.exp.default", "aten.neg.default", "aten.tanh.default")
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor")
STEPS = st.tuples(
    st.sampled_from(
        ["unary"] * 4 + ["binary"] * 8 + ["matmul", "reduce", "view", "inplace", "inplace",
         "inplace2", "random", "again", "detach", "transpose", "transpose", "slice", "slice",
         "expand", "unsqueeze"]
    ),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from(["same"] * 6 + ["frame", "backward", "nograd"]),
)  # fmt: skip


def build(steps: list[tuple[str, int, int, str]], kept: list[int]) -> OpGraph:
    """A program from random picks; picks prefer recent values."""
    b = GraphBuilder()
    live = [b.input(shape) for shape in SHAPES[:3]]
    newest: dict[int, int] = {}
    fields: dict[str, object] = {}
    old: list[str] = []

    def current(pick: int) -> str:
        """A value that still shows its storage's newest content."""
        span = 4 if pick % 3 else len(live)
        return live[-1 - pick % min(span, len(live))]

    for action, first, second, change in steps:
        if change == "frame":
            fields = {**fields, "frame": first % 3}
        elif change == "backward":
            fields = {**fields, "phase": "backward"}
        elif change == "nograd":
            fields = {**fields, "grad_enabled": bool(first % 2)}
        with b.context(**fields):
            x, y = current(first), current(second)
            shape = b.values[x].shape
            if action == "unary":
                live.append(b.op(UNARY[first % 3], x))
            elif action == "binary":
                try:
                    whole = broadcast(shape, b.values[y].shape)
                except ValueError:
                    continue
                fitting = broadcasts_to(shape, whole) and broadcasts_to(b.values[y].shape, whole)
                if not fitting or math.prod(whole) > 64 or len(whole) > 3:
                    continue
                live.append(b.op(BINARY[second % 3], x, y))
            elif action == "matmul":
                live.append(b.op("aten.mm.default", x, y, shape=(4, 8)))
            elif action == "reduce":
                live.append(b.op("aten.sum.dim_IntList", x, shape=SHAPES[second % 6]))
            elif action == "random":
                live.append(b.op("aten.bernoulli.p", x))
            elif action == "detach":
                live.append(b.view("aten.detach.default", x, shape, strides=b.values[x].strides))
            elif action == "transpose" and len(shape) == 2:
                strides = b.values[x].strides[::-1]
                live.append(b.view("aten.t.default", x, shape[::-1], strides=strides))
            elif action == "view" and len(shape) == 2 and shape[0] > 1:
                row, strides = first % shape[0], b.values[x].strides
                offset = b.values[x].offset + row * strides[0]
                live.append(
                    b.view(
                        "aten.select.int", x, shape[1:], 0, row, strides=strides[1:], offset=offset
                    )
                )
                old.append(x)
            elif action == "slice" and shape:
                live.append(sliced(b, x, first, second))
                old.append(x)
            elif action == "unsqueeze" and len(shape) < 3:
                strides = (1, *b.values[x].strides)
                live.append(b.view("aten.unsqueeze.default", x, (1, *shape), 0, strides=strides))
            elif action == "expand" and math.prod(shape) <= 24 and 1 in shape:
                at = shape.index(1)
                wide = (*shape[:at], 2 + first % 2, *shape[at + 1 :])
                strides = tuple(
                    0 if d == at else step for d, step in enumerate(b.values[x].strides)
                )
                live.append(b.view("aten.expand.default", x, wide, wide, strides=strides))
            elif action in ("inplace", "inplace2"):
                storage = b.values[x].storage
                others = [v for v in live if b.values[v].storage == storage and v != x]
                if (
                    action == "inplace2"
                    and b.values[y].shape == shape
                    and (b.values[y].storage != storage)
                ):
                    new = b.inplace("aten.add_.Tensor", x, y)
                else:
                    new = b.inplace("aten.exp_.default", x)
                # Other names of the storage are seen from now on as orphans, if at all.
                live = [v for v in live if b.values[v].storage != storage]
                if second % 2:
                    live.extend(b.again(v) for v in others[:2])
                live.append(new)
                newest[storage] = 1
    outputs = {live[-1 - pick % len(live)] for pick in kept} | {live[-1]}
    written = {b.values[v].storage for n in b.nodes for v in n.mutates}
    outputs |= {v for v in live if b.values[v].storage in written}
    return b.build(*sorted(outputs))


def sliced(b: GraphBuilder, x: str, first: int, second: int) -> str:
    """A slice with ends before, after and beyond the dimension's, in steps of 1 to 3."""
    spec = b.values[x]
    at = first % len(spec.shape)
    start, end, step = second % 7 - 3, second // 7 % 9 - 2, 1 + second // 63 % 3
    kept = range(spec.shape[at])[start:end:step]
    shape = (*spec.shape[:at], len(kept), *spec.shape[at + 1 :])
    strides = tuple(move * step if d == at else move for d, move in enumerate(spec.strides))
    offset = spec.offset + (kept.start * spec.strides[at] if kept else 0)
    arguments = (at, start, end, step)
    return b.view("aten.slice.Tensor", x, shape, *arguments, strides=strides, offset=offset)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=3, max_size=40), st.lists(st.integers(0, 100), max_size=4))
def test_candidates_of_random_programs_are_legal(steps, kept) -> None:
    graph = build(steps, kept)
    for within_frame in (False, True):
        candidates = find_candidates(graph, within_frame=within_frame)
        assert problems(graph, candidates) == []
        assert not any(lonely(graph, candidate) for candidate in candidates)
        if within_frame:
            frames = {n.id: n.frame for n in graph.nodes}
            assert all(len({frames[n] for n in c.nodes}) == 1 for c in candidates)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=30, max_size=120), st.lists(st.integers(0, 100), max_size=3))
def test_cleaning_masks_often_changes_nothing(steps, kept) -> None:
    """Bits of closed groups are taken back after every op, or never: the same groups."""
    graph = build(steps, kept)
    expected = [c.nodes for c in find_candidates(graph)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth_module, "_SLOTS_BEFORE_CLEANING", -(10**9))
        assert [c.nodes for c in find_candidates(graph)] == expected
        patch.setattr(growth_module, "_SLOTS_BEFORE_CLEANING", 10**9)
        assert [c.nodes for c in find_candidates(graph)] == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=3, max_size=40))
def test_every_neighbouring_pair_fuses_or_is_explained(steps) -> None:
    graph = build(steps, [])
    candidates = find_candidates(graph)
    owner = {node: c.id for c in candidates for node in c.nodes}
    explained = {blocker.nodes for blocker in why_not(graph, candidates)}
    elementwise = {n.id for n in graph.nodes if n.kind == "elementwise"}
    # A detach, and what keeps a value for backward, stand in nobody's way: nothing is said of them.
    aside = {
        n.id
        for n in graph.nodes
        if n.id not in owner and (n.kind == "metadata" or only_kept(graph, n))
    }
    for producer in graph.nodes:
        for consumer in graph.nodes:
            if not set(producer.outputs) & set(consumer.inputs):
                continue
            pair = (producer.id, consumer.id)
            if not elementwise & set(pair) or {producer.id, consumer.id} & aside:
                continue
            fused = owner.get(producer.id, "") == owner.get(consumer.id)
            assert fused != (pair in explained), pair
