"""Changes that can be taken back: one by one, all together, or by leaving a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from fusion_advisor.errors import FixError
from fusion_advisor.fixes.interrupts import uninterrupted


class Change(Protocol):
    """Something that was put in place; ``undo`` restores exactly what was there before."""

    @property
    def places(self) -> tuple[str, ...]:
        """What was changed, in words."""

    def undo(self) -> None:
        """Take the change back; doing so twice is harmless."""


@dataclass
class ChangeStack:
    """Applied changes by finding, oldest first."""

    entries: list[tuple[str, Change]] = field(default_factory=list)

    def push(self, finding: str, change: Change) -> None:
        self.entries.append((finding, change))

    def make(self, finding: str, change: Callable[[], Change]) -> Change:
        """Make a change and push it, with no interrupt in between."""
        with uninterrupted():
            made = change()
            self.push(finding, made)
        return made

    def findings(self) -> tuple[str, ...]:
        """The findings that are in place, in the order they were applied."""
        return tuple(dict.fromkeys(finding for finding, _ in self.entries))

    def places(self, finding: str | None = None) -> tuple[str, ...]:
        return tuple(
            place
            for name, change in self.entries
            if finding is None or name == finding
            for place in change.places
        )

    def undo(self, finding: str | None = None) -> tuple[str, ...]:
        """Take back all changes of one finding, or everything, newest first.

        Returns the places put back.  Every change is tried; ``FixError`` names those that could
        not be taken back, which stay on the stack.
        """
        with uninterrupted():
            return self._undo(finding)

    def _undo(self, finding: str | None) -> tuple[str, ...]:
        chosen = [entry for entry in self.entries if finding is None or entry[0] == finding]
        places: list[str] = []
        failed: list[str] = []
        for entry in reversed(chosen):
            name, change = entry
            try:
                change.undo()
            except FixError as error:
                failed.append(f"{name}: {error}")
                continue
            places += change.places
            self.entries.remove(entry)
        if failed:
            raise FixError("not everything could be taken back: " + "; ".join(failed))
        return tuple(places)

    @contextmanager
    def trial(self) -> Iterator[ChangeStack]:
        """Whatever is pushed inside is taken back at the end, also after an error or interrupt.

        Call :meth:`ChangeStack.keep` on the yielded stack to keep it.
        """
        attempt = ChangeStack()
        try:
            yield attempt
        finally:
            attempt.undo()

    def keep(self, attempt: ChangeStack) -> None:
        """Move a trial's changes to this stack, so that leaving the trial keeps them."""
        with uninterrupted():
            self.entries += attempt.entries
            attempt.entries = []
