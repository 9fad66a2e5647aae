from __future__ import annotations

import dataclasses
import json
import math
import time

import pytest

from fusion_advisor import records
from fusion_advisor.errors import ReportError
from fusion_advisor.records import (
    Blocker,
    Capture,
    Constant,
    CostEstimate,
    Environment,
    Finding,
    FusedProgram,
    FusionCandidate,
    KernelSource,
    OperandMap,
    OpGraph,
    OpNode,
    OpTime,
    ProgramInput,
    ProgramOutput,
    ReplayProof,
    Report,
    SourceSpan,
    Statement,
    Symbol,
    TensorSpec,
    ValueRef,
)
from fusion_advisor.serialize import dump_report, from_data, load_report, to_data


def span(line: int = 3) -> SourceSpan:
    return SourceSpan(
        kind="cell",
        file="<cell>",
        line=line,
        end_line=line,
        column=4,
        end_column=9,
        text="x*ü\ud800",
    )


def spec(name: str) -> TensorSpec:
    return TensorSpec(id=name, dtype="float32", shape=(2, 3), strides=(3, 1), storage=1)


def estimate() -> CostEstimate:
    return CostEstimate(
        bytes_before=96, bytes_after=48, launches_before=2, launches_after=1, flops=12.0,
        time_before_us=4.0, time_after_low_us=1.0, time_after_mid_us=2.0,
        time_after_high_us=math.inf, saved_low_us=-math.inf, saved_mid_us=2.0, saved_high_us=3.0,
        terms=(("dispatch", 1.5), ("memory", 0.5)),
    )  # fmt: skip


def candidate() -> FusionCandidate:
    return FusionCandidate(
        id="C1",
        nodes=("n0", "n1"),
        inputs=(OperandMap(value="v0", dims=(0, None)),),
        outputs=("v2",),
        shape=(2, 3),
        blockers=(Blocker(code="random", nodes=("n1",), message="why <not>"),),
    )


def kernel() -> KernelSource:
    program = FusedProgram(
        name="fused",
        rank=2,
        groups=((0, 1),),
        inputs=(
            ProgramInput(name="x", kind="tensor", dtype="float32", groups=(0,), value="v0"),
            ProgramInput(name="s", kind="scalar", dtype="float64", value=math.nan),
            ProgramInput(name="b", kind="scalar", dtype="int64", value=True),
        ),
        statements=(
            Statement(
                name="t0", opcode="mul", dtype="float32",
                args=("x", Constant(value=-math.inf, dtype="float32")),
            ),
        ),
        outputs=(ProgramOutput(name="out", result="t0", dtype="float32", value="v2"),),
    )  # fmt: skip
    return KernelSource(
        entry="fused", eager_name="eager", cpu_name="c", cuda_name="", text="…", hash="h",
        program=program,
    )  # fmt: skip


def report() -> Report:
    where = span()
    nodes = (
        OpNode(
            id="n0", index=0, op="aten.mul.Scalar", kind="elementwise", span=where,
            stack=(where, span(9)), inputs=("v0",), outputs=("v1",),
            args=(ValueRef(value="v0"), 2.0, (1, (None, True), "v0"), math.nan, 10**30, -0.0),
            kwargs=(("dtype", Symbol(kind="dtype", name="float32")), ("alpha", -math.inf)),
        ),
        OpNode(
            id="n1", index=1, op="aten.relu.default", kind="elementwise", span=span(),
            args=(ValueRef(value="v1"),), inputs=("v1",), outputs=("v2",), sequence=7,
        ),
    )  # fmt: skip
    capture = Capture(
        title="t",
        graph=OpGraph(
            nodes=nodes, values=(spec("v0"), spec("v1"), spec("v2")), inputs=("v0",),
            outputs=("v2",),
        ),
        times=(OpTime(node="n0", host_us=3),),  # an int where a float is allowed
        environment=Environment(python="3", packages=(("torch", "2"),), platform="p", cpu="c",
                                threads=2),
        proof=ReplayProof(status="passed"),
    )  # fmt: skip
    finding = Finding(
        id="F1", rule="FUS001", title="t", message="m", span=where, occurrences=(candidate(),),
        estimate=estimate(), share=0.25,
    )  # fmt: skip
    return Report(
        capture=capture, candidates=(candidate(),), estimates=(estimate(),), findings=(finding,),
        why_not=(), ratios=(), bounds=(("n0", "memory-bound"),), kernels=(("F1", kernel()),),
    )  # fmt: skip


