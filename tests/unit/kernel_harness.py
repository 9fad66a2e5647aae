"""Loads generated modules, runs their CPU kernels and compiles their CUDA kernels offline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fusion_advisor.records import FusedProgram, KernelSource
from fusion_advisor.runtime import load_kernel

_INTEGER_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def load(kernel: KernelSource) -> dict[str, Any]:
    """The namespace of a generated module."""
    return load_kernel(kernel.text, kernel.entry, kernel.hash)


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Representable values between two float tensors; NaN equals NaN, -0.0 is 1 from 0.0."""
    bits = _INTEGER_BITS[a.dtype]

    def ordered(t: torch.Tensor) -> torch.Tensor:
        raw = t.contiguous().view(bits).long()
        if bits == torch.int64:
            return torch.where(raw < 0, torch.iinfo(bits).min - raw - 1, raw)
        return torch.where(raw < 0, torch.iinfo(bits).min - raw - 1, raw)

    distance = (ordered(a) - ordered(b)).abs()
    both_nan = a.isnan() & b.isnan()
    return torch.where(both_nan, torch.zeros_like(distance), distance)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements are not the same bits (any NaN equals any NaN)."""
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.is_floating_point():
        return int((ulp_distance(a, b) != 0).sum())
    return int((a != b).sum())


def has_transcendental(program: FusedProgram) -> bool:
    """Whether results may differ from eager by an ULP or two."""
    inexact = set(
        "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
        "acosh atanh erf erfc hypot pow sqrt".split()
    )
    return any(statement.opcode in inexact for statement in program.statements)


def _cuda_types(kernel: KernelSource) -> Any:
    from numba.cuda import types

    def array(dtype: str) -> Any:
        half = dtype in ("bfloat16", "float16")
        return types.Array(getattr(types, "uint16" if half else _numba_name(dtype)), 1, "C")

    program = kernel.program
    tensors = [p for p in program.inputs if p.kind == "tensor"]
    arguments = [array(p.dtype) for p in tensors]
    arguments += [array(output.dtype) for output in program.outputs]
    arguments += [types.uint32] * sum(len(space.groups) for space in program.spaces)
    arguments += [types.uint32 for p in tensors if p.layout == "strided" for _ in p.groups]
    arguments += [getattr(types, p.dtype) for p in program.inputs if p.kind == "scalar"]
    return types.void(*arguments)


def _numba_name(dtype: str) -> str:
    return "boolean" if dtype == "bool" else dtype


def compile_cuda(kernel: KernelSource, cc: tuple[int, int] = (9, 0)) -> str:
    """PTX of the CUDA kernel, without a device."""
    from numba import cuda

    function = load(kernel)[kernel.cuda_name].py_func
    ptx, _ = cuda.compile(function, _cuda_types(kernel), cc=cc, device=False, abi="numba")
    return str(ptx)


def fused_multiply_adds(ptx: str) -> int:
    """Contracted multiply-adds on floats in PTX."""
    return len(re.findall(r"\bfma\.rn\.f(?:32|64)\b", ptx))


def poisoned_like(results: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Outputs of the same layout, filled with what no kernel should leave behind."""
    poisoned = []
    for result in results:
        fresh = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype)
        poison = 12345.0 if fresh.is_floating_point() else True if fresh.dtype == torch.bool else 77
        poisoned.append(fresh.fill_(poison))
    return tuple(poisoned)


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()
