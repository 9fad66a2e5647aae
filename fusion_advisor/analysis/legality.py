"""Which ops may be members of a fused group at all, and the codes of what forbids fusing.

A check here looks at one op (and, for an in-place op, at everybody who sees its storage).
What depends on the group, convexity above all, is decided where groups grow (``chains``).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

from fusion_advisor.analysis.graph_index import Context, GraphIndex, broadcasts_to, same_layout
from fusion_advisor.ops import OpInfo, lookup, out_keyword, why_unwritable
from fusion_advisor.ops.dtypes import SUPPORTED_DTYPES
from fusion_advisor.records import Argument, OpNode, Symbol, TensorSpec, ValueRef

Refusal = tuple[str, str]  # blocker code, message

BLOCKER_CODES: Mapping[str, str] = MappingProxyType(
    {
        "not-elementwise": "one output element needs many input elements",
        "view": "a view changes the indexing in a way that does not fold into the kernel's own",
        "copy": "moves elements to other places",
        "random": "draws random numbers; fused, the generator would advance differently",
        "host-sync": "brings a value to Python, where control may depend on it",
        "factory": "makes a tensor from nothing",
        "optimizer": "an optimizer kernel of its own",
        "unsupported-op": "no scalar recipe is known for the op",
        "dtype": "a dtype that no kernel is generated for",
        "tensor-kind": "sparse, nested, quantized or subclass tensors, or lazy conj/neg bits",
        "argument": "an argument that cannot be written into a kernel",
        "shape": "shapes do not broadcast into one iteration space",
        "output-shape": "a result is needed at a smaller shape than the kernel iterates over",
        "layout": "a result's memory layout differs from that of the group's other results",
        "offsets": "more elements than one launch has threads",
        "mutated-input": "writes a tensor that others see, in place",
        "aliasing": "reads its written storage through another view",
        "mutated-between": "a storage is written between the two ops",
        "non-convex": "a path leaves the group and comes back",
        "device": "different devices",
        "stream": "different streams",
        "thread": "run by different threads",
        "phase": "forward, backward and optimizer are not mixed",
        "autocast": "autocast changes between the two ops",
        "grad-mode": "gradient recording is switched between the two ops",
        "frame": "called from different Python frames",
        "placement": "no place in the recorded order has all inputs and precedes all users",
        "registers": "one kernel would hold more values or operands than a thread can",
    }
)

MAX_ELEMENTS = (2**31 - 1) * 256  # a CUDA grid has at most 2^31 - 1 blocks, here of 256 threads

# What the parts of an op's context are about, in their order.
_CONTEXT_CODES = ("device", "stream", "thread", "phase", "autocast", "grad-mode")

_MANY_TO_ONE = {
    "reduction": "a reduction needs the whole of its input before its first result",
    "matmul": "a matrix product reads whole rows and columns for every element",
    "convolution": "a convolution reads a neighbourhood for every element",
    "attention": "attention reads whole rows for every element",
    "normalization": "a normalization needs statistics of whole rows",
    "indexing": "indexing reads elements at places that data decides",
}
_KIND_REFUSALS: dict[str, Refusal] = {
    **{kind: ("not-elementwise", text) for kind, text in _MANY_TO_ONE.items()},
    "view": ("view", "it changes the indexing, and does not fold into that of a kernel here"),
    "metadata": ("view", "it handles metadata only and computes nothing"),
    "copy": ("copy", "it moves elements to other places"),
    "random": ("random", "it draws random numbers; a fused kernel would draw others"),
    "host-sync": ("host-sync", "it brings a value to Python, and control may depend on it"),
    "factory": ("factory", "it makes a tensor from nothing; pass it in as an operand"),
    "optimizer": ("optimizer", "an optimizer step is one kernel of its own (foreach, fused)"),
    "other": ("unsupported-op", "it is not known to be elementwise"),
}
# Kinds of which some ops are elementwise for some arguments: a loss that reduces nothing, a dropout
# out of training, a constant like another tensor.
_ELEMENTWISE_AT_TIMES = frozenset({"reduction", "random", "factory"})
_PLAIN_FLAGS = frozenset({"wrapped-number", "parameter", "saved"})
_DTYPES = frozenset(SUPPORTED_DTYPES)


def context(node: OpNode) -> Context:
    """What must be equal for two ops to share a kernel."""
    return (
        node.device,
        node.stream,
        node.thread,
        node.phase,
        node.autocast,
        node.grad_enabled,
    )


def context_refusal(first: Context, second: Context) -> Refusal:
    """Which part of two differing contexts differs, as a blocker."""
    for code, a, b in zip(_CONTEXT_CODES, first, second, strict=True):
        if a != b:
            return code, f"{BLOCKER_CODES[code]} ({a} and {b})"
    raise ValueError("the contexts are equal")


def mark_members(index: GraphIndex) -> None:
    """Fill ``index.infos`` (the recipe of each possible member) and ``index.refusals``."""
    calls = _Calls(index)
    late = _LateReaders(index)
    backward = [i for i, node in enumerate(index.nodes) if node.phase == "backward"]
    infos, refusals, joinable = index.infos, index.refusals, index.joinable
    written = bool(index.written_storages)
    for i, node in enumerate(index.nodes):
        info, refusal = calls.look(i, node)
        if refusal is None:
            if node.kind in ("view", "metadata"):
                refusal = _identity_view_refusal(index, node)
            elif len(node.outputs) > 1:
                refusal = _results_refusal(index, i, node)
            if refusal is None and node.mutates:
                refusal = late.refusal(i, node)
            if refusal is None and written and node.grad_enabled:
                refusal = _lost_for_backward(index, i, node, backward)
        if refusal is None:
            infos[i] = info
            if info is not None and info.halves:  # what makes its operand ends another group
                index.halving.add(i)
            else:
                joinable[i] = _member_producers(index, i)
        else:
            refusals[i] = refusal


def _member_producers(index: GraphIndex, position: int) -> tuple[int, ...]:
    """Members (earlier ones are marked by now) that make the node's inputs, latest first."""
    infos = index.infos
    found = [made for made in index.sources[position] if made >= 0 and infos[made] is not None]
    return tuple(sorted(set(found), reverse=True) if len(found) > 1 else found)


