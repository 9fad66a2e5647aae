"""The profiles of a session and how far each of their findings has come."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fusion_advisor.errors import UsageError
from fusion_advisor.jupyter.cells import Cell, CellBook
from fusion_advisor.jupyter.marks import CellText, Mark, notebook_span, text_hash, without_magic
from fusion_advisor.records import AppliedFix, Finding, SourceSpan

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice

State = Literal["open", "applied", "ignored", "stale"]
RUN_AGAIN = "the cell has been run with other text since: profile it again"
IN_THE_CELL = "its kernel is in the cell's text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a finding stands in the notebook, its mark, and the hash of that cell's text."""

    span: SourceSpan | None
    mark: Mark | None
    text: str


NOWHERE = Place(span=None, mark=None, text="")


@dataclass(slots=True, kw_only=True)
class Profile:
    """One profile: its advice, the cell that ran, and where its findings stand."""

    number: int
    advice: Advice
    cell: Cell | None
    places: dict[str, Place] = field(default_factory=dict)  # by finding
    replaced: bool = False  # the cell was profiled again

    @property
    def cell_id(self) -> str | None:
        return None if self.cell is None else self.cell.cell_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """An edit that was accepted: hashes of the cell's text with it, as a cell may run it."""

    texts: frozenset[str]


class Profiles:
    """All profiles that can still be reached, latest last.  Any thread may ask."""

    def __init__(self, book: CellBook) -> None:
        self._book = book
        self._lock = threading.RLock()
        self._all: tuple[Profile, ...] = ()
        self._count = 0
        self._ran: dict[str, str] = {}  # cell id → hash of what it last ran, without our magic
        self._edits: dict[str, _Edit] = {}  # by finding
        self._offered: dict[str, str] = {}  # finding → the text it was offered to become

    @property
    def all(self) -> tuple[Profile, ...]:
        return self._all

    @property
    def advices(self) -> list[Advice]:
        """The advices, latest last."""
        return [profile.advice for profile in self._all]

    def add(self, advice: Advice, cell: Cell | None, *, keep: int) -> None:
        """Enter a new profile; it replaces the cell's earlier ones.

        Of all profiles the latest ``keep`` stay, and those with a kernel in place.
        """
        with self._lock:
            self._count += 1
            profile = Profile(number=self._count, advice=advice, cell=cell)
            nodes = {node.id: node for node in advice.report.capture.graph.nodes}
            texts: dict[str, CellText] = {}
            for finding in advice.report.findings:
                profile.places[finding.id] = self._place(notebook_span(finding, nodes), texts)
            for earlier in self._all:
                if _same_cell(earlier.cell, cell):
                    earlier.replaced = True
            cut = max(0, len(self._all) + 1 - keep)
            older = [one for one in self._all[:cut] if _in_place(one)]
            self._all = (*older, *self._all[cut:], profile)

    def _place(self, span: SourceSpan | None, texts: dict[str, CellText]) -> Place:
        if span is None:
            return NOWHERE
        if span.file not in texts:
            added = self._book.added_lines(span.file)
            texts[span.file] = CellText(span.file, added_lines=added)
        text = texts[span.file]
        return Place(span=span, mark=text.mark(span), text=text.digest)

    def find(self, finding_id: str) -> tuple[Profile, Finding]:
        """A finding and its profile; ``UsageError`` names those there are."""
        for profile in self._all:
            for finding in profile.advice.report.findings:
                if finding.id.lower() == finding_id.strip().lower():
                    return profile, finding
        if not self._all:
            raise UsageError("nothing was profiled yet: %fuse_profile model(x)")
        raise UsageError(f"there is no finding {finding_id!r} (there are: {self._known()})")

    def profile(self, number: int | None) -> Profile:
        """The profile of that number, the latest for ``None``."""
        if not self._all:
            raise UsageError("nothing was profiled yet: %fuse_profile model(x)")
        if number is None:
            return self._all[-1]
        for profile in self._all:
            if profile.number == number:
                return profile
        raise UsageError(f"profile {number} is no longer kept: profile again")

    def shown(self) -> list[tuple[Profile, list[tuple[Finding, State, str]]]]:
        """What a person is shown: latest profile of each cell, findings with state and reason.

        Of a profile that was replaced only what is still in place is left.
        """
        with self._lock:
            found = []
            for profile in self._all:
                applied = {fix.finding: fix for fix in profile.advice.report.applied}
                rows = [
                    (finding, *self._state(profile, finding, applied.get(finding.id)))
                    for finding in profile.advice.report.findings
                ]
                if profile.replaced:
                    rows = [row for row in rows if not _taken_out(applied.get(row[0].id))]
                if rows or not profile.replaced:
                    found.append((profile, rows))
            return found

    # -- what happens to the cells -------------------------------------------------------------

    def cell_ran(self, cell: Cell) -> bool:
        """A cell is about to run this text; returns whether findings may have changed by it."""
        if cell.cell_id is None:
            return False
        digest = text_hash(without_magic(cell.raw))
        with self._lock:
            before = self._ran.get(cell.cell_id)
            self._ran[cell.cell_id] = digest
            return digest != before and any(
                place.span is not None and place.span.cell_id == cell.cell_id
                for profile in self._all
                for place in profile.places.values()
            )

    def offered(self, finding_id: str, text: str) -> None:
        """An edit of the cell was proposed that makes it ``text``."""
        with self._lock:
            self._offered[finding_id] = text

    def accepted(self, finding_id: str, digest: str) -> None:
        """The person took the edit; the cell's text now has this hash."""
        with self._lock:
            texts = {digest}
            offered = self._offered.get(finding_id)
            if offered is not None and text_hash(offered) == digest:
                texts.add(text_hash(without_magic(offered)))
            self._edits[finding_id] = _Edit(texts=frozenset(texts))

    def reverted(self, finding_id: str) -> None:
        """The person took the edit back: the cell's text is the one that was profiled."""
        with self._lock:
            self._edits.pop(finding_id, None)
            profile, _ = self.find(finding_id)
            place = profile.places.get(finding_id, NOWHERE)
            if place.span is not None and place.span.cell_id is not None:
                self._ran[place.span.cell_id] = place.text

    def _state(
        self, profile: Profile, finding: Finding, applied: AppliedFix | None
    ) -> tuple[State, str]:
        if not _taken_out(applied):
            return "applied", ""
        place = profile.places.get(finding.id, NOWHERE)
        cell_id = None if place.span is None else place.span.cell_id
        now = place.text if cell_id is None else self._ran.get(cell_id, place.text)
        edit = self._edits.get(finding.id)
        if edit is not None and (now == place.text or now in edit.texts):
            return "applied", IN_THE_CELL
        if now != place.text:
            return "stale", RUN_AGAIN
        if finding.ignored:
            return "ignored", "ignored by a comment"
        return "open", applied.reason if applied is not None else ""

    def _known(self) -> str:
        names = [one.id for profile in self._all for one in profile.advice.report.findings]
        return ", ".join(names) or "none"


def _taken_out(applied: AppliedFix | None) -> bool:
    return applied is None or applied.undone


def _in_place(profile: Profile) -> bool:
    last: dict[str, AppliedFix] = {fix.finding: fix for fix in profile.advice.report.applied}
    return not all(map(_taken_out, last.values()))


def _same_cell(one: Cell | None, other: Cell | None) -> bool:
    """By its id where the front end gives one, else by its text."""
    if one is None or other is None:
        return False
    if one.cell_id is not None or other.cell_id is not None:
        return one.cell_id == other.cell_id
    return without_magic(one.raw) == without_magic(other.raw)


__all__ = ["Profile", "Profiles", "State"]
