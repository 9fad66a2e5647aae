"""torch's own OpInfo samples through recording, kernel generation and comparison.

Every sample call is recorded as a person's code would be.  Each op in it that computes becomes a
kernel of its own, which runs on the recorded operands and is held against eager by the project's
budgets.  A sample is supported where all of its computing ops are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch.testing._internal.common_methods_invocations import op_db

from fusion_advisor import workers
from fusion_advisor.analysis.chains import index_graph
from fusion_advisor.analysis.graph_index import GraphIndex, is_dense
from fusion_advisor.analysis.partition import Partition, make_candidate
from fusion_advisor.codegen import generate, lower
from fusion_advisor.errors import CaptureError, FusionAdvisorError
from fusion_advisor.recorder import CaptureOptions, Recording, record, replay
from fusion_advisor.records import FusionCandidate, KernelSource
from fusion_advisor.runtime import FusedFunction, load_kernel
from fusion_advisor.validation import arrays, budget
from fusion_advisor.validation.bits import same_bits
from fusion_advisor.validation.budgets import OutputBudget
from fusion_advisor.validation.compare import Comparison, compare
from fusion_advisor.validation.cuda_compiler import compile_cuda
from fusion_advisor.validation.execution import ExecutionRequest
from fusion_advisor.validation.native_module import translate

Target = Literal["cpu", "cuda"]
DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool,
)  # fmt: skip
ENTRIES = Path(__file__).with_name("opinfo_entries.txt")
NATIVE_TIMEOUT_S = 120.0  # one compile and some hundred small launches
ARCHITECTURE = (9, 0)  # whose IR is run natively
# They compute nothing: an index map, a question about a tensor, or an operand made beforehand.
_ASIDE = ("view", "metadata", "factory")


@dataclass
class Tally:
    """What the samples of one entry on one target came to."""

    samples: int = 0  # that all ran in kernels
    kernels: int = 0  # compared, over all samples
    elements: int = 0
    mismatches: int = 0
    discontinuous: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # samples, by reason
    worst_ulp: dict[str, float] = field(default_factory=dict)  # by op
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class OneOp:
    """One recorded op as a kernel: its operands, and what eager gives and allows for them."""

    op: str
    kernel: KernelSource
    recording: Recording
    candidate: FusionCandidate
    operands: tuple[torch.Tensor, ...]
    allowed: tuple[OutputBudget, ...]


class Refused(Exception):
    """Why a sample is not run in kernels."""


def read_entries() -> dict[str, tuple[str, ...]]:
    """The names under ``required`` and ``others``."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in ENTRIES.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = []
        elif line and not line.startswith("#"):
            found[section].append(line)
    return {name: tuple(names) for name, names in found.items()}


def find_entries() -> dict[str, Any]:
    """torch's OpInfo objects by name[.variant]."""
    return {
        entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else ""): entry
        for entry in op_db
    }


def calls(entry: Any, dtype: torch.dtype) -> Iterator[Callable[[], Any]]:
    """The entry's sample calls for a dtype, then the same on non-contiguous tensors."""
    if dtype not in entry.supported_dtypes("cpu"):
        return
    torch.manual_seed(20)
    for sample in list(entry.sample_inputs("cpu", dtype, requires_grad=False)):
        for one in (sample, sample.noncontiguous()):

            def call(one: Any = one) -> Any:
                with torch.no_grad():
                    return entry.op(one.input, *one.args, **one.kwargs)

            yield call


def run_entry(
    entry: Any, dtypes: tuple[torch.dtype, ...], target: Target, most_samples: int | None = None
) -> Tally:
    """Run an entry's samples; ``most_samples`` bounds them for each dtype."""
    tally = Tally()
    waiting: dict[str, list[OneOp]] = defaultdict(list)
    for dtype in dtypes:
        for number, call in enumerate(calls(entry, dtype)):
            if most_samples is not None and number >= most_samples:
                break
            try:
                ops = kernels_of(call)
            except Refused as reason:
                tally.refused[str(reason)] += 1
                continue
            tally.samples += 1
            for one in ops:
                waiting[one.kernel.hash].append(one)
    run = run_on_cpu if target == "cpu" else run_natively
    for group in waiting.values():
        try:
            results = run(group)
        except FusionAdvisorError as error:
            tally.mismatches += len(group)
            tally.faults.append(f"{group[0].op}: {type(error).__name__}: {error}")
            continue
        for one, actual in zip(group, results, strict=True):
            judge(one, actual, tally)
    return tally


