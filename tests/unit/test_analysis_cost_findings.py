from __future__ import annotations

from dataclasses import replace

import pytest
from graph_builder import GraphBuilder

from fusion_advisor.analysis import AnalysisOptions, analyze, find_candidates
from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.cost import CostModel, estimate
from fusion_advisor.analysis.kernel_time import FRESH_ABOVE_BYTES, Bandwidth, occupancy
from fusion_advisor.analysis.traffic import TrafficModel
from fusion_advisor.records import (
    BandwidthPoint,
    Capture,
    Ceilings,
    Environment,
    OpGraph,
    OpTime,
    ReplayProof,
    SourceSpan,
    Symbol,
)

MB = 10**6
CPU = Ceilings(
    device="cpu",
    name="test",
    bandwidth=(
        BandwidthPoint(working_set_bytes=2**20, gb_per_s=100.0),
        BandwidthPoint(working_set_bytes=2**24, gb_per_s=20.0),
        BandwidthPoint(working_set_bytes=2**28, gb_per_s=10.0),
    ),
    gflops=(("float32", 200.0),),
    dispatch_us=2.0,
    call_us=4.0,
    page_fault_us_per_mb=300.0,
)
GPU = replace(CPU, device="cuda", name="table GPU", launch_us=2.5, dispatch_us=5.0, call_us=50.0,
              bandwidth=(BandwidthPoint(working_set_bytes=2**30, gb_per_s=3000.0),),
              gflops=(("float32", 60_000.0),), page_fault_us_per_mb=0.0,
              origin="table")  # fmt: skip


def span(line: int, *, column: int = 0, end: int = 10, **fields) -> SourceSpan:
    return SourceSpan(
        kind="file", file="m.py", line=line, end_line=line, column=column, end_column=end,
        function="forward", text="x * y", **fields,
    )  # fmt: skip


def chain(shape=(4096, 3072), copies: int = 1, **fields) -> OpGraph:
    """exp -> mul -> tanh after a matmul, ``copies`` times, each a frame of its own."""
    b = GraphBuilder()
    x = b.input(shape)
    for copy in range(copies):
        x = b.op("aten.mm.default", x, x, shape=shape)
        with b.context(frame=copy + 1, module_class="Act", **fields):
            for line, op in enumerate(
                ("aten.exp.default", "aten.neg.default", "aten.tanh.default")
            ):
                x = b.op(op, x, span=span(7, column=line, end=20 - line))
    return b.build(x)


def capture(graph: OpGraph, *, us: float = 100.0, wall_us: float = 0.0, **fields) -> Capture:
    fields.setdefault("ceilings", CPU)
    return Capture(
        title="test",
        graph=graph,
        times=tuple(OpTime(node=node.id, host_us=us) for node in graph.nodes),
        wall_us=wall_us or us * len(graph.nodes),
        environment=Environment(python="", packages=(), platform="", cpu="", threads=2),
        proof=ReplayProof(status="passed"),
        **fields,
    )


def test_bandwidth_is_interpolated_between_the_measured_points() -> None:
    bandwidth = Bandwidth(CPU)
    assert bandwidth.rate(2**10) == 100.0
    assert bandwidth.rate(2**22) == pytest.approx(60.0)  # half-way in powers of two
    assert bandwidth.rate(2**40) == 10.0
    assert bandwidth.time_us(10 * MB, 2**28) == pytest.approx(1000.0)


def test_estimate_adds_up_term_by_term() -> None:
    graph = chain()
    (candidate,) = find_candidates(graph)
    size = 4096 * 3072 * 4
    times = [OpTime(node=node, host_us=9000.0) for node in candidate.nodes]
    result = estimate(graph, candidate, times, CPU)
    assert (result.bytes_before, result.bytes_after) == (6 * size, 2 * size)
    assert (result.launches_before, result.launches_after) == (3, 1)
    assert result.time_before_us == 27000.0
    terms = dict(result.terms)
    # The input was written just before (its own size ago), the result goes to a 2-tensor set.
    rate = Bandwidth(CPU)
    assert terms["memory"] == pytest.approx(2 * rate.time_us(size, 2 * size))
    assert size > FRESH_ABOVE_BYTES
    assert terms["first touch"] == pytest.approx(300.0 * size / 1e6)
    longer = max(terms["memory"], terms["compute"])
    assert result.time_after_mid_us == pytest.approx(
        longer + terms["unhidden"] + terms["first touch"] + terms["call"]
    )
    assert result.time_after_low_us <= result.time_after_mid_us <= result.time_after_high_us
    assert result.saved_low_us <= result.saved_mid_us <= result.saved_high_us
    assert result.saved_mid_us == pytest.approx(27000.0 - result.time_after_mid_us)


