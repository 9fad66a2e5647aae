from __future__ import annotations

import re
from pathlib import Path

import pytest

from fusion_advisor.errors import UsageError
from fusion_advisor.rules import RULES, Rule, explain, main, pages

DOCS = Path(__file__).parents[2] / "docs" / "rules"


def test_codes_are_consecutive_and_names_unique() -> None:
    assert list(RULES) == [f"FUS{number:03d}" for number in range(1, len(RULES) + 1)]
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert all(rule.code == code for code, rule in RULES.items())


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_section_is_written(rule: Rule) -> None:
    page = explain(rule.code)
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings == ["What it does", "Why it matters", "Example", "Fix safety", "References"]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    for text in (rule.what_it_does, rule.why_it_matters, rule.fix_safety):
        assert text.rstrip().endswith(".")
    assert rule.references


def test_explain_takes_code_or_name_in_any_case() -> None:
    assert explain("fus003") == explain(" FUS003 ") == explain("broadcast-chain")


@pytest.mark.parametrize("code", ["", "FUS999", "E501", "FUS"])
def test_an_unknown_rule_lists_the_known(code: str) -> None:
    with pytest.raises(UsageError, match=r"Known: FUS001 \(elementwise-chain\)"):
        explain(code)


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        RULES["FUS001"] = RULES["FUS002"]  # type: ignore[index]


def test_the_pages_in_docs_are_current() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in DOCS.iterdir()}
    assert written == pages(), "run: python -m fusion_advisor.rules docs/rules"


def test_main_writes_the_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "FUS001.md").read_text(encoding="utf-8") == explain("FUS001")
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
