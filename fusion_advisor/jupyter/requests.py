"""What a front end may ask for, and what it is answered (docs/notebook-protocol.md).

Each function takes the request's data and returns the answer's; those that take a job run on the
jobs' thread and may take long.  They call what the magics call.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusion_advisor.errors import FixError, UsageError, ValidationError
from fusion_advisor.jupyter.cell_edit import edited_text, text_diff
from fusion_advisor.jupyter.jobs import Job
from fusion_advisor.jupyter.marks import text_hash, without_magic
from fusion_advisor.jupyter.payloads import (
    Data,
    cuda_data,
    edits_data,
    kernel_text,
    last_timing,
    rungs_data,
    timing_data,
    why_not_data,
)
from fusion_advisor.jupyter.profiles import NOWHERE, Profile, Profiles
from fusion_advisor.records import IN_PLACE_ALREADY, Finding, Fix, TextEdit, ValidationResult
from fusion_advisor.report.files import check_export, render
from fusion_advisor.report.text import render_finding
from fusion_advisor.report.view import (
    advice_only,
    applied_sentence,
    timing_sentence,
    validation_sentence,
)
from fusion_advisor.rules import explain

if TYPE_CHECKING:
    from fusion_advisor.advice import Advice

CHANGED = (
    "the cell's text is not the one that was profiled, so nothing is edited: profile the cell again"
)


class NotProvenError(ValidationError):
    """A kernel that failed its validation; ``rungs`` say where."""

    def __init__(self, message: str, result: ValidationResult) -> None:
        super().__init__(message)
        self.rungs = result.rungs


class Requests:
    """Answers for the profiles of one shell."""

    def __init__(self, profiles: Profiles) -> None:
        self.profiles = profiles
        self.now: dict[str, Callable[[Data], Data]] = {
            "explain": self.explain,
            "show": self.show,
            "accepted": self.accepted,
            "reverted": self.reverted,
        }
        self.jobs: dict[str, tuple[str, Callable[[Job, Data], Data]]] = {
            "fuse": ("child", self.fuse),
            "apply_live": ("child", self.apply_live),
            "undo": ("between-cells", self.undo),
            "measure": ("between-cells", self.measure),
            "reapply_cell": ("child", self.reapply_cell),
            "export": ("child", self.export),
            "report": ("now", self.report),
        }

    # -- at once -------------------------------------------------------------------------------

    def explain(self, data: Data) -> Data:
        """The page of a rule."""
        page = explain(_text(data, "rule"))
        heading = page.partition("\n")[0].lstrip("# ")
        code, _, title = heading.partition(": ")
        return {"type": "rule", "rule": code, "title": title, "markdown": page}

    def show(self, data: Data) -> Data:
        """Everything known about a finding."""
        profile, finding = self._finding(data)
        report = profile.advice.report
        validation = dict(report.validations).get(finding.id)
        return {
            "type": "finding",
            "finding": finding.id,
            "text": render_finding(report, finding.id),
            "rungs": [] if validation is None else rungs_data(validation.rungs),
            "kernel": kernel_text(report, finding.id),
            "why_not": why_not_data(finding),
        }

    def accepted(self, data: Data) -> Data:
        """The person has the edit in the cell."""
        _, finding = self._finding(data)
        self.profiles.accepted(finding.id, _text(data, "new_source_hash"))
        return {"type": "done", "message": f"{finding.id} is in the cell; run it to use its kernel"}

    def reverted(self, data: Data) -> Data:
        """The person has taken the edit back."""
        _, finding = self._finding(data)
        self.profiles.reverted(finding.id)
        return {"type": "done", "message": f"{finding.id} is out of the cell again; run it"}

    # -- jobs ----------------------------------------------------------------------------------

    def fuse(self, job: Job, data: Data) -> Data:
        """Generate and validate a kernel, and the edit that puts it into the cell."""
        profile, finding = self._finding(data)
        source = _text(data, "source")
        advice = profile.advice
        if finding.span is None or finding.span.kind != "cell":
            raise FixError(f"{finding.id} does not stand in a cell: {_elsewhere(finding)}")
        raw = advice.cell_source(finding.id)
        if without_magic(source) != without_magic(raw):
            raise FixError(CHANGED)
        job.progress("generating the kernel", 0.0)
        kernel = advice.fuse(finding.id)
        fix = advice.cell_fix(finding.id, raw)
        if fix.blockers:
            reasons = "; ".join(blocker.message for blocker in fix.blockers)
            raise FixError(f"{finding.id} cannot be edited into the text: {reasons}")
        edits = _moved(fix, raw, source)
        new_source = edited_text(source, Fix(
            finding=fix.finding, where=fix.where, title=fix.title, safety=fix.safety, edits=edits
        ))  # fmt: skip
        result = self._validated(job, advice, finding)
        passed = result.status == "passed"
        if passed:
            self.profiles.offered(finding.id, new_source)
        return {
            "type": "proposal",
            "finding": finding.id,
            "source_hash": text_hash(source),
            "edits": edits_data(source, edits) if passed else [],
            "new_source": new_source if passed else source,
            "diff": text_diff(source, new_source, name="cell") if passed else "",
            "passed": passed,
            "message": validation_sentence(result),
            "rungs": rungs_data(result.rungs),
            "cuda": cuda_data(result),
            "timing": timing_data(result),
            "kernel": kernel.text,
        }

    def apply_live(self, job: Job, data: Data) -> Data:
        """Put a validated kernel in place in the running code, and check the whole call."""
        profile, finding = self._finding(data)
        where = _optional(data, "where")
        self._proven(job, profile.advice, finding)

        def apply() -> Any:
            return profile.advice.apply(
                finding.id, where=where, measure=False, progress=_until_done(job)
            )

        (fix,) = job.between_cells(apply)
        applied = not fix.undone or fix.reason == IN_PLACE_ALREADY
        return {"type": "done", "message": applied_sentence(fix), "applied": applied}

    def undo(self, job: Job, data: Data) -> Data:
        """Take one finding's kernels out again, or all."""
        named = data.get("finding")
        if named is None:
            chosen: list[tuple[Advice, str | None]] = [
                (advice, None) for advice in self.profiles.advices
            ]
        else:
            profile, finding = self._finding(data)
            chosen = [(profile.advice, finding.id)]
        places = job.between_cells(lambda: [p for advice, one in chosen for p in advice.undo(one)])
        said = [
            place + (f" (× {times})" if times > 1 else "")
            for place, times in Counter(places).items()
        ]
        return {
            "type": "done",
            "message": f"taken out: {', '.join(said)}" if said else "Nothing was in place.",
        }

    def measure(self, job: Job, data: Data) -> Data:
        """Time the kernel against eager, by turns, on this machine."""
        profile, finding = self._finding(data)
        self._proven(job, profile.advice, finding)
        result: ValidationResult = job.between_cells(
            lambda: profile.advice.validate(finding.id, progress=_until_done(job))
        )
        if result.status != "passed":
            raise NotProvenError(validation_sentence(result), result)
        pair = last_timing(result)
        message = "not measured: this machine does not run the target" if pair is None else (
            timing_sentence(pair)
        )  # fmt: skip
        return {"type": "done", "message": message, "timing": timing_data(result)}

    def reapply_cell(self, job: Job, data: Data) -> Data:
        """Write a finding's kernel to a module, and the cell that puts it in place."""
        profile, finding = self._finding(data)
        advice = profile.advice
        self._proven(job, advice, finding)
        asked = _optional(data, "path")
        path = Path(asked or f"{_module_name(advice.fuse(finding.id).entry)}.py")
        if path.suffix != ".py" or not path.stem.isidentifier():
            raise UsageError(f"{path.name} cannot be imported: name the module like fused_model.py")
        written = advice.export_module(path, finding.id, measure=False)
        source = advice.reapply_cell(written.stem, _model_name(profile, finding))
        return {"type": "cell", "source": source, "path": str(written)}

    def export(self, job: Job, data: Data) -> Data:
        """Write the report, or for ``.py`` the module with its kernels."""
        path = Path(_text(data, "path"))
        if "finding" in data and data["finding"] is not None:
            profile, finding = self._finding(data)
            wanted: list[Finding] = [finding]
        else:
            profile = self.profiles.profile(_number(data, "advice"))
            wanted = [one for one in profile.advice.report.findings if not one.ignored]
        advice = profile.advice
        if path.suffix.lower() != ".py":
            check_export(path)
            written = advice.export(path)
            return {"type": "done", "message": f"Report written to {written}", "path": str(written)}
        for finding in wanted:
            if not advice_only(finding):
                self._validated(job, advice, finding)
        written = advice.export_module(path, [one.id for one in wanted], measure=False)
        return {"type": "done", "message": f"Kernels written to {written}", "path": str(written)}

    def report(self, job: Job, data: Data) -> Data:
        """The report as one self-contained page."""
        profile = self.profiles.profile(_number(data, "advice"))
        report = profile.advice.report
        return {"type": "report", "title": report.capture.title, "html": render(report, "html")}

    # -- shared --------------------------------------------------------------------------------

    def _finding(self, data: Data) -> tuple[Profile, Finding]:
        return self.profiles.find(_text(data, "finding"))

    def _validated(self, job: Job, advice: Advice, finding: Finding) -> ValidationResult:
        """The finding's kernel, validated in another process."""
        return advice.validate(
            finding.id, measure=False, isolated=True, progress=job.progress, stop=job.cancelled
        )

    def _proven(self, job: Job, advice: Advice, finding: Finding) -> None:
        reason = advice_only(finding)
        if reason:
            raise UsageError(reason)
        result = self._validated(job, advice, finding)
        if result.status != "passed":
            raise NotProvenError(validation_sentence(result), result)


