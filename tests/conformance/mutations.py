"""Planted faults: operators that turn the text of a right kernel into that of a wrong one.

An operator is one kind of fault.  It is told one function of the module (the CPU kernel or the
CUDA kernel), or the module as a whole, and yields wrong texts; where it does not apply it yields
nothing.  Kinds that change values have to be *shown* wrong by ``mutation_witness`` before the
validator is asked: what no input tells from the right kernel is no fault.  Kinds that are wrong
whatever the values are (a trespass, a crash, a changed setting) say so by ``by_construction``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from validation_kernels import Problem

from fusion_advisor.records import ProgramInput

Part = Literal["cpu", "cuda", "module"]
Operator = Callable[["Kernel"], Iterator[str]]

_CPU = re.compile(r"^@cpu_kernel\ndef .*?(?=^\S)", re.M | re.S)
_CUDA = re.compile(r"^@cuda\.jit\ndef .*?(?=^\S)", re.M | re.S)
_ASSIGNMENT = re.compile(r"^( +)(\w+) = ([^\n#]+?)((?:  #[^\n]*)?)$", re.M)
_STORE = re.compile(r"^( +)(out\d*)\[([^\n]+?)\] = ([^\n#]+?)$", re.M)
_IMPORTS = """import torch
import numpy as np
from numba import float32, float64, int32, int64, prange, uint32, uint64
from fusion_advisor.runtime import cpu_math, cuda_math, libdevice
"""


@dataclass(frozen=True)
class Kernel:
    """One function of a right module: ``body`` is its text, ``cuda`` says which of the two."""

    problem: Problem
    part: Part
    body: str
    chain: str = ""

    @property
    def cuda(self) -> bool:
        return self.part == "cuda"

    @property
    def maths(self) -> str:
        """The module of 16-bit conversions."""
        return "cuda_math" if self.cuda else "cpu_math"

    @property
    def assignments(self) -> list[re.Match[str]]:
        """``indent, name, expression, comment`` of each line that computes a value."""
        return [m for m in _ASSIGNMENT.finditer(self.body) if "cuda.grid" not in m.group(3)]

    @property
    def stores(self) -> list[re.Match[str]]:
        """``indent, array, place, expression`` of each line that writes a result."""
        return list(_STORE.finditer(self.body))

    @property
    def loads(self) -> list[re.Match[str]]:
        """Assignments that read one element of an operand."""
        names = "|".join(re.escape(entry.name) for entry in self.operands)
        wanted = re.compile(rf"(?:\w+\.\w+\()?(?:{names})\[")
        return [m for m in self.assignments if wanted.match(m.group(3))]

    @property
    def operands(self) -> list[ProgramInput]:
        return [entry for entry in self.problem.kernel.program.inputs if entry.kind == "tensor"]

    @property
    def result_dtype(self) -> str:
        return self.problem.kernel.program.outputs[0].dtype

    @property
    def count(self) -> str:
        """The number of elements, as the kernel's text says it (CUDA only)."""
        match = re.search(r"if \w+ < (.+):\n", self.body)
        assert match is not None
        return match.group(1)

    @property
    def thread(self) -> str:
        """The name of the CUDA kernel's flat index."""
        match = re.search(r"(\w+) = uint32\(cuda\.grid", self.body)
        assert match is not None
        return match.group(1)

    def with_expression(self, match: re.Match[str], expression: str) -> str:
        """The body with the expression of one assignment or store exchanged."""
        number = 4 if match.re is _STORE else 3
        return self.body[: match.start(number)] + expression + self.body[match.end(number) :]

    def before(self, match: re.Match[str], *lines: str) -> str:
        """The body with lines in front of one of its lines, at its depth."""
        indent = match.group(1)
        text = "".join(f"{indent}{line}\n" for line in lines)
        return self.body[: match.start()] + text + self.body[match.start() :]

    def around(self, match: re.Match[str], condition: str) -> str:
        """The body with one line made conditional."""
        indent, line = match.group(1), match.group(0).lstrip()
        text = f"{indent}if {condition}:\n{indent}    {line}"
        return self.body[: match.start()] + text + self.body[match.end() :]


@dataclass(frozen=True)
class Kind:
    """One kind of fault.  ``exact_only``: a fault where results must equal eager's bits."""

    name: str
    part: Part
    operator: Operator
    by_construction: bool = False
    exact_only: bool = False
    sizes: tuple[int, ...] = ()  # elements that a launch must have to show it
    measured: bool = False  # only the clock shows it
    limit_s: float = 0.0  # it does not end by itself


@dataclass(frozen=True)
class Mutant:
    """A wrong kernel: ``name`` tells it from others of its kind on the same chain."""

    kind: Kind
    chain: str
    number: int
    problem: Problem
    right: Problem

    @property
    def name(self) -> str:
        return f"{self.kind.name} · {self.kind.part} · {self.chain} · {self.number}"


@dataclass
class _Registry:
    kinds: list[Kind] = field(default_factory=list)


REGISTRY = _Registry()


def fault(name: str, *parts: Part, **settings: object) -> Callable[[Operator], Operator]:
    """Register an operator as a kind of fault in these parts (both kernels if none is named)."""

    def register(operator: Operator) -> Operator:
        for part in parts or ("cpu", "cuda"):
            REGISTRY.kinds.append(Kind(name, part, operator, **settings))  # type: ignore[arg-type]
        return operator

    return register


def kernel_of(problem: Problem, part: Part, chain: str = "") -> Kernel:
    """The function of a module that faults of this part are planted in."""
    text = problem.kernel.text
    if part == "module":
        return Kernel(problem, part, text, chain)
    match = (_CPU if part == "cpu" else _CUDA).search(text)
    assert match is not None
    return Kernel(problem, part, match.group(0), chain)


def kernels_are_right(mutant: Mutant) -> bool:
    """Whether a fault leaves the texts of both kernels as they were."""
    text, right = mutant.problem.kernel.text, mutant.right.kernel.text
    return all(match.group(0) in text for one in (_CPU, _CUDA) for match in one.finditer(right))


NOT_PYTHON = "not Python"  # the kind whose very fault it is


def _parses(text: str) -> bool:
    """Whether an operator gave Python: one that cuts an expression in two plants no fault."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def mutants(chain: str, problem: Problem, kind: Kind, *, most: int = 2) -> Iterator[Mutant]:
    """At most ``most`` mutants of one kind, spread over the places where it applies."""
    kernel = kernel_of(problem, kind.part, chain)
    found = [
        body
        for body in dict.fromkeys(kind.operator(kernel))
        if body != kernel.body and (kind.name == NOT_PYTHON or _parses(body))
    ]
    if len(found) > most:
        step = (len(found) - 1) / max(most - 1, 1)
        found = [found[round(step * number)] for number in range(most)]
    for number, body in enumerate(found):
        text = problem.kernel.text.replace(kernel.body, body, 1)
        if kind.part != "module":  # what faults are written with
            text = text.replace("import torch\n", _IMPORTS, 1)
        yield Mutant(kind, chain, number, problem.with_text(text), problem)
