"""``notebooks/execute.py``: what a person sees of a failing cell, and of an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A place for a notebook of a name of its own, and where its executed copy will lie."""
    source = tmp_path / f"runner_{os.getpid()}_{tmp_path.name}.ipynb"
    executed = ROOT / "build" / source.name
    yield source, executed
    executed.unlink(missing_ok=True)


def write(source: Path, *cells: str) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, source)


def start(source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "notebooks" / "execute.py"), str(source)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def test_a_failing_cell_is_shown_with_its_error_and_the_outputs_are_kept(notebook):
    source, executed = notebook
    write(source, "print('first')", "def part():\n    raise KeyError('mine')\npart()", "never = 1")
    process = start(source)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert [line.split("]")[0] for line in out.splitlines()] == ["[1/3", "[2/3"]
    assert "a cell failed" in error
    assert "----> 3 part()" in error
    assert "KeyError: 'mine'" in error
    assert "nbclient" not in error  # the runner's own frames
    assert "WARNING" not in error
    assert "\x1b[" not in error  # no colours where nobody sees them
    assert executed.name in error
    cells = nbformat.read(executed, as_version=4).cells
    assert cells[0].outputs[0].text == "first\n"
    assert cells[1].outputs[0].ename == "KeyError"


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_one_line_and_leaves_no_kernel(notebook, tmp_path, ending):
    source, _ = notebook
    told = tmp_path / "kernel.pid"
    text = "import os, pathlib, time\n"
    write(
        source, text + f"pathlib.Path({str(told)!r}).write_text(str(os.getpid()))\ntime.sleep(99)"
    )
    process = start(source)
    deadline = time.monotonic() + 60
    while not (told.exists() and told.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(ending)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.strip() == f"{source}: interrupted; nothing is left running."
    kernel = int(told.read_text())
    while _alive(kernel):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_no_notebook_is_one_line(tmp_path):
    missing = tmp_path / "missing.ipynb"
    broken = tmp_path / "broken.ipynb"
    broken.write_text("{")
    for path in (missing, broken):
        process = start(path)
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out) == (2, "")
        assert f"{path}: cannot be executed: " in error
        assert "Traceback" not in error
