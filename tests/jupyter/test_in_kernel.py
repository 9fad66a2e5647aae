"""The magics in a real kernel, driven as ``nbconvert --execute`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

HERE = Path(__file__).parent
# The stand-in advisor of the shell tests, put in place inside the kernel.
SETUP = f"""
import sys, types
sys.path[:0] = [{str(HERE.parents[1])!r}, {str(HERE)!r}, {str(HERE.parent / "unit")!r}]
import fusion_advisor
from stand_in import FakeAdvice
fake = types.ModuleType("fusion_advisor.advisor")
def profile_code(run, **options):
    options["progress"]("recording", 0.0)
    advice = FakeAdvice(run(), options)
    options["progress"]("analysing", 0.9)
    return advice
fake.profile_code = profile_code
sys.modules["fusion_advisor.advisor"] = fusion_advisor.advisor = fake
%load_ext fusion_advisor
"""


def executed(*cells: str, allow_errors: bool = False) -> list[Any]:
    """The code cells of a notebook after a headless run."""
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)],
        metadata={"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}},
    )
    client = nbclient.NotebookClient(book, timeout=120, allow_errors=allow_errors)
    client.execute()
    return list(book.cells[1:])


def kinds(cell: Any) -> list[str]:
    return [output["output_type"] for output in cell.outputs]


def test_value_then_report_with_plain_text_beside_html():
    cell, nested = executed(
        "%%fuse_profile\nprint('own output')\n7000 + 1", "%%time\n%%fuse_profile\n1;"
    )
    # progress (updated in place), own output, value, report
    assert kinds(cell) == ["display_data", "stream", "execute_result", "display_data"]
    progress, stream, value, report = cell.outputs
    assert progress["data"]["text/plain"].startswith("Fusion Advisor: done after ")
    assert stream["text"] == "own output\n"
    assert value["data"]["text/plain"] == "7001"
    assert value["execution_count"] == 2
    assert {"text/plain", "text/html"} <= set(report["data"])
    assert not any("widget" in kind for kind in report["data"])
    assert "execute_result" not in kinds(nested)


def test_an_error_stops_the_run_and_is_shown_once():
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyError"):
        executed("%%fuse_profile\nraise KeyError('mine')", "after = 1")
    cell, ours = executed(
        "%%fuse_profile\ndef f():\n    raise KeyError('mine')\nf()",
        "%fuse_apply F99",
        allow_errors=True,
    )
    errors = [output for output in cell.outputs if output["output_type"] == "error"]
    assert [error["ename"] for error in errors] == ["KeyError"]
    trace = "\n".join(errors[0]["traceback"])
    assert "line 4" in trace
    assert "stand_in" not in trace
    assert "magics.py" not in trace
    assert cell.outputs[0]["data"]["text/plain"].startswith("Fusion Advisor: stopped by KeyError")
    (error,) = ours.outputs
    assert error["ename"] == "UsageError"
    assert len(error["traceback"]) == 1
    assert "nothing was profiled yet" in error["traceback"][0]


def test_cells_are_known_by_their_text_and_number():
    _, _, shown = executed(
        "def model_part():\n    return where()",
        "def where():\n    import sys\n    f = sys._getframe(1)\n"
        "    from fusion_advisor.recorder.source import span_of\n"
        "    return span_of(f.f_code, f.f_lasti)",
        "%%fuse_profile\n\ns = model_part()\nt = where()\n"
        "print(s.kind, s.execution_count, s.line, s.text, t.execution_count, t.line, t.text)",
    )
    stream = next(output for output in shown.outputs if output["output_type"] == "stream")
    assert stream["text"] == "cell 2 2 where() 4 4 where()\n"


def test_an_interrupt_stops_the_cell_and_those_queued_behind_it():
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        assert client.execute_interactive(SETUP, timeout=60)["content"]["status"] == "ok"
        client.execute("%%fuse_profile\nimport time\nprint('begun')\ntime.sleep(60)")
        client.execute("after = 1")
        while "begun" not in str(client.get_iopub_msg(timeout=60)["content"].get("text", "")):
            pass
        manager.interrupt_kernel()
        replies = [client.get_shell_msg(timeout=30)["content"] for _ in range(2)]
        assert [reply["status"] for reply in replies] == ["error", "aborted"]
        assert replies[0]["ename"] == "KeyboardInterrupt"
        trace = "\n".join(replies[0]["traceback"])
        assert "time" in trace and "magics.py" not in trace
        assert client.execute_interactive("1", timeout=30)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
