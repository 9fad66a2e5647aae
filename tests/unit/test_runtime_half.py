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


def whole_numbers_through_float16(_: None) -> list[float]:
    """A strided loop of float16, whole numbers of 8 bits, and float16 again."""
    import numpy as np
    from numba import float32, int64, prange, uint8

    from fusion_advisor.runtime import cpu_math
    from fusion_advisor.runtime.cpu_kernels import compiled_twin

    narrow, widen = cpu_math.f32_to_f16, cpu_math.f16_to_f32

    def kernel(x: Any, whole: Any, out: Any) -> None:
        for i in prange(out.size):
            number = uint8(int64(widen(x[i])))
            whole[i] = number
            out[i] = narrow(float32(number))

    x = np.arange(40, dtype=np.float16).view(np.uint16)[::2]
    whole, out = np.empty(20, np.uint8), np.empty(20, np.uint16)
    compiled_twin(kernel, parallel=False)(x, whole, out)
    assert (whole == np.arange(0, 40, 2)).all()
    return [float(one) for one in out.view(np.float16)]


def test_vectors_of_two_are_rounded_too() -> None:
    """In another process: LLVM gave up on them, which aborts."""
    found = workers.run_isolated(
        "test_runtime_half:whole_numbers_through_float16", None, timeout_s=120
    )
    assert found == [float(number) for number in range(0, 40, 2)]


def rounded_in_one_step(values: list[float]) -> list[float]:
    """The library function that LLVM calls, on float64s."""
    import ctypes

    import llvmlite.binding as llvm

    import fusion_advisor.runtime.intrinsics  # noqa: F401  (provides it)

    text = """
    declare half @__truncdfhf2(double)
    define i16 @bits(double %x) {
      %half = call half @__truncdfhf2(double %x)
      %bits = bitcast half %half to i16
      ret i16 %bits
    }
    """
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    bits = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_double)(engine.get_function_address("bits"))
    return [float(bits(value)) for value in values]


def test_a_float64_is_rounded_to_float16_once() -> None:
    tie = 1.0 + 2.0**-11  # between two float16
    values = [
        0.0, -0.0, 1.0, tie, tie + 2.0**-40, tie - 2.0**-40, tie + 2.0**-11, -tie - 2.0**-40,
        65504.0, 65519.99, 65520.0, -1e300, 2.0**-25, 2.0**-25 + 2.0**-60, 2.0**-26, 5e-324,
        float("inf"), -float("inf"), 1 / 3,
    ]  # fmt: skip
    found = workers.run_isolated("test_runtime_half:rounded_in_one_step", values, timeout_s=120)
    import numpy as np

    expected = np.array(values).astype(np.float16).view(np.uint16)
    assert [int(one) for one in found] == [int(one) for one in expected]