def _text(data: Data, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise UsageError(f"the request {data.get('type')!r} needs a text {name!r}")
    return value


def _optional(data: Data, name: str) -> str | None:
    return None if data.get(name) is None else _text(data, name)


def _number(data: Data, name: str) -> int | None:
    value = data.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    return value


def _elsewhere(finding: Finding) -> str:
    if finding.span is not None and finding.span.installed:
        return "it is in an installed package, which is never edited; apply it live or export it"
    return "apply it live, or edit its file"


def _moved(fix: Fix, raw: str, source: str) -> tuple[TextEdit, ...]:
    """The edits of the text that ran, as edits of the text that is shown.

    They differ in the magic's line at most.
    """
    head = len(raw) - len(without_magic(raw))
    shift = len(source) - len(without_magic(source)) - head
    if any(edit.start < head for edit in fix.edits):
        raise FixError(CHANGED)
    return tuple(
        TextEdit(start=edit.start + shift, end=edit.end + shift, new=edit.new) for edit in fix.edits
    )


def _until_done(job: Job) -> Callable[[str, float], None]:
    """Progress that cancels no more once all is done: what was done is then reported."""

    def progress(stage: str, fraction: float) -> None:
        if fraction < 1.0:
            job.progress(stage, fraction)

    return progress


def _module_name(entry: str) -> str:
    return entry if entry.startswith("fused_") else f"fused_{entry}"


def _model_name(profile: Profile, finding: Finding) -> str:
    """What the notebook calls the model whose call reached the finding."""
    mark = profile.places.get(finding.id, NOWHERE).mark
    try:
        called = ast.parse(mark.text.strip(), mode="eval").body if mark is not None else None
    except (SyntaxError, ValueError):
        return "model"
    if isinstance(called, ast.Call) and isinstance(called.func, ast.Name | ast.Attribute):
        return ast.unparse(called.func)
    return "model"
