"""Replay as proof: the recorded program passes, every altered one fails."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from fusion_advisor.errors import CaptureError  # noqa: E402
from fusion_advisor.recorder import CaptureOptions, record, replay  # noqa: E402
from fusion_advisor.recorder.loss import find_loss  # noqa: E402


def _program():
    x, w = torch.randn(4, 4), torch.randn(4, 4)

    def run():
        a = x * 2
        b = a + w
        c = torch.tanh(b)
        c.mul_(b)
        d = c - a
        return torch.softmax(d.t(), 0), float(d.sum())

    return record(run)


@pytest.fixture(scope="module")
def recorded():
    return _program()


def _fails(recorded, nodes):
    graph = replace(recorded.graph, nodes=tuple(nodes))
    proof = replay.prove(graph, recorded.store, isolated=False)
    assert proof.status == "failed" and proof.message
    return proof.message


def test_the_program_as_recorded_passes(recorded):
    proof = replay.prove(recorded.graph, recorded.store, isolated=False)
    assert proof.status == "passed" and proof.unproven_nodes == () and not proof.isolated
    assert proof.compared_values == 1  # the softmax; the float is compared as a number


def test_dropping_any_op_fails(recorded):
    nodes = recorded.graph.nodes
    for index in range(len(nodes)):
        _fails(recorded, nodes[:index] + nodes[index + 1 :])


def test_dropping_any_op_fails_even_when_the_rest_is_renumbered(recorded):
    nodes = recorded.graph.nodes
    for index in range(len(nodes)):
        rest = nodes[:index] + nodes[index + 1 :]
        _fails(recorded, [replace(node, index=at) for at, node in enumerate(rest)])


def test_swapping_any_two_neighbours_fails(recorded):
    nodes = list(recorded.graph.nodes)
    for index in range(len(nodes) - 1):
        swapped = list(nodes)
        swapped[index : index + 2] = [nodes[index + 1], nodes[index]]
        _fails(recorded, swapped)
        _fails(recorded, [replace(node, index=at) for at, node in enumerate(swapped)])


@pytest.mark.parametrize(
    ("op", "other"),
    [
        ("aten.tanh.default", {"op": "aten.sin.default"}),
        ("aten.sub.Tensor", {"op": "aten.add.Tensor"}),
        ("aten.t.default", {"op": "aten.alias.default"}),
        ("aten.mul_.Tensor", {"op": "aten.add_.Tensor"}),
        ("aten._softmax.default", {"op": "aten._log_softmax.default"}),
        ("aten.sum.default", {"op": "aten.mean.default"}),
    ],
)
def test_altering_an_op_fails(recorded, op, other):
    nodes = [replace(node, **other) if node.op == op else node for node in recorded.graph.nodes]
    assert nodes != list(recorded.graph.nodes)
    _fails(recorded, nodes)


def test_altering_an_argument_fails(recorded):
    first = recorded.graph.nodes[0]
    changed = replace(first, args=(first.args[0], 2.0000002))
    _fails(recorded, [changed, *recorded.graph.nodes[1:]])


def test_reading_another_value_fails(recorded):
    nodes = list(recorded.graph.nodes)
    sub = next(at for at, node in enumerate(nodes) if node.op == "aten.sub.Tensor")
    nodes[sub] = replace(nodes[sub], args=tuple(reversed(nodes[sub].args)))
    _fails(recorded, nodes)


def test_an_alteration_that_changes_no_result_is_noticed():
    x = torch.zeros(3)
    recording = record(lambda: x * 2)
    node = recording.graph.nodes[0]
    altered = replace(recording.graph, nodes=(replace(node, args=(node.args[0], 3)),))
    proof = replay.prove(altered, recording.store, isolated=False)
    assert proof.status == "failed" and "not the program that was recorded" in proof.message


def test_an_op_that_reaches_no_result_is_unproven():
    x = torch.randn(3)

    def run():
        x.sin()
        return x.cos()

    recording = record(run)
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed"
    assert proof.unproven_nodes == ("sin_0",)


def test_a_write_that_was_not_recorded_fails():
    x = torch.ones(3)

    def run():
        y = x * 2
        y.numpy()[:] = 7  # invisible to every dispatch mode
        return y + 1

    recording = record(run)
    assert recording.result.tolist() == [8.0] * 3
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "failed" and "other bits" in proof.message


def test_nan_payloads_and_signed_zeros_are_compared_as_bits():
    x = torch.tensor([float("nan"), -0.0, float("inf")])
    recording = record(lambda: (x * 1, x.max().item()))
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message


def test_nothing_of_the_person_is_changed_by_a_proof():
    bn, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    recording = record(lambda: bn(x))
    mean, state = bn.running_mean.clone(), torch.get_rng_state()
    for _ in range(2):
        proof = replay.prove(recording.graph, recording.store, isolated=False)
        assert proof.status == "passed", proof.message
    assert torch.equal(bn.running_mean, mean) and bn.num_batches_tracked == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_the_proof_in_a_child_process():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU()).train()
    recording = record(lambda: model(torch.randn(2, 4)), CaptureOptions(backward=True))
    assert "sum of output 2×4" in recording.loss
    proof = replay.prove(recording.graph, recording.store)
    assert proof.status == "passed", proof.message
    assert proof.isolated
    nodes = recording.graph.nodes
    at = next(index for index, node in enumerate(nodes) if node.op == "aten.gelu.default")
    altered = (*nodes[:at], replace(nodes[at], op="aten.silu.default"), *nodes[at + 1 :])
    wrong = replay.prove(replace(recording.graph, nodes=altered), recording.store)
    assert wrong.status == "failed"


def test_ops_known_only_here_are_proven_here():
    library = torch.library.Library("fusion_advisor_test", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
    try:
        recording = record(lambda: torch.ops.fusion_advisor_test.double(torch.ones(3)) + 1)
        assert recording.graph.nodes[1].op == "fusion_advisor_test.double.default"
        proof = replay.prove(recording.graph, recording.store)
        assert proof.status == "passed" and not proof.isolated
        assert "this process" in proof.message
    finally:
        library._destroy()


def test_nondeterministic_ops_are_compared_within_tolerance():
    x = torch.zeros(4)
    index = torch.tensor([0, 1, 1])
    recording = record(
        lambda: torch.index_put(x, (index,), torch.tensor([0.1, 0.2, 0.3]), accumulate=True) * 2
    )
    (node, _) = recording.graph.nodes[-2:]
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed" and proof.tolerant_nodes == (node.id,)
    stored = recording.store.expected[recording.graph.outputs[0]]
    stored += 1e-7
    recording.store.digests[recording.graph.outputs[0]] = "other"
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "passed"
    stored += 1
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "failed"


def test_higher_order_ops_are_not_proven_and_it_is_said():
    from torch._higher_order_ops import cond

    x = torch.ones(3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recording = record(lambda: cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,)))
        torch._dynamo.reset()
    assert recording.result.tolist() == [2.0] * 3
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "not run" and "cond" in proof.message
    assert len(proof.unproven_nodes) == len(recording.graph.nodes)


def test_run_a_part():
    recording = _program()
    graph = recording.graph
    add = next(node for node in graph.nodes if node.op == "aten.add.Tensor")
    given = {value: torch.full((4, 4), 3.0) for value in add.inputs}
    found = replay.run(graph, given, nodes=[add.id], keep=add.outputs)
    assert torch.equal(found[add.outputs[0]], torch.full((4, 4), 6.0))
    with pytest.raises(CaptureError, match="missing"):
        replay.run(graph, {}, nodes=[add.id], keep=add.outputs)


def test_materialize_gives_values_as_they_were():
    x = torch.arange(4.0)

    def run():
        a = x + 1
        b = a * 2
        a.mul_(10)
        half = a[:2]
        half.add_(1)
        return a - 1, b

    recording = record(run)
    graph = recording.graph
    add, mul, mul_, _, add_, sub = graph.nodes
    found = replay.materialize(
        graph,
        recording.store,
        [*add.outputs, *mul.inputs, *mul_.outputs, *sub.inputs, *graph.inputs],
    )
    assert found[add.outputs[0]].tolist() == [1, 2, 3, 4]
    assert found[mul_.outputs[0]].tolist() == [10, 20, 30, 40]
    assert found[sub.inputs[0]].tolist() == [11, 21, 30, 40]
    assert found[graph.inputs[0]].tolist() == [0, 1, 2, 3]
    assert add_.outputs[0] not in found
    with pytest.raises(CaptureError, match="no values nowhere"):
        replay.materialize(graph, recording.store, ["nowhere"])


def test_subgraph_is_pure_and_in_order():
    recording = _program()
    nodes = {node.op: node for node in recording.graph.nodes}
    chain = [nodes[op] for op in ("aten.add.Tensor", "aten.tanh.default", "aten.mul_.Tensor")]
    call = replay.subgraph(
        recording.graph, [node.id for node in chain], chain[0].inputs, chain[2].outputs
    )
    a, w = torch.randn(4, 4), torch.randn(4, 4)
    before = a.clone(), w.clone()
    (result,) = call(a, w)
    assert torch.equal(result, torch.tanh(a + w) * (a + w))
    assert torch.equal(a, before[0]) and torch.equal(w, before[1])
    with pytest.raises(CaptureError, match="neither an input"):
        replay.subgraph(recording.graph, [chain[1].id], [], chain[1].outputs)


def test_subgraph_in_double_precision_rounds_nowhere():
    x = torch.randn(64, dtype=torch.bfloat16)

    def run():
        y = x.float() * 3
        return torch.tanh(y.to(torch.bfloat16)) + 1

    recording = record(run)
    graph = recording.graph
    call = replay.subgraph(
        graph, [n.id for n in graph.nodes], graph.inputs, graph.outputs, high_precision=True
    )
    (result,) = call(x.double())
    assert result.dtype == torch.float64
    assert torch.allclose(result, torch.tanh(x.double() * 3) + 1, rtol=1e-15)


def test_integers_become_double_in_double_precision():
    x = torch.tensor([1, 2, 3])
    recording = record(lambda: x / 3)
    graph = recording.graph
    call = replay.subgraph(
        graph, [n.id for n in graph.nodes], graph.inputs, graph.outputs, high_precision=True
    )
    assert call(x)[0].tolist() == [1 / 3, 2 / 3, 1.0]
    assert torch.get_default_dtype() == torch.float32


def test_a_closed_store_says_so():
    recording = _program()
    recording.store.close()
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "not run" and "released" in proof.message


def _need(*shape):
    return torch.ones(shape, requires_grad=True) * 2


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda: _need(), "the returned scalar"),
        (lambda: {"loss": _need(), "logits": _need(2)}, "the loss of the returned output"),
        (lambda: (_need(), _need(3)), "the first returned element"),
        (lambda: [_need(2, 3), torch.ones(2)], "the sum of output[0] 2×3"),
        (lambda: {"a": _need(2), "b": {"c": _need(4)}}, "the sum of a 2, b.c 4"),
    ],
)
def test_what_is_differentiated_is_said(result, words):
    loss, description = find_loss(result())
    assert words in description
    assert loss.numel() == 1 and loss.requires_grad


def test_nothing_to_differentiate():
    with pytest.raises(CaptureError, match="nothing to differentiate"):
        record(lambda: torch.ones(2) * 2, CaptureOptions(backward=True))


def test_what_an_op_makes_as_its_operand_lies_is_proven():
    """copy(x, x) clones the memory before x too, which the replay's copy of x has not."""
    x = torch.randn(12)[3:]
    recorded = record(lambda: torch.neg(torch.ops.aten.copy(x, x)), CaptureOptions())
    assert [value.offset for value in recorded.graph.values] == [3, 3, 0]
    proof = replay.prove(recorded.graph, recorded.store, isolated=False)
    assert proof.status == "passed", proof.message
