"""Text of ``fused_<name>.py``: kernels, and ``apply(model)``/``undo(model)`` for code that is
never edited because it belongs to an installed package.
"""

from __future__ import annotations

import ast
import io
import keyword
import sys
import tokenize
import types
from collections.abc import Sequence
from dataclasses import dataclass

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.insertion import bindings_of
from fusion_advisor.fixes.live_code import function_block
from fusion_advisor.fixes.live_function import function_source, global_name, original_code
from fusion_advisor.fixes.module_calls import HELPER, HELPER_IMPORT, with_helpers
from fusion_advisor.fixes.text_edits import apply_edits, text_hash
from fusion_advisor.records import Fix, KernelSource


@dataclass(frozen=True)
class ModulePiece:
    """A kernel and the function fixes (from ``plan_function``) that call it."""

    kernel: KernelSource
    function: types.FunctionType
    fix: Fix


_HEAD = '''"""{title}

Made by Fusion Advisor.  ``apply(model)`` puts the fused kernels in place of the chains in the
functions named in ``REPLACEMENTS`` (for every instance in this process); ``undo(model)`` takes them
out again exactly.  A function whose installed source is not the one these kernels were made for is
refused, and nothing is changed.  So is this file itself once it was changed: its kernels are then
not the ones that were validated.
"""
# fmt: off
# ruff: noqa

import __future__
import ast
import hashlib
import importlib
import inspect
import linecache
import types

SHA256 = "{digest}"  # of this text without this line


def _check_own_text():
    try:
        text = __loader__.get_source(__name__)
    except (NameError, AttributeError, ImportError):
        text = None
    if text is None and "__file__" in globals():
        with open(__file__, encoding="utf-8") as file:
            text = file.read()
    if text is None:
        raise RuntimeError(
            "these kernels cannot read their own text, so nobody knows whether it was changed: "
            "save it as a .py file and import that"
        )
    head, _, rest = text.partition("\\nSHA256 = ")
    whole = head + "\\n" + rest.partition("\\n")[2]
    actual = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    if actual != SHA256:
        raise RuntimeError(
            f"{{__name__}} was changed after it was exported (SHA-256 {{actual[:12]}}, expected "
            f"{{SHA256[:12]}}), so its kernels are not the validated ones and none was put in "
            "place: take the change out, or export the module again (advice.export_module(path) "
            "or %fuse_export)"
        )


_check_own_text()

'''

