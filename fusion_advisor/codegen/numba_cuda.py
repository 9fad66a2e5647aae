"""The CUDA kernel: one thread per element, uint32 index arithmetic, a bounds check."""

from __future__ import annotations

from fusion_advisor.codegen.expressions import (
    ATOM,
    COMPARISON,
    HALVES,
    UNARY,
    Body,
    Dialect,
    Expression,
    binary,
    conditional,
)
from fusion_advisor.codegen.naming import Namer, program_namer
from fusion_advisor.codegen.program import region_programs
from fusion_advisor.records import Constant, FusedProgram, ProgramInput, Statement

# libdevice names by opcode: float32, float64.
_LIBDEVICE = {
    "abs": ("fabsf", "fabs"),
    "fma": ("fmaf_rn", "fma_rn"),
    "round": ("rintf", "rint"),
    "sqrt": ("fsqrt_rn", "dsqrt_rn"),
    **{
        name: (f"{name}f", name)
        for name in (
            "acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc exp exp2 "
            "expm1 floor fmod hypot log log10 log1p log2 pow sin sinh tan tanh trunc"
        ).split()
    },
}


class CudaDialect(Dialect):
    """Functions of ``libdevice``; products that an addition reads are kept apart from it.

    NVVM contracts ``x * y + z`` into one fused multiply-add by default, which eager does
    not do across ops; ``libdevice.fmul_rn`` is the multiplication it leaves alone, and
    ``libdevice.fadd_rn`` the addition where the product stands inside a function.
    """

    maths = "cuda_math"

    def function(self, opcode: str, dtype: str, args: list[Expression]) -> Expression | None:
        """``libdevice.name(…)``, or comparisons that keep NaN."""
        if opcode in _LIBDEVICE:
            name = _LIBDEVICE[opcode][dtype == "float64"]
            return Expression(f"libdevice.{name}({', '.join(arg.text for arg in args)})")
        if opcode == "isnan":
            return Expression(f"{args[0].text} != {args[0].text}", COMPARISON)
        if opcode == "signbit":
            name = "signbitd" if dtype == "float64" else "signbitf"
            return Expression(f"libdevice.{name}({args[0].text}) != 0", COMPARISON)
        if opcode in ("maximum", "minimum"):
            a, b = args[0].inside(ATOM), args[1].inside(ATOM)
            sign = ">" if opcode == "maximum" else "<"
            if "(" in a:  # a literal is never NaN
                return conditional(f"{a} {sign} {b}", args[0], args[1])
            return conditional(f"{a} {sign} {b} or {a} != {a}", args[0], args[1])
        return None

    def repeats_operands(self, opcode: str, dtype: str) -> bool:
        """Conditionals mention their operands twice."""
        return opcode in ("maximum", "minimum", "isnan") or (
            "float" not in dtype and opcode == "abs"
        )

    def product(self, statement: Statement, args: list[Expression], feeds_sum: bool) -> Expression:
        """``a * b``, or the uncontracted multiplication where an addition reads it.

        A division by a literal power of two becomes a multiplication in NVVM, so it needs
        the same care.
        """
        is_literal = isinstance(statement.args[1], Constant)
        if not feeds_sum or (statement.opcode == "div" and not is_literal):
            return binary(statement.opcode, args)
        name = f"{'d' if statement.dtype == 'float64' else 'f'}{statement.opcode}_rn"
        return Expression(f"libdevice.{name}({args[0].text}, {args[1].text})")

    def sum_of_maths(self, opcode: str, dtype: str, args: list[Expression]) -> Expression:
        """The uncontracted addition: libdevice's functions end in products of their own."""
        left, right = args
        if opcode == "sub":
            right = Expression(f"-{right.inside(ATOM)}", UNARY)
        name = "dadd_rn" if dtype == "float64" else "fadd_rn"
        return Expression(f"libdevice.{name}({left.text}, {right.text})")


def _product(factors: list[str]) -> str:
    """A uint32 product: numba widens uint32 * uint32 to uint64, so each step is cast."""
    text = factors[0]
    for factor in factors[1:]:
        text = f"uint32({text} * {factor})"
    return text


