"""Nothing that was captured gets into generated Python as anything but a name or a literal.

Hostile strings stand in every place of a recording that a model, a trace, a notebook or a file
name fills.  What is generated must be the kernel of the same recording without them, whatever its
names are; where it cannot be, the op is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import keyword
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from report_fixture import rich_report
from report_formats import HOSTILE_TEXTS, hostile_report

from fusion_advisor.analysis import find_candidates
from fusion_advisor.cli import main as command
from fusion_advisor.codegen import generate
from fusion_advisor.codegen.naming import Namer, name_problem
from fusion_advisor.codegen.program import check_program
from fusion_advisor.errors import CodegenError, FusionAdvisorError, ValidationError
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.records import (
    Constant,
    FusedProgram,
    KernelSource,
    OpGraph,
    OpNode,
    ProgramInput,
    SourceSpan,
    Symbol,
    ValueRef,
)
from fusion_advisor.report.files import render
from fusion_advisor.runtime import load_function
from fusion_advisor.runtime.loading import text_hash
from fusion_advisor.serialize import load_report

pytestmark = pytest.mark.essential

F = torch.nn.functional
CANARY = "fusion_advisor_canary"  # set on ``builtins`` by a payload that runs
RUN = f"setattr(__import__('builtins'), '{CANARY}', 1)"
PAYLOADS = (
    f"x\n{RUN}\n#",
    f"x\r{RUN}\r#",
    f"x\x0c\n{RUN}",
    f"x\u2028{RUN}\u2029",
    f"x\x85{RUN}",
    f'"""\n{RUN}\n"""',
    f"'''\n{RUN}\n'''",
    f'", {RUN}, "',
    f"'), {RUN}, ('",
    f"x); {RUN}; (",
    f"{{{RUN}}}",
    f"x\\\n{RUN}",
    "x\\",
    f"x\0{RUN}",
    f"\u202e\u2066{RUN}\u2069",
    f"# type: ignore\n{RUN}",
    f"# -*- coding: utf-7 -*-\n+AGE-{RUN}",
    "\u212f\u017f\uff45\ufb01",  # letters that Python reads as others
    "__import__",
    "__builtins__",
    "numba",
    "cpu_math",
    "math",
    "None",
    "lambda",
    "exec",
    "\ud800",
    "%s%n{0}{x!r}",
    "",
    "a" * 5_000,
)


def gate(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    h = F.gelu(x * scale + bias, approximate="tanh")
    h = torch.div(h, 2.5, rounding_mode="floor").to(torch.bfloat16)
    return torch.where(h > 0, h, -math.inf) * math.nan


def windowed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu((x * 2.0)[:, 1:3].transpose(0, 1) + y)


@functools.cache
def recording(name: str) -> OpGraph:
    """The graph of one of the functions above."""
    with torch.no_grad():
        if name == "gate":
            row = torch.randn(6)
            return record(
                lambda: gate(torch.randn(4, 6), row, torch.randn(6)), CaptureOptions()
            ).graph
        return record(
            lambda: windowed(torch.randn(4, 6), torch.randn(2, 4)), CaptureOptions()
        ).graph


def kernel_of(graph: OpGraph) -> KernelSource:
    """The kernel of a recording's only group."""
    (candidate,) = find_candidates(graph)
    return generate_kernel(graph, candidate)


