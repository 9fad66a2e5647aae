from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import worker_jobs

from fusion_advisor import workers
from fusion_advisor.errors import CodegenError, FusionAdvisorError
from fusion_advisor.workers import WorkerCancelled, WorkerCrash, WorkerTimeout, run_isolated

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="asserts the forking worker, which only Linux has"
)


@pytest.fixture(scope="module", autouse=True)
def no_worker_stays() -> Iterator[None]:
    yield
    workers.shutdown()


def call(name: str, payload: Any = None, timeout_s: float = 30, **options: Any) -> Any:
    return run_isolated(f"worker_jobs:{name}", payload, timeout_s=timeout_s, **options)


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_each_job_is_fresh_and_the_template_stays() -> None:
    first_pid, first_count, echoed = call("describe", {"a": (1, float("inf"))})
    template = workers._idle
    second_pid, second_count, _ = call("describe")
    assert echoed == {"a": (1, float("inf"))}
    assert first_pid not in (second_pid, os.getpid())
    assert first_count == second_count == 1
    assert worker_jobs.STATE == []
    assert workers._idle is template


def test_warming_up_does_not_wait_and_serves_the_first_job() -> None:
    workers.shutdown()
    start = time.monotonic()
    workers.warm_up()
    assert time.monotonic() - start < 2
    template = workers._idle
    workers.warm_up()
    assert call("describe", 8)[2] == 8
    assert workers._idle is template
    assert len(workers._live) == 1


def test_large_payloads_travel_both_ways_and_leave_no_file() -> None:
    data = os.urandom(1 << 20) * 24
    assert call("describe", data)[2] == data
    assert workers._idle is not None
    assert list(workers._idle.folder.iterdir()) == []


def test_a_crash_names_the_signal_and_the_last_words() -> None:
    call("describe")
    template = workers._idle
    with pytest.raises(WorkerCrash, match="SIGSEGV") as caught:
        call("segfault")
    assert caught.value.exit_code == -signal.SIGSEGV
    assert "about to fall" in caught.value.stderr_tail
    assert "in segfault" in caught.value.stderr_tail  # the Python stack
    assert call("describe", 3)[2] == 3
    assert workers._idle is template


def test_a_wrecked_heap_stays_in_the_child() -> None:
    with pytest.raises(WorkerCrash):
        call("overwrite_heap")
    assert call("describe", 4)[2] == 4


def test_a_silent_exit_is_a_crash() -> None:
    with pytest.raises(WorkerCrash, match="exit code 3"):
        call("quit_with", 3)
    with pytest.raises(WorkerCrash, match="damaged result"):
        call("quit_with", 0)


