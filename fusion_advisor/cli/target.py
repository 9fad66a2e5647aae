"""What the command line runs: a script as ``__main__``, or a function by its name."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fusion_advisor.errors import UsageError


def run_as_main(script: str, words: Sequence[str]) -> Callable[[], None]:
    """A callable that runs ``script`` as ``python script words...`` would.

    ``__main__``, ``sys.argv`` and ``sys.path[0]`` are the script's while it runs and put back
    afterwards.  The file is read and compiled here, so that a missing or broken one is told
    before anything runs.
    """
    path = Path(script)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {script}: {error.strerror or error}") from error
    try:
        code = compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        place = f"{script}, line {line}" if line else script
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{place}: {reason}: the script does not compile") from error

    def run() -> None:
        module = types.ModuleType("__main__")
        module.__file__ = str(path)
        module.__dict__["__builtins__"] = builtins
        kept_argv, kept_path, kept_main = sys.argv, sys.path[:], sys.modules["__main__"]
        sys.argv = [str(path), *words]
        sys.path.insert(0, str(path.resolve().parent))
        sys.modules["__main__"] = module
        try:
            exec(code, module.__dict__)  # noqa: S102 - running the person's script is the command
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = kept_argv, kept_path, kept_main

    return run


def load_function(name: str) -> Callable[[], Any]:
    """The function called ``MODULE:FUNCTION``; the current folder is looked in first."""
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise UsageError(
            f"name the function as MODULE:FUNCTION, for example train:step, not {name!r}"
        )
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        raise UsageError(f"no module {missing!r} here or installed (looked in {folder})") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise UsageError(f"{module_name} has no {path!r}") from error
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}, not a function")
    function: Callable[[], Any] = found
    return function
