"""Hand-written kernel texts in the form that code generation gives them."""

from __future__ import annotations

from typing import Any

from fusion_advisor.runtime.loading import load_kernel, text_hash

HEADER = """\
import torch
from numba import float32, float64, int64, prange, uint16, uint32
from fusion_advisor.runtime import (
    FusedFunction, Operand, Output, cpu_kernel, cpu_math, cuda, cuda_math, libdevice,
)
"""

GELU = (
    HEADER
    + """
def eager_gelu(x):
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))

@cuda.jit
def gelu_cuda(x, out, n):
    i = uint32(cuda.grid(1))
    if i < n:
        v = x[i]
        cube = libdevice.fmul_rn(libdevice.fmul_rn(v, v), v)
        inner = libdevice.fmul_rn(float32(0.7978845608028654),
                                  v + libdevice.fmul_rn(float32(0.044715), cube))
        out[i] = libdevice.fmul_rn(libdevice.fmul_rn(float32(0.5), v),
                                   float32(1.0) + libdevice.tanhf(inner))

@cpu_kernel
def gelu_cpu(x, out):
    for i in prange(out.size):
        v = x[i]
        inner = float32(0.7978845608028654) * (v + float32(0.044715) * (v * v * v))
        out[i] = float32(0.5) * v * (float32(1.0) + cpu_math.tanh(inner))

fused_gelu = FusedFunction(
    "fused_gelu", eager=eager_gelu, cpu=gelu_cpu, cuda=gelu_cuda, rank=3, groups=((0, 1, 2),),
    operands=(Operand("x", "float32", (0,)),), outputs=(Output("out", "float32"),))
"""
)

# relu(x + bias) * y + z, bias along the last dimension.
BIAS = (
    HEADER
    + """
def eager_bias(x, bias, y, z):
    return torch.relu(x + bias) * y + z

@cpu_kernel
def bias_cpu(x, bias, y, z, out):
    for row in prange(out.shape[0]):
        for column in range(out.shape[1]):
            t = x[row, column] + bias[column]
            t = cpu_math.maximum(t, float32(0.0))
            out[row, column] = t * y[row, column] + z[row, column]

@cuda.jit
def bias_cuda(x, bias, y, z, out, n0, n1):
    i = uint32(cuda.grid(1))
    if i < uint32(n0 * n1):
        t = x[i] + bias[uint32(i % n1)]
        t = t if not (t < float32(0.0)) else float32(0.0)
        out[i] = libdevice.fmul_rn(t, y[i]) + z[i]

fused_bias = FusedFunction(
    "fused_bias", eager=eager_bias, cpu=bias_cpu, cuda=bias_cuda, rank=3, groups=((0, 1), (2,)),
    operands=(Operand("x", "float32", (0, 1)), Operand("bias", "float32", (1,)),
              Operand("y", "float32", (0, 1)), Operand("z", "float32", (0, 1), "strided")),
    outputs=(Output("out", "float32"),))
"""
)

# channels_last: walked as batch, height, width, channel; a scale per channel.
CHANNELS = (
    HEADER
    + """
def eager_channels(x, scale):
    return torch.sigmoid(x * scale)

@cpu_kernel
def channels_cpu(x, scale, out):
    for row in prange(out.shape[0]):
        for column in range(out.shape[1]):
            out[row, column] = cpu_math.sigmoid(x[row, column] * scale[column])

fused_channels = FusedFunction(
    "fused_channels", eager=eager_channels, cpu=channels_cpu, rank=4, groups=((0, 2, 3), (1,)),
    operands=(Operand("x", "float32", (0, 1)), Operand("scale", "float32", (1,))),
    outputs=(Output("out", "float32"),))
"""
)

# 16-bit floats with a rounding after every op, and a second, boolean output.
SWIGLU = (
    HEADER
    + """
def eager_swiglu(gate, up):
    product = torch.nn.functional.silu(gate) * up
    return product, product > 0

@cpu_kernel
def swiglu_cpu(gate, up, out, positive):
    for i in prange(out.size):
        g = cpu_math.DTYPE_to_f32(gate[i])
        s = cpu_math.f32_to_DTYPE(g / (float32(1.0) + cpu_math.exp(-g)))
        p = cpu_math.DTYPE_to_f32(s) * cpu_math.DTYPE_to_f32(up[i])
        bits = cpu_math.f32_to_DTYPE(p)
        out[i] = bits
        positive[i] = cpu_math.DTYPE_to_f32(bits) > float32(0.0)

fused_swiglu = FusedFunction(
    "fused_swiglu", eager=eager_swiglu, cpu=swiglu_cpu, rank=2, groups=((0, 1),),
    operands=(Operand("gate", "TORCH", (0,)), Operand("up", "TORCH", (0,))),
    outputs=(Output("out", "TORCH"), Output("positive", "bool")))
"""
)

# A run-time number and a tensor of no dimensions.
SCALED = (
    HEADER
    + """
def eager_scaled(x, shift, factor):
    return (x + shift) * factor

@cpu_kernel
def scaled_cpu(x, shift, out, factor):
    for i in prange(out.size):
        out[i] = (x[i] + shift[0]) * float32(factor)

fused_scaled = FusedFunction(
    "fused_scaled", eager=eager_scaled, cpu=scaled_cpu, rank=2, groups=((0, 1),),
    operands=(Operand("x", "float32", (0,)), Operand("shift", "float32", ())),
    outputs=(Output("out", "float32"),), scalars=(("factor", "float64"),))
"""
)

# The product has a gradient to both inputs, the square root to one.
TWO = (
    HEADER
    + """
def eager_two(x, y):
    return x * y, torch.exp(y)

@cpu_kernel
def two_cpu(x, y, product, power):
    for i in prange(product.size):
        product[i] = x[i] * y[i]
        power[i] = cpu_math.exp(y[i])

fused_two = FusedFunction(
    "fused_two", eager=eager_two, cpu=two_cpu, rank=1, groups=((0,),),
    operands=(Operand("x", "float64", (0,)), Operand("y", "float64", (0,))),
    outputs=(Output("product", "float64"), Output("power", "float64")))
"""
)


def half(text: str, short: str, dtype: str) -> str:
    """The SWIGLU text for one 16-bit dtype: ("bf16", "bfloat16") or ("f16", "float16")."""
    return text.replace("DTYPE", short).replace("TORCH", dtype)


def load(text: str) -> dict[str, Any]:
    """The namespace of a sample text; every call imports a text of its own (own counters)."""
    load.count += 1  # type: ignore[attr-defined]
    text = f"# sample {load.count}\n{text}"  # type: ignore[attr-defined]
    entry = text[text.rindex("\nfused_") + 1 :].split(" = ")[0]
    namespace = load_kernel(text, entry, text_hash(text))
    return {**namespace, "fused": namespace[entry], "entry": entry, "text": text}


load.count = 0  # type: ignore[attr-defined]
