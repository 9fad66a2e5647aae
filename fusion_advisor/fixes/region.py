"""The statements a chain spans, and the checks on where they stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass

from fusion_advisor.fixes.evidence import Match
from fusion_advisor.fixes.liveness import Liveness, dynamic_access
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.source_index import SourceIndex

_TURNED_OFF = re.compile(r"#\s*fuse:\s*off\b", re.IGNORECASE)


@dataclass
class Region:
    """The statements from the chain's first to its last, all of one suite."""

    scope: ast.AST
    statements: list[ast.stmt]
    live: Liveness


def find_region(index: SourceIndex, matches: Mapping[ast.AST, Match]) -> Region:
    """The region of a chain; ``Refusal`` where it does not stand in one straight line."""
    places = list(matches)
    scopes = {id(scope): scope for scope in map(index.scope, places)}
    if len(scopes) != 1:
        raise Refusal("several-scopes", "the chain stands in several functions or comprehensions")
    scope = next(iter(scopes.values()))
    if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        raise Refusal(
            "scope", "the chain stands in a lambda or a class body, which cannot take a statement"
        )
    statements = {id(one): one for one in map(index.statement, places)}
    suites = {id(index.suite(one)): index.suite(one) for one in statements.values()}
    if len(suites) != 1:
        raise Refusal("several-blocks", "the chain crosses an `if`, loop, `with` or `try` boundary")
    suite = next(iter(suites.values()))
    positions = [number for number, one in enumerate(suite) if id(one) in statements]
    region = suite[positions[0] : positions[-1] + 1]
    _check_text(index, scope, region)
    return Region(scope, region, Liveness(index, scope, region))


def _check_text(index: SourceIndex, scope: ast.AST, region: list[ast.stmt]) -> None:
    dynamic = dynamic_access(scope)
    if dynamic is not None:
        raise Refusal(
            "dynamic-names",
            f"`{index.short(dynamic)}` in the same scope can read any name, so none can be removed",
        )
    first, last = region[0].lineno, region[-1].end_lineno or region[-1].lineno
    for line in range(first, last + 1):
        if _TURNED_OFF.search(index.offsets.lines[line - 1]):
            raise Refusal("turned-off", f"line {line} says `# fuse: off`")
        if line in index.masked_lines:
            raise Refusal("magic-line", f"line {line} is a magic or shell line inside the chain")
