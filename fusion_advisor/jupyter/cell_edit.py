"""Edits of a cell's text as text: applied and shown, never written anywhere by themselves."""

from __future__ import annotations

import difflib

from fusion_advisor.errors import FixError
from fusion_advisor.records import Fix


def edited_text(old: str, fix: Fix) -> str:
    """``old`` with the fix's edits made; ``FixError`` if they overlap or lie outside the text."""
    new, end = [], 0
    for edit in sorted(fix.edits, key=lambda one: (one.start, one.end)):
        if not end <= edit.start <= edit.end <= len(old):
            raise FixError(f"the edits of {fix.finding} do not fit the cell's text: profile again")
        new += [old[end : edit.start], edit.new]
        end = edit.end
    return "".join([*new, old[end:]])


def text_diff(old: str, new: str, *, name: str) -> str:
    """A unified diff of two texts."""
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), fromfile=name, tofile=f"{name}, fused", lineterm="", n=2
    )
    return "\n".join(lines)
