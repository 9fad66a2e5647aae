"""Rounding to float16 in compiled kernels, whatever made the number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusion_advisor import workers

ODD = ("tanh", "sinh", "erf", "expm1", "asinh", "sign_of")


def kernel_results(payload: tuple[str, list[float]]) -> list[float]:
    """A float64, rounded to float16, through a function of its sign, rounded again."""
    import numba
    import numpy as np
    from numba import float32

    from fusion_advisor.runtime import cpu_math

    name, values = payload
    apply: Any = getattr(cpu_math, name, None)
    if apply is None:
        inner = cpu_math.copysign

        @numba.njit
        def apply(x: Any) -> Any:
            return inner(float32(1.5), x)

    narrow, widen = cpu_math.f32_to_f16, cpu_math.f16_to_f32

    @numba.njit(error_model="numpy")
    def kernel(x: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = narrow(apply(widen(narrow(float32(x[i])))))

    x = np.array(values)
    out = np.empty(x.size, np.uint16)
    kernel(x, out)
    return [float(one) for one in out.view(np.float16)]


@pytest.mark.parametrize("name", ODD)
def test_the_sign_of_a_rounded_float64_reaches_a_rounded_result(name: str) -> None:
    """In another process: LLVM called a function that is not there, which aborts."""
    values = [0.0, -0.0, 0.3, -0.3, 1.0, -2.5, 1e-9, -1e-9, 7.0001, -3e4]
    found = workers.run_isolated("test_runtime_half:kernel_results", (name, values), timeout_s=120)
    x = torch.tensor(values, dtype=torch.float64).half()
    one = torch.tensor(1.5)
    expected = (
        torch.copysign(one, x.float()) if name == "sign_of" else getattr(torch, name)(x.float())
    )
    result = torch.tensor(found).half()
    assert torch.equal(torch.signbit(result), torch.signbit(expected))
    assert torch.allclose(result.double(), expected.half().double(), rtol=1e-3, atol=1e-7)
