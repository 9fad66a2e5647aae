"""Scalar statements as Python expressions that numba types as intended.

Both targets share precedence, literals and integer wrapping; a ``Dialect`` adds the
functions a target calls.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import dataclass

from fusion_advisor.codegen.naming import Namer
from fusion_advisor.errors import CodegenError
from fusion_advisor.records import Constant, FusedProgram, ProgramInput, Statement

HALVES = ("bfloat16", "float16")
_HALF_PREFIX = {"bfloat16": "bf16", "float16": "f16"}
_LONGEST_INLINE = 64  # characters: longer intermediates get a name of their own

# Binding strength of an expression's outermost operator, weakest first.
CONDITIONAL, COMPARISON, OR, XOR, AND, SUM, PRODUCT, UNARY, ATOM = range(9)
_BINARY = {
    "add": ("+", SUM),
    "sub": ("-", SUM),
    "mul": ("*", PRODUCT),
    "div": ("/", PRODUCT),
    "and": ("&", AND),
    "or": ("|", OR),
    "xor": ("^", XOR),
}
# Functions that may be made of several roundings, the last of them of a product.
ENDING_IN_A_PRODUCT = frozenset(
    """
    acos acosh asin asinh atan atan2 atanh cos cosh erf erfc exp exp2 expm1 fmod hypot log log10
    log1p log2 pow sin sinh tan tanh
    """.split()
)
_PASSING = frozenset({"neg", "select", "maximum", "minimum", "abs"})  # opcodes that round nothing
# Functions that both targets have under one name, typed by their operands.
_FUNCTIONS = frozenset("floordiv truncdiv power shift_left shift_right gcd lcm ldexp".split())
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


@dataclass(frozen=True, slots=True)
class Expression:
    """Text and the binding strength of its outermost operator."""

    text: str
    strength: int = ATOM

    def inside(self, strength: int) -> str:
        """The text, in parentheses if it binds weaker than asked for."""
        return self.text if self.strength >= strength else f"({self.text})"


def shortest_float32(value: float) -> str:
    """The shortest decimal that rounds to this float32."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        try:
            rounded = struct.unpack("<f", struct.pack("<f", float(text)))[0]
        except OverflowError:  # a short decimal of the largest numbers lies beyond them
            continue
        if rounded == value:
            return repr(float(text))
    return repr(value)


def python_float(value: float) -> str:
    """A float64 literal; infinities and NaN by name from ``math``."""
    if math.isnan(value):
        return "math.nan"
    if math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    return repr(value)


