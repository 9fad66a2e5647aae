"""The eager chain as readable torch calls, replaying exactly the captured overloads."""

from __future__ import annotations

import keyword
import sys

from fusion_advisor import ops
from fusion_advisor.codegen.naming import Namer, op_base
from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.ops.views import size_free, slice_arguments
from fusion_advisor.records import (
    Argument,
    FusedProgram,
    OpGraph,
    OpNode,
    Symbol,
    TensorSpec,
    ValueRef,
)

_OPERATORS = {
    "aten.add.Tensor": "+",
    "aten.sub.Tensor": "-",
    "aten.mul.Tensor": "*",
    "aten.div.Tensor": "/",
    "aten.pow.Tensor_Scalar": "**",
    "aten.pow.Tensor_Tensor": "**",
    "aten.bitwise_and.Tensor": "&",
    "aten.bitwise_or.Tensor": "|",
    "aten.bitwise_xor.Tensor": "^",
    **{
        f"aten.{name}.{overload}": sign
        for name, sign in {
            "lt": "<",
            "le": "<=",
            "gt": ">",
            "ge": ">=",
            "eq": "==",
            "ne": "!=",
        }.items()
        for overload in ("Tensor", "Scalar")
    },
}
# Public functions whose call dispatches the very overload (with ".default").
_TORCH = frozenset(
    """
    abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf erfc exp exp2 expm1 floor
    frac log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sigmoid sign sin sinh
    sqrt tan tanh trunc maximum minimum fmax fmin logical_and logical_or logical_xor isnan
    atan2 hypot logaddexp logaddexp2
    """.split()
)
# In-place methods of a tensor that dispatch the overload their arguments say.
_METHODS = frozenset(
    """
    add_ sub_ mul_ div_ pow_ neg_ abs_ exp_ log_ sqrt_ rsqrt_ tanh_ sigmoid_ relu_ sin_ cos_
    clamp_ clamp_min_ clamp_max_ square_ reciprocal_ floor_ ceil_ round_ masked_fill_ addcmul_
    addcdiv_ lerp_ erf_ copy_
    """.split()
)
# Functions that dispatch the overload and give its first result alone.
_FIRST_RESULTS = {"aten.log_sigmoid_forward.default": "torch.nn.functional.logsigmoid"}
_FUNCTIONAL = frozenset(["silu", "gelu", "hardswish", "hardsigmoid", "mish"])
_VIEW_METHODS = frozenset(
    """
    aten.detach.default aten.expand.default aten.select.int aten.squeeze.dim aten.t.default
    aten.transpose.int aten.unflatten.int aten.unsqueeze.default
    """.split()
)
_TORCH_OVERLOADS = {
    "aten.where.self": "torch.where",
    "aten.rsub.Scalar": "torch.rsub",
    "aten.lerp.Scalar": "torch.lerp",
    "aten.lerp.Tensor": "torch.lerp",
    "aten.addcmul.default": "torch.addcmul",
    "aten.addcdiv.default": "torch.addcdiv",
    "aten.clamp.default": "torch.clamp",
    "aten.remainder.Tensor": "torch.remainder",
    "aten.remainder.Scalar": "torch.remainder",
    "aten.masked_fill.Scalar": "torch.masked_fill",
    "aten.masked_fill.Tensor": "torch.masked_fill",
}


