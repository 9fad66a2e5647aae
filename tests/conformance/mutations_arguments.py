"""Faults in what a call passes besides tensors: run-time numbers, and word of a zero divisor."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mutations import Kernel, fault
from mutations_values import _spliced

from fusion_advisor.records import ProgramInput

_DIVISOR = re.compile(r"\bcpu_math\.divisor\((\w+), (\w+)\)")


@fault("divisor not looked at", "cpu", by_construction=True)
def divisor(kernel: Kernel) -> Iterator[str]:
    for match in _DIVISOR.finditer(kernel.body):
        value = match.group(1)
        yield _spliced(kernel, *match.span(), f"({value} if {value} != 0 else 1)")


@fault("zero divisor taken back", "cpu", by_construction=True)
def taken_back(kernel: Kernel) -> Iterator[str]:
    match = _DIVISOR.search(kernel.body)
    if match is not None:
        yield kernel.before(kernel.stores[-1], f"{match.group(2)}[0] = False")


@fault("zero divisor where there is none", "cpu", by_construction=True)
def made_up(kernel: Kernel) -> Iterator[str]:
    match = _DIVISOR.search(kernel.body)
    if match is not None:
        value, flag = match.groups()
        yield kernel.before(kernel.stores[-1], f"if {value} == -1:", f"    {flag}[0] = True")


def _numbers(kernel: Kernel) -> list[ProgramInput]:
    return [entry for entry in kernel.problem.kernel.program.inputs if entry.kind == "scalar"]


def _with_names(kernel: Kernel, names: dict[str, str]) -> str:
    """The body with names exchanged, but for its first line."""
    head, _, rest = kernel.body.partition(":\n")
    words = "|".join(map(re.escape, names))
    return f"{head}:\n" + re.sub(rf"\b({words})\b", lambda m: names[m.group(1)], rest)


@fault("run-time number built in", by_construction=True)
def built_in(kernel: Kernel) -> Iterator[str]:
    for entry in _numbers(kernel):
        yield _with_names(kernel, {entry.name: repr(entry.value)})


@fault("run-time numbers exchanged", by_construction=True)
def numbers_exchanged(kernel: Kernel) -> Iterator[str]:
    names = [entry.name for entry in _numbers(kernel)]
    if len(names) > 1:
        yield _with_names(kernel, {names[0]: names[1], names[1]: names[0]})


@fault("run-time number built into the eager chain", "module", by_construction=True)
def built_into_eager(kernel: Kernel) -> Iterator[str]:
    match = re.search(r"^def eager_\w+\(.*?(?=^\S)", kernel.body, re.M | re.S)
    assert match is not None
    head, _, rest = match.group(0).partition(":\n")
    for entry in _numbers(kernel):
        other = re.sub(rf"\b{entry.name}\b", repr(entry.value), rest)
        yield kernel.body.replace(match.group(0), f"{head}:\n{other}")


@fault("zero divisors not declared", "module", by_construction=True)
def undeclared(kernel: Kernel) -> Iterator[str]:
    yield kernel.body.replace("    checks_divisors=True,\n", "")
