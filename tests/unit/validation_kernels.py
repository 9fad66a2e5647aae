"""Hand-written kernels in the generated text's format, with the recorded ops they stand for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusion_advisor.ops import classify
from fusion_advisor.records import (
    Argument,
    FusedProgram,
    FusionCandidate,
    KernelSource,
    OperandMap,
    OpGraph,
    OpNode,
    ProgramInput,
    ProgramOutput,
    Statement,
    Symbol,
    TensorSpec,
    ValueRef,
)

HEADER = """import torch
from numba import float32, prange, uint32
from fusion_advisor.runtime import FusedFunction, Operand, Output, cpu_kernel, cpu_math, cuda
from fusion_advisor.runtime import cuda_math, libdevice
from fusion_advisor.runtime.intrinsics import fma

"""


@dataclass(frozen=True)
class Problem:
    """A kernel with everything that ``validate`` needs; ``captured`` are its real inputs."""

    kernel: KernelSource
    graph: OpGraph
    candidate: FusionCandidate
    reference: Callable[..., tuple[torch.Tensor, ...]]
    captured: dict[str, torch.Tensor]

    def with_text(self, text: str) -> Problem:
        """The same problem with another text (its hash recorded as if it were meant)."""
        from dataclasses import replace

        digest = hashlib.sha256(text.encode()).hexdigest()
        return replace(self, kernel=replace(self.kernel, text=text, hash=digest))

    def mutated(self, *changes: tuple[str, str]) -> Problem:
        """The problem with pieces of its text replaced; each piece must be there."""
        text = self.kernel.text
        for old, new in changes:
            assert old in text, f"{old!r} is not in the kernel's text"
            text = text.replace(old, new)
        return self.with_text(text)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, str] = {}
        self.specs: list[TensorSpec] = []
        self.nodes: list[OpNode] = []
        self.kept: list[torch.Tensor] = []

    def value(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self.values:
            name = f"v{len(self.specs)}"
            self.values[id(tensor)] = name
            self.kept.append(tensor)
            self.specs.append(
                TensorSpec(
                    id=name,
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    shape=tuple(tensor.shape),
                    strides=tuple(tensor.stride()),
                    storage=len(self.specs),
                )
            )
        return self.values[id(tensor)]

    def argument(self, value: Any, found: list[str]) -> Argument:
        if isinstance(value, torch.Tensor):
            name = self.value(value)
            if name not in found:
                found.append(name)
            return ValueRef(value=name)
        if isinstance(value, torch.dtype):
            return Symbol(kind="dtype", name=str(value).removeprefix("torch."))
        if isinstance(value, (list, tuple)):
            return tuple(self.argument(item, found) for item in value)
        return value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        found: list[str] = []
        name = f"{func.namespace}.{func._schema.name.split('::')[1]}.{func._overloadname}"
        node = OpNode(
            id=f"n{len(self.nodes)}",
            index=len(self.nodes),
            op=name,
            args=tuple(self.argument(value, found) for value in args),
            kwargs=tuple(
                (key, self.argument(value, found)) for key, value in (kwargs or {}).items()
            ),
            inputs=tuple(found),
            outputs=(self.value(result),),
            kind=classify(name, pointwise_tag=True),
        )
        self.nodes.append(node)
        return result


def record(chain: Callable[..., Any], *tensors: torch.Tensor) -> tuple[OpGraph, FusionCandidate]:
    """The ops of a chain as a graph, and the whole chain as a candidate."""
    recorder = _Recorder()
    with torch.no_grad(), recorder:
        inputs = tuple(recorder.value(tensor) for tensor in tensors)
        result = chain(*tensors)
    results = result if isinstance(result, tuple) else (result,)
    outputs = tuple(recorder.value(one) for one in results)
    shape = tuple(results[0].shape)
    graph = OpGraph(
        nodes=tuple(recorder.nodes), values=tuple(recorder.specs), inputs=inputs, outputs=outputs
    )
    maps = []
    for name, tensor in zip(inputs, tensors, strict=True):
        missing = len(shape) - tensor.dim()
        dims = tuple(
            axis - missing
            if axis >= missing and (tensor.shape[axis - missing] == shape[axis])
            else None
            for axis in range(len(shape))
        )
        maps.append(OperandMap(value=name, dims=dims))
    candidate = FusionCandidate(
        id="C1", nodes=tuple(node.id for node in recorder.nodes), inputs=tuple(maps),
        outputs=outputs, shape=shape,
    )  # fmt: skip
    return graph, candidate


def problem(
    chain: Callable[..., Any],
    tensors: dict[str, torch.Tensor],
    *,
    groups: tuple[tuple[int, ...], ...],
    operand_groups: dict[str, tuple[int, ...]],
    strided: tuple[str, ...] = (),
    eager: str,
    cuda: str,
    cpu: str,
) -> Problem:
    """Record ``chain`` and wrap three hand-written bodies into a module of the usual form."""
    graph, candidate = record(chain, *tensors.values())
    specs = {spec.id: spec for spec in graph.values}
    inputs = tuple(
        ProgramInput(
            name=name, kind="tensor", dtype=specs[operand.value].dtype,
            groups=operand_groups[name], value=operand.value,
            layout="strided" if name in strided else "dense",
        )
        for name, operand in zip(tensors, candidate.inputs, strict=True)
    )  # fmt: skip
    outputs = []
    statements = []
    for number, value in enumerate(candidate.outputs):
        name = "out" if len(candidate.outputs) == 1 else f"out{number}"
        dtype = specs[value].dtype
        # The statements are not what runs here; one per output keeps the program consistent, and
        # says whether a fused multiply-add is asked for.
        opcode = "fma" if "libdevice.fma" in cuda else "chain"
        statements.append(
            Statement(name=f"r{number}", opcode=opcode, args=(inputs[0].name,), dtype=dtype)
        )
        outputs.append(ProgramOutput(name=name, result=f"r{number}", dtype=dtype, value=value))
    program = FusedProgram(
        name="chain", rank=len(candidate.shape), groups=groups, inputs=inputs,
        statements=tuple(statements), outputs=tuple(outputs), nodes=candidate.nodes,
    )  # fmt: skip
    operands = ", ".join(
        f'Operand("{entry.name}", "{entry.dtype}", {entry.groups!r}, "{entry.layout}")'
        for entry in inputs
    )
    declared = ", ".join(f'Output("{one.name}", "{one.dtype}")' for one in outputs)
    text = (
        f"{HEADER}\n{eager}\n\n@cuda.jit\n{cuda}\n\n@cpu_kernel\n{cpu}\n\n"
        'fused_chain = FusedFunction(\n    "fused_chain", eager=eager_chain, cpu=chain_cpu, '
        f"cuda=chain_cuda,\n    rank={program.rank}, groups={groups!r},\n"
        f"    operands=({operands},), outputs=({declared},),\n)\n"
    )
    kernel = KernelSource(
        entry="fused_chain", eager_name="eager_chain", cpu_name="chain_cpu",
        cuda_name="chain_cuda", text=text,
        hash=hashlib.sha256(text.encode()).hexdigest(), program=program,
    )  # fmt: skip

    def reference(*arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = chain(*arguments)
        return result if isinstance(result, tuple) else (result,)

    captured = {
        operand.value: tensor
        for operand, tensor in zip(candidate.inputs, tensors.values(), strict=True)
    }
    return Problem(kernel, graph, candidate, reference, captured)


def bias_relu_scale() -> Problem:
    """relu(x + bias) * y + y: broadcast operand, NaN-keeping relu, no contraction."""
    generator = torch.Generator().manual_seed(1)
    return problem(
        lambda x, bias, y: torch.relu(x + bias) * y + y,
        {
            "x": torch.randn(6, 40, generator=generator),
            "bias": torch.randn(40, generator=generator),
            "y": torch.randn(6, 40, generator=generator),
        },
        groups=((0,), (1,)),
        operand_groups={"x": (0, 1), "bias": (1,), "y": (0, 1)},
        eager="def eager_chain(x, bias, y):\n    return torch.relu(x + bias) * y + y\n",
        cuda=(
            "def chain_cuda(x, bias, y, out, n0, n1):\n"
            "    i = uint32(cuda.grid(1))\n"
            "    if i < uint32(n0 * n1):\n"
            "        column = uint32(i % n1)\n"
            "        t = x[i] + bias[column]\n"
            "        t = float32(0.0) if t < float32(0.0) else t\n"
            "        out[i] = libdevice.fmul_rn(t, y[i]) + y[i]\n"
        ),
        cpu=(
            "def chain_cpu(x, bias, y, out):\n"
            "    for row in prange(out.shape[0]):\n"
            "        for column in range(out.shape[1]):\n"
            "            t = x[row, column] + bias[column]\n"
            "            t = float32(0.0) if t < float32(0.0) else t\n"
            "            out[row, column] = t * y[row, column] + y[row, column]\n"
        ),
    )


def tanh_scale() -> Problem:
    """0.5 * tanh(x + 1): one transcendental op with a budget."""
    generator = torch.Generator().manual_seed(2)
    return problem(
        lambda x: 0.5 * torch.tanh(x + 1.0),
        {"x": torch.randn(33, 65, generator=generator)},
        groups=((0, 1),),
        operand_groups={"x": (0,)},
        eager="def eager_chain(x):\n    return 0.5 * torch.tanh(x + 1.0)\n",
        cuda=(
            "def chain_cuda(x, out, n0):\n"
            "    i = uint32(cuda.grid(1))\n"
            "    if i < n0:\n"
            "        out[i] = float32(0.5) * libdevice.tanhf(x[i] + float32(1.0))\n"
        ),
        cpu=(
            "def chain_cpu(x, out):\n"
            "    for i in prange(out.size):\n"
            "        out[i] = float32(0.5) * cpu_math.tanh(x[i] + float32(1.0))\n"
        ),
    )


def bfloat16_affine() -> Problem:
    """(x * y) + x in bfloat16: each op rounds."""
    generator = torch.Generator().manual_seed(3)
    return problem(
        lambda x, y: x * y + x,
        {
            "x": torch.randn(7, 33, generator=generator).bfloat16(),
            "y": torch.randn(7, 33, generator=generator).bfloat16(),
        },
        groups=((0, 1),),
        operand_groups={"x": (0,), "y": (0,)},
        eager="def eager_chain(x, y):\n    return x * y + x\n",
        cuda=(
            "def chain_cuda(x, y, out, n0):\n"
            "    i = uint32(cuda.grid(1))\n"
            "    if i < n0:\n"
            "        a = cuda_math.bf16_to_f32(x[i])\n"
            "        b = cuda_math.bf16_to_f32(y[i])\n"
            "        product = cuda_math.bf16_to_f32(cuda_math.f32_to_bf16("
            "libdevice.fmul_rn(a, b)))\n"
            "        out[i] = cuda_math.f32_to_bf16(product + a)\n"
        ),
        cpu=(
            "def chain_cpu(x, y, out):\n"
            "    for i in prange(out.size):\n"
            "        a = cpu_math.bf16_to_f32(x[i])\n"
            "        b = cpu_math.bf16_to_f32(y[i])\n"
            "        product = cpu_math.bf16_to_f32(cpu_math.f32_to_bf16(a * b))\n"
            "        out[i] = cpu_math.f32_to_bf16(product + a)\n"
        ),
    )


def scaled_add() -> Problem:
    """add(x, y, alpha=2): the multiplier must not be lost; y is a strided operand."""
    generator = torch.Generator().manual_seed(4)
    wide = torch.randn(9, 80, generator=generator)
    return problem(
        lambda x, y: torch.add(x, y, alpha=2) - y,
        {"x": torch.randn(9, 40, generator=generator), "y": wide[:, 40:]},
        groups=((0,), (1,)),
        operand_groups={"x": (0, 1), "y": (0, 1)},
        strided=("y",),
        eager="def eager_chain(x, y):\n    return torch.add(x, y, alpha=2) - y\n",
        cuda=(
            "def chain_cuda(x, y, out, n0, n1, y_row, y_column):\n"
            "    i = uint32(cuda.grid(1))\n"
            "    if i < uint32(n0 * n1):\n"
            "        row = uint32(i // n1)\n"
            "        column = uint32(i - uint32(row * n1))\n"
            "        v = y[uint32(uint32(row * y_row) + uint32(column * y_column))]\n"
            "        out[i] = libdevice.fmaf(v, float32(2.0), x[i]) - v\n"
        ),
        cpu=(
            "def chain_cpu(x, y, out):\n"
            "    for row in prange(out.shape[0]):\n"
            "        for column in range(out.shape[1]):\n"
            "            v = y[row, column]\n"
            "            out[row, column] = fma(v, float32(2.0), x[row, column]) - v\n"
        ),
    )


def validate(one: Problem, **options: Any) -> Any:
    """Run the whole ladder on a problem."""
    from fusion_advisor.validation import validate as run

    settings: dict[str, Any] = {
        "reference": one.reference, "reference64": one.reference, "captured": one.captured,
        "ceilings": None,
    }  # fmt: skip
    return run(one.kernel, one.graph, one.candidate, **(settings | options))