class _Writer:
    """Names of values while the chain is written."""

    def __init__(self, program: FusedProgram, graph: OpGraph) -> None:
        members = set(program.nodes)
        self.program = program
        self.nodes = [node for node in graph.nodes if node.id in members]
        self.specs: dict[str, TensorSpec] = {spec.id: spec for spec in graph.values}
        self.nodes = [self._for_all_sizes(node) for node in self.nodes]
        self.names = {one.value: one.name for one in program.given}
        self.operands = frozenset(self.names)
        self.scalars = {(p.node, p.position): p.name for p in program.inputs if p.kind == "scalar"}
        self.namer = Namer()
        for name in (*self.names.values(), *self.scalars.values()):
            self.namer.take(name)

    def _for_all_sizes(self, node: OpNode) -> OpNode:
        """A view between the ops without the recorded sizes."""
        if node.kind != "view" or not node.inputs or not node.outputs:
            return node
        return size_free(node, self.specs[node.inputs[0]].shape, self.specs[node.outputs[0]].shape)

    def argument(self, node: OpNode, argument: Argument, position: int) -> str:
        """One argument as source text."""
        if (node.id, position) in self.scalars:
            return self.scalars[node.id, position]
        if isinstance(argument, ValueRef):
            return self.names[argument.value]
        if isinstance(argument, Symbol):
            if argument.kind not in ("dtype", "memory_format", "layout", "device"):
                raise UnsupportedOpError(f"{node.op} takes an argument that cannot be written down")
            name = argument.name.removeprefix("torch.")
            return repr(name) if argument.kind == "device" else f"torch.{ops_identifier(name)}"
        if isinstance(argument, tuple):
            inner = []
            for item in argument:
                inner.append(self.argument(node, item, position))
                position += ops.flat_length(item)
            return f"[{', '.join(inner)}]"
        return _literal(argument)

    def call(self, node: OpNode) -> str:
        """The expression that repeats one op."""
        base = op_base(node.op)
        position = 0
        args = []
        for argument in node.args:
            args.append(self.argument(node, argument, position))
            position += ops.flat_length(argument)
        kwargs = []
        for key, argument in node.kwargs:
            # (rounding_mode has no default: None must be said)
            left_out = argument is None and key != "rounding_mode"
            if not left_out and not self._is_own_device(node, argument):
                kwargs.append((ops_identifier(key), self.argument(node, argument, position)))
            position += ops.flat_length(argument)
        if ops.is_inplace(node.op):
            return self._written(node, base, args, kwargs)
        if (keyword := ops.out_keyword(node.op)) in dict(kwargs):
            return self._given(node, keyword, args, dict(kwargs))
        if node.op == "aten.slice.Tensor" and not kwargs:
            return self._sliced(node, args[0])
        return _expression(ops.functional_name(node.op), args, kwargs, self._casts(node))

    def _sliced(self, node: OpNode, tensor: str) -> str:
        """A slice in brackets, as a person writes it."""
        rank = len(self.specs[node.inputs[0]].shape)
        at, start, end, step = slice_arguments(node)
        bounds = f"{start or ''}:{'' if end == sys.maxsize else end}"
        bounds += f":{step}" if step != 1 else ""
        return f"{tensor}[{', '.join([*[':'] * (at % rank), bounds])}]"

    def _written(
        self, node: OpNode, base: str, args: list[str], kwargs: list[tuple[str, str]]
    ) -> str:
        """An op that writes in place: for other dtypes too the written tensor keeps its own.

        What the group itself made is written; an operand belongs to the caller, and is copied
        (``copy`` is the caller's own choice where others see its memory as well).
        """
        first = node.args[0]
        if isinstance(first, ValueRef) and first.value in self.operands:
            args = [f"copy({args[0]})", *args[1:]]
        everything = ", ".join([*args[1:], *(f"{key}={text}" for key, text in kwargs)])
        # (Of a number these methods make a tensor: another overload, which rounds otherwise.)
        other = base in ("add_", "sub_", "mul_", "div_") and ".Scalar" in node.op
        if base in _METHODS and not other:
            return f"{args[0]}.{base}({everything})"
        return f"torch.ops.{node.op}({', '.join(part for part in (args[0], everything) if part)})"

    def _given(self, node: OpNode, keyword: str, args: list[str], kwargs: dict[str, str]) -> str:
        """An op with out=: what it is given there is copied where it is the caller's."""
        target = dict(node.kwargs)[keyword]
        if isinstance(target, ValueRef) and target.value in self.operands:
            kwargs = {**kwargs, keyword: f"copy({kwargs[keyword]})"}
        everything = ", ".join([*args, *(f"{key}={text}" for key, text in kwargs.items())])
        return f"torch.ops.{node.op}({everything})"

    def _is_own_device(self, node: OpNode, argument: Argument) -> bool:
        """Whether an argument names the device that the op's tensors are on anyway."""
        if not isinstance(argument, Symbol) or argument.kind != "device":
            return False
        return all(self.specs[value].device == argument.name for value in node.inputs)

    def _casts(self, node: OpNode) -> bool:
        """Whether a copy changes the dtype (``Tensor.to`` then makes exactly this op)."""
        first = node.args[0] if node.args else None
        if not isinstance(first, ValueRef):
            return False
        return self.specs[first.value].dtype != self.specs[node.outputs[0]].dtype


