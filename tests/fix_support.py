"""Helpers for tests of fixes: run a text, record it, and make an eager stand-in for a kernel.

The stand-in's text is a complete module whose entry runs the chain's own aten ops, so that a
rewritten text can be compared bitwise without generating a kernel.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fusion_advisor.analysis import find_candidates
from fusion_advisor.fixes import edited_text, plan_text, runtime_scalars, text_hash
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.records import (
    Argument,
    Fix,
    FusedProgram,
    FusionCandidate,
    KernelSource,
    OpGraph,
    ProgramInput,
    ProgramOutput,
    Symbol,
    ValueRef,
)


def run_text(text: str, path: Path) -> dict[str, Any]:
    """Execute a text as a module with that file name; its source is known to linecache."""
    path.write_bytes(text.encode())
    linecache.checkcache(str(path))
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace


def record_call(function: Callable[[], object]) -> OpGraph:
    return record(function, CaptureOptions()).graph


def candidates_of(graph: OpGraph) -> tuple[FusionCandidate, ...]:
    return find_candidates(graph, within_frame=True)


def stand_in(
    graph: OpGraph,
    candidate: FusionCandidate,
    scalars: frozenset[tuple[str, int]] = frozenset(),
    name: str = "fused_chain",
) -> KernelSource:
    """A kernel record whose text runs the chain's ops one by one."""
    nodes = [node for node in graph.nodes if node.id in set(candidate.nodes)]
    names = {one.value: f"x{n}" for n, one in enumerate(candidate.inputs)}
    order = {node.id: n for n, node in enumerate(nodes)}
    numbers = sorted(scalars, key=lambda one: (order[one[0]], one[1]))
    scalar_names = {key: f"s{n}" for n, key in enumerate(numbers)}
    lines = []
    for node in nodes:
        base, _, overload = node.op.removeprefix("aten.").partition(".")
        args = [
            scalar_names.get((node.id, n)) or _text(argument, names)
            for n, argument in enumerate(node.args)
        ]
        args += [f"{key}={_text(value, names)}" for key, value in node.kwargs]
        call = f"torch.ops.aten.{base.rstrip('_')}.{overload or 'default'}({', '.join(args)})"
        if node.mutates:
            call += f".to({names[node.mutates[0]]}.dtype)"
        names[node.outputs[0]] = f"t{len(lines)}"
        lines.append(f"    t{len(lines)} = {call}")
    parameters = [f"x{n}" for n in range(len(candidate.inputs))] + list(scalar_names.values())
    returned = ", ".join(names[value] for value in candidate.outputs)
    text = "\n".join(
        [
            "import torch",
            "",
            f"def {name}({', '.join(parameters)}):",
            *lines,
            f"    return {returned}",
            "",
        ]
    )
    program = FusedProgram(
        name=name,
        rank=len(candidate.shape),
        groups=(tuple(range(len(candidate.shape))),),
        inputs=(
            *(
                ProgramInput(name=f"x{n}", kind="tensor", dtype="float32", value=one.value)
                for n, one in enumerate(candidate.inputs)
            ),
            *(ProgramInput(name=s, kind="scalar", dtype="float64") for s in scalar_names.values()),
        ),
        statements=(),
        outputs=tuple(
            ProgramOutput(name=f"o{n}", result="", dtype="float32", value=value)
            for n, value in enumerate(candidate.outputs)
        ),
        nodes=candidate.nodes,
    )
    return KernelSource(
        entry=name,
        eager_name="",
        cpu_name="",
        cuda_name="",
        text=text,
        hash=text_hash(text),
        program=program,
    )


def _text(argument: Argument, names: Mapping[str, str]) -> str:
    if isinstance(argument, ValueRef):
        return names[argument.value]
    if isinstance(argument, Symbol):
        return f"torch.{argument.name.removeprefix('torch.')}"
    if isinstance(argument, float):
        return f"float({str(argument)!r})"
    if isinstance(argument, tuple):
        return "[" + ", ".join(_text(one, names) for one in argument) + "]"
    return repr(argument)


def plan(graph: OpGraph, candidate: FusionCandidate, text: str, **options: Any) -> Fix:
    """Plan with a stand-in kernel."""
    kernel = stand_in(graph, candidate, runtime_scalars(graph, candidate, text))
    return plan_text(graph, candidate, kernel, text, **options)


def fuse_all(
    text: str, path: Path, call: str, arguments: Callable[[], tuple[Any, ...]]
) -> list[tuple[FusionCandidate, Fix, str]]:
    """(candidate, fix, new text or "") of every candidate of ``call(*arguments())``."""
    namespace = run_text(text, path)
    graph = record_call(lambda: namespace[call](*arguments()))
    found = []
    for candidate in candidates_of(graph):
        fix = plan(graph, candidate, text)
        found.append((candidate, fix, "" if fix.blockers else edited_text(fix, text)))
    return found


def same(one: object, other: object) -> bool:
    """Bitwise equality of nested results, dtype and strides included."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.stride() == other.stride()
            and torch.equal(one.isnan(), other.isnan())
            and torch.equal(one.nan_to_num(), other.nan_to_num())
        )
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other
