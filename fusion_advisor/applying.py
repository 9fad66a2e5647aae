"""Putting validated kernels in place, checking all of them together, and taking them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from types import FunctionType
from typing import Any

from fusion_advisor.errors import CaptureError, FixError, FusionAdvisorError, UsageError
from fusion_advisor.fixes import (
    Change,
    ChangeStack,
    ModulePiece,
    apply_file,
    apply_function,
    apply_module,
    find_function,
    function_source,
    functions_of,
    global_name,
    module_file,
    plan_function,
    plan_text,
)
from fusion_advisor.kernels import source_text
from fusion_advisor.recorder import Recording
from fusion_advisor.recorder.source import find_cell
from fusion_advisor.recorder.substitution import Substitution, run_substituted
from fusion_advisor.records import (
    IN_PLACE_ALREADY,
    AppliedFix,
    Finding,
    Fix,
    FusionCandidate,
    KernelSource,
    OpGraph,
    OpNode,
    Report,
    SourceSpan,
    ValidationResult,
)
from fusion_advisor.report.view import applied_sentence
from fusion_advisor.runtime import load_function
from fusion_advisor.validation import whole_call

# Kernels are kept when the whole call got no slower than its own noise: half the sum of the two
# interquartile ranges, at least the first and at most the second share of the call.  A machine so
# busy that its noise is larger cannot show that they help, and then they do not stay.
SLOWER_TOLERANCE = 0.01
NOISE_LIMIT = 0.05
WHERE = ("function", "module", "file")


@dataclass(frozen=True, slots=True)
class Piece:
    """A finding with its kernel, the proof of it, and the loaded fused function."""

    finding: Finding
    kernel: KernelSource
    validation: ValidationResult
    fused: Any


@dataclass(slots=True)
class _Outcome:
    places: tuple[str, ...] = ()
    reason: str = ""
    before_us: float = 0.0
    after_us: float = 0.0


@dataclass
class Applier:
    """What is in place for one recording."""

    recording: Recording
    rerun: Callable[[], Any] | None = None
    stack: ChangeStack = field(default_factory=ChangeStack)
    loaded: dict[str, Piece] = field(default_factory=dict)  # by finding, once applied
    functions: dict[str, FunctionType] = field(default_factory=dict)

    @property
    def in_place(self) -> dict[str, Piece]:
        """What is in place now."""
        return {finding: self.loaded[finding] for finding in self.stack.findings()}

    # -- planning --------------------------------------------------------------------------

    def plan(self, report: Report, finding: Finding, kernel: KernelSource, text: str) -> Fix:
        """The edit of the cell or file that holds a finding's chain."""
        candidate = finding.occurrences[0]
        namespace: Mapping[str, object] | None = None
        try:
            namespace = self._function(report, candidate).__globals__
        except FixError:
            namespace = None  # module-level code: names are judged from the text alone
        return plan_text(
            report.capture.graph,
            candidate,
            kernel,
            text,
            finding.span,
            finding=finding.id,
            namespace=namespace,
        )

    def _function(self, report: Report, candidate: FusionCandidate) -> FunctionType:
        nodes = {node.id: node for node in report.capture.graph.nodes}
        node = nodes[candidate.nodes[-1]]
        code = self.recording.codes.get(node.id)
        key = f"{code.co_filename}:{code.co_qualname}:{code.co_firstlineno}" if code else node.id
        known = self.functions.get(key)
        if known is not None:
            return known
        live = functions_of(code) if code is not None else []
        if live:
            function = live[0]
        elif node.span is None:
            raise FixError("the place of this chain in the source is not known")
        else:
            names = (code.co_filename,) if code is not None else ()
            span = _shifted(node.span, -_skipped_lines(node.span.file))
            function = find_function(span, filenames=names)
        self.functions[key] = function
        return function

    # -- applying --------------------------------------------------------------------------

    def apply(
        self,
        report: Report,
        proven: Sequence[tuple[Finding, KernelSource, ValidationResult]],
        *,
        where: str,
    ) -> list[AppliedFix]:
        """Apply what is valid, check the whole, take back what is wrong or slower."""
        if where not in WHERE:
            raise UsageError(f"where must be one of {', '.join(WHERE)}, not {where!r}")
        outcomes = {finding.id: _Outcome() for finding, _, _ in proven}
        pieces: list[Piece] = []
        for finding, kernel, validation in proven:
            outcomes[finding.id].reason = self._refusal(report, finding, validation)
            if not outcomes[finding.id].reason:
                pieces.append(self._load(finding, kernel, validation))
        pieces = self._checked_on_recording(report, pieces, outcomes)
        with self.stack.trial() as attempt:
            pieces = self._put_in(report, pieces, attempt, where, outcomes)
            self._check_calls(pieces, attempt, outcomes)
            kept = {one.finding.id: one for one in pieces if not outcomes[one.finding.id].reason}
            for piece in kept.values():
                piece.fused.reset_stats()  # what is counted from here on are the person's calls
            self.loaded |= kept
            self.stack.keep(attempt)
        return [
            AppliedFix(
                finding=finding.id,
                where=where,
                places=outcomes[finding.id].places,
                before_us=outcomes[finding.id].before_us,
                after_us=outcomes[finding.id].after_us,
                undone=bool(outcomes[finding.id].reason),
                reason=outcomes[finding.id].reason,
            )
            for finding, _, _ in proven
        ]

    def _refusal(self, report: Report, finding: Finding, validation: ValidationResult) -> str:
        if finding.id in self.in_place:
            return IN_PLACE_ALREADY
        if validation.status != "passed":
            failed = [rung for rung in validation.rungs if rung.status == "failed"]
            said = f"{failed[0].name}: {failed[0].detail}" if failed else "validation did not run"
            return f"not applied, its kernel is not valid ({said})"
        touched = {node for one in finding.occurrences for node in one.nodes}
        if report.capture.proof.status == "failed" and touched & set(
            report.capture.proof.unproven_nodes
        ):
            return "not applied, the recording of these ops could not be proven by replay"
        return ""

    def _load(self, finding: Finding, kernel: KernelSource, validation: ValidationResult) -> Piece:
        fused = load_function(kernel.text, kernel.entry, kernel.hash)
        return Piece(finding, kernel, validation, fused)

    def _put_in(
        self,
        report: Report,
        pieces: Sequence[Piece],
        attempt: ChangeStack,
        where: str,
        outcomes: Mapping[str, _Outcome],
    ) -> list[Piece]:
        kept = []
        for piece in pieces:
            changes: list[Change] = []
            try:
                for make in self._changes(report, piece, where):
                    changes.append(attempt.make(piece.finding.id, make))
            except FixError as error:
                attempt.undo(piece.finding.id)
                outcomes[piece.finding.id].reason = f"not applied: {error}"
                continue
            outcomes[piece.finding.id].places = tuple(
                dict.fromkeys(place for change in changes for place in change.places)
            )
            kept.append(piece)
        return kept

    def _changes(self, report: Report, piece: Piece, where: str) -> Iterator[Callable[[], Change]]:
        """What makes each change of a finding, one after the other."""
        graph, kernel, finding = report.capture.graph, piece.kernel, piece.finding
        if where == "file":
            fix = self.plan(report, finding, kernel, source_text(finding.span))
            yield partial(apply_file, fix)
            return
        names = {global_name(kernel): piece.fused}
        if where == "function":
            for one in self.function_fixes(report, finding, kernel):
                yield partial(apply_function, one.function, one.fix, names)
            return
        nodes = {node.id: node for node in graph.nodes}
        fixes = {one.function: one.fix for one in self.function_fixes(report, finding, kernel)}
        holders: dict[int, tuple[Any, FunctionType]] = {}  # all of them, before any is changed
        for candidate in finding.occurrences:
            function = self._function(report, candidate)
            holder = self._holder(function, nodes[candidate.nodes[-1]])
            holders.setdefault(id(holder), (holder, function))
        for holder, function in holders.values():
            yield partial(apply_module, holder, function, fixes[function], names)

    def function_fixes(
        self, report: Report, finding: Finding, kernel: KernelSource
    ) -> list[ModulePiece]:
        """One fix of a live function for each function that holds the finding's chain."""
        found: dict[FunctionType, ModulePiece] = {}
        for candidate in finding.occurrences:
            function = self._function(report, candidate)
            if function in found:
                continue
            fix = plan_function(
                _in_compiled_lines(report.capture.graph, function.__code__.co_filename),
                candidate,
                kernel,
                function_source(function),
                call_name=global_name(kernel),
                finding=finding.id,
                namespace=function.__globals__,
            )
            if fix.blockers:
                raise FixError("; ".join(blocker.message for blocker in fix.blockers))
            found[function] = ModulePiece(kernel, function, fix)
        return list(found.values())

    def module_text(
        self, report: Report, proven: Sequence[tuple[Finding, KernelSource, ValidationResult]]
    ) -> tuple[str, list[str]]:
        """Text of a ``fused_<name>.py``, and why each finding that is not in it is left out."""
        pieces: list[ModulePiece] = []
        left_out: list[str] = []
        for finding, kernel, validation in proven:
            if validation.status != "passed":
                left_out.append(f"{finding.id}: its kernel is not valid")
                continue
            try:
                fixes = self.function_fixes(report, finding, kernel)
                module_file(fixes)  # also refuses what no import can reach
            except FixError as error:
                left_out.append(f"{finding.id}: {error}")
                continue
            pieces += fixes
        if not pieces:
            raise FixError("no finding can be exported as a module: " + "; ".join(left_out))
        return module_file(pieces, title=f"Fused kernels for {report.capture.title}"), left_out

    def _holder(self, function: FunctionType, node: OpNode) -> Any:
        """The innermost recorded module whose ``forward`` is the function that holds a node."""
        module = self.recording.module(node.module_path)
        forward = getattr(type(module), "forward", None) if module is not None else None
        if module is None or getattr(forward, "__code__", None) is not function.__code__:
            raise FixError(
                f"{function.__qualname__} is not the forward of one module, so it can only be "
                "changed for all of its callers: apply with where='function'"
            )
        return module

    # -- checking --------------------------------------------------------------------------

    def _checked_on_recording(
        self, report: Report, pieces: Sequence[Piece], outcomes: Mapping[str, _Outcome]
    ) -> list[Piece]:
        """Run the recorded program with all kernels in it; find the wrong one if it differs."""
        if report.capture.proof.status != "passed" or not pieces:
            return list(pieces)
        graph, store = report.capture.graph, self.recording.store
        try:
            expected = whole_call.snapshot(run_substituted(graph, store, ()))
        except CaptureError:
            return list(pieces)  # inputs that were not kept: the call itself is checked below

        def problem(some: Sequence[Piece]) -> str:
            try:
                got = run_substituted(graph, store, _substitutions(some))
            except FusionAdvisorError as error:
                return str(error)
            result = whole_call.compare(expected, got)
            return "" if result.equal else result.detail

        if not problem(pieces):
            return list(pieces)
        good: list[Piece] = []
        for piece in pieces:
            detail = problem([*good, piece])
            if detail:
                outcomes[
                    piece.finding.id
                ].reason = f"not applied, the recorded run gives other values with it ({detail})"
            else:
                good.append(piece)
        return good

    def _check_calls(
        self, pieces: list[Piece], attempt: ChangeStack, outcomes: Mapping[str, _Outcome]
    ) -> None:
        """Repeat the call with and without the kernels; take back what is wrong or slower."""
        if self.rerun is None or not pieces:
            return
        rerun = self.rerun
        held = map(self.recording.module, self.recording.modules)
        # By identity: a container may be empty, and a compiled model has no truth value.
        modules = [module for module in held if module is not None]
        waiting = sorted(pieces, key=lambda one: one.finding.estimate.saved_mid_us)
        switches = [piece.fused for piece in pieces]

        forced = ExitStack()

        def switch(inserted: bool) -> None:
            forced.close()
            if not inserted:
                for fused in switches:
                    forced.enter_context(fused.forced_eager())

        with forced:  # an interrupt must not leave a kernel forced to run eager
            switch(False)
            with whole_call.preserved_state(modules):
                try:
                    expected = whole_call.snapshot(rerun())
                except Exception:
                    # It ran once and does not run again: used-up iterators, changed globals.
                    return  # the recorded run, checked above, stands in
            while True:
                active = [piece for piece in waiting if not outcomes[piece.finding.id].reason]
                if not active:
                    return
                problem = self._problem_of_call(expected, switch, modules, active, outcomes)
                if not problem:
                    return
                _take_back(active[0], attempt, outcomes, problem)

    def _problem_of_call(
        self,
        expected: Sequence[Any],
        switch: Callable[[bool], None],
        modules: Sequence[Any],
        active: Sequence[Piece],
        outcomes: Mapping[str, _Outcome],
    ) -> str:
        """What is wrong with the call as it is now, its times noted; empty if nothing."""
        assert self.rerun is not None  # the caller has looked
        with whole_call.preserved_state(modules):
            switch(True)
            try:
                got = whole_call.snapshot(self.rerun())
            except Exception as error:
                return f"the call raised {type(error).__name__}: {error}"
            result = whole_call.compare(expected, got)
        if not result.equal:
            return f"the call gave other values: {result.detail}"
        with whole_call.preserved_state(modules):
            times = whole_call.time_interleaved(self.rerun, switch)
        for piece in active:
            outcomes[piece.finding.id].before_us = times.before_us
            outcomes[piece.finding.id].after_us = times.after_us
        noise = max(
            min(
                (times.before_spread_us + times.after_spread_us) / 2, NOISE_LIMIT * times.before_us
            ),
            SLOWER_TOLERANCE * times.before_us,
        )
        if times.after_us <= times.before_us + noise:
            return ""
        return f"the call got slower ({times.before_us / 1e3:.2f} → {times.after_us / 1e3:.2f} ms)"

    # -- the way back ----------------------------------------------------------------------

    def undo(self, finding_id: str | None) -> list[str]:
        """Take one finding's kernels out, or all."""
        return list(self.stack.undo(finding_id))

    def statistics(self) -> dict[str, list[tuple[str, int, Mapping[str, int]]]]:
        """Calls of each kernel in place: name, fused calls, fallbacks by reason."""
        return {
            name: [(piece.kernel.entry, piece.fused.stats.fused, dict(piece.fused.stats.fallbacks))]
            for name, piece in self.in_place.items()
        }