def skeleton(text: str) -> str:
    """The text's syntax tree with own names, and texts that repeat them, numbered."""
    tree = ast.parse(text)
    names: dict[str, str] = {}
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.FunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)

    def numbered(name: str) -> str:
        return names.setdefault(name, f"name{len(names)}") if name in own else name

    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.arg = numbered(node.arg)
        elif isinstance(node, ast.FunctionDef):
            node.name = numbered(node.name)
        elif isinstance(node, ast.Name):
            node.id = numbered(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = numbered(node.value)
    return ast.dump(tree)


def is_plain(text: str) -> bool:
    """One line after the other of printable ASCII."""
    return all(" " <= c <= "~" for line in text.split("\n") for c in line)


def hostile_names(text: str) -> set[str]:
    """What a payload would call, where it stands in the text as code."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return names & {"setattr", "__import__", "exec", "os"}


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    yield
    assert not hasattr(builtins, CANARY)


# -- what a recording is made of ---------------------------------------------------------------


def hostile_span(text: str, expression: str) -> SourceSpan:
    return SourceSpan(
        kind="cell", file=text, line=1, end_line=1, column=0, end_column=1, function=text,
        text=expression, cell_id=text,
    )  # fmt: skip


def renamed(graph: OpGraph, text: str) -> OpGraph:
    """The recording with the text in all names, places and ids."""
    bare = text.replace("@", "").replace("#", "")  # these tell repeats; torch's names have none

    def value(name: str) -> str:
        return f"{bare}{name}"

    def argument(item: Any) -> Any:
        if isinstance(item, tuple):
            return tuple(map(argument, item))
        return ValueRef(value=value(item.value)) if isinstance(item, ValueRef) else item

    def node(one: OpNode) -> OpNode:
        expressions = (f"{text} * {text}", text, f"obj.{text}({text}, k)", f"{text}[{text}] + b")
        return dataclasses.replace(
            one,
            id=f"{bare}{one.id}",
            args=tuple(map(argument, one.args)),
            kwargs=tuple((key, argument(item)) for key, item in one.kwargs),
            inputs=tuple(map(value, one.inputs)),
            outputs=tuple(map(value, one.outputs)),
            mutates=tuple(map(value, one.mutates)),
            module_path=f"{text}.{text}",
            module_class=text,
            span=hostile_span(text, expressions[one.index % 4]),
            stack=(hostile_span(text, text),),
        )

    return dataclasses.replace(
        graph,
        nodes=tuple(map(node, graph.nodes)),
        values=tuple(
            dataclasses.replace(
                one, id=value(one.id), alias_of=value(one.alias_of) if one.alias_of else None
            )
            for one in graph.values
        ),
        inputs=tuple(map(value, graph.inputs)),
        outputs=tuple(map(value, graph.outputs)),
    )


def with_examples(texts: tuple[str, ...]) -> Callable[[Any], Any]:
    """Hypothesis looks at these texts first."""

    def decorate(test: Any) -> Any:
        for text in texts:
            test = example(text)(test)
        return test

    return decorate


@pytest.mark.parametrize("name", ["gate", "windowed"])
def test_names_places_and_ids_change_nothing_but_names(name: str) -> None:
    graph = recording(name)
    plain = kernel_of(graph)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None,
              suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
    @with_examples((*PAYLOADS, *(HOSTILE_TEXTS[key] for key in HOSTILE_TEXTS if key != "million")))
    @given(st.text(max_size=40))
    def check(text: str) -> None:
        kernel = kernel_of(renamed(graph, text))
        assert is_plain(kernel.text), kernel.text
        assert skeleton(kernel.text) == skeleton(plain.text)
        assert all(len(line) <= 203 for line in kernel.text.split("\n"))

    check()


def test_a_kernel_with_hostile_names_runs_and_is_the_same_function() -> None:
    graph = recording("windowed")
    x, y = torch.randn(4, 6), torch.randn(2, 4)
    for text in (PAYLOADS[0], PAYLOADS[6], PAYLOADS[21]):
        kernel = kernel_of(renamed(graph, text))
        fused = load_function(kernel.text, kernel.entry, kernel.hash)
        fused.reset_stats()  # one text is loaded once
        with torch.no_grad():
            assert torch.equal(fused(x, y), windowed(x, y))
        assert fused.stats.fused == 1, text


# -- arguments ---------------------------------------------------------------------------------


def with_argument(graph: OpGraph, op: str, change: Callable[[OpNode], OpNode]) -> OpGraph:
    """The recording with one op's call changed."""
    nodes = tuple(change(node) if node.op == op else node for node in graph.nodes)
    return dataclasses.replace(graph, nodes=nodes)


def text_or_refusal(graph: OpGraph) -> str:
    """All kernels that are made of a recording; refused ops leave their groups."""
    try:
        texts = [generate_kernel(graph, one).text for one in find_candidates(graph)]
    except FusionAdvisorError:
        return ""
    for text in texts:
        assert is_plain(text)
        assert not hostile_names(text)
    return "".join(texts)


HOSTILE_ARGUMENTS: tuple[Any, ...] = (
    *PAYLOADS[:22],
    *(Symbol(kind=kind, name=name)
      for kind in ("dtype", "device", "layout", "memory_format", "opaque", "complex")
      for name in (f"float32); {RUN}; (", "torch.float32\n", "\u017fum", "lambda", "a.b", "")),
    10**5_000,
    -(10**400),
    2**64,
    math.inf,
    -math.inf,
    math.nan,
    -0.0,
    5e-324,
    (f"{RUN}",),
    ((RUN,), Symbol(kind="opaque", name=RUN)),
)  # fmt: skip


@pytest.mark.parametrize("place", ["argument", "keyword value", "keyword", "step of a view"])
def test_arguments_are_literals_or_refused(place: str) -> None:
    graph = recording("windowed" if place == "step of a view" else "gate")
    ops = sorted({node.op for node in graph.nodes})
    for turn, hostile in enumerate(HOSTILE_ARGUMENTS):

        def change(node: OpNode, hostile: Any = hostile) -> OpNode:
            if place == "argument":
                return dataclasses.replace(node, args=(*node.args[:1], hostile, *node.args[2:]))
            if place == "step of a view":
                return dataclasses.replace(node, args=(*node.args[:2], hostile, *node.args[3:]))
            if place == "keyword":
                key = hostile if isinstance(hostile, str) else "rounding_mode"
                return dataclasses.replace(node, kwargs=((key, "floor"),))
            return dataclasses.replace(node, kwargs=(("rounding_mode", hostile),))

        text_or_refusal(with_argument(graph, ops[turn % len(ops)], change))
        if place != "argument":  # gelu's, slice's
            op = "aten.slice.Tensor" if place == "step of a view" else "aten.gelu.default"
            text_or_refusal(with_argument(graph, op, change))


@pytest.mark.parametrize("field", ["dtype", "device", "flags"])
def test_tensor_facts_are_known_words_or_refused(field: str) -> None:
    graph = recording("gate")
    for text in PAYLOADS:
        hostile: Any = (text,) if field == "flags" else text
        values = tuple(dataclasses.replace(one, **{field: hostile}) for one in graph.values)
        assert text_or_refusal(dataclasses.replace(graph, values=values)) == "" or (
            field == "device"  # every tensor is on the one device of that name
        )


HOSTILE_OPS = (
    f"aten.relu.default); {RUN}; (",
    "aten.relu.default\n",
    "aten.relu",
    f"aten.{RUN}.default",
    f"aten.relu.default, {RUN}",
    "os.system.default",
    "aten.lambda.default",
    "aten.relu.default.x",
)


def test_op_names_are_known_or_refused() -> None:
    graph = recording("windowed")
    for text in (*PAYLOADS, *HOSTILE_OPS):
        for op in {node.op for node in graph.nodes}:
            text_or_refusal(
                with_argument(graph, op, lambda node, text=text: dataclasses.replace(node, op=text))
            )
            # A report may say of any op that it is a view inside a group.
            (candidate,) = find_candidates(graph)
            changed = with_argument(
                graph, op, lambda node, text=text: dataclasses.replace(node, op=text)
            )
            try:
                kernel = generate_kernel(changed, candidate)
            except FusionAdvisorError:
                continue
            assert is_plain(kernel.text) and not hostile_names(kernel.text)


def test_an_op_of_ones_own_with_a_hostile_name_stays_between_the_kernels() -> None:
    name = "lambda"  # an identifier for torch, none for Python
    library = torch.library.Library("fusion_advisor_hostile", "DEF")
    try:
        library.define(f"{name}(Tensor x, *, str mode) -> Tensor")
        library.impl(name, lambda x, *, mode: x + len(mode),
                     "CompositeExplicitAutograd")  # fmt: skip
        op = getattr(torch.ops.fusion_advisor_hostile, name)

        def run(x: torch.Tensor) -> torch.Tensor:
            return torch.relu(op(x * 2.0 + 1.0, mode=PAYLOADS[0]) * 3.0)

        with torch.no_grad():
            graph = record(lambda: run(torch.randn(4, 6)), CaptureOptions()).graph
    finally:
        library._destroy()
    candidates = find_candidates(graph)
    assert [len(one.nodes) for one in candidates] == [2, 2]
    for candidate in candidates:
        assert is_plain(generate_kernel(graph, candidate).text)


# -- programs ----------------------------------------------------------------------------------


@functools.cache
def program() -> FusedProgram:
    return kernel_of(recording("gate")).program


EVIL_NAMES = (
    *PAYLOADS[:23], "__class__", "__name__", "torch", "float32", "prange", "cuda", "range", "print",
    "FusedFunction", "match", "type", "x y", "x.y", "1x", "\u212f", "\u017f", "x\u200b", "é",
)  # fmt: skip


@pytest.mark.parametrize("name", EVIL_NAMES)
def test_programs_with_evil_names_are_refused(name: str) -> None:
    whole = program()
    first, statement, output = whole.inputs[0], whole.statements[0], whole.outputs[0]
    rest = tuple(
        dataclasses.replace(
            one, args=tuple(name if arg == statement.name else arg for arg in one.args)
        )
        for one in whole.statements[1:]
    )
    evil = (
        dataclasses.replace(whole, name=name),
        dataclasses.replace(
            whole, inputs=(dataclasses.replace(first, name=name), *whole.inputs[1:])
        ),
        dataclasses.replace(
            whole, statements=(dataclasses.replace(statement, name=name), *rest)
        ),
        dataclasses.replace(whole, outputs=(dataclasses.replace(output, name=name),)),
        dataclasses.replace(whole, statements=(
            dataclasses.replace(statement, opcode=name), *whole.statements[1:])),
        dataclasses.replace(whole, statements=(
            dataclasses.replace(statement, dtype=f"{name} "), *whole.statements[1:])),
        dataclasses.replace(
            whole, inputs=(dataclasses.replace(first, dtype=f"{name} "), *whole.inputs[1:])
        ),
    )  # fmt: skip
    for one in evil:
        with pytest.raises(CodegenError):
            check_program(one)
        with pytest.raises(CodegenError):
            generate(one, recording("gate"))


def test_a_name_that_may_stand_in_text_is_what_namers_give() -> None:
    assert hostile_names(f"x = 1\n{RUN}")
    for word in (*EVIL_NAMES, *keyword.kwlist, *dir(builtins)):
        assert name_problem(word), word
        assert not name_problem(Namer().take(word)), word
    for word in ("x", "out", "fused_mul", "_bits", "X1"):
        assert not name_problem(word)


def changed_input(**fields: Any) -> FusedProgram:
    whole = program()
    return dataclasses.replace(
        whole, inputs=(dataclasses.replace(whole.inputs[0], **fields), *whole.inputs[1:])
    )


def changed_constant(value: Any, dtype: str) -> FusedProgram:
    whole = program()
    statement = whole.statements[0]
    args = (*statement.args[:1], Constant(value=value, dtype=dtype))
    return dataclasses.replace(
        whole, statements=(dataclasses.replace(statement, args=args), *whole.statements[1:])
    )


class Sneaky(float):
    """A number whose text is a program."""

    def __repr__(self) -> str:
        return RUN


@pytest.mark.parametrize(
    "make",
    [
        lambda: changed_input(kind=RUN),
        lambda: changed_input(layout=RUN),
        lambda: changed_input(groups=(RUN,)),
        lambda: changed_input(groups=(0.0,)),
        lambda: changed_input(region=RUN),
        lambda: changed_input(steps=((RUN, 0, ()),), parameter="x"),
        lambda: dataclasses.replace(program(), groups=((RUN,),)),
        lambda: dataclasses.replace(program(), rank=RUN),
        lambda: dataclasses.replace(program(), reduced=(0,)),
        lambda: dataclasses.replace(program(), match=RUN),
        lambda: changed_constant(Sneaky(1.0), "float32"),
        lambda: changed_constant(RUN, "float32"),
        lambda: changed_constant(True, "float32"),
        lambda: changed_constant(2**63, "int64"),
        lambda: changed_constant(10**5000, "int64"),
        lambda: changed_constant(-1, "uint8"),
        lambda: changed_constant(1, RUN),
        lambda: dataclasses.replace(
            program(), inputs=(*program().inputs, ProgramInput(name="n", kind="scalar", dtype=RUN))
        ),
    ],
)
def test_programs_made_by_hand_are_refused(make: Callable[[], FusedProgram]) -> None:
    with pytest.raises((CodegenError, TypeError)) as refused:
        check_program(make())
    assert refused.type is CodegenError


def test_steps_of_views_are_known_words_and_numbers() -> None:
    whole = kernel_of(recording("windowed")).program
    place = next(at for at, one in enumerate(whole.inputs) if one.steps)
    for step in ((RUN, 0, ()), ("slice", RUN, (0, 1, 1)), ("slice", 0, (RUN,)), ("slice", 0.0, ())):
        one = dataclasses.replace(whole.inputs[place], steps=(step,))
        evil = dataclasses.replace(
            whole, inputs=(*whole.inputs[:place], one, *whole.inputs[place + 1 :])
        )
        with pytest.raises(CodegenError):
            check_program(evil)


# -- reports -----------------------------------------------------------------------------------


def test_reading_a_report_unpickles_and_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [render(hostile_report(text), "json") for text in PAYLOADS[:6]]

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("ran")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    for name in ("exec", "eval", "compile"):
        monkeypatch.setattr(builtins, name, forbidden)
    reports = [load_report(text) for text in texts]
    monkeypatch.undo()
    assert len(reports) == 6


def with_changed_kernel(folder: Path) -> tuple[Path, KernelSource]:
    """A saved report whose first kernel's text was edited by one character; and that kernel."""
    report = rich_report()
    kernel = report.kernels[0][1]
    text = render(report, "json")
    at = kernel.text.index("+") if "+" in kernel.text else 2
    edited = kernel.text[:at] + ("-" if kernel.text[at] != "-" else "+") + kernel.text[at + 1 :]
    kernels = ((report.kernels[0][0], dataclasses.replace(kernel, text=edited)),)
    changed = render(dataclasses.replace(report, kernels=(*kernels, *report.kernels[1:])), "json")
    assert changed != text
    path = folder / "report.json"
    path.write_text(changed)
    return path, dict(load_report(changed).kernels)[report.kernels[0][0]]


def test_a_kernel_changed_in_a_report_is_neither_run_nor_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kernel = with_changed_kernel(tmp_path)
    with pytest.raises(ValidationError, match=r"was changed.*generate and validate it again"):
        load_function(kernel.text, kernel.entry, kernel.hash)
    finding = rich_report().kernels[0][0]
    for more in ((), ("-o", str(tmp_path / "kernel.py"))):
        assert command(["kernel", str(path), finding, *more]) != 0
        said = capsys.readouterr()
        assert "was changed" in said.err and kernel.text not in said.out
    assert not (tmp_path / "kernel.py").exists()


@pytest.mark.parametrize("text", ["", "\0", "\ud800", "value = ", "value = 1\n" * 3])
def test_text_with_another_hash_is_refused_whatever_it_is(text: str) -> None:
    with pytest.raises(ValidationError, match="was changed"):
        load_function(text, "value", text_hash(text + "\n"))


def test_text_that_is_no_text_is_refused_as_such() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValidationError, match="is no text"):
            load_function("value = '\ud800'", "value", text_hash("value = '\ud800'"))
