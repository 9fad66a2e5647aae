"""Members of other forms: several results, operands that lend only their shape, written tensors."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from forms_support import checked, one_group, recorded
from graph_builder import GraphBuilder
from kernel_harness import load

from fusion_advisor.analysis import find_candidates, traffic, why_not
from fusion_advisor.fixes import plan_text
from fusion_advisor.fixes.text_edits import apply_edits
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.validation.intervals import ulp

pytestmark = pytest.mark.essential


def operands(dtype=torch.float32):
    torch.manual_seed(4)
    return torch.randn(6, 33).to(dtype), torch.randn(33).to(dtype)


# -- several results ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_second_result_is_left_out_where_nobody_needs_it(dtype):
    x, _ = operands(dtype)
    recording, candidate, kernel = one_group(lambda x: F.logsigmoid(x * 2) + 1, x)
    assert len(candidate.nodes) == 3
    assert len(candidate.outputs) == 1
    assert "logsigmoid(" in kernel.text
    # Three ops of one operand and four results in all, against one read and one write.
    size = x.numel() * x.element_size()
    assert traffic(recording.graph, [candidate]) == (7 * size, 2 * size)


def test_both_results_are_written_where_both_are_needed():
    def call(x):
        result, buffer = torch.ops.aten.log_sigmoid_forward(x * 2)
        return result, buffer, buffer + 1

    x, _ = operands()
    recording, candidate, _ = one_group(call, x)
    node = next(node for node in recording.graph.nodes if len(node.outputs) == 2)
    assert candidate.outputs[:2] == node.outputs
    assert len(candidate.outputs) == 3


def test_the_second_result_alone_can_be_what_is_needed():
    x, _ = operands()
    _, candidate, kernel = one_group(lambda x: torch.ops.aten.log_sigmoid_forward(x)[1] + 1, x)
    assert len(candidate.outputs) == 1
    assert "_, log_sigmoid_forward = " in kernel.text


def test_a_second_result_behind_a_view_belongs_to_one_kernel():
    def call(x):
        return torch.ops.aten.log_sigmoid_forward(x)[1].t() * 2

    x, _ = operands()
    _, candidate, _ = one_group(call, x)
    assert len(candidate.views) == 1


def test_what_backward_alone_reads_is_kept_for_it():
    x = operands()[0].requires_grad_()
    recording = recorded(lambda x: (F.logsigmoid(x * 2) * 3).sum().backward(), x, grad=True)
    forward = find_candidates(recording.graph)[0]
    node = next(node for node in recording.graph.nodes if len(node.outputs) == 2)
    assert node.id in forward.nodes
    assert node.outputs[1] in forward.saved


def two_results(second: tuple[int, ...], used: str) -> GraphBuilder:
    b = GraphBuilder()
    x = b.input((4, 6))
    scaled = b.op("aten.mul.Tensor", x, 2.0)
    first = b.op("aten.log_sigmoid_forward.default", scaled)
    buffer = b.value(second)
    b.nodes[-1] = replace(b.nodes[-1], outputs=(first, buffer))
    last = b.op("aten.add.Tensor", first, 1.0)
    kept = [last]
    if used == "backward":
        with b.context(phase="backward"):
            b.op("aten.log_sigmoid_backward.default", x, scaled, buffer, shape=(4, 6))
    elif used == "now":
        kept.append(buffer)
    return b.build(*kept)


@pytest.mark.parametrize("used", ["never", "backward"])
def test_an_empty_second_result_stands_in_nobody_s_way(used):
    # On a GPU log_sigmoid keeps nothing: its second result has no elements.
    (candidate, *_) = find_candidates(two_results((0,), used))
    assert candidate.nodes == ("n0", "n1", "n2")
    assert candidate.shape == (4, 6)


def test_results_of_two_shapes_that_are_both_needed_are_refused():
    graph = two_results((0,), "now")
    assert find_candidates(graph) == ()
    assert "output-shape" in {blocker.code for blocker in why_not(graph, ())}


# -- operands that lend their shape ------------------------------------------------------------


def test_a_filled_operand_gives_its_shape_and_is_not_read():
    x, y = operands()
    recording, candidate, kernel = one_group(lambda x, y: torch.fill(x, 0.3) * y, x, y)
    assert len(candidate.inputs) == 2
    assert "x[" not in kernel.text.split("@cpu_kernel")[1]
    # Eager: one write; then a read of both and a write.  Fused: the row and the result.
    size, row = 4 * x.numel(), 4 * y.numel()
    assert traffic(recording.graph, [candidate]) == (3 * size + row, size + row)
    assert "reads 132 B" in kernel.text


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.empty_like(x).fill_(3) * y,
        lambda x, y: torch.empty_like(x).zero_() + y,
        lambda x, y: torch.empty(6, 33).copy_(y.double()) * 2,
        lambda x, y: (x * 2).fill_(y[0]) * y,
        lambda x, y: torch.fill(x, 0.5).t() + 1,
    ],
    ids=["fill_", "zero_", "copy_", "fill_ by a tensor", "behind a view"],
)
def test_forms_that_overwrite_are_members(function):
    x, y = operands()
    assert len(one_group(function, x, y)[1].nodes) >= 2


def test_the_guards_look_at_an_operand_that_lends_its_shape():
    x, y = operands()
    _, _, kernel = one_group(lambda x, y: torch.fill(x, 0.3) * y, x, y)
    fused = load(kernel)[kernel.entry]
    wider = torch.randn(3, 5, 33)
    assert fused.why_not(wider, y)
    assert fused.why_not(x.double(), y)
    assert not fused.why_not(x[:2], y)
    assert torch.equal(fused(x[:2], y), 0.3 * y.expand(2, 33))


def test_times_zero_is_no_constant():
    x = torch.tensor([1.0, -2.0, float("nan"), float("inf")])
    _, _, kernel = one_group(lambda x: (x * 0) + 1, x)
    assert "x[" in kernel.text.split("@cpu_kernel")[1]


def first_statement(text, name):
    """What a function of this file begins with."""
    (function,) = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    return ast.unparse(function.body[0])


def filled_chain(x, y):
    return torch.fill(x, 0.3) * y + 1.0


def test_a_fill_is_edited_in_the_text():
    x, y = operands()

    recording = recorded(filled_chain, x, y)
    (candidate,) = find_candidates(recording.graph, within_frame=True)
    text = Path(__file__).read_text(encoding="utf-8")
    kernel = generate_kernel(recording.graph, candidate)
    edited = apply_edits(text, plan_text(recording.graph, candidate, kernel, text).edits)
    assert first_statement(edited, "filled_chain") == f"return {kernel.entry}(x, y)"


# -- elementwise for some arguments ------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: F.mse_loss(x * 2, y.expand(6, 33), reduction="none") + 1,
        lambda x, y: F.huber_loss(x * 2, y.expand(6, 33), reduction="none") + 1,
        lambda x, y: (
            F.binary_cross_entropy_with_logits(x * 2, y.expand(6, 33), reduction="none") + 1
        ),
        lambda x, y: torch.native_dropout(x * 2, 0.5, False)[0] + y,
        lambda x, y: torch.zeros_like(x) - y,
        lambda x, y: torch.full_like(x, 0.5, dtype=torch.float64) * y,
        lambda x, y: torch.ones_like(x).add_(y),
    ],
    ids=["mse", "huber", "bce", "dropout", "zeros", "full", "ones"],
)
def test_ops_that_are_elementwise_for_these_arguments_are_members(function):
    _, candidate, _ = one_group(function, *operands())
    assert len(candidate.nodes) >= 2


@pytest.mark.parametrize(
    ("function", "code", "reason"),
    [
        (lambda x: F.mse_loss(x * 2, x) + 1, "not-elementwise", "a reduction"),
        (lambda x: torch.native_dropout(x * 2, 0.5, True)[0] + 1, "random", "random numbers"),
        (lambda x: torch.lgamma(x * 2) + 1, "unsupported-op", "gamma function"),
        (
            lambda x: F.binary_cross_entropy(x.sigmoid(), x.sigmoid(), reduction="none") + 1,
            "unsupported-op",
            "outside of 0 to 1",
        ),
        (lambda x: torch.nextafter(x * 2, x) + 1, "unsupported-op", "bits of floats"),
    ],
    ids=["mse", "dropout", "lgamma", "bce", "nextafter"],
)
def test_others_are_refused_by_name(function, code, reason):
    graph = recorded(function, operands()[0]).graph
    found = [blocker for blocker in why_not(graph, find_candidates(graph)) if blocker.code == code]
    assert found
    assert all(reason in blocker.message for blocker in found)


def chosen(x):
    return torch.where(x > 0, x, 0.0) * 2


def test_a_number_of_where_is_part_of_the_kernel():
    # torch makes a tensor of it; passed in, a kernel would get a Python number for a tensor.
    recording = recorded(chosen, operands()[0])
    (candidate,) = find_candidates(recording.graph, within_frame=True)
    assert [operand.dims for operand in candidate.inputs] == [(0, 1)]
    text = Path(__file__).read_text(encoding="utf-8")
    kernel = checked(recording, candidate)
    fix = plan_text(recording.graph, candidate, kernel, text)
    edited = first_statement(apply_edits(text, fix.edits), "chosen")
    assert edited == f"return {kernel.entry}(x)"


def chosen_by(x, low):
    return torch.where(x > 0, x, low) * 2


def test_a_number_of_where_that_the_text_computes_is_left_to_the_text():
    recording = recorded(chosen_by, operands()[0], 0.25)
    (candidate,) = find_candidates(recording.graph, within_frame=True)
    text = Path(__file__).read_text(encoding="utf-8")
    fix = plan_text(recording.graph, candidate, checked(recording, candidate), text)
    assert [blocker.code for blocker in fix.blockers] == ["number-not-literal"]
    assert not fix.edits


# -- two halves of one operand -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "dtype"), [(0, torch.float32), (1, torch.bfloat16), (-1, torch.float64)]
)
def test_glu_reads_two_halves(dim, dtype):
    torch.manual_seed(5)
    x = torch.randn(4, 6, 34).to(dtype)
    recording, candidate, kernel = one_group(lambda x: F.glu(x, dim) * 2 + 1, x)
    assert len(candidate.nodes) == 3
    # glu reads all and writes a half, the others read and write one; fused: all and a half.
    size = x.numel() * x.element_size()
    assert traffic(recording.graph, [candidate]) == (3.5 * size, 1.5 * size)
    fused = load(kernel)[kernel.entry]
    other = torch.randn(6, 2, 10).to(dtype)
    assert not fused.why_not(other)
    if dtype != torch.float64:
        torch.testing.assert_close(fused(other), F.glu(other, dim) * 2 + 1)


def test_a_huge_half_does_not_show_what_a_subnormal_sigmoid_has_lost():
    first, second = torch.meshgrid(
        torch.logspace(20, 38.5, 50), torch.linspace(-88.7, -85.0, 500), indexing="ij"
    )
    x = torch.stack([first, second])
    kernel = one_group(lambda x: F.glu(x, 0) * 1.0, x)[2]
    (result,) = load(kernel)[kernel.entry].run_cpu((x,))
    wide = x.double()
    true = wide[0] * torch.sigmoid(wide[1])
    assert ((result[0] - true).abs() / ulp(true, torch.float32)).max() < 4.0


def test_glu_goes_on_behind_a_view_and_over_a_broadcast_operand():
    x = torch.randn(4, 5, 12)
    assert len(one_group(lambda x: (F.glu(x) * 2).transpose(0, 1) + 1, x)[1].nodes) == 4
    bias = torch.randn(6)
    assert len(one_group(lambda x, b: F.glu(x) * b, x.transpose(0, 1), bias)[1].nodes) == 2
    wide = torch.randn(1, 12).expand(5, 12)
    assert len(one_group(lambda x, b: F.glu(x) * b, wide, bias)[1].nodes) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.glu(x * 2) + 1.0,
        lambda x: (x * 2) * F.glu(x * 2),
        lambda x: F.glu((x * 2).t(), 0).t() + 1.0,
        lambda x: (lambda p: p * F.glu(p))(x * 2),
    ],
    ids=["before", "beside", "through a view", "of one group"],
)
def test_what_makes_the_operand_of_glu_is_a_group_apart(function):
    recording = recorded(function, torch.randn(7, 2))
    (glu,) = (node.id for node in recording.graph.nodes if node.op == "aten.glu.default")
    for candidate in find_candidates(recording.graph):
        checked(recording, candidate)
        if glu in candidate.nodes:
            made = {v for n in recording.graph.nodes if n.id in candidate.nodes for v in n.outputs}
            halved = next(n.inputs[0] for n in recording.graph.nodes if n.id == glu)
            assert halved not in made
    blockers = why_not(recording.graph, find_candidates(recording.graph))
    assert any("halves" in one.message or one.code == "view" for one in blockers)


def test_a_glu_validates_on_both_targets():
    from fusion_advisor.recorder import replay
    from fusion_advisor.validation import validate

    recording = recorded(lambda x: F.glu(x) * 2, torch.randn(3, 5, 18))
    graph = recording.graph
    (candidate,) = find_candidates(graph)
    names = tuple(operand.value for operand in candidate.inputs)
    part = (graph, candidate.computed, names, candidate.outputs)
    result = validate(
        generate_kernel(graph, candidate),
        graph,
        candidate,
        reference=replay.subgraph(*part),
        reference64=replay.subgraph(*part, high_precision=True),
        captured=replay.materialize(graph, recording.store, names),
        ceilings=None,
        measure=False,
    )
    assert result.status == "passed", result.rungs
    assert result.mismatches == 0


# -- out= ----------------------------------------------------------------------------------------


def into_new(x, y):
    made = torch.empty_like(x)
    torch.add(x * 2, y, alpha=3, out=made)
    return made.sigmoid()


def into_wider_transposed(x, y):
    made = torch.empty(20, 7, dtype=torch.float64).t()
    torch.mul(x, y, out=made)
    return made * 2, made


def into_what_is_read(x, y):
    made = x * 2
    torch.mul(made, y, out=made)
    return made * 2


def into_one_another(x, y):
    first = x + 1
    second = first.exp()
    torch.clamp(second, min=y, out=first)
    torch.maximum(first, y, out=second)
    return first * 2, second - 1


@pytest.mark.parametrize(
    "function", [into_new, into_wider_transposed, into_what_is_read, into_one_another]
)
def test_what_is_written_into_out_is_fused(function):
    one_group(function, torch.randn(7, 20), torch.randn(20))


def test_a_given_tensor_is_not_read_and_keeps_its_dtype():
    recording, candidate, kernel = one_group(
        lambda x: torch.mul(x, 2.0, out=torch.full((6,), math.nan, dtype=torch.bfloat16)).float(),
        torch.tensor([1.0, 1.00390625, -0.0, math.inf, math.nan, 3e38]),
    )
    lent = recording.graph.nodes[-2].mutates[0]
    assert lent in [operand.value for operand in candidate.inputs]
    assert "this reads 24 B and writes 24 B in 1" in kernel.text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: torch.mul(x, 2, out=torch.empty(0)) + 1, "resizes the tensor given as out="),
        (lambda x: torch.mul(x, 2, out=OUTSIDE) + 1, "lives outside the run"),
        (lambda x: (lambda o, p: (torch.mul(x, 2, out=o) + 1) * p.sum())(*shared(x)), "again"),
    ],
)
def test_a_given_tensor_that_others_see_is_left_alone(function, words):
    recording = recorded(function, torch.randn(6))
    found = find_candidates(recording.graph)
    blockers = why_not(recording.graph, found)
    assert any(b.code == "mutated-input" and words in b.message for b in blockers)
    assert all(
        node.op != "aten.mul.out"
        for candidate in found
        for node in recording.graph.nodes
        if node.id in candidate.nodes
    )


OUTSIDE = torch.empty(6)


def shared(x):
    made = torch.ones_like(x)
    return made, made.view(2, 3)
