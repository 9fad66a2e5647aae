"""Chains with views between their ops: one kernel, right at other sizes, refused where unsound."""

from __future__ import annotations

import ast
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from graph_builder import GraphBuilder
from kernel_harness import differing, load, ulp_distance
from slow_checker import problems

from fusion_advisor.analysis import find_candidates, removable_launches, why_not
from fusion_advisor.codegen import generate, lower
from fusion_advisor.fixes import plan_text
from fusion_advisor.fixes.text_edits import apply_edits
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.ops.views import foldable, size_free, view_steps
from fusion_advisor.recorder import CaptureOptions, record, replay
from fusion_advisor.records import OpNode, ValueRef
from fusion_advisor.runtime import FusedFunction
from fusion_advisor.validation import validate
from fusion_advisor.view_steps import ViewError, follow


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
    order = [graph.inputs.index(one.value) for one in program.given]
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
        reference=replay.subgraph(graph, candidate.computed, inputs, candidate.outputs),
        reference64=replay.subgraph(
            graph, candidate.computed, inputs, candidate.outputs, high_precision=True
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
    (region,) = candidate.regions
    first, *rest = region.accesses
    turned = replace(first, steps=(("permute", 0, (0, 3, 2, 1)),))
    wrong = replace(region, accesses=(turned, *rest))
    assert problems(graph, [candidate]) == []
    assert problems(graph, [replace(candidate, regions=(wrong,))])


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


def doubled(x, y):
    a = torch.abs(x)
    b = a.t() + y
    return a, b


def test_two_loops_are_one_call_in_the_text():
    x, y = torch.randn(4, 6), torch.randn(6, 4)
    graph = recorded(doubled, (x, y)).graph
    (candidate,) = find_candidates(graph, within_frame=True)
    assert [region.outputs for region in candidate.regions] == [
        (candidate.outputs[0],),
        (candidate.outputs[1],),
    ]
    text = Path(__file__).read_text()
    fix = plan_text(graph, candidate, generate_kernel(graph, candidate), text)
    assert fix.blockers == ()
    names = {"torch": torch}
    exec(apply_edits(text[: text.index("def test_two_loops")], fix.edits), names)
    results = names["doubled"](x, y)
    for result, expected in zip(results, doubled(x, y), strict=True):
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
    (fused,) = [one for one in names.values() if isinstance(one, FusedFunction)]
    assert fused.stats.fused == 1


def sliced(x):
    return torch.exp(x)[1:] + 1.0


def kept(x):
    a = torch.exp(x)
    b = a.t()
    return b, b + 1.0


def test_slices_and_views_that_stay_are_left_to_the_text():
    x = torch.randn(4, 6)
    slices, stays = planned(sliced, (x,)).blockers, planned(kept, (x,)).blockers
    assert (slices[0].code, stays[0].code) == ("view", "view")
    assert "needed elsewhere" in stays[0].message


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
    assert candidate.regions[0].accesses[0].steps == (("permute", 0, (1, 0)),)
    assert why_not(graph, [candidate]) == ()


NEEDED = {
    "the value is needed before the view": lambda b, x, made, viewed: [
        b.op("aten.sum.default", made, shape=())
    ],
    "the view is needed elsewhere": lambda b, x, made, viewed: [
        b.op("aten.mm.default", viewed, viewed, shape=(6, 6))
    ],
    "the view is returned": lambda b, x, made, viewed: [viewed],
}


@pytest.mark.parametrize("why", NEEDED)
def test_what_is_needed_besides_is_written_by_a_loop_of_its_own(why):
    _, (candidate,) = through("aten.transpose.int", (6, 4), 0, 1, strides=(1, 6), then=NEEDED[why])
    assert [region.shape for region in candidate.regions] == [(4, 6), (6, 4)]
    view_stays = why != "the value is needed before the view"
    assert candidate.shared == (("n1",) if view_stays else ())
    assert candidate.views == (() if view_stays else ("n1",))
    assert removable_launches([candidate]) == 1


def test_a_value_that_is_written_in_place_stays():
    graph, candidates = through(
        "aten.transpose.int", (6, 4), 0, 1, strides=(1, 6),
        then=lambda b, x, made, viewed: [b.inplace("aten.relu_.default", made)],
    )  # fmt: skip
    assert not any(candidate.views for candidate in candidates)
    assert any(blocker.code == "view" for blocker in why_not(graph, candidates))


def test_a_path_that_leaves_through_another_op_keeps_them_apart():
    _, candidates = through(
        "aten.transpose.int", (6, 4), 0, 1, strides=(1, 6),
        then=lambda b, x, made, viewed: [
            b.op("aten.add.Tensor", b.op("aten.mm.default", made, viewed, shape=(4, 4)), 1.0)
        ],
    )  # fmt: skip
    assert [candidate.nodes for candidate in candidates] == [("n0", "n2")]
    b = GraphBuilder()
    made = b.op("aten.exp.default", b.input((4, 4)))
    part = b.view("aten.slice.Tensor", made, (2, 4), 0, 0, 2)
    total = b.op("aten.sum.default", made, shape=())
    graph = b.build(made, b.op("aten.mul.Tensor", part, total))
    assert find_candidates(graph) == ()


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
    shapes = (2, 5, 32), (2, 5, 4, 8)
    assert view_steps(split, *shapes, (2, 5, 32)) == [("split", 2, (8,))]
    assert view_steps(split, *shapes, (32,))[:2] == [("unsqueeze", 0, ())] * 2
    assert view_steps(split, *shapes, (5, 1))[-1] == ("unsqueeze", 2, ())
    assert size_free(split, *shapes).args[1:] == (2, (-1, 8))
    last = view_node("aten.unsqueeze.default", -1)
    assert view_steps(last, (2, 3), (2, 3, 1), (2, 3)) == [("unsqueeze", 2, ())]
    added = view_node("aten.view.default", (2, 1, 3))
    assert size_free(added, (2, 3), (2, 1, 3)).op == "aten.unsqueeze.default"
    dropped = view_node("aten.view.default", (2, 3))
    assert size_free(dropped, (2, 1, 3), (2, 3)).op == "aten.squeeze.dim"
    merged = view_node("aten.view.default", (6,))
    assert not foldable(merged, (2, 3), (6,))
    assert size_free(merged, (2, 3), (6,)) is merged
    wide = view_node("aten.expand.default", (2, 3))
    assert view_steps(wide, (1, 3), (2, 3), (1, 3)) == []
    assert size_free(wide, (1, 3), (2, 3)).args[1:] == ((2, -1),)


def test_where_an_operand_is_broadcast_its_one_element_stands_for_all():
    third = view_node("aten.select.int", 1, 3)
    assert view_steps(third, (4, 6), (4,), (4, 6)) == [("select", 1, (3,))]
    assert view_steps(third, (4, 6), (4,), (4, 1)) == [("single", 1, ())]
    tail = view_node("aten.slice.Tensor", -1, -2)
    assert view_steps(tail, (4, 6), (4, 2), (6,))[-1] == ("slice", 1, (-2, sys.maxsize, 1))
    assert view_steps(tail, (4, 6), (4, 2), (4, 1)) == []
    none = view_node("aten.slice.Tensor", 0, None, None, 2)
    assert view_steps(none, (4,), (2,), (4,)) == [("slice", 0, (0, sys.maxsize, 2))]
    assert not foldable(
        view_node("aten.squeeze.dim", 0), (4, 1), (4, 1)
    )  # it may drop another time
    assert foldable(view_node("aten.squeeze.dim", 1), (4, 1), (4,))


@pytest.mark.parametrize("seed", range(40))
def test_steps_end_where_torch_s_views_do(seed):
    random = Random(seed)
    shape = tuple(random.choice((0, 1, 2, 3, 5, 8)) for _ in range(random.randint(1, 4)))
    memory = torch.arange(20_000)
    tensor = memory.as_strided(shape, [random.choice((0, 1, 7, 50)) for _ in shape], 3)
    steps, viewed = [], tensor
    for _ in range(6):
        rank = viewed.dim()
        at = random.randrange(rank) if rank else 0
        kind = random.choice(("slice", "slice", "select", "unsqueeze", "permute", "single"))
        if kind == "unsqueeze":
            at = random.randint(0, rank)
            steps.append((kind, at, ()))
            viewed = viewed.unsqueeze(at)
        elif kind == "slice" and rank:
            start, end = random.randint(-9, 9), random.choice((sys.maxsize, random.randint(-9, 9)))
            steps.append((kind, at, (start, end, random.randint(1, 3))))
            viewed = torch.ops.aten.slice.Tensor(viewed, at, *steps[-1][2])
        elif kind == "select" and rank and viewed.shape[at]:
            index = random.randrange(-viewed.shape[at], viewed.shape[at])
            steps.append((kind, at, (index,)))
            viewed = viewed.select(at, index)
        elif kind == "permute":
            order = random.sample(range(rank), rank)
            steps.append((kind, 0, tuple(order)))
            viewed = viewed.permute(order)
        elif kind == "single" and rank and viewed.shape[at] == 1:
            steps.append((kind, at, ()))
            viewed = viewed.squeeze(at)
    found = follow(steps, shape, tensor.stride())
    assert found.shape == viewed.shape
    reached = memory.as_strided(found.shape, found.strides, 3 + found.offset)
    assert torch.equal(reached, viewed)


def test_steps_refuse_what_torch_refuses():
    for steps in (
        (("select", 0, (4,)),),
        (("select", 0, (-5,)),),
        (("single", 0, ()),),
        (("slice", 0, (0, 4, 0)),),
        (("split", 0, (3,)),),
        (("slice", 1, (0, 1, 1)),),
        (("permute", 0, (1, 0)),),
        (("turn", 0, ()),),
    ):
        with pytest.raises(ViewError):
            follow(steps, (4,), (1,))
    assert follow((("split", 0, (2,)),), (4,), (3,)).strides == (6, 3)
