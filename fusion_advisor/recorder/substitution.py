"""The recorded run once more, with fused kernels in the place of the groups they replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fusion_advisor.errors import CaptureError
from fusion_advisor.recorder.program import Program, Step, undisturbed
from fusion_advisor.recorder.replay import fresh_inputs
from fusion_advisor.recorder.tensor_store import TensorStore
from fusion_advisor.records import OpGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """``call(*inputs)`` stands in for ``nodes``: value ids in, tensors for ``outputs`` out."""

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    call: Callable[..., Any]


def run_substituted(
    graph: OpGraph, store: TensorStore, substitutions: Sequence[Substitution]
) -> list[Tensor]:
    """The recorded run's outputs with every substitution made; with none, as it was recorded.

    A group's inputs are set aside when its first op reads them, and its fused outputs replace
    the eager ones when its last op has run: whatever reads them later reads the kernel's values.

    Raises:
        CaptureError: an input was not kept, or an op or kernel failed.
    """
    program = Program(graph, keep=graph.outputs)
    owner = {node: one for one in substitutions for node in one.nodes}
    last = {one.nodes: _last(graph, one) for one in substitutions}
    storages = {spec.id: spec.storage for spec in graph.values}
    overwritten = {storages[value] for node in graph.nodes for value in node.mutates}
    written = {value for value, storage in storages.items() if storage in overwritten}
    set_aside: dict[tuple[str, ...], dict[str, Tensor]] = {one.nodes: {} for one in substitutions}
    with undisturbed(store.settings):
        environment = fresh_inputs(graph, store, program.needed(), program)
        for step in program.steps:
            group = owner.get(step.node.id)
            if group is not None:
                _set_aside(program, step, group, environment, set_aside[group.nodes], written)
            program.run_step(step, environment, store.random_states)
            if group is not None and last[group.nodes] == step.node.id:
                _substitute(program, group, set_aside.pop(group.nodes), environment)
            for value in step.dead:
                environment.pop(value, None)
    return [environment[program.resolve(value)] for value in graph.outputs]


def _last(graph: OpGraph, group: Substitution) -> str:
    members = set(group.nodes)
    return next(node.id for node in reversed(graph.nodes) if node.id in members)


def _set_aside(
    program: Program,
    step: Step,
    group: Substitution,
    environment: dict[str, Tensor],
    kept: dict[str, Tensor],
    written: set[str],
) -> None:
    for value in step.node.inputs:
        if value in group.inputs and value not in kept:
            tensor = environment[program.resolve(value)]
            # A write before the kernel runs, in the group or beside it, would change its operand.
            kept[value] = tensor.clone() if value in written else tensor


def _substitute(
    program: Program,
    group: Substitution,
    kept: dict[str, Tensor],
    environment: dict[str, Tensor],
) -> None:
    missing = [value for value in group.inputs if value not in kept]
    if missing:
        raise CaptureError(f"The group does not read {', '.join(missing)}.")
    try:
        returned = group.call(*(kept[value] for value in group.inputs))
    except Exception as error:
        raise CaptureError(f"the kernel failed on the recorded run: {error}") from error
    results = returned if isinstance(returned, tuple) else (returned,)
    if len(results) != len(group.outputs):
        raise CaptureError(
            f"the kernel gave {len(results)} results where the group has {len(group.outputs)}"
        )
    for value, tensor in zip(group.outputs, results, strict=True):
        environment[program.resolve(value)] = tensor
