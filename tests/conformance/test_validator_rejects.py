"""The validator is tested by kernels that are wrong: each must be rejected, at the right rung."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import validation_kernels as kernels

from fusion_advisor.validation import cuda_compiler, resources, toolchain_missing

pytestmark = pytest.mark.essential

_NATIVE = "CUDA kernel, run natively"
_NO_TOOLCHAIN = toolchain_missing()
needs_toolchain = pytest.mark.skipif(bool(_NO_TOOLCHAIN), reason=_NO_TOOLCHAIN or "present")


def _failed_rung(result: Any) -> tuple[str, str]:
    assert result.status == "failed", [
        (rung.name, rung.status, rung.detail) for rung in result.rungs
    ]
    failed = [rung for rung in result.rungs if rung.status == "failed"]
    assert len(failed) == 1
    after = result.rungs[result.rungs.index(failed[0]) + 1 :]
    assert all(rung.status == "not run" for rung in after)
    return failed[0].name, failed[0].detail


# name, problem, the change to the CUDA text, what the message must say
_CUDA_PLANTS = [
    (
        "zeros",
        kernels.bias_relu_scale,
        ("out[i] = libdevice.fmul_rn(t, y[i]) + y[i]", "out[i] = float32(0.0)"),
        "wrong elements",
    ),
    (
        "skipped tail",
        kernels.tanh_scale,
        ("if i < n0:", "if i < uint32(uint32(n0 // uint32(256)) * uint32(256)):"),
        "unwritten",
    ),
    (
        "one element too many",
        kernels.tanh_scale,
        ("if i < n0:", "if i <= n0:"),
        "memory that is not its own",
    ),
    (
        "no bounds check",
        kernels.tanh_scale,
        ("if i < n0:", "if n0 > uint32(0):"),
        "memory that is not its own",
    ),
    (
        "writes before the start",
        kernels.tanh_scale,
        ("        out[i] =",
         "        if i == 0:\n            out[-out.size - 3] = x[0]\n        out[i] ="),
        "before the start",
    ),
    (
        "a race between threads",
        kernels.tanh_scale,
        ("        out[i] =", "        if i == 0:\n            out[-1] = x[0]\n        out[i] ="),
        "wrong elements",
    ),
    (
        "neighbour's element",
        kernels.tanh_scale,
        ("libdevice.tanhf(x[i]", "libdevice.tanhf(x[uint32(i ^ uint32(1)) if i + 1 < n0 else i]"),
        "wrong elements",
    ),
    (
        "swapped operands",
        kernels.scaled_add,
        ("libdevice.fmaf(v, float32(2.0), x[i]) - v",
         "libdevice.fmaf(x[i], float32(2.0), v) - x[i]"),
        "wrong elements",
    ),
    (
        "strides ignored",
        kernels.scaled_add,
        ("uint32(uint32(row * y_row) + uint32(column * y_column))", "i"),
        "wrong elements",
    ),
    (
        "wrong broadcast dimension",
        kernels.bias_relu_scale,
        ("column = uint32(i % n1)", "column = uint32(uint32(i // n1) % n1)"),
        "wrong elements",
    ),
    (
        "dropped NaN",
        kernels.bias_relu_scale,
        ("t = float32(0.0) if t < float32(0.0) else t",
         "t = t if t > float32(0.0) else float32(0.0)"),
        "wrong elements",
    ),
    (
        "sign of zero lost",
        kernels.bias_relu_scale,
        ("t = float32(0.0) if t < float32(0.0) else t",
         "t = float32(0.0) if t <= float32(0.0) else t"),
        "wrong elements",
    ),
    (
        "missing bfloat16 rounding",
        kernels.bfloat16_affine,
        ("cuda_math.bf16_to_f32(cuda_math.f32_to_bf16(libdevice.fmul_rn(a, b)))",
         "libdevice.fmul_rn(a, b)"),
        "wrong elements",
    ),
    (
        "truncated instead of rounded",
        kernels.bfloat16_affine,
        ("out[i] = cuda_math.f32_to_bf16(product + a)",
         "out[i] = cuda_math.f32_to_bf16(product + a) & 0xFFFE"),
        "wrong elements",
    ),
    (
        "one ULP too many",
        kernels.bias_relu_scale,
        ("t = x[i] + bias[column]", "t = (x[i] + bias[column]) * float32(1.0000001)"),
        "",
    ),
    (
        "a few ULP too many of tanh",
        kernels.tanh_scale,
        ("libdevice.tanhf(x[i] + float32(1.0))",
         "libdevice.fmul_rn(libdevice.tanhf(x[i] + float32(1.0)), float32(1.000001))"),
        "wrong elements",
    ),
    (
        "stale output",
        kernels.tanh_scale,
        ("        out[i] =", "        if x[i] != float32(0.5):\n            out[i] ="),
        "unwritten",
    ),
    (
        "accumulates into its output",
        kernels.tanh_scale,
        ("float32(0.5) * libdevice.tanhf(x[i] + float32(1.0))",
         "libdevice.fadd_rn(out[i], libdevice.tanhf(x[i] + float32(1.0)))"),
        "depend on what its memory held",
    ),
    (
        "mutated input",
        kernels.scaled_add,
        ("        out[i] =", "        x[i] = x[i] + float32(0.0)\n        y[0] = float32(9.0)\n"
         "        out[i] ="),
        "changed its input",
    ),
]  # fmt: skip


@needs_toolchain
@pytest.mark.parametrize(
    ("make", "change", "says"),
    [pytest.param(*plant[1:], id=plant[0]) for plant in _CUDA_PLANTS],
)
def test_wrong_cuda_kernel_is_rejected(
    make: Any, change: tuple[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One architecture's IR is run, and machine code is looked through only for what passed.
    monkeypatch.setattr(cuda_compiler, "ARCHITECTURES", cuda_compiler.ARCHITECTURES[-1:])
    monkeypatch.setattr(resources, "disassembler", lambda: None)
    result = kernels.validate(make().mutated(change), targets=("cuda",))
    rung, detail = _failed_rung(result)
    assert rung == _NATIVE
    assert says in detail


@needs_toolchain
@pytest.mark.parametrize(
    "instead",
    [
        pytest.param("(v + x[i])", id="ignored alpha"),
        pytest.param(
            "(libdevice.fmul_rn(v, float32(2.0)) + x[i])", id="alpha without eager's own FMA"
        ),
    ],
)
def test_missing_contraction_is_rejected_before_running(instead: str) -> None:
    wrong = kernels.scaled_add().mutated(("libdevice.fmaf(v, float32(2.0), x[i])", instead))
    rung, detail = _failed_rung(kernels.validate(wrong, targets=("cuda",)))
    assert rung == "no stray FMA"
    assert "asks for 0 fused multiply-adds, its program for 1" in detail


@needs_toolchain
def test_stray_contraction_is_rejected_before_running() -> None:
    wrong = kernels.bias_relu_scale().mutated(("libdevice.fmul_rn(t, y[i])", "t * y[i]"))
    rung, detail = _failed_rung(kernels.validate(wrong, targets=("cuda",)))
    assert rung == "no stray FMA"
    assert "fmul_rn" in detail


@needs_toolchain
def test_kernel_that_does_not_compile_is_rejected() -> None:
    wrong = kernels.tanh_scale().mutated(("libdevice.tanhf(", "libdevice.no_such("))
    rung, _ = _failed_rung(kernels.validate(wrong, targets=("cuda",)))
    assert rung == "compile for sm_80"


@pytest.mark.parametrize(
    ("make", "change", "rung", "says"),
    [
        pytest.param(
            kernels.tanh_scale,
            ("        out[i] = float32(0.5) * cpu_math", "        if i > 0:\n            out[i] ="
             " float32(0.5) * cpu_math"),
            "CPU kernel", "unwritten", id="first element unwritten",
        ),
        pytest.param(
            kernels.bias_relu_scale,
            ("t * y[row, column] + y[row, column]", "t * y[row, column] + t"),
            "CPU kernel", "wrong elements", id="wrong operand",
        ),
        pytest.param(
            kernels.tanh_scale,
            ("for i in prange(out.size):", "for i in prange(out.size + 1):"),
            "CPU kernel", "memory that is not its own", id="past the end",
        ),
        pytest.param(
            kernels.tanh_scale,
            ("    return 0.5 * torch.tanh(x + 1.0)", "    return 0.5 * torch.tanh(x + 1.5)"),
            "eager text", "differs", id="another eager chain",
        ),
        pytest.param(
            kernels.tanh_scale,
            ("    return 0.5 * torch.tanh(x + 1.0)",
             "    return (0.5 * torch.tanh(x + 1.0)).double()"),
            "eager text", "dtype", id="wrong dtype",
        ),
        pytest.param(
            kernels.tanh_scale,
            ("    return 0.5 * torch.tanh(x + 1.0)",
             "    return (0.5 * torch.tanh(x + 1.0)).t().contiguous().t()"),
            "eager text", "strides", id="wrong strides",
        ),
        pytest.param(
            kernels.tanh_scale, ("import torch\n", "import torch\nimport os\n"),
            "program", "os", id="foreign import",
        ),
        pytest.param(
            kernels.tanh_scale, ("def eager_chain", "def eager_other"),
            "program", "eager_chain", id="missing name",
        ),
    ],
)  # fmt: skip
def test_wrong_module_is_rejected(make: Any, change: tuple[str, str], rung: str, says: str) -> None:
    result = kernels.validate(make().mutated(change), targets=("cpu",), measure=False)
    name, detail = _failed_rung(result)
    assert name == rung
    assert says in detail


def test_a_function_that_draws_random_numbers_or_loses_gradients_is_rejected() -> None:
    from dataclasses import replace

    right = kernels.tanh_scale()
    random = right.mutated(
        ("    return 0.5 * torch.tanh(x + 1.0)",
         "    if x.device.type != 'meta':\n        torch.rand(1)\n"
         "    return 0.5 * torch.tanh(x + 1.0)"),
        ("cpu=chain_cpu, ", ""),
    )  # fmt: skip
    # Without a CPU kernel every call falls back: the guards rung must not pass it as fused.
    result = kernels.validate(random, targets=("cpu",), measure=False)
    assert result.status == "failed"
    edited = replace(right, kernel=replace(right.kernel, text=right.kernel.text + "\n# x\n"))
    rung, detail = _failed_rung(kernels.validate(edited))
    assert rung == "program"
    assert "SHA-256" in detail
