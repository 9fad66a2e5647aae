"""The first rung: is this text the kernel it says it is, and is its program sound?"""

from __future__ import annotations

import ast

from fusion_advisor.errors import ValidationError
from fusion_advisor.records import FusedProgram, FusionCandidate, KernelSource

# What generated text may import; everything else would make it more than a kernel.
_ALLOWED_IMPORTS = ("torch", "numba", "numpy", "math", "fusion_advisor.runtime", "__future__")

# Ways to code that is not in the text, and to names that no kernel needs.
_FORBIDDEN_NAMES = frozenset(
    "__import__ __builtins__ __loader__ __spec__ breakpoint compile delattr eval exec exit globals "
    "input locals open quit setattr vars".split()
)


def check_kernel(kernel: KernelSource, candidate: FusionCandidate) -> str:
    """Raise ``ValidationError`` for a text or program that cannot be right; else say what holds."""
    if not kernel.is_intact:
        raise ValidationError("the text's SHA-256 is not the recorded one: it was edited")
    try:
        tree = ast.parse(kernel.text)
    except SyntaxError as error:
        raise ValidationError(f"the text is not Python: {error}") from error
    _check_imports(tree)
    _check_names(tree)
    defined = _defined_names(tree)
    wanted = (kernel.entry, kernel.eager_name, kernel.cpu_name, kernel.cuda_name)
    missing = [name for name in wanted if name and name not in defined]
    if missing:
        raise ValidationError(f"the text does not define {', '.join(missing)}")
    _check_statements(kernel.program)
    _check_axes(kernel.program)
    _check_against(kernel.program, candidate)
    return f"{len(kernel.program.statements)} statements over {len(kernel.program.groups)} axes"


def _check_imports(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if not any(name == allowed or name.startswith(allowed + ".")
                       for allowed in _ALLOWED_IMPORTS):  # fmt: skip
                raise ValidationError(f"the text imports {name!r}, which a kernel may not")


def _check_names(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _FORBIDDEN_NAMES:
            raise ValidationError(f"the text uses {node.id}, which a kernel may not")


def _defined_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def _check_statements(program: FusedProgram) -> None:
    known = {entry.name: entry.dtype for entry in program.inputs}
    if len(known) != len(program.inputs):
        raise ValidationError("two operands of the program share a name")
    for statement in program.statements:
        for argument in statement.args:
            if isinstance(argument, str) and argument not in known:
                raise ValidationError(f"{statement.name} uses {argument} before it is computed")
        if statement.name in known:
            raise ValidationError(f"{statement.name} is assigned twice")
        known[statement.name] = statement.dtype
    for output in program.outputs:
        if output.result not in known:
            raise ValidationError(f"output {output.name} is {output.result}, never computed")
        if known[output.result] != output.dtype:
            raise ValidationError(
                f"output {output.name} is declared {output.dtype} but computed "
                f"as {known[output.result]}"
            )


def _check_axes(program: FusedProgram) -> None:
    for space in program.spaces:
        axes = sorted(axis for group in space.groups for axis in group)
        if axes != list(range(space.rank)):
            raise ValidationError(f"groups {space.groups} do not partition {space.rank} dimensions")
    for entry in program.inputs:
        groups = program.spaces[entry.region].groups
        if any(not 0 <= number < len(groups) for number in entry.groups):
            raise ValidationError(f"operand {entry.name} names an axis that does not exist")


def _check_against(program: FusedProgram, candidate: FusionCandidate) -> None:
    given = [one.value for one in program.given]
    if given != [operand.value for operand in candidate.inputs]:
        raise ValidationError("the program's operands are not the candidate's inputs, in order")
    if candidate.regions:
        _check_regions(program, candidate)
    if program.rank != len(candidate.shape):
        raise ValidationError(
            f"the program walks {program.rank} dimensions, the candidate has {len(candidate.shape)}"
        )
    if [output.value for output in program.outputs] != list(candidate.outputs):
        raise ValidationError("the program's outputs are not the candidate's, in order")


def _check_regions(program: FusedProgram, candidate: FusionCandidate) -> None:
    """Every region of the candidate is one of the program's, with its accesses in order."""
    if len(program.spaces) != len(candidate.regions):
        raise ValidationError(
            f"the program has {len(program.spaces)} loops for {len(candidate.regions)} regions"
        )
    for number, (space, region) in enumerate(zip(program.spaces, candidate.regions, strict=True)):
        read = [
            (entry.value, entry.steps)
            for entry in program.inputs
            if entry.kind == "tensor" and entry.region == number
        ]
        if read != [(access.value, access.steps) for access in region.accesses]:
            raise ValidationError(f"loop {number} reads other places than its region")
        written = [output.value for output in program.outputs if output.region == number]
        if written != list(region.outputs) or space.rank != len(region.shape):
            raise ValidationError(f"loop {number} writes other results than its region")
