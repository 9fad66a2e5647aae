"""The quickstart notebook, executed as ``make demo`` does, and what a person then has."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "notebooks" / "01_quickstart.ipynb"


def runner() -> ModuleType:
    """``notebooks/execute.py``, which is a script."""
    spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Demo:
    """The executed notebook, its last text, and the folder it ran in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary: str = runner().execute(QUICKSTART, folder / "executed.ipynb", root=folder)
        notebook = json.loads((folder / "executed.ipynb").read_text(encoding="utf-8"))
        self.cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]

    def outputs(self, start: str) -> list[dict[str, Any]]:
        """Outputs of the code cell that begins with ``start``."""
        (cell,) = [cell for cell in self.cells if "".join(cell["source"]).startswith(start)]
        return list(cell["outputs"])

    def data(self, start: str, kind: str) -> str:
        """All of one kind of data, or of printed text (``stream``), of a cell."""
        parts = []
        for output in self.outputs(start):
            if kind == "stream" and output["output_type"] == "stream":
                parts.append("".join(output["text"]))
            elif kind in output.get("data", {}):
                parts.append("".join(output["data"][kind]))
        return "\n".join(parts)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return Demo(tmp_path_factory.mktemp("quickstart"))


pytestmark = [pytest.mark.essential, pytest.mark.slow]


def test_the_finding_names_cell_line_and_expression(demo):
    text = demo.data("%fuse_profile", "text/plain")
    assert re.search(r"F1 .*WrittenOutGELU", text)
    assert re.search(r"In \[2\], line \d+ in WrittenOutGELU.forward", text)
    assert "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi)" in text
    assert "proven bitwise" in text


def test_the_kernel_is_validated_and_applied(demo):
    rungs = demo.data("validation = ", "stream")
    assert "failed" not in {line.split()[0] for line in rungs.splitlines()}
    for rung in ("CPU kernel", "CUDA kernel, run natively", "gradients", "guards"):
        assert re.search(rf"^passed +{rung} ", rungs, re.MULTILINE), rung
    assert re.search(
        r"F1 in place: whole call [\d.]+ \S+ → [\d.]+ \S+ ", demo.data("applied", "text/plain")
    )


def test_no_length_falls_back_with_or_without_gradients(demo):
    header, row = demo.data("for length", "text/plain").splitlines()
    assert header.split() == ["finding", "kernel", "fused_calls", "fallbacks", "reasons"]
    assert row.split()[1] == "F1"
    assert row.split()[-2:] == ["24", "0"]  # 3 lengths, with and without gradients, 4 layers


def test_undone_bitwise(demo):
    assert demo.data("advice.undo()", "text/plain") == "True"


def test_the_edit_is_a_diff_of_the_cell(demo):
    diff = demo.data("from fusion_advisor.fixes", "stream")
    assert "+@cuda.jit" in diff
    assert re.search(r"^-        return 0\.5 \* x \* \(1\.0", diff, re.MULTILINE)
    assert not re.search(r"\d+\.py", diff.split("@@")[0])


def test_five_lines_of_summary(demo):
    lines = demo.summary.strip().splitlines()
    assert [line.split()[0] for line in lines] == [
        "Findings", "Fusion", "Validated", "Applied", "Report",
    ]  # fmt: skip
    assert re.search(r"1 of 1 kernels: \d+ cases, 0 mismatches", lines[2])
    assert lines[3].endswith("undone bitwise: True")


def test_nothing_but_results_is_in_the_outputs(demo):
    for cell in demo.cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr", output["text"]


def test_reports_and_kernels_are_files(demo):
    build = demo.folder / "build"
    page = (build / "fusion-report.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert "WrittenOutGELU" in text
    assert "@cuda.jit" in text
    saved = build / "fusion-report.json"
    (kernel,) = (build / "kernels").glob("*.py")
    code = (
        "import sys; from fusion_advisor.serialize import load_report\n"
        "report = load_report(open(sys.argv[1], encoding='utf-8').read())\n"
        "(_, stored), = report.kernels\n"
        "assert stored.text == open(sys.argv[2], encoding='utf-8').read()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(saved), str(kernel)], check=True, cwd=ROOT)


class _Untrusted(HTMLParser):
    """What a front end keeps of an untrusted output: no styles, scripts or drawings."""

    DROPPED = ("style", "script", "svg", "iframe", "object", "form", "input", "button")

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.kept: list[str] = []
        self.handlers: list[str] = []
        self._inside = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self._inside += tag in self.DROPPED

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag in self.DROPPED

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.kept.append(data)


def test_an_untrusted_reopen_still_shows_headline_and_table(demo):
    for start in ("%fuse_profile", "%fuse_show"):
        page = _Untrusted()
        page.feed(demo.data(start, "text/html"))
        assert page.handlers == []
        assert not set(page.tags) & set(_Untrusted.DROPPED)
        text = " ".join(page.kept)
        assert "WrittenOutGELU" in text
        assert "In [2], line" in text
    page = _Untrusted()
    page.feed(demo.data("%fuse_profile", "text/html"))
    assert any(part.startswith("Fusing 1 place would save about ") for part in page.kept)
    assert "table" in page.tags
    assert "Saves per run" in page.kept
