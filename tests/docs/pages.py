"""Fenced blocks of a documentation page, and what is to be done with each.

A page is a little program.  Its blocks run in order, in one folder and one session:

- ``python`` blocks as notebook cells (magics included); ``python file=NAME`` is written to NAME;
- ``console`` blocks: each ``$ COMMAND`` runs in bash.  Lines below it must be in its output, in
  this order; ``…`` stands for anything.  A command may end with ``# exit N``.
- ``<!-- not run: REASON -->`` above a block leaves it out; nothing else does.
- ``<!-- set-up … -->`` holds Python that a reader has already (a model and its input).

Other languages (``text``, ``yaml``, ``json``, none) are not code to run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUN = ("python", "console")
SHOWN = ("", "text", "yaml", "json", "toml", "diff")
_FENCE = re.compile(
    r"^<!-- set-up\n(?P<set_up>.*?)^-->$"
    r"|(?P<before>(?:^<!--(?:(?!-->).)*-->\n+)?)^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN = re.compile(r"<!-- not run: (\S.*?) -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """``language`` and ``file`` of the fence, its text, its line, and why it is not run."""

    language: str
    file: str
    text: str
    line: int
    not_run: str


@dataclass(frozen=True)
class Command:
    """A shell command, the output lines shown below it, and the exit status that is meant."""

    text: str
    shown: tuple[str, ...]
    status: int


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["set_up"] is not None:
            found.append(Block("python", "", match["set_up"], line, ""))
            continue
        language, _, rest = match["info"].strip().partition(" ")
        reason = _NOT_RUN.search(match["before"] or "")
        file = rest.removeprefix("file=") if rest.startswith("file=") else ""
        found.append(Block(language, file, match["body"], line, reason[1] if reason else ""))
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block; a line that ends in a backslash goes on."""
    found: list[tuple[str, list[str]]] = []
    lines = iter(block.text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).strip()
            found.append((command, []))
        elif line.strip():
            if not found:
                raise ValueError(f"line {block.line}: output above the first command")
            found[-1][1].append(line)
    result = []
    for text, shown in found:
        command, _, status = text.partition("  # exit ")
        result.append(Command(command.rstrip(), tuple(shown), int(status or 0)))
    return result


def missing_line(shown: tuple[str, ...], output: str) -> str | None:
    """The first shown line that the output does not hold in its order; ``None`` if it does."""
    lines = iter(output.splitlines())
    for wanted in shown:
        pattern = ".*".join(map(re.escape, wanted.strip().split("…")))
        if wanted.strip() == "…":
            continue
        if not any(re.fullmatch(pattern, line.strip()) for line in lines):
            return wanted
    return None