def _skipped_lines(file: str) -> int:
    """Lines of a cell above its compiled text: blank ones, cell magics."""
    cell = find_cell(file)
    return 0 if cell is None else cell.first_line - 1


def _shifted(span: SourceSpan, lines: int) -> SourceSpan:
    return replace(span, line=span.line + lines, end_line=span.end_line + lines)


def _in_compiled_lines(graph: OpGraph, file: str) -> OpGraph:
    """The graph with the places in ``file`` as in the text that was compiled.

    Places in a cell are those a person sees; IPython compiles it without leading blank lines.
    """
    skipped = _skipped_lines(file)
    if not skipped:
        return graph

    def moved(span: SourceSpan) -> SourceSpan:
        return _shifted(span, -skipped) if span.file == file else span

    return replace(
        graph,
        nodes=tuple(
            replace(
                node,
                span=None if node.span is None else moved(node.span),
                stack=tuple(map(moved, node.stack)),
            )
            for node in graph.nodes
        ),
    )


class Applied(list[AppliedFix]):
    """What applying did, one sentence for each finding when shown."""

    def __repr__(self) -> str:
        return "\n".join(applied_sentence(fix) for fix in self) or "nothing to apply"


def _take_back(
    piece: Piece, attempt: ChangeStack, outcomes: Mapping[str, _Outcome], reason: str
) -> None:
    attempt.undo(piece.finding.id)
    outcomes[piece.finding.id].reason = f"taken back, {reason}"


def _substitutions(pieces: Sequence[Piece]) -> list[Substitution]:
    found = []
    for piece in pieces:
        program = piece.kernel.program
        numbers = tuple(operand.value for operand in program.inputs if operand.kind == "scalar")
        first = [operand.value for operand in piece.finding.occurrences[0].inputs]
        # A kernel may read fewer operands than the group does: those that only lend their shape.
        read = [first.index(one.value) for one in program.given]
        for candidate in piece.finding.occurrences:
            found.append(
                Substitution(
                    nodes=candidate.nodes,
                    inputs=tuple(candidate.inputs[position].value for position in read),
                    outputs=candidate.outputs,
                    call=_with_numbers(piece.fused, numbers),
                )
            )
    return found


def _with_numbers(fused: Any, numbers: tuple[Any, ...]) -> Callable[..., Any]:
    return lambda *tensors: fused(*tensors, *numbers)
