"""One small program per rule: what fuses, what does not, and the code that says why."""

from __future__ import annotations

import pytest
from graph_builder import GraphBuilder
from slow_checker import problems

from fusion_advisor.analysis import BLOCKER_CODES, find_candidates, why_not
from fusion_advisor.analysis.graph_index import is_dense
from fusion_advisor.analysis.growth import Growth
from fusion_advisor.errors import AnalysisError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.ops import takeable_numbers
from fusion_advisor.records import Symbol, TensorSpec


def groups(graph, **options):
    candidates = find_candidates(graph, **options)
    assert problems(graph, candidates) == []
    return [candidate.nodes for candidate in candidates]


def codes(graph):
    found = why_not(graph, find_candidates(graph))
    assert all(blocker.code in BLOCKER_CODES and blocker.message for blocker in found)
    return {blocker.nodes: blocker.code for blocker in found}


def test_residual_path_through_a_matmul_is_not_fused() -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4, 8)))
    y = b.op("aten.mm.default", x, x, shape=(4, 8))
    out = b.op("aten.add.Tensor", x, y)
    graph = b.build(out)
    assert groups(graph) == []
    assert codes(graph)["n0", "n2"] == "non-convex"


def test_what_python_has_seen_of_a_group_comes_before_the_ops_it_decides() -> None:
    b = GraphBuilder()
    x, other = b.input((8, 64)), b.input((8, 64))
    apart = b.op("aten.neg.default", other)
    seen = b.op("aten.exp.default", x)
    total = b.op("aten.sum.default", seen, shape=())
    b.op("aten._local_scalar_dense.default", total, shape=())
    decided = b.op("aten.add.Tensor", seen, 1.0)
    last = b.op("aten.mul.Tensor", b.op("aten.tanh.default", decided), apart)
    graph = b.build(last)
    # The op whose result Python has not seen may still join those that come later.
    assert [set(group) for group in groups(graph)] == [{"n0", "n4", "n5", "n6"}]
    assert codes(graph)["n1", "n4"] == "host-sync"


def test_two_groups_that_need_each_other_are_not_both_fused() -> None:
    # a -> d and b -> c: {a, c} and {b, d} are convex each, but cannot both be one kernel.
    b = GraphBuilder()
    first, second = b.input((4,)), b.input((4,))
    a = b.op("aten.exp.default", first)
    c0 = b.op("aten.sum.dim_IntList", a, shape=(4,))
    b1 = b.op("aten.tanh.default", second)
    c1 = b.op("aten.sum.dim_IntList", b1, shape=(4,))
    c = b.op("aten.add.Tensor", a, c1)
    d = b.op("aten.add.Tensor", b1, c0)
    graph = b.build(c, d)
    assert groups(graph) == [("n0", "n4")]
    assert codes(graph)["n2", "n5"] == "non-convex"


def test_diamond_with_several_outputs_is_one_dag() -> None:
    b = GraphBuilder()
    x = b.input((4, 8))
    gate = b.op("aten.sigmoid.default", x)
    y = b.op("aten.mul.Tensor", x, gate)
    z = b.op("aten.add.Tensor", y, gate)
    (candidate,) = find_candidates(b.build(y, z))
    assert candidate.nodes == ("n0", "n1", "n2")
    assert candidate.pattern == "dag"
    assert candidate.outputs == (y, z)
    assert [operand.value for operand in candidate.inputs] == [x]


def test_small_inner_results_are_recomputed_but_not_written() -> None:
    b = GraphBuilder()
    mean, x = b.input((4, 1)), b.input((4, 8))
    root = b.op("aten.rsqrt.default", b.op("aten.add.Scalar", mean, 1e-5))
    out = b.op("aten.mul.Tensor", x, root)
    (candidate,) = find_candidates(b.build(out))
    assert candidate.nodes == ("n0", "n1", "n2")
    assert candidate.shape == (4, 8)
    assert candidate.inputs[0].dims == (0, None)
    # ... unless the small result is needed elsewhere: then it stays apart.
    graph = b.build(out, root)
    assert groups(graph) == [("n0", "n1")]
    assert codes(graph)["n1", "n2"] == "output-shape"