class _Index:
    """Coordinates along the axes, made from the flat thread index as far as they are needed."""

    def __init__(self, flat: str, sizes: tuple[str, ...], namer: Namer) -> None:
        self.sizes = sizes
        self.flat = flat
        axes = range(len(sizes))
        names = ("row", "column") if len(sizes) == 2 else tuple(f"i{axis}" for axis in axes)
        self.coordinates = tuple(namer.take(name) for name in names)
        self.needed: set[int] = set()

    def coordinate(self, axis: int) -> str:
        if len(self.sizes) == 1:
            return self.flat
        self.needed.add(axis)
        return self.coordinates[axis]

    def lines(self) -> list[str]:
        """Definitions of the coordinates that were asked for."""
        result = []
        for axis in sorted(self.needed):
            inner = list(self.sizes[axis + 1 :])
            text = f"uint32({self.flat} // {_product(inner)})" if inner else self.flat
            if axis:
                text = f"uint32({text} % {self.sizes[axis]})"
            result.append(f"{self.coordinates[axis]} = {text}")
        return result


def _offset(operand: ProgramInput, index: _Index, strides: tuple[str, ...]) -> str:
    """Where an operand's element stands in its flat array."""
    axes = len(index.sizes)
    own = operand.groups
    if not own:
        return "0"
    if operand.layout == "strided":
        terms = [
            f"uint32({index.coordinate(group)} * {stride})"
            for group, stride in zip(own, strides, strict=True)
        ]
    elif own == tuple(range(axes)):
        return index.flat
    elif len(own) == own[-1] - own[0] + 1 and own[-1] == axes - 1:  # the innermost axes
        return (
            index.coordinate(own[0])
            if len(own) == 1
            else (f"uint32({index.flat} % {_product([index.sizes[group] for group in own])})")
        )
    else:
        terms = []
        for place, group in enumerate(own):
            inner = [index.sizes[later] for later in own[place + 1 :]]
            terms.append(_product([index.coordinate(group), *inner]))
    text = terms[0]
    for term in terms[1:]:
        text = f"uint32({text} + {term})"
    return text


def cuda_kernel_text(program: FusedProgram, name: str, node_comments: dict[str, str]) -> str:
    """The kernel's source, decorator included.

    Arguments are the operands and outputs (flat), the axis sizes, the strides of
    strided operands (one per group of theirs; sizes and strides uint32), then the scalars.
    Regions stand one after the other, each with sizes of its own.
    """
    namer = program_namer(program)
    flat = ""
    sizes: list[str] = []
    strides: list[str] = []
    lines: list[str] = []
    for part in region_programs(program):
        own = _size_names(len(part.groups), namer)
        flat = flat or namer.take("i")
        lines.append(f"    if {flat} < {_product(list(own))}:")
        lines += _guarded_lines(part, _Index(flat, own, namer), namer, strides, node_comments)
        sizes += own
    parameters = [p.name for p in program.inputs if p.kind == "tensor"]
    parameters += [output.name for output in program.outputs]
    parameters += [*sizes, *strides]
    parameters += [p.name for p in program.inputs if p.kind == "scalar"]
    head = [
        "@cuda.jit",
        f"def {name}({', '.join(parameters)}):",
        f"    {flat} = uint32(cuda.grid(1))",
    ]
    return "\n".join([*head, *lines]) + "\n"


def _size_names(axes: int, namer: Namer) -> tuple[str, ...]:
    if axes == 1:
        return (namer.take("n"),)
    return tuple(namer.take(f"n{axis}") for axis in range(axes))


def _guarded_lines(
    program: FusedProgram,
    index: _Index,
    namer: Namer,
    strides: list[str],
    node_comments: dict[str, str],
) -> list[str]:
    """What one region's threads do; the names of its operands' strides join ``strides``."""
    dialect = CudaDialect()
    body = Body(program, dialect, namer)
    loads: list[str] = []
    for operand in program.inputs:
        if operand.kind == "scalar":
            body.bind(operand, operand.name)
            continue
        own = (
            tuple(namer.take(f"{operand.name}_stride{group}") for group in operand.groups)
            if operand.layout == "strided"
            else ()
        )
        strides += own
        if not body.uses[operand.name]:
            continue
        element = f"{operand.name}[{_offset(operand, index, own)}]"
        if operand.dtype in HALVES:
            element = dialect.widen(operand.dtype, element).text
        local = namer.take(f"{operand.name}_i")
        loads.append(f"{local} = {element}")
        body.bind(operand, local)
    statements = body.lines(node_comments)
    stores = [
        f"{output.name}[{index.flat}] = {body.stored(output.result, output.dtype)}"
        for output in program.outputs
    ]
    return [f"        {line}" for line in (*index.lines(), *loads, *statements, *stores)]