def _kind_refusal(node: OpNode, info: OpInfo | None) -> Refusal:
    reason = info.reason if info is not None else ""
    if node.kind == "elementwise" or reason:
        reason = reason or "no scalar recipe is known for it"
        return "unsupported-op", f"{node.op} is elementwise, but {reason}; it stays eager"
    code, text = _KIND_REFUSALS[node.kind]
    return code, f"{node.op} stands between: {text}"


class _Calls:
    """What can be said of a call by its form and arguments, said once for all calls alike."""

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._by_form: dict[int, tuple[OpInfo | None, Refusal | None]] = {}
        self._by_arguments: dict[tuple[int, Hashable], Refusal | None] = {}

    def look(self, position: int, node: OpNode) -> tuple[OpInfo | None, Refusal | None]:
        """The op's recipe and why this call cannot be a member, as far as the form decides it."""
        call = self._index.calls[position]
        known = self._by_form.get(call)
        if known is None:
            info = lookup(node.op)
            if info is None or info.recipe is None:
                known = info, _kind_refusal(node, info)
            else:
                refused = _form_refusal(self._index, node, halves=info.halves)
                if refused is not None and node.kind in _ELEMENTWISE_AT_TIMES:
                    refused = _kind_refusal(node, info)
                known = info, refused
            self._by_form[call] = known
        info, refusal = known
        if refusal is not None or info is None:
            return known
        key = (call, _plain_arguments(node))
        if key not in self._by_arguments:
            self._by_arguments[key] = _argument_refusal(self._index, node, info)
        return info, self._by_arguments[key]


