"""Run the blocks of one page in the current folder: ``python run_page.py PAGE``.

Python blocks are cells of one notebook kernel.  Ends with status 1 at the first block that fails,
and says which.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from pages import RUN, Block, blocks, commands, missing_line

BLOCK_TIMEOUT_S = 300
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class Kernel:
    """A notebook kernel of this Python, started when a page has its first Python block."""

    def __init__(self, folder: str) -> None:
        self._manager = KernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),  # ipykernel's own
            transport="ipc",
            connection_file=os.path.join(folder, "kernel.json"),
        )
        self._client: Any = None

    def run(self, text: str) -> str:
        """Run a cell; its error, or an empty string."""
        if self._client is None:
            self._manager.start_kernel()
            self._client = self._manager.client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=60)
        reply = self._client.execute_interactive(
            text, timeout=BLOCK_TIMEOUT_S, output_hook=lambda message: None
        )["content"]
        if reply["status"] == "ok":
            return ""
        return _COLORS.sub("", "\n".join(reply.get("traceback", [reply["status"]])))

    def close(self) -> None:
        """End the kernel."""
        if self._client is not None:
            self._client.stop_channels()
            self._manager.shutdown_kernel(now=True)


def main(page: Path) -> int:
    """All blocks of the page, in order."""
    with tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as folder:
        os.environ["IPYTHONDIR"] = folder
        kernel = Kernel(folder)
        try:
            for block in blocks(page):
                if block.language not in RUN or block.not_run:
                    continue
                problem = run_block(block, kernel)
                if problem:
                    print(f"{page.name}, line {block.line}: {problem}\n{block.text}",
                          file=sys.stderr)  # fmt: skip
                    return 1
        finally:
            kernel.close()
    return 0


def run_block(block: Block, kernel: Kernel) -> str:
    """What went wrong with a block; empty if nothing did."""
    if block.file:
        Path(block.file).write_text(block.text, encoding="utf-8")
        return ""
    if block.language == "python":
        return kernel.run(block.text)
    for command in commands(block):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.text],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=BLOCK_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != command.status:
            return f"`{command.text}` ended with {done.returncode}:\n{done.stdout[-3000:]}"
        missing = missing_line(command.shown, done.stdout)
        if missing is not None:
            return f"`{command.text}` does not print {missing!r}:\n{done.stdout[-6000:]}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
