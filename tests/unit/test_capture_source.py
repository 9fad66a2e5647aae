"""Source spans: cells, files, installed packages, to the AST node."""

from __future__ import annotations

import linecache

import pytest

from fusion_advisor.recorder import source

CELL = "/tmp/ipykernel_123/3870563111.py"


@pytest.fixture(autouse=True)
def cells_are_forgotten():
    yield
    source.forget_cells()
    linecache.cache.pop(CELL, None)


def _run_cell(text, filename=CELL, first_line=1, **names):
    torch = pytest.importorskip("torch")
    from fusion_advisor.recorder import record

    code = compile(text, filename, "exec")
    namespace = {"torch": torch, **names}
    return record(lambda: exec(code, namespace))


def test_two_ops_of_one_line_are_told_apart():
    text = "x = torch.ones(3)\ny = torch.tanh(x * 2) + x\n"
    source.register_cell(CELL, cell_id="abc", execution_count=7, raw=text)
    recording = _run_cell(text)
    spans = [node.span for node in recording.graph.nodes]
    assert [span.text for span in spans] == [
        "torch.ones(3)",
        "x * 2",
        "torch.tanh(x * 2)",
        "torch.tanh(x * 2) + x",
    ]
    assert {(span.kind, span.cell_id, span.execution_count) for span in spans} == {
        ("cell", "abc", 7)
    }
    assert spans[1].line == spans[1].end_line == 2
    assert (spans[1].column, spans[1].end_column) == (15, 20)
    assert not spans[0].installed and spans[0].function == ""


def test_columns_count_bytes():
    text = "größe = torch.ones(2); é = größe * 2\n"
    source.register_cell(CELL, cell_id=None, execution_count=1, raw=text)
    span = _run_cell(text).graph.nodes[1].span
    assert span.text == "größe * 2"
    line = text.encode()
    assert line[span.column : span.end_column].decode() == "größe * 2"


def test_columns_in_utf16_units_as_editors_count():
    text = "s = '𝛽é'; y = torch.ones(2) * 2; z = '𝛽'\n"  # 𝛽: 4 bytes, 2 units; é: 2 bytes, 1 unit
    source.register_cell(CELL, cell_id=None, execution_count=1, raw=text)
    span = _run_cell(text).graph.nodes[1].span
    units = text.encode("utf-16-le")
    assert span.column == 18
    assert (span.utf16_column, span.utf16_end_column) == (15, 32)
    assert units[30:64].decode("utf-16-le") == span.text == "torch.ones(2) * 2"


def test_columns_of_a_line_that_is_not_at_hand_or_has_changed_are_unknown():
    code = compile("\n\nx = torch.ones(2)", "<ipython-input-9-gone>", "exec")
    offset = max(at for at, place in enumerate(code.co_positions()) if place[0] == 3) * 2
    assert source.span_of(code, offset).utf16_column is None
    source.register_cell(code.co_filename, cell_id=None, execution_count=1, raw="\n\né")
    assert source.span_of(code, offset).utf16_end_column is None


def test_the_body_of_a_cell_magic_counts_from_the_cell():
    raw = "%%fuse_profile\nx = torch.ones(3)\ny = x + 1\n"
    source.register_cell(CELL, cell_id="m", execution_count=2, raw=raw, first_line=2)
    recording = _run_cell(raw.split("\n", 1)[1])
    span = recording.graph.nodes[1].span
    assert (span.line, span.text) == (3, "x + 1")


def test_functions_loops_and_the_way_to_the_cell():
    text = (
        "def f(x):\n"
        "    for _ in range(2):\n"
        "        x = (x\n"
        "             + 1)\n"
        "    return x\n"
        "y = f(torch.ones(2))\n"
    )
    source.register_cell(CELL, cell_id="c", execution_count=1, raw=text)
    recording = _run_cell(text)
    adds = [node for node in recording.graph.nodes if node.op == "aten.add.Tensor"]
    assert adds[0].span == adds[1].span
    assert (adds[0].span.line, adds[0].span.end_line) == (3, 4)
    assert adds[0].span.text == "x\n             + 1"
    assert adds[0].span.function == "f"
    assert [span.text for span in adds[0].stack][1] == "f(torch.ones(2))"
    assert adds[0].stack[-1].function == ""


def test_a_cell_nobody_announced_is_still_a_cell():
    text = "x = torch.ones(3) * 2\n"
    linecache.cache[CELL] = (len(text), None, text.splitlines(True), CELL)
    span = _run_cell(text).graph.nodes[-1].span
    assert (span.kind, span.cell_id, span.text) == ("cell", None, "torch.ones(3) * 2")
    assert source.is_cell("<ipython-input-3-abcdef>")
    assert not source.is_cell("/home/me/model.py")


def test_later_execution_of_equal_text_wins():
    for count in (1, 5):
        source.register_cell(CELL, cell_id=f"id{count}", execution_count=count, raw="x = 1\n")
    assert source.find_cell(CELL).execution_count == 5


def test_installed_files_are_marked():
    import json

    assert source.is_installed(json.__file__)
    assert source.is_installed(pytest.__file__)
    assert not source.is_installed(__file__)
    assert not source.is_installed(CELL)


def test_file_code_is_read_through_linecache():
    torch = pytest.importorskip("torch")
    from fusion_advisor.recorder import record

    recording = record(lambda: torch.ones(2).mul(3))
    span = recording.graph.nodes[-1].span
    assert span.kind == "file" and span.file == __file__
    assert span.text == "torch.ones(2).mul(3)"


def test_code_without_source_has_no_text():
    recording = _run_cell("y = torch.ones(2) + 1\n", filename="<gone>")
    span = recording.graph.nodes[-1].span
    assert span is not None and span.text == "" and span.line == 1


def test_source_can_be_left_out():
    torch = pytest.importorskip("torch")
    from fusion_advisor.recorder import CaptureOptions, record

    recording = record(lambda: torch.ones(2) + 1, CaptureOptions(with_source=False))
    assert all(node.span is None and node.stack == () for node in recording.graph.nodes)


def test_the_registry_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, fusion_advisor.recorder.source as s; assert 'torch' not in sys.modules"
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