_TAIL = '''
_originals = {}  # target -> (functions, their code)


def apply(model=None):
    """Put the kernels in place; returns the places changed.

    Raises RuntimeError, and changes nothing, where a function is missing or its source is not
    the one the kernels were made for, or where ``model`` has no module of a changed class.
    """
    prepared = [_prepare(model, *entry) for entry in REPLACEMENTS if entry[0] not in _originals]
    for target, functions, code, names in prepared:
        _originals[target] = [(function, function.__code__, names) for function in functions]
        for function in functions:
            function.__globals__.update(names)
            function.__code__ = code
    return [target for target, _, _, _ in prepared]


def undo(model=None):
    """Restore every function exactly; returns the places put back."""
    places = list(_originals)
    for entries in _originals.values():
        for function, code, names in entries:
            function.__code__ = code
            for name in names:
                function.__globals__.pop(name, None)
    _originals.clear()
    return places


def stats():
    """Calls of each kernel: fused, and fallbacks to eager by reason."""
    return {name: one.stats for entry in REPLACEMENTS for name, one in entry[3].items()}


def _prepare(model, target, expected, source, names):
    module_name, _, path = target.partition(":")
    try:
        found = importlib.import_module(module_name)
        holders = [found]
        for attribute in path.split("."):
            found = getattr(found, attribute)
            holders.append(found)
    except (ImportError, AttributeError) as error:
        raise RuntimeError(f"{target} is not installed here ({error})") from error
    owner = holders[-2]
    if model is not None and isinstance(owner, type):
        if not any(isinstance(module, owner) for module in model.modules()):
            raise RuntimeError(f"the model has no {owner.__name__}, so {target} is not used in it")
    function = _unwrap(found, path)
    if function is None:
        raise RuntimeError(f"{target} is not a Python function here")
    lines, start = inspect.getsourcelines(function)
    if hashlib.sha256("".join(lines).encode()).hexdigest() != expected:
        raise RuntimeError(
            f"the source of {target} is not the one these kernels were made for (another version "
            "of the package?): profile again and export a new file"
        )
    clash = [name for name in names if name in function.__globals__]
    if clash:
        raise RuntimeError(f"{module_name} already has a global called {clash[0]}")
    code = _compile(function, lines, start, source)
    return target, _sharing(function), code, names


def _unwrap(found, path):
    """The function of that name itself, behind decorators."""
    seen, waiting = set(), [found]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, types.FunctionType):
            if one.__code__.co_qualname == path:
                return one
            waiting.append(getattr(one, "__wrapped__", None))
            waiting += [cell.cell_contents for cell in one.__closure__ or () if _filled(cell)]
        elif isinstance(one, (types.MethodType, staticmethod, classmethod)):
            waiting.append(one.__func__)
    return None


def _filled(cell):
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def _sharing(function):
    """All live function objects that run this code."""
    import gc

    code = function.__code__
    return [
        one
        for one in gc.get_referrers(code)
        if isinstance(one, types.FunctionType) and one.__code__ is code
    ]


def _compile(function, lines, start, source):
    """The function's code with its source replaced, compiled in its own file."""
    old = function.__code__
    text = list(linecache.getlines(old.co_filename))  # the cache itself stays as it is
    text[start - 1 : start - 1 + len(lines)] = source.splitlines(keepends=True)
    flags = 0
    for name in __future__.all_feature_names:
        flags |= getattr(__future__, name).compiler_flag
    tree = ast.parse("".join(text))
    module = compile(tree, old.co_filename, "exec", old.co_flags & flags, dont_inherit=True)
    waiting = [module]
    while waiting:
        code = waiting.pop()
        if code.co_qualname == old.co_qualname and code.co_firstlineno == old.co_firstlineno:
            if code.co_freevars != old.co_freevars:
                break
            return code
        waiting += [one for one in code.co_consts if isinstance(one, types.CodeType)]
    raise RuntimeError(f"{old.co_qualname} is not found in its own file after the replacement")
'''


def module_file(pieces: Sequence[ModulePiece], *, title: str = "Fused kernels") -> str:
    """The text of a module that puts these kernels in place by import path.

    Raises ``FixError`` for a refused fix and for functions that cannot be imported (defined in a
    notebook or inside another function).
    """
    if not pieces:
        raise FixError("there is no kernel to export")
    texts, entries = _kernel_texts([piece.kernel for piece in pieces])
    helpers = any(HELPER in with_helpers(piece.fix, {}) for piece in pieces)
    if helpers:
        texts = [HELPER_IMPORT, "", *texts]
    parts = [_HEAD.format(title=_one_line(title), digest="0" * 64), *texts]
    parts += ["", "REPLACEMENTS = (", "    # import path, SHA-256 of its source, new source, names"]
    grouped: dict[types.FunctionType, list[ModulePiece]] = {}
    for piece in pieces:
        grouped.setdefault(piece.function, []).append(piece)
    for function, group in grouped.items():
        parts += _replacement(function, group, entries)
    parts += [")", "", _TAIL]
    text = _signed("\n".join(parts))
    compile(text, "fused.py", "exec")
    return text


def _signed(text: str) -> str:
    """The text with the hash that it checks itself against when it is imported."""
    head, mark, rest = text.partition("\nSHA256 = ")
    old, _, rest = rest.partition("\n")
    digest = text_hash(f"{head}\n{rest}")
    return f"{head}{mark}{old.replace('0' * 64, digest)}\n{rest}"


def _one_line(title: str) -> str:
    """A title as part of a docstring: what is not printable, or would end it, is replaced."""
    shown = "".join(c if c.isprintable() else " " for c in title)
    return shown.replace('"', "'").replace("\\", "/").strip() or "Fused kernels"


