"""Runs a function in another Python process, so that a crash there costs nothing here.

The parent keeps one warm *template* process, which imports the slow libraries
once.  For every job the template forks: the job runs in a process that is fresh
in state, and whatever it corrupts dies with it.  (Where forking is unsafe, the
template runs the job itself and is thrown away.)

Payload, result and errors travel as pickles in a private temporary folder;
only small messages go through the pipe.  Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fusion_advisor import worker_template
from fusion_advisor.errors import FusionAdvisorError
from fusion_advisor.worker_template import Frame, Job, report_progress

STDERR_TAIL_BYTES = 4_000  # enough for a faulthandler dump and the last lines before it
START_TIMEOUT_S = 120.0  # importing torch takes 2 s, and far longer from a cold or busy disk
GRACE_S = 5.0  # for a killed or ended process to be reaped
LOOK_EVERY_S = 0.05  # how soon a job that is to stop is ended

# Read by libraries when they are imported: a template started under other values is not reused.
_IMPORT_TIME_PREFIXES = (
    "CUDA", "GOMP_", "KMP_", "LD_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH",
    "TORCH",
)  # fmt: skip
_PRELOADED = ("numpy", "torch", "llvmlite", "numba")  # in the template, when the parent has them
# What proofs and validation need, for a template that is started ahead of them.
_WARM = (*_PRELOADED, "fusion_advisor.recorder.proof", "fusion_advisor.validation.execution",
         "fusion_advisor.runtime.cpu_math", "fusion_advisor.runtime.cpu_kernels")  # fmt: skip


class WorkerCrash(FusionAdvisorError):  # noqa: N818 - the name says what happened to whom
    """The child process died, or the function raised what is not an error of ours.

    ``exit_code`` is negative for a signal, ``None`` where the function raised;
    ``stderr_tail`` is the end of what it printed, with the traceback.
    """

    def __init__(
        self, message: str, *, exit_code: int | None = None, stderr_tail: str = ""
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail


class WorkerTimeout(FusionAdvisorError):  # noqa: N818 - as above
    """The function did not end in time; its process was killed."""

    def __init__(self, message: str, *, stderr_tail: str = "") -> None:
        super().__init__(message)
        self.stderr_tail = stderr_tail


class WorkerCancelled(FusionAdvisorError):  # noqa: N818 - as above
    """The caller no longer wants the result; the process was killed."""


def run_isolated(
    function: str,
    payload: Any,
    *,
    timeout_s: float,
    on_progress: Callable[[Any], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Any:
    """Call ``function`` (``"module:qualname"``) with ``payload`` in another process.

    ``payload`` and the result must pickle.  The function may call
    ``report_progress(message)``; each message reaches
    ``on_progress`` here, in order.  What the child prints goes nowhere but into
    error messages.  The clock starts with the function: starting Python and importing
    the libraries that are imported here does not count.  ``stop`` is asked several times
    a second whether to end it.  On a timeout, an interrupt, a stop or an error from
    ``on_progress`` the child and everything it started is killed before the exception
    travels on.

    Raises:
        WorkerCancelled: ``stop()`` was true.
        WorkerTimeout: no result within ``timeout_s`` seconds.
        WorkerCrash: the process died, or the function raised a foreign exception.
        FusionAdvisorError: whatever error of ours the function raised, with its type.
    """
    with _borrowed() as template:
        return template.run(function, payload, timeout_s, on_progress, stop)


class _Template:
    """The warm process and the folder it shares with us.  Not thread-safe: one job at a time.

    ``forked`` makes it from this process as it is, which must be a job that has run nothing yet.
    """

    def __init__(self, *, forked: bool = False) -> None:
        self.key = _import_time_environment()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="fusion-advisor-"))
            self.stderr = tempfile.TemporaryFile("a+b", dir=self.folder)  # noqa: SIM115 - see close
        except OSError as error:
            raise WorkerCrash(
                f"Cannot write temporary files ({error}). Free some space, or set TMPDIR."
            ) from None
        self.reusable = True
        self._jobs = 0
        self.process = self._forked() if forked else self._started()
        assert self.process.stdout is not None  # asked for above
        self._reader = worker_template.FrameReader(self.process.stdout.fileno())
        self._selector = selectors.PollSelector()
        self._selector.register(self.process.stdout, selectors.EVENT_READ)

    def _started(self) -> subprocess.Popen[bytes] | worker_template.ForkedTemplate:
        if not sys.executable:
            self._remove_files()
            raise WorkerCrash("This Python has no executable of its own to start workers with.")
        try:
            return subprocess.Popen(
                worker_template.command(str(self.folder)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                bufsize=0,  # unbuffered: a fork of the parent has nothing to flush into our pipe
                start_new_session=True,  # Ctrl-C in a terminal reaches us alone; we then end it
            )
        except OSError as error:
            self._remove_files()
            raise WorkerCrash(
                f"Cannot start a Python process ({sys.executable}): {error}"
            ) from None

    def _forked(self) -> worker_template.ForkedTemplate:
        return worker_template.ForkedTemplate(str(self.folder), self.stderr.fileno())

    def run(
        self,
        function: str,
        payload: Any,
        timeout_s: float,
        on_progress: Callable[[Any], None] | None,
        stop: Callable[[], bool] | None,
    ) -> Any:
        self.reusable = False  # until this job has ended in an orderly way
        self._jobs += 1
        result = self.folder / f"result-{self._jobs}"
        job = self._write_job(function, payload, result)
        self.stderr.truncate(0)  # opened for appending: the child writes at the new end
        self._send(Frame("job", str(job)))
        exit_code = self._wait(function, timeout_s, on_progress, stop)
        self.reusable = worker_template.CAN_FORK
        try:
            return self._outcome(function, exit_code, result)
        finally:
            job.unlink(missing_ok=True)
            result.unlink(missing_ok=True)

    def warm_up(self) -> None:
        """Have the libraries imported, without waiting for it."""
        self._send(Frame("preload", _WARM))

    def _write_job(self, function: str, payload: Any, result: Path) -> Path:
        path = self.folder / f"job-{self._jobs}"
        module = function.partition(":")[0]
        own = (module,) if module.partition(".")[0] == "fusion_advisor" else ()
        job = Job(
            function=function,
            preload=_preload_names() + own,
            result=str(result),
            search_path=tuple(sys.path),
            folder=_current_folder(),
            environment=dict(os.environ),
            threads=_threads(),
        )
        try:
            with path.open("wb") as file:
                pickle.dump(job, file, protocol=5)
                pickle.dump(payload, file, protocol=5)
        except OSError as error:
            self.reusable = True
            raise WorkerCrash(
                f"Cannot write the input of {function} to {self.folder}: {error}. "
                "Free some space, or point TMPDIR to a larger disk."
            ) from None
        except Exception as error:
            self.reusable = True
            raise WorkerCrash(f"The input of {function} cannot be pickled: {error}") from error
        return path

    def _send(self, frame: Frame) -> None:
        assert self.process.stdin is not None  # asked for in __init__
        try:
            worker_template.write_frame(self.process.stdin.fileno(), frame)
        except OSError:
            raise self._crash("The worker process", self._template_exit_code()) from None

    def _wait(
        self,
        function: str,
        timeout_s: float,
        on_progress: Callable[[Any], None] | None,
        stop: Callable[[], bool] | None,
    ) -> int:
        """The exit code of the job's process, progress delivered on the way."""
        what, limit_s = "start", START_TIMEOUT_S
        deadline = time.monotonic() + limit_s
        while True:
            self._watch(function, deadline, stop)
            for frame in self._receive(function, what, limit_s, deadline):
                if frame.kind == "started":
                    what, limit_s = "finish", timeout_s
                    deadline = time.monotonic() + limit_s
                elif frame.kind == "ended":
                    return int(frame.body)
                elif on_progress is not None:
                    on_progress(self._progress(function, frame))

    def _watch(self, function: str, deadline: float, stop: Callable[[], bool] | None) -> None:
        """Until there is something to receive, ask whether to stop."""
        while stop is not None and time.monotonic() < deadline:
            if stop():
                raise WorkerCancelled(f"{function} was stopped on request.")
            if self._selector.select(LOOK_EVERY_S):
                return

    def _receive(self, function: str, what: str, limit_s: float, deadline: float) -> list[Frame]:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not self._selector.select(remaining):
            raise WorkerTimeout(
                f"{function} did not {what} within {limit_s:g} s and was stopped.",
                stderr_tail=self._tail(),
            )
        try:
            frames = self._reader.read()
        except worker_template.DamagedStreamError:
            raise self._crash(function, None, "sent damaged messages") from None
        if frames is None:
            raise self._crash(function, self._template_exit_code())
        return frames

    def _progress(self, function: str, frame: Frame) -> Any:
        try:
            if frame.kind == "progress-file":
                path = self.folder / Path(str(frame.body)).name
                message = pickle.loads(path.read_bytes())
                path.unlink(missing_ok=True)
                return message
            return frame.body
        except Exception as error:
            raise self._crash(function, None, f"sent damaged progress ({error})") from None

    def _template_exit_code(self) -> int | None:
        try:
            return self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return None

    def _outcome(self, function: str, exit_code: int, result: Path) -> Any:
        if exit_code != 0:
            raise self._crash(function, exit_code)
        try:
            with result.open("rb") as file:
                status, value = pickle.load(file)
        except Exception as error:
            raise self._crash(function, None, f"left a damaged result ({error})") from None
        if status == "value":
            return value
        if status == "ours":
            ours, trace = value
            ours.add_note(f"In the worker process:\n{trace}")
            raise ours
        kind, text, trace = value
        raise WorkerCrash(f"{function} raised {kind}: {text}", stderr_tail=trace)

    def _crash(self, who: str, exit_code: int | None, what: str = "") -> WorkerCrash:
        tail = self._tail()
        if not what and exit_code is not None and exit_code < 0:
            what = f"was ended by {_signal_name(-exit_code)}"
        elif not what:
            what = "ended unexpectedly" + (f" (exit code {exit_code})" if exit_code else "")
        last = f"\n{tail}" if tail else ""
        return WorkerCrash(f"{who} {what}.{last}", exit_code=exit_code, stderr_tail=tail)

    def _tail(self) -> str:
        size = self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, size - STDERR_TAIL_BYTES))
        return self.stderr.read().decode("utf-8", "replace").strip()

    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        """Kill the process and all it started, reap it, remove the folder."""
        if self.process.poll() is None:  # else its number may belong to another by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError, subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        self._close_pipes()
        self._remove_files()

    def forget(self) -> None:
        """In a forked copy of the parent: let go, without touching the process or its files."""
        self.process.returncode = 0  # not our child: nothing to reap or to warn about
        self._close_pipes()
        self.stderr.close()

    def _close_pipes(self) -> None:
        self._selector.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _remove_files(self) -> None:
        self.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (often: out of memory)" if name == "SIGKILL" else name


