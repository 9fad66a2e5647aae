"""Comments that ask for silence: ``# fuse: ignore[FUS001]`` on a line of the expression.

``# fuse: ignore`` ignores every rule, ``# fuse: ignore[FUS001, broadcast-chain]`` those named by
code or name.  Comments are found by Python's own tokenizer, so the same words in a string are
nothing.  An ignored finding stays in the report, marked.
"""

from __future__ import annotations

import functools
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO

from fusion_advisor.records import Finding, FusionCandidate, OpGraph, OpNode, SourceSpan
from fusion_advisor.rules import RULES

_COMMENT = re.compile(r"#\s*fuse:\s*ignore(?P<rest>\s*\[(?P<codes>[^\]]*)\]|\s*\[|(?![\w-]))", re.I)
_CLOSING = frozenset(")]},;")
_QUIET = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT})
_CODES: Mapping[str, str] = {rule.name: code for code, rule in RULES.items()} | {
    code.lower(): code for code in RULES
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreComment:
    """One comment: the rules it names (none: every rule), and what is wrong with it."""

    codes: frozenset[str]
    everything: bool = False
    complaint: str = ""

    def covers(self, rule: str) -> bool:
        """Whether a finding of this rule is ignored by it."""
        return self.everything or rule in self.codes


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreMap:
    """The comments of one text by line, and for each line the last one of what it ends in.

    ``tails[line]`` is the line on which a bracket that an expression ending on ``line`` stands
    in is closed, with nothing else between: a comment after that bracket belongs to it.
    """

    comments: Mapping[int, IgnoreComment]
    tails: Mapping[int, int]

    def on(self, span: SourceSpan) -> Iterator[tuple[int, IgnoreComment]]:
        """Line and comment, for every comment that belongs to an expression."""
        last = self.tails.get(span.end_line, span.end_line)
        for line in range(span.line, last + 1):
            if line in self.comments:
                yield line, self.comments[line]


@functools.lru_cache(maxsize=256)
def find_comments(text: str) -> IgnoreMap:
    """The comments of a file or cell; a text that does not tokenise to its end is read as far."""
    comments: dict[int, IgnoreComment] = {}
    tails: dict[int, int] = {}
    open_from: int | None = None  # the line of the last token that was more than a closing bracket
    if "ignore" not in text.lower():
        return IgnoreMap(comments=comments, tails=tails)
    for token in _tokens(text):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            found = _parsed(token.string)
            if found is not None:
                comments[line] = found
        elif token.type == tokenize.NEWLINE:
            open_from = None
        elif token.string in _CLOSING and open_from is not None:
            if line > open_from:
                tails[open_from] = line
        elif token.type not in _QUIET:
            open_from = token.end[0]
    return IgnoreMap(comments=comments, tails=tails)


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    """All tokens, or those before the first fault."""
    found, complete = _tokenized(text)
    if not complete:  # a cell's magics and shell lines are no Python: blank, so that lines stay
        lines = text.splitlines(keepends=True)
        blanked = ["\n" if line.lstrip().startswith(("%", "!")) else line for line in lines]
        found, _ = _tokenized("".join(blanked))
    return found


def _tokenized(text: str) -> tuple[list[tokenize.TokenInfo], bool]:
    found: list[tokenize.TokenInfo] = []
    try:
        for token in tokenize.generate_tokens(StringIO(text).readline):
            found.append(token)
    except (tokenize.TokenError, SyntaxError, ValueError):
        return found, False
    return found, True


def _parsed(comment: str) -> IgnoreComment | None:
    """What all requests in one comment ask for together."""
    asked = [_request(match) for match in _COMMENT.finditer(comment)]
    if not asked:
        return None
    return IgnoreComment(
        codes=frozenset().union(*(one.codes for one in asked)),
        everything=any(one.everything for one in asked),
        complaint="; ".join(one.complaint for one in asked if one.complaint),
    )


def _request(match: re.Match[str]) -> IgnoreComment:
    if not match["rest"].strip():
        return IgnoreComment(codes=frozenset(), everything=True)
    named = [word.strip() for word in (match["codes"] or "").split(",") if word.strip()]
    if not named:
        return IgnoreComment(
            codes=frozenset(), complaint="names no rule: write # fuse: ignore[FUS001]"
        )
    unknown = [word for word in named if word.lower() not in _CODES]
    return IgnoreComment(
        codes=frozenset(_CODES[word.lower()] for word in named if word.lower() in _CODES),
        complaint=f"names {', '.join(unknown)}, which is no rule (there are: {', '.join(RULES)})"
        if unknown
        else "",
    )


def mark_ignored(
    findings: tuple[Finding, ...], graph: OpGraph, source_of: Callable[[SourceSpan], str]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings, those that comments ignore marked; and notes on comments that are wrong.

    ``source_of`` gives the text of the cell or file a span lies in.  A finding of several
    occurrences is ignored where each of them is.
    """
    nodes = {node.id: node for node in graph.nodes}
    texts: dict[str, IgnoreMap] = {}
    notes: dict[str, None] = {}

    def ignored(finding: Finding, spans: Iterable[SourceSpan]) -> bool:
        covered = False
        for span in spans:
            if span.file not in texts:
                texts[span.file] = find_comments(source_of(span))
            for line, comment in texts[span.file].on(span):
                covered = covered or comment.covers(finding.rule)
                if comment.complaint:
                    notes[f"{_place(span, line)}: the ignore comment {comment.complaint}"] = None
        return covered

    marked = []
    for finding in findings:
        places = {tuple(_own_spans(finding, one, nodes)) for one in finding.occurrences}
        each = [ignored(finding, spans) for spans in sorted(places, key=repr)]
        marked.append(replace(finding, ignored=True) if each and all(each) else finding)
    return tuple(marked), tuple(notes)


def _own_spans(
    finding: Finding, occurrence: FusionCandidate, nodes: Mapping[str, OpNode]
) -> dict[SourceSpan, None]:
    """The expressions of one occurrence; for library code, the person's own that reached it."""
    found: dict[SourceSpan, None] = {}
    if finding.span is not None and not finding.span.installed:
        found[finding.span] = None
    for name in occurrence.nodes:
        node = nodes.get(name)
        if node is None:
            continue
        spans = (node.span, *node.stack) if node.span is not None else node.stack
        own = next((span for span in spans if span is not None and not span.installed), None)
        if own is not None:
            found[own] = None
    return found


def _place(span: SourceSpan, line: int) -> str:
    if span.kind == "cell":
        return f"In [{span.execution_count or '?'}], line {line}"
    return f"{span.file.replace(chr(92), '/').rpartition('/')[2]}:{line}"
