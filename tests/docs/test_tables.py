"""Tables in the pages say what the code says."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from fusion_advisor.analysis.legality import BLOCKER_CODES
from fusion_advisor.jupyter.magics import MAGICS
from fusion_advisor.jupyter.panel.panel import TITLES
from fusion_advisor.report.files import FORMATS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LAB_PAGE = (ROOT / "docs" / "jupyterlab.md").read_text(encoding="utf-8")
PLUGIN = json.loads((ROOT / "extension" / "schema" / "plugin.json").read_text(encoding="utf-8"))
SOURCES = {path.name: path.read_text(encoding="utf-8")
           for path in (ROOT / "extension" / "src").glob("*.ts")}  # fmt: skip


def section(page: str, title: str) -> str:
    """The text below a heading, up to the next one."""
    return page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> list[str]:
    """The first cell of every row below a table's head."""
    cells: list[str] = re.findall(r"^\| ([^|]*?) \|", text, re.MULTILINE)
    return cells[1:]


def test_every_format_is_listed_with_its_suffixes():
    text = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    listed = {tuple(re.findall(r"`([^`]+)`", cell)) for cell in first_cells(text)}
    assert listed == {one.suffixes for one in FORMATS.values()} | {(".py",)}
    assert not [suffixes[0] for suffixes in listed if f"`{suffixes[0]}`" not in README]


def test_the_readme_lists_every_extra_and_magic():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = README.split("| extra | adds |", 1)[1].split("\n\n", 1)[0]
    listed = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert listed == set(project["optional-dependencies"])
    assert not [magic for magic in MAGICS if f"`%{magic}`" not in README]


def test_keys_and_commands_of_the_extension_are_those_of_its_code():
    commands = SOURCES["commands.ts"]
    ids = dict(re.findall(r"(\w+): '(fusion-advisor:[\w-]+)'", commands))
    labels = {
        ids[name]: label
        for name, label in re.findall(r"add\(CommandIDs\.(\w+), '([^']+)'", commands)
    }
    labels |= {ids["profile"]: "Profile This Cell", ids["toggleMarks"]: "Show Fusion Marks",
               ids["showPanel"]: "Show Fusion Findings"}  # fmt: skip
    assert set(ids.values()) - set(labels) == {ids["act"]}  # an entry of menus, not a command
    for label in labels.values():
        assert f"'{label}'" in commands
    wanted = {one["command"]: one["keys"][0] for one in PLUGIN["jupyter.lab.shortcuts"]}
    listed: dict[str, str] = {}
    rows = re.findall(r"^\|([^|]*)\|([^|]+)\|$", section(LAB_PAGE, "Commands and keys"), re.M)
    for keys, names in rows[2:]:
        split = keys.strip().split(", ") if keys.strip() else [""] * (names.count(", ") + 1)
        listed |= dict(zip(map(str.strip, names.split(", ")), split, strict=True))
    assert listed == {label: wanted.get(id_, "") for id_, label in labels.items()}


def test_settings_and_actions_of_the_extension_are_those_of_its_code():
    titles = [one["title"] for one in PLUGIN["properties"].values()]
    assert first_cells(section(LAB_PAGE, "Settings")) == titles
    actions = re.findall(r"^  \w+: '([^']+)',?$",
                         SOURCES["format.ts"].split("ACTION_LABELS", 1)[1].split("};", 1)[0],
                         re.M)  # fmt: skip
    assert first_cells(section(LAB_PAGE, "Marks")) == [a for a in actions if a != "Undo"]


def test_the_tabs_of_the_panel_are_those_of_its_code():
    text = (ROOT / "docs" / "panel.md").read_text(encoding="utf-8")
    assert tuple(first_cells(text)) == TITLES


def test_the_lesson_names_reasons_that_there_are():
    lesson = json.loads(
        (ROOT / "notebooks" / "02_reading_a_report.ipynb").read_text(encoding="utf-8")
    )
    summary = "".join(lesson["cells"][-2]["source"])
    named = {code for cell in first_cells(summary) for code in re.findall(r"`([^`]+)`", cell)}
    assert len(named) >= 7
    assert named <= set(BLOCKER_CODES)
