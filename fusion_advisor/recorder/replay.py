"""Runs recorded programs again: whole, in part, or in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fusion_advisor.errors import CaptureError
from fusion_advisor.ops.views import size_free
from fusion_advisor.recorder.program import Program, symbol_value, undisturbed
from fusion_advisor.recorder.proof import prove
from fusion_advisor.recorder.schema import OpSchema, find_op, outputs_in_order
from fusion_advisor.recorder.tensor_store import TensorStore, copy_view
from fusion_advisor.records import Argument, OpGraph, OpNode, Symbol, ValueRef

__all__ = ["materialize", "prove", "run", "subgraph"]

_DOUBLE = {
    "float16": "float64",
    "bfloat16": "float64",
    "float32": "float64",
    "complex32": "complex128",
    "complex64": "complex128",
}


def run(
    graph: OpGraph,
    tensors: Mapping[str, Tensor],
    *,
    nodes: Sequence[str] | None = None,
    keep: Iterable[str] = (),
    random_states: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Run the recorded ops on ``tensors`` (by value id); returns the values of ``keep``.

    ``nodes`` limits the run to these ops, in recorded order.  Ops that write in place
    write into the given tensors.  Random ops draw from ``random_states``
    (``TensorStore.random_states``), else from the process's generators, whose state is
    put back afterwards.

    Raises:
        CaptureError: a tensor is missing, or an op failed.
    """
    chosen = None
    if nodes is not None:
        wanted = set(nodes)
        chosen = tuple(node for node in graph.nodes if node.id in wanted)
    wanted_values = tuple(keep)
    program = Program(graph, nodes=chosen, keep=wanted_values)
    with undisturbed():
        kept = program.run(tensors, random_states=random_states)
    missing = [value for value in wanted_values if program.resolve(value) not in kept]
    if missing:
        raise CaptureError(f"No op of this run makes {', '.join(missing)}.")
    return {value: kept[program.resolve(value)] for value in wanted_values}


def materialize(graph: OpGraph, store: TensorStore, value_ids: Iterable[str]) -> dict[str, Tensor]:
    """The captured tensors behind values, each as it was when it came into being.

    Replays the program up to the last of them; the result shares no memory with the
    store.

    Raises:
        CaptureError: an input that is needed was not kept, or an op failed.
    """
    wanted = set(value_ids)
    known = {spec.id: spec for spec in graph.values}
    unknown = wanted - known.keys()
    if unknown:
        raise CaptureError(f"The recording has no values {', '.join(sorted(unknown))}.")
    found: dict[str, Tensor] = {}
    given = wanted.intersection(graph.inputs)
    for value in given:
        found[value] = store.get(value).clone()
    needed = history(graph, wanted - given)
    if not needed:
        return found
    program = Program(graph, nodes=needed, keep=wanted - given)
    aliases = _aliases_by_moment(graph, wanted - given)

    def take(step: Any, returned: Any, environment: dict[str, Tensor]) -> None:
        for value in (*step.node.outputs, *aliases.get(step.node.id, ())):
            if value in wanted and value not in found:
                found[value] = environment[program.resolve(value)].clone()

    with undisturbed(store.settings):
        inputs = fresh_inputs(graph, store, program.needed(), program)
        program.run(inputs, random_states=store.random_states, after=take)
    missing = wanted - found.keys()
    if missing:
        raise CaptureError(f"The replay did not make {', '.join(sorted(missing))}.")
    return found


def fresh_inputs(
    graph: OpGraph, store: TensorStore, needed: Iterable[str], program: Program
) -> dict[str, Tensor]:
    """The stored inputs; those whose storage the program writes are copied, aliasing kept."""
    written = {program.specs[value].storage for node in program.nodes for value in node.mutates}
    copies: dict[int, Tensor] = {}
    inputs: dict[str, Tensor] = {}
    for value in needed:
        tensor = store.get(value)
        spec = program.specs[value]
        if spec.storage in written:
            tensor = copy_view(tensor, copies, spec.storage)
        inputs[value] = tensor
    return inputs


def history(graph: OpGraph, wanted: set[str]) -> tuple[OpNode, ...]:
    """The ops up to the last one that makes or last changes a wanted value."""
    if not wanted:
        return ()
    writes: dict[tuple[int, int], int] = {}  # (storage, version) -> op that made it so
    specs = {spec.id: spec for spec in graph.values}
    last = -1
    for index, node in enumerate(graph.nodes):
        for value in node.outputs:
            spec = specs[value]
            writes.setdefault((spec.storage, spec.version), index)
            if value in wanted:
                last = max(last, index)
    for value in wanted:
        last = max(last, writes.get((specs[value].storage, specs[value].version), -1))
    return graph.nodes[: last + 1]


