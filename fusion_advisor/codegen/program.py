"""The checker of fused programs, their regions, and their identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace

from fusion_advisor.codegen.naming import name_problem
from fusion_advisor.errors import CodegenError
from fusion_advisor.ops import ITEM_BYTES, SUPPORTED_DTYPES, type_error
from fusion_advisor.records import (
    Constant,
    FusedProgram,
    ProgramInput,
    ProgramOutput,
    Statement,
)

_CONSTANT_TYPES = {"bool": bool, "float": float, "int": int}
_STEPS = frozenset({"slice", "part", "select", "single", "unsqueeze", "permute", "split"})


def _fail(program: FusedProgram, problem: str) -> CodegenError:
    return CodegenError(
        f"fused program {program.name!r}: {problem}; this is a fault in Fusion Advisor, "
        "leave the group eager and report it"
    )


def check_program(program: FusedProgram) -> None:
    """Check that a program is well formed.

    Raises:
        CodegenError: naming the first thing that is wrong.
    """
    _check_name(program, program.name)
    if program.match not in ("eager", "fast"):
        raise _fail(program, f"it matches {program.match!r}")
    _check_parameters(program)
    taken: set[str] = set()
    for part in region_programs(program):
        _check_region(part, taken)
    if not program.outputs:
        raise _fail(program, "it writes nothing")
    for operand in program.inputs:
        if program.further and operand.kind == "scalar" and not _is_read(program, operand.name):
            raise _fail(program, f"{operand.name} is passed in but never used")


def _is_read(program: FusedProgram, name: str) -> bool:
    return any(name in statement.args for statement in program.statements)


def region_programs(program: FusedProgram) -> tuple[FusedProgram, ...]:
    """Every region as a program of its own over one space; a program without others is itself."""
    if not program.further:
        return (program,)
    parts = []
    for number, space in enumerate(program.spaces):
        statements = tuple(s for s in program.statements if s.region == number)
        read = {arg for s in statements for arg in s.args}
        parts.append(
            replace(
                program,
                rank=space.rank,
                groups=space.groups,
                inputs=tuple(
                    p
                    for p in program.inputs
                    if (p.region == number if p.kind == "tensor" else p.name in read)
                ),
                statements=statements,
                outputs=tuple(o for o in program.outputs if o.region == number),
                further=(),
            )
        )
    return tuple(parts)


def _check_parameters(program: FusedProgram) -> None:
    regions = len(program.spaces)
    parts: list[ProgramInput | Statement | ProgramOutput] = [*program.inputs]
    parts += [*program.statements, *program.outputs]
    for part in parts:
        if not _whole(part.region) or not 0 <= part.region < regions:
            raise _fail(program, f"{part.name} stands in region {part.region} of {regions}")
    declared = {one.name: (one.dtype, one.value) for one in program.parameters}
    tensors = [one for one in program.inputs if one.kind == "tensor"]
    for operand in tensors:
        if not declared and (operand.steps or operand.parameter):
            raise _fail(program, f"{operand.name} is a view of what is not a parameter")
        if declared and declared.get(operand.parameter) != (operand.dtype, operand.value):
            raise _fail(program, f"{operand.name} is no view of parameter {operand.parameter!r}")
    for one in program.parameters:
        _check_name(program, one.name)
        if one.dtype not in SUPPORTED_DTYPES:
            raise _fail(program, f"{one.name} has the unknown dtype {one.dtype!r}")
        if all(operand.parameter != one.name for operand in tensors):
            raise _fail(program, f"parameter {one.name!r} is never read")


def _check_region(program: FusedProgram, taken: set[str]) -> None:
    """Check one loop; ``taken`` are the names of the loops before it."""
    _check_space(program)
    dtypes: dict[str, str] = {}
    for operand in program.inputs:
        _check_input(program, operand)
        _define(program, dtypes, operand.name, operand.dtype)
    used: set[str] = set()
    stage = 0
    for statement in program.statements:
        _check_statement(program, statement, dtypes)
        used.update(arg for arg in statement.args if isinstance(arg, str))
        if statement.stage < stage:
            raise _fail(program, f"{statement.name} goes back to stage {statement.stage}")
        stage = statement.stage
        _define(program, dtypes, statement.name, statement.dtype)
    _check_outputs(program, dtypes)
    used.update(output.result for output in program.outputs)
    # A tensor may lend its shape and dtype alone: the guards look at it, the kernel does not.
    used.update(operand.name for operand in program.inputs if operand.kind == "tensor")
    used |= _checked_divisors(program)  # eager raises for a zero among them, used or not
    for name in dtypes:
        if name not in used:
            raise _fail(program, f"{name} is computed or passed in but never used")
    shared = {operand.name for operand in program.inputs if operand.kind == "scalar"}
    own = (dtypes.keys() | {output.name for output in program.outputs}) - shared
    for name in sorted(own & taken):
        raise _fail(program, f"{name} is defined in two regions")
    taken |= own


def _define(program: FusedProgram, dtypes: dict[str, str], name: str, dtype: str) -> None:
    _check_name(program, name)
    if name in dtypes:
        raise _fail(program, f"{name} is defined twice")
    if dtype not in SUPPORTED_DTYPES:
        raise _fail(program, f"{name} has the unknown dtype {dtype!r}")
    dtypes[name] = dtype


def _check_name(program: FusedProgram, name: object) -> None:
    problem = name_problem(name)
    if problem:
        raise _fail(program, f"{name!r} {problem}")


def _whole(*numbers: object) -> bool:
    return all(type(number) is int for number in numbers)


def _check_space(program: FusedProgram) -> None:
    if not _whole(program.rank, *(d for group in program.groups for d in group)):
        raise _fail(program, f"groups {program.groups} are not whole numbers")
    flat = [dimension for group in program.groups for dimension in group]
    if sorted(flat) != list(range(program.rank)):
        raise _fail(program, f"groups {program.groups} do not partition {program.rank} dimensions")
    if not program.groups or (program.rank and any(not group for group in program.groups)):
        raise _fail(program, "there is an empty group")
    if any(not 0 <= axis < len(program.groups) for axis in program.reduced):
        raise _fail(program, f"reduced axes {program.reduced} are not axes of the space")
    if program.reduced:
        raise _fail(program, "reductions are not generated")


def _check_input(program: FusedProgram, operand: ProgramInput) -> None:
    if operand.kind not in ("tensor", "scalar") or operand.layout not in ("dense", "strided"):
        raise _fail(program, f"{operand.name} is a {operand.layout!r} {operand.kind!r}")
    if not _whole(*operand.groups):
        raise _fail(program, f"{operand.name}'s groups {operand.groups!r} are not whole numbers")
    for kind, at, numbers in operand.steps:
        if kind not in _STEPS or not _whole(at, *numbers):
            raise _fail(program, f"{operand.name} is viewed by {kind!r}, which is no view step")
    if operand.kind == "scalar":
        if operand.groups or operand.dtype not in ("int64", "float64"):
            raise _fail(program, f"scalar {operand.name} must be int64 or float64 without groups")
        return
    if any(not 0 <= group < len(program.groups) for group in operand.groups):
        raise _fail(program, f"{operand.name} is read at groups {operand.groups} that do not exist")
    if list(operand.groups) != sorted(set(operand.groups)):
        raise _fail(program, f"{operand.name}'s groups {operand.groups} are not in walking order")


def _check_statement(program: FusedProgram, statement: Statement, dtypes: dict[str, str]) -> None:
    operands = []
    for arg in statement.args:
        if isinstance(arg, Constant):
            _check_constant(program, statement, arg)
            operands.append(arg.dtype)
        elif arg in dtypes:
            operands.append(dtypes[arg])
        else:
            raise _fail(program, f"{statement.name} reads {arg} before it is defined")
    problem = type_error(statement.opcode, tuple(operands), statement.dtype)
    if problem:
        raise _fail(program, f"{statement.name}: {problem}")
    if statement.opcode in ("floordiv", "truncdiv"):
        divisor = statement.args[1]
        known = isinstance(divisor, Constant) and divisor.value != 0
        if not known and divisor not in _checked_divisors(program):
            raise _fail(program, f"{statement.name} divides integers by what may be zero")


def _checked_divisors(program: FusedProgram) -> set[str]:
    return {statement.name for statement in program.statements if statement.opcode == "divisor"}


def _check_constant(program: FusedProgram, statement: Statement, constant: Constant) -> None:
    kind = "bool" if constant.dtype == "bool" else "float" if "float" in constant.dtype else "int"
    if constant.dtype not in SUPPORTED_DTYPES or type(constant.value) is not _CONSTANT_TYPES[kind]:
        raise _fail(
            program, f"{statement.name} has the constant {constant.value!r} as {constant.dtype}"
        )
    if kind == "int" and not _fits(constant.value, constant.dtype):
        raise _fail(program, f"{statement.name} has a constant that no {constant.dtype} holds")


def _fits(value: float | int, dtype: str) -> bool:
    count: int = 2 ** (8 * ITEM_BYTES[dtype])
    low = 0 if dtype.startswith("u") else -count // 2
    return low <= value < low + count


def _check_outputs(program: FusedProgram, dtypes: dict[str, str]) -> None:
    if not program.outputs:
        raise _fail(program, "it writes nothing")
    names: set[str] = set(dtypes)
    for output in program.outputs:
        _check_name(program, output.name)
        if output.name in names:
            raise _fail(program, f"output name {output.name!r} is taken")
        names.add(output.name)
        if output.result not in dtypes:
            raise _fail(
                program, f"output {output.name} is made from {output.result}, which is not defined"
            )
        if dtypes[output.result] != output.dtype:
            raise _fail(
                program,
                f"output {output.name} is {output.dtype} but its result is {dtypes[output.result]}",
            )
        if next(
            (p for p in program.inputs if p.name == output.result and p.kind == "scalar"), None
        ):
            raise _fail(program, f"output {output.name} is a run-time number")


def program_hash(program: FusedProgram) -> str:
    """SHA-256 of what the program computes, whatever its names and captured nodes are.

    Repeated layers, whose values and nodes have other ids, have the same hash.
    """
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    def argument(arg: str | Constant) -> list[object]:
        if isinstance(arg, Constant):
            return [arg.dtype, repr(arg.value)]
        return [number(arg)]

    given = {one.name: place for place, one in enumerate(program.parameters)}

    def placed(operand: ProgramInput) -> list[object]:
        if not operand.parameter:
            return []
        return [operand.region, given[operand.parameter], operand.steps]

    inputs = [
        [number(p.name), p.kind, p.dtype, list(p.groups), p.layout, *placed(p)]
        for p in program.inputs
    ]
    statements = [
        [number(s.name), s.opcode, [argument(arg) for arg in s.args], s.dtype, s.stage]
        for s in program.statements
    ]
    outputs = [[number(o.result), o.dtype] for o in program.outputs]
    content: list[object] = [
        program.rank,
        program.groups,
        program.reduced,
        program.match,
        inputs,
        statements,
        outputs,
    ]
    content += [[space.rank, space.groups] for space in program.further]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def live_statements(
    statements: Iterable[Statement], results: Iterable[str]
) -> tuple[Statement, ...]:
    """The statements that the results depend on, in order, and those that eager may raise at."""
    needed = set(results)
    kept = []
    for statement in reversed(list(statements)):
        if statement.name in needed or statement.opcode == "divisor":
            kept.append(statement)
            needed.update(arg for arg in statement.args if isinstance(arg, str))
    return tuple(reversed(kept))
