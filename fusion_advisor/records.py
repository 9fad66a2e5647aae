"""The frozen records that flow from stage to stage.

Records hold no tensors and no callables; tensors travel beside them in a
``TensorStore``.  Times are in microseconds (``_us``), sizes in bytes, columns
are UTF-8 byte offsets, lines count from 1.  Nothing but the standard library is imported.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from fusion_advisor.view_steps import ViewStep

SCHEMA_VERSION = 1

OpKind = Literal[
    "elementwise",  # one output element from the matching input elements: fusable
    "reduction",
    "matmul",
    "convolution",
    "attention",
    "normalization",
    "view",  # changes metadata only, moves no bytes
    "metadata",  # asks for a size, a version, a detach…: no memory traffic
    "copy",  # moves bytes without computing (clone, cat, contiguous)
    "indexing",
    "factory",  # makes a tensor from nothing (empty, zeros, arange)
    "random",
    "host-sync",  # brings a value to Python (item, nonzero): control may depend on it
    "optimizer",
    "other",
]
Phase = Literal["forward", "backward", "optimizer"]
Bound = Literal["memory-bound", "compute-bound", "overhead-bound", "unknown"]
Status = Literal["passed", "failed", "not run"]
Safety = Literal["display-only", "unsafe", "safe"]
Target = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRef:
    """An op argument that is a tensor: the id of a ``TensorSpec``."""

    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """An op argument that is neither tensor nor plain data, by its printed name.

    ``kind`` is ``dtype`` (name ``float32``), ``device``, ``layout``,
    ``memory_format``, ``complex`` or ``opaque`` (cannot be replayed).
    """

    kind: Literal["dtype", "device", "layout", "memory_format", "complex", "opaque"]
    name: str


Argument = None | bool | int | float | str | ValueRef | Symbol | tuple["Argument", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpan:
    """Where an expression stands: a notebook cell or a file.

    ``line``/``end_line`` count from 1; ``column``/``end_column`` are UTF-8 byte
    offsets as in ``ast``.  In a cell, lines are those of the cell's own text.  The columns in
    UTF-16 units, as editors and SARIF count them, are ``None`` where the text was not at hand.
    """

    kind: Literal["cell", "file"]
    file: str
    line: int
    end_line: int
    column: int
    end_column: int
    function: str = ""
    text: str = ""
    cell_id: str | None = None
    execution_count: int | None = None
    installed: bool = False  # inside site-packages or the standard library: never edited
    utf16_column: int | None = None
    utf16_end_column: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One version of one tensor.

    Values are functional: an in-place op produces a *new* value with the same
    ``storage`` and a higher ``version``.  ``alias_of`` names the older value
    that is the same view (offset, shape, strides) of the same storage, where
    this value came into being because the storage was written through another
    view.  Strides and offset are in elements.
    """

    id: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    storage: int
    version: int = 0
    device: str = "cpu"
    requires_grad: bool = False
    alias_of: str | None = None
    # "conj", "neg", "sparse", "nested", "quantized", "subclass:<Name>", "wrapped-number",
    # "parameter", "saved" (autograd keeps it for backward)
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNode:
    """One dispatched op, in the order it ran.

    ``op`` is the overload's full name (``aten.add.Tensor``).  ``inputs`` are the
    value ids in ``args``/``kwargs`` in order of first use; ``outputs`` the value
    ids produced, where an in-place op's written argument appears as a new value.
    ``mutates`` names the *input* values that were written.  ``frame`` numbers the
    innermost Python frame that called it (outside torch), one number per frame
    instance; ``stack`` lists the spans from that frame outwards.
    """

    id: str
    index: int
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    kind: OpKind
    mutates: tuple[str, ...] = ()
    module_path: str = ""
    module_class: str = ""
    span: SourceSpan | None = None
    stack: tuple[SourceSpan, ...] = ()
    frame: int = 0
    sequence: int | None = None
    phase: Phase = "forward"
    device: str = "cpu"
    stream: int = 0
    thread: int = 0
    autocast: str | None = None
    grad_enabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """A recorded run: ops in order, every value, what came in and what outlives it.

    ``outputs`` are the values still reachable when recording ended (returned,
    kept by the person, or inputs that were written).
    """

    nodes: tuple[OpNode, ...]
    values: tuple[TensorSpec, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """Warmed replay time of one op: exclusive host time, device time, kernels launched."""

    node: str
    host_us: float
    device_us: float = 0.0
    kernels: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthPoint:
    """Measured streaming rate (equal read and write streams) at one working-set size."""

    working_set_bytes: int
    gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device can do, measured here or taken from the device table.

    ``bandwidth`` is ordered by working-set size; ``gflops`` by dtype name;
    ``dispatch_us`` is the host cost of one small eager op, ``launch_us`` the
    device launch cost (0 on a CPU), ``page_fault_us_per_mb`` the first-touch
    cost of fresh output memory.
    """

    device: str
    name: str
    bandwidth: tuple[BandwidthPoint, ...]
    gflops: tuple[tuple[str, float], ...]
    dispatch_us: float
    launch_us: float = 0.0
    page_fault_us_per_mb: float = 0.0
    call_us: float = 0.0  # host cost of one call of a fused function
    threads: int = 1
    origin: Literal["measured", "table"] = "measured"
    measured_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Versions and devices of the machine that made a capture."""

    python: str
    packages: tuple[tuple[str, str], ...]
    platform: str
    cpu: str
    threads: int
    devices: tuple[str, ...] = ()
    recorded_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProof:
    """Whether the recorded program, run from the stored tensors alone, gives the same bits."""

    status: Status
    message: str = ""
    compared_values: int = 0
    isolated: bool = False  # ran in a child process
    tolerant_nodes: tuple[str, ...] = ()  # non-deterministic ops, compared within tolerance
    unproven_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One profiled run.  ``wall_us`` is the median of uninstrumented warmed replays."""

    title: str
    graph: OpGraph
    times: tuple[OpTime, ...] = ()
    wall_us: float = 0.0
    wall_spread_us: float = 0.0
    environment: Environment
    ceilings: Ceilings | None = None
    proof: ReplayProof
    with_backward: bool = False
    loss: str = ""  # what was differentiated, when backward was asked for
    truncated: str = ""  # why recording stopped early, or empty
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """Why something is not done: a code, the nodes it is about, a sentence for a person."""

    code: str
    nodes: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandMap:
    """How one operand is indexed from the iteration space.

    ``dims[d]`` is the operand's own dimension read at iteration dimension ``d``,
    or ``None`` where it is broadcast.  Where the group has ``regions``, these say
    it and ``dims`` is empty.
    """

    value: str
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One way in which a region reads an external value: through the views between its ops.

    ``views`` are the results of the views passed, the one nearest the operand first;
    ``steps`` what they do to the operand's own dimensions (those it is broadcast over are left
    out).  ``dims[d]`` is the dimension, after the steps, that is read at the region's dimension
    ``d``, or ``None`` where it is broadcast.
    """

    value: str
    views: tuple[str, ...]
    steps: tuple[ViewStep, ...]
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Outputs of one shape and layout, written by one loop of the kernel over that shape.

    Every element of an output is computed from external values alone: what a region reads
    through a view of a member's result is computed again at that place.
    """

    shape: tuple[int, ...]
    outputs: tuple[str, ...]
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionCandidate:
    """A legal group of elementwise ops, and of the views between them.

    ``views`` are those of ``nodes`` that only change the indexing; a group with views has
    ``regions``, all others iterate over one ``shape`` (with regions: the largest one).
    ``shared`` are views that the group reads through and that others need as well: they stay
    where they are.  ``outputs`` must be written (used by later ops or alive at the
    end); ``saved`` are intermediates that only backward reads (kept by eager,
    recomputed by a fused kernel).  ``blockers`` say why the group ends where it ends:
    one per neighbouring pair that was not fused.
    """

    id: str
    nodes: tuple[str, ...]
    inputs: tuple[OperandMap, ...]
    outputs: tuple[str, ...]
    saved: tuple[str, ...] = ()
    shape: tuple[int, ...]
    pattern: Literal["chain", "dag"] = "chain"
    views: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    blockers: tuple[Blocker, ...] = ()

    @property
    def computed(self) -> tuple[str, ...]:
        """All ops that lead from the inputs to the outputs, shared views included."""
        return (*self.nodes, *self.shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What fusing would change.  ``terms`` name every addend of the time model, in us."""

    bytes_before: int
    bytes_after: int
    launches_before: int
    launches_after: int
    flops: float
    time_before_us: float
    time_after_low_us: float
    time_after_mid_us: float
    time_after_high_us: float
    saved_low_us: float
    saved_mid_us: float
    saved_high_us: float
    textbook_before_us: float = 0.0
    textbook_after_us: float = 0.0
    registers: int = 0
    occupancy: float = 1.0
    bound: Bound = "unknown"
    terms: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One of the three textbook questions (long enough, several ops, memory-bound), answered."""

    question: str
    holds: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Advice that is worth it end to end.

    ``occurrences`` are the same program from the same source place, the first of
    them the one that is shown; ``estimate`` sums over all of them; ``share`` is
    ``estimate.saved_mid_us`` over the run's wall time (0..1).  ``ignored``: a comment at the
    expression asks not to be told; it is kept, counted apart and never applied unasked.
    """

    id: str
    rule: str
    title: str
    message: str
    span: SourceSpan | None
    occurrences: tuple[FusionCandidate, ...]
    estimate: CostEstimate
    share: float
    verdicts: tuple[Verdict, ...] = ()
    safety: Safety = "safe"
    notes: tuple[str, ...] = ()
    ignored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A literal in a scalar program, already of its dtype's value."""

    value: bool | int | float
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """``name = opcode(*args)`` of type ``dtype``; args are earlier names or constants.

    ``node`` is the captured op it came from.  ``stage`` counts reductions passed,
    ``region`` is the loop it stands in.
    """

    name: str
    opcode: str
    args: tuple[str | Constant, ...]
    dtype: str
    node: str = ""
    stage: int = 0
    region: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInput:
    """An operand of a fused program.

    A ``tensor`` operand is read at the iteration groups in ``groups`` (indices into
    ``FusedProgram.groups``; the others are broadcast).  ``layout`` is ``dense``
    (contiguous over its own groups) or ``strided`` (strides are run-time values).
    A ``scalar`` operand is a run-time Python number; ``groups`` is empty.
    ``value`` is the captured value id, or the captured number for a scalar, which
    stood at flat argument ``position`` of captured ``node``.  A tensor operand belongs to
    one ``region``; in a program with ``parameters`` it is the view that ``steps`` make of
    ``parameter``.
    """

    name: str
    kind: Literal["tensor", "scalar"]
    dtype: str
    groups: tuple[int, ...] = ()
    layout: Literal["dense", "strided"] = "dense"
    value: str | bool | int | float = ""
    node: str = ""
    position: int = 0
    region: int = 0
    parameter: str = ""
    steps: tuple[ViewStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutput:
    """``result`` (an SSA name) is written to a dense output of ``dtype`` for captured ``value``."""

    name: str
    result: str
    dtype: str
    value: str = ""
    region: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParameter:
    """A tensor that the fused callable is given, for the captured ``value``."""

    name: str
    dtype: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationSpace:
    """The space of one region; see ``FusedProgram``."""

    rank: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedProgram:
    """A fused kernel before it is text: typed scalar SSA over an iteration space.

    ``rank`` is the rank of the iteration space as torch sees it.  ``groups``
    partitions its dimensions, outermost first, into the axes the kernel loops
    over: ``((0, 1), (2,))`` walks dimensions 0 and 1 as one axis and 2 as the
    inner one; a permuted order expresses channels_last.  ``reduced`` lists the
    axes that are reduced (none for an elementwise program).  Sizes are run-time
    values throughout.

    ``further`` are the spaces of the regions after the first: loops of the same kernel,
    none of which reads what another writes.  ``parameters`` are what the callable is given,
    where operands are views of these; else the tensor operands themselves are.
    """

    name: str
    rank: int
    groups: tuple[tuple[int, ...], ...]
    reduced: tuple[int, ...] = ()
    inputs: tuple[ProgramInput, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[ProgramOutput, ...]
    nodes: tuple[str, ...] = ()
    match: Literal["eager", "fast"] = "eager"
    further: tuple[IterationSpace, ...] = ()
    parameters: tuple[ProgramParameter, ...] = ()

    @property
    def given(self) -> tuple[ProgramParameter, ...]:
        """The tensors that the fused callable is given, in order."""
        return self.parameters or tuple(
            ProgramParameter(name=one.name, dtype=one.dtype, value=str(one.value))
            for one in self.inputs
            if one.kind == "tensor"
        )

    @property
    def spaces(self) -> tuple[IterationSpace, ...]:
        """The iteration space of every region."""
        return (IterationSpace(rank=self.rank, groups=self.groups), *self.further)

    @property
    def checks_divisors(self) -> bool:
        """Whether integers are divided by what may be 0, so that eager may raise."""
        return any(statement.opcode == "divisor" for statement in self.statements)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """Generated text: a complete module, and the names inside it.

    ``entry`` is the fused callable, ``eager_name`` the eager chain, ``cpu_name`` and
    ``cuda_name`` the kernels ("" where that target was not asked for).  ``hash`` is
    the SHA-256 of ``text``.
    """

    entry: str
    eager_name: str
    cpu_name: str
    cuda_name: str
    text: str
    hash: str
    program: FusedProgram
    provenance: str = ""

    @property
    def is_intact(self) -> bool:
        """Whether the text is the one that was hashed; one that was changed since is not run."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest() == self.hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the validation ladder.  ``detail`` says what was seen, or why it did not run."""

    name: str
    status: Status
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the CUDA toolchain reports for one architecture."""

    architecture: str
    registers: int
    spill_bytes: int
    shared_bytes: int = 0
    fused_multiply_adds: int = 0
    cubin_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPair:
    """Interleaved timing of eager and fused on the same inputs, medians and spreads (IQR) in us."""

    target: str
    eager_us: float
    eager_spread_us: float
    fused_us: float
    fused_spread_us: float
    predicted_us: float = 0.0
    bytes: int = 0
    inputs: str = ""  # "captured" or "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """The ladder's outcome.

    ``worst_share`` is the largest error over what its element was allowed (1 is the limit),
    over all elements.  ``worst_ulp`` is the largest distance from eager in ULP of the output
    dtype among elements that are allowed at most 1024 ULP, and ``budget_ulp`` what that
    element was allowed: where leading digits cancel (1 + tanh near -1) a distance in ULP of
    what little is left says nothing.
    """

    kernel_hash: str
    status: Status
    rungs: tuple[Rung, ...]
    cases: int = 0
    mismatches: int = 0
    discontinuous: int = 0
    worst_ulp: float = 0.0
    budget_ulp: float = 0.0
    worst_share: float = 0.0
    resources: tuple[Resources, ...] = ()
    timings: tuple[TimingPair, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEdit:
    """Replace ``old`` (at character offsets ``start``..``end`` of the text) by ``new``."""

    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """One way to put a fused kernel in place, or the blockers that forbid it.

    ``old_hash`` is the SHA-256 of the whole text the edits apply to.
    """

    finding: str
    where: Literal["cell", "file", "function", "module", "exported"]
    title: str
    safety: Safety
    path: str = ""
    cell_id: str | None = None
    edits: tuple[TextEdit, ...] = ()
    old_hash: str = ""
    blockers: tuple[Blocker, ...] = ()


IN_PLACE_ALREADY = "is in place already"  # the reason of a fix that was asked for twice


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFix:
    """What was put in place and what it did to the whole call (uninstrumented, interleaved)."""

    finding: str
    where: str
    places: tuple[str, ...]
    before_us: float
    after_us: float
    undone: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionRatio:
    """Ops inside a fused group of two or more, over compute ops."""

    name: str  # "as it is", "plan", "torch.compile"
    fused_ops: int
    ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a report shows; saves to and loads from JSON without loss."""

    capture: Capture
    candidates: tuple[FusionCandidate, ...]
    estimates: tuple[CostEstimate, ...]  # one per candidate, same order
    findings: tuple[Finding, ...]
    why_not: tuple[Blocker, ...]
    ratios: tuple[FusionRatio, ...]
    bounds: tuple[tuple[str, Bound], ...] = ()  # node id, class
    bytes_before: int = 0
    bytes_after: int = 0
    wall_us: float = 0.0  # what shares refer to: the measured run, or its estimate for `device`
    device: Ceilings | None = None  # the device that is not here, which times are estimated for
    nothing: str = ""  # why nothing is worth fusing, when findings is empty
    kernels: tuple[tuple[str, KernelSource], ...] = ()  # by finding id
    validations: tuple[tuple[str, ValidationResult], ...] = ()
    fixes: tuple[tuple[str, tuple[Fix, ...]], ...] = ()
    applied: tuple[AppliedFix, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION
