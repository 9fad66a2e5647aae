"""No fused multiply-add stands where the program has none, in any machine code made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from codegen_cases import Chain, gelu_new, rounded_chain
from golden.golden_kernels import GOLDEN

from fusion_advisor.codegen import generate, lower
from fusion_advisor.records import KernelSource
from fusion_advisor.runtime import cpu_kernels
from fusion_advisor.validation import contractions, cuda_compiler, resources

pytestmark = pytest.mark.essential

needs_toolchain = pytest.mark.skipif(
    bool(cuda_compiler.toolchain_missing()), reason=cuda_compiler.toolchain_missing() or "-"
)


def golden(name: str) -> KernelSource:
    graph, candidate = GOLDEN[name]()
    return generate(lower(graph, candidate, name=f"fused_{name}"), graph)


def changed(kernel: KernelSource, old: str, new: str) -> KernelSource:
    """The kernel with another text, under its true hash."""
    text = kernel.text.replace(old, new)
    assert text != kernel.text
    return replace(kernel, text=text, hash=hashlib.sha256(text.encode()).hexdigest())


def sums_of_products(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x * y + z / 4.0


def sums_of_functions(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    # exp and atanh of libdevice end in a product
    return (torch.exp(x) + y) * (z - torch.exp(-y)) + torch.atanh(z) - (-torch.exp(z)).abs()


def contracted_by_eager(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return torch.add(x, y, alpha=0.3) * z


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_kernels_hold_none(name: str) -> None:
    kernel = golden(name)
    assert contractions.contraction_problem(kernel, "cpu") == ""
    if not cuda_compiler.toolchain_missing():
        assert contractions.contraction_problem(kernel, "cuda") == ""


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (sums_of_products, torch.float64),
        (sums_of_products, torch.bfloat16),
        (sums_of_functions, torch.float32),
        (sums_of_functions, torch.float64),
        (contracted_by_eager, torch.float32),
    ],
)
def test_chains_hold_none_but_eagers_own(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    kernel = Chain(function, *(torch.rand(4, 8).to(dtype) for _ in range(3))).kernel
    own = sum(statement.opcode == "fma" for statement in kernel.program.statements)
    assert (own > 0) == (function is contracted_by_eager)
    assert contractions.asked_for_problem(kernel, kernel.cpu_name) == ""
    seen = contractions.cpu_contractions(kernel)
    assert seen.problem == ""
    assert (seen.found > 0) == (own > 0 or function is sums_of_functions)
    if cuda_compiler.toolchain_missing():
        return
    assert contractions.contraction_problem(kernel, "cuda") == ""
    if function is not sums_of_functions:
        seen = contractions.cuda_contractions(cuda_compiler.compile_cuda(kernel))
        assert seen.in_ptx == own


@needs_toolchain
def test_with_contraction_forbidden_float32_maths_holds_as_many() -> None:
    """NVVM's own switch as a second yardstick, beside the one that the check counts against."""
    from numba.cuda.cudadrv import nvvm

    for function in (gelu_new, sums_of_functions):
        arguments = [torch.rand(4, 8) for _ in range(1 if function is gelu_new else 3)]
        compiled = cuda_compiler.compile_cuda(Chain(function, *arguments).kernel)
        strict = nvvm.compile_ir(
            list(compiled.modules), fastmath=False, opt=3, arch="compute_90", fma=0
        ).decode()
        count = len(contractions.PTX_FMA.findall(compiled.ptx))
        assert count == len(contractions.PTX_FMA.findall(strict)) > 0


def test_only_more_multiply_adds_than_uncontracted_are_stray() -> None:
    def problem(found: int, uncontracted: int) -> str:
        return contractions.CudaContractions((), found, uncontracted, "").problem

    assert "holds 1 fused multiply-adds that neither" in problem(3, 2)
    assert problem(2, 2) == problem(1, 2) == ""  # a constant was folded


