"""From a candidate group of captured ops to a fused scalar program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from fusion_advisor import ops
from fusion_advisor.codegen.fast import fewer_roundings
from fusion_advisor.codegen.layout import SpaceLayout, plan_space
from fusion_advisor.codegen.naming import Namer, identifier, name_operands, op_base
from fusion_advisor.codegen.program import check_program, live_statements
from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.ops.dtypes import explicit_rounding
from fusion_advisor.ops.regions import original, unrolled
from fusion_advisor.ops.scalars import Value
from fusion_advisor.records import (
    Constant,
    FusedProgram,
    FusionCandidate,
    IterationSpace,
    OpGraph,
    OpNode,
    ProgramInput,
    ProgramOutput,
    ProgramParameter,
    Statement,
    TensorSpec,
)
from fusion_advisor.view_steps import ViewError, ViewStep


class _Lowering:
    """The names and values of one lowering."""

    def __init__(
        self,
        graph: OpGraph,
        candidate: FusionCandidate,
        runtime_scalars: frozenset[tuple[str, int]],
        namer: Namer,
        steps: Mapping[str, tuple[ViewStep, ...]],
    ) -> None:
        members = set(candidate.nodes)
        self.candidate = candidate
        self.nodes = [node for node in graph.nodes if node.id in members]
        self.specs: dict[str, TensorSpec] = {spec.id: spec for spec in graph.values}
        self.dtypes = {spec.id: spec.dtype for spec in graph.values}
        self.namer = namer
        self.space: SpaceLayout = plan_space(candidate, self.specs, steps)
        self.inputs = self._tensor_inputs(graph)
        self.scalars: dict[tuple[str, int], ProgramInput] = {}
        for node in self.nodes:
            for position, argument in enumerate(ops.flat_arguments(node)):
                if (node.id, position) in runtime_scalars:
                    self.scalars[node.id, position] = self._scalar(node, position, argument)
        dtypes = {p.name: p.dtype for p in (*self.inputs, *self.scalars.values())}
        self.builder = ops.Builder(dtypes)
        self.values: dict[str, Value] = {str(p.value): p.name for p in self.inputs}

    def _tensor_inputs(self, graph: OpGraph) -> list[ProgramInput]:
        names = name_operands(graph, self.candidate, self.namer)
        inputs = []
        for operand in self.candidate.inputs:
            spec = self.specs[operand.value]
            layout = self.space.operands[operand.value]
            inputs.append(
                ProgramInput(
                    name=names[operand.value],
                    kind="tensor",
                    dtype=_supported(spec),
                    groups=layout.groups,
                    layout=layout.layout,
                    value=operand.value,
                )
            )
        return inputs

    def _scalar(self, node: OpNode, position: int, argument: object) -> ProgramInput:
        if isinstance(argument, bool) or not isinstance(argument, (int, float)):
            raise UnsupportedOpError(
                f"argument {position} of {node.op} is not a number and cannot be a run-time one"
            )
        return ProgramInput(
            name=self.namer.take("scale" if isinstance(argument, float) else "count"),
            kind="scalar",
            dtype="float64" if isinstance(argument, float) else "int64",
            value=argument,
            node=node.id,
            position=position,
        )

    def operand(self, value: str) -> ops.Operand:
        """A captured value as recipes see it."""
        if value not in self.values:
            raise UnsupportedOpError(
                f"value {value} is read by the group but is neither made in it nor an input of it"
            )
        return ops.operand_of(self.specs[value], self.values[value])

    def runtime_number(self, node: OpNode, position: int) -> ops.Operand | None:
        """The run-time number that replaces a captured one, if there is one."""
        scalar = self.scalars.get((node.id, position))
        if scalar is None:
            return None
        return ops.Operand(value=scalar.name, dtype=scalar.dtype, weight="number")

    def lower_node(self, node: OpNode) -> None:
        """Append one op's statements and remember its results."""
        if node.id in self.candidate.views:
            if node.inputs[0] not in self.values:
                raise UnsupportedOpError(f"{node.op} views {node.inputs[0]}, not made in the group")
            self.values[node.outputs[0]] = self.values[node.inputs[0]]
            return
        info = ops.lookup(node.op)
        if info is None or info.recipe is None:
            reason = info.reason if info is not None else f"it is a {node.kind} op"
            raise UnsupportedOpError(f"{node.op} cannot be part of a kernel: {reason}")
        devices = {
            self.specs[v].device for v in (*node.inputs, *node.outputs) if self.specs[v].shape
        }
        if len(devices) > 1:
            raise UnsupportedOpError(
                f"{node.op} moves data between {' and '.join(sorted(devices))}"
            )
        results = ops.write_call(
            node,
            info,
            self.builder,
            self.operand,
            tuple(_supported(self.specs[value]) for value in node.outputs),
            lambda position: self.runtime_number(node, position),
        )
        self.values.update(zip(node.outputs, results, strict=False))


