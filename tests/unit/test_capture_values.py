"""Data flow: storages, versions, views, in-place ops; every case proven by replay too."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fusion_advisor.recorder import CaptureOptions, Recorder, record, replay  # noqa: E402


def _captured(function, *args, options=None):
    recording = record(lambda: function(*args), options)
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message
    return recording


def _by_op(recording, op):
    found = [node for node in recording.graph.nodes if node.op == op]
    assert found, [node.op for node in recording.graph.nodes]
    return found


def _spec(recording, value):
    return next(spec for spec in recording.graph.values if spec.id == value)


def test_a_chain_links_outputs_to_inputs():
    x = torch.randn(3, 4)
    recording = _captured(lambda: (x * 2 + 1).tanh())
    mul, add, tanh = recording.graph.nodes
    assert mul.args[1] == 2 and mul.op == "aten.mul.Tensor" and mul.kind == "elementwise"
    assert add.inputs == mul.outputs and tanh.inputs == add.outputs
    assert recording.graph.inputs == mul.inputs
    assert recording.graph.outputs == tanh.outputs  # the intermediates are gone
    spec = _spec(recording, tanh.outputs[0])
    assert (spec.dtype, spec.shape, spec.strides, spec.version) == ("float32", (3, 4), (4, 1), 0)


def test_an_intermediate_that_is_kept_is_an_output():
    x = torch.randn(5)
    kept = []

    def run():
        a = x.exp()
        kept.append(a)
        return a.tanh() * a

    recording = _captured(run)
    exp, _, mul = recording.graph.nodes
    assert set(recording.graph.outputs) == {*exp.outputs, *mul.outputs}


def test_dtype_view_is_read_before_a_later_mutation():
    x = torch.tensor([5, 7])

    def run():
        y = x.view(torch.int32) + 1
        x.zero_()
        return y * 2

    recording = _captured(run)
    assert recording.result.tolist() == [12, 2, 16, 2]
    (zero,) = _by_op(recording, "aten.zero_.default")
    assert zero.mutates == recording.graph.inputs
    assert recording.store.get(recording.graph.inputs[0]).tolist() == [5, 7]  # before the write
    after = _spec(recording, zero.outputs[0])
    before = _spec(recording, zero.mutates[0])
    assert after.storage == before.storage and after.version == before.version + 1
    assert zero.outputs[0] in recording.graph.outputs


def test_a_write_through_a_view_makes_new_values_of_the_others():
    def run():
        base = torch.zeros(4)
        half = base[:2]
        half.add_(1)
        return base * 3

    recording = _captured(run)
    assert recording.result.tolist() == [3, 3, 0, 0]
    zeros = recording.graph.nodes[0]
    (add,) = _by_op(recording, "aten.add_.Tensor")
    (mul,) = _by_op(recording, "aten.mul.Tensor")
    read = _spec(recording, mul.inputs[0])
    assert read.alias_of == zeros.outputs[0]
    assert read.version == 1 == _spec(recording, add.outputs[0]).version
    assert read.id not in {value for node in recording.graph.nodes for value in node.outputs}


def test_views_of_one_intermediate_share_its_storage():
    def run():
        z = torch.zeros(2, 2) + 1
        a = torch.view_as_real(torch.view_as_complex(z))
        return a * 10, z

    recording = _captured(run)
    (view,) = _by_op(recording, "aten.view_as_real.default")
    add = _by_op(recording, "aten.add.Tensor")[0]
    assert _spec(recording, view.outputs[0]).storage == _spec(recording, add.outputs[0]).storage
    assert view.kind == "view"
    assert add.outputs[0] in recording.graph.outputs


def test_an_op_that_returns_its_input_object():
    x = torch.ones(3)

    def run():
        y = torch.nn.functional.dropout(x, 0.9, training=False)
        y += 4
        return y.neg()

    recording = _captured(run)
    assert recording.result.tolist() == [-5.0] * 3 and x.tolist() == [5.0] * 3
    (add,) = _by_op(recording, "aten.add_.Tensor")
    assert add.mutates == recording.graph.inputs
    assert recording.store.get(add.mutates[0]).tolist() == [1.0] * 3


def test_copy_then_mutate_the_source():
    dst, src = torch.zeros(2, 3), torch.arange(6.0).view(2, 3)
    expected = src.clone()

    def run():
        dst[:] = src[:]
        src.mul_(3)
        return dst - 1

    recording = _captured(run)
    assert torch.equal(recording.result, expected - 1)
    assert {node.op for node in recording.graph.nodes if node.mutates} == {
        "aten.copy_.default",
        "aten.mul_.Tensor",
    }


def test_out_arguments_are_written_values():
    x, out = torch.randn(3), torch.full((3,), 7.0)
    recording = _captured(lambda: torch.add(x, 1, out=out))
    (add,) = _by_op(recording, "aten.add.out")
    assert len(add.mutates) == len(add.outputs) == 1
    assert _spec(recording, add.outputs[0]).version == 1
    assert recording.store.get(add.mutates[0]).tolist() == [7.0] * 3


def test_inputs_that_share_memory_are_stored_sharing_it():
    base = torch.arange(6.0)
    left, right = base[:4], base[2:]

    def run():
        left.add_(10)
        return right * 1

    recording = _captured(run)
    assert recording.result.tolist() == [12.0, 13.0, 4.0, 5.0]
    one, two = (recording.store.get(value) for value in recording.graph.inputs)
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    assert two.tolist() == [2.0, 3.0, 4.0, 5.0]


def test_freed_addresses_are_not_confused():
    x = torch.randn(64, 64)

    def run():
        total = torch.zeros(64, 64)
        for step in range(20):
            total = total + (x * step)  # the product's memory is free again each time
        return total

    recording = _captured(run)
    storages = [_spec(recording, node.outputs[0]).storage for node in recording.graph.nodes]
    assert len(set(storages)) == len(storages)


def test_resize_and_set_change_the_value():
    def run():
        x = torch.ones(2)
        x.resize_(4)
        x.fill_(3)
        y = torch.zeros(1)
        y.set_(x)
        return y + 1

    recording = _captured(run)
    assert recording.result.tolist() == [4.0] * 4


def test_foreach_ops_write_every_tensor_of_the_list():
    tensors = [torch.ones(2), torch.ones(3)]
    recording = _captured(lambda: torch._foreach_add_(tensors, 1.0))
    node = recording.graph.nodes[0]
    assert len(node.mutates) == len(node.outputs) == 2
    assert len(recording.graph.outputs) == 2


def test_batch_norm_writes_its_statistics():
    module = torch.nn.BatchNorm1d(3).train()
    x = torch.randn(4, 3)
    recording = _captured(lambda: module(x))
    node = next(node for node in recording.graph.nodes if "batch_norm" in node.op)
    assert len(node.mutates) == 2
    written = [spec for spec in recording.graph.values if spec.id in node.mutates]
    assert {spec.shape for spec in written} == {(3,)}
    assert recording.store.get(node.mutates[0]).abs().sum() in (0.0, 3.0)  # mean 0 and variance 1


def test_partial_overlap_raises_as_eager_does():
    a = torch.arange(9.0).view(3, 3)
    with pytest.raises(RuntimeError, match="some elements of the input tensor"):
        record(lambda: a.add_(a.t()))
    y = torch.ones(1).expand(4)
    with pytest.raises(RuntimeError, match="single memory location"):
        record(lambda: y.add_(1))


def test_an_op_that_failed_and_was_caught_is_not_recorded():
    a = torch.arange(9.0).view(3, 3)

    def run():
        try:
            a.add_(a.t())
        except RuntimeError:
            return a + 1
        return None

    recording = _captured(run)
    assert [node.op for node in recording.graph.nodes] == ["aten.t.default", "aten.add.Tensor"]


def test_saved_for_backward_is_not_an_output():
    x = torch.randn(4, requires_grad=True)
    recording = _captured(lambda: torch.tanh(x * 2).exp())
    mul, tanh, exp = (
        _by_op(recording, f"aten.{name}")[0]
        for name in ("mul.Tensor", "tanh.default", "exp.default")
    )
    assert exp.outputs[0] in recording.graph.outputs
    assert tanh.outputs[0] not in recording.graph.outputs
    assert mul.outputs[0] not in recording.graph.outputs
    assert "saved" in _spec(recording, tanh.outputs[0]).flags
    assert _spec(recording, recording.graph.inputs[0]).requires_grad


def test_uninitialised_memory_is_not_compared():
    def run():
        y = torch.empty(4)
        y[:2] = 1
        return torch.empty(3), y

    assert _captured(run).graph.nodes[0].kind == "factory"


@pytest.mark.parametrize(
    ("make", "flag"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.randn(3, dtype=torch.complex64).conj(), "conj"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unusual_tensors_are_flagged_and_replayed(make, flag):
    x = make()
    recording = record(lambda: x.dequantize() if flag == "quantized" else x * 2)
    assert any(flag in spec.flags for spec in recording.graph.values)
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message


def test_wrapper_subclasses_are_seen_through():
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.ones(2), torch.zeros(2))
    recording = _captured(lambda: x + 1)
    assert [node.op for node in recording.graph.nodes] == ["aten.add.Tensor"] * 2
    assert any("TwoTensor" in note for note in recording.notes)


def test_plain_subclasses_are_flagged():
    class Named(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Named)
    recording = _captured(lambda: x * 2)
    assert any("subclass:Named" in spec.flags for spec in recording.graph.values)


def test_inference_mode_records_the_same_ops_as_no_grad():
    linear = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with torch.no_grad():
        plain = _captured(lambda: linear(x).relu_())
    with torch.inference_mode():
        inference = record(lambda: linear(x).relu_())
    assert [n.op for n in inference.graph.nodes] == [n.op for n in plain.graph.nodes]
    proof = replay.prove(inference.graph, inference.store, isolated=False)
    assert proof.status == "passed", proof.message


@pytest.mark.parametrize("name", ["silu_backward", "mish_backward"])
def test_an_op_with_parts_and_a_kernel_is_recorded_as_the_kernel_that_runs(name: str):
    op = getattr(torch.ops.aten, name).default
    x, gradient = torch.randn(100), torch.randn(100)
    found = []
    recorded = record(lambda: found.append(op(gradient, x)), CaptureOptions())
    assert [node.op for node in recorded.graph.nodes] == [f"aten.{name}.default"]
    assert torch.equal(found[0], op(gradient, x))


def test_mutated_inference_tensors_are_kept_as_they_were():
    with torch.inference_mode():
        x = torch.ones(3)
        recording = record(lambda: x.add_(1) * 2)
    assert recording.store.get(recording.graph.inputs[0]).tolist() == [1.0] * 3
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "passed"


def test_parameters_are_kept_by_reference_and_refused_once_changed():
    from fusion_advisor.errors import CaptureError

    linear = torch.nn.Linear(3, 3)
    with torch.no_grad():
        recording = _captured(lambda: linear(torch.ones(1, 3)))
        weight = next(
            spec.id
            for spec in recording.graph.values
            if "parameter" in spec.flags and spec.shape == (3, 3)
        )
        stored = recording.store.get(weight)
        assert stored.untyped_storage().data_ptr() == linear.weight.untyped_storage().data_ptr()
        linear.weight.add_(1)
    with pytest.raises(CaptureError, match="has been changed since"):
        recording.store.get(weight)
    assert replay.prove(recording.graph, recording.store, isolated=False).status == "not run"


def test_the_byte_cap_drops_inputs_and_says_so():
    x = torch.randn(1000)
    recording = record(lambda: x + 1, CaptureOptions(byte_cap=100))
    assert recording.store.bytes == 0
    assert any("not kept" in note for note in recording.notes)
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "not run" and "byte cap" in proof.message
    assert proof.unproven_nodes == ("add_0",)


def test_a_slice_of_a_large_storage_costs_its_own_bytes():
    big = torch.randn(100_000)
    part = big[50_000:50_010]
    recording = _captured(lambda: part * 2)
    assert recording.store.bytes <= 10 * 4 + 64


def test_the_recorder_holds_nothing_of_the_run():
    import weakref

    x = torch.randn(4)
    with Recorder() as recorder:
        y = x + 1
        gone = weakref.ref(y)
        del y
        assert gone() is None
        z = x * 2
    recording = recorder.finish(z)
    assert recording.graph.outputs == recording.graph.nodes[1].outputs
    recording.store.close()
    assert recording.store.bytes == 0


def test_absolute_offsets_reach_the_whole_storage():
    big = torch.arange(100.0)
    part = big[50:60]
    recording = _captured(lambda: part.as_strided((2,), (1,), 90) + part[:2])
    assert recording.result.tolist() == [140.0, 142.0]