def _aliases_by_moment(graph: OpGraph, wanted: set[str]) -> dict[str, tuple[str, ...]]:
    """Wanted values that no op returns, by the op whose write brought them about."""
    specs = {spec.id: spec for spec in graph.values}
    writers: dict[tuple[int, int], str] = {}
    for node in graph.nodes:
        for value in node.outputs:
            spec = specs[value]
            if node.mutates:
                writers[spec.storage, spec.version] = node.id
    moments: dict[str, tuple[str, ...]] = {}
    for value in wanted:
        spec = specs[value]
        writer = writers.get((spec.storage, spec.version))
        if spec.alias_of is not None and writer is not None:
            moments[writer] = (*moments.get(writer, ()), value)
    return moments


def subgraph(
    graph: OpGraph,
    node_ids: Sequence[str],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    high_precision: bool = False,
) -> Callable[..., tuple[Tensor, ...]]:
    """A function of the values ``inputs`` that returns the values ``outputs``.

    It runs the recorded ops ``node_ids`` in recorded order and purely: an op that
    writes in place works on a copy, so the given tensors stay as they are.  With
    ``high_precision`` the inputs are to be float64 (complex128) and every floating
    dtype among the ops' arguments becomes float64, so that no rounding to a smaller
    type remains.  Reshapes that split a dimension or add one fit other sizes as well.

    Raises:
        CaptureError: an op cannot be replayed, or reads a value that is neither an input
            nor made inside.
    """
    wanted = set(node_ids)
    shapes = {spec.id: spec.shape for spec in graph.values}
    nodes = [
        size_free(node, shapes[node.inputs[0]], shapes[node.outputs[0]])
        if node.kind == "view" and node.inputs and node.outputs
        else node
        for node in graph.nodes
        if node.id in wanted
    ]
    if len(nodes) != len(wanted):
        known = {node.id for node in nodes}
        raise CaptureError(f"The graph has no op {', '.join(sorted(wanted - known))}.")
    available = set(inputs)
    steps: list[tuple[OpNode, OpSchema]] = []
    for node in nodes:
        for value in node.inputs:
            if value not in available:
                raise CaptureError(
                    f"{node.id} reads {value}, which is neither an input nor made before it here."
                )
        if high_precision and node.op in ("aten.view.dtype", "aten.view_as_real.default"):
            raise CaptureError(f"{node.id} reinterprets bits; it has no double precision form.")
        available.update(node.outputs)
        steps.append((node, find_op(node.op)))
    absent = [value for value in outputs if value not in available]
    if absent:
        raise CaptureError(f"No op in the group makes {', '.join(absent)}.")
    names, results = tuple(inputs), tuple(outputs)

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        if len(tensors) != len(names):
            raise CaptureError(f"Expected {len(names)} tensors, got {len(tensors)}.")
        environment = dict(zip(names, tensors, strict=True))
        with _double_by_default(high_precision):
            for node, schema in steps:
                _run_purely(node, schema, environment, high_precision)
        return tuple(environment[value] for value in results)

    return call


@contextmanager
def _double_by_default(wanted: bool) -> Iterator[None]:
    """Where torch takes the default dtype (an integer divided by an integer), take float64."""
    before = torch.get_default_dtype()
    if wanted:
        torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _run_purely(
    node: OpNode, schema: OpSchema, environment: dict[str, Tensor], high_precision: bool
) -> None:
    copies = {value: environment[value].clone() for value in node.mutates}

    def bind(item: Argument) -> Any:
        if isinstance(item, ValueRef):
            copy = copies.get(item.value)
            return environment[item.value] if copy is None else copy
        if isinstance(item, tuple):
            return [bind(part) for part in item]
        if isinstance(item, Symbol):
            if high_precision and item.kind == "dtype":
                return getattr(torch, _DOUBLE.get(item.name, item.name))
            return symbol_value(item)
        return item

    args = tuple([bind(item) for item in node.args])
    kwargs = {key: bind(item) for key, item in node.kwargs}
    returned = schema.function(*args, **kwargs)
    written = schema.written_arguments(args, kwargs)
    tensors = outputs_in_order(returned, written)
    environment.update(zip(node.outputs, tensors, strict=True))
