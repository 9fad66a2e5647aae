"""A complete module: the eager chain, the kernels, and the function that picks between them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from fusion_advisor import ops
from fusion_advisor.codegen.eager_text import eager_function_text, written_operands
from fusion_advisor.codegen.naming import comment_text, op_base
from fusion_advisor.codegen.numba_cpu import cpu_kernel_text
from fusion_advisor.codegen.numba_cuda import cuda_kernel_text
from fusion_advisor.codegen.program import check_program, program_hash
from fusion_advisor.errors import CodegenError
from fusion_advisor.ops.elements import distinct_elements
from fusion_advisor.quantities import bytes_text
from fusion_advisor.records import (
    FusedProgram,
    KernelSource,
    OpGraph,
    OpNode,
    ProgramInput,
    Target,
    TensorSpec,
    ValueRef,
)
from fusion_advisor.view_steps import ViewStep

_NUMBA_NAMES = (
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "prange",
    "uint8",
    "uint32",
    "uint64",
)
_RUNTIME_NAMES = (
    "FusedFunction",
    "Operand",
    "Output",
    "cpu_kernel",
    "cpu_math",
    "cuda",
    "cuda_math",
    "libdevice",
)


def generate(
    program: FusedProgram, graph: OpGraph, *, targets: tuple[Target, ...] = ("cpu", "cuda")
) -> KernelSource:
    """Write a program as one module that a person could keep.

    Raises:
        CodegenError: the program fails its checker, or no target was asked for.
        UnsupportedOpError: an op's arguments cannot be written as source text.
    """
    check_program(program)
    if not targets or any(target not in ("cpu", "cuda") for target in targets):
        raise CodegenError(f"targets {targets!r}: ask for 'cpu', 'cuda' or both")
    members = set(program.nodes)
    nodes = [node for node in graph.nodes if node.id in members]
    specs = {spec.id: spec for spec in graph.values}
    comments = {node.id: comment_text(node.op) for node in nodes}
    stem = re.sub(r"^fused_", "", program.name)
    eager_name, cpu_name, cuda_name = f"eager_{stem}", f"{stem}_cpu", f"{stem}_cuda"
    parts = [eager_function_text(program, graph, eager_name, comments)]
    if "cuda" in targets:
        parts.append(cuda_kernel_text(program, cuda_name, comments))
    if "cpu" in targets:
        parts.append(cpu_kernel_text(program, cpu_name, comments))
    kernels = {
        "cpu": cpu_name if "cpu" in targets else "",
        "cuda": cuda_name if "cuda" in targets else "",
    }
    written = written_operands(program, graph)
    parts.append(_function_text(program, eager_name, kernels, written))
    body = "\n\n".join(parts)
    text = f"{_header(program, nodes, specs)}\n{_imports(body)}\n\n{body}"
    return KernelSource(
        entry=program.name,
        eager_name=eager_name,
        cpu_name=kernels["cpu"],
        cuda_name=kernels["cuda"],
        text=text,
        hash=hashlib.sha256(text.encode()).hexdigest(),
        program=program,
        provenance=_provenance(nodes),
    )


def _imports(body: str) -> str:
    code = re.sub(r"#[^\n]*|\"[^\"\n]*\"", "", body)  # neither comments nor strings
    words = set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", code))
    numba = [name for name in _NUMBA_NAMES if name in words]
    runtime = [name for name in _RUNTIME_NAMES if name in words]
    lines = ["import math\n"] if "math.inf" in body or "math.nan" in body else []
    lines.append("import torch")
    if numba:
        lines.append(f"from numba import {', '.join(numba)}")
    flat = f"\nfrom fusion_advisor.runtime import {', '.join(runtime)}"
    if len(flat) > 100:
        flat = "\n".join(
            ["\nfrom fusion_advisor.runtime import (", *(f"    {name}," for name in runtime), ")"]
        )
    lines.append(flat)
    return "\n".join(lines) + "\n"


def _provenance(nodes: list[OpNode]) -> str:
    """Where the chain was recorded: module path, then source lines."""
    places = []
    for node in nodes:
        if node.span is not None:
            if node.span.kind == "cell":
                places.append(f"the cell's line {node.span.line}")
            else:
                places.append(f"{_short_path(node.span.file)}:{node.span.line}")
    modules = [node.module_path for node in nodes if node.module_path]
    parts = []
    if modules:
        parts.append(modules[0])
    if places:
        unique = list(dict.fromkeys(places))
        parts.append(unique[0] if len(unique) == 1 else f"{unique[0]} to {unique[-1]}")
    return comment_text(", ".join(parts))


def _short_path(path: str) -> str:
    """The part of a path that tells the same on every machine."""
    installed = re.split(r"site-packages[/\\\\]", path)
    return installed[-1] if len(installed) > 1 else re.split(r"[/\\\\]", path)[-1]


def _bytes(spec: TensorSpec) -> int:
    """Distinct bytes: an expanded dimension counts once."""
    count = ops.ITEM_BYTES.get(spec.dtype, 0)
    for size, stride in zip(spec.shape, spec.strides, strict=True):
        count *= size if stride or size == 0 else 1
    return count


def _read_bytes(program: FusedProgram, spec: TensorSpec) -> int:
    """What the kernel reads of an operand: all of it, what its views show, or only its shape."""
    used = {arg for s in program.statements for arg in s.args}
    used.update(output.result for output in program.outputs)
    read = [p for p in program.inputs if p.value == spec.id and p.name in used]
    if not program.parameters:
        return _bytes(spec) if read else 0
    views = [p.steps for p in read]
    return distinct_elements(spec.shape, spec.strides, views) * ops.ITEM_BYTES.get(spec.dtype, 0)


def _eager_bytes(nodes: list[OpNode], specs: Mapping[str, TensorSpec]) -> int:
    total = 0
    for node in nodes:
        if ops.lookup(node.op) is None:  # a view moves nothing
            continue
        read = {a.value for a in _references(node)} - _unread(node)
        total += sum(_bytes(specs[value]) for value in (*read, *node.outputs) if value in specs)
    return total


def _unread(node: OpNode) -> set[str]:
    """What lends a call shape and dtype alone."""
    info = ops.lookup(node.op)
    return set(ops.unread_inputs(node, info.parameters, info.unread)) if info is not None else set()


def _references(node: OpNode) -> list[ValueRef]:
    return [leaf for leaf in ops.flat_arguments(node) if isinstance(leaf, ValueRef)]


def _header(program: FusedProgram, nodes: list[OpNode], specs: Mapping[str, TensorSpec]) -> str:
    """What is fused, from where, and the traffic at the captured sizes."""
    # Views between the ops are no ops of the kernel: they only change how it indexes.
    computing = [node for node in nodes if ops.lookup(node.op) is not None]
    names = [op_base(node.op).strip("_") for node in computing]
    fast = ' (match="fast": fewer roundings than eager)' if program.match == "fast" else ""
    tensors = [p for p in program.inputs if p.kind == "tensor"]
    read = sum(_read_bytes(program, specs[one.value]) for one in program.given)
    written = sum(_bytes(specs[output.value]) for output in program.outputs)
    lines = [f"# {program.name}: {len(names)} ops in one kernel: {', '.join(names)}{fast}"]
    where = _provenance(nodes)
    if where:
        lines.append(f"# recorded in {where}")
    shape = specs[program.outputs[0].value].shape
    lines.append(
        f"# at the recorded shape {tuple(shape)}: eager moves "
        f"{bytes_text(_eager_bytes(nodes, specs))} in {len(names)} launches, "
        f"this reads {bytes_text(read)} and writes {bytes_text(written)} in 1"
    )
    for operand in tensors:
        note = _operand_note(operand, program)
        if note:
            lines.append(f"# {operand.name} is {note}")
    return "\n".join(comment_text(line, 200) for line in lines)


def _operand_note(operand: ProgramInput, program: FusedProgram) -> str:
    notes = []
    groups = program.spaces[operand.region].groups
    if len(operand.groups) < len(groups):
        absent = [
            dimension
            for index, group in enumerate(groups)
            if index not in operand.groups
            for dimension in group
        ]
        notes.append(f"broadcast over dimensions {', '.join(map(str, sorted(absent)))}")
    if operand.steps:
        notes.append("read through the views in the chain")
    elif operand.layout == "strided":
        notes.append("read with its own strides")
    return " and ".join(notes)


def _tuple_text(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _function_text(
    program: FusedProgram, eager_name: str, kernels: dict[str, str], written: tuple[str, ...]
) -> str:
    operands = []
    for operand in program.inputs:
        if operand.kind == "tensor":
            extra = ', layout="strided"' if operand.layout == "strided" else ""
            if operand.parameter != operand.name and operand.parameter:
                extra += f', of="{operand.parameter}"'
            if operand.steps:
                extra += f", steps={_steps_text(operand.steps)}"
            if operand.region:
                extra += f", region={operand.region}"
            operands.append(
                f'Operand("{operand.name}", "{operand.dtype}", {operand.groups}{extra})'
            )
    outputs = [
        f'Output("{output.name}", "{output.dtype}"'
        f"{f', region={output.region}' if output.region else ''})"
        for output in program.outputs
    ]
    parameters = [f'("{one.name}", "{one.dtype}")' for one in program.parameters]
    further = [f"({space.rank}, {space.groups})" for space in program.further]
    scalars = [f'("{p.name}", "{p.dtype}")' for p in program.inputs if p.kind == "scalar"]
    lines = [
        f"{program.name} = FusedFunction(",
        f'    "{program.name}",',
        f"    eager={eager_name},",
    ]
    lines += [f"    {target}={name}," for target, name in kernels.items() if name]
    lines += [f"    rank={program.rank},", f"    groups={program.groups},"]
    if further:
        lines += _listed("further", further)
    if parameters:
        lines += _listed("parameters", parameters)
    lines += _listed("operands", operands) + _listed("outputs", outputs)
    if scalars:
        lines.append(f"    scalars={_tuple_text(scalars)},")
    if written:
        lines += _listed("written", [f'"{name}"' for name in written])
    if program.checks_divisors:
        lines.append("    checks_divisors=True,")
    lines += [f'    program_hash="{program_hash(program)}",', ")"]
    return "\n".join(lines) + "\n"


def _steps_text(steps: tuple[ViewStep, ...]) -> str:
    return _tuple_text([f'("{kind}", {at}, {numbers})' for kind, at, numbers in steps])


def _listed(name: str, items: list[str]) -> list[str]:
    flat = f"    {name}={_tuple_text(items)}," if items else f"    {name}=(),"
    if len(flat) <= 98:
        return [flat]
    return [f"    {name}=(", *(f"        {item}," for item in items), "    ),"]
