"""The handle a person holds after profiling: findings, kernels, fixes, and the way back."""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fusion_advisor import kernels
from fusion_advisor.applying import WHERE, Applied, Applier
from fusion_advisor.errors import CodegenError, FixError, UnsupportedOpError, UsageError
from fusion_advisor.fixes import reapply_cell
from fusion_advisor.kernels import finding_of, source_text
from fusion_advisor.recorder import Recording
from fusion_advisor.records import (
    IN_PLACE_ALREADY,
    AppliedFix,
    Finding,
    Fix,
    KernelSource,
    Report,
    Target,
    ValidationResult,
)
from fusion_advisor.report import export_report, notebook_html, render_text
from fusion_advisor.report.files import check_module, write_module
from fusion_advisor.report.view import advice_only

if TYPE_CHECKING:
    import pandas

Progress = Callable[[str, float], None]


class Advice:
    """What profiling found, and what can be done about it.

    ``report`` is the frozen record of everything so far; generating, validating and applying
    replace it by a fuller one.  Live tensors are held until :meth:`close`.

    Reading, generating and isolated validation may be done on any thread, several at a time: a
    report that was read stays as it is, and no change of another thread is lost.  Measuring,
    applying and undoing belong to the thread that runs the person's code.
    """

    def __init__(
        self,
        report: Report,
        *,
        recording: Recording,
        targets: tuple[Target, ...] = ("cpu", "cuda"),
        rerun: Callable[[], Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.report = report
        self.result: Any = recording.result
        self._recording: Recording | None = recording
        self._targets = targets
        self._progress = progress
        self._applier = Applier(recording, rerun=rerun)
        self._observers: list[Callable[[], None]] = []
        self._changing = threading.Lock()  # held while one report takes the place of another

    # -- looking ---------------------------------------------------------------------------

    @property
    def findings(self) -> pandas.DataFrame:
        """One row per finding, best first: what, where, how often, and what it would save."""
        from fusion_advisor.tables import findings_table

        return findings_table(self.report)

    @property
    def ops(self) -> pandas.DataFrame:
        """One row per dispatched op: times in us, bytes, class, source line, finding."""
        from fusion_advisor.tables import ops_table

        return ops_table(self.report)

    @property
    def why_not(self) -> pandas.DataFrame:
        """One row per pair of neighbours that is not fused, with the reason."""
        from fusion_advisor.tables import why_not_table

        return why_not_table(self.report)

    def finding(self, finding_id: str) -> Finding:
        """The finding called ``finding_id`` (``"F1"``); ``UsageError`` names those there are."""
        return finding_of(self.report, str(finding_id))

    def widget(self) -> Any:
        """The panel: tabs with buttons, in a notebook; it follows what is done to this advice.

        ``UsageError`` where there is no notebook kernel.  ``close()`` of the panel releases it.
        """
        return importlib.import_module("fusion_advisor.jupyter.panel").open_panel(self)

    def observe(self, observer: Callable[[], None]) -> Callable[[], None]:
        """Have ``observer()`` called whenever ``report`` has changed, and after :meth:`close`.

        It runs in the thread that made the change and must not raise.  Returns the function that
        ends this.
        """
        self._observers.append(observer)

        def end() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return end

    @property
    def closed(self) -> bool:
        """Whether the tensors are released: nothing can be validated or applied any more."""
        return self._recording is None

    def __repr__(self) -> str:
        return render_text(self.report)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": render_text(self.report), "text/html": notebook_html(self.report)}

    # -- generating and proving ------------------------------------------------------------

    def fuse(
        self,
        finding_id: str,
        target: str | None = None,
        *,
        match: Literal["eager", "fast"] | None = None,
    ) -> KernelSource:
        """Generate the fused kernel of a finding; its ``text`` is a complete module.

        ``match="eager"`` (the default) rounds wherever eager does; ``"fast"`` keeps 16-bit
        intermediates in float32 and contracts products with sums, but for down-casts that the code
        asks for.  The choice stays with the finding: ``validate`` and ``apply`` take the kernel
        made last.
        """
        finding = self.finding(finding_id)
        reason = advice_only(finding)
        if reason:
            raise UsageError(f"{reason}: {finding.message}")
        targets = self._targets if target is None else _parse_target(target)
        known = dict(self.report.kernels).get(finding.id)
        match = _parse_match(match) or (known.program.match if known is not None else "eager")
        if known is not None and target is None and known.program.match == match:
            return known
        kernel = kernels.generate_kernel(
            self.report.capture.graph,
            finding.occurrences[0],
            source=source_text(finding.span),
            targets=targets,
            match=match,
        )
        self._keep(lambda now: {"kernels": _with(now.kernels, finding.id, kernel)})
        return kernel

    def validate(
        self,
        finding_id: str,
        *,
        measure: bool = True,
        isolated: bool = False,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> ValidationResult:
        """Run the validation ladder on a finding's kernel, with the captured inputs.

        ``isolated`` runs all of it in another process, whatever other threads do here meanwhile;
        nothing is measured then.  ``stop`` is asked several times a second whether to end that
        process (``WorkerCancelled``).  ``progress`` is told instead of the advice's own listener.
        """
        if isolated and measure:
            raise UsageError("a measurement needs this process: validate(..., measure=False)")
        finding = self.finding(finding_id)
        kernel = self.fuse(finding.id)
        known = dict(self.report.validations).get(finding.id)
        if (
            known is not None
            and known.kernel_hash == kernel.hash
            and (known.timings or not measure)
        ):
            return known
        result = self._validated(finding, kernel, known, measure, isolated, progress, stop)
        self._keep(lambda now: {"validations": _with(now.validations, finding.id, result)})
        return result

    def _validated(
        self,
        finding: Finding,
        kernel: KernelSource,
        known: ValidationResult | None,
        measure: bool,
        isolated: bool,
        progress: Progress | None,
        stop: Callable[[], bool] | None,
    ) -> ValidationResult:
        store = self._open_recording().store
        capture, candidate = self.report.capture, finding.occurrences[0]
        step = self._by_rung(finding.id, progress)
        if isolated:
            return kernels.validate_elsewhere(
                capture, candidate, kernel,
                store=store, targets=self._targets, progress=step, stop=stop,
            )  # fmt: skip
        proven = known is not None and known.kernel_hash == kernel.hash
        return kernels.validate_kernel(
            capture,
            candidate,
            kernel,
            store=store,
            targets=self._targets,
            measure=measure,
            predicted_us=self._predicted_us(finding),
            proven=known if proven else None,
            progress=step,
        )

    # -- putting in place ------------------------------------------------------------------

    def apply(
        self,
        finding_id: str | Iterable[str] | None = None,
        *,
        where: str | None = None,
        match: Literal["eager", "fast"] | None = None,
        measure: bool = True,
        progress: Progress | None = None,
    ) -> list[AppliedFix]:
        """Put the kernels of one finding, several, or all (``None``) in place, live.

        All are those that no comment ignores; an ignored one is applied when it is named.

        Every kernel is validated first; everything applied together is checked again on the
        recorded run and, where the call can be repeated, on the call itself.  What is wrong or
        slower is taken back.  ``where``: ``"function"`` (default: the code of the function that
        holds the chain), ``"module"`` (only the recorded model's own modules), or ``"file"``
        (edit your own source file).  A finding that no kernel can be made of is left out, with the
        reason.  ``measure=False`` leaves out timing each kernel by itself; the whole call is timed
        either way.  ``match`` as for :meth:`fuse`.  ``progress`` is told instead of the advice's
        own listener.
        """
        say = progress or self._say
        self._open_recording()  # a closed advice has nothing to validate against
        where = where or "function"
        if where not in WHERE:
            raise UsageError(f"where must be one of {', '.join(WHERE)}, not {where!r}")
        chosen = {one.id: one for one in map(self.finding, _ids(finding_id, self.report))}
        pieces, left_out = [], {}
        for position, finding in enumerate(chosen.values()):
            say(f"validating {finding.id}", position / len(chosen))
            reason = self._no_kernel(finding, match)
            if reason:
                left_out[finding.id] = _left_out(finding, where, reason)
            else:
                result = self.validate(finding.id, measure=measure, progress=progress)
                pieces.append((finding, self.fuse(finding.id), result))
        say("checking the whole call", 0.95)
        done = {fix.finding: fix for fix in self._applier.apply(self.report, pieces, where=where)}
        outcome = [(left_out | done)[finding] for finding in chosen]
        news = [fix for fix in outcome if fix.reason != IN_PLACE_ALREADY]  # the rest stays as it is
        self._keep(lambda now: {"applied": (*now.applied, *news)})
        say("done", 1.0)
        return Applied(outcome)

    def undo(self, finding_id: str | None = None) -> list[str]:
        """Take one finding's kernels, or all, out again; returns the places put back."""
        if finding_id is not None:
            finding_id = self.finding(finding_id).id
        try:
            return self._applier.undo(finding_id)
        finally:
            left = self._applier.in_place
            self._keep(
                lambda now: {
                    "applied": tuple(
                        fix
                        if fix.undone or fix.finding in left
                        else dataclasses.replace(fix, undone=True, reason="undone")
                        for fix in now.applied
                    )
                }
            )

    def cell_fix(self, finding_id: str, source: str | None = None) -> Fix:
        """The edit of the cell or file that holds a finding, as text; refusals are blockers.

        ``source`` is the current text of the cell or file where it differs from what was run.
        """
        finding = self.finding(finding_id)
        kernel = self.fuse(finding.id)
        text = source if source is not None else source_text(finding.span)
        return self._applier.plan(self.report, finding, kernel, text)

    def cell_source(self, finding_id: str) -> str:
        """The raw text, as it was run, of the cell or file that holds a finding."""
        return source_text(self.finding(finding_id).span)

    def export_module(
        self,
        path: str | Path,
        finding_id: str | Iterable[str] | None = None,
        *,
        measure: bool = True,
    ) -> Path:
        """Write ``fused_<name>.py`` with ``apply(model)`` and ``undo(model)``.

        For code in installed packages, which are never edited.  It holds the kernels of one
        finding, several, or all (``None``); those that cannot be in it are left out, and noted in
        the report.  A Python file that is no such module is never overwritten (``ReportError``).
        """
        check_module(path)
        every = [finding.id for finding in self.report.findings]
        named = every if finding_id is None else _ids(finding_id, self.report)
        chosen = [self.finding(one) for one in named]
        reasons = {
            finding.id: "ignored by a comment"
            if finding.ignored and finding_id is None
            else self._no_kernel(finding)
            for finding in chosen
        }
        pieces = [
            (finding, self.fuse(finding.id), self.validate(finding.id, measure=measure))
            for finding in chosen
            if not reasons[finding.id]
        ]
        without_kernel = [f"{finding}: {reason}" for finding, reason in reasons.items() if reason]
        if without_kernel and not pieces:
            raise FixError("no finding can be exported as a module: " + "; ".join(without_kernel))
        if not pieces:
            raise FixError(f"there is no finding to export as a module. {self.report.nothing}")
        text, left_out = self._applier.module_text(self.report, pieces)
        left_out += without_kernel
        news = tuple(f"not exported, {one}" for one in left_out)
        self._keep(lambda now: {"notes": (*now.notes, *news)})
        return write_module(path, text)

    def reapply_cell(self, module_name: str = "fused_model", model: str = "model") -> str:
        """Text of a notebook cell that puts an exported module's kernels back after a restart."""
        return reapply_cell(module_name, model)

    def stats(self) -> pandas.DataFrame:
        """Calls of each kernel since it was put in place: fused, and fallbacks by reason."""
        from fusion_advisor.tables import stats_table

        return stats_table(self._applier.statistics())

    # -- keeping ---------------------------------------------------------------------------

    def export(self, path: str | Path) -> Path:
        """Write the report; the suffix chooses: ``.html``, ``.md``, ``.json``, ``.csv``
        (``.ops.csv``), ``.sarif``, ``.trace.json`` or ``.txt``.  The folder must exist.

        ``.py`` writes a module that puts the kernels in place (:meth:`export_module`).
        """
        if Path(path).suffix.lower() == ".py":
            return self.export_module(path)
        return export_report(self.report, path)

    def close(self) -> None:
        """Release the tensors held for validation, and the call that was profiled with its model.

        Applied kernels stay in place, and ``undo`` still takes them out.
        """
        if self._recording is not None:
            self._recording.store.close()
            self._recording.result = None
            self._recording = None
            self._applier.rerun = None
            self._notify()

    def _no_kernel(self, finding: Finding, match: Literal["eager", "fast"] | None = None) -> str:
        """Why no kernel can be made of a finding, or an empty string once there is one."""
        reason = advice_only(finding)
        if not reason:
            try:
                self.fuse(finding.id, match=match)
            except (UnsupportedOpError, CodegenError) as error:
                reason = str(error)
        return reason

    def _predicted_us(self, finding: Finding) -> float:
        """Time of one call of the fused kernel on this machine; 0 where it was not estimated."""
        if self.report.device is not None:
            return 0.0
        return finding.estimate.time_after_mid_us / len(finding.occurrences)

    def _open_recording(self) -> Recording:
        if self._recording is None:
            raise UsageError("this advice was closed: profile again to validate or apply")
        return self._recording

    def _keep(self, changes: Callable[[Report], dict[str, Any]]) -> None:
        """Replace what ``changes`` says of the report as it is now."""
        with self._changing:
            self.report = dataclasses.replace(self.report, **changes(self.report))
        self._notify()

    def _notify(self) -> None:
        for observer in tuple(self._observers):
            observer()

    def _by_rung(self, finding_id: str, progress: Progress | None) -> Callable[[str], None]:
        climbed: list[str] = []
        say = progress or self._say

        def step(rung: str) -> None:
            climbed.append(rung)
            # How long the ladder is depends on the machine; fifteen rungs is the usual climb.
            say(f"validating {finding_id}: {rung}", min(0.95, len(climbed) / 15))

        return step

    def _say(self, stage: str, fraction: float) -> None:
        if self._progress is not None:
            self._progress(stage, fraction)


def _parse_match(match: str | None) -> Literal["eager", "fast"] | None:
    if match not in (None, "eager", "fast"):
        raise UsageError(f"match must be eager or fast, not {match!r}")
    return match  # type: ignore[return-value]  # checked above


def _parse_target(target: str) -> tuple[Target, ...]:
    known: dict[str, tuple[Target, ...]] = {
        "cpu": ("cpu",),
        "cuda": ("cuda",),
        "both": ("cpu", "cuda"),
    }
    if target not in known:
        raise UsageError(f"target must be one of {', '.join(known)}, not {target!r}")
    return known[target]


def _ids(wanted: str | Iterable[str] | None, report: Report) -> list[str]:
    if wanted is None:
        return [finding.id for finding in report.findings if not finding.ignored]
    return [wanted] if isinstance(wanted, str) else list(wanted)


def _left_out(finding: Finding, where: str, reason: str) -> AppliedFix:
    return AppliedFix(
        finding=finding.id,
        where=where,
        places=(),
        before_us=0.0,
        after_us=0.0,
        undone=True,
        reason=f"not applied: {reason}",
    )


def _with(pairs: tuple[tuple[str, Any], ...], key: str, value: Any) -> tuple[tuple[str, Any], ...]:
    return (*(pair for pair in pairs if pair[0] != key), (key, value))