def kernels_of(call: Callable[[], Any]) -> list[OneOp]:
    """Record a call and make a kernel of each op that computes; raises ``Refused``."""
    try:
        recording = record(call, CaptureOptions(with_source=False))
    except CaptureError as error:
        if "dispatched no torch op" in str(error):
            return []  # x.float() of a float32 tensor is x
        raise
    index = index_graph(recording.graph)
    found = []
    for position, node in enumerate(index.nodes):
        if node.kind in _ASIDE:
            continue
        refusal = index.refusals[position]
        if refusal is not None:
            raise Refused(f"{refusal[0]}: {refusal[1]}")
        found.append(_one_op(recording, index, position))
    return found


def _one_op(recording: Recording, index: GraphIndex, position: int) -> OneOp:
    graph, node = recording.graph, index.nodes[position]
    piece = Partition(index).look([position])
    if not all(is_dense(index.values[value]) for value in piece.outputs):
        raise Refused(f"layout: {node.op}: its result does not fill one stretch of memory")
    candidate = make_candidate(index, piece, node.id, ())
    names = [operand.value for operand in candidate.inputs]
    values = replay.materialize(graph, recording.store, set(names))
    try:
        kernel = _kernel(recording, candidate)
    except FusionAdvisorError as error:
        raise Refused(f"codegen: {error}") from error
    return OneOp(
        op=node.op,
        kernel=kernel,
        recording=recording,
        candidate=candidate,
        operands=tuple(values[name] for name in names),
        allowed=budget(graph, candidate, {name: values[name] for name in names}),
    )


_generated: dict[str, KernelSource] = {}
_loaded: dict[str, FusedFunction] = {}


def _kernel(recording: Recording, candidate: FusionCandidate) -> KernelSource:
    """The kernel of a candidate; calls that differ in nothing but data share one."""
    program = lower(recording.graph, candidate, name="fused")
    kernel = generate(program, recording.graph)
    return _generated.setdefault(kernel.hash, kernel)


def run_on_cpu(group: list[OneOp]) -> list[tuple[torch.Tensor, ...]]:
    """Call the fused function as a person would."""
    kernel = group[0].kernel
    if kernel.hash not in _loaded:
        _loaded[kernel.hash] = load_kernel(kernel.text, kernel.entry, kernel.hash)[kernel.entry]
    fused = _loaded[kernel.hash]
    results = []
    for one in group:
        refusal = fused.why_not(*one.operands)
        if refusal:
            raise FusionAdvisorError(f"its own guards refuse the recorded operands: {refusal}")
        with torch.no_grad():
            result = fused(*one.operands)
        results.append(result if isinstance(result, tuple) else (result,))
    return results


def run_natively(group: list[OneOp]) -> list[tuple[torch.Tensor, ...]]:
    """Run the CUDA kernel's own IR on this CPU, in another process and guarded memory."""
    kernel = group[0].kernel
    compiled = compile_cuda(kernel, ARCHITECTURE)
    host = translate(compiled.modules, compiled.name, compiled.architecture)
    regions = [
        arrays.seen_regions(one.recording.graph, one.candidate, one.operands) for one in group
    ]
    specs = tuple(
        (str(number), arrays.launch_spec(kernel.program, seen, ()))
        for number, seen in enumerate(regions)
    )
    outcomes = workers.run_isolated(
        "fusion_advisor.validation.execution:execute",
        ExecutionRequest(cases=specs, host=host),
        timeout_s=NATIVE_TIMEOUT_S,
    )
    results: dict[str, tuple[torch.Tensor, ...]] = {}
    program = kernel.program
    for outcome in outcomes:
        if outcome.trespasses:
            raise FusionAdvisorError(f"{outcome.variant}: {'; '.join(outcome.trespasses)}")
        seen = regions[int(outcome.case)]
        made = tuple(
            arrays.output_tensor(
                program.spaces[output.region], output.dtype, seen[output.region].shape, data
            )
            for output, data in zip(program.outputs, outcome.outputs, strict=True)
        )
        known = results.setdefault(outcome.case, made)
        if not all(bool(same_bits(a, b).all()) for a, b in zip(known, made, strict=True)):
            raise FusionAdvisorError("the result depends on the grid that it is launched with")
    return [results[name] for name, _ in specs]


def judge(one: OneOp, actual: tuple[torch.Tensor, ...], tally: Tally) -> None:
    """Hold a kernel's results against what they may be."""
    tally.kernels += 1
    for result, allowed in zip(actual, one.allowed, strict=True):
        comparison: Comparison = compare(result, allowed)
        tally.elements += comparison.elements
        tally.mismatches += comparison.mismatches
        tally.discontinuous += comparison.ambiguous
        worst = max(tally.worst_ulp.get(one.op, 0.0), comparison.worst_ulp)
        tally.worst_ulp[one.op] = worst
        if comparison.mismatches:
            dtypes = ", ".join(str(tensor.dtype) for tensor in one.operands)
            tally.faults.append(f"{one.op}({dtypes}): {comparison.first}")