def test_a_report_comes_back_equal_down_to_types() -> None:
    original = report()
    loaded = load_report(dump_report(original))
    # NaN differs from itself, so equality is asked of the text, which shows types too.
    assert repr(loaded) == repr(original)
    assert type(loaded.capture.times[0].host_us) is int
    number = loaded.capture.graph.nodes[0].args[5]
    assert isinstance(number, float)
    assert math.copysign(1.0, number) == -1.0
    assert loaded.kernels[0][1].program.inputs[2].value is True


def test_the_text_is_strict_json() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(dump_report(report()), parse_constant=refuse)
    dump_report(report()).encode("ascii")


def test_equal_spans_are_stored_once_and_shared_after_loading() -> None:
    text = dump_report(report())
    assert len(json.loads(text)["spans"]) == 2
    nodes = load_report(text).capture.graph.nodes
    assert nodes[0].span is nodes[1].span


def test_a_string_is_never_mistaken_for_a_reference() -> None:
    node = dataclasses.replace(
        report().capture.graph.nodes[0], args=("v0", ("nan", "inf"), ValueRef(value="nan"))
    )
    assert from_data(OpNode, to_data(node)) == dataclasses.replace(node)


RECORDS = [name for name, cls in vars(records).items() if dataclasses.is_dataclass(cls)]


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_has_a_codec(name: str) -> None:
    cls = getattr(records, name)
    with pytest.raises(ReportError):
        from_data(cls, {"no such field": 1})


def change(text: str, path: list[str | int], value: object) -> str:
    document = json.loads(text)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(document)


NODE = ["report", "capture", "graph", "nodes", 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ([*NODE, "kind"], "magic", r"nodes\[0\]\.kind: expected one of"),
        ([*NODE, "index"], True, r"nodes\[0\]\.index: expected an integer"),
        ([*NODE, "index"], "0", "expected an integer"),
        ([*NODE, "args"], {"a": 1}, "expected a list"),
        ([*NODE, "args"], [{"value": "v0", "more": 1}], r"args\[0\]: expected a number"),
        ([*NODE, "args"], [{"symbol": "evil", "name": "x"}], "symbol kind"),
        ([*NODE, "span"], 99, "span number below 2"),
        ([*NODE, "span"], -1, "span number below 2"),
        ([*NODE, "surprise"], 1, "has no field 'surprise'"),
        ([*NODE, "inputs"], ["v99"], "op n0 names 'v99'"),
        (["report", "candidates", 0, "nodes"], ["n0", "n7"], "candidate C1 names 'n7'"),
        (["report", "estimates"], [], "do not pair up"),
        (["report", "findings", 0, "share"], None, r"findings\[0\]\.share: expected a number"),
        (["report", "kernels", 0, 0], "F2", "names 'F2'"),
        (["spans", 0], None, "expected a SourceSpan"),
        (["format"], "other", "not a Fusion Advisor report"),
        (["schema_version"], "1", "no schema version"),
        (["schema_version"], 999, "pip install --upgrade fusion-advisor"),
    ],
)
def test_damage_is_named(path: list[str | int], value: object, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        load_report(change(dump_report(report()), path, value))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", dump_report(report())[:-20], "[" * 100_000, "9" * 5000, "\x00PNG"],
    ids=["empty", "null", "list", "brace", "truncated", "deep", "digits", "binary"],
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ReportError):
        load_report(text)


def test_deep_arguments_are_refused_not_crashed_on() -> None:
    deep: object = 1
    for _ in range(900):
        deep = [deep]
    text = change(dump_report(report()), [*NODE, "args"], deep)
    with pytest.raises(ReportError):
        load_report(text)


def test_a_wrong_value_is_refused_when_saving() -> None:
    broken = dataclasses.replace(report(), bytes_before=object())  # type: ignore[arg-type]
    with pytest.raises(ReportError, match=r"report\.bytes_before: expected an integer"):
        dump_report(broken)
    with pytest.raises(ReportError, match="not a Fusion Advisor record"):
        to_data(object())


def test_a_hundred_thousand_ops_stay_small_and_quick() -> None:
    base = report()
    template = base.capture.graph.nodes[0]
    stack = tuple(span(line) for line in range(20))
    nodes = tuple(
        dataclasses.replace(template, id=f"n{index}", index=index, stack=stack)
        for index in range(20_000)
    )
    graph = dataclasses.replace(base.capture.graph, nodes=nodes)
    big = dataclasses.replace(base, capture=dataclasses.replace(base.capture, graph=graph))
    start = time.process_time()
    text = dump_report(big)
    loaded = load_report(text)
    seconds = time.process_time() - start
    assert len(loaded.capture.graph.nodes) == 20_000
    assert len(text) < 20_000 * 1_000  # the 20 shared spans cost numbers, not text
    assert seconds < 10  # about 1 s alone on a machine; the bound only catches a blow-up
