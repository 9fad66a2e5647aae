"""The generated kernels of one call, ready to run on arrays of this process.

The CPU kernel is the one that a fused function would call; the CUDA kernel is its own NVVM IR
translated for this CPU, libdevice and all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import maths_digest
import numpy as np
import torch
from swept_calls import SweptCall, X, Y

from fusion_advisor.codegen import generate, lower
from fusion_advisor.codegen.naming import name_problem
from fusion_advisor.errors import FusionAdvisorError
from fusion_advisor.records import (
    Argument,
    FusionCandidate,
    KernelSource,
    OperandMap,
    OpGraph,
    OpNode,
    Symbol,
    TensorSpec,
    ValueRef,
)
from fusion_advisor.runtime import load_kernel
from fusion_advisor.validation.arrays import numpy_dtype
from fusion_advisor.validation.cuda_compiler import compile_cuda, toolchain_missing
from fusion_advisor.validation.native_module import NativeKernel, translate

ARCHITECTURE = (9, 0)  # whose IR is run natively
BLOCK = 256
_BITS = {torch.float16: np.uint16, torch.bfloat16: np.uint16}
Run = Callable[..., None]


class NotSwept(Exception):
    """Why a call has no kernel on a target."""


@dataclass(frozen=True)
class Kernel:
    """``run(operands, outputs)`` on contiguous arrays; ``digest`` names what was compiled."""

    digest: str
    outputs: tuple[np.dtype, ...]
    prepare: Callable[[], Run]


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """The array a kernel takes: 16-bit floats as their bit patterns."""
    if tensor.dtype in _BITS:
        tensor = tensor.view(torch.int16)
        return tensor.numpy().view(np.uint16)
    return tensor.numpy()


def source_of(call: SweptCall, dtype: torch.dtype) -> KernelSource:
    """The generated module of a call; raises ``NotSwept`` where the package refuses it."""
    tensors = [torch.full((64,), 0.5, dtype=dtype) for _ in range(call.arity)]
    try:
        results = call.results(*tensors)
        graph = _graph(call, tensors, results)
        candidate = FusionCandidate(
            id="C1", nodes=("n0",), outputs=graph.outputs, shape=(64,),
            inputs=tuple(OperandMap(value=name, dims=(0,)) for name in graph.inputs),
        )  # fmt: skip
        base = call.op.split(".")[1]
        name = f"{base}_op" if name_problem(base) else base
        return generate(lower(graph, candidate, name=name), graph)
    except (FusionAdvisorError, RuntimeError, NotImplementedError) as error:
        raise NotSwept(f"{type(error).__name__}: {error}") from error


def _graph(
    call: SweptCall, tensors: list[torch.Tensor], results: tuple[torch.Tensor, ...]
) -> OpGraph:
    """The call as the only node of a graph, as if it had been recorded."""
    names = (X, Y)[: len(tensors)]
    made = tuple(f"r{number}" for number in range(len(results)))
    specs = tuple(
        TensorSpec(
            id=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape),
            strides=tuple(tensor.stride()), storage=storage,
        )
        for storage, (name, tensor) in enumerate(
            zip((*names, *made), (*tensors, *results), strict=True)
        )
    )  # fmt: skip
    kwargs = ((key, _argument(value, names)) for key, value in call.kwargs)
    node = OpNode(
        id="n0", index=0, op=call.op, args=tuple(_argument(arg, names) for arg in call.args),
        kwargs=tuple(kwargs), inputs=names, outputs=made, kind=call.info.kind,
    )  # fmt: skip
    return OpGraph(nodes=(node,), values=specs, inputs=names, outputs=made)


def _argument(value: Any, names: tuple[str, ...]) -> Argument:
    if isinstance(value, str) and value in names:
        return ValueRef(value=value)
    if isinstance(value, torch.dtype):
        return Symbol(kind="dtype", name=str(value).removeprefix("torch."))
    found: Argument = value
    return found


def kernel(call: SweptCall, source: KernelSource, target: str) -> Kernel:
    """The kernel of one target."""
    outputs = tuple(numpy_dtype(output.dtype) for output in source.program.outputs)
    tensors = [operand for operand in source.program.inputs if operand.kind == "tensor"]
    if len(tensors) != call.arity or any(operand.groups != (0,) for operand in tensors):
        raise NotSwept("its kernel does not read its operands element by element")
    if target == "cpu":
        single = all(operand.dtype != "float64" for operand in tensors)
        digest = maths_digest.digest(_kernel_text(source, "cpu"), single=single)
        return Kernel(digest, outputs, lambda: _cpu(source))
    missing = toolchain_missing()
    if missing:
        raise NotSwept(missing)
    compiled = compile_cuda(source, ARCHITECTURE)
    host = translate(compiled.modules, compiled.name, compiled.architecture)
    # Numba numbers the functions it compiles; the numbers are no part of the code.
    text = re.sub(r"_Z\w+|_cuda[\w.$]*", "", "\n".join(host.texts))
    digest = hashlib.sha256((_kernel_text(source, "cuda") + text).encode()).hexdigest()

    def prepare() -> Run:
        native = NativeKernel(host)

        def run(*arrays: np.ndarray) -> None:
            count = arrays[0].size
            native.launch((count + BLOCK - 1) // BLOCK, BLOCK, [*arrays, count])

        return run

    return Kernel(digest[:16], outputs, prepare)


def _cpu(source: KernelSource) -> Run:
    namespace = load_kernel(source.text, source.entry, source.hash)
    (found,) = (value for value in namespace.values() if type(value).__name__ == "CpuKernel")
    run: Run = found.serial
    return run


def _kernel_text(source: KernelSource, target: str) -> str:
    """The function of one target out of the module's text."""
    decorator = "@cpu_kernel" if target == "cpu" else "@cuda.jit"
    text = source.text[source.text.index(decorator) :]
    return text[: text.index("\n\n\n")]
