"""Python source as HTML: tokens in ``<span>``, by class or by inline style.

Made for generated kernels and excerpts, which need not be complete programs: what cannot
be tokenised is shown escaped and plain.
"""

from __future__ import annotations

import html
import io
import keyword
import tokenize
from collections.abc import Callable, Iterator
from itertools import pairwise

from fusion_advisor.report.values import MAX_CODE, printable, shortened

_BUILTIN = frozenset(
    {"range", "len", "float", "int", "bool", "tuple", "min", "max", "abs", "print"}
)
_STYLES = {  # readable on white and on near-black, for pages whose theme is not known
    "k": "color:#b0569b",
    "s": "color:#3f8f3f",
    "c": "color:#7a8288;font-style:italic",
    "n": "color:#b5691f",
    "d": "color:#b0569b",
    "f": "color:#3b82c4",
    "b": "color:#3b82c4",
}


def highlight(source: str, *, inline: bool = False) -> str:
    """``source`` as escaped HTML; ``inline`` uses ``style=`` where no style sheet survives."""
    text = printable(shortened(source, MAX_CODE))
    pieces: list[str] = []
    lines = text.splitlines(keepends=True)
    row, column = 1, 0
    wrap = _styled if inline else _classed
    for kind, start, end in _spans(text):
        pieces.append(_escape(_between(lines, (row, column), start)))
        pieces.append(wrap(kind, _escape(_between(lines, start, end))))
        row, column = end
    pieces.append(_escape(_between(lines, (row, column), (len(lines) + 1, 0))))
    return "".join(pieces)


def _escape(text: str) -> str:
    return html.escape(text, quote=True)  # printable already, and every character is wanted


def _classed(kind: str, text: str) -> str:
    return f'<span class="{kind}">{text}</span>'


def _styled(kind: str, text: str) -> str:
    return f'<span style="{_STYLES[kind]}">{text}</span>'


def _between(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]] if start[0] <= len(lines) else ""
    parts = [lines[start[0] - 1][start[1] :]] if start[0] <= len(lines) else []
    parts += lines[start[0] : end[0] - 1]
    if end[0] <= len(lines):
        parts.append(lines[end[0] - 1][: end[1]])
    return "".join(parts)


Place = tuple[int, int]


def _spans(text: str) -> Iterator[tuple[str, Place, Place]]:
    """Kind, start and end of each token worth colouring, in order, as far as it tokenises."""
    for token, following in pairwise(_tokens(io.StringIO(text).readline)):
        kind = _kind(token, following)
        if kind:
            yield kind, token.start, token.end


def _tokens(readline: Callable[[], str]) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(readline)
    except (tokenize.TokenError, SyntaxError):
        # an excerpt that stops in the middle: what came before is coloured, the rest is plain
        yield tokenize.TokenInfo(tokenize.ENDMARKER, "", (0, 0), (0, 0), "")


def _kind(token: tokenize.TokenInfo, following: tokenize.TokenInfo) -> str:
    if token.type == tokenize.COMMENT:
        return "c"
    if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
        return "s"
    if token.type == tokenize.NUMBER:
        return "n"
    if token.type == tokenize.OP:
        return "d" if token.string == "@" and not token.line[: token.start[1]].strip() else ""
    if token.type != tokenize.NAME:
        return ""
    if keyword.iskeyword(token.string):
        return "k"
    before = token.line[: token.start[1]].rstrip()
    if before.endswith(("def", "class")):
        return "f"
    if token.string in _BUILTIN and following.string == "(":
        return "b"
    return ""
