"""Device functions for CUDA kernels: 16-bit floats as uint16 bit patterns, to and from float32.

Each is a plain Python function (the simulator's body) with a typing and a lowering registered in
numba-cuda, which, unlike ``@overload``, compiles on a machine without a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fusion_advisor.runtime.cuda_support import HAVE_NUMBA_CUDA
from fusion_advisor.runtime.integer_math import (  # noqa: F401 - part of this module too
    divisor,
    floordiv,
    gcd,
    lcm,
    ldexp,
    power,
    shift_left,
    shift_right,
    truncdiv,
)


def bf16_to_f32(bits: Any) -> Any:
    """The bfloat16 with these 16 bits, as float32 (exact)."""
    return np.array([int(bits) << 16], np.uint32).view(np.float32)[0]


def f32_to_bf16(x: Any) -> Any:
    """The bits of the bfloat16 nearest to a float32, half to even (cvt.rn, sm_80 and later)."""
    if x != x:
        return np.uint16(0x7FFF)  # what the hardware gives
    bits = int(np.float32(x).view(np.uint32))
    return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def f16_to_f32(bits: Any) -> Any:
    """The float16 with these 16 bits, as float32 (exact)."""
    return np.float32(np.uint16(bits).view(np.float16))


def f32_to_f16(x: Any) -> Any:
    """The bits of the float16 nearest to a float32, half to even."""
    with np.errstate(all="ignore"):
        return np.float16(x).view(np.uint16)


def _register() -> None:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.cudadecl import registry as typing_registry
    from numba.cuda.cudaimpl import registry as lowering_registry
    from numba.cuda.typing.templates import AbstractTemplate, signature

    half, single = ir.IntType(16), ir.FloatType()

    def instruction(text: str, constraints: str, result: Any, argument: Any) -> Any:
        kind = ir.FunctionType(result, [argument])

        def lower(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.call(ir.InlineAsm(kind, text, constraints), args)

        return lower

    def widen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(args[0], word), word(16)), single)

    def register(function: Any, argument: Any, result: Any, lower: Any) -> None:
        class Template(AbstractTemplate):  # type: ignore[misc]  # numba-cuda is untyped
            key = function

            def generic(self, args: Any, kws: Any) -> Any:
                return signature(result, argument) if len(args) == 1 and not kws else None

        typing_registry.register_global(function, types.Function(Template))
        lowering_registry.lower(function, argument)(lower)

    register(bf16_to_f32, types.uint16, types.float32, widen)
    register(
        f32_to_bf16,
        types.float32,
        types.uint16,
        instruction("cvt.rn.bf16.f32 $0, $1;", "=h,f", half, single),
    )
    register(
        f16_to_f32,
        types.uint16,
        types.float32,
        instruction("cvt.f32.f16 $0, $1;", "=f,h", single, half),
    )
    register(
        f32_to_f16,
        types.float32,
        types.uint16,
        instruction("cvt.rn.f16.f32 $0, $1;", "=h,f", half, single),
    )


if HAVE_NUMBA_CUDA:
    _register()