def test_saved_for_backward_is_listed_not_written() -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4,)))
    y = b.op("aten.tanh.default", x)
    with b.context(phase="backward"):
        b.op("aten.mul.Tensor", y, x)
    (candidate,) = find_candidates(b.build(y))
    assert candidate.nodes == ("n0", "n1")
    assert candidate.saved == (x,)
    assert candidate.outputs == (y,)


def test_in_place_on_a_fresh_tensor_is_made_functional() -> None:
    b = GraphBuilder()
    x = b.op("aten.mm.default", b.input((4, 4)), b.input((4, 4)))
    y = b.inplace("aten.add_.Tensor", x, b.input((4, 4)))
    out = b.op("aten.relu.default", y)
    assert groups(b.build(out)) == [("n1", "n2")]


@pytest.mark.parametrize("case", ["input", "other view", "view alive", "old name alive"])
def test_in_place_that_others_see_is_refused(case: str) -> None:
    b = GraphBuilder()
    given = b.input((4, 4))
    x = given if case == "input" else b.op("aten.mm.default", given, given)
    outputs = []
    if case in ("other view", "view alive"):
        view = b.view("aten.select.int", x, (4,), 0, 0)
    y = b.inplace("aten.exp_.default", x)
    out = b.op("aten.relu.default", y)
    outputs.append(out)
    if case == "other view":
        outputs.append(b.op("aten.neg.default", b.again(view)))
    if case == "view alive":
        outputs.append(b.again(view))
    if case == "old name alive":
        outputs.append(x)
    graph = b.build(*outputs)
    assert groups(graph) == []
    assert "mutated-input" in codes(graph).values()


def test_a_read_must_stay_before_the_write() -> None:
    # y = x.view(int) + 1; x.zero_(); y * 2 * x: the second op needs the written x.
    b = GraphBuilder()
    x = b.input((4,))
    y = b.op("aten.add.Tensor", x, 1.0)
    x1 = b.inplace("aten.zero_.default", x)
    out = b.op("aten.mul.Tensor", y, x1)
    graph = b.build(out, x1)
    assert groups(graph) == []
    # Without the dependence on the written tensor the kernel simply runs before the write.
    b = GraphBuilder()
    x = b.input((4,))
    y = b.op("aten.add.Tensor", x, 1.0)
    x1 = b.inplace("aten.zero_.default", x)
    out = b.op("aten.mul.Tensor", y, 2.0)
    assert groups(b.build(out, x1)) == [("n0", "n2")]


def test_operand_that_overlaps_the_written_tensor_is_refused() -> None:
    b = GraphBuilder()
    x = b.op("aten.mm.default", b.input((4, 4)), b.input((4, 4)))
    turned = b.view("aten.t.default", x, (4, 4), strides=(1, 4))
    y = b.inplace("aten.add_.Tensor", x, turned)
    graph = b.build(b.op("aten.relu.default", y))
    assert groups(graph) == []
    assert codes(graph)["n2", "n3"] == "aliasing"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("phase", "backward", "phase"),
        ("stream", 1, "stream"),
        ("thread", 7, "thread"),
        ("autocast", "bfloat16", "autocast"),
        ("grad_enabled", True, "grad-mode"),
    ],
)
def test_contexts_are_not_mixed(field: str, value: object, code: str) -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4,)))
    with b.context(**{field: value}):
        out = b.op("aten.tanh.default", x)
    graph = b.build(out)
    assert groups(graph) == []
    assert codes(graph) == {("n0", "n1"): code}


