"""What a notebook is told about a finding, made from the record alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_fixture import rich_report

from fusion_advisor.jupyter.payloads import actions


@pytest.mark.parametrize(("function", "live"), [("Block.forward", True), ("", False)])
def test_live_code_is_offered_only_where_a_function_holds_the_chain(
    function: str, live: bool
) -> None:
    finding = rich_report().findings[0]
    assert finding.span is not None
    placed = replace(finding, span=replace(finding.span, function=function))
    assert ("apply_live" in actions(placed, "open", "cell", marked=True)) is live
    assert "fuse" in actions(placed, "open", "cell", marked=True)
