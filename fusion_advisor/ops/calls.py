"""One captured call of an op, as a recipe sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.ops.dtypes import (
    HALF_DTYPES,
    Number,
    is_float,
    is_integer,
    opmath,
    require_supported,
)
from fusion_advisor.ops.kinds import out_keyword
from fusion_advisor.ops.promotion import DEFAULT_FLOAT, Weight, result_type
from fusion_advisor.ops.scalars import Builder, Value
from fusion_advisor.records import Argument, Constant, OpNode, Symbol, ValueRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """An argument that takes part in arithmetic: its value, dtype and promotion weight."""

    value: Value
    dtype: str
    weight: Weight


@dataclass(frozen=True, slots=True)
class Call:
    """What a recipe needs: the builder, and the op's arguments by parameter name.

    ``operands`` holds tensors and numbers; ``plain`` everything else (None,
    strings, dtypes, absent optional parameters are missing from both).
    """

    op: str
    builder: Builder
    operands: Mapping[str, Operand]
    plain: Mapping[str, Argument]

    # --- arguments -------------------------------------------------------------

    def refuse(self, why: str) -> UnsupportedOpError:
        """The error to raise when this call cannot be expressed."""
        return UnsupportedOpError(f"{self.op}: {why}; leave this op eager")

    def has(self, name: str) -> bool:
        """Whether the parameter was given a tensor or number."""
        return name in self.operands

    def operand(self, name: str) -> Operand:
        """A required tensor or number."""
        if name not in self.operands:
            raise self.refuse(f"argument {name!r} is neither a tensor nor a number")
        return self.operands[name]

    def number(self, name: str, default: Number) -> Number:
        """A parameter whose value shapes the recipe: it must be known when generating."""
        if name not in self.operands:
            return default
        value = self.operands[name].value
        if not isinstance(value, Constant):
            raise self.refuse(f"argument {name!r} must be a constant number, not a run-time one")
        return value.value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean parameter."""
        return bool(self.number(name, default))

    def text(self, name: str, default: str) -> str:
        """A string parameter, such as ``approximate`` or ``rounding_mode``."""
        value = self.plain.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(f"argument {name!r} is not text")
        return value

    def dtype_argument(self, name: str) -> str | None:
        """A dtype parameter's name, or None where it was not given."""
        value = self.plain.get(name)
        if value is None:
            return None
        if not isinstance(value, Symbol) or value.kind != "dtype":
            raise self.refuse(f"argument {name!r} is not a dtype")
        return require_supported(value.name, self.op)

    def require_plain_memory(self) -> None:
        """Refuse tensors that are made sparse or pinned."""
        layout = self.plain.get("layout")
        if isinstance(layout, Symbol) and "strided" not in layout.name:
            raise self.refuse(f"it makes a {layout.name} tensor")
        if self.flag("pin_memory", False):
            raise self.refuse("it pins memory")

    # --- dtypes ----------------------------------------------------------------

    def common_dtype(self, *names: str) -> str:
        """The promoted dtype of the named operands that are present."""
        present = [self.operands[name] for name in names if name in self.operands]
        return result_type((operand.dtype, operand.weight) for operand in present)

    def float_dtype(self, *names: str) -> str:
        """As ``common_dtype``, integers and bool giving the default float dtype."""
        dtype = self.common_dtype(*names)
        return dtype if is_float(dtype) else DEFAULT_FLOAT

    def same_dtype(self, name: str) -> str:
        """The dtype of one operand."""
        return self.operand(name).dtype

    def one_dtype(self, *names: str) -> str:
        """The dtype that all named operands have, where eager has no rule for mixed ones."""
        found = {self.operand(name).dtype for name in names}
        if len(found) > 1:
            raise self.refuse(f"its operands are {' and '.join(sorted(found))}")
        return found.pop()

    def require_float(self, dtype: str) -> str:
        """Floats only."""
        if not is_float(dtype):
            raise self.refuse(f"no recipe for dtype {dtype}")
        return dtype

    def require_number(self, dtype: str) -> str:
        """Integers and floats only."""
        if not is_float(dtype) and not is_integer(dtype):
            raise self.refuse(f"no recipe for dtype {dtype}")
        return dtype

    # --- values ----------------------------------------------------------------

    def load(self, name: str, dtype: str) -> Value:
        """The operand converted to ``dtype`` as stored, then widened for computing."""
        stored = self.builder.cast(self.operand(name).value, dtype)
        return self.builder.cast(stored, opmath(dtype))

    def wide(self, name: str, dtype: str, default: Number | None = None) -> Value:
        """A number or 0-dim operand in the computing dtype, not rounded to 16 bits first."""
        if name not in self.operands and default is not None:
            return self.builder.constant(default, opmath(dtype))
        return self.builder.cast(self.operand(name).value, opmath(dtype))

    def rounded(self, name: str, dtype: str, default: Number) -> Value:
        """As ``wide``, but rounded to ``dtype`` before it is widened."""
        if name not in self.operands:
            stored: Value = self.builder.constant(default, dtype)
            return self.builder.cast(stored, opmath(dtype))
        return self.load(name, dtype)

    def store(self, value: Value, dtype: str) -> Value:
        """A computed value in the op's own dtype: the one rounding at the op's end."""
        return self.builder.cast(value, dtype)

    def constant(self, value: Number, dtype: str) -> Constant:
        """A literal in the computing dtype of ``dtype``."""
        return self.builder.constant(value, opmath(dtype))

    def emit(self, opcode: str, *args: Value) -> str:
        """Append one statement; its name."""
        return self.builder.emit(opcode, *args)

    def round_step(self, value: Value, dtype: str) -> Value:
        """Round an intermediate to 16 bits and widen it again, where eager does so."""
        if dtype not in HALF_DTYPES:
            return value
        return self.builder.cast(self.builder.cast(value, dtype), opmath(dtype))