def _form_refusal(index: GraphIndex, node: OpNode, *, halves: bool) -> Refusal | None:
    """Why no call of a known elementwise op on such tensors can be a member, or None."""
    if not node.outputs:
        return "unsupported-op", f"{node.op} gives no tensor"
    values = index.values
    output = values[node.outputs[0]]
    for value in (*node.inputs, *node.outputs):
        refusal = _value_refusal(values[value])
        if refusal is not None:
            code, text = refusal
            return code, f"{node.op}: {text}"
    if out_keyword(node.op) and any(values[v].shape != output.shape for v in node.mutates):
        return (
            "mutated-input",
            f"{node.op} resizes the tensor given as out=; give one of the result's shape",
        )
    for value in node.inputs:
        operand = values[value]
        if not halves and not broadcasts_to(operand.shape, output.shape):
            return "shape", f"{node.op}: {operand.shape} does not broadcast into {output.shape}"
        if operand.device != output.device:
            return "device", f"{node.op} reads a tensor on {operand.device} from {output.device}"
    elements = math.prod(output.shape)
    if elements > MAX_ELEMENTS:
        return "offsets", f"{node.op} has {elements} elements, more than one launch has threads"
    return None


def _results_refusal(index: GraphIndex, position: int, node: OpNode) -> Refusal | None:
    """Why a kernel cannot give all results of an op that are needed, or None.

    One loop writes results of one shape.  What only backward reads is kept by eager and made again
    by a fused function; it may have any shape (some kernels keep nothing there on a GPU).
    """
    shape = index.values[node.outputs[0]].shape
    for value in node.outputs[1:]:
        other = index.values[value].shape
        if other == shape:
            continue
        later = node.phase == "forward" and all(
            user in index.keeping or index.nodes[user].phase == "backward"
            for user in index.users_of(value)
        )
        if index.kept(value) or (index.users_of(value) and not later):
            return (
                "output-shape",
                f"{node.op} ({node.id}) gives results of shapes {shape} and {other}, both needed",
            )
    return None


def _value_refusal(spec: TensorSpec) -> Refusal | None:
    if spec.dtype not in _DTYPES:
        return "dtype", f"no kernels are generated for {spec.dtype}"
    odd = [flag for flag in spec.flags if flag not in _PLAIN_FLAGS]
    return ("tensor-kind", f"no kernels are generated for {odd[0]} tensors") if odd else None


def _plain_arguments(node: OpNode) -> Hashable:
    """What the arguments add to a call's form: the numbers, and where each operand stands."""
    args = node.args
    if not node.kwargs and len(args) == len(node.inputs):
        for argument in args:
            if type(argument) is not ValueRef:
                break
        else:
            return None  # each operand once, in order

    def plain(argument: Argument) -> Hashable:
        if isinstance(argument, ValueRef):
            value = argument.value
            return node.inputs.index(value) if value in node.inputs else value
        if isinstance(argument, tuple):
            return tuple(plain(item) for item in argument)
        # -0.0 is not 0.0, nor True 1; a whole number may be too long to be written out
        return (type(argument), repr(argument) if type(argument) is float else argument)

    named = tuple([(name, plain(argument)) for name, argument in node.kwargs])
    return (tuple([plain(argument) for argument in args]), named)


def _argument_refusal(index: GraphIndex, node: OpNode, info: OpInfo) -> Refusal | None:
    """Why a kernel cannot hold these arguments, or lowering itself would refuse them."""
    for argument in (*node.args, *(argument for _, argument in node.kwargs)):
        if type(argument) is Symbol and argument.kind in ("opaque", "complex"):
            return "argument", f"{node.op}: the argument {argument.name} cannot go into a kernel"
    if node.kind in ("view", "metadata"):
        return None
    refused = why_unwritable(node, info, index.values)
    if not refused:
        return None
    code = _KIND_REFUSALS[node.kind][0] if node.kind in _ELEMENTWISE_AT_TIMES else "unsupported-op"
    return code, refused


def _lost_for_backward(
    index: GraphIndex, position: int, node: OpNode, backward: Sequence[int]
) -> Refusal | None:
    """Whether an op reads what is written before its gradient would be worked out.

    Eager keeps only what each gradient needs; a fused function keeps what it read, and autograd
    would find that changed.
    """
    if not any(index.values[value].requires_grad for value in node.outputs):
        return None
    later = bisect_right(backward, position)
    until = backward[later] if later < len(backward) else len(index.nodes)
    for value in node.inputs:
        writers = index.writers.get(index.values[value].storage, ())
        first = bisect_right(writers, position)
        if first < len(writers) and writers[first] < until:
            return (
                "mutated-input",
                f"{node.op} reads what is written in place before backward needs it again",
            )
    return None