class Dialect:
    """What a target calls the scalar operations.  ``maths`` is its 16-bit conversion module."""

    maths = ""

    def function(self, opcode: str, dtype: str, args: list[Expression]) -> Expression | None:
        """The expression of an opcode that is a function on this target, else None."""
        raise CodegenError(f"{type(self).__name__} writes no {opcode}")

    def repeats_operands(self, opcode: str, dtype: str) -> bool:
        """Whether the expression mentions an operand twice, so that it needs a name."""
        return False

    def product(self, statement: Statement, args: list[Expression], feeds_sum: bool) -> Expression:
        """A product or quotient; ``feeds_sum`` if an addition could be contracted with it."""
        return binary(statement.opcode, args)

    def sum_of_maths(self, opcode: str, dtype: str, args: list[Expression]) -> Expression:
        """A sum or difference that reads what a maths function gives."""
        return binary(opcode, args)

    def divisor(self, value: Expression) -> Expression:
        """An integer divisor that may be 0."""
        return self.call("divisor", [value])

    # --- shared ------------------------------------------------------------------

    def constant(self, constant: Constant) -> Expression:
        """A literal of exactly the constant's dtype."""
        value, dtype = constant.value, constant.dtype
        if dtype == "bool":
            return Expression("True" if value else "False")
        if dtype == "float64":
            text = python_float(float(value))
            return Expression(text, UNARY if text.startswith("-") else ATOM)
        if dtype in ("float32", *HALVES):
            plain = python_float(float(value))
            text = plain if "math" in plain else shortest_float32(float(value))
            return Expression(f"float32({text})")
        return Expression(f"{dtype}({int(value)})")

    def call(self, name: str, args: list[Expression]) -> Expression:
        """A function of the target's maths."""
        return Expression(f"{self.maths}.{name}({', '.join(arg.text for arg in args)})")

    def widen(self, dtype: str, bits: str) -> Expression:
        """The float32 value of 16 bits."""
        return Expression(f"{self.maths}.{_HALF_PREFIX[dtype]}_to_f32({bits})")

    def narrow(self, dtype: str, value: Expression) -> Expression:
        """The 16 bits nearest to a float32 value."""
        return Expression(f"{self.maths}.f32_to_{_HALF_PREFIX[dtype]}({value.text})")

    def cast(self, source: str, target: str, value: Expression) -> Expression:
        """A conversion; 16-bit values are held as float32 that were rounded."""
        if target in HALVES:
            return (
                value if source in HALVES else self.widen(target, self.narrow(target, value).text)
            )
        if source in HALVES and target == "float32":
            return value
        if target == "bool":
            zero = self.constant(Constant(value=0.0 if "float" in source else 0, dtype=source))
            return Expression(f"{value.inside(OR)} != {zero.text}", COMPARISON)
        if target == "uint8" and "float" in source:
            return Expression(f"uint8(int64({value.text}))")  # negative numbers wrap as in eager
        return Expression(f"{target}({value.text})")

    def statement(
        self,
        statement: Statement,
        source: str,
        args: list[Expression],
        feeds_sum: bool,
        reads_maths: bool = False,
    ) -> Expression:
        """One statement's right side; ``source`` is the dtype of its last operand."""
        opcode, dtype = statement.opcode, statement.dtype
        if opcode == "cast":
            return self.cast(source, dtype, args[0])
        if opcode in _COMPARISONS:
            left, right = args[0].inside(OR), args[1].inside(OR)
            return Expression(f"{left} {_COMPARISONS[opcode]} {right}", COMPARISON)
        if opcode in _FUNCTIONS:
            return self.call(opcode, args)
        if opcode == "divisor":
            return self.divisor(args[0])
        if "float" in source:
            if opcode in ("mul", "div"):
                return self.product(statement, args, feeds_sum)
            if opcode in ("add", "sub") and reads_maths:
                return self.sum_of_maths(opcode, dtype, args)
            special = self.function(opcode, source, args)
            if special is not None:
                return special
        return self._plain(opcode, dtype, args)

    def _plain(self, opcode: str, dtype: str, args: list[Expression]) -> Expression:
        """Operators that both targets write alike; integer results are wrapped to their width."""
        if opcode in ("add", "sub", "mul") and dtype == "int64":
            # Numba promises LLVM that signed sums do not overflow: x + 1 > x would be always true.
            # Narrower integers are computed in 64 bits and cannot.
            result = binary(opcode, [Expression(f"uint64({arg.text})") for arg in args])
        elif opcode in _BINARY:
            result = binary(opcode, args)
        elif opcode == "neg":
            result = Expression(f"-{args[0].inside(ATOM)}", UNARY)
        elif opcode == "not":
            operator = "not " if dtype == "bool" else "~"
            strength = CONDITIONAL if dtype == "bool" else UNARY
            result = Expression(f"{operator}{args[0].inside(ATOM)}", strength)
        elif opcode == "select":
            result = conditional(args[0].text, args[1], args[2])
        elif opcode in ("maximum", "minimum"):
            sign = ">" if opcode == "maximum" else "<"
            a, b = args[0].inside(ATOM), args[1].inside(ATOM)
            result = conditional(f"{a} {sign} {b}", args[0], args[1])
        elif opcode == "abs":
            a = args[0].inside(ATOM)
            result = conditional(f"{a} < 0", Expression(f"-{a}", UNARY), args[0])
        else:
            raise CodegenError(f"no text is known for opcode {opcode} on {dtype}")
        if dtype in ("bool", "float32", "float64", *HALVES) or opcode == "select":
            return result
        return Expression(f"{dtype}({result.text})")


def binary(opcode: str, args: list[Expression]) -> Expression:
    """``a op b``; operators group to the left."""
    operator, strength = _BINARY[opcode]
    left, right = args[0].inside(strength), args[1].inside(strength + 1)
    return Expression(f"{left} {operator} {right}", strength)


def conditional(condition: str, yes: Expression, no: Expression) -> Expression:
    """``yes if condition else no``"""
    return Expression(
        f"{yes.inside(COMPARISON)} if {condition} else {no.inside(COMPARISON)}", CONDITIONAL
    )


def _doubles(statement: Statement) -> bool:
    """Whether a statement is times two, of which LLVM makes a sum of its operand with itself."""
    return statement.opcode == "mul" and any(
        isinstance(arg, Constant) and abs(arg.value) == 2 for arg in statement.args
    )


