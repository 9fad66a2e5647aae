"""What is said of several programs in one place, and of runs with backward where nothing pays."""

from __future__ import annotations

from dataclasses import replace

from graph_builder import GraphBuilder

from fusion_advisor.analysis import Analysis, analyze
from fusion_advisor.records import (
    BandwidthPoint,
    Capture,
    Ceilings,
    Environment,
    OpTime,
    ReplayProof,
    SourceSpan,
)

LINE = SourceSpan(
    kind="file", file="m.py", line=3, end_line=3, column=4, end_column=30,
    function="forward", text="torch.tanh(x * 0.5) * x",
)  # fmt: skip
CEILINGS = Ceilings(
    device="cpu",
    name="test",
    bandwidth=(BandwidthPoint(working_set_bytes=2**20, gb_per_s=10.0),),
    gflops=(("float32", 100.0),),
    dispatch_us=2.0,
    call_us=4.0,
)


def analysed(b: GraphBuilder, outputs: list[str], *, op_us: float = 500.0) -> Analysis:
    graph = b.build(*outputs)
    return analyze(
        Capture(
            title="",
            graph=graph,
            times=tuple(OpTime(node=node.id, host_us=op_us) for node in graph.nodes),
            wall_us=op_us * len(graph.nodes),
            environment=Environment(python="", packages=(), platform="", cpu="", threads=1),
            ceilings=CEILINGS,
            proof=ReplayProof(status="not run"),
        )
    )


def call(b: GraphBuilder, x: str, *, held: bool) -> str:
    """One call under autograd, which sets the result of tanh aside; ``held`` until the end."""
    with b.context(span=LINE):
        half = b.op("aten.mul.Tensor", x, 0.5)
        turned = b.op("aten.tanh.default", half)
        flags = ("saved",) if held else ()
        b.view("aten.detach.default", turned, b.values[x].shape, flags=flags)
        return b.op("aten.mul.Tensor", turned, x)


def test_calls_whose_graphs_are_both_held_are_one_finding_times_two() -> None:
    b = GraphBuilder()
    results = [call(b, b.input((256, 1024)), held=True) for _ in range(2)]
    (finding,) = analysed(b, results).findings
    assert len(finding.occurrences) == 2
    assert not any("programs" in note for note in finding.notes)


def test_one_place_that_runs_as_two_programs_says_what_tells_them_apart() -> None:
    b = GraphBuilder()
    results = [call(b, b.input((256, 1024)), held=held) for held in (False, True)]
    findings = analysed(b, results).findings
    notes = {
        finding.occurrences[0].outputs: note
        for finding in findings
        for note in finding.notes
        if "run here as 2 programs" in note
    }
    assert len(findings) == len(notes) == 2
    both, one = sorted(notes, key=len, reverse=True)
    assert (len(both), len(one)) == (2, 1)
    assert notes[both].endswith("those of tanh and mul")
    assert notes[one].endswith("those of mul")


def test_groups_of_the_backward_alone_are_said_to_be_there() -> None:
    b = GraphBuilder()
    with b.context(phase="backward"):
        y = b.op("aten.mul.Tensor", b.op("aten.exp.default", b.input((256, 1024))), 2.0)
    analysis = analysed(b, [y])
    assert analysis.findings == ()
    assert len(analysis.candidates) == 1
    assert "1 of them outside the forward" in analysis.nothing
    assert "none lies in one place" in analysis.nothing
    assert "costs more" not in analysis.nothing


def test_what_backward_would_run_again_is_said_to_be_counted() -> None:
    b = GraphBuilder()
    x = b.input((256, 1024), requires_grad=True)
    y = b.op("aten.mul.Tensor", b.op("aten.exp.default", x), 2.0)
    b.values[y] = replace(b.values[y], requires_grad=True)
    with b.context(phase="backward"):
        gradient = b.op("aten.mm.default", y, b.input((1024, 256)), shape=(256, 256))
    analysis = analysed(b, [gradient])
    assert analysis.findings == ()
    assert "backward would run the eager ops again, which costs more" in analysis.nothing
