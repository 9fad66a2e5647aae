"""Jobs of one shell without a kernel: order, ends, cancelling, closing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fusion_advisor.errors import UsageError
from fusion_advisor.jupyter.jobs import (
    CANCELLED_MESSAGE,
    CLOSED_MESSAGE,
    INTERRUPTED_MESSAGE,
    JobRunner,
    Listener,
    Outcome,
    close_runner,
    runner_of,
)

WAIT_S = 10.0


class Listening:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.ends: list[Outcome] = []

    @property
    def listener(self) -> Listener:
        return Listener(
            progress=lambda *told: self.said.append(told),
            queued=lambda told: self.said.append((told,)),
            ended=self.ends.append,
        )


@pytest.fixture
def runner(shell):
    made = JobRunner(shell)
    yield made
    made.close()


def raising(error: BaseException):
    def work(job):
        raise error

    return work


def test_jobs_run_one_after_the_other_on_another_thread(runner):
    seen: list[tuple[int, bool]] = []
    gate = threading.Event()

    def work(number: int):
        def run(job):
            gate.wait(WAIT_S)
            seen.append((number, threading.current_thread() is threading.main_thread()))
            return number * 10

        return run

    jobs = [runner.submit(work(number)) for number in range(5)]
    assert runner.busy
    gate.set()
    assert [job.wait(WAIT_S).value for job in jobs] == [0, 10, 20, 30, 40]
    assert seen == [(number, False) for number in range(5)]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError("say it so"), "failed", "say it so"),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
        (SystemExit(), "failed", "SystemExit"),
        (KeyboardInterrupt(), "cancelled", INTERRUPTED_MESSAGE),
    ],
)
def test_whatever_is_raised_ends_the_job_and_not_the_thread(runner, error, status, message):
    told = Listening()
    outcome = runner.submit(raising(error), told.listener).wait(WAIT_S)
    assert (outcome.status, outcome.message, outcome.error) == (status, message, error)
    assert told.ends == [outcome]
    assert runner.submit(lambda job: 1).wait(WAIT_S).value == 1


def test_a_cancelled_job_stops_where_it_next_says_something(runner):
    told, begun, cancelled = Listening(), threading.Event(), threading.Event()

    def work(job):
        job.progress("first", 0.1)
        begun.set()
        cancelled.wait(WAIT_S)
        try:
            job.progress("second", 0.2)
        except Exception:  # as code that takes every error for one of its own
            return "went on"

    job = runner.submit(work, told.listener)
    begun.wait(WAIT_S)
    runner.cancel(job)
    cancelled.set()
    outcome = job.wait(WAIT_S)
    assert (outcome.status, outcome.message) == ("cancelled", CANCELLED_MESSAGE)
    assert told.said == [("first", 0.1)]
    runner.cancel(job)  # too late to mean anything
    assert told.ends == [outcome]


def test_a_waiting_job_is_cancelled_at_once_and_never_begins(runner):
    gate, ran, told = threading.Event(), [], Listening()
    first = runner.submit(lambda job: gate.wait(WAIT_S))
    second = runner.submit(lambda job: ran.append(1), told.listener)
    runner.cancel(second)
    assert [end.status for end in told.ends] == ["cancelled"]
    gate.set()
    assert first.wait(WAIT_S).status == "done"
    assert runner.submit(lambda job: 2).wait(WAIT_S).value == 2
    assert ran == [] and len(told.ends) == 1


def test_closing_cancels_everything_and_what_comes_later(shell):
    runner, begun = JobRunner(shell), threading.Event()

    def work(job):
        begun.set()
        while True:
            job.progress("on and on", 0.5)

    running, waiting = runner.submit(work), runner.submit(lambda job: 1)
    begun.wait(WAIT_S)
    runner.close()
    assert running.wait(0).message == waiting.wait(0).message == CLOSED_MESSAGE
    assert runner.submit(lambda job: 1).wait(0).message == CLOSED_MESSAGE
    assert not [one for one in threading.enumerate() if one.name == "fusion-advisor-jobs"]


def test_without_a_kernel_work_between_cells_is_done_right_there(runner):
    assert runner.submit(lambda job: job.between_cells(lambda: None)).wait(WAIT_S).value is None
    outcome = runner.submit(lambda job: job.between_cells(lambda: 1 / 0)).wait(WAIT_S)
    assert outcome.message == "ZeroDivisionError: division by zero"


def test_a_shell_has_one_runner_until_it_is_closed(shell):
    first = runner_of(shell)
    assert runner_of(shell) is first
    close_runner(shell)
    second = runner_of(shell)
    assert second is not first
    close_runner(shell)
