"""Writes one captured call in scalar opcodes, or says why that cannot be done.

Lowering and analysis ask here, so that what a kernel cannot hold splits a group and is never
found out only when the kernel is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from fusion_advisor.errors import CodegenError, UnsupportedOpError
from fusion_advisor.ops.calls import Operand, bind, flat_arguments
from fusion_advisor.ops.dtypes import SUPPORTED_DTYPES
from fusion_advisor.ops.kinds import written_argument
from fusion_advisor.ops.scalars import Builder, Value
from fusion_advisor.ops.table import OpInfo, lookup
from fusion_advisor.records import OpGraph, OpNode, TensorSpec


def operand_of(spec: TensorSpec, value: Value) -> Operand:
    """A captured tensor as recipes see it."""
    weight: Literal["tensor", "scalar tensor", "number"] = (
        "number" if "wrapped-number" in spec.flags else "tensor" if spec.shape else "scalar tensor"
    )
    return Operand(value=value, dtype=spec.dtype, weight=weight)


def write_call(
    node: OpNode,
    info: OpInfo,
    builder: Builder,
    tensor: Callable[[str], Operand],
    dtypes: Sequence[str],
    runtime_number: Callable[[int], Operand | None] = lambda position: None,
) -> tuple[Value, ...]:
    """Append a call's statements; its results, of the captured ``dtypes``.

    ``tensor`` looks up a captured value; ``runtime_number`` gives the operand that replaces the
    number at a flat argument position, if there is one.

    Raises:
        UnsupportedOpError: the recipe does not take this call, or gives another dtype.
    """
    if info.recipe is None:
        raise UnsupportedOpError(f"{node.op} cannot be part of a kernel: {info.reason}")
    for argument in flat_arguments(node):
        if type(argument) is int and not -(2**64) < argument < 2**64:
            raise UnsupportedOpError(f"{node.op} takes a whole number of more than 64 bits")
    builder.node = node.id
    parameters = f"{info.parameters} *second" if info.halves else info.parameters
    made_of = info.recipe(bind(node, parameters, builder, tensor, runtime_number))
    results = made_of if isinstance(made_of, tuple) else (made_of,)
    if len(results) != len(dtypes):
        raise UnsupportedOpError(
            f"{node.op} gave {len(dtypes)} results where its recipe gives {len(results)}"
        )
    written: list[Value] = []
    for result, dtype in zip(results, dtypes, strict=True):
        made = builder.dtype(result)
        if written_argument(node) is not None:
            result = builder.cast(result, dtype)  # written into a tensor of its dtype
        elif made != dtype:
            raise UnsupportedOpError(
                f"{node.op} gave {dtype} where its recipe gives {made} (another default dtype?)"
            )
        written.append(result)
    return tuple(written)


def why_unwritable(
    node: OpNode,
    info: OpInfo,
    specs: Mapping[str, TensorSpec],
    run_time: Collection[int] = (),
) -> str:
    """Why lowering would refuse this call alone; empty where it takes it.

    ``run_time`` are flat positions of numbers that become arguments of the kernel.
    """
    for spec in (specs[value] for value in (*node.inputs, *node.outputs)):
        if spec.dtype not in SUPPORTED_DTYPES:
            return f"{node.op}: no kernels are generated for {spec.dtype}"
    names = {value: f"a{number}" for number, value in enumerate(dict.fromkeys(node.inputs))}
    numbers: dict[int, Operand] = {}
    for position, argument in enumerate(flat_arguments(node)):
        if position in run_time:
            if isinstance(argument, bool) or not isinstance(argument, (int, float)):
                return f"argument {position} of {node.op} is not a number"
            dtype = "float64" if isinstance(argument, float) else "int64"
            numbers[position] = Operand(value=f"s{position}", dtype=dtype, weight="number")
    dtypes = {name: specs[value].dtype for value, name in names.items()}
    dtypes |= {str(number.value): number.dtype for number in numbers.values()}
    try:
        write_call(
            node,
            info,
            Builder(dtypes),
            lambda value: operand_of(specs[value], names[value]),
            [specs[value].dtype for value in node.outputs],
            numbers.get,
        )
    except (UnsupportedOpError, CodegenError) as refused:
        return str(refused)
    return ""


def takeable_numbers(
    graph: OpGraph, wanted: Collection[tuple[str, int]]
) -> frozenset[tuple[str, int]]:
    """Of (node id, flat position) those that a kernel can take as run-time numbers.

    The others (an exponent, a flag) shape the op's recipe and are written into the kernel.
    """
    specs = {spec.id: spec for spec in graph.values}
    nodes = {node.id: node for node in graph.nodes}
    kept: set[tuple[str, int]] = set()
    for name, position in sorted(wanted):
        node = nodes[name]
        info = lookup(node.op)
        together = {place for other, place in kept if other == name} | {position}
        if info is not None and not why_unwritable(node, info, specs, together):
            kept.add((name, position))
    return frozenset(kept)
