"""What test_workers.py runs in a child process; light to import there."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fusion_advisor import workers
from fusion_advisor.errors import CodegenError, FusionAdvisorError
from fusion_advisor.workers import report_progress

STATE: list[int] = []


def describe(payload: Any) -> tuple[int, int, Any]:
    STATE.append(1)
    return os.getpid(), len(STATE), payload


def segfault(_: Any) -> None:
    print("about to fall", flush=True)
    ctypes.string_at(0)


def overwrite_heap(_: Any) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    block = libc.malloc(64)
    ctypes.memset(block, 0x41, 1 << 22)
    [bytearray(size) for size in range(1, 100_000, 7)]
    os.abort()


def quit_with(code: int) -> None:
    os._exit(code)


def sleep_with_child(marker: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(marker).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def raise_ours(_: Any) -> None:
    raise CodegenError("the kernel has no end")


def raise_foreign(_: Any) -> None:
    raise KeyError("missing")


def return_unpicklable(_: Any) -> Any:
    return lambda: None


def chatter(_: Any) -> str:
    print("python out")
    print("python err", file=sys.stderr)
    os.write(1, b"raw out\n")
    os.system("echo from a shell")
    return "quiet"


def count(steps: int) -> int:
    for step in range(steps):
        report_progress(("step", step, "x" * (100_000 if step == 2 else 1)))
    return steps


def surroundings(name: str) -> tuple[str, str | None, int]:
    import torch

    return os.getcwd(), os.environ.get(name), torch.get_num_threads()


def start_jobs(names: list[str]) -> list[Any]:
    """A job with a template of its own: what its jobs gave, and who that template is."""
    workers.fork_template()
    template = workers._idle
    assert template is not None
    found: list[Any] = [template.process.pid, os.getpid(), str(template.folder)]
    for name in names:
        try:
            found.append(workers.run_isolated(f"worker_jobs:{name}", None, timeout_s=30))
        except FusionAdvisorError as error:
            found.append(str(error))
    found.append(workers._idle is template)
    return found


def start_a_sleeping_job(marker: str) -> None:
    """A job whose own job never ends; the marker file names the processes and the folder."""
    workers.fork_template()
    assert workers._idle is not None
    Path(marker).write_text(f"{workers._idle.process.pid}\n{workers._idle.folder}")
    workers.run_isolated("worker_jobs:sleep_with_child", f"{marker}.child", timeout_s=60)
