import pytest

from fusion_advisor import ops


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("aten.add.Tensor", "elementwise"),
        ("aten.add_.Tensor", "elementwise"),
        ("aten._to_copy.default", "elementwise"),
        ("aten.hardswish_.default", "elementwise"),
        ("aten.where.self", "elementwise"),
        ("aten.where.default", "host-sync"),
        ("aten.max.other", "elementwise"),
        ("aten.max.dim", "reduction"),
        ("aten.clone.default", "copy"),
        ("aten.cat.default", "copy"),
        ("aten.transpose.int", "view"),
        ("aten.detach.default", "metadata"),
        ("aten.addmm.default", "matmul"),
        ("aten.convolution_backward.default", "convolution"),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", "attention"),
        ("aten.native_layer_norm.default", "normalization"),
        ("aten._softmax.default", "reduction"),
        ("aten.embedding.default", "indexing"),
        ("aten.index_put_.default", "indexing"),
        ("aten.arange.start", "factory"),
        ("aten.native_dropout.default", "random"),
        ("aten.bernoulli_.float", "random"),
        ("aten._local_scalar_dense.default", "host-sync"),
        ("aten.equal.default", "host-sync"),
        ("aten._foreach_add_.List", "optimizer"),
        ("aten._fused_adamw_.default", "optimizer"),
        ("mylib.add.default", "other"),
    ],
)
def test_kind(op, kind):
    assert ops.classify(op) == kind


def test_tags_decide_for_unknown_ops_only():
    assert ops.classify("mylib.foo.default", pointwise_tag=True) == "elementwise"
    assert ops.classify("mylib.foo.default", reduction_tag=True) == "reduction"
    assert ops.classify("aten.clone.default", pointwise_tag=True) == "copy"


@pytest.mark.parametrize(
    ("op", "functional", "inplace"),
    [
        ("aten.add_.Tensor", "aten.add.Tensor", True),
        ("aten.__iand__.Tensor", "aten.__and__.Tensor", True),
        ("aten.__and__.Tensor", "aten.__and__.Tensor", False),
        ("aten._to_copy.default", "aten._to_copy.default", False),
        ("aten.relu_.default", "aten.relu.default", True),
    ],
)
def test_functional_name(op, functional, inplace):
    assert ops.functional_name(op) == functional
    assert ops.is_inplace(op) is inplace


def test_lookup_gives_in_place_ops_the_functional_row():
    assert ops.lookup("aten.mul_.Tensor") is ops.lookup("aten.mul.Tensor")


def test_lookup_says_why_an_elementwise_op_has_no_recipe():
    info = ops.lookup("aten.lgamma.default")
    assert info is not None
    assert info.recipe is None
    assert "gamma function" in info.reason
    out = ops.lookup("aten.log_sigmoid_forward.output")
    assert out is not None
    assert "out=" in out.reason
    assert ops.lookup("aten.mm.default") is None


def test_every_row_is_complete():
    for info in ops.rows():
        assert info.recipe is not None, info.name
        # Of reductions, random ops and factories those that are elementwise for some arguments.
        assert info.kind in ("elementwise", "copy", "view", "reduction", "random", "factory"), info
        assert info.budget_ulp <= 4 or info.note, info
        assert info.flops >= 0


def test_every_overload_in_place_that_has_a_recipe_has_a_twin_in_torch() -> None:
    torch = pytest.importorskip("torch")
    written = [
        f"aten.{name}.{overload}"
        for name in dir(torch.ops.aten)
        if name.endswith("_") and hasattr(getattr(torch.ops.aten, name), "overloads")
        for overload in getattr(torch.ops.aten, name).overloads()
    ]
    known = {op: ops.lookup(op) for op in written if ops.is_inplace(op)}
    found = [op for op, info in known.items() if info is not None and info.recipe is not None]
    assert len(found) > 100
    for op in found:
        _, base, overload = ops.functional_name(op).split(".")
        assert overload in getattr(torch.ops.aten, base).overloads(), op
