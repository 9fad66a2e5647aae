"""The pipeline in order: record, prove, measure, analyse.  No logic of its own.

``profile`` takes a model and its arguments, ``profile_code`` any callable, ``capture`` a
``with`` block.  Each returns an :class:`~fusion_advisor.advice.Advice`.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from fusion_advisor import workers
from fusion_advisor.advice import Advice
from fusion_advisor.analysis import (
    Analysis,
    AnalysisOptions,
    TrafficModel,
    analyze,
    mark_ignored,
)
from fusion_advisor.analysis.findings import MIN_SAVING_US
from fusion_advisor.analysis.graph_index import build_index
from fusion_advisor.devices import find_device
from fusion_advisor.errors import CaptureError, UsageError
from fusion_advisor.kernels import source_text
from fusion_advisor.recorder import (
    CaptureOptions,
    Recorder,
    Recording,
    environment,
    record,
    replay,
    timing,
)
from fusion_advisor.records import (
    Capture,
    Ceilings,
    OpGraph,
    OpTime,
    ReplayProof,
    Report,
    Target,
)
from fusion_advisor.serialize import load_report
from fusion_advisor.validation import contradiction, measure_again, measure_ceilings
from fusion_advisor.validation.whole_call import only_data

Progress = Callable[[str, float], None]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_finding_numbers = itertools.count(1)  # ids are never reused in a session
TARGETS: Mapping[str, tuple[Target, ...]] = {
    "cpu": ("cpu",),
    "cuda": ("cuda",),
    "both": ("cpu", "cuda"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What a person may ask of one profile: the keywords of ``profile`` and its siblings.

    ``device`` names a device that is not here (``"h100"``): what fusing saves is then estimated
    from its table entry.  ``target`` is ``cpu``, ``cuda`` or ``both``; by default both kernels are
    generated.  ``steps`` and ``max_ops`` bound what is recorded in a loop.  ``min_saving_us``
    is the least a finding must save over the whole run.
    """

    backward: bool = False
    device: str | None = None
    target: str = "both"
    steps: int = 2
    max_ops: int = 50_000
    min_saving_us: float = MIN_SAVING_US
    title: str = ""
    prove: bool = True
    isolated: bool = True
    refresh_ceilings: bool = False
    progress: Progress | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for a value that makes no sense."""
        if self.target not in TARGETS:
            raise UsageError(f"target must be one of {', '.join(TARGETS)}, not {self.target!r}")
        for name in ("steps", "max_ops"):
            number = getattr(self, name)
            if not isinstance(number, int) or number < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, not {number!r}")
        least: object = self.min_saving_us
        if isinstance(least, bool) or not isinstance(least, int | float) or not least >= 0:
            raise UsageError(f"min_saving_us must be a number of at least 0, not {least!r}")
        if self.device is not None and not isinstance(self.device, str):
            raise UsageError(f"device is a name such as 'h100', not {self.device!r}")
        if self.progress is not None and not callable(self.progress):
            raise UsageError("progress must be callable: progress(stage, fraction)")
        self.elsewhere()

    def elsewhere(self) -> Ceilings | None:
        """The ceilings of ``device``, which is not here; ``UsageError`` for an unknown one."""
        return None if self.device is None else find_device(self.device)

    def say(self, stage: str, fraction: float) -> None:
        """Report progress, if anyone listens."""
        if self.progress is not None:
            self.progress(stage, fraction)

    def capture_options(self) -> CaptureOptions:
        """The part of these options that recording needs."""
        return CaptureOptions(steps=self.steps, max_ops=self.max_ops, backward=self.backward)


def _options(given: Mapping[str, Any], *, title: str = "", without: str = "") -> ProfileOptions:
    """The options as given; ``UsageError`` for a name or a value that makes no sense."""
    known = [one.name for one in fields(ProfileOptions) if one.name != without]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"there is no option {name!r} ({hint}options: {', '.join(known)})")
    options = ProfileOptions(
        **{**given, "target": given.get("target") or "both", "title": given.get("title") or title}
    )
    options.check()
    return options


def _with_options(*, without: str = "") -> Callable[[_Function], _Function]:
    """Show the options in a function's signature, where ``help`` and completion look for them."""

    def shown(function: _Function) -> _Function:
        own = inspect.signature(function)
        parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        parameters += [
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
            )
            for one in fields(ProfileOptions)
            if one.name != without
        ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return shown


