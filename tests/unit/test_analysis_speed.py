"""What makes analysis fast changes nothing: records made quickly, costs shared, the collector."""

from __future__ import annotations

import dataclasses
import gc
import pickle

import pytest
from graph_builder import GraphBuilder

from fusion_advisor.analysis import analyze
from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.cost import CostModel
from fusion_advisor.analysis.quick_records import quickly
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.devices import find_device
from fusion_advisor.errors import AnalysisError
from fusion_advisor.records import (
    Blocker,
    Capture,
    Environment,
    FusionCandidate,
    OpGraph,
    ReplayProof,
)


def capture(graph: OpGraph) -> Capture:
    return Capture(
        title="",
        graph=graph,
        environment=Environment(python="", packages=(), platform="", cpu="", threads=1),
        proof=ReplayProof(status="not run"),
    )


def test_records_made_quickly_are_the_records() -> None:
    plain = Blocker(code="view", nodes=("a", "b"), message="…")
    quick = quickly(Blocker)(code="view", nodes=("a", "b"), message="…")
    assert type(quick) is Blocker
    assert quick == plain
    assert hash(quick) == hash(plain)
    assert repr(quick) == repr(plain)
    assert pickle.loads(pickle.dumps(quick)) == plain
    assert dataclasses.replace(quick, code="copy").code == "copy"
    with pytest.raises(dataclasses.FrozenInstanceError):
        quick.code = "copy"  # type: ignore[misc]


def test_records_made_quickly_have_the_defaults_and_need_the_rest() -> None:
    make = quickly(FusionCandidate)
    required = {"id": "C1", "nodes": (), "inputs": (), "outputs": (), "shape": (2,)}
    assert make(**required) == FusionCandidate(**required)
    with pytest.raises(TypeError, match="shape"):
        make(id="C1", nodes=(), inputs=(), outputs=())
    with pytest.raises(TypeError):
        make(**required, surprise=1)


@pytest.mark.parametrize("member_first", [True, False])
def test_an_op_costs_the_same_whether_or_not_it_may_join_a_group(member_first: bool) -> None:
    """``exp_`` of what the run was given writes outside the run: no member, but as much work."""
    b = GraphBuilder()
    given = b.input((64, 64))
    own = b.op("aten.mul.Tensor", b.input((64, 64)), 2.0)
    for target in (own, given) if member_first else (given, own):
        b.inplace("aten.exp_.default", target)
    graph = b.build(*list(b.values)[-2:])
    index = index_graph(graph)
    places = [i for i, node in enumerate(graph.nodes) if node.op == "aten.exp_.default"]
    assert sorted(index.infos[i] is None for i in places) == [False, True]
    model = CostModel(index, TrafficModel(index), (), find_device("h100"))
    first, second = (model._parts(i).compute for i in places)
    assert first == second
    flops = 64 * 64 * next(info.flops for i in places if (info := index.infos[i]) is not None)
    rate = dict(find_device("h100").gflops)["float32"]
    assert first == pytest.approx(flops / (rate * 0.5 * 1e3))


def test_the_collector_is_as_it_was_after_an_analysis_that_fails() -> None:
    b = GraphBuilder()
    graph = b.build(b.op("aten.exp.default", b.input((4,))))
    broken = dataclasses.replace(graph, values=graph.values[:1])
    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            analyze(capture(graph))
            assert gc.isenabled() == on
            with pytest.raises(AnalysisError, match="not recorded"):
                analyze(capture(broken))
            assert gc.isenabled() == on
        finally:
            gc.enable()


def test_what_others_froze_stays_frozen() -> None:
    b = GraphBuilder()
    graph = b.build(b.op("aten.exp.default", b.input((4,))))
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        analyze(capture(graph))
        assert gc.get_freeze_count() >= frozen - 100  # but for what was freed meanwhile
        assert frozen > 1000
    finally:
        gc.unfreeze()
