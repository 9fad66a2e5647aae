"""The program checker accepts what lowering makes and rejects every broken variant."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusion_advisor.codegen import check_program, program_hash
from fusion_advisor.codegen.expressions import shortest_float32
from fusion_advisor.errors import CodegenError
from fusion_advisor.records import (
    Constant,
    FusedProgram,
    ProgramInput,
    ProgramOutput,
    Statement,
)

ONE = Constant(value=1.0, dtype="float32")


def make_program(**changes: object) -> FusedProgram:
    program = FusedProgram(
        name="fused_test",
        rank=2,
        groups=((0,), (1,)),
        inputs=(
            ProgramInput(name="x", kind="tensor", dtype="float32", groups=(0, 1), value="v0"),
            ProgramInput(name="bias", kind="tensor", dtype="float32", groups=(1,), value="v1"),
            ProgramInput(name="scale", kind="scalar", dtype="float64", value=0.5),
        ),
        statements=(
            Statement(name="t1", opcode="add", args=("x", "bias"), dtype="float32", node="n0"),
            Statement(name="t2", opcode="cast", args=("scale",), dtype="float32", node="n1"),
            Statement(name="t3", opcode="mul", args=("t1", "t2"), dtype="float32", node="n1"),
            Statement(name="t4", opcode="gt", args=("t3", ONE), dtype="bool", node="n2"),
            Statement(name="t5", opcode="select", args=("t4", "t3", ONE), dtype="float32"),
        ),
        outputs=(ProgramOutput(name="out", result="t5", dtype="float32", value="v9"),),
        nodes=("n0", "n1", "n2"),
    )
    return replace(program, **changes)  # type: ignore[arg-type]


def with_statement(position: int, **changes: object) -> FusedProgram:
    program = make_program()
    statements = list(program.statements)
    statements[position] = replace(statements[position], **changes)  # type: ignore[arg-type]
    return replace(program, statements=tuple(statements))


def with_input(position: int, **changes: object) -> FusedProgram:
    program = make_program()
    inputs = list(program.inputs)
    inputs[position] = replace(inputs[position], **changes)  # type: ignore[arg-type]
    return replace(program, inputs=tuple(inputs))


def with_output(**changes: object) -> FusedProgram:
    program = make_program()
    return replace(program, outputs=(replace(program.outputs[0], **changes),))  # type: ignore[arg-type]


def test_a_good_program_passes():
    check_program(make_program())


BROKEN = {
    "an operand that is never defined": (with_statement(0, args=("x", "nothing")), "before it is"),
    "a use before its definition": (with_statement(0, args=("t3", "bias")), "before it is"),
    "a name defined twice": (with_statement(1, name="t1"), "defined twice"),
    "a name that hides an input": (with_statement(0, name="x"), "defined twice"),
    "a name that is no identifier": (with_statement(0, name="t1; import os"), "identifier"),
    "an unknown opcode": (with_statement(0, opcode="explode"), "no opcode"),
    "too few operands": (with_statement(0, args=("x",)), "takes 2 operands"),
    "mixed dtypes": (with_statement(2, args=("t1", "scale")), "mixes"),
    "a wrong result dtype": (with_statement(0, dtype="float64"), "gives float32"),
    "a comparison that is not bool": (with_statement(3, dtype="float32"), "gives bool"),
    "a select on a number": (with_statement(4, args=("t3", "t3", ONE)), "not bool"),
    "arithmetic on bool": (
        with_statement(4, opcode="add", args=("t4", "t4"), dtype="bool"),
        "does not work on bool",
    ),
    "an unused statement": (with_output(result="t3"), "never used"),
    "an unused number": (with_statement(1, args=(ONE,)), "never used"),
    "a constant of another type": (
        with_statement(3, args=("t3", Constant(value=1, dtype="float32"))),
        "constant",
    ),
    "an operand at a group that is not there": (with_input(1, groups=(2,)), "do not exist"),
    "groups out of order": (with_input(0, groups=(1, 0)), "walking order"),
    "a scalar with groups": (with_input(2, groups=(0,)), "without groups"),
    "a float32 scalar": (with_input(2, dtype="float32"), "int64 or float64"),
    "an unknown dtype": (with_input(0, dtype="complex64"), "unknown dtype"),
    "groups that miss a dimension": (make_program(groups=((0,),)), "partition"),
    "groups that repeat a dimension": (make_program(groups=((0,), (1, 1))), "partition"),
    "an empty group": (make_program(groups=((0, 1), ())), "empty group"),
    "a reduction": (make_program(reduced=(1,)), "reductions"),
    "no output": (make_program(outputs=()), "writes nothing"),
    "an output of another dtype": (with_output(dtype="float64"), "its result is"),
    "an output of an undefined name": (with_output(result="t9"), "not defined"),
    "an output named as an operand": (with_output(name="x"), "taken"),
    "an output that is a run-time number": (
        with_output(result="scale", dtype="float64"),
        "never used|run-time number",
    ),
    "a stage that goes back": (with_statement(0, stage=1), "back to stage"),
    "a name with a line break": (make_program(name="a\nb"), "identifier"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_programs_are_rejected(fault):
    program, message = BROKEN[fault]
    with pytest.raises(CodegenError, match=message):
        check_program(program)


@pytest.mark.parametrize("divisor", [Constant(value=0, dtype="int64"), "i"])
def test_integer_division_by_what_may_be_zero_is_rejected(divisor):
    program = FusedProgram(
        name="f",
        rank=0,
        groups=((),),
        inputs=(ProgramInput(name="i", kind="tensor", dtype="int64", groups=(0,)),),
        statements=(Statement(name="q", opcode="floordiv", args=("i", divisor), dtype="int64"),),
        outputs=(ProgramOutput(name="out", result="q", dtype="int64"),),
    )
    with pytest.raises(CodegenError, match="zero"):
        check_program(program)


def test_hash_ignores_captured_names_and_sees_every_change_of_meaning():
    program = make_program()
    renamed = replace(
        program,
        name="other",
        nodes=("n7", "n8", "n9"),
        inputs=tuple(replace(p, value="v77") for p in program.inputs),
        statements=tuple(replace(s, node="n7") for s in program.statements),
        outputs=(replace(program.outputs[0], value="v78"),),
    )
    assert program_hash(renamed) == program_hash(program)
    changed = [
        with_statement(0, opcode="sub"),
        with_statement(0, args=("bias", "x")),
        with_statement(3, args=("t3", Constant(value=-0.0, dtype="float32"))),
        with_statement(3, args=("t3", Constant(value=0.0, dtype="float32"))),
        with_input(0, layout="strided"),
        make_program(match="fast"),
        make_program(groups=((1,), (0,))),
    ]
    hashes = {program_hash(p) for p in (program, *changed)}
    assert len(hashes) == len(changed) + 1


def test_largest_float32_numbers_are_written_shortest_too() -> None:
    largest = torch.finfo(torch.float32).max
    for value in (largest, -largest, 1e38, 0.1, -torch.finfo(torch.float32).tiny):
        rounded = float(torch.tensor(value, dtype=torch.float32))
        written = float(shortest_float32(rounded))
        assert float(torch.tensor(written, dtype=torch.float32)) == rounded
