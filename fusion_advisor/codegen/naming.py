"""Readable, unique identifiers.  Nothing captured reaches generated text but through here."""

from __future__ import annotations

import ast
import builtins
import keyword
import re

from fusion_advisor.errors import UnsupportedOpError
from fusion_advisor.records import FusedProgram, FusionCandidate, OpGraph, OpNode, ValueRef

_TEXT_NAMES = """
    FusedFunction Operand Output copy cpu_kernel cpu_math cuda cuda_math float32 float64 int16 int32
    int64 int8 libdevice math numba numpy out prange torch uint32 uint64 uint8
"""
_RESERVED = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *_TEXT_NAMES.split()])
# Words that Python has taken, and what stands for them.
_SYNONYMS = {
    "abs": "magnitude",
    "all": "every",
    "hash": "digest",
    "input": "x",
    "max": "largest",
    "min": "smallest",
    "pow": "power",
    "round": "rounded",
    "sum": "total",
    "type": "kind",
}
_FALLBACKS = ("x", "y", "z", "w", "a", "b", "c", "d", "p", "q", "r", "s", "u", "v")
_LONGEST = 32
# ASCII alone: Python takes other letters for these (NFKC), so that two names could be one.
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def name_problem(name: object) -> str:
    """Why a name may not stand in generated text as it is, or "" if it may."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        return "is not an identifier"
    if name.startswith("__"):
        return "is a name of Python's own"
    if name in _RESERVED and name != "out":
        return "means something else in generated text"
    return ""


def op_base(op: str) -> str:
    """The middle of an op's name: ``add_`` of ``aten.add_.Tensor``.

    Raises:
        UnsupportedOpError: the name is not three identifiers, as those of torch's own are.
    """
    parts = op.split(".")
    if (
        len(parts) != 3
        or not all(map(_IDENTIFIER.fullmatch, parts))
        or any(map(keyword.iskeyword, parts))
    ):
        raise UnsupportedOpError(f"{op[:80]!r} is not the name of an op that can be written down")
    return parts[1]


def identifier(text: str, fallback: str = "value") -> str:
    """An ASCII identifier made of the text's own letters; ``fallback`` if there are none."""
    name = re.sub(r"[^0-9A-Za-z_]+", "_", text)[:_LONGEST].strip("_").lower()
    if not name or not name[0].isalpha():
        name = f"{fallback}_{name}".rstrip("_") if name else fallback
    return name


def comment_text(text: str, limit: int = 160) -> str:
    """One line of printable ASCII, safe after ``#``."""
    printable = "".join(c if " " <= c <= "~" else " " for c in text)
    line = " ".join(printable.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


class Namer:
    """Hands out identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set(_RESERVED)

    def take(self, wanted: str) -> str:
        """``wanted`` itself, or with the smallest free number appended."""
        base = identifier(wanted)
        base = _SYNONYMS.get(base, base)
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def take_fallback(self) -> str:
        """The next free short name: x, y, z, …"""
        for name in _FALLBACKS:
            if name not in self._taken:
                return self.take(name)
        return self.take("x")


def program_namer(program: FusedProgram) -> Namer:
    """A namer that knows every name of a program as taken."""
    namer = Namer()
    names = [operand.name for operand in program.inputs]
    names += [statement.name for statement in program.statements]
    names += [output.name for output in program.outputs]
    for name in names:
        namer.take(name)
    return namer


def _expression_name(node: ast.expr) -> str | None:
    """The name a person would use for an expression: its variable or attribute."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript):
        return _expression_name(node.value)
    return None


def _operand_expressions(text: str) -> list[ast.expr]:
    """The operand expressions of a captured op's own source text, in argument order."""
    try:
        tree = ast.parse(text.strip())
    except (SyntaxError, ValueError):
        return []
    if len(tree.body) != 1:
        return []
    statement = tree.body[0]
    if isinstance(statement, ast.AugAssign):
        return [statement.target, statement.value]
    if not isinstance(statement, (ast.Expr, ast.Assign, ast.Return)) or statement.value is None:
        return []
    expression = statement.value
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.UnaryOp):
        return [expression.operand]
    if isinstance(expression, ast.Compare):
        return [expression.left, *expression.comparators]
    if isinstance(expression, ast.Call):
        arguments = list(expression.args)
        function = expression.func
        if isinstance(function, ast.Attribute) and not _is_module(function.value):
            arguments.insert(0, function.value)
        return arguments
    return []


def _is_module(node: ast.expr) -> bool:
    """Whether a call's prefix looks like a module (``torch.``, ``nn.functional.``)."""
    root = node
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in (
        "torch",
        "nn",
        "F",
        "functional",
        "self",
        "math",
    )


def _name_in_source(node: OpNode, value: str) -> str | None:
    if node.span is None or not node.span.text:
        return None
    expressions = [
        e for e in _operand_expressions(node.span.text) if not isinstance(e, ast.Constant)
    ]
    tensors = [argument.value for argument in node.args if isinstance(argument, ValueRef)]
    if value not in tensors or len(expressions) != len(tensors):
        return None
    return _expression_name(expressions[tensors.index(value)])


def name_operands(graph: OpGraph, candidate: FusionCandidate, namer: Namer) -> dict[str, str]:
    """Names for the candidate's inputs, from the source text where it tells one."""
    members = set(candidate.nodes)
    nodes = [node for node in graph.nodes if node.id in members]
    found: dict[str, str] = {}
    for operand in candidate.inputs:
        for node in nodes:
            name = _name_in_source(node, operand.value)
            if name is not None:
                found[operand.value] = name
                break
    flags = {spec.id: spec.flags for spec in graph.values}
    result = {}
    for operand in candidate.inputs:
        name = found.get(operand.value)
        if name is None and "parameter" in flags.get(operand.value, ()):
            name = "weight"
        result[operand.value] = namer.take(name) if name else namer.take_fallback()
    return result