def _identity_view_refusal(index: GraphIndex, node: OpNode) -> Refusal | None:
    """A view may be a member when it is its input again and nobody writes that storage."""
    output = index.values[node.outputs[0]]
    source = index.values[node.inputs[0]] if node.inputs else None
    same = (
        source is not None
        and source.shape == output.shape
        and source.offset == output.offset
        and source.dtype == output.dtype
        and same_layout(source, output)
    )
    if not same or output.storage in index.written_storages:
        return _kind_refusal(node, None)
    return None


@dataclass(frozen=True, slots=True)
class _StorageSight:
    """Until when the versions of one written storage are looked at.

    ``versions`` ascends; ``stale_until[k]`` is the last sight of any value up to ``versions[k]``
    and ``orphan_until[k]`` that of any value from there on which no op made: another view of the
    storage, seen after somebody wrote it.
    """

    external: bool
    versions: list[int]
    stale_until: list[float]
    orphan_until: list[float]

    def seen_otherwise(self, version: int) -> float:
        """Last sight of the storage, after ``version`` was overwritten, past the op's output."""
        k = bisect_right(self.versions, version)
        stale = self.stale_until[k - 1] if k else -1.0
        orphan = self.orphan_until[k] if k < len(self.versions) else -1.0
        return max(stale, orphan)


class _LateReaders:
    """Finds who else sees a storage after an in-place op wrote it.

    An in-place op may be made functional only when the new value is seen through the op's own
    output alone: the storage was made in this run, and no older value and no other view of it is
    read, or still alive, afterwards.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._sights: dict[int, _StorageSight] = {}

    def refusal(self, position: int, node: OpNode) -> Refusal | None:
        """Why the in-place op cannot be made functional, or None."""
        index = self._index
        written = index.values[node.mutates[0]]
        if len(node.mutates) > 1:
            return "mutated-input", f"{node.op} writes {len(node.mutates)} tensors in place"
        sight = self._sights.get(written.storage)
        if sight is None:
            sight = self._sights[written.storage] = self._look(written.storage)
        if sight.external:
            return (
                "mutated-input",
                f"{node.op} writes a tensor that lives outside the run; "
                "a fused kernel would leave it unwritten",
            )
        if self._may_be_its_input(written.storage):
            return (
                "mutated-input",
                f"{node.op} writes a copy that is made only for some dtypes or strides; "
                "for others it would write the original",
            )
        for value in node.inputs:
            operand = index.values[value]
            if operand.storage == written.storage and (
                operand.offset != written.offset or operand.strides != written.strides
            ):
                return "aliasing", f"{node.op} reads its written storage through another view"
        if sight.seen_otherwise(written.version) > position:
            return (
                "mutated-input",
                f"{node.op} writes in place what is read again through another name or view; "
                + (
                    "call it without out="
                    if out_keyword(node.op)
                    else "use the form without the trailing underscore"
                ),
            )
        return None

    def _may_be_its_input(self, storage: int) -> bool:
        """Whether a storage came from ``x.contiguous()``, ``x.to(…)`` and the like."""
        index = self._index
        makers = [
            index.nodes[made]
            for value in index.written_storages[storage]
            if (made := index.maker_of(value)) >= 0
        ]
        maker = min(makers, key=lambda node: node.index, default=None)
        if maker is None or maker.op == "aten._to_copy.default":
            return maker is not None
        return maker.op == "aten.clone.default" and any(
            name == "memory_format" and argument is not None for name, argument in maker.kwargs
        )

    def _look(self, storage: int) -> _StorageSight:
        index = self._index
        names = sorted(index.written_storages[storage], key=lambda v: index.values[v].version)
        sights = [
            math.inf if index.kept(v) else float(max(index.users_of(v), default=-1)) for v in names
        ]
        orphans = [
            -1.0 if index.maker_of(v) >= 0 else sight
            for v, sight in zip(names, sights, strict=True)
        ]
        return _StorageSight(
            external=any(v in index.given or "parameter" in index.values[v].flags for v in names),
            versions=[index.values[v].version for v in names],
            stale_until=list(accumulate(sights, max)),
            orphan_until=list(accumulate(reversed(orphans), max))[::-1],
        )