class Body:
    """Writes a program's statements as lines, nesting what is used once within one op."""

    def __init__(self, program: FusedProgram, dialect: Dialect, namer: Namer) -> None:
        self.program = program
        self.dialect = dialect
        self.namer = namer
        self.dtypes = {p.name: p.dtype for p in program.inputs}
        self.dtypes.update((s.name, s.dtype) for s in program.statements)
        self.expressions: dict[str, Expression] = {}
        self.bits: dict[str, str] = {}
        results = [output.result for output in program.outputs]
        self.results = set(results)
        self.uses: Counter[str] = Counter(results)
        self.consumers: dict[str, list[Statement]] = {}
        self.makers = {statement.name: statement for statement in program.statements}
        for statement in program.statements:
            for arg in statement.args:
                if isinstance(arg, str):
                    self.uses[arg] += 1
                    self.consumers.setdefault(arg, []).append(statement)

    def bind(self, operand: ProgramInput, text: str) -> None:
        """Say by what text an input's value is read (16-bit values: already widened)."""
        self.expressions[operand.name] = Expression(text)

    def lines(self, node_comments: dict[str, str]) -> list[str]:
        """The statements in order, each op's first line with a comment."""
        result: list[str] = []
        node = ""
        block: list[str] = []
        for statement in self.program.statements:
            if statement.node != node:
                result += _commented(block, node_comments.get(node, ""))
                node, block = statement.node, []
            block += self._statement_lines(statement)
        return result + _commented(block, node_comments.get(node, ""))

    def stored(self, name: str, dtype: str) -> str:
        """The text to assign to an output element."""
        if dtype not in HALVES:
            return self.expressions[name].text
        return self.bits.get(name) or self.dialect.narrow(dtype, self.expressions[name]).text

    def _statement_lines(self, statement: Statement) -> list[str]:
        args = [
            self.dialect.constant(arg) if isinstance(arg, Constant) else self.expressions[arg]
            for arg in statement.args
        ]
        last = statement.args[-1]
        source = last.dtype if isinstance(last, Constant) else self.dtypes[last]
        name = statement.name
        if statement.dtype in HALVES and statement.opcode == "cast" and name in self.results:
            return self._rounded_result(statement, args[0])
        expression = self.dialect.statement(
            statement, source, args, self._feeds_sum(name), self._reads_maths(statement)
        )
        if self._can_nest(statement, expression):
            self.expressions[name] = expression
            return []
        self.expressions[name] = Expression(name)
        return [f"{name} = {expression.text}"]

    def _rounded_result(self, statement: Statement, value: Expression) -> list[str]:
        """A 16-bit output: keep its bits for the store, and its value if others read it."""
        bits = self.namer.take(f"{statement.name}_bits")
        self.bits[statement.name] = bits
        lines = [f"{bits} = {self.dialect.narrow(statement.dtype, value).text}"]
        if self.consumers.get(statement.name):
            lines.append(f"{statement.name} = {self.dialect.widen(statement.dtype, bits).text}")
        self.expressions[statement.name] = Expression(statement.name)
        return lines

    def _feeds_sum(self, name: str) -> bool:
        """Whether an addition reads this product, directly or through a sign or no-op cast."""
        for consumer in self.consumers.get(name, ()):
            if consumer.opcode in ("add", "sub") or _doubles(consumer):
                return True
            if consumer.opcode in _PASSING and self._feeds_sum(consumer.name):
                return True
        return False

    def _reads_maths(self, statement: Statement) -> bool:
        """Whether an operand comes from a maths function, directly or through a sign.

        A quotient of float64 counts as one: by a literal power of two it becomes a product late.
        """
        makers = [self.makers.get(arg) for arg in statement.args if isinstance(arg, str)]
        return any(
            maker is not None
            and (
                maker.opcode in ENDING_IN_A_PRODUCT
                or (maker.opcode == "div" and maker.dtype == "float64")
                or (maker.opcode in _PASSING and self._reads_maths(maker))
            )
            for maker in makers
        )

    def _can_nest(self, statement: Statement, expression: Expression) -> bool:
        if expression.strength == ATOM and expression.text.isidentifier():
            return True  # a cast that changes nothing
        if statement.opcode == "divisor":
            return False  # what surrounds it might not evaluate it
        if self.uses[statement.name] != 1 or statement.name in self.results:
            return False
        consumer = self.consumers[statement.name][0]
        if consumer.node != statement.node or len(expression.text) > _LONGEST_INLINE:
            return False
        source = self.dtypes[statement.name]
        return not self.dialect.repeats_operands(consumer.opcode, source)


def _commented(block: list[str], comment: str) -> list[str]:
    """A comment behind a block's one line, or above its several lines."""
    if not comment or not block:
        return block
    if len(block) == 1 and len(block[0]) + len(comment) < 80:
        return [f"{block[0]}  # {comment}"]
    return [f"# {comment}", *block]
