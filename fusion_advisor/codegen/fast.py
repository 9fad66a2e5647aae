"""``match="fast"``: statements with fewer roundings than eager's.

16-bit intermediates stay in float32, and a product that one sum reads becomes one fused
multiply-add.  Down-casts that the code itself asks for (``x.to(torch.bfloat16)``) keep their
rounding, and no operation is assumed to have finite operands: NaN, infinities and zeros of both
signs come out as the remaining operations make them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from fusion_advisor.codegen.program import live_statements
from fusion_advisor.ops.dtypes import HALF_DTYPES
from fusion_advisor.records import Constant, Statement


def fewer_roundings(
    statements: Iterable[Statement],
    results: Iterable[str],
    inputs: Mapping[str, str],
    explicit: Collection[str],
) -> list[Statement]:
    """The statements in order; ``explicit`` are the nodes whose down-casts stay.

    ``inputs`` are the dtypes of what is read.  Products that became part of a sum are still among
    the statements.
    """
    needed = tuple(results)
    wide = _Widening(inputs, explicit, needed)
    for statement in statements:
        wide.take(statement)
    return _contracted(live_statements(wide.result, needed), needed)


class _Widening:
    """Rewrites statements one by one so that every 16-bit value is read as float32.

    A 16-bit value that the code did not ask for has a twin in float32, which others read in its
    place; the value itself stays for outputs.
    """

    def __init__(
        self, inputs: Mapping[str, str], explicit: Collection[str], written: Collection[str]
    ) -> None:
        self._written = written
        self.result: list[Statement] = []
        self._dtypes = dict(inputs)
        self._explicit = explicit
        self._twins: dict[str, str | Constant] = {}
        self._alias: dict[str, str | Constant] = {}

    def take(self, statement: Statement) -> None:
        """Append what one statement becomes."""
        args = tuple(self._read(arg, statement) for arg in statement.args)
        name, dtype = statement.name, statement.dtype
        same = statement.opcode == "cast" and self._dtype(args[0]) == dtype == "float32"
        if same and name not in self._written:
            self._alias[name] = args[0]
            return
        narrow = dtype in HALF_DTYPES and statement.node not in self._explicit
        if narrow and statement.opcode != "cast":
            args = (self._add(replace(statement, name=f"{name}_wide", dtype="float32", args=args)),)
            statement = replace(statement, opcode="cast")
        if narrow:
            self._twins[name] = self._in_float32(args[0], statement)
        self._add(replace(statement, args=args))

    def _dtype(self, value: str | Constant) -> str:
        return value.dtype if isinstance(value, Constant) else self._dtypes[value]

    def _add(self, statement: Statement) -> str:
        self._dtypes[statement.name] = statement.dtype
        self.result.append(statement)
        return statement.name

    def _read(self, arg: str | Constant, reader: Statement) -> str | Constant:
        if isinstance(arg, Constant):
            return replace(arg, dtype="float32") if arg.dtype in HALF_DTYPES else arg
        arg = self._alias.get(arg, arg)
        if isinstance(arg, Constant) or self._dtypes[arg] not in HALF_DTYPES:
            return arg
        return self._in_float32(arg, reader)

    def _in_float32(self, value: str | Constant, reader: Statement) -> str | Constant:
        """The float32 twin of a value, made where there is none yet."""
        if isinstance(value, Constant) or self._dtypes[value] == "float32":
            return value
        if value not in self._twins:
            made = replace(
                reader, name=f"{value}_float", opcode="cast", dtype="float32", args=(value,)
            )
            self._twins[value] = self._add(made)
        return self._twins[value]


def _contracted(statements: tuple[Statement, ...], results: tuple[str, ...]) -> list[Statement]:
    """Products that nothing but one sum reads, as ``fma`` in the place of that sum."""
    uses = Counter(results)
    for statement in statements:
        uses.update(arg for arg in statement.args if isinstance(arg, str))
    products = {
        statement.name: statement
        for statement in statements
        if statement.opcode == "mul"
        and statement.dtype in ("float32", "float64")
        and uses[statement.name] == 1
    }
    result: list[Statement] = []
    for statement in statements:
        result += _with_fma(statement, products)
    return result


def _with_fma(statement: Statement, products: dict[str, Statement]) -> list[Statement]:
    if statement.opcode not in ("add", "sub"):
        return [statement]
    places = [place for place, arg in enumerate(statement.args) if arg in products]
    if not places:
        return [statement]
    product = products[str(statement.args[places[0]])]
    (first, second), rest = product.args, statement.args[1 - places[0]]
    negated: list[Statement] = []

    def minus(value: str | Constant) -> str | Constant:
        if isinstance(value, Constant):
            return replace(value, value=-value.value)
        name = f"{statement.name}_minus"
        negated.append(replace(statement, name=name, opcode="neg", args=(value,)))
        return name

    if statement.opcode == "sub":
        if places[0] == 0:
            rest = minus(rest)  # a * b - c
        else:
            first = minus(first)  # c - a * b
    return [*negated, replace(statement, opcode="fma", args=(first, second, rest))]