# --- planted ------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True])
def test_a_cpu_kernel_that_llvm_may_contract_is_caught(
    parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Chain(sums_of_products, *(torch.rand(4, 8) for _ in range(3))).kernel
    threads = torch.get_num_threads()  # Numba's OpenMP layer, once loaded, sets those of torch
    seen = contractions.cpu_contractions(kernel, parallel=parallel)
    assert (seen.found, seen.uncontracted, seen.problem) == (0, 0, "")
    options = {**cpu_kernels._OPTIONS, "fastmath": {"contract"}}
    monkeypatch.setattr(cpu_kernels, "_OPTIONS", options)
    seen = contractions.cpu_contractions(kernel, parallel=parallel)
    torch.set_num_threads(threads)
    assert seen.found > 0 == seen.uncontracted
    assert "with contraction forbidden" in seen.problem


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [
        ("cpu", "mul = x_i * y_i", "mul = cpu_math.fma(x_i, y_i, float32(0.0))"),
        ("cuda", "libdevice.fmul_rn(x_i, y_i)", "libdevice.fmaf_rn(x_i, y_i, float32(0.0))"),
    ],
)
def test_a_text_that_asks_for_one_itself_is_caught(target: Any, old: str, new: str) -> None:
    kernel = Chain(sums_of_products, *(torch.rand(4, 8) for _ in range(3))).kernel
    problem = contractions.contraction_problem(changed(kernel, old, new), target)
    assert "asks for 1 fused multiply-adds, its program for 0" in problem


@needs_toolchain
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("libdevice.fmul_rn(x_i, y_i)", "x_i * y_i", "a product is added"),
        ("libdevice.fdiv_rn(z_i, float32(4.0))", "z_i / float32(4.0)", "sm_80"),
    ],
)
def test_a_product_that_nvvm_may_contract_is_caught(old: str, new: str, says: str) -> None:
    kernel = Chain(sums_of_products, *(torch.rand(4, 8) for _ in range(3))).kernel
    assert says in contractions.contraction_problem(changed(kernel, old, new), "cuda")


@needs_toolchain
def test_a_functions_last_product_that_nvvm_contracts_is_caught() -> None:
    kernel = Chain(sums_of_functions, *(torch.rand(4, 8) for _ in range(3))).kernel
    wrong = changed(kernel, "libdevice.fadd_rn(exp_1, y_i)", "exp_1 + y_i")
    assert "neither an op nor maths" in contractions.contraction_problem(wrong, "cuda")


@needs_toolchain
@pytest.mark.skipif(resources.disassembler() is None, reason="nvdisasm is not installed")
def test_what_the_assembler_contracts_is_caught() -> None:
    """PTX with a product and a sum that ptxas may join, beside its twin that it may not."""
    compiled = cuda_compiler.compile_cuda(
        Chain(lambda x, y, z: x * y + z, *(torch.rand(4, 8) for _ in range(3))).kernel
    )
    seen = contractions.cuda_contractions(compiled)
    loose = compiled.ptx.replace("mul.rn.f32", "mul.f32").replace("add.rn.f32", "add.f32")
    assert loose != compiled.ptx
    tool = resources.disassembler()
    assert tool is not None
    for ptx, wrong in ((compiled.ptx, False), (loose, True)):
        disassembly = contractions.Disassembly(replace(compiled, ptx=ptx), seen, tool)
        try:
            assert ("the assembler made" in disassembly.problem()) is wrong
        finally:
            disassembly.close()


def test_a_kernel_that_tells_of_zero_divisors_is_looked_through() -> None:
    kernel = Chain(lambda x, y: x % y + 1, torch.arange(8), torch.arange(1, 9)).kernel
    assert kernel.program.checks_divisors
    assert contractions.contraction_problem(kernel, "cpu") == ""
    assert not contractions.cpu_contractions(kernel).products


def test_the_answer_is_kept_by_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Chain(rounded_chain, torch.rand(4), torch.rand(4)).kernel
    assert contractions.contraction_problem(kernel, "cpu") == ""
    monkeypatch.setattr(contractions, "cpu_contractions", None)
    assert contractions.contraction_problem(kernel, "cpu") == ""
    assert contractions.contraction_problem(replace(kernel, cuda_name=""), "cuda") == ""
