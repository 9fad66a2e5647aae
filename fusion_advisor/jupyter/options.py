"""Options of the magics, in one table each: parsing, completion and help read the same rows."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Literal

from fusion_advisor.errors import UsageError

_TOKEN = re.compile(r"\s*(--?[A-Za-z][\w-]*)(?:=|(?=\s|$))|\s*(--)(?=\s|$)")
_COMMENT = re.compile(r"(?:^|\s)#(?=\s|$)")
_VALUE = re.compile(r"""\s*("[^"]*"|'[^']*'|\S+)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """``flags`` (first one is shown), the keyword it sets, and what its value may be."""

    flags: tuple[str, ...]
    name: str
    kind: Literal["flag", "text", "count", "path", "identifier"] = "flag"
    choices: tuple[str, ...] = ()
    help: str = ""


PROFILE_OPTIONS = (
    Option(flags=("--backward",), name="backward", help="record the backward pass too"),
    Option(flags=("--device",), name="device", kind="text", help="estimate for a device not here"),
    Option(flags=("--target",), name="target", kind="text", choices=("cpu", "cuda", "both"),
           help="which kernels to generate"),
    Option(flags=("--top",), name="top", kind="count", help="how many findings to show"),
    Option(flags=("--all",), name="all", help="also candidates that are not worth it"),
    Option(flags=("--steps",), name="steps", kind="count", help="loop steps to record"),
    Option(flags=("--export",), name="export", kind="path", help="write .html, .md, .json, …"),
    Option(flags=("--panel",), name="panel", help="show the widget panel below the report"),
    Option(flags=("-o",), name="output", kind="identifier", help="name to bind the advice to"),
)  # fmt: skip
SHOW_OPTIONS = (
    Option(flags=("--target",), name="target", kind="text", choices=("cpu", "cuda", "both"),
           help="which kernels to generate"),
    Option(flags=("--match",), name="match", kind="text", choices=("eager", "fast"),
           help="round as eager does, or less often"),
    Option(flags=("--no-validate",), name="no_validate", help="do not run the kernel"),
)  # fmt: skip
APPLY_OPTIONS = (
    Option(flags=("--all",), name="all", help="every finding"),
    Option(flags=("--where",), name="where", kind="text", choices=("function", "module", "file"),
           help="what to change"),
    Option(flags=("--match",), name="match", kind="text", choices=("eager", "fast"),
           help="round as eager does, or less often"),
    Option(flags=("--cell",), name="cell", help="propose the edited cell as the next input"),
)  # fmt: skip


def parse(line: str, options: tuple[Option, ...], magic: str) -> tuple[dict[str, object], str]:
    """Options at the front of ``line``, and the untouched rest (an expression keeps its quotes).

    ``--`` ends the options, for an expression that starts with ``-name``.
    """
    by_flag = {flag: option for option in options for flag in option.flags}
    found: dict[str, object] = {}
    while match := _TOKEN.match(line):
        flag, line_after = match.group(1), line[match.end() :]
        if match.group(2):
            return found, line_after.strip()
        option = by_flag.get(flag)
        if option is None:
            known = ", ".join(by_flag) or "none"
            raise UsageError(
                f"{magic}: unknown option {flag} (options: {known}); put -- before an expression "
                "that starts with a minus"
            )
        if option.kind == "flag":
            if line[match.end() - 1 : match.end()] == "=":
                raise UsageError(f"{magic}: {flag} takes no value")
            found[option.name], line = True, line_after
            continue
        value = _VALUE.match(line_after)
        if value is None:
            raise UsageError(f"{magic}: {flag} needs a value")
        found[option.name] = _checked(option, value.group(1).strip("\"'"), magic)
        line = line_after[value.end() :]
    return found, line.strip()


def _checked(option: Option, value: str, magic: str) -> object:
    flag = option.flags[0]
    if option.choices and value not in option.choices:
        raise UsageError(f"{magic}: {flag} is one of {', '.join(option.choices)}, not {value!r}")
    if option.kind == "count":
        if not value.isascii() or not value.isdigit() or int(value) < 1:
            raise UsageError(f"{magic}: {flag} needs a whole number of at least 1, not {value!r}")
        return int(value)
    if option.kind == "identifier" and not value.isidentifier():
        raise UsageError(f"{magic}: {flag} needs a variable name, not {value!r}")
    return value


def _words(line: str) -> list[str]:
    """The line's words, less a comment behind them as Python code may have; ``ValueError``."""
    for comment in _COMMENT.finditer(line):
        try:
            return shlex.split(line[: comment.start()])
        except ValueError:
            continue  # this one stands between quotes
    return shlex.split(line)


def parse_anywhere(
    line: str, options: tuple[Option, ...], magic: str
) -> tuple[dict[str, object], list[str]]:
    """Options and plain words in any order: for magics that take finding ids or a path."""
    try:
        words = _words(line)
    except ValueError as error:
        raise UsageError(f"{magic}: {error}") from error
    by_flag = {flag: option for option in options for flag in option.flags}
    front: list[str] = []
    plain: list[str] = []
    pending = iter(words)
    for word in pending:
        option = by_flag.get(word.partition("=")[0])
        if not word.startswith("-"):
            plain.append(word)
            continue
        front.append(word)
        if option is not None and option.kind != "flag" and "=" not in word:
            value = next(pending, None)
            front += [] if value is None else [shlex.quote(value)]
    found, rest = parse(" ".join(front), options, magic)
    return found, plain + rest.split()
