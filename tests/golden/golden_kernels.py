"""The programs whose generated text is kept: written by hand, whatever torch is installed."""

from __future__ import annotations

from graph_builder import GraphBuilder

from fusion_advisor.codegen import generate, lower
from fusion_advisor.records import FusionCandidate, OperandMap, OpGraph, Symbol


def _candidate(
    graph: OpGraph,
    inputs: dict[str, tuple[int | None, ...]],
    outputs: tuple[str, ...],
    shape: tuple[int, ...],
) -> FusionCandidate:
    return FusionCandidate(
        id="C1",
        nodes=tuple(node.id for node in graph.nodes),
        inputs=tuple(OperandMap(value=value, dims=dims) for value, dims in inputs.items()),
        outputs=outputs,
        shape=shape,
    )


def _gelu() -> tuple[OpGraph, FusionCandidate]:
    g, shape = GraphBuilder(), (2, 256, 3072)
    x = g.input(shape)
    half = g.op("aten.mul.Tensor", x, 0.5)
    cube = g.op("aten.mul.Tensor", g.op("aten.pow.Tensor_Scalar", x, 3.0), 0.044715)
    inner = g.op("aten.mul.Tensor", g.op("aten.add.Tensor", x, cube), 0.7978845608028654)
    one = g.op("aten.add.Tensor", g.op("aten.tanh.default", inner), 1.0)
    out = g.op("aten.mul.Tensor", half, one)
    graph = g.build(out)
    return graph, _candidate(graph, {x: (0, 1, 2)}, (out,), shape)


def _bias_relu_bfloat16() -> tuple[OpGraph, FusionCandidate]:
    g, shape = GraphBuilder(), (64, 128)
    x, bias, rows = (g.input(s, "bfloat16") for s in (shape, (128,), (64, 1)))
    total = g.op("aten.add.Tensor", x, bias, dtype="bfloat16")
    relu = g.op("aten.relu.default", total, dtype="bfloat16")
    out = g.op("aten.mul.Tensor", relu, rows, dtype="bfloat16")
    graph = g.build(out, relu)
    maps = {x: (0, 1), bias: (None, 0), rows: (0, None)}
    return graph, _candidate(graph, maps, (relu, out), shape)


def _strided_rotary() -> tuple[OpGraph, FusionCandidate]:
    g, shape = GraphBuilder(), (2, 4, 16, 8)
    query = g.input(shape, strides=(512, 8, 32, 1))
    turned, cos, sin = g.input(shape), g.input((1, 1, 16, 8)), g.input((1, 1, 16, 8))
    left = g.op("aten.mul.Tensor", query, cos)
    out = g.op("aten.add.Tensor", left, g.op("aten.mul.Tensor", turned, sin))
    graph = g.build(out)
    rows = (None, None, 2, 3)
    maps = {query: (0, 1, 2, 3), turned: (0, 1, 2, 3), cos: rows, sin: rows}
    return graph, _candidate(graph, maps, (out,), shape)


def _mask() -> tuple[OpGraph, FusionCandidate]:
    g, shape = GraphBuilder(), (6, 10)
    ids, scores = g.input(shape, "int64"), g.input(shape)
    mask = g.op("aten.ne.Scalar", ids, 0, dtype="bool")
    wide = g.op(
        "aten._to_copy.default",
        scores,
        dtype="float64",
        kwargs={"dtype": Symbol(kind="dtype", name="float64")},
    )
    out = g.op("aten.where.ScalarOther", mask, wide, float("-inf"), dtype="float64")
    graph = g.build(out)
    return graph, _candidate(graph, {ids: (0, 1), scores: (0, 1)}, (out,), shape)


GOLDEN = {
    "gelu_float32": _gelu,
    "bias_relu_bfloat16": _bias_relu_bfloat16,
    "rotary_strided": _strided_rotary,
    "mask_where": _mask,
}


def golden_text(name: str) -> str:
    """The text generated now."""
    graph, candidate = GOLDEN[name]()
    return generate(lower(graph, candidate, name=f"fused_{name}"), graph).text
