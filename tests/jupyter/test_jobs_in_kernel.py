"""Jobs beside running cells in a real kernel: nothing of the person's is touched or stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipykernel")
pytest.importorskip("torch")

from kernel_client import FrontEnd, Kernel, running_kernel

pytestmark = [pytest.mark.essential, pytest.mark.slow]

SETUP = """\
import os, sys, time, warnings
import torch
x, s, b = torch.randn(64, 128, 64), torch.randn(64), torch.randn(64)
%load_ext fusion_advisor
%config FuseMagics.keep = 100
%config FuseMagics.target = 'cpu'
magics = get_ipython().magics_manager.registry['FuseMagics']
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with running_kernel() as one:
        one.run(SETUP, "setup")
        yield one


@pytest.fixture(scope="module")
def subshell(kernel: Kernel) -> str:
    found = kernel.subshell()
    if found is None:
        pytest.skip("this ipykernel has no subshells")
    return found


@pytest.fixture(scope="module")
def front_end(kernel: Kernel, subshell: str) -> FrontEnd:
    """A front end whose comm is on a subshell, as JupyterLab's are."""
    one = FrontEnd(kernel, subshell=subshell)
    assert one.message("hello")["subshell"] is True
    return one


def profiled(kernel: Kernel, front_end: FrontEnd, text: str) -> str:
    """Profile a cell with one chain; the finding's id."""
    return str(front_end.profiled("%%fuse_profile\n" + text, f"cell of {text}")["id"])


def processes_below(process: int) -> set[int]:
    """Every process that a process has started, and those they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {process}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {process}
        found |= more


# What a cell sees of the process, while it draws random numbers and computes.
WATCHING_CELL = """\
torch.set_default_dtype(torch.float64); torch.set_num_threads(1)
torch.manual_seed(11); drawn = [torch.rand(()).item() for _ in range(2000)]
def seen():
    return (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(),
            torch.is_autocast_enabled('cpu'), list(warnings.filters), warnings.showwarning,
            sys.stdout, sys.stderr, os.getcwd(), dict(os.environ),
            torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled,
            sys.getprofile(), sys.gettrace(), torch._C._len_torch_dispatch_stack())
print('watching', flush=True)
torch.manual_seed(11); differences = []; first = seen(); rounds = 0; end = time.monotonic() + 90
with torch.no_grad():
    inside = seen()
    while time.monotonic() < end and not os.path.exists({stop!r}):
        torch.manual_seed(11)
        for position in range(2000):
            if torch.rand(()).item() != drawn[position]:
                differences.append(('random', rounds, position))
        if seen() != inside:
            differences.append(('state', rounds))
        rounds += 1