@pytest.mark.parametrize(
    ("op", "code"),
    [
        ("aten.sum.dim_IntList", "not-elementwise"),
        ("aten.native_layer_norm.default", "not-elementwise"),
        ("aten.mm.default", "not-elementwise"),
        ("aten.index_select.default", "not-elementwise"),
        ("aten.bernoulli.p", "random"),
        ("aten.lgamma.default", "unsupported-op"),
        ("aten.cat.default", "copy"),
        ("made_up.op.default", "unsupported-op"),
    ],
)
def test_what_stands_between_has_its_own_code(op: str, code: str) -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4,)))
    y = b.op(op, x, shape=(4,))
    graph = b.build(b.op("aten.tanh.default", y))
    assert groups(graph) == []
    assert codes(graph) == {("n0", "n1"): code, ("n1", "n2"): code}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"dtype": "complex64"}, "dtype"),
        ({"flags": ("sparse",)}, "tensor-kind"),
        ({"flags": ("neg",)}, "tensor-kind"),
        ({"flags": ("subclass:Mine",)}, "tensor-kind"),
        ({"shape": (2**20, 2**19)}, "offsets"),
    ],
)
def test_tensors_without_kernels(fields: dict, code: str) -> None:
    b = GraphBuilder()
    shape = fields.pop("shape", (4,))
    x = b.op("aten.exp.default", b.input(shape), shape=shape, **fields)
    graph = b.build(b.op("aten.tanh.default", x, flags=fields.get("flags", ())))
    assert groups(graph) == []
    assert codes(graph)["n0", "n1"] == code


def test_more_elements_than_32_bits_count_are_fused() -> None:
    b, shape = GraphBuilder(), (2**20, 2**19 - 1)
    x = b.op("aten.exp.default", b.input(shape), shape=shape)
    graph = b.build(b.op("aten.tanh.default", x, shape=shape))
    assert groups(graph) == [("n0", "n1")]


def test_opaque_arguments_are_refused() -> None:
    b = GraphBuilder()
    x = b.op("aten.add.Tensor", b.input((4,)), Symbol(kind="opaque", name="<object>"))
    graph = b.build(b.op("aten.exp.default", x))
    assert codes(graph) == {("n0",): "argument", ("n0", "n1"): "argument"}


def test_an_op_that_lowering_refuses_splits_the_group_instead_of_losing_it() -> None:
    b = GraphBuilder()
    x, y = b.input((4, 8), dtype="int64"), b.input((4, 8), dtype="int64")
    whole = {"shape": (4, 8), "dtype": "int64"}
    near = b.op("aten.add.Tensor", b.op("aten.mul.Tensor", x, y, **whole), y, **whole)
    power = b.op("aten.pow.Tensor_Scalar", near, -1, **whole)  # raises in eager
    out = b.op("aten.mul.Tensor", b.op("aten.add.Tensor", power, 1, **whole), y, **whole)
    graph = b.build(out)
    assert groups(graph) == [("n0", "n1"), ("n3", "n4")]
    for candidate in find_candidates(graph):
        generate_kernel(graph, candidate)
    refused = [one for one in why_not(graph, find_candidates(graph)) if "n2" in one.nodes]
    assert {one.code for one in refused} == {"unsupported-op"}
    assert any("power -1 raises in eager" in one.message for one in refused)


def test_numbers_that_a_recipe_must_know_are_written_into_the_kernel() -> None:
    b = GraphBuilder()
    power = b.op("aten.pow.Tensor_Scalar", b.input((4,)), 2.5)
    graph = b.build(b.op("aten.mul.Tensor", power, 3.0))
    assert takeable_numbers(graph, [("n0", 1), ("n1", 1)]) == {("n1", 1)}


def test_a_group_of_constants_alone_is_no_kernel() -> None:
    """No operand would tell its call what device to work on."""
    b = GraphBuilder()
    number = b.op("aten.scalar_tensor.default", -0.5, shape=())
    graph = b.build(b.op("aten.log1p.default", number, shape=()))
    assert groups(graph) == []
    assert codes(graph)["n0", "n1"] == "factory"


def test_results_of_different_layout_are_cut_apart() -> None:
    b = GraphBuilder()
    x = b.input((4, 8))
    y = b.op("aten.exp.default", x)
    z = b.op("aten.clone.default", y, strides=(1, 4))
    out = b.op("aten.tanh.default", z, strides=(1, 4))
    graph = b.build(y, out)
    assert groups(graph) == [("n1", "n2")]
    assert codes(graph)["n0", "n1"] == "layout"


def test_frames_split_what_one_source_change_cannot_hold() -> None:
    b = GraphBuilder()
    with b.context(frame=1):
        x = b.op("aten.exp.default", b.input((4,)))
        x = b.op("aten.tanh.default", x)
    with b.context(frame=2):
        y = b.op("aten.neg.default", x)
        y = b.op("aten.abs.default", y)
    with b.context(frame=1):
        out = b.op("aten.mul.Tensor", y, x)
    graph = b.build(out)
    assert groups(graph) == [("n0", "n1", "n2", "n3", "n4")]
    framed = find_candidates(graph, within_frame=True)
    assert [c.nodes for c in framed] == [("n0", "n1"), ("n2", "n3")]
    assert {blocker.code for c in framed for blocker in c.blockers} == {"frame", "non-convex"}