def test_reuse_distance_decides_where_bytes_come_from() -> None:
    # The same small operand: read again at once (cache), or after 100 MB of other traffic.
    def memory_us(between: int) -> float:
        b = GraphBuilder()
        x, big = b.op("aten.exp.default", b.input((1000,))), b.input((5 * MB,))
        for _ in range(between):
            b.op("aten.sum.dim_IntList", big, shape=(1,))
        y = b.op("aten.neg.default", b.op("aten.tanh.default", b.op("aten.clone.default", x)))
        graph = b.build(x, y)
        candidate = find_candidates(graph)[-1]
        return dict(estimate(graph, candidate, (), CPU).terms)["memory"]

    assert memory_us(5) > 2 * memory_us(0)


def test_times_are_estimated_for_a_device_that_is_not_here() -> None:
    graph = chain()
    result = analyze(capture(graph, us=1e6), options=AnalysisOptions(device=GPU))
    (each,) = result.estimates
    size = 4096 * 3072 * 4
    assert each.time_before_us == pytest.approx(3 * (2.5 + 2 * size / 3e6), rel=0.2)
    assert each.textbook_before_us == pytest.approx(3 * (2.5 + 2 * size / 3e6))
    assert "estimated for table GPU" in result.notes[0]


def test_overhead_of_the_host_hides_behind_a_busy_device() -> None:
    busy, idle = chain((4096, 3072)), chain((8, 8))
    for graph, host_bound in ((busy, False), (idle, True)):
        index = index_graph(graph)
        model = CostModel(index, TrafficModel(index), (), GPU)
        assert model.host_bound is host_bound
        (candidate,) = find_candidates(graph)
        # A fused call of 50 us pays off only where the device is what is waited for.
        assert (model.estimate(candidate).saved_mid_us > 0) is not host_bound


def test_op_classes() -> None:
    graph = chain((4096, 3072))
    small = chain((8, 8))
    for each, us, expected in ((graph, 9000.0, "memory-bound"), (small, 2.5, "overhead-bound")):
        index = index_graph(each)
        times = [OpTime(node=node.id, host_us=us) for node in each.nodes]
        model = CostModel(index, TrafficModel(index), times, CPU)
        assert model.bound(2) == expected
    index = index_graph(graph)
    model = CostModel(index, TrafficModel(index), [OpTime(node="n0", host_us=2e9)], CPU)
    assert model.bound(0) == "unknown"
    model = CostModel(index, TrafficModel(index), (), CPU)
    assert model.bound(0) == "compute-bound"  # 4096·3072·3072 multiply-adds


def test_occupancy_steps_with_registers() -> None:
    assert occupancy(32) == 1.0
    assert occupancy(33) == 0.75
    assert occupancy(128) == 0.25


def test_repeated_program_is_one_finding_with_summed_saving() -> None:
    result = analyze(capture(chain(copies=3), us=9000.0), first_id=5)
    (finding,) = result.findings
    assert finding.id == "F5"
    assert finding.rule == "FUS001"
    assert len(finding.occurrences) == 3
    assert finding.estimate.time_before_us == 9 * 9000.0
    assert finding.estimate.launches_before == 9
    assert finding.share == pytest.approx(finding.estimate.saved_mid_us / (12 * 9000.0))
    assert finding.span == span(7, column=0, end=20)  # the widest expression
    assert finding.occurrences[0].blockers  # says where the group ends
    assert [verdict.holds for verdict in finding.verdicts] == [True, True, True]
    assert "3 times" in finding.message
    assert result.nothing == ""


def test_another_source_place_is_another_finding() -> None:
    b = GraphBuilder()
    x = b.input((4096, 3072))
    for line in (1, 2):
        x = b.op("aten.mm.default", x, x, shape=(4096, 3072))
        x = b.op("aten.neg.default", b.op("aten.exp.default", x, span=span(line)), span=span(line))
    result = analyze(capture(b.build(x), us=20000.0))
    assert [finding.id for finding in result.findings] == ["F1", "F2"]
    assert {len(finding.occurrences) for finding in result.findings} == {1}


def test_findings_are_ranked_by_what_they_save() -> None:
    b = GraphBuilder()
    for shape, op in (((512, 3072), "aten.exp.default"), ((4096, 3072), "aten.tanh.default")):
        x = b.op("aten.mm.default", b.input(shape), b.input(shape), shape=shape)
        b.op("aten.neg.default", b.op(op, x))
    graph = b.build("v4", "v9")
    result = analyze(capture(graph, us=20000.0))
    savings = [finding.estimate.saved_mid_us for finding in result.findings]
    assert savings == sorted(savings, reverse=True)
    assert len(savings) == 2