@_with_options()
def profile(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Advice:
    """Run ``model(*args, **kwargs)`` once, recorded, and advise on it.

    ``model`` is a module or any function of tensors.  The call itself runs exactly once here;
    after ``advice.apply(...)`` it is repeated to check and time the whole call, with random
    state and module buffers put back.
    """
    if not callable(model):
        raise UsageError(f"model must be callable, not {type(model).__name__}")
    if not isinstance(args, tuple):
        raise UsageError("args must be a tuple: profile(model, args=(x,))")
    chosen = _options(options, title=getattr(model, "__name__", type(model).__name__))
    if kwargs is not None and not (
        isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)
    ):
        raise UsageError("kwargs must map argument names to values: kwargs={'mask': mask}")
    keywords = dict(kwargs or {})

    def call() -> Any:
        return model(*args, **keywords)

    return _advise_on(call, chosen, rerun=call if only_data((args, keywords)) else None)


@_with_options()
def profile_code(
    run: Callable[[], Any],
    *,
    rerun: Callable[[], Any] | None = None,
    **options: Any,
) -> Advice:
    """Run ``run()`` exactly once, recorded, and advise on it; ``advice.result`` is its result.

    ``rerun`` is a call without side effects of its own that applying may repeat to check the
    whole call; without it the recorded program stands in.
    """
    return _advise_on(run, _options(options), rerun=rerun)


def _advise_on(
    run: Callable[[], Any], options: ProfileOptions, *, rerun: Callable[[], Any] | None
) -> Advice:
    _prepare_workers(options)
    options.say("recording", 0.0)
    recording = record(run, options.capture_options())
    return advise(recording, options, rerun=rerun)


def _prepare_workers(options: ProfileOptions) -> None:
    """Have the process that will prove the recording start while the code runs."""
    if options.isolated:
        workers.warm_up()


@dataclass(slots=True, repr=False)
class Run:
    """What ``with capture() as run`` binds; ``advice`` is there after the block."""

    _advice: Advice | None = field(default=None)
    _failed: str = ""

    @property
    def advice(self) -> Advice:
        """The advice on the block; ``CaptureError`` while it is still running or if it failed."""
        if self._failed:
            raise CaptureError(f"there is no advice: {self._failed}")
        if self._advice is None:
            raise CaptureError("the block has not ended: advice is there after the with statement")
        return self._advice

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.advice, name)

    def __repr__(self) -> str:
        if self._advice is not None:
            return repr(self._advice)
        return f"<recording: {self._failed or 'the block has not ended'}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str] | None:
        """What a notebook shows of the advice; before it is there, the text alone."""
        return None if self._advice is None else self._advice._repr_mimebundle_(include, exclude)


@_with_options(without="backward")
@contextmanager
def capture(**options: Any) -> Iterator[Run]:
    """Record the block: ``with fa.capture() as run: ...``, then ``run.advice``."""
    chosen = _options(options, title="with block", without="backward")
    run = Run()
    _prepare_workers(chosen)
    recorder = Recorder(chosen.capture_options())
    try:
        with recorder:
            yield run
        run._advice = advise(recorder.finish(), chosen, rerun=None)
    except BaseException as error:
        run._failed = f"the block ended with {type(error).__name__}: {error}".rstrip(": ")
        raise


def advise(
    recording: Recording, options: ProfileOptions, *, rerun: Callable[[], Any] | None
) -> Advice:
    """Prove, measure and analyse a recording."""
    graph, store = recording.graph, recording.store
    notes = recording.notes
    if rerun is not None and recording.side_effects:
        rerun = None
        notes += (
            f"the call is not repeated to check kernels, because {recording.side_effects}; the "
            "recorded program stands in for it",
        )
    device = _device_of(graph)
    options.say("proving the recording by replay", 0.2)
    proof = (
        replay.prove(graph, store, isolated=options.isolated)
        if options.prove
        else ReplayProof(status="not run", message="the proof was not asked for (prove=False)")
    )
    options.say("timing a warmed replay", 0.4)
    measured = timing.measure(graph, store)
    options.say("measuring this device's ceilings", 0.7)
    ceilings, doubt = _ceilings(graph, measured.times, device, refresh=options.refresh_ceilings)
    recorded = Capture(
        title=options.title,
        graph=graph,
        times=measured.times,
        wall_us=measured.wall_us,
        wall_spread_us=measured.wall_spread_us,
        environment=environment(),
        ceilings=ceilings,
        proof=proof,
        with_backward=options.backward,
        loss=recording.loss,
        truncated=recording.truncated,
        notes=notes + doubt,
    )
    options.say("analysing", 0.9)
    report = report_on(
        recorded,
        device=options.elsewhere(),
        fused=recording.fused,
        min_saving_us=options.min_saving_us,
    )
    options.say("done", 1.0)
    return Advice(
        report,
        recording=recording,
        targets=TARGETS[options.target],
        rerun=rerun,
        progress=options.progress,
    )


