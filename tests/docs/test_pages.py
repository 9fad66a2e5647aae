"""Everything a reader may copy from the pages is run, or says why it is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from pages import RUN, SHOWN, Block, blocks, commands, missing_line

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
ELSEWHERE = {"ci.md": "unit/test_ci_docs.py"}  # pages whose code has a test of its own
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
OURS = [page for page in PAGES if page.name not in ELSEWHERE]
WITH_CODE = [
    page for page in OURS if any(b.language in RUN and not b.not_run for b in blocks(page))
]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.essential
@pytest.mark.parametrize("page", WITH_CODE, ids=_name)
def test_the_code_of_a_page_runs(page, tmp_path):
    scripts = Path(sys.executable).parent  # where `fusion-advisor` and `jupyter` are
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)]),
        "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]]),
        "JUPYTER_CONFIG_DIR": str(tmp_path / ".jupyter"),
    }
    folder = tmp_path / "work"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(HERE / "run_page.py"), str(page)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]


@pytest.mark.parametrize("page", OURS, ids=_name)
def test_every_block_is_run_or_says_why_not(page):
    for block in blocks(page):
        if block.language in RUN:
            if block.language == "console":
                assert commands(block), f"line {block.line}: no command"
            continue
        assert block.language in SHOWN or block.not_run, f"line {block.line}: {block.language}"
        if block.language in SHOWN:
            assert not re.search(r"^\$ ", block.text, re.MULTILINE), f"line {block.line}"


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs" / "rules").glob("*.md"))],
                         ids=_name)  # fmt: skip
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        if anchor:
            assert anchor in _anchors(other), target


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


# The reader of pages itself


def test_blocks_are_read_with_their_language_file_reason_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```python\nx = 1\n```\n\n<!-- not run: needs a GPU -->\n```bash\nmake\n```\n\n"
        "<!-- set-up\ny = 2\n-->\n\n```python file=a.py\nz = 3\n```\n<!-- a remark -->\n"
        "```console\n$ ls\n```\n",
        encoding="utf-8",
    )
    assert blocks(page) == [
        Block("python", "", "x = 1\n", 3, ""),
        Block("bash", "", "make\n", 7, "needs a GPU"),
        Block("python", "", "y = 2\n", 12, ""),
        Block("python", "a.py", "z = 3\n", 16, ""),
        Block("console", "", "$ ls\n", 19, ""),
    ]


def test_commands_go_on_over_backslashes_and_name_their_status():
    block = Block("console", "", "$ a \\\n    b\nout … 1\n$ c  # exit 1\n", 1, "")
    first, second = commands(block)
    assert (first.text, first.shown, first.status) == ("a b", ("out … 1",), 0)
    assert (second.text, second.shown, second.status) == ("c", (), 1)


def test_shown_output_must_be_there_in_its_order():
    output = "F1  12 ms\nF2  3 ms\n"
    assert missing_line(("F1 … ms", "F2  3 ms"), output) is None
    assert missing_line(("F2  3 ms", "F1 … ms"), output) == "F1 … ms"
    assert missing_line(("F1  13 ms",), output) == "F1  13 ms"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```console\n$ false\n```\n", "ended with 1"),
        ("```console\n$ echo a\nb\n```\n", "does not print 'b'"),
    ],
)
def test_a_page_that_is_wrong_fails(text, says, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(HERE / "run_page.py"), str(page)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HERE)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert says in done.stderr
    assert "page.md, line 1" in done.stderr


def test_pages_that_are_tested_elsewhere_are():
    for page, test in ELSEWHERE.items():
        assert (ROOT / "docs" / page).exists()
        assert f'"{page}"' in (ROOT / "tests" / test).read_text(encoding="utf-8")