def test_source_groups_need_one_place_for_the_call() -> None:
    # y is summed before the other operand of the product exists: no one line can stand there.
    b = GraphBuilder()
    x = b.input((4, 4))
    y = b.op("aten.exp.default", x)
    b.op("aten.sum.dim_IntList", y, shape=(4, 1))
    other = b.op("aten.mm.default", x, x)
    out = b.op("aten.mul.Tensor", y, other)
    graph = b.build(out)
    assert groups(graph) == [("n0", "n3")]
    assert groups(graph, within_frame=True) == []


def test_a_long_chain_is_split_and_says_so() -> None:
    b = GraphBuilder()
    x = b.input((4,))
    for _ in range(400):
        x = b.op("aten.tanh.default", x)
    graph = b.build(x)
    found = find_candidates(graph)
    assert sum(len(c.nodes) for c in found) == 400
    assert max(len(c.nodes) for c in found) <= 128
    assert "registers" in codes(graph).values()


def test_many_operands_are_split() -> None:
    b = GraphBuilder()
    x = b.input((4,))
    for _ in range(60):
        x = b.op("aten.add.Tensor", x, b.input((4,)))
    found = find_candidates(b.build(x))
    assert len(found) >= 2
    assert all(len(c.inputs) + len(c.outputs) <= 32 for c in found)
    assert problems(b.build(x), found) == []


def test_inconsistent_recordings_are_an_error_of_ours() -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4,)))
    graph = b.build(x)
    with pytest.raises(AnalysisError, match="does not describe"):
        find_candidates(type(graph)(nodes=graph.nodes, values=graph.values[1:]))


def test_the_slow_checker_sees_planted_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder()
    x = b.op("aten.exp.default", b.input((4, 8)))
    y = b.op("aten.mm.default", x, x, shape=(4, 8))
    graph = b.build(b.op("aten.add.Tensor", x, y))
    monkeypatch.setattr(Growth, "_path_refusal", lambda *_: None)
    assert any("cannot be ordered" in text for text in problems(graph, find_candidates(graph)))


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((1, 0, 3), (6, 6, 2), True),  # nothing is in no order
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),
        ((2, 3), (6, 2), False),
        ((2, 3), (0, 1), False),
    ],
)
def test_dense_is_without_gaps_and_overlap(shape, strides, dense: bool) -> None:
    spec = TensorSpec(id="v", dtype="float32", shape=shape, strides=strides, storage=0)
    assert is_dense(spec) is dense


def test_empty_graph() -> None:
    graph = GraphBuilder().build()
    assert find_candidates(graph) == ()
    assert why_not(graph, ()) == ()


def _tanh_saved_by_a_detach(*, saved: bool = True, read: bool = False, kept: bool = False):
    b = GraphBuilder()
    t = b.op("aten.tanh.default", b.input((4, 8)))
    aside = b.view("aten.detach.default", t, (4, 8), flags=("saved",) if saved else ())
    if read:
        b.op("aten.sum.default", aside, shape=())
    out = b.op("aten.mul.Tensor", t, t)
    return b.build(out, *([aside] if kept else [])), t


def test_a_value_that_autograd_alone_keeps_is_saved_not_written() -> None:
    graph, t = _tanh_saved_by_a_detach()
    (candidate,) = find_candidates(graph)
    assert problems(graph, [candidate]) == []
    assert candidate.saved == (t,) and t not in candidate.outputs
    assert codes(graph) == {}


@pytest.mark.parametrize("case", [{"saved": False}, {"read": True}, {"kept": True}])
def test_a_detached_value_that_somebody_reads_is_written(case: dict[str, bool]) -> None:
    graph, t = _tanh_saved_by_a_detach(**case)
    (candidate,) = find_candidates(graph)
    assert problems(graph, [candidate]) == []
    assert t in candidate.outputs
