"""Jobs: work that takes long, off the thread that asked for it and out of the way of cells.

One thread runs them one after the other.  What is heavy or may crash runs in a child process
(``advice.validate(..., isolated=True, stop=job.cancelled)``); what touches the person's tensors
or model goes to the main thread between cells (:meth:`Job.between_cells`).  Cancelling sets a
flag and ends the child process; the kernel is never interrupted.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fusion_advisor.errors import FusionAdvisorError
from fusion_advisor.jupyter.between_cells import BetweenCells
from fusion_advisor.workers import WorkerCancelled

CANCELLED_MESSAGE = "cancelled; nothing was changed"
INTERRUPTED_MESSAGE = "stopped by an interrupt; what had begun is taken back"
CLOSED_MESSAGE = "cancelled, because the extension is being unloaded"
CLOSE_TIMEOUT_S = 10.0


class JobCancelled(BaseException):
    """Raised inside a job that was cancelled, wherever it next reports progress.

    Like ``KeyboardInterrupt`` it is no ``Exception``, so that nothing on the way takes it for one.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended: ``value`` is the work's result, ``message`` says why there is none."""

    status: Literal["done", "failed", "cancelled"]
    value: Any = None
    message: str = ""
    error: BaseException | None = None


def _ignore(*_: Any) -> None:
    """A listener that does not listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told about a job.  Called on any thread; must not raise.

    ``progress(stage, fraction)`` any number of times, ``queued(message)`` when the job waits for
    a running cell, ``ended(outcome)`` exactly once.
    """

    progress: Callable[[str, float], None] = _ignore
    queued: Callable[[str], None] = _ignore
    ended: Callable[[Outcome], None] = _ignore


class Job:
    """One piece of work, as its function and whoever waits for it see it."""

    def __init__(
        self, work: Callable[[Job], Any], listener: Listener, between: BetweenCells
    ) -> None:
        self._work = work
        self._listener = listener
        self._between = between
        # Output of what the job runs belongs to the message that asked for it, not to a cell.
        self._context = contextvars.copy_context()
        self._cancel = threading.Event()
        self._why = CANCELLED_MESSAGE
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.outcome: Outcome | None = None

    def cancelled(self) -> bool:
        """Whether the job is to stop; handed to whatever can be told to."""
        return self._cancel.is_set()

    def cancel(self, why: str = CANCELLED_MESSAGE) -> None:
        """Have the job stop as soon as it can; one that has ended stays as it ended."""
        self._why = why
        self._cancel.set()

    def progress(self, stage: str, fraction: float) -> None:
        """Tell the listener; raises ``JobCancelled`` once the job is cancelled."""
        self._stop_if_cancelled()
        self._listener.progress(stage, fraction)

    def between_cells(self, function: Callable[[], Any]) -> Any:
        """The result of ``function``, called on the kernel's main thread between cells."""
        self._stop_if_cancelled()
        result = self._between.call(
            self._context_run(function),
            context=self._context.copy(),
            on_queued=self._listener.queued,
            cancelled=self.cancelled,
        )
        return result[0] if result is not None else self._stop_if_cancelled()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """The outcome, once there is one; ``None`` after the time is up."""
        self._ended.wait(timeout_s)
        return self.outcome

    @staticmethod
    def _context_run(function: Callable[[], Any]) -> Callable[[], tuple[Any]]:
        return lambda: (function(),)  # told apart from not having been called

    def _stop_if_cancelled(self) -> None:
        if self.cancelled():
            raise JobCancelled(self._why)

    def _run(self) -> None:
        try:
            self._stop_if_cancelled()
            outcome = Outcome(status="done", value=self._context.copy().run(self._work, self))
        except (JobCancelled, WorkerCancelled) as error:
            outcome = Outcome(status="cancelled", message=self._why, error=error)
        except KeyboardInterrupt as error:
            outcome = Outcome(status="cancelled", message=INTERRUPTED_MESSAGE, error=error)
        except FusionAdvisorError as error:
            outcome = Outcome(status="failed", message=str(error), error=error)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            outcome = Outcome(status="failed", message=said, error=error)
        self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        with self._lock:
            if self.outcome is not None:
                return
            self.outcome = outcome
        self._listener.ended(outcome)
        self._ended.set()


class JobRunner:
    """Runs the jobs of one shell, in the order they came."""

    def __init__(self, shell: Any) -> None:
        self.between = BetweenCells(shell)
        self._wanted = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._current: Job | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits."""
        with self._wanted:
            return self._current is not None or bool(self._waiting)

    def submit(self, work: Callable[[Job], Any], listener: Listener | None = None) -> Job:
        """Start ``work(job)`` when those before it have ended; returns at once."""
        job = Job(work, listener or Listener(), self.between)
        with self._wanted:
            closed = self._closed
            if not closed:
                self._waiting.append(job)
                self._wanted.notify()
                if self._thread is None:
                    # A daemon: the kernel ends without waiting for it, and ends its children.
                    self._thread = threading.Thread(
                        target=self._serve, name="fusion-advisor-jobs", daemon=True
                    )
                    self._thread.start()
        if closed:
            job._end(Outcome(status="cancelled", message=CLOSED_MESSAGE))
        return job

    def cancel(self, job: Job, why: str = CANCELLED_MESSAGE) -> None:
        """Cancel a job; one that has not begun ends here and now."""
        job.cancel(why)
        with self._wanted:
            waiting = job in self._waiting
            if waiting:
                self._waiting.remove(job)
        if waiting:
            job._end(Outcome(status="cancelled", message=why))

    def close(self) -> None:
        """Cancel everything and end the thread; jobs that are asked for later are cancelled."""
        with self._wanted:
            self._closed = True
            jobs = [*self._waiting, *([] if self._current is None else [self._current])]
            self._wanted.notify_all()
        for job in jobs:
            self.cancel(job, CLOSED_MESSAGE)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)
        self.between.close()

    def _serve(self) -> None:
        while True:
            with self._wanted:
                self._current = None
                while not self._waiting and not self._closed:
                    self._wanted.wait()
                if not self._waiting:
                    return
                self._current = job = self._waiting.popleft()
            job._run()
            del job  # an idle thread keeps nobody's model alive


_runners: dict[int, tuple[Any, JobRunner]] = {}  # by shell


def runner_of(shell: Any) -> JobRunner:
    """The one runner of a shell, made when it is first asked for."""
    known = _runners.get(id(shell))
    if known is None:
        known = _runners[id(shell)] = (shell, JobRunner(shell))
    return known[1]


def close_runner(shell: Any) -> None:
    """Cancel the shell's jobs and forget its runner (when the extension is unloaded)."""
    known = _runners.pop(id(shell), None)
    if known is not None:
        known[1].close()