@pytest.mark.parametrize(
    ("expected", "build"),
    [
        ("FUS004", lambda b, x: b.op("aten.neg.default", b.op(
            "aten.exp.default", x, span=span(1, installed=True)), span=span(1, installed=True))),
        ("FUS005", lambda b, x: b.op("aten._to_copy.default", b.op("aten.exp.default", x),
            dtype="bfloat16", kwargs={"dtype": Symbol(kind="dtype", name="bfloat16")})),
        ("FUS002", lambda b, x: b.op("aten.mul.Tensor", b.op("aten.exp.default", x),
            b.op("aten.tanh.default", x))),
        ("FUS003", lambda b, x: b.op("aten.mul.Tensor", b.op("aten.exp.default", x),
            b.input((3072,)))),
        ("FUS001", lambda b, x: b.op("aten.neg.default", b.op("aten.exp.default", x))),
    ],
)  # fmt: skip
def test_rules(expected: str, build) -> None:
    b = GraphBuilder()
    out = build(b, b.input((4096, 3072)))
    (finding,) = analyze(capture(b.build(out), us=20000.0)).findings
    assert finding.rule == expected


def test_nothing_says_why() -> None:
    quiet = analyze(capture(chain((8, 8)), us=1.8, wall_us=10.0))
    assert quiet.findings == ()
    assert len(quiet.candidates) == 1
    assert "1 group of ops can legally share a kernel" in quiet.nothing
    assert "would save 1.38 µs, below the 2.00 µs that count" in quiet.nothing
    costly = analyze(capture(chain((8, 8)), us=1.0, wall_us=10.0))
    assert "a fused call costs more than it would save" in costly.nothing
    b = GraphBuilder()
    alone = b.op("aten.mm.default", b.input((8, 8)), b.input((8, 8)), shape=(8, 8))
    none = analyze(capture(b.build(alone), us=50.0))
    assert "100% of the ops' time is in matmul ops" in none.nothing
    assert "Nothing was recorded" in analyze(capture(GraphBuilder().build(), wall_us=1.0)).nothing


def test_noise_of_the_run_hides_small_findings() -> None:
    recording = capture(chain(), us=9000.0, wall_us=600_000.0)
    (finding,) = analyze(recording).findings
    assert 0.002 < finding.share < 0.01
    noisy = analyze(replace(recording, wall_spread_us=400_000.0))
    assert noisy.findings == ()
    assert "noise" in noisy.nothing


def test_noise_of_the_run_never_hides_a_large_finding() -> None:
    recording = capture(chain(), us=9000.0, wall_us=36_000.0)
    assert analyze(replace(recording, wall_spread_us=400_000.0)).findings


def test_a_saving_is_no_surer_than_the_time_it_is_taken_from() -> None:
    recording = capture(chain(), us=9000.0, wall_us=36_000.0)
    sure = analyze(recording).findings[0].estimate
    noisy = analyze(replace(recording, wall_spread_us=9_000.0)).findings[0].estimate
    assert noisy.saved_mid_us == sure.saved_mid_us
    # Three ops of 9 ms, each unsure by the run's own 9 / 36.
    assert sure.saved_low_us - noisy.saved_low_us == pytest.approx(6750.0)
    assert noisy.saved_high_us - sure.saved_high_us == pytest.approx(6750.0)
    elsewhere = replace(recording, wall_spread_us=9_000.0)
    estimate = analyze(elsewhere, options=AnalysisOptions(device=GPU)).estimates[0]
    known = analyze(recording, options=AnalysisOptions(device=GPU)).estimates[0]
    assert estimate == known  # nothing of it was measured


def test_backward_recompute_is_counted_against_a_finding() -> None:
    graph = chain()
    b = GraphBuilder()
    x = b.input((4096, 3072))
    y = b.op("aten.exp.default", x)
    z = b.op("aten.tanh.default", y)
    with b.context(phase="backward"):
        b.op("aten.mul.Tensor", y, z)
    trained = analyze(capture(b.build(z), us=9000.0))
    (with_backward,) = trained.estimates
    assert dict(with_backward.terms)["recompute in backward"] == 18000.0
    assert trained.findings == ()
    assert "recompute in backward" not in dict(analyze(capture(graph)).estimates[0].terms)


def test_optimizer_step_is_advice_not_a_kernel() -> None:
    # Unrelated parameters: no giant fusion, one display-only finding.
    b = GraphBuilder()
    with b.context(phase="optimizer"):
        for _ in range(20):
            parameter, gradient = b.input((16, 16)), b.input((16, 16))
            b.inplace("aten.add_.Tensor", parameter, gradient)
            b.inplace("aten.mul_.Tensor", b.input((16, 16)), 0.9)
    result = analyze(capture(b.build(), us=4.0))
    assert result.candidates == ()
    (finding,) = result.findings
    assert (finding.rule, finding.safety) == ("FUS006", "display-only")
    assert finding.estimate.launches_after == 2
    assert finding.occurrences[0].blockers[0].code == "mutated-input"


def test_a_capture_without_ceilings_says_they_are_assumed() -> None:
    result = analyze(capture(chain(), ceilings=None))
    assert "assumed" in result.notes[0]
    assert result.bytes_after < result.bytes_before
