"""The notebooks, executed as a person would: ``make demo``, ``jupyter execute``, nbconvert."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
QUICKSTART = ROOT / "notebooks" / "01_quickstart.ipynb"
LESSONS = ("02_reading_a_report", "03_from_finding_to_kernel")
PNG = b"\x89PNG\r\n\x1a\n"


def runner() -> ModuleType:
    """``notebooks/execute.py``, which is a script."""
    spec = importlib.util.spec_from_file_location("execute", ROOT / "notebooks" / "execute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def jupyter(*words: str, folder: Path) -> None:
    """``jupyter WORDS`` in ``folder``, as from a shell: away from the person's own profile."""
    home = {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_CONFIG_DIR": str(folder / "config")}
    result = subprocess.run(
        [sys.executable, "-m", "jupyter", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **home},
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]


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


def test_the_exported_page_holds_headline_and_table(demo):
    jupyter("nbconvert", "--to", "html", "executed.ipynb", folder=demo.folder)
    page = (demo.folder / "executed.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert re.search(r"Fusing 1 place would save about [\d.,]+ \S+ of ", text)
    assert page.count("<table") >= 3
    assert "application/vnd.jupyter.widget" not in page


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


# The lessons


class Lesson:
    """A lesson after ``jupyter execute``, and the page that nbconvert makes of it."""

    def __init__(self, name: str, folder: Path) -> None:
        source = folder / f"{name}.ipynb"
        source.write_bytes((ROOT / "notebooks" / source.name).read_bytes())
        jupyter("execute", "--inplace", source.name, folder=folder)
        jupyter("nbconvert", "--to", "html", source.name, folder=folder)
        notebook = json.loads(source.read_text(encoding="utf-8"))
        self.name = name
        self.cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        self.page = source.with_suffix(".html").read_text(encoding="utf-8")
        self.outputs = [output for cell in self.cells for output in cell["outputs"]]
        self.printed = "".join(
            "".join(output["text"]) for output in self.outputs if output["output_type"] == "stream"
        )


@pytest.fixture(scope="module", params=LESSONS)
def lesson(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lesson:
    return Lesson(request.param, tmp_path_factory.mktemp(request.param))


def test_a_lesson_runs_to_its_end_without_a_complaint(lesson):
    assert all(cell["execution_count"] for cell in lesson.cells)
    for output in lesson.outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]


def test_nothing_in_a_lesson_needs_a_live_kernel_to_be_seen(lesson):
    shown = [output["data"] for output in lesson.outputs if "data" in output]
    assert shown
    for data in shown:
        assert not [kind for kind in data if "widget" in kind]
        assert data["text/plain"]
    assert "application/vnd.jupyter.widget" not in lesson.page


def test_the_page_of_a_lesson_holds_headline_tables_and_plots(lesson):
    text = re.sub(r"<[^>]+>", "", lesson.page)
    assert re.search(r"Fusing \d+ places? would save about [\d.,]+ \S+ of ", text)
    assert lesson.page.count("<table") >= 5
    plots = re.findall(r'<img[^>]+src="data:image/png;base64,([^"]+)"', lesson.page)
    drawn = [cell for cell in lesson.cells if "plt.show()" in "".join(cell["source"])]
    assert len(drawn) >= 3
    assert len(plots) >= len(drawn)
    assert all(base64.b64decode(plot)[:8] == PNG for plot in plots)


@pytest.mark.parametrize("lesson", LESSONS[:1], indirect=True)
def test_the_lesson_on_reports_provokes_every_common_reason(lesson):
    text = re.sub(r"<[^>]+>", " ", lesson.page)
    for code in ("not-elementwise", "non-convex", "mutated-input", "view", "random", "host-sync"):
        assert re.search(rf"\b{code}\b", text), code
    assert "no kernels are generated for complex64" in text
    assert "compute-bound: bytes −67%" in lesson.printed
    assert "a fused call costs more than it would save" in lesson.printed
    assert "backward would run the eager ops again" in lesson.printed
    assert re.search(r"pays after [\d,]+ calls|does not pay here", lesson.printed)


@pytest.mark.parametrize("lesson", LESSONS[1:], indirect=True)
def test_the_lesson_on_kernels_gives_the_worked_example_and_rejects_every_plant(lesson):
    assert "before 12,000,150   after 4,000,050   3.00 ×   4,000,000 accesses" in lesson.printed
    (plants,) = [
        "".join(output["data"]["text/html"])
        for output in lesson.outputs
        if "stopped at" in "".join(output.get("data", {}).get("text/html", ""))
    ]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in plants.split("<tr>")]
    verdicts = {row[0]: (row[1], row[2]) for row in rows if len(row) == 4}
    assert verdicts.pop("bfloat16, as it should be") == ("passed", "")
    assert {verdict for verdict, _ in verdicts.values()} == {"failed"}
    assert verdicts["bfloat16, product not rounded"][1] == "CPU kernel"
    assert "left 2 of 514 elements of out unwritten" in plants
    if "CUDA: multiply-add contracted" in verdicts:
        assert verdicts["CUDA: multiply-add contracted"][1] == "no stray FMA"
        assert re.search(r"x \* scale \+ bias +→ fma\.rn\.f32\n", lesson.printed)
        assert re.search(r"fmul_rn, then \+ +→ mul\.rn\.f32, add", lesson.printed)
    assert "taken out; bitwise as before" in lesson.printed


# Before anybody runs them


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_holds_no_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    identifiers = [cell["id"] for cell in cells]
    assert len(set(identifiers)) == len(identifiers)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert cells[0]["cell_type"] == "markdown"
