"""What is being done about the findings of one advice: shared by all panels that show it.

Jobs run in the shell's own job runner, one after the other.  Generating and validating happen off
the main thread; what measures or changes the person's model happens between cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal

from fusion_advisor.jupyter.jobs import Job, JobRunner, Listener, Outcome
from fusion_advisor.records import ValidationResult
from fusion_advisor.report.view import (
    FindingView,
    advice_only,
    applied_sentence,
    validation_sentence,
)

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice

Action = Literal["generate", "validate", "apply", "undo"]
ACTIONS: tuple[Action, ...] = ("generate", "validate", "apply", "undo")
CLOSED = "closed: profile again"
WAITING = "waiting for the jobs before it"


def obstacles(view: FindingView, *, closed: bool, working: str) -> dict[Action, str]:
    """Why each action is not possible now; an empty string where it is.

    ``working`` is what is being done about this finding, or empty.
    """
    if working:
        return dict.fromkeys(ACTIONS, f"{working} is under way")
    no_kernel = CLOSED if closed else advice_only(view.finding)
    failed = view.validation is not None and view.validation.status == "failed"
    return {
        "generate": no_kernel or ("the kernel is there already" if view.kernel else ""),
        "validate": no_kernel
        or (
            "it was validated already"
            if view.validation is not None and (failed or view.validation.timings)
            else ""
        ),
        "apply": ("it is in place already" if view.in_place else no_kernel)
        or ("its kernel failed validation" if failed else ""),
        "undo": "" if view.in_place else "it is not in place",
    }


@dataclass(slots=True, kw_only=True)
class Work:
    """One action on one finding, from the click to its end."""

    finding: str
    action: Action
    stage: str = WAITING
    fraction: float = 0.0
    rungs: list[str] = field(default_factory=list)  # begun so far; the last one is running
    queued: str = ""  # what it waits for, where that is known
    job: Job | None = None
    outcome: Outcome | None = None

    @property
    def message(self) -> str:
        """How it ended, in a sentence."""
        if self.outcome is None:
            return ""
        if self.outcome.status == "done":
            return str(self.outcome.value)
        return f"{self.action} {self.finding}: {self.outcome.message}"


class Desk:
    """The work on one advice, and who watches it.

    ``runner()`` gives the shell's job runner: another one once the extension was loaded anew.
    """

    def __init__(self, advice: Advice, runner: Callable[[], JobRunner]) -> None:
        self.advice = advice
        self._runner = runner
        self._active: dict[str, Work] = {}
        self._last: dict[str, Work] = {}
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, watcher: Callable[[str], None]) -> None:
        """``watcher(finding)`` is called, in whatever thread, when work on a finding moves on."""
        self._watchers.append(watcher)

    def leave(self, watcher: Callable[[str], None]) -> bool:
        """The watcher is gone; whether it was the last one."""
        self._watchers.remove(watcher)
        return not self._watchers

    def work_on(self, finding: str) -> Work | None:
        """What is being done about a finding, else what was done last."""
        return self._active.get(finding) or self._last.get(finding)

    def working(self, finding: str) -> str:
        """The action under way, or an empty string."""
        work = self._active.get(finding)
        return work.action if work is not None else ""

    def start(self, finding: str, action: Action, *, where: str = "function") -> None:
        """Put an action in the queue; one that is under way on this finding is enough."""
        work = Work(finding=finding, action=action)
        if self._active.setdefault(finding, work) is not work:
            return
        self._tell(finding)
        work.job = self._runner().submit(
            partial(_begun, work, self.advice, where),
            Listener(
                progress=partial(self._progress, work),
                queued=partial(self._queued, work),
                ended=partial(self._ended, work),
            ),
        )

    def cancel(self, finding: str) -> None:
        """Stop what is being done about a finding."""
        work = self._active.get(finding)
        if work is not None and work.job is not None:
            work.stage = "cancelling"
            self._runner().cancel(work.job)
            self._tell(finding)

    # Called by the job, mostly in its thread.

    def _progress(self, work: Work, stage: str, fraction: float) -> None:
        work.queued = ""
        work.fraction = max(work.fraction, min(fraction, 1.0))  # a second ladder starts anew
        if stage != work.stage:
            work.stage = stage
            rung = stage.partition(": ")[2]
            if rung and rung not in work.rungs:
                work.rungs.append(rung)
        self._tell(work.finding)

    def _queued(self, work: Work, message: str) -> None:
        work.queued = message
        self._tell(work.finding)

    def _ended(self, work: Work, outcome: Outcome) -> None:
        work.outcome = outcome
        self._last[work.finding] = work
        self._active.pop(work.finding, None)
        self._tell(work.finding)

    def _tell(self, finding: str) -> None:
        for watcher in tuple(self._watchers):
            watcher(finding)


def _begun(work: Work, advice: Advice, where: str, job: Job) -> str:
    job.progress("begun", 0.0)
    return _WORK[work.action](advice, work.finding, where, job)


# What each action does, in a job.  Each returns the sentence that says what is now true.


def _generate(advice: Advice, finding: str, where: str, job: Job) -> str:
    kernel = advice.fuse(finding)
    return f"{kernel.entry} was generated"


def _validate(advice: Advice, finding: str, where: str, job: Job) -> str:
    result = _proven(advice, finding, job)
    if result.status == "passed" and not result.timings:
        result = job.between_cells(lambda: advice.validate(finding, progress=job.progress))
    return validation_sentence(result)


def _proven(advice: Advice, finding: str, job: Job) -> ValidationResult:
    """The ladder without its timing, in a child process that cancelling ends."""
    return advice.validate(
        finding, measure=False, isolated=True, progress=job.progress, stop=job.cancelled
    )


def _apply(advice: Advice, finding: str, where: str, job: Job) -> str:
    _proven(advice, finding, job)
    fixes = job.between_cells(
        lambda: advice.apply(finding, where=where, measure=False, progress=job.progress)
    )
    return "; ".join(applied_sentence(fix) for fix in fixes)


def _undo(advice: Advice, finding: str, where: str, job: Job) -> str:
    places = Counter(job.between_cells(lambda: advice.undo(finding)))
    named = ", ".join(f"{place} (× {n})" if n > 1 else place for place, n in places.items())
    return f"taken out: {named}" if named else "nothing was in place"


_WORK: dict[Action, Callable[[Advice, str, str, Job], str]] = {
    "generate": _generate,
    "validate": _validate,
    "apply": _apply,
    "undo": _undo,
}