def parameter_names(parameters: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Positional and keyword-only names of a table row's parameter text.

    ``"self other *alpha"`` has positional ``self other`` and keyword-only ``alpha``.
    """
    names = parameters.split()
    positional = tuple(name for name in names if not name.startswith("*"))
    return positional, tuple(name[1:] for name in names if name.startswith("*"))


def _number_operand(value: Number) -> Operand:
    dtype = "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float64"
    return Operand(value=Constant(value=value, dtype=dtype), dtype=dtype, weight="number")


def bind(
    node: OpNode,
    parameters: str,
    builder: Builder,
    tensor: Callable[[str], Operand],
    runtime_number: Callable[[int], Operand | None],
) -> Call:
    """Match a node's arguments with a row's parameters.

    ``tensor`` looks up a captured value; ``runtime_number`` gives the operand
    that replaces the number at a flat argument position, if there is one.

    Raises:
        UnsupportedOpError: more arguments than the row knows, or one of them of
            a kind that no recipe takes.
    """
    positional, keyword_only = parameter_names(parameters)
    if len(node.args) > len(positional):
        raise UnsupportedOpError(
            f"{node.op} was called with {len(node.args)} arguments, its recipe knows "
            f"{len(positional)}; leave this op eager"
        )
    named = _named_arguments(node, positional)
    operands: dict[str, Operand] = {}
    plain: dict[str, Argument] = {}
    position = 0
    written = out_keyword(node.op)  # no operand: what lies there is not read
    for name, argument in named:
        if name == written:
            pass
        elif name not in positional and name not in keyword_only:
            if argument is not None:
                raise UnsupportedOpError(
                    f"{node.op} was called with {name}=, which its recipe does not know; "
                    "leave this op eager"
                )
        elif isinstance(argument, ValueRef):
            operands[name] = tensor(argument.value)
        elif isinstance(argument, (bool, int, float)):
            operands[name] = runtime_number(position) or _number_operand(argument)
        elif argument is not None:
            plain[name] = argument
        position += flat_length(argument)
    return Call(node.op, builder, operands, plain)


def _named_arguments(node: OpNode, positional: Sequence[str]) -> list[tuple[str, Argument]]:
    return [*zip(positional, node.args, strict=False), *node.kwargs]


def unread_inputs(node: OpNode, parameters: str, unread: str) -> tuple[str, ...]:
    """The values that a call takes as ``unread`` parameters alone: only shape and dtype matter.

    So it is with what is given as ``out=``.
    """
    written = out_keyword(node.op)
    if not unread and not written:
        return ()
    names = {*unread.split(), written}
    positional, _ = parameter_names(parameters)
    lent: dict[str, None] = {}
    read: set[str] = set()
    for name, argument in _named_arguments(node, positional):
        if isinstance(argument, ValueRef):
            if name in names:
                lent[argument.value] = None
            else:
                read.add(argument.value)
    return tuple([value for value in lent if value not in read])


def flat_length(argument: Argument) -> int:
    """How many leaves an argument has; positions of run-time numbers count leaves."""
    if isinstance(argument, tuple):
        return sum(flat_length(item) for item in argument)
    return 1


def flat_arguments(node: OpNode) -> tuple[Argument, ...]:
    """All leaves of a node's args, then of its kwargs' values, in order."""
    leaves: list[Argument] = []

    def visit(argument: Argument) -> None:
        if isinstance(argument, tuple):
            for item in argument:
                visit(item)
        else:
            leaves.append(argument)

    for argument in (*node.args, *(value for _, value in node.kwargs)):
        visit(argument)
    return tuple(leaves)