def _ceilings(
    graph: OpGraph, times: tuple[OpTime, ...], device: str, *, refresh: bool
) -> tuple[Ceilings, tuple[str, ...]]:
    """The device's ceilings, and what is to be said where the run's own ops contradict them."""
    ceilings = measure_ceilings(device=device, refresh=refresh)
    took = {time.node: time.host_us for time in times}
    traffic = TrafficModel(build_index(graph))
    ops = [
        (op.total, took[node.id])
        for node, op in zip(graph.nodes, traffic.ops, strict=True)
        if node.kind == "elementwise" and node.id in took
    ]
    reason = contradiction(ceilings, ops)
    if not reason:
        return ceilings, ()
    note = f"the ceilings measured at {ceilings.measured_at} were too low and were measured again"
    ceilings = measure_again(device=device)
    still = contradiction(ceilings, ops)
    doubt = f"; they still are ({still}), so savings are rough here" if still else ""
    return ceilings, (f"{note}: {reason}{doubt}",)


def _device_of(graph: OpGraph) -> str:
    """The device to time: a GPU where one was used, else the CPU."""
    used = dict.fromkeys(node.device for node in graph.nodes)
    for name in used:
        if name.startswith("cuda"):
            return name
    if "cpu" in used:
        return "cpu"
    if "meta" in used:
        raise CaptureError(
            "the code ran on meta tensors, which hold no data: profile it with real tensors, "
            "for example model.to_empty(device='cpu') and torch.randn(...)"
        )
    raise CaptureError(
        f"the code ran on {', '.join(used)}: only the CPU and CUDA devices are profiled, so move "
        "model and inputs to one of them"
    )


def report_on(
    recorded: Capture,
    *,
    device: Ceilings | None = None,
    fused: frozenset[str] = frozenset(),
    min_saving_us: float = MIN_SAVING_US,
) -> Report:
    """Analyse a capture into a report without kernels; finding ids go on from the last one.

    ``device`` are the ceilings of a device that is not here, which times are estimated for.
    ``fused`` are the nodes of kernels that are in place, which no finding is made of.
    """
    first = next(_finding_numbers)
    wanted = AnalysisOptions(device=device, min_saving_us=min_saving_us)
    found = analyze(recorded, first_id=first, options=wanted)
    for _ in range(len(found.findings) - 1):
        next(_finding_numbers)
    found = _without_fused(found, fused)
    findings, notes = mark_ignored(found.findings, recorded.graph, source_text)
    found = replace(found, findings=findings, notes=(*found.notes, *notes))
    return _report(recorded, found, device)


def _without_fused(found: Analysis, fused: frozenset[str]) -> Analysis:
    """The analysis without findings in the eager chains of kernels that are in place."""
    if not fused:
        return found
    findings = tuple(
        finding
        for finding in found.findings
        if not all(fused.issuperset(one.nodes) for one in finding.occurrences)
    )
    nothing = found.nothing
    if found.findings and not findings:
        nothing = "what is worth fusing is in place already; take it out to profile without it"
    note = (
        f"{len(fused)} ops belong to fused kernels that are in place; a recording needs them one "
        "by one, so the times here are those without these kernels"
    )
    return replace(found, findings=findings, nothing=nothing, notes=(*found.notes, note))


def _report(recorded: Capture, found: Analysis, device: Ceilings | None) -> Report:
    return Report(
        capture=recorded,
        candidates=found.candidates,
        estimates=found.estimates,
        findings=found.findings,
        why_not=found.why_not,
        ratios=found.ratios,
        bounds=found.bounds,
        bytes_before=found.bytes_before,
        bytes_after=found.bytes_after,
        wall_us=found.wall_us,
        device=device,
        nothing=found.nothing,
        notes=(*recorded.notes, *found.notes),
    )


def load(path: str | Path) -> Report:
    """Load a report saved as JSON; ``ReportError`` says what is wrong with a bad file."""
    from fusion_advisor.report import read_text

    return load_report(read_text(path))