def test_a_timeout_kills_the_job_and_what_it_started(tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    before = time.monotonic()
    with pytest.raises(WorkerTimeout, match=r"did not finish within 2 s"):
        call("sleep_with_child", str(marker), timeout_s=2)
    assert time.monotonic() - before < 20
    job, child = map(int, marker.read_text().split())
    assert gone(job)
    assert gone(child)
    assert call("describe", 5)[2] == 5


def test_errors_keep_their_type_and_tell_where() -> None:
    with pytest.raises(CodegenError, match="no end") as ours:
        call("raise_ours")
    assert "in raise_ours" in ours.value.__notes__[0]
    with pytest.raises(WorkerCrash, match="raised KeyError: 'missing'") as foreign:
        call("raise_foreign")
    assert "in raise_foreign" in foreign.value.stderr_tail
    with pytest.raises(WorkerCrash, match=r"lambda|pickle"):
        call("return_unpicklable")
    with pytest.raises(WorkerCrash, match="AttributeError"):
        call("no_such_function")
    with pytest.raises(WorkerCrash, match="ModuleNotFoundError"):
        run_isolated("no_such_module:f", None, timeout_s=30)
    with pytest.raises(WorkerCrash, match="cannot be pickled"):
        call("describe", lambda: None)
    assert issubclass(WorkerCrash, FusionAdvisorError)


def test_nothing_the_child_prints_appears_here(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("chatter") == "quiet"
    assert capfd.readouterr() == ("", "")


def test_progress_arrives_in_order_large_and_small() -> None:
    seen: list[Any] = []
    assert call("count", 5, on_progress=seen.append) == 5
    assert [message[1] for message in seen] == [0, 1, 2, 3, 4]
    assert len(seen[2][2]) == 100_000


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    marker = tmp_path / "pids"

    def interrupt() -> None:
        while not marker.exists() or not marker.read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call("sleep_with_child", str(marker))
    thread.join()
    job, child = map(int, marker.read_text().split())
    assert gone(job)
    assert gone(child)
    assert workers._live == set()


def test_an_error_from_the_progress_callable_ends_the_job() -> None:
    def refuse(_: Any) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        call("count", 3, on_progress=refuse)
    assert workers._live == set()


def test_a_job_is_stopped_between_its_words(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(WorkerCancelled, match="stopped on request"):
        call("sleep_with_child", str(marker), stop=marker.exists)
    assert all(gone(int(pid)) for pid in marker.read_text().split())
    assert call("describe", 3, stop=lambda: False)[2] == 3


def test_a_job_may_start_jobs_from_a_template_forked_from_it() -> None:
    template, job, folder, first, crash, second, kept = call(
        "start_jobs", ["describe", "segfault", "describe"]
    )
    assert len({template, job, first[0], second[0], os.getpid()}) == 5
    assert first[1] == second[1] == 1  # each is fresh in state
    assert "SIGSEGV" in crash
    assert kept is True
    assert gone(template)
    for _ in range(100):
        if not Path(folder).exists():
            break
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_stopping_a_job_ends_the_jobs_that_it_started(tmp_path: Path) -> None:
    marker, child = tmp_path / "marker", tmp_path / "marker.child"
    with pytest.raises(WorkerCancelled):
        call("start_a_sleeping_job", str(marker), stop=child.exists)
    template, folder = marker.read_text().split("\n")
    assert gone(int(template))
    assert all(gone(int(pid)) for pid in child.read_text().split())
    for _ in range(100):
        if not Path(folder).exists():
            break
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_outside_of_a_job_no_template_is_forked() -> None:
    workers.shutdown()
    workers.fork_template()
    assert workers._idle is None


def test_threads_get_workers_of_their_own() -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=number: results.append(call("describe", n)[2]))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2]
    assert len(workers._live) == 1


def test_the_job_sees_the_folder_environment_and_threads_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    call("describe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_LATE_VARIABLE", "set")
    try:
        torch.set_num_threads(1)
        assert call("surroundings", "A_LATE_VARIABLE") == (str(tmp_path), "set", 1)
    finally:
        torch.set_num_threads(before)


def test_import_time_settings_start_another_template(monkeypatch: pytest.MonkeyPatch) -> None:
    call("describe")
    template = workers._idle
    monkeypatch.setenv("NUMBA_OPT", "1")
    call("describe")
    assert workers._idle is not template
    assert len(workers._live) == 1


def _in_fork(queue: Any) -> None:
    queue.put((workers._idle is None, len(workers._live), call("describe", 6)[2]))


def test_a_forked_copy_starts_its_own_and_leaves_ours_alone() -> None:
    call("describe")
    template = workers._idle
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_in_fork, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == (True, 0, 6)
    process.join(30)
    assert process.exitcode == 0
    assert call("describe", 7)[2] == 7
    assert workers._idle is template


SCRIPT = """
import os, sys, signal
sys.path[:0] = {paths!r}
import worker_jobs
from fusion_advisor import workers
workers.run_isolated("worker_jobs:describe", 1, timeout_s=30)
template = workers._idle
print(template.process.pid, template.folder, flush=True)
if sys.argv[1] == "busy":
    workers.run_isolated("worker_jobs:sleep_with_child", sys.argv[2], timeout_s=600)
elif sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["exit", "killed"])
def test_the_end_of_the_parent_is_the_end_of_the_worker(how: str) -> None:
    paths = [str(Path(__file__).parent), str(Path(workers.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(paths=paths), how],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    pid, folder = done.stdout.split()
    assert gone(int(pid))
    assert not Path(folder).exists()
    assert done.stderr == ""


def test_a_busy_worker_ends_with_a_killed_parent(tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    paths = [str(Path(__file__).parent), str(Path(workers.__file__).parents[1])]
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(paths=paths), "busy", str(marker)],
        stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        while not marker.exists() or not marker.read_text():
            time.sleep(0.02)
        parent.kill()
        assert parent.stdout is not None
        template, folder = parent.stdout.readline().split()
    for pid in (template, *marker.read_text().split()):
        assert gone(int(pid))
    assert not Path(folder).exists()


def test_a_full_or_missing_disk_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    workers.shutdown()
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    with pytest.raises(WorkerCrash, match="TMPDIR"):
        call("describe")
    assert workers._live == set()