print('watched', rounds, differences[:3], seen() == first, flush=True)
torch.set_default_dtype(torch.float32)
"""


def test_validating_touches_nothing_of_a_running_cell(kernel, front_end, tmp_path):
    finding = profiled(kernel, front_end, "y = torch.tanh(x * s + b) * 2")
    stop = tmp_path / "stop"
    cell = kernel.start(WATCHING_CELL.replace("{stop!r}", repr(str(stop))), "watching")
    kernel.wait_for("watching")
    source = "y = torch.tanh(x * s + b) * 2"
    asked = time.monotonic()
    request = front_end.ask("fuse", finding=finding, source=source)
    kernel.until(lambda: front_end.about(request), "not started beside the cell", timeout_s=5)
    started_s = time.monotonic() - asked
    answer = front_end.answer(request)
    assert answer["type"] == "proposal" and answer["passed"], answer
    assert cell not in kernel.replies, "the cell ended before the job: nothing was shown"
    stop.touch()
    assert kernel.finish(cell)["content"]["status"] == "ok"
    kernel.wait_for("watched")
    said = kernel.stream().partition("watched ")[2].splitlines()[0]
    rounds, _, rest = said.partition(" ")
    print(f"\nstarted {started_s:.2f} s after the request; the cell went round {rounds} times")
    assert int(rounds) > 3
    assert rest == "[] True"
    between = kernel.stream().partition("watching\n")[2].partition("watched")[0]
    assert between == ""
    assert kernel.stream("stderr") == ""


def test_cancelling_ends_the_child_and_leaves_the_running_cell(kernel, front_end):
    source = "y = torch.sigmoid(x * s + b) * 3"
    finding = profiled(kernel, front_end, source)
    process = kernel.value("os.getpid()")
    before = processes_below(process)
    cell = kernel.start("time.sleep(6); survived = True; print('slept')", "sleeping")
    request = front_end.ask("fuse", finding=finding, source=source)
    kernel.until(
        lambda: any("CPU kernel" in str(one.get("stage")) for one in front_end.about(request)),
        "no progress",
    )
    assert processes_below(process) - before, "no child to cancel"
    asked = time.monotonic()
    front_end.send({"type": "cancel", "req": request})
    answer = front_end.answer(request, timeout_s=5)
    took = time.monotonic() - asked
    assert answer["type"] == "cancelled", answer
    assert cell not in kernel.replies
    kernel.until(
        lambda: not processes_below(process) - before or None, "a child is left", timeout_s=5
    )
    assert kernel.finish(cell)["content"]["status"] == "ok"
    assert kernel.value("survived") is True
    print(f"\ncancelled after {took:.2f} s")
    # A second cancel, and one of nothing, change nothing; the next job works.
    front_end.send({"type": "cancel", "req": request})
    assert front_end.get("fuse", finding=finding, source=source)["passed"]
    ends = [one for one in front_end.about(request) if one["type"] not in ("started", "progress")]
    assert [one["type"] for one in ends] == ["cancelled"]


def test_the_jobs_of_a_notebook_that_was_closed_are_cancelled(kernel, front_end, subshell):
    source = "y = torch.tanh(x * s + b) * 3"
    finding = profiled(kernel, front_end, source)
    process = kernel.value("os.getpid()")
    before = processes_below(process)
    leaving = FrontEnd(kernel, subshell=subshell)
    leaving.message("hello")
    request = leaving.ask("fuse", finding=finding, source=source)
    kernel.until(
        lambda: any("CPU kernel" in str(one.get("stage")) for one in leaving.about(request)),
        "no progress",
    )
    assert processes_below(process) - before, "no child to cancel"
    leaving.leave()
    kernel.until(
        lambda: not processes_below(process) - before or None, "a child is left", timeout_s=5
    )
    assert front_end.get("fuse", finding=finding, source=source)["passed"]


def test_a_waiting_job_is_cancelled_without_having_begun(kernel, front_end):
    source = "y = torch.erf(x * s + b) * 3"
    finding = profiled(kernel, front_end, source)
    first = front_end.ask("fuse", finding=finding, source=source)
    second = front_end.ask("export", path="never.html")
    kernel.until(lambda: len(front_end.about(second)) >= 2, "the second does not say it waits")
    assert front_end.about(second)[1]["stage"] == "waiting for the job before it"
    front_end.send({"type": "cancel", "req": second})
    assert front_end.answer(second, timeout_s=5)["type"] == "cancelled"
    assert front_end.answer(first)["passed"]
    assert kernel.value("os.path.exists('never.html')") is False


def test_applying_waits_for_the_running_cell_and_goes_before_the_next(kernel, front_end):
    kernel.run(
        "class Act(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.tanh(x * 0.5 + 1) * 3 - x\n"
        "act = Act(); code = Act.forward.__code__\n"
        "order = []\n"
        "from fusion_advisor.advice import Advice\n"
        "_apply = Advice.apply\n"
        "def apply(self, *args, **kwargs):\n"
        "    import threading\n"
        "    main = threading.current_thread() is threading.main_thread()\n"
        "    order.append(('apply', main)); return _apply(self, *args, **kwargs)\n"
        "Advice.apply = apply",
    )
    source = "w = act(x)"
    finding = profiled(kernel, front_end, source)
    front_end.get("measure", finding=finding)  # validated: what is left belongs between cells
    first = kernel.start("time.sleep(4); order.append('first')", "first")
    second = kernel.start("order.append('second'); seen = list(order)", "second")
    time.sleep(0.5)
    asked = time.monotonic()
    request = front_end.ask("apply_live", finding=finding)
    kernel.until(
        lambda: any(one["type"] == "queued" for one in front_end.about(request)),
        "not said to be queued",
        timeout_s=3,
    )
    queued_s = time.monotonic() - asked
    queued = next(one for one in front_end.about(request) if one["type"] == "queued")
    assert queued["message"] == "queued behind the running cell"
    assert first not in kernel.replies
    answer = front_end.answer(request)
    assert answer["type"] == "done", answer
    kernel.finish(second)
    order = kernel.value("order")
    assert order.index(("apply", True)) > order.index("first")
    print(f"\nqueued was said after {queued_s:.2f} s; order {order}")
    front_end.get("undo", finding=finding)
    assert kernel.value("Act.forward.__code__ is code") is True
    kernel.run("Advice.apply = _apply")


def test_what_waits_for_a_cell_can_be_cancelled_without_it(kernel, front_end):
    source = "v = torch.exp(x * s + b) * 3"
    finding = profiled(kernel, front_end, source)
    front_end.get("fuse", finding=finding, source=source)
    cell = kernel.start("time.sleep(3); kept = 1", "waiting")
    time.sleep(0.3)
    request = front_end.ask("measure", finding=finding)
    kernel.until(lambda: any(o["type"] == "queued" for o in front_end.about(request)), "no queue")
    front_end.send({"type": "cancel", "req": request})
    assert front_end.answer(request, timeout_s=2)["type"] == "cancelled"
    assert cell not in kernel.replies
    assert kernel.finish(cell)["content"]["status"] == "ok"


def test_an_asynchronous_cell_is_not_disturbed_either(kernel, front_end):
    source = "v = torch.exp(x * s + b) * 4"
    finding = profiled(kernel, front_end, source)
    front_end.get("fuse", finding=finding, source=source)
    kernel.run(
        "import asyncio; inside = []\n"
        "_validate = Advice.validate\n"
        "def validate(self, *args, **kwargs):\n"
        "    inside.append(running); return _validate(self, *args, **kwargs)\n"
        "Advice.validate = validate; running = False"
    )
    cell = kernel.start(
        "running = True\nfor _ in range(20):\n    await asyncio.sleep(0.1)\nrunning = False",
        "async",
    )
    time.sleep(0.5)
    request = front_end.ask("measure", finding=finding)
    assert front_end.answer(request)["type"] == "done"
    assert kernel.finish(cell)["content"]["status"] == "ok"
    # Looked up on the jobs' thread while the cell ran, measured on the main thread after it.
    assert kernel.value("inside") == [True, False]
    kernel.run("Advice.validate = _validate")


def interrupt(kernel: Kernel) -> None:
    kernel.manager.interrupt_kernel()


def test_an_interrupt_between_cells_is_answered_as_cancelled(kernel, front_end):
    kernel.run(
        "def slow(model_input):\n"
        "    time.sleep(float(os.environ.get('SLOW', '0')))\n"
        "    return torch.tanh(model_input * 0.5 + 1) * 3 - model_input\n"
        "class Slow(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return slow(x)\n"
        "slow_model = Slow(); code = slow.__code__"
    )
    finding = front_end.profiled("%fuse_profile slow_model(x)", "slow line")["id"]
    front_end.get("measure", finding=finding)
    kernel.run("os.environ['SLOW'] = '20'")
    request = front_end.ask("apply_live", finding=finding)
    kernel.until(
        lambda: any(
            "whole call" in str(one.get("stage")) for one in front_end.about(request)
        ),
        "the whole call is not checked",
    )  # fmt: skip
    time.sleep(0.5)
    interrupt(kernel)
    answer = front_end.answer(request, timeout_s=10)
    assert answer["type"] == "cancelled", answer
    assert "interrupt" in answer["message"]
    kernel.run("os.environ['SLOW'] = '0'")
    assert kernel.value("slow.__code__ is code") is True
    assert kernel.value("1 + 1") == 2


def test_an_interrupt_of_the_kernel_does_not_end_a_job(kernel, front_end):
    source = "v = torch.sin(x * s + b) * 4"
    finding = profiled(kernel, front_end, source)
    cell = kernel.start("time.sleep(60)", "interrupted")
    time.sleep(0.5)
    request = front_end.ask("fuse", finding=finding, source=source)
    kernel.until(lambda: len(front_end.about(request)) > 3, "no progress")
    interrupt(kernel)
    assert kernel.finish(cell)["content"]["ename"] == "KeyboardInterrupt"
    assert front_end.answer(request)["passed"]


def test_without_subshells_the_same_is_done_between_cells(kernel, front_end):
    one = FrontEnd(kernel)  # on the main shell, as a front end without subshells
    one.message("hello")
    source = "v = torch.cos(x * s + b) * 4"
    finding = profiled(kernel, front_end, source)
    cell = kernel.start("time.sleep(2); order.append('cell')", "main")
    request = one.ask("fuse", finding=finding, source=source)
    kernel.finish(cell)
    assert one.answer(request)["passed"]
    again = one.ask("measure", finding=finding)
    assert one.answer(again)["timing"]["fused_us"] > 0
    assert not any(told["type"] == "queued" for told in one.about(again))


def test_a_cell_on_the_main_shell_leaves_comms_on_their_subshell(kernel, front_end):
    """A message that the kernel sends for a cell must not draw the comm to the main shell."""
    profiled(kernel, front_end, "v = torch.cos(x * s + b) * 5")  # broadcast from the main thread
    cell = kernel.start("time.sleep(6)", "busy")
    time.sleep(0.3)
    front_end.get("list", timeout_s=5)
    assert cell not in kernel.replies
    kernel.finish(cell)


def test_the_end_of_a_kernel_ends_its_children():
    for hard in (False, True):
        with running_kernel() as kernel:
            kernel.run(SETUP, "setup")
            front_end = FrontEnd(kernel)
            source = "y = torch.tanh(x * s + b) * 2"
            finding = profiled(kernel, front_end, source)
            request = front_end.ask("fuse", finding=finding, source=source)
            kernel.until(
                lambda f=front_end, r=request: any(
                    "natively" in str(o.get("stage")) for o in f.about(r)
                ),
                "no progress",
            )
            process = kernel.value("os.getpid()")
            children = processes_below(process)
            assert children
            if hard:
                os.kill(process, signal.SIGKILL)
            else:
                kernel.manager.shutdown_kernel(now=False)
            deadline = time.monotonic() + 15
            while left := {child for child in children if Path(f"/proc/{child}").exists()}:
                assert time.monotonic() < deadline, f"left behind (hard: {hard}): {left}"
                time.sleep(0.1)


def test_a_restarted_kernel_starts_empty():
    with running_kernel() as kernel:
        kernel.run(SETUP, "setup")
        front_end = FrontEnd(kernel)
        profiled(kernel, front_end, "y = torch.tanh(x * s + b) * 2")
        kernel.manager.restart_kernel(now=True)
        kernel.client.wait_for_ready(timeout=60)
        early = FrontEnd(kernel)
        kernel.until(lambda: early.closed, "the comm stays open after a restart")
        kernel.run(f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})")
        kernel.run("%load_ext fusion_advisor")
        late = FrontEnd(kernel)
        first: Any = late.message("findings")
        assert first["profiles"] == [] and first["findings"] == []
