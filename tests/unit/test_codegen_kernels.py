"""Generated kernels: the CPU kernel against eager, the CUDA kernel's PTX, the eager text."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import codegen_cases as cases
import pytest
import torch
from kernel_harness import (
    compile_cuda,
    differing,
    fused_multiply_adds,
    load,
    poisoned_like,
)
from torch.utils._python_dispatch import TorchDispatchMode

from fusion_advisor.codegen import generate, lower

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * 2).to(dtype)


def make_chain(name, dtype=torch.float32):
    x = randn(3, 5, 14, dtype=dtype)
    y = randn(3, 5, 14, dtype=dtype, seed=1)
    match name:
        case "gelu":
            return cases.Chain(cases.gelu_new, x)
        case "bias":
            return cases.Chain(
                cases.scaled_bias, x, randn(14, dtype=dtype), randn(3, 5, 1, dtype=dtype)
            )
        case "gated":
            return cases.Chain(cases.gated, x, y)
        case "rounded":
            return cases.Chain(cases.rounded_chain, x, y)
        case "masked":
            return cases.Chain(cases.masked, x, y)
        case "transposed":
            return cases.Chain(
                lambda a, b: torch.relu(a.transpose(1, 2) * b) + a.transpose(1, 2),
                x,
                randn(3, 14, 5, dtype=dtype),
            )
        case "channels_last":
            image = randn(2, 6, 4, 5, dtype=dtype).to(memory_format=torch.channels_last)
            return cases.Chain(
                lambda a, c: torch.relu(a * c) - 1.5, image, randn(6, 1, 1, dtype=dtype)
            )
        case "scalar":
            return cases.Chain(lambda a, s: (a * s + s).neg(), x, randn(1, dtype=dtype)[0])
        case "zero_dim":
            return cases.Chain(lambda a: a.exp() * 2, randn(1, dtype=dtype)[0])
        case _:
            raise AssertionError(name)


NAMES = [
    "gelu",
    "bias",
    "gated",
    "rounded",
    "masked",
    "transposed",
    "channels_last",
    "scalar",
    "zero_dim",
]
EXACT = {"bias", "rounded", "masked", "transposed", "channels_last", "scalar"}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_cpu_kernel_computes_what_eager_does(name, dtype):
    chain = make_chain(name, dtype)
    function = load(chain.kernel)[chain.kernel.entry]
    arguments = chain.arguments()
    expected = function.eager(*arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    results = function.run_cpu(arguments, poisoned_like(expected), parallel=False)
    for result, wanted in zip(results, expected, strict=True):
        if name in EXACT:
            assert differing(result, wanted) == 0
        else:
            # 1 + tanh cancels: the error is that of a number of the operand's size.
            scale = torch.maximum(wanted.abs(), torch.ones_like(wanted)).double()
            error = (result.double() - wanted.double()).abs()
            assert bool((error <= 4 * torch.finfo(dtype).eps * scale).all())
        assert result.stride() == wanted.stride()


def enlarged(tensor, own):
    """One more along the ``own`` dimensions, in the same order of memory."""
    grown = tensor
    for dimension in own:
        grown = torch.cat([grown, grown.narrow(dimension, 0, 1)], dimension)
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    inverse = [order.index(dimension) for dimension in range(tensor.dim())]
    return grown.permute(order).contiguous().permute(inverse)


@pytest.mark.parametrize("name", ["bias", "transposed", "channels_last"])
def test_sizes_are_run_time_values(name):
    chain = make_chain(name)
    function = load(chain.kernel)[chain.kernel.entry]
    arguments = []
    for argument, operand in zip(chain.arguments(), chain.program.inputs, strict=True):
        missing = chain.program.rank - argument.dim()
        axes = [d for group in operand.groups for d in chain.program.groups[group]]
        arguments.append(enlarged(argument, [d - missing for d in axes]))
    expected = function.eager(*arguments)
    assert expected.shape != function.eager(*chain.arguments()).shape
    assert differing(function(*arguments), expected) == 0
    assert function.stats.fallbacks == {}


def test_channels_last_walks_one_axis_per_run_of_memory():
    chain = make_chain("channels_last")
    assert chain.program.groups == ((0, 2, 3), (1,))
    assert [p.groups for p in chain.program.inputs] == [(0, 1), (1,)]


def test_leading_dimension_of_size_one_stays_broadcast():
    chain = cases.Chain(lambda a, b: torch.relu(a + b) * 2, randn(1, 5, 7), randn(5, 7))
    operand = chain.program.inputs[1]
    assert chain.program.groups == ((0,), (1, 2))
    assert operand.groups == (1,)
    function = load(chain.kernel)[chain.kernel.entry]
    batch, bias = randn(4, 5, 7), randn(5, 7, seed=3)
    assert differing(function(batch, bias), function.eager(batch, bias)) == 0
    assert function.stats.fallbacks == {}


def test_integer_and_bool_chain():
    values = torch.randint(-50, 50, (37,), generator=torch.Generator().manual_seed(0))
    chain = cases.Chain(cases.integers, values)
    function = load(chain.kernel)[chain.kernel.entry]
    result = function.run_cpu((values,), parallel=False)[0]
    assert result.dtype == torch.int32
    assert torch.equal(result, cases.integers(values))


def test_run_time_numbers_are_arguments():
    x = randn(6, 7)
    first = cases.Chain(lambda a: torch.relu(a * 0.3) + 1.5, x)
    node = next(n.id for n in first.graph.nodes if n.op == "aten.mul.Tensor")
    chain_program = first.program
    program = lower(
        first.graph, first.candidate, name="fused_chain", runtime_scalars=frozenset([(node, 1)])
    )
    assert [p.kind for p in program.inputs] == ["tensor", "scalar"]
    assert program.inputs[1].value == 0.3
    assert program.inputs[1].position == 1
    assert len(program.statements) > len(chain_program.statements)
    function = load(generate(program, first.graph))["fused_chain"]
    for number in (0.3, -0.7):
        assert differing(function(x, number), torch.relu(x * number) + 1.5) == 0
    assert function.stats.fallbacks == {}


class Overloads(TorchDispatchMode):
    def __init__(self):
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_eager_text_dispatches_exactly_the_captured_overloads(name, dtype):
    chain = make_chain(name, dtype)
    function = load(chain.kernel)[chain.kernel.eager_name]
    members = set(chain.program.nodes)
    arguments = chain.arguments()
    with Overloads() as mode:
        function(*arguments)
    captured = [node.op for node in chain.graph.nodes if node.id in members]
    assert mode.seen == captured


def test_a_number_written_in_place_by_its_own_overload_stays_that_overload():
    """``x.mul_(0.1)`` is mul_.Tensor, which does not round 0.1 to float16 first."""
    x = randn(60, dtype=torch.float16)
    chain = cases.Chain(lambda x: torch.neg(torch.ops.aten.mul_.Scalar(x + 0.0, 0.1)), x)
    function = load(chain.kernel)[chain.kernel.eager_name]
    with Overloads() as mode:
        function(*chain.arguments())
    assert "aten.mul_.Scalar" in mode.seen


@pytest.mark.parametrize("op", ["add_", "sub_"])
def test_a_positional_alpha_is_no_deprecated_call_in_the_eager_text(op):
    """``x.add_(2, 100.0)`` is add_(alpha, other), another overload; a bool it refuses as alpha."""
    overload = getattr(torch.ops.aten, op).Scalar
    chain = cases.Chain(lambda x: torch.relu(overload(x * 2, 2, 100.0)), randn(6))
    function = load(chain.kernel)[chain.kernel.eager_name]
    with Overloads() as mode:
        result = function(*chain.arguments())
    assert f"aten.{op}.Scalar" in mode.seen
    moved = chain.arguments()[0] * 2 + (200.0 if op == "add_" else -200.0)
    assert differing(result, torch.relu(moved)) == 0


def test_eager_text_works_on_meta_tensors_and_with_gradients():
    chain = make_chain("bias")
    function = load(chain.kernel)[chain.kernel.eager_name]
    meta = function(*(a.to("meta") for a in chain.arguments()))
    assert meta.shape == (3, 5, 14)
    arguments = [a.clone().requires_grad_() for a in chain.arguments()]
    function(*arguments).sum().backward()
    assert all(a.grad is not None for a in arguments)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cuda_kernel_compiles_without_a_stray_multiply_add(name, dtype):
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    chain = make_chain(name, dtype)
    for architecture in ((8, 0), (9, 0)):
        ptx = compile_cuda(chain.kernel, architecture)
        assert ".entry" in ptx
        if name in EXACT:
            assert fused_multiply_adds(ptx) == 0


def test_a_sum_of_products_is_not_contracted_on_cuda():
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    chain = cases.Chain(lambda x, y, z: x * y + z / 4.0, randn(8), randn(8), randn(8))
    ptx = compile_cuda(chain.kernel)
    assert fused_multiply_adds(ptx) == 0
    # The plain form would be contracted: the test can tell.
    assert "libdevice.fdiv_rn(z_i, float32(4.0))" in chain.kernel.text
    plain = chain.kernel.text.replace("libdevice.fmul_rn(x_i, y_i)", "x_i * y_i")
    assert plain != chain.kernel.text
    changed = replace(chain.kernel, text=plain, hash=hashlib.sha256(plain.encode()).hexdigest())
    assert fused_multiply_adds(compile_cuda(changed)) > 0


@pytest.mark.parametrize("factor", [2.0, -2.0])
def test_twice_a_product_is_not_contracted_on_cuda(factor):
    # LLVM makes a sum of it, product + product, and takes one of the two into the addition.
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
    chain = cases.Chain(lambda x, y: x * y * factor, randn(8), randn(8))
    assert fused_multiply_adds(compile_cuda(chain.kernel)) == 0


def test_foreign_text_cannot_leave_a_comment_or_become_code():
    chain = make_chain("gated")
    hostile = "x\nimport os\r\u2028'''#\x00"
    nodes = tuple(
        replace(
            node,
            module_path=hostile,
            span=None
            if node.span is None
            else replace(node.span, file=hostile, text="__import__('os').system(a) * b"),
        )
        for node in chain.graph.nodes
    )
    graph = replace(chain.graph, nodes=nodes)
    program = lower(graph, chain.candidate, name="fused\nimport os")
    text = generate(program, graph).text
    assert program.name == "fused_import_os"
    for line in text.splitlines():
        assert line.startswith("#") or not re.search(r"import os|__import__|system", line), line
    assert "\x00" not in text
    assert "\u2028" not in text
    compile(text, "kernel", "exec")
