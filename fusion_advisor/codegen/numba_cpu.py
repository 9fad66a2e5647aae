"""The CPU kernel: a prange over the outer axis, inner loops that LLVM vectorises."""

from __future__ import annotations

from fusion_advisor.codegen.expressions import (
    HALVES,
    UNARY,
    Body,
    Dialect,
    Expression,
)
from fusion_advisor.codegen.naming import Namer, program_namer
from fusion_advisor.codegen.program import region_programs
from fusion_advisor.records import FusedProgram, ProgramInput

_MATHS = frozenset(
    """
    abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc exp exp2 expm1
    floor fma fmod hypot isnan log log10 log1p log2 maximum minimum pow round select signbit
    sin sinh sqrt tan tanh trunc
    """.split()
)


class CpuDialect(Dialect):
    """Functions of ``cpu_math``, which vectorise; numba contracts nothing without fastmath."""

    maths = "cpu_math"

    def __init__(self, zero_divisor: str = "") -> None:
        self.zero_divisor = zero_divisor  # the array that a checked divisor reports to

    def divisor(self, value: Expression) -> Expression:
        """The divisor that is never 0; where it was, the kernel's caller is told."""
        return self.call("divisor", [value, Expression(self.zero_divisor)])

    def function(self, opcode: str, dtype: str, args: list[Expression]) -> Expression | None:
        """``cpu_math.name(…)`` where there is one."""
        if opcode == "neg":
            return Expression(f"-{args[0].inside(UNARY + 1)}", UNARY)
        if opcode not in _MATHS:
            return None
        return self.call(opcode, args)

    def repeats_operands(self, opcode: str, dtype: str) -> bool:
        """Integer maximum, minimum and magnitude are conditionals."""
        return "float" not in dtype and opcode in ("maximum", "minimum", "abs")


def index_names(count: int, namer: Namer) -> tuple[str, ...]:
    """Loop variables: i, j, k; i0, i1, … from four axes on."""
    if count <= 3:
        return tuple(namer.take(name) for name in ("i", "j", "k")[:count])
    return tuple(namer.take(f"i{axis}") for axis in range(count))


def _suffix(operand: ProgramInput, indices: tuple[str, ...]) -> str:
    """What a loaded element is told apart by from its array: x_ij is x[i, j]."""
    letters = "".join(indices[group] for group in operand.groups) or "0"
    return letters if len(letters) <= 3 else "value"


def _load(operand: ProgramInput, indices: tuple[str, ...], dialect: Dialect) -> str:
    place = ", ".join(indices[group] for group in operand.groups) or "0"
    element = f"{operand.name}[{place}]"
    return dialect.widen(operand.dtype, element).text if operand.dtype in HALVES else element


def cpu_kernel_text(program: FusedProgram, name: str, node_comments: dict[str, str]) -> str:
    """The kernel's source, decorator included.

    Arguments are the operands (one dimension per group of theirs; one element where
    broadcast everywhere), the outputs (one dimension per axis of their region), then, where a
    divisor may be 0, one bool that is set if one is, then the scalars.
    """
    namer = program_namer(program)
    parameters = [p.name for p in program.inputs if p.kind == "tensor"]
    parameters += [output.name for output in program.outputs]
    zero_divisor = namer.take("zero_divisor") if program.checks_divisors else ""
    if zero_divisor:
        parameters.append(zero_divisor)
    parameters += [p.name for p in program.inputs if p.kind == "scalar"]
    lines = ["@cpu_kernel", f"def {name}({', '.join(parameters)}):"]
    for part in region_programs(program):
        lines += _loop_lines(part, CpuDialect(zero_divisor), namer, node_comments)
    return "\n".join(lines) + "\n"


def _loop_lines(
    program: FusedProgram, dialect: CpuDialect, namer: Namer, node_comments: dict[str, str]
) -> list[str]:
    """One region: its loops with all that stands in them."""
    body = Body(program, dialect, namer)
    axes = len(program.groups)
    indices = index_names(axes, namer)
    loads: list[list[str]] = [[] for _ in range(axes + 1)]
    for operand in program.inputs:
        if operand.kind == "scalar":
            body.bind(operand, operand.name)
            continue
        if not body.uses[operand.name]:
            continue
        depth = max(operand.groups) + 1 if operand.groups else 0
        local = namer.take(f"{operand.name}_{_suffix(operand, indices)}")
        loads[depth].append(f"{local} = {_load(operand, indices, dialect)}")
        body.bind(operand, local)
    lines = _nest(program, indices, loads, namer)
    inner = "    " * (axes + 1)
    lines += [inner + line for line in body.lines(node_comments)]
    place = ", ".join(indices)
    lines += [
        f"{inner}{output.name}[{place}] = {body.stored(output.result, output.dtype)}"
        for output in program.outputs
    ]
    return lines


def _nest(
    program: FusedProgram, indices: tuple[str, ...], loads: list[list[str]], namer: Namer
) -> list[str]:
    """The loop headers, with every load at the outermost depth it can stand at."""
    first = program.outputs[0].name
    lines = [f"    {load}" for load in loads[0]]
    axes = len(indices)
    if axes == 1:
        sizes: tuple[str, ...] = (f"{first}.size",)
    else:
        names = ("rows", "columns") if axes == 2 else tuple(f"n{axis}" for axis in range(axes))
        sizes = tuple(namer.take(name) for name in names)
        lines.append(f"    {', '.join(sizes)} = {first}.shape")
    for depth, (index, size) in enumerate(zip(indices, sizes, strict=True), start=1):
        loop = "prange" if depth == 1 else "range"
        lines.append(f"{'    ' * depth}for {index} in {loop}({size}):")
        lines += [f"{'    ' * (depth + 1)}{load}" for load in loads[depth]]
    return lines
