"""Proof of a capture: the recorded program, run from the stored tensors alone, again.

Every op's outputs must have the recorded dtype, shape, strides and aliasing, every
number that went to Python must be the same, and everything that outlived the run must
be equal bit by bit.  Ops that reach nothing that was compared are listed as unproven.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from fusion_advisor.errors import CaptureError
from fusion_advisor.quantities import plural
from fusion_advisor.recorder.liveness import digest
from fusion_advisor.recorder.program import Program, Step, undisturbed
from fusion_advisor.recorder.tensor_store import TensorStore, copy_view
from fusion_advisor.records import OpGraph, OpNode, ReplayProof, TensorSpec
from fusion_advisor.workers import WorkerCrash, WorkerTimeout, run_isolated

DEFAULT_TIMEOUT_S = 300.0
# Results of atomics in another order: a few hundred roundings of the largest partial sum.
_RELATIVE_TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 5e-2, torch.float32: 1e-4}
MEMORY_MARGIN = 4  # a child needs the inputs, their working copies and the intermediates


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the recorded run left behind, to compare with."""

    digests: Mapping[str, str]
    numbers: Mapping[str, Any]
    random_states: Mapping[str, Tensor]
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def prove(
    graph: OpGraph,
    store: TensorStore,
    *,
    isolated: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> ReplayProof:
    """Replay ``graph`` from ``store`` and compare with the recorded run.

    With ``isolated`` the replay runs in a child process, which gets the tensors through
    a file; it falls back to this process where memory is short or an op is known
    only here, and the message says so.  Never raises for a graph that does not hold.
    """
    try:
        check_structure(graph)
    except CaptureError as error:
        return ReplayProof(status="failed", message=str(error))
    try:
        program = Program(graph, keep=graph.outputs)
        inputs = {value: store.get(value) for value in program.needed()}
    except CaptureError as error:
        return _not_run(graph, str(error))
    if any(tensor.is_meta for tensor in inputs.values()):
        return _not_run(graph, "The run used meta tensors, which hold no data.")
    evidence = Evidence(
        digests=dict(store.digests),
        numbers=dict(store.numbers),
        random_states=dict(store.random_states),
        expected=dict(store.expected),
        settings=dict(store.settings),
    )
    proof, why_here = None, ""
    if isolated:
        proof, why_here = _prove_in_child(graph, inputs, evidence, timeout_s)
    if proof is None:
        proof = compare(graph, _working_copies(graph, inputs), evidence)
        if why_here:
            proof = replace(proof, message=f"{proof.message} Ran in this process: {why_here}.")
    if proof.status == "passed" and store.program is not None and graph != store.program:
        return replace(
            proof,
            status="failed",
            message="This is not the program that was recorded: "
            f"{_difference(graph, store.program)}.",
        )
    return proof


def _not_run(graph: OpGraph, message: str) -> ReplayProof:
    return ReplayProof(
        status="not run", message=message, unproven_nodes=tuple(node.id for node in graph.nodes)
    )


def _difference(graph: OpGraph, recorded: OpGraph) -> str:
    for node, original in zip(graph.nodes, recorded.nodes, strict=False):
        if node != original:
            return f"{node.id} differs from {original.id} as recorded"
    if len(graph.nodes) != len(recorded.nodes):
        return f"it has {len(graph.nodes)} ops, the recording {len(recorded.nodes)}"
    return "its values, inputs or outputs differ"


def check_structure(graph: OpGraph) -> None:
    """Refuse a graph in which an op is missing, moved, or reads what is not there yet.

    Raises:
        CaptureError: with the op and the value.
    """
    specs = {spec.id: spec for spec in graph.values}
    made: set[str] = set(graph.inputs)
    for position, node in enumerate(graph.nodes):
        if node.index != position:
            raise CaptureError(
                f"{node.id} was recorded as op {node.index} but stands at place {position}: "
                "an op is missing or has been moved."
            )
        for value in (*node.inputs, *node.mutates):
            spec = specs.get(value)
            if spec is None:
                raise CaptureError(f"{node.id} reads {value}, which the graph does not describe.")
            if value not in made and not _is_alias(spec, specs, made):
                raise CaptureError(f"{node.id} reads {value}, which no op before it makes.")
        for value in node.outputs:
            if value in made or value not in specs:
                raise CaptureError(f"{node.id} makes {value}, which is there already or unknown.")
            made.add(value)
    for value in graph.outputs:
        if value not in made and not _is_alias(specs[value], specs, made):
            raise CaptureError(f"The output {value} is made by no op.")


def _is_alias(spec: TensorSpec, specs: Mapping[str, TensorSpec], made: set[str]) -> bool:
    while spec.alias_of is not None:
        spec = specs[spec.alias_of]
        if spec.id in made:
            return True
    return False


def _working_copies(graph: OpGraph, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs that the program may write without touching the stored ones."""
    specs = {spec.id: spec for spec in graph.values}
    written = {specs[value].storage for node in graph.nodes for value in node.mutates}
    copies: dict[int, Tensor] = {}
    with torch.no_grad():
        return {
            value: copy_view(tensor, copies, specs[value].storage)
            if specs[value].storage in written
            else tensor
            for value, tensor in inputs.items()
        }


# -- in a child process -----------------------------------------------------------------


def _prove_in_child(
    graph: OpGraph, inputs: Mapping[str, Tensor], evidence: Evidence, timeout_s: float
) -> tuple[ReplayProof | None, str]:
    """The proof from a child process, or None and the reason why there is none."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
    available = available_bytes()
    if available is not None and size * MEMORY_MARGIN > available:
        return None, "memory is too short for a second process"
    bare = replace(graph, nodes=tuple(replace(node, span=None, stack=()) for node in graph.nodes))
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-proof-") as folder:
        path = Path(folder) / "tensors.pt"
        try:
            torch.save({"inputs": dict(inputs), "evidence": _plain(evidence)}, path)
        except Exception as error:  # subclasses and opaque tensors that do not pickle
            return None, f"the inputs cannot be sent to another process ({error})"
        payload = {"graph": bare, "path": os.fspath(path)}
        try:
            proof = run_isolated(
                "fusion_advisor.recorder.proof:prove_here", payload, timeout_s=timeout_s
            )
        except WorkerTimeout:
            return _not_run(graph, f"The replay did not end within {timeout_s:.0f} s."), ""
        except WorkerCrash as error:
            return None, f"the child process failed ({error})"
        except CaptureError as error:
            return None, str(error).rstrip(".")
    if proof is None:
        return None, "an op of the program is registered in this process only"
    return replace(proof, isolated=True), ""


def prove_here(payload: Mapping[str, Any]) -> ReplayProof | None:
    """The child's side: load, replay, compare.  None where an op is unknown here."""
    loaded = torch.load(payload["path"], weights_only=False)
    evidence = Evidence(**loaded["evidence"])
    try:
        Program(payload["graph"])
    except CaptureError:
        return None
    return compare(payload["graph"], loaded["inputs"], evidence)


def _plain(evidence: Evidence) -> dict[str, Any]:
    return {name: dict(getattr(evidence, name)) for name in Evidence.__slots__}


def available_bytes() -> int | None:
    """Memory that a new process may use, where the system tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


# -- the comparison ---------------------------------------------------------------------


class _SpecChecker:
    """Checks each op's outputs against the records: metadata and who shares whose memory."""

    def __init__(self, program: Program, inputs: Mapping[str, Tensor]) -> None:
        self.specs = program.specs
        self.seen: dict[int, StorageWeakRef] = {}  # recorded storage -> the replay's
        self.owner: dict[int, int] = {}  # address of a replayed storage -> recorded storage
        # Bytes that tensors of a storage start later than recorded: an input's copy has no memory
        # before it, nor has what an op makes as its operand lies (copy of a tensor to itself).
        self.shift: dict[int, int] = {}
        for value, tensor in inputs.items():
            spec = self.specs[value]
            if tensor.layout is torch.strided and not tensor.is_nested:
                elements = int(tensor.storage_offset()) - spec.offset
                self.shift[spec.storage] = elements * tensor.element_size()
                self._bind(spec.storage, tensor)

    def check(self, node: OpNode, value: str, tensor: Tensor) -> str:
        """What is wrong with an output, or ""."""
        spec = self.specs[value]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != spec.dtype:
            return f"{node.id} made {value} as {dtype}, recorded as {spec.dtype}"
        if tensor.is_nested or tensor.layout is not torch.strided:
            return ""
        if tuple(tensor.shape) != spec.shape:
            return f"{node.id} made {value} of shape {tuple(tensor.shape)}, recorded {spec.shape}"
        if tensor.stride() != spec.strides:
            return f"{node.id} made {value} with strides {tensor.stride()}, recorded {spec.strides}"
        offset = (int(tensor.storage_offset()) - spec.offset) * tensor.element_size()
        if spec.storage not in self.seen:
            self.shift[spec.storage] = offset
        if offset != self.shift.get(spec.storage, 0):
            return f"{node.id} made {value} at another offset in its storage"
        if not self._bind(spec.storage, tensor):
            return f"{node.id} made {value} on other memory than recorded"
        return ""

    def _bind(self, storage: int, tensor: Tensor) -> bool:
        address = tensor.untyped_storage()._cdata
        if storage in self.seen:
            return self.owner.get(address) == storage
        if address in self.owner:
            return False
        self.seen[storage] = StorageWeakRef(tensor.untyped_storage())
        self.owner[address] = storage
        return True


def compare(graph: OpGraph, inputs: Mapping[str, Tensor], evidence: Evidence) -> ReplayProof:
    """Replay on ``inputs`` (which the program may write) and compare with the evidence."""
    program = Program(graph, keep=graph.outputs)
    checker = _SpecChecker(program, inputs)
    problems: list[str] = []
    proven_by_number: set[str] = set()

    def after(step: Step, returned: Any, environment: dict[str, Tensor]) -> None:
        node = step.node
        for value in node.outputs:
            problem = checker.check(node, value, environment[value])
            if problem:
                raise CaptureError(f"{problem}.")
        if node.id in evidence.numbers:
            if not _same_number(returned, evidence.numbers[node.id]):
                raise CaptureError(
                    f"{node.id} gave {returned!r}, recorded {evidence.numbers[node.id]!r}."
                )
            proven_by_number.add(node.id)

    tolerant = tuple(
        step.node.id for step in program.steps if step.schema.is_nondeterministic(step.node.device)
    )
    with undisturbed(evidence.settings):
        try:
            kept = program.run(inputs, random_states=evidence.random_states, after=after)
        except CaptureError as error:
            return ReplayProof(status="failed", message=str(error), tolerant_nodes=tolerant)
        outcome = _compare_outputs(program, graph, kept, evidence, tolerant)
    problems, compared = outcome
    if problems:
        return ReplayProof(
            status="failed",
            message=f"{len(problems)} of {len(graph.outputs)} results differ: {problems[0]}.",
            compared_values=len(compared),
            tolerant_nodes=tolerant,
        )
    unproven = _unproven(graph, program, compared, proven_by_number)
    message = (
        f"{plural(len(graph.nodes), 'op')} replayed from stored tensors; "
        f"{plural(len(compared), 'result')} equal "
        + ("bit by bit" if not tolerant else "bit by bit or, after non-deterministic ops, closely")
        + "."
    )
    if unproven:
        count = plural(len(unproven), "op")
        message += f" Unproven, because no result depends on them: {count}."
    return ReplayProof(
        status="passed",
        message=message,
        compared_values=len(compared),
        tolerant_nodes=tolerant,
        unproven_nodes=unproven,
    )


def _same_number(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)


def _compare_outputs(
    program: Program,
    graph: OpGraph,
    kept: Mapping[str, Tensor],
    evidence: Evidence,
    tolerant: Iterable[str],
) -> tuple[list[str], list[str]]:
    """What differs, in words, and the values that were compared and are equal."""
    problems: list[str] = []
    compared: list[str] = []
    loose = _downstream(graph, set(tolerant))
    blank = _blank_values(program)
    for value in graph.outputs:
        recorded = evidence.digests.get(value)
        if recorded is None:
            continue
        tensor = kept[program.resolve(value)]
        if digest(tensor) == recorded:
            compared.append(value)
        elif value in loose and value in evidence.expected:
            if _close(tensor, evidence.expected[value]):
                compared.append(value)
            else:
                problems.append(f"{value} is not even close")
        elif program.resolve(value) not in blank and value not in loose:
            problems.append(f"{value} has other bits")
    return problems, compared


def _close(left: Tensor, right: Tensor) -> bool:
    if not left.dtype.is_floating_point:
        return torch.equal(left, right)
    tolerance = _RELATIVE_TOLERANCE.get(left.dtype, 1e-9)
    finite = right[right.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    return torch.allclose(left, right, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _blank_values(program: Program) -> set[str]:
    """Values that are memory nobody has written; only a part of it may have been since."""
    return {
        value for step in program.steps if step.schema.uninitialised for value in step.node.outputs
    }


def _dependencies(graph: OpGraph) -> dict[str, list[int]]:
    """For each value, the positions of the ops that its contents come from."""
    made = {value: index for index, node in enumerate(graph.nodes) for value in node.outputs}
    specs = {spec.id: spec for spec in graph.values}
    writers: dict[int, list[tuple[int, int]]] = {}
    for index, node in enumerate(graph.nodes):
        if node.mutates:
            for value in node.outputs:
                spec = specs[value]
                writers.setdefault(spec.storage, []).append((spec.version, index))
    found: dict[str, list[int]] = {}
    for spec in graph.values:
        sources = [made[spec.id]] if spec.id in made else []
        if spec.id not in made and spec.alias_of is not None:
            sources += [
                at for version, at in writers.get(spec.storage, ()) if version <= spec.version
            ]
            sources += found.get(spec.alias_of, [])
        found[spec.id] = sources
    return found


def _downstream(graph: OpGraph, nodes: set[str]) -> set[str]:
    """Values that depend on any of ``nodes``."""
    if not nodes:
        return set()
    dependencies = _dependencies(graph)
    touched = [node.id in nodes for node in graph.nodes]
    for index, node in enumerate(graph.nodes):
        if not touched[index]:
            touched[index] = any(
                touched[source]
                for value in (*node.inputs, *node.mutates)
                for source in dependencies[value]
                if source < index
            )
    return {spec.id for spec in graph.values if any(touched[at] for at in dependencies[spec.id])}


def _unproven(
    graph: OpGraph, program: Program, compared: Iterable[str], by_number: set[str]
) -> tuple[str, ...]:
    """Ops whose results reach nothing that was compared.

    A view, and memory that nothing fills, are proven by what they look like.
    """
    blank = {step.node.id for step in program.steps if step.schema.uninitialised}
    dependencies = _dependencies(graph)
    proven = [False] * len(graph.nodes)
    pending = [at for value in compared for at in dependencies[value]]
    pending += [index for index, node in enumerate(graph.nodes) if node.id in by_number]
    while pending:
        index = pending.pop()
        if proven[index]:
            continue
        proven[index] = True
        node = graph.nodes[index]
        for value in (*node.inputs, *node.mutates):
            pending.extend(at for at in dependencies[value] if not proven[at])
    return tuple(
        node.id
        for index, node in enumerate(graph.nodes)
        if not proven[index] and node.kind not in ("view", "metadata") and node.id not in blank
    )
