"""Chains with views between their ops: one kernel, right at other sizes, refused where unsound."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from graph_builder import GraphBuilder
from kernel_harness import differing, load, ulp_distance
from slow_checker import problems

from fusion_advisor.analysis import find_candidates, removable_launches, why_not
from fusion_advisor.codegen import generate, lower
from fusion_advisor.fixes import plan_text
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.ops.views import compose, size_free, view_dims
from fusion_advisor.recorder import CaptureOptions, record, replay
from fusion_advisor.records import OpNode, ValueRef
from fusion_advisor.validation import validate


def heads(x, bias):  # scaled, split into heads, laid out anew
    b, s, _ = x.shape
    return ((x + bias) * 0.5).view(b, s, -1, 8).transpose(1, 2).contiguous()


def to_channels_first(x, scale, residual):
    return residual + (x * scale).permute(0, 3, 1, 2)


def transposed_sum(x, y):
    return torch.sigmoid(x).t() + y


def columns(x, y):
    return (x.abs() + 1.0).unsqueeze(1) * y


def added(x, y):
    return x.abs().unsqueeze(-1) * y


CHAINS = {
    "heads": (heads, [(2, 5, 32), (32,)], [(3, 7, 48), (48,)]),
    "channels": (
        to_channels_first,
        [(2, 4, 3, 6), (6,), (2, 6, 4, 3)],
        [(1, 2, 9, 5), (5,), (1, 5, 2, 9)],
    ),
    "transposed": (transposed_sum, [(4, 6), (6, 4)], [(7, 3), (3, 7)]),
    "added": (added, [(4, 6), (4, 6, 5)], [(2, 3), (2, 3, 8)]),
    "columns": (columns, [(4, 6), (4, 5, 6)], [(2, 3), (2, 8, 3)]),
}


def made(shapes):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes]


def recorded(function, arguments, **options):
    with torch.no_grad():
        return record(lambda: function(*arguments), CaptureOptions(**options))


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_through_a_view_is_one_kernel_for_all_sizes(name):
    function, shapes, others = CHAINS[name]
    arguments = made(shapes)
    graph = recorded(function, arguments).graph
    (candidate,) = find_candidates(graph)
    assert candidate.views
    assert problems(graph, [candidate]) == []
    assert removable_launches([candidate]) == len(candidate.nodes) - len(candidate.views) - 1
    program = lower(graph, candidate, name="chain")
    kernel = generate(program, graph, targets=("cpu",))
    fused = load(kernel)[kernel.entry]
    order = [graph.inputs.index(str(operand.value)) for operand in program.inputs]
    for sizes in (shapes, others):
        given = made(sizes)
        operands = tuple(given[position] for position in order)
        expected = function(*given)
        assert fused.why_not(*operands) == "", kernel.text
        (result,) = fused.run_cpu(operands)
        assert result.stride() == expected.stride()
        if name == "transposed":  # sigmoid is not eager's to the bit
            assert int(ulp_distance(result, expected).max()) <= 4
        else:
            assert differing(result, expected) == 0
        assert torch.equal(fused.eager(*operands), expected)


def test_what_lies_otherwise_falls_back():
    function, shapes, _ = CHAINS["heads"]
    graph = recorded(function, made(shapes)).graph
    (candidate,) = find_candidates(graph)
    kernel = generate(lower(graph, candidate, name="chain"), graph, targets=("cpu",))
    fused = load(kernel)[kernel.entry]
    x = torch.randn(2, 5, 32)
    assert fused.why_not(x, torch.randn(1, 1, 32))  # another rank
    assert fused.why_not(x, torch.randn(1))  # broadcast where it was not
    assert not fused.why_not(x.transpose(0, 1).contiguous().transpose(0, 1), torch.randn(32))


@pytest.mark.parametrize("name", ["heads", "channels"])
def test_it_validates(name):
    function, shapes, _ = CHAINS[name]
    recording = recorded(function, made(shapes))
    graph = recording.graph
    (candidate,) = find_candidates(graph)
    kernel = generate_kernel(graph, candidate)
    inputs = tuple(operand.value for operand in candidate.inputs)
    result = validate(
        kernel,
        graph,
        candidate,
        reference=replay.subgraph(graph, candidate.nodes, inputs, candidate.outputs),
        reference64=replay.subgraph(
            graph, candidate.nodes, inputs, candidate.outputs, high_precision=True
        ),
        captured=replay.materialize(graph, recording.store, inputs),
        ceilings=None,
        targets=("cpu",),
        measure=False,
    )
    assert result.status == "passed", result.rungs
    assert result.mismatches == 0


def test_a_wrong_map_is_found_by_the_checker():
    graph = recorded(to_channels_first, made(CHAINS["channels"][1])).graph
    (candidate,) = find_candidates(graph)
    first, *rest = candidate.inputs
    wrong = replace(first, dims=(0, 1, 2, 3))
    assert problems(graph, [replace(candidate, inputs=(wrong, *rest))])


def planned(function, arguments):
    graph = recorded(function, arguments).graph
    (candidate,) = find_candidates(graph, within_frame=True)
    return plan_text(
        graph, candidate, generate_kernel(graph, candidate), Path(__file__).read_text()
    )


@pytest.mark.parametrize("name", ["channels", "transposed", "added"])
def test_a_view_that_names_dimensions_is_part_of_the_call(name):
    function, shapes, _ = CHAINS[name]
    fix = planned(function, made(shapes))
    assert fix.blockers == ()
    text = Path(__file__).read_text()
    for edit in sorted(fix.edits, key=lambda one: one.start, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    changed = next(
        one for one in ast.parse(text).body if getattr(one, "name", "") == function.__name__
    )
    (call,) = [one for one in ast.walk(changed) if isinstance(one, ast.Call)]
    assert ast.unparse(call).startswith("fused_")


def turned(x, y, first):
    return torch.sigmoid(x).transpose(first, 1) + y


def split(x):
    b, s, _ = x.shape
    return (x * 0.5).view(b, s, -1, 8).transpose(1, 2).contiguous()


def renamed(x, y):
    return torch.sigmoid(x).T + y


def test_views_that_the_text_computes_are_left_alone():
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    assert planned(lambda: split(torch.randn(2, 5, 32)), ()).blockers[0].code == "view"
    assert planned(lambda: turned(x, y, 0), ()).blockers[0].code == "number-not-literal"
    assert planned(lambda: renamed(x, y), ()).blockers


def through(view, shape, *arguments, before=None, then=None, strides=None):
    """exp, a view of its result, neg: with something done to the result in between."""
    b = GraphBuilder()
    x = b.input((4, 6))
    made = b.op("aten.exp.default", x)
    if before:
        made = before(b, made)
    extra = {"strides": strides} if strides else {}
    viewed = b.view(view, made, shape, *arguments, **extra)
    outputs = [b.op("aten.neg.default", viewed)]
    if then:
        outputs += then(b, x, made, viewed)
    graph = b.build(*outputs)
    candidates = find_candidates(graph)
    assert problems(graph, candidates) == []
    return graph, candidates


def test_a_transpose_between_two_ops_folds():
    graph, (candidate,) = through("aten.transpose.int", (6, 4), 0, 1, strides=(1, 6))
    assert candidate.nodes == ("n0", "n1", "n2")
    assert candidate.views == ("n1",)
    assert candidate.inputs[0].dims == (1, 0)
    assert why_not(graph, [candidate]) == ()


REFUSED = {
    "the value is needed before the view": lambda b, x, made, viewed: [
        b.op("aten.sum.default", made, shape=())
    ],
    "the view is needed elsewhere": lambda b, x, made, viewed: [
        b.op("aten.mm.default", viewed, viewed, shape=(6, 6))
    ],
    "the view is returned": lambda b, x, made, viewed: [viewed],
    "its operand is written": lambda b, x, made, viewed: [b.inplace("aten.relu_.default", x)],
    "the value is written": lambda b, x, made, viewed: [b.inplace("aten.relu_.default", made)],
}


@pytest.mark.parametrize("why", REFUSED)
def test_views_that_must_stay(why):
    graph, candidates = through(
        "aten.transpose.int", (6, 4), 0, 1, strides=(1, 6), then=REFUSED[why]
    )
    assert not any(candidate.views for candidate in candidates)
    assert any(blocker.code == "view" for blocker in why_not(graph, candidates))


def test_a_reshape_that_merges_dimensions_stays():
    _, candidates = through("aten.view.default", (24,), (24,))
    assert candidates == ()


def test_other_consumers_of_another_context_stay_apart():
    b = GraphBuilder()
    made = b.op("aten.exp.default", b.input((4, 6)))
    with b.context(grad_enabled=True):
        viewed = b.view("aten.transpose.int", made, (6, 4), 0, 1, strides=(1, 6))
        out = b.op("aten.neg.default", viewed)
    assert find_candidates(b.build(out)) == ()


def view_node(op, *arguments):
    return OpNode(id="n", index=0, op=op, args=(ValueRef(value="v"), *arguments), kind="view")


def test_maps_of_views():
    split = view_node("aten.view.default", (2, 5, 4, 8))
    assert view_dims(split, (2, 5, 32), (2, 5, 4, 8)) == (0, 1, 2, 2)
    assert size_free(split, (2, 5, 32), (2, 5, 4, 8)).args[1:] == (2, (-1, 8))
    assert view_dims(view_node("aten.unsqueeze.default", -1), (2, 3), (2, 3, 1)) == (0, 1, None)
    added = view_node("aten.view.default", (2, 1, 3))
    assert size_free(added, (2, 3), (2, 1, 3)).op == "aten.unsqueeze.default"
    merged = view_node("aten.view.default", (6,))
    assert view_dims(merged, (2, 3), (6,)) is None
    assert size_free(merged, (2, 3), (6,)) is merged
    assert view_dims(view_node("aten.expand.default", (2, 3)), (1, 3), (2, 3)) is None


def test_parts_of_a_split_keep_their_order():
    split = (0, 1, 1)
    assert compose(split, (1, 0, 2)) == (1, 0, 1)
    assert compose(split, (0, 2, 1)) is None
    assert compose((0, None), (1, 0)) == (None, 0)