def _import_time_environment() -> tuple[tuple[str, str], ...]:
    items = os.environ.items()
    return tuple(sorted(item for item in items if item[0].startswith(_IMPORT_TIME_PREFIXES)))


def _preload_names() -> tuple[str, ...]:
    return tuple(name for name in _PRELOADED if name in sys.modules)


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted under us
        return ""


def _threads() -> int:
    """As many threads as torch uses here, so that results agree bit for bit."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


# One warm template per process; concurrent callers get templates of their own.

_lock = threading.Lock()
_idle: _Template | None = None
_live: set[_Template] = set()


@contextlib.contextmanager
def _borrowed() -> Iterator[_Template]:
    global _idle
    with _lock:
        template, _idle = _idle, None
    if template is not None and not (
        template.alive() and template.key == _import_time_environment()
    ):
        _discard(template)
        template = None
    if template is None:
        template = _Template()
        _live.add(template)
    keep = False
    try:
        yield template
    finally:
        with _lock:
            keep = template.reusable and _idle is None
            if keep:
                _idle = template
        if not keep:
            _discard(template)


def _discard(template: _Template) -> None:
    template.close()
    _live.discard(template)


def warm_up() -> None:
    """Start the worker process in the background, so that the first job finds it ready.

    It imports torch, Numba and what proofs and validation run.  Does nothing where a process is
    already there, or cannot be started: the first job says why.
    """
    global _idle
    with _lock:
        if _idle is None and not _live:
            with contextlib.suppress(WorkerCrash):
                _idle = _Template()
                _live.add(_idle)
                _idle.warm_up()


def fork_template() -> None:
    """In a job that will start jobs itself, and has run nothing yet: make its template ready.

    Forked from the job, it has imported what the job has.  Does nothing elsewhere, where the first
    job starts a template.
    """
    global _idle
    if worker_template.in_worker() and worker_template.CAN_FORK and _idle is None:
        _idle = _Template(forked=True)
        _live.add(_idle)


def shutdown() -> None:
    """End every worker process of this process.  The next call starts a new one."""
    global _idle
    with _lock:
        _idle = None
    for template in tuple(_live):
        _discard(template)


def _after_fork_in_child() -> None:
    global _idle, _lock
    _lock = threading.Lock()
    _idle = None
    for template in tuple(_live):
        template.forget()
    _live.clear()


atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = [
    "WorkerCancelled",
    "WorkerCrash",
    "WorkerTimeout",
    "fork_template",
    "report_progress",
    "run_isolated",
    "shutdown",
    "warm_up",
]
