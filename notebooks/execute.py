"""Execute a notebook into ``build/``, cell by cell with progress, and print its last output.

    python notebooks/execute.py notebooks/01_quickstart.ipynb

The notebook runs with the project's root as working directory, so that what it writes to
``build/`` lands beside its executed copy.  Exit status: 0 done, 1 a cell raised, 2 the kernel
or the notebook could not be used, 130 interrupted.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 600
DONE, CELL_FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
# Chatter of libraries that would stand in the outputs, and hub look-ups, stay off.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "KINETO_LOG_LEVEL": "6",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def execute(source: Path, target: Path, *, root: Path = ROOT) -> str:
    """Run ``source`` in ``root``, write the executed copy to ``target``, return the last text.

    The copy is written whether or not a cell raises, with the outputs up to there.
    """
    notebook = nbformat.read(source, as_version=4)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    started = time.perf_counter()

    def say(cell: Any, cell_index: int) -> None:
        if cell.cell_type != "code":
            return
        position = code_cells.index(cell) + 1
        elapsed = time.perf_counter() - started
        what = _headline(notebook.cells, cell_index)
        print(f"[{position}/{len(code_cells)}] {elapsed:5.1f} s  {what}", flush=True)

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fa-nb-", ignore_cleanup_errors=True) as folder:
        client = NotebookClient(
            notebook,
            km=_kernel_manager(Path(folder)),
            timeout=CELL_TIMEOUT_S,
            on_cell_start=say,
        )
        try:
            # Not client.execute(): its own signal handlers turn an interrupt into a traceback.
            # Temporary files of the kernel go with the folder, also when it is killed.
            environment = {**os.environ, **QUIET, "IPYTHONDIR": folder, "TMPDIR": folder}
            with open(Path(folder) / "stderr.txt", "w+b") as log:
                try:
                    with client.setup_kernel(
                        cleanup_kc=True, env=environment, cwd=str(root), stderr=log
                    ):
                        for index, cell in enumerate(notebook.cells):
                            client.execute_cell(cell, index)
                except DeadKernelError as error:
                    log.seek(0)
                    error.add_note(log.read().decode(errors="replace")[-2000:])
                    raise
        finally:
            nbformat.write(notebook, target)
    return _text(code_cells[-1]) if code_cells else ""


def _kernel_manager(folder: Path) -> Any:
    """A kernel of this very Python, whatever kernels and start-up files the person has.

    Its sockets are files in ``folder``, which only this user can open: ipykernel has nothing to
    warn about, and no port is taken.
    """
    specs = KernelSpecManager(kernel_dirs=[])  # ipykernel's own: sys.executable
    return AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=specs,
        transport="ipc",
        connection_file=str(folder / "kernel.json"),
    )


def _headline(cells: list[Any], index: int) -> str:
    """What a cell does, in a line: the heading just above it, else its first line."""
    above = cells[index - 1].source.splitlines() if index else []
    if above and above[0].startswith("## "):
        return str(above[0][3:])
    return str((cells[index].source.strip().splitlines() or [""])[0][:72])


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
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # also a terminal that closes
        signal.signal(ending, signal.default_int_handler)
    if not arguments:
        print("usage: python notebooks/execute.py NOTEBOOK...", file=sys.stderr)
        return UNUSABLE
    for name in arguments:
        source = Path(name)
        target = ROOT / "build" / source.name
        try:
            summary = execute(source, target)
        except CellExecutionError as error:
            message = str(error) if sys.stderr.isatty() else _COLORS.sub("", str(error))
            print(f"\n{source}: a cell failed.\n{message.strip()}", file=sys.stderr)
            print(f"\nThe outputs up to there are in {_shown(target)}", file=sys.stderr)
            return CELL_FAILED
        except CellTimeoutError:
            print(f"\n{source}: a cell took over {CELL_TIMEOUT_S} s: stopped.", file=sys.stderr)
            return CELL_FAILED
        except KeyboardInterrupt:
            print(f"\n{source}: interrupted; nothing is left running.", file=sys.stderr)
            return INTERRUPTED
        except DeadKernelError as error:
            print(f"\n{source}: the kernel ended before its cell did (stopped from outside, or "
                  "out of memory?)", *error.__notes__, sep="\n", file=sys.stderr)  # fmt: skip
            return UNUSABLE
        except (OSError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
            print(f"{source}: cannot be executed: {error}", file=sys.stderr)
            return UNUSABLE
        print(f"\n{summary.rstrip()}")
    return DONE


def _shown(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
