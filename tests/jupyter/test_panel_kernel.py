"""The panel in a real kernel: its outputs, clicks, progress, a running cell, the saved notebook."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")
sys.path.insert(0, str(Path(__file__).parent))
from panel_kernel import SETUP, FrontEnd

PROFILE = "%fuse_profile --panel -o advice --target cpu model(x)"
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def front() -> Iterator[FrontEnd]:
    end = FrontEnd(PROFILE)
    yield end
    end.stop()


def test_the_panel_is_an_output_of_its_own_below_the_static_report(front: FrontEnd):
    shown = front.run("%fuse_profile --panel -o other --target cpu model(x)")
    report, panel = [one["data"] for one in shown if one["output_type"] == "display_data"][-2:]
    assert set(report) == {"text/plain", "text/html"}
    assert "Memory traffic" in report["text/html"]
    assert set(panel) == {"text/plain", WIDGET}
    assert panel["text/plain"].startswith("Fusion Advisor panel: Fusing 2 places would save")
    root = front.models[panel[WIDGET]["model_id"]]
    assert root["_dom_classes"] == ["fusion-advisor-panel"]


def test_widget_shows_the_report_folded_and_then_the_panel(front: FrontEnd):
    shown = front.run("advice.widget()")
    folded, panel = [one["data"] for one in shown]
    assert folded["text/html"].startswith("<details><summary") and WIDGET not in folded
    assert WIDGET in panel
    front.run("_again = advice.widget(); _again.close()")
    closed = front.run("_again")
    assert closed[0]["text"] == "This panel was closed; advice.widget() opens another one.\n"
    assert [one["output_type"] for one in closed] == ["stream"]


@pytest.mark.essential
@pytest.mark.slow
def test_clicks_are_answered_with_progress_and_a_new_state():
    front = FrontEnd("before = model(x).clone()", PROFILE)
    try:
        front.click(front.model(description="Generate"))
        front.until_said("was generated")
        assert front.models[front.model(description="Generate")]["disabled"]
        bar = front.model(_view_name="ProgressView")
        front.values[bar].clear()
        front.click(front.model(description="Validate"))
        front.until_said("running")
        front.until_said('fadv-note good">Validated: 0 mismatches in ')
        fractions = [value for value in front.values[bar] if value]
        assert fractions == sorted(fractions) and len(fractions) >= 5

        front.run("%fuse_apply F1")  # the panel follows what a magic does
        front.until_said("F1 in place: whole call ")
        undo = front.model(description="Undo")
        assert not front.models[undo]["disabled"]
        front.click(undo)
        front.until_said("F1 is not in place: undone")
        shown = front.run("print(torch.equal(model(x), before), advice.report.applied[-1].reason)")
        assert shown[0]["text"] == "True undone\n"
        assert "Traceback" not in "".join(front.logged)
    finally:
        front.stop()


@pytest.mark.slow
def test_behind_a_running_cell_the_panel_says_that_it_waits(tmp_path: Path):
    front = FrontEnd(PROFILE, "import time, pathlib")
    go = tmp_path / "go"
    try:
        front.click(front.model(description="Apply"))
        front.until_said("apply F1: begun")
        cell = front.start(
            f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)\n"
            "print('validated:', len(advice.report.validations), 'applied:', advice.report.applied)"
        )
        front.until_said("queued behind the running cell")  # its validation went on meanwhile
        assert front.models[front.model(description="Apply")]["disabled"]
        go.touch()
        shown = front.finish(cell)
        assert shown[0]["text"] == "validated: 1 applied: ()\n"
        front.until_said("F1 in place: whole call ")
        front.run("advice.undo();")
    finally:
        front.stop()


def test_filter_and_pages_are_set_from_the_front_end(front: FrontEnd):
    before = len(front.models)
    front.run("panel = advice.widget()")
    fields = [name for name, state in list(front.models.items())[before:]
              if str(state.get("placeholder", "")).startswith("op, node, place")]  # fmt: skip
    front.set(fields[0], value="no such thing")
    front.until_said("None matches.")
    front.run("panel.close()")
    assert len(front.models) == before


def test_a_cell_that_runs_again_closes_the_panel_it_showed_before(front: FrontEnd):
    front.run(PROFILE, cell_id="one")
    once = len(front.models)
    front.run(PROFILE, cell_id="two")  # the same text in another cell
    twice = len(front.models)
    assert twice - once > 100
    front.run(PROFILE, cell_id="one")
    assert len(front.models) == twice
    front.run("%fuse_profile --panel --target cpu model(x)\n" * 2, cell_id="two")
    assert len(front.models) == twice + (twice - once)  # two panels in one cell stay


# -- the saved notebook ------------------------------------------------------------------------


@pytest.mark.essential
def test_a_saved_notebook_and_its_page_show_the_static_report():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    nbconvert = pytest.importorskip("nbconvert")
    cells = [nbformat.v4.new_code_cell(code) for code in (SETUP, PROFILE, "advice.widget()")]
    book = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()
    page, _ = nbconvert.HTMLExporter().from_notebook_node(book)
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    # once as the magic's own output, once folded above the widget
    assert body.count("Fusing 2 places would save about") >= 2
    assert body.count(">Memory traffic</th>") == 4  # facts and table head, twice
    assert "The report as it was when this panel was opened" in body
    for cell in book.cells[1:]:
        kinds = [set(output["data"]) for output in cell.outputs if "data" in output]
        assert {"text/plain", "text/html"} in kinds and {"text/plain", WIDGET} in kinds
