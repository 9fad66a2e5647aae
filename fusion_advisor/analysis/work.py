"""Arithmetic of one op, in floating-point operations (a multiply-add counts as two)."""

from __future__ import annotations

from fusion_advisor.analysis.graph_index import GraphIndex
from fusion_advisor.analysis.partition import element_count
from fusion_advisor.ops import OpInfo, lookup
from fusion_advisor.ops.regions import Walk
from fusion_advisor.records import FusionCandidate

# Per element of its largest tensor: a pass over rows for the statistics, one to apply them.
_FLOPS_PER_ELEMENT = {"reduction": 1.0, "normalization": 8.0, "elementwise": 1.0}
_WITH_ADDEND = ("aten.addmm", "aten.baddbmm", "aten.addbmm", "aten.addmv", "aten.addr")
_SOFTMAX_FLOPS = 12.0  # maximum, subtract, exp, sum, divide


def recipe(index: GraphIndex, position: int) -> OpInfo | None:
    """The scalar recipe of an op, whether or not this call of it can be a member of a group."""
    info = lookup(index.nodes[position].op)
    return info if info is not None and info.recipe is not None else None


def op_flops(index: GraphIndex, position: int) -> float:
    """Estimated work of the op; 0 for ops that only move bytes."""
    node = index.nodes[position]
    kind = node.kind
    if kind in ("view", "metadata", "copy", "factory", "indexing", "host-sync") or not node.outputs:
        return 0.0
    output = index.values[node.outputs[0]].shape
    info = recipe(index, position)
    if info is not None:
        return info.flops * element_count(output)
    shapes = [index.values[v].shape for v in node.inputs]
    if kind == "matmul":
        return _matmul_flops(node.op, shapes, output)
    if kind == "convolution":
        return _convolution_flops(shapes, output)
    if kind == "attention":
        return _attention_flops(shapes)
    largest = max((element_count(shape) for shape in (*shapes, output)), default=0)
    if "softmax" in node.op:
        return _SOFTMAX_FLOPS * largest
    return _FLOPS_PER_ELEMENT.get(kind, 1.0) * largest


def fused_flops(index: GraphIndex, candidate: FusionCandidate) -> float:
    """Work of one kernel in place of a candidate's ops: what it computes twice counts twice."""
    if not candidate.regions:
        infos = [recipe(index, index.positions[node]) for node in candidate.nodes]
        each = sum(info.flops for info in infos if info is not None)
        return float(element_count(candidate.shape)) * each
    positions = [index.positions[node] for node in candidate.computed]
    makers = {value: index.nodes[p] for p in positions for value in index.nodes[p].outputs}
    walk = Walk(makers, index.values, {*candidate.views, *candidate.shared})
    total = 0.0
    for region in candidate.regions:
        for node, _ in walk.calls(walk.instances(region.outputs) or ()):
            info = recipe(index, index.positions[node.id])
            if info is not None:
                total += info.flops * element_count(region.shape)
    return total


def _matmul_flops(op: str, shapes: list[tuple[int, ...]], output: tuple[int, ...]) -> float:
    """2·K per output element; K is the last dimension of the left factor."""
    factors = shapes[1:] if op.startswith(_WITH_ADDEND) else shapes
    depth = factors[0][-1] if factors and factors[0] else 1
    return 2.0 * element_count(output) * depth


def _convolution_flops(shapes: list[tuple[int, ...]], output: tuple[int, ...]) -> float:
    """2 · (weights per output channel) per output element; the backward does twice that."""
    if len(shapes) < 2 or not shapes[1]:
        return 0.0
    weight = shapes[1]
    return 2.0 * element_count(output) * element_count(weight[1:])


def _attention_flops(shapes: list[tuple[int, ...]]) -> float:
    """Two products of queries with keys and values: 4·S·T·D per head."""
    if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) < 2:
        return 0.0
    query, key = shapes[0], shapes[1]
    return 4.0 * element_count(query) * key[-2]