def written_operands(program: FusedProgram, graph: OpGraph) -> tuple[str, ...]:
    """The names of operands that an op of the chain writes in place."""
    members = set(program.nodes)
    targets = [ops.written_argument(node) for node in graph.nodes if node.id in members]
    written = {target.value for target in targets if isinstance(target, ValueRef)}
    return tuple(one.name for one in program.given if one.value in written)


def ops_identifier(name: str) -> str:
    """A captured attribute name, refused unless it is a plain identifier."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise UnsupportedOpError(f"the name {name[:40]!r} cannot be written into source text")
    return name


def _literal(value: bool | int | float | str | None) -> str:
    if type(value) is int and not -(2**64) < value < 2**64:
        raise UnsupportedOpError("a whole number of more than 64 bits is no argument of an op")
    if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
        return f'float("{value}")'
    return ascii(value) if isinstance(value, str) else repr(value)


def _expression(name: str, args: list[str], kwargs: list[tuple[str, str]], casts: bool) -> str:
    """The most readable call that dispatches exactly overload ``name``."""
    everything = ", ".join([*args, *(f"{key}={text}" for key, text in kwargs)])
    base, overload = name.split(".")[1], name.split(".")[2]
    if name in _OPERATORS and len(args) == 2 and not kwargs:
        left = args[0]
        right = f"({args[1]})" if args[1].startswith("-") else args[1]
        return f"{left} {_OPERATORS[name]} {right}"
    if name == "aten.add.Tensor" or name == "aten.sub.Tensor":
        return f"torch.{base}({everything})"
    if name == "aten._to_copy.default" and casts and [key for key, _ in kwargs] == ["dtype"]:
        return f"{args[0]}.to({kwargs[0][1]})"
    if name == "aten.permute.default":
        return f"{args[0]}.permute({args[1].strip('[]')})"
    if name in _VIEW_METHODS:
        return f"{args[0]}.{base}({', '.join(args[1:])})"
    if name == "aten.clone.default":
        rest = ", ".join(f"{key}={text}" for key, text in kwargs)
        return f"{args[0]}.clone({rest})"
    if name in _TORCH_OVERLOADS:
        return f"{_TORCH_OVERLOADS[name]}({everything})"
    if overload == "default" and base in _TORCH:
        return f"torch.{base}({everything})"
    if overload == "default" and base in _FUNCTIONAL:
        return f"torch.nn.functional.{base}({everything})"
    return f"torch.ops.{name}({everything})"


def eager_function_text(
    program: FusedProgram, graph: OpGraph, name: str, node_comments: dict[str, str]
) -> str:
    """A plain torch function of the program's inputs that returns its outputs."""
    writer = _Writer(program, graph)
    parameters = [*writer.names.values(), *writer.scalars.values()]
    if written_operands(program, graph):
        parameters += ["*", "copy=torch.clone"]
    lines = [f"def {name}({', '.join(parameters)}):"]
    finals = {s.node: s.name for s in program.statements}
    needed = {value for node in writer.nodes for value in node.inputs}
    needed.update(output.value for output in program.outputs)
    for node in writer.nodes:
        text = writer.call(node)
        wanted = finals.get(node.id, op_base(node.op).strip("_"))
        kept = [value for value in node.outputs if value in needed] or [node.outputs[0]]
        for place, value in enumerate(node.outputs):
            if value in kept:
                name = f"{wanted}_{place}" if len(kept) > 1 else wanted
                writer.names[value] = writer.namer.take(name)
        targets = [writer.names.get(value, "_") for value in node.outputs]
        if node.op in _FIRST_RESULTS and kept == [node.outputs[0]]:
            text, targets = f"{_FIRST_RESULTS[node.op]}({text.partition('(')[2]}", targets[:1]
        lines.append(f"    {', '.join(targets)} = {text}")
    results = [writer.names[output.value] for output in program.outputs]
    lines.append(f"    return {', '.join(results)}")
    return "\n".join(lines) + "\n"