def _supported(spec: TensorSpec) -> str:
    if spec.dtype not in ops.SUPPORTED_DTYPES:
        raise UnsupportedOpError(
            f"tensor {spec.id} is {spec.dtype}; kernels take {', '.join(ops.SUPPORTED_DTYPES)}"
        )
    return spec.dtype


def lower(
    graph: OpGraph,
    candidate: FusionCandidate,
    *,
    name: str,
    runtime_scalars: frozenset[tuple[str, int]] = frozenset(),
    match: Literal["eager", "fast"] = "eager",
) -> FusedProgram:
    """Write a candidate as a fused program.

    ``runtime_scalars`` are (node id, flat argument position) of Python numbers that
    become run-time arguments; all others become constants.  With ``match="fast"``
    16-bit intermediates stay in float32, and products are added without a rounding of their own.

    Raises:
        UnsupportedOpError: an op, dtype or layout that no kernel is generated for.
    """
    entry = identifier(name, "fused")
    if candidate.regions:
        try:
            program = _lower_regions(graph, candidate, entry, runtime_scalars, match)
        except ViewError as error:
            raise UnsupportedOpError(
                f"a view in the group cannot be read through: {error}"
            ) from error
    else:
        state = _Lowering(graph, candidate, runtime_scalars, Namer(), {})
        program = _lower_one(state, entry, match, _output_names(candidate))
    check_program(program)
    return program


def _output_names(candidate: FusionCandidate) -> dict[str, str]:
    if len(candidate.outputs) == 1:
        return {candidate.outputs[0]: "out"}
    return {value: f"out{index}" for index, value in enumerate(candidate.outputs)}


def _lower_one(
    state: _Lowering, entry: str, match: Literal["eager", "fast"], names: Mapping[str, str]
) -> FusedProgram:
    """The program of a group over one iteration space; ``names`` are those of its outputs."""
    candidate = state.candidate
    for node in state.nodes:
        state.lower_node(node)
    statements = state.builder.statements
    outputs = []
    for value in candidate.outputs:
        if value not in state.values:
            raise UnsupportedOpError(f"output {value} of the group is not computed by its ops")
        result = state.values[value]
        if isinstance(result, Constant):
            result = state.builder.emit("cast", result, dtype=result.dtype)
        dtype = state.specs[value].dtype
        outputs.append(ProgramOutput(name=names[value], result=result, dtype=dtype, value=value))
    if match == "fast":
        kept = {node.id for node in state.nodes if explicit_rounding(node, state.dtypes)}
        read = {one.name: one.dtype for one in (*state.inputs, *state.scalars.values())}
        written = [output.result for output in outputs]
        statements = fewer_roundings(statements, written, read, kept)
    live = live_statements(statements, (output.result for output in outputs))
    inputs = _inputs_needed(state, live, outputs)
    for output in outputs:
        state.namer.take(output.name)  # "out" is reserved, "out0" is not
    renamed, results = _readable(live, outputs, state)
    return FusedProgram(
        name=entry,
        rank=len(candidate.shape),
        groups=state.space.groups,
        inputs=inputs,
        statements=renamed,
        outputs=results,
        nodes=tuple(node.id for node in state.nodes),
        match=match,
    )


def _lower_regions(
    graph: OpGraph,
    candidate: FusionCandidate,
    entry: str,
    runtime_scalars: frozenset[tuple[str, int]],
    match: Literal["eager", "fast"],
) -> FusedProgram:
    """The programs of all regions in one, over one set of names."""
    namer, names = Namer(), _output_names(candidate)
    parts: list[FusedProgram] = []
    for number, region in enumerate(candidate.regions):
        unrolled_graph, group = unrolled(graph, candidate, region)
        steps = {
            operand.value: access.steps
            for operand, access in zip(group.inputs, region.accesses, strict=True)
        }
        scalars = frozenset(
            (node.id, position)
            for node in unrolled_graph.nodes
            for name, position in runtime_scalars
            if original(node.id) == name
        )
        state = _Lowering(unrolled_graph, group, scalars, namer, steps)
        part = _lower_one(state, entry, match, names)
        parts.append(_placed(part, number, steps))
    return _joined(graph, candidate, parts)


