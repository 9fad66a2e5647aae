"""Execute a notebook into ``build/``, cell by cell with progress, and print its last output.

    python notebooks/execute.py notebooks/01_quickstart.ipynb

The notebook runs with the project's root as working directory, so that what it writes to
``build/`` lands beside its executed copy.  Exit status 1 when a cell raises.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 600


def execute(source: Path, target: Path) -> str:
    """Run ``source``, write the executed copy to ``target``, return the last cell's text."""
    notebook = nbformat.read(source, as_version=4)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    started = time.perf_counter()

    def say(cell: Any, cell_index: int) -> None:
        if cell.cell_type != "code":
            return
        position = code_cells.index(cell) + 1
        first = cell.source.strip().splitlines()[0] if cell.source.strip() else ""
        elapsed = time.perf_counter() - started
        print(f"[{position}/{len(code_cells)}] {elapsed:5.1f} s  {first[:72]}", flush=True)

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
        on_cell_start=say,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        client.execute()
    finally:
        nbformat.write(notebook, target)
    return _text(code_cells[-1])


def _text(cell: Any) -> str:
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif "text/plain" in output.get("data", {}):
            parts.append(output.data["text/plain"] + "\n")
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Execute each notebook named; the summary is what its last cell printed."""
    for name in arguments:
        source = Path(name)
        target = ROOT / "build" / source.name
        try:
            summary = execute(source, target)
        except CellExecutionError as error:
            print(f"{source}: a cell failed; the executed copy is {target}\n{error}")
            return 1
        print(f"\n{summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