def reapply_cell(module_name: str, model: str = "model") -> str:
    """Text of a notebook cell that puts an exported file's kernels in place after a restart.

    Raises:
        FixError: no module of that name can be imported, or ``model`` is not a name.
    """
    if not _is_name(module_name):
        raise FixError(
            f"a module named {module_name!r} cannot be imported: name the file like fused_model.py"
        )
    if not all(map(_is_name, model.split("."))):
        raise FixError(f"{model!r} is not the name of a model")
    return (
        f"# Puts the fused kernels of {module_name}.py in place; run it once `{model}` exists.\n"
        f"import {module_name}\n\n"
        f"{module_name}.apply({model})  # {module_name}.undo({model}) takes them out again\n"
    )


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def import_path(function: types.FunctionType) -> str:
    """``package.module:Class.method``; ``FixError`` where an import cannot reach the function."""
    code = original_code(function)
    if function.__module__ == "__main__" or "<" in code.co_qualname:
        raise FixError(
            f"{code.co_qualname} is defined in the notebook or inside another function, so no "
            "import can find it: edit its cell instead"
        )
    found: object = sys.modules.get(function.__module__)
    for attribute in code.co_qualname.split("."):
        found = getattr(found, attribute, None)
    if found is None:
        raise FixError(f"{function.__module__}:{code.co_qualname} cannot be imported")
    return f"{function.__module__}:{code.co_qualname}"


def _replacement(
    function: types.FunctionType, group: Sequence[ModulePiece], entries: dict[str, str]
) -> list[str]:
    text = function_source(function)
    for piece in group:
        if piece.fix.blockers or text_hash(text) != piece.fix.old_hash:
            raise FixError(f"the fix of {function.__qualname__} does not fit its source")
    start, end = function_block(original_code(function), text)
    edits = [edit for piece in group for edit in piece.fix.edits]
    new_text = apply_edits(text, edits)
    new_source = new_text[start : end + len(new_text) - len(text)]
    names = {global_name(piece.kernel): entries[piece.kernel.hash] for piece in group}
    if any(HELPER in with_helpers(piece.fix, {}) for piece in group):
        names[HELPER] = HELPER
    shown = ", ".join(f"{name!r}: {entry}" for name, entry in names.items())
    return [
        "    (",
        f"        {import_path(function)!r},",
        f"        {text_hash(text[start:end])!r},",
        f"        {_quoted(new_source)},",
        f"        {{{shown}}},",
        "    ),",
    ]


def _quoted(source: str) -> str:
    """A string literal that reads like the source where that is possible.

    Characters that an editor does not show are escaped: they must not hide what the text does.
    """
    if not all(c.isprintable() or c in "\n\t" for c in source):
        return repr(source)
    for quote in ('"""', "'''"):
        literal = f"{quote}{source}{quote}"
        try:
            if ast.literal_eval(literal) == source:
                return literal
        except (SyntaxError, ValueError):
            continue
    return repr(source)


def _kernel_texts(kernels: Sequence[KernelSource]) -> tuple[list[str], dict[str, str]]:
    """Each kernel's text once, and the name of its entry; clashing names are numbered."""
    texts: list[str] = []
    entries: dict[str, str] = {}
    taken: set[str] = set()
    for kernel in kernels:
        if kernel.hash in entries:
            continue
        if not kernel.is_intact:
            raise FixError(f"the text of {kernel.entry} was changed: generate it again")
        _, defined = bindings_of(kernel.text)
        renamed = {}
        for name in sorted(defined):
            number, new = 1, name
            while new in taken:
                number += 1
                new = f"{name}_{number}"
            renamed[name] = new
            taken.add(new)
        text = _rename(kernel.text, {old: new for old, new in renamed.items() if old != new})
        texts += [text.strip("\n"), "", ""]
        entries[kernel.hash] = renamed[kernel.entry]
    return texts, entries


def _rename(text: str, names: dict[str, str]) -> str:
    """Rename module-level names in generated text, token by token."""
    if not names:
        return text
    tokens = []
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        new = token.string
        if token.type == tokenize.NAME and previous != ".":
            new = names.get(token.string, token.string)
        if new != token.string:
            token = token._replace(string=new)
        previous = token.string
        tokens.append(token)
    return _untokenize(text, tokens)


def _untokenize(text: str, tokens: Sequence[tokenize.TokenInfo]) -> str:
    """Put changed tokens back at their old places, everything else as it was."""
    lines = list(io.StringIO(text))  # as the tokenizer counts lines
    for token in reversed(tokens):
        if token.type == tokenize.NAME:
            row, column = token.start[0] - 1, token.start[1]
            line = lines[row]
            lines[row] = line[:column] + token.string + line[token.end[1] :]
    return "".join(lines)


__all__ = ["ModulePiece", "import_path", "module_file", "reapply_cell"]