def _placed(
    part: FusedProgram, number: int, steps: Mapping[str, tuple[ViewStep, ...]]
) -> FusedProgram:
    """A region's program with the recorded ids, and the region's number in all its parts."""
    return replace(
        part,
        inputs=tuple(
            replace(
                operand,
                region=number,
                value=original(str(operand.value)),
                steps=steps[str(operand.value)],
            )
            if operand.kind == "tensor"
            else replace(operand, node=original(operand.node))
            for operand in part.inputs
        ),
        statements=tuple(
            replace(statement, node=original(statement.node), region=number)
            for statement in part.statements
        ),
        outputs=tuple(replace(output, region=number) for output in part.outputs),
    )


def _joined(graph: OpGraph, candidate: FusionCandidate, parts: list[FusedProgram]) -> FusedProgram:
    """One program of all regions: each operand's parameter named after its first access."""
    inputs = [operand for part in parts for operand in part.inputs]
    names: dict[object, str] = {}
    dtypes: dict[object, str] = {}
    scalars: dict[tuple[str, int], ProgramInput] = {}
    same: dict[str, str] = {}  # a number that several ops or loops take is passed once
    for operand in inputs:
        if operand.kind == "tensor":
            names.setdefault(operand.value, operand.name)
            dtypes.setdefault(operand.value, operand.dtype)
        else:
            kept = scalars.setdefault((operand.node, operand.position), operand)
            same[operand.name] = kept.name
    tensors = [replace(p, parameter=names[p.value]) for p in inputs if p.kind == "tensor"]
    outputs = {output.value: output for part in parts for output in part.outputs}
    inside = {*candidate.nodes, *candidate.shared}
    return replace(
        parts[0],
        inputs=(*tensors, *scalars.values()),
        statements=tuple(
            replace(s, args=tuple(same.get(a, a) if isinstance(a, str) else a for a in s.args))
            for part in parts
            for s in part.statements
        ),
        outputs=tuple(outputs[value] for value in candidate.outputs),
        nodes=tuple(node.id for node in graph.nodes if node.id in inside),
        further=tuple(IterationSpace(rank=p.rank, groups=p.groups) for p in parts[1:]),
        parameters=tuple(
            ProgramParameter(name=names[o.value], dtype=dtypes[o.value], value=o.value)
            for o in candidate.inputs
            if o.value in names
        ),
    )


def _inputs_needed(
    state: _Lowering, statements: tuple[Statement, ...], outputs: list[ProgramOutput]
) -> tuple[ProgramInput, ...]:
    """All tensors, those too that lend only shape and dtype, and the numbers that are read."""
    read = {arg for statement in statements for arg in statement.args if isinstance(arg, str)}
    for (node, position), scalar in state.scalars.items():
        if scalar.name not in read:
            raise UnsupportedOpError(
                f"argument {position} of {node} does not reach a result: it is no run-time number"
            )
    return (*state.inputs, *state.scalars.values())


def _readable(
    statements: tuple[Statement, ...], outputs: list[ProgramOutput], state: _Lowering
) -> tuple[tuple[Statement, ...], tuple[ProgramOutput, ...]]:
    """Name each op's last statement after the op, the steps before it t1, t2, …"""
    bases = {node.id: op_base(node.op).strip("_") for node in state.nodes}
    last = {statement.node: statement.name for statement in statements}
    counts = Counter(bases[s.node] for s in statements if last[s.node] == s.name)
    seen: Counter[str] = Counter()
    names: dict[str, str] = {}
    steps = 0
    for statement in statements:
        if last[statement.node] == statement.name:
            base = bases[statement.node]
            seen[base] += 1
            wanted = f"{base}_{seen[base]}" if counts[base] > 1 else base
            names[statement.name] = state.namer.take(wanted)
        else:
            steps += 1
            names[statement.name] = state.namer.take(f"t{steps}")
    renamed = tuple(
        replace(
            s,
            name=names[s.name],
            args=tuple(names.get(a, a) if isinstance(a, str) else a for a in s.args),
        )
        for s in statements
    )
    results = tuple(replace(o, result=names.get(o.result, o.result)) for o in outputs)
    return renamed, results
