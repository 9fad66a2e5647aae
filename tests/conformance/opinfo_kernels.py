"""From a sample call to kernels: recorded as a person's code would be, each with what it may give.

Every op of the call that computes becomes a kernel of its own, and every group that analysis makes
of several ops one more.  ``Check`` holds such a kernel with the recorded operands, laid out in
memory as they were, and with eager's results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from opinfo import SampleCall

from fusion_advisor.analysis.chains import find_candidates, index_graph
from fusion_advisor.analysis.graph_index import GraphIndex, is_dense
from fusion_advisor.analysis.partition import Partition, make_candidate
from fusion_advisor.codegen import generate, lower
from fusion_advisor.errors import CaptureError, FusionAdvisorError
from fusion_advisor.recorder import CaptureOptions, Recording, record, replay
from fusion_advisor.records import FusionCandidate, KernelSource, TensorSpec
from fusion_advisor.validation import budget
from fusion_advisor.validation.budgets import OutputBudget

# They compute nothing: an index map, a question about a tensor, or an operand made beforehand.
_ASIDE = ("view", "metadata", "factory")
# Of these forms, the ops that write the tensor are what is looked at; the rest prepares it.
_WRITING_FORMS = ("in place", "out=")
_POISON = 0xA5  # between the elements of a strided operand, where no kernel must look
_MOST_OFFSET = 64  # elements that an operand's memory may start with, unused


class Refused(Exception):
    """Why a call is not run in kernels."""


@dataclass(frozen=True)
class Check:
    """A kernel, its operands, and what eager gives and allows for them.

    ``what`` names the op, or the ops of a group.  ``layouts`` are shape and strides of the results
    as the recorded call made them.
    """

    what: str
    form: str
    kernel: KernelSource
    recording: Recording
    candidate: FusionCandidate
    operands: tuple[torch.Tensor, ...]
    allowed: tuple[OutputBudget, ...]
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    @property
    def empty(self) -> bool:
        """Whether there is no element to compute."""
        return not any(allowed.eager.numel() for allowed in self.allowed)

    @property
    def label(self) -> str:
        """What a fault is reported by."""
        dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in self.operands)
        return f"{self.form}: {self.what}({dtypes})"


def checks_of(call: SampleCall) -> list[Check]:
    """The kernels of one call; none where it computes nothing.

    Raises ``Refused`` with the reason where an op of it cannot become a kernel.
    """
    try:
        recording = record(call.run, CaptureOptions(with_source=False))
    except CaptureError as error:
        if "dispatched no torch op" in str(error):
            return []  # x.float() of a float32 tensor is x
        raise
    index = index_graph(recording.graph)
    found = []
    for position, node in enumerate(index.nodes):
        if node.kind in _ASIDE or (call.form in _WRITING_FORMS and not node.mutates):
            continue
        refusal = index.refusals[position]
        if refusal is not None:
            raise Refused(f"{refusal[0]}: {refusal[1]}")
        found.append(_check(recording, _single(index, position), node.op, call.form))
    if len(found) > 1:
        ops = {node.id: node.op for node in index.nodes}
        for candidate in find_candidates(recording.graph):
            names = " + ".join(dict.fromkeys(ops[node] for node in candidate.nodes))
            found.append(_check(recording, candidate, names, call.form))
    return found


def _single(index: GraphIndex, position: int) -> FusionCandidate:
    """One op as a candidate of its own."""
    node = index.nodes[position]
    partition = Partition(index)
    piece = partition.look([position])
    partition.read_halves(piece)
    if not all(is_dense(index.values[value]) for value in piece.outputs):
        raise Refused(f"layout: {node.op}: its result does not fill one stretch of memory")
    return make_candidate(index, piece, node.id, ())


def _check(recording: Recording, candidate: FusionCandidate, what: str, form: str) -> Check:
    graph = recording.graph
    specs = {spec.id: spec for spec in graph.values}
    names = [operand.value for operand in candidate.inputs]
    values = replay.materialize(graph, recording.store, set(names))
    values = {name: laid_out(tensor, specs[name]) for name, tensor in values.items()}
    try:
        kernel = generate(lower(graph, candidate, name="fused"), graph)
    except FusionAdvisorError as error:
        raise Refused(f"codegen: {error}") from error
    return Check(
        what=what,
        form=form,
        kernel=kernel,
        recording=recording,
        candidate=candidate,
        operands=tuple(values[name] for name in names),
        allowed=budget(graph, candidate, values),
        layouts=tuple((specs[value].shape, specs[value].strides) for value in candidate.outputs),
    )


def laid_out(tensor: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The same values with the recorded strides, and poison between them."""
    if 0 in spec.shape:
        return torch.empty_strided(spec.shape, spec.strides, dtype=tensor.dtype)
    offset = spec.offset if spec.offset < _MOST_OFFSET else 0
    reached = sum(
        (size - 1) * stride for size, stride in zip(spec.shape, spec.strides, strict=True)
    )
    count = offset + reached + 1
    memory = torch.full((count * tensor.element_size(),), _POISON, dtype=torch.uint8)
    if tensor.dtype == torch.bool:
        memory.zero_()  # other bytes are no bool
    view = memory.view(tensor.dtype).as_strided(spec.shape, spec.strides, offset)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in spec.strides)
    view[once].copy_(tensor[once])
    return view


def same_layout(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements lie in memory as asked; strides of one element or none say nothing."""
    if tuple(tensor.shape) != shape:
        return False
    if math.prod(shape) <= 1:
        return True
    return all(
        size == 1 or own == wanted
        for size, own, wanted in zip(shape, tensor.stride(), strides, strict=True)
    )
