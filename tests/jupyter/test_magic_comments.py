"""A magic's line may end in a comment, as any other line of a cell may."""

from __future__ import annotations

import pytest

from fusion_advisor.errors import UsageError
from fusion_advisor.jupyter.options import APPLY_OPTIONS, parse_anywhere


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("F1     # it's the dearest", ["F1"]),
        ("F1 F2 #", ["F1", "F2"]),
        ("# everything", []),
        ("report#1.html", ["report#1.html"]),
        ("'my # report.html'", ["my # report.html"]),
        ("'my # report.html'  # kept", ["my # report.html"]),
        ("#1.html", ["#1.html"]),
    ],
)
def test_words_before_a_comment_count(line, words):
    assert parse_anywhere(line, (), "%fuse_show") == ({}, words)


def test_options_before_a_comment_count():
    assert parse_anywhere("F1 --cell # --all", APPLY_OPTIONS, "%fuse_apply") == (
        {"cell": True},
        ["F1"],
    )


def test_a_quote_left_open_is_still_an_error():
    with pytest.raises(UsageError, match="No closing quotation"):
        parse_anywhere("'F1 # it", (), "%fuse_show")
