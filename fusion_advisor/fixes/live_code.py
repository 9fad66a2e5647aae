"""From the source of a running function to a code object with edits in it.

The whole file is compiled with the edits, under the same name and with the line numbers of the
text a person can read, and the function's code object is taken out of it: closures, ``super()``,
name mangling and ``from __future__`` imports come out as in the original.
"""

from __future__ import annotations
import __future__

import ast
import gc
import inspect
import linecache
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.text_edits import apply_edits, line_map
from fusion_advisor.records import SourceSpan, TextEdit

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


def source_of(code: types.CodeType) -> str:
    """The whole text a code object was compiled from; ``FixError`` where there is none."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise FixError(
            f"the source of {code.co_qualname} ({code.co_filename}) is not there: "
            "only functions with source text can be fused in place"
        )
    return "".join(lines)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _find(module: types.CodeType, like: types.CodeType) -> types.CodeType | None:
    found = [
        code
        for code in _nested(module)
        if code.co_qualname == like.co_qualname and code.co_firstlineno == like.co_firstlineno
    ]
    return found[0] if len(found) == 1 else None


def same_code(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two code objects do the same at the same places."""
    if (
        one.co_code != other.co_code
        or one.co_names != other.co_names
        or one.co_varnames != other.co_varnames
        or one.co_freevars != other.co_freevars
        or one.co_cellvars != other.co_cellvars
        or one.co_flags != other.co_flags
        or len(one.co_consts) != len(other.co_consts)
        or list(one.co_positions()) != list(other.co_positions())
    ):
        return False
    for mine, its in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(mine, types.CodeType) and isinstance(its, types.CodeType):
            if not same_code(mine, its):
                return False
        elif type(mine) is not type(its) or repr(mine) != repr(its):
            return False
    return True


def function_block(code: types.CodeType, text: str) -> tuple[int, int]:
    """Character offsets of a function's own lines (decorators included) in its file's text."""
    lines = text.splitlines(keepends=True)
    first = code.co_firstlineno - 1
    block = inspect.getblock(lines[first:])
    start = sum(map(len, lines[:first]))
    return start, start + sum(map(len, block))


def check_source(code: types.CodeType, text: str) -> None:
    """The running code must be what its text compiles to; ``FixError`` otherwise."""
    _compiled_whole(code, text)


def _compiled_whole(code: types.CodeType, text: str) -> bool:
    """Whether the running code came from its whole text, as a file's does.

    A notebook compiles each top-level statement of a cell on its own, and what a statement
    compiles to depends on what is compiled with it (how names imported in the same unit are
    called).  ``FixError`` where it is neither.
    """
    tree = ast.parse(text)
    for whole in (True, False):
        original = _find(_compile(_unit(tree, code, whole=whole), code), code)
        if original is not None and same_code(original, code):
            return whole
    raise FixError(
        f"the source of {code.co_qualname} in {code.co_filename} is not what is running "
        "(edited since it was imported, or changed by a decorator): restart and profile again"
    )


def _unit(tree: ast.Module, code: types.CodeType, *, whole: bool) -> ast.Module:
    """The text that is compiled together with a function: all of it, or its own statement."""
    if whole:
        return tree
    line = code.co_firstlineno
    own: list[ast.stmt] = [
        statement
        for statement in tree.body
        if _first_line(statement) <= line <= (statement.end_lineno or statement.lineno)
    ]
    return ast.Module(body=own, type_ignores=[])


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def edited_code(code: types.CodeType, text: str, edits: Sequence[TextEdit]) -> types.CodeType:
    """The code object of the function with the edits made, lines as in the unedited text."""
    new_text = apply_edits(text, edits)
    origin = line_map(text, edits)
    tree = ast.parse(new_text)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr | ast.excepthandler | ast.arg | ast.keyword):
            _move(node, origin)
    unit = _unit(tree, code, whole=_compiled_whole(code, text))
    found = _find(_compile(unit, code), code)
    if found is None:
        raise FixError(f"{code.co_qualname} is not found in its own source after the edit")
    if found.co_freevars != code.co_freevars:
        raise FixError(
            f"the edit changes which outer variables {code.co_qualname} closes over, so the "
            "running function cannot take it"
        )
    return found


def _move(
    node: ast.stmt | ast.expr | ast.excepthandler | ast.arg | ast.keyword, origin: Sequence[int]
) -> None:
    """Give a node of the edited text the lines of the text a person can read."""
    end = node.end_lineno or node.lineno
    node.lineno = origin[node.lineno - 1]
    node.end_lineno = max(origin[end - 1], node.lineno)
    if node.end_lineno == node.lineno:  # pulled onto one line, columns may have crossed
        node.end_col_offset = max(node.end_col_offset or 0, node.col_offset)


def _compile(tree: ast.Module, like: types.CodeType) -> types.CodeType:
    flags = like.co_flags & _FUTURE
    compiled = compile(tree, like.co_filename, "exec", flags=flags, dont_inherit=True)
    assert isinstance(compiled, types.CodeType)
    return compiled


# -- finding the functions that run a place ------------------------------------------------------


def functions_of(code: types.CodeType) -> list[types.FunctionType]:
    """Every live function object that runs this code object."""
    return [
        one
        for one in gc.get_referrers(code)
        if isinstance(one, types.FunctionType) and one.__code__ is code
    ]


def find_function(
    span: SourceSpan,
    *,
    filenames: Iterable[str] = (),
    namespaces: Iterable[Mapping[str, object]] = (),
) -> types.FunctionType:
    """The live function whose body holds a recorded place.

    ``filenames`` are further names its code may carry (a cell's ``co_filename``); ``namespaces``
    further globals to look in beside the loaded modules (a notebook's).  ``FixError`` where it is
    not found, or where module-level code holds the place.
    """
    files = {span.file, *filenames}
    best: types.FunctionType | None = None
    for function in _all_functions(files, namespaces):
        code = function.__code__
        lines = [line for _, _, line in code.co_lines() if line is not None]
        if not lines or not min(code.co_firstlineno, *lines) <= span.line <= max(lines):
            continue
        if span.function and code.co_name != span.function.rsplit(".", 1)[-1]:
            continue
        if best is None or code.co_firstlineno > best.__code__.co_firstlineno:
            best = function
    if best is None and not span.function:
        raise FixError(
            f"{span.file}:{span.line} is not inside a function, so there is none to swap while it "
            "lives: edit the text instead, or put the expression into a function and profile again"
        )
    if best is None:
        raise FixError(
            f"no live function holds {span.file}:{span.line} ({span.function}), so there is none "
            "to swap: it was defined again, or another kernel is in place there (take that one "
            "out, then profile again)"
        )
    return best


def _all_functions(
    files: set[str], namespaces: Iterable[Mapping[str, object]]
) -> Iterator[types.FunctionType]:
    """Functions with code from these files: in modules, namespaces and classes, unwrapped."""
    seen: set[int] = set()
    waiting: list[object] = []
    for namespace in namespaces:
        waiting += list(namespace.values())
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) in files:
            waiting += list(vars(module).values())
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType):
            if one.__code__.co_filename in files:
                yield one
            waiting += [getattr(one, "__wrapped__", None)]
            for cell in one.__closure__ or ():
                try:
                    waiting.append(cell.cell_contents)
                except ValueError:  # an empty cell holds nothing to look at
                    continue
        elif isinstance(one, type):
            waiting += list(vars(one).values())
        elif isinstance(one, staticmethod | classmethod | types.MethodType):
            waiting.append(one.__func__)
        elif isinstance(one, property):
            waiting += [one.fget, one.fset, one.fdel]
