"""A slow and simple checker of fusion candidates that shares no code with the analysis.

Every rule is applied by brute force: reachability by search over all pairs of ops that touch the
same storage, mutation by running the program on symbolic memory, once op by op in recorded order
and once with every group as one step that reads first, writes fresh memory, and leaves the
storages of its in-place members alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusion_advisor.records import FusionCandidate, OpGraph, OpNode, Region


def problems(graph: OpGraph, candidates: Sequence[FusionCandidate]) -> list[str]:
    """Everything that is wrong with the candidates; empty when all are legal together."""
    found: list[str] = []
    owner: set[str] = set()
    for candidate in candidates:
        found += _shape_problems(graph, candidate)
        found += _context_problems(graph, candidate)
        found += [f"{node} is in two candidates" for node in candidate.nodes if node in owner]
        owner.update(candidate.nodes)
    order = schedule(graph, candidates)
    if order is None:
        return [*found, "the groups cannot be ordered: some path leaves a group and comes back"]
    return found + _memory_problems(graph, candidates, order)


def lonely(graph: OpGraph, candidate: FusionCandidate) -> bool:
    """Whether some member is joined to the others by no producer-consumer edge."""
    members = [n for n in graph.nodes if n.id in candidate.computed]
    reached = {members[0].id}
    for _ in members:
        for a in members:
            for b in members:
                if set(a.outputs) & set(b.inputs) and (a.id in reached or b.id in reached):
                    reached |= {a.id, b.id}
    return len(reached) < len(members)


def _depends(earlier: OpNode, later: OpNode, storage: dict[str, int]) -> bool:
    """Whether two ops must keep their order: data, a storage that is written, a value in Python."""
    if set(earlier.outputs) & set(later.inputs):
        return True
    if earlier.kind == "host-sync" and later.kind not in ("view", "metadata"):
        return True
    touched = {storage[v] for v in (*earlier.inputs, *earlier.outputs)}
    written = {storage[v] for v in earlier.mutates}
    touched_later = {storage[v] for v in (*later.inputs, *later.outputs)}
    written_later = {storage[v] for v in later.mutates}
    return bool(written & touched_later or touched & written_later)


def schedule(graph: OpGraph, candidates: Sequence[FusionCandidate]) -> list[object] | None:
    """An order of steps, each an op or a group number, that keeps all dependences; or None.

    A group takes the views that it shares for itself: it does not wait for those that stay.
    """
    owner = {node: number for number, one in enumerate(candidates) for node in one.nodes}
    storage = {v.id: v.storage for v in graph.values}
    step_of: dict[str, object] = {n.id: owner.get(n.id, n.id) for n in graph.nodes}
    needs: dict[object, set[object]] = {step: set() for step in step_of.values()}
    for j, later in enumerate(graph.nodes):
        for earlier in graph.nodes[:j]:
            a, b = step_of[earlier.id], step_of[later.id]
            if isinstance(b, int) and earlier.id in candidates[b].shared:
                continue
            if a != b and _depends(earlier, later, storage):
                needs[b].add(a)
    order: list[object] = []
    while needs:
        ready = [step for step, before in needs.items() if not before]
        if not ready:
            return None
        # The last one that is ready: as far from the recorded order as is allowed.
        step = ready[-1]
        order.append(step)
        del needs[step]
        for before in needs.values():
            before.discard(step)
    return order


# Of other kinds, but one element of the result from one of each operand (or from none).
BY_ELEMENT = (
    "zeros_like", "ones_like", "full_like", "scalar_tensor", "native_dropout", "mse_loss",
    "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy_with_logits",
    "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward",
    "soft_margin_loss_backward", "rrelu_with_noise_backward", "log_sigmoid_forward",
)  # fmt: skip


def _shape_problems(graph: OpGraph, candidate: FusionCandidate) -> list[str]:
    nodes = {n.id: n for n in graph.nodes}
    found = []
    if len(candidate.nodes) < 2:
        found.append(f"{candidate.id} has one member")
    for node in candidate.nodes:
        kind, op = nodes[node].kind, nodes[node].op.split(".")[1].strip("_")
        if kind not in ("elementwise", "copy", "view", "metadata") and op not in BY_ELEMENT:
            found.append(f"{node} is a {nodes[node].kind}")
    inside = {v for node in candidate.nodes for v in nodes[node].outputs}
    for value in candidate.outputs:
        if value not in inside:
            found.append(f"output {value} is not made inside")
    looked_through = {v for node in candidate.shared for v in nodes[node].outputs}
    read = {v for node in candidate.computed for v in nodes[node].inputs}
    external = read - inside - looked_through
    if {operand.value for operand in candidate.inputs} != external:
        found.append(f"{candidate.id} lists other inputs than it reads")
    views = {n for n in candidate.nodes if nodes[n].kind in ("view", "metadata")}
    views -= {n for n in views if nodes[n].op in ("aten.alias.default",)}
    if views - set(candidate.views) or set(candidate.views) - set(candidate.nodes):
        found.append(f"{candidate.id} does not say which members are views")
    if any(nodes[n].kind not in ("view", "metadata") for n in candidate.shared):
        found.append(f"{candidate.id} shares what is no view")
    if set(candidate.shared) & set(candidate.nodes):
        found.append(f"{candidate.id} both shares a view and replaces it")
    if candidate.regions:
        found += _region_problems(graph, candidate)
    else:
        found += _plain_problems(graph, candidate)
    for node in candidate.nodes:
        for value in nodes[node].outputs:
            outside = [n for n in graph.nodes if value in n.inputs and n.id not in candidate.nodes]
            backward = [n for n in outside if n.phase == "backward" or only_kept(graph, n)]
            forward = nodes[node].phase == "forward"
            needed = value in graph.outputs or (len(outside) > len(backward) * forward)
            if needed and value not in candidate.outputs:
                found.append(f"{value} is needed outside, but is no output")
            listed = value in candidate.saved or value in candidate.outputs
            if not needed and backward and forward and not listed:
                found.append(f"{value} is saved for backward, but is not listed")
    return found


def _plain_problems(graph: OpGraph, candidate: FusionCandidate) -> list[str]:
    """One iteration space, operands broadcast over it, outputs of its shape."""
    values = {v.id: v for v in graph.values}
    found = []
    if candidate.views or candidate.shared:
        found.append(f"{candidate.id} has views but no regions")
    for value in candidate.outputs:
        if values[value].shape != candidate.shape:
            found.append(f"output {value} has another shape than the iteration space")
    for operand in candidate.inputs:
        shape = values[operand.value].shape
        if len(operand.dims) != len(candidate.shape):
            found.append(f"{operand.value}: one entry per iteration dimension is needed")
            continue
        for d, dim in enumerate(operand.dims):
            own = len(shape) - (len(candidate.shape) - d)
            if dim is not None and (dim != own or shape[dim] != candidate.shape[d]):
                found.append(f"{operand.value} is read at the wrong dimension {d}")
            if dim is None and own >= 0 and shape[own] != 1:
                found.append(f"{operand.value} is not broadcast at {d}")
    return found


def _region_problems(graph: OpGraph, candidate: FusionCandidate) -> list[str]:
    """Every output in one loop of its own shape, which reads what the ops read."""
    values = {v.id: v for v in graph.values}
    found = []
    written = [value for region in candidate.regions for value in region.outputs]
    if sorted(written) != sorted(candidate.outputs):
        found.append(f"{candidate.id} does not write every output in one loop")
    if candidate.shape != candidate.regions[0].shape:
        found.append(f"{candidate.id} has another shape than its first loop")
    for region in candidate.regions:
        for value in region.outputs:
            spec, first = values[value], values[region.outputs[0]]
            moving = [s for n, s in zip(spec.shape, spec.strides, strict=True) if n != 1]
            own = [s for n, s in zip(first.shape, first.strides, strict=True) if n != 1]
            if spec.shape != region.shape or moving != own:
                found.append(f"output {value} is not laid out as its loop is")
    for operand in candidate.inputs:
        read = _elements_read(graph, candidate, operand.value)
        for region in candidate.regions:
            claimed = _elements_claimed(values[operand.value].shape, region, operand.value)
            needed = read[region.outputs[0]]
            for value in region.outputs[1:]:
                needed = _UNION(needed, read[value])
            if isinstance(claimed, str):
                found.append(claimed)
            elif (np.asarray(needed, dtype=object).reshape(region.shape) != claimed).any():
                found.append(f"{operand.value} is not read where its map says, {region.outputs}")
    return found


def _sets(shape: tuple[int, ...]) -> np.ndarray:
    """An array whose elements are frozensets of their own number."""
    array = np.empty(int(np.prod(shape)), dtype=object)
    for number in range(array.size):
        array[number] = frozenset([number])
    return array.reshape(shape)


_UNION = np.frompyfunc(frozenset.union, 2, 1)


def _elements_read(
    graph: OpGraph, candidate: FusionCandidate, operand: str
) -> dict[str, np.ndarray]:
    """For each value, which elements of an operand every one of its elements depends on."""
    values = {v.id: v for v in graph.values}
    views = {*candidate.views, *candidate.shared}
    seen = {operand: _sets(values[operand].shape)}
    nothing = np.empty((), dtype=object)
    nothing[()] = frozenset()
    for node in (n for n in graph.nodes if n.id in candidate.computed):
        for output in node.outputs:
            shape = values[output].shape
            sources = [seen.get(v, np.broadcast_to(nothing, values[v].shape)) for v in node.inputs]
            if node.id in views:
                viewed = _numpy_view(node, sources[0], shape)
                if not isinstance(viewed, np.ndarray):  # numpy takes one element out of its array
                    single = np.empty((), dtype=object)
                    single[()] = viewed
                    viewed = single
                seen[output] = viewed
                continue
            if node.op == "aten.glu.default":
                dim = node.args[1] if len(node.args) > 1 else -1
                sources = np.split(sources[0], 2, axis=dim)
            total = np.broadcast_to(nothing, shape)
            for source in sources:
                total = _UNION(total, np.broadcast_to(source, shape))
            seen[output] = np.asarray(total, dtype=object).reshape(shape)
    return seen


def _elements_claimed(shape: tuple[int, ...], region: Region, operand: str) -> np.ndarray | str:
    nothing = np.empty((), dtype=object)
    nothing[()] = frozenset()
    total = np.broadcast_to(nothing, region.shape)
    for access in region.accesses:
        if access.value != operand:
            continue
        array = _sets(shape)
        for kind, at, numbers in access.steps:
            before = (slice(None),) * at
            if kind == "slice":
                array = array[(*before, slice(*numbers))]
            elif kind == "part":
                array = np.split(array, numbers[1], axis=at)[numbers[0]]
            elif kind == "select":
                array = array[(*before, numbers[0])]
            elif kind == "single":
                array = array.squeeze(at)
            elif kind == "unsqueeze":
                array = np.expand_dims(array, at)
            elif kind == "permute":
                array = array.transpose(numbers)
            else:
                array = array.reshape((*array.shape[:at], -1, *numbers, *array.shape[at + 1 :]))
        lead = len(region.shape) - array.ndim
        own = [None if d < lead or array.shape[d - lead] != n else d - lead
               for d, n in enumerate(region.shape)]  # fmt: skip
        if list(access.dims) != own:
            return f"{operand} is broadcast otherwise than its access says"
        total = _UNION(total, np.broadcast_to(array, region.shape))
    return np.asarray(total, dtype=object).reshape(region.shape)


def _numpy_view(node: OpNode, array: np.ndarray, target: tuple[int, ...]) -> np.ndarray:
    if node.op == "aten.permute.default":
        return array.transpose(node.args[1])
    if node.op == "aten.transpose.int":
        return array.swapaxes(node.args[1], node.args[2])
    if node.op == "aten.t.default":
        return array.T
    if node.op == "aten.select.int":
        return array.take(node.args[2], axis=node.args[1])
    if node.op == "aten.slice.Tensor":
        dim, start, end, step = (*node.args[1:], *(0, None, None, 1)[len(node.args) - 1 :])
        return array[(*(slice(None),) * (dim % array.ndim), slice(start, end, step))]
    if node.op == "aten.expand.default":
        return np.broadcast_to(array, target)
    return array.reshape(target)


def only_kept(graph: OpGraph, node: OpNode) -> bool:
    """Whether an op renames a value for autograd alone, whatever way its results take."""
    if node.kind not in ("view", "metadata") or node.phase != "forward" or node.mutates:
        return False
    flags = {v.id: v.flags for v in graph.values}
    for value in node.outputs:
        readers = [n for n in graph.nodes if value in n.inputs]
        if value in graph.outputs or not (readers or "saved" in flags[value]):
            return False
        if any(n.phase != "backward" and not only_kept(graph, n) for n in readers):
            return False
    return bool(node.outputs)


def _context_problems(graph: OpGraph, candidate: FusionCandidate) -> list[str]:
    nodes = [n for n in graph.nodes if n.id in candidate.nodes]
    fields = ("device", "stream", "thread", "phase", "autocast", "grad_enabled")
    return [
        f"{candidate.id} mixes {name}"
        for name in fields
        if len({getattr(node, name) for node in nodes}) > 1
    ]


def _memory_problems(
    graph: OpGraph, candidates: Sequence[FusionCandidate], order: Sequence[object]
) -> list[str]:
    """Run symbolically both ways and compare what every op outside the groups reads.

    A storage holds one symbol (its whole content); an op's result is the tuple of its name and
    what it read.  In the fused run an in-place member does not write: its result lives in a
    storage of its own, and so do views that are taken of it.
    """
    nodes = {n.id: n for n in graph.nodes}
    values = {v.id: v for v in graph.values}
    symbols: dict[object, int] = {}  # equal contents get equal numbers, in both runs
    eager_read, eager_end = _run(graph, [[n] for n in graph.nodes], set(), symbols)
    steps = [
        sorted((nodes[n] for n in candidates[step].computed), key=lambda n: n.index)
        if isinstance(step, int)
        else [nodes[step]]
        for step in order
    ]
    members = {n for candidate in candidates for n in candidate.nodes}
    fused_read, fused_end = _run(graph, steps, members, symbols)
    found = [
        f"{node} reads something else when fused"
        for node, seen in eager_read.items()
        if fused_read[node] != seen
    ]
    found += [
        f"{value} ({values[value].shape}) ends as something else when fused"
        for value in graph.outputs
        if eager_end[value] != fused_end[value]
    ]
    return found


def _run(
    graph: OpGraph,
    steps: Sequence[Sequence[OpNode]],
    fused: set[str],
    symbols: dict[object, int],
) -> tuple[dict[str, object], dict[str, object]]:
    values = {v.id: v for v in graph.values}
    place: dict[str, object] = {}  # value -> storage it lives in, in this run
    memory: dict[object, object] = {}
    read: dict[str, object] = {}

    def storage(value: str) -> object:
        if value not in place:
            # Not made by an op of this run: the place where its storage was first seen.
            alias = values[value].alias_of
            place[value] = storage(alias) if alias else ("given", values[value].storage)
            memory.setdefault(place[value], ("content", values[value].storage))
        return place[value]

    def load(value: str, registers: dict[str, object]) -> object:
        return registers[value] if value in registers else memory[storage(value)]

    for step in steps:
        registers: dict[str, object] = {}
        aside: set[str] = set()
        group = any(node.id in fused for node in step)
        for node in step:
            seen = tuple(load(v, registers if group else {}) for v in node.inputs)
            if group and node.id not in fused:  # a shared view, which stays where it is as well
                registers.update((value, seen[0]) for value in node.outputs)
                aside.update(node.outputs)
                continue
            read[node.id] = seen
            meaning = (node.op.replace("_.", "."), str(node.args[1:]), seen)
            for number, value in enumerate(node.outputs):
                result = symbols.setdefault((meaning, number), len(symbols))
                if group and node.kind in ("view", "metadata"):
                    registers[value] = seen[0]  # a view shows what is in the memory it views
                elif group:
                    registers[value] = result
                elif written := [
                    v for v in node.mutates if values[v].storage == values[value].storage
                ]:
                    place[value] = storage(written[0])
                    memory[place[value]] = result
                elif values[value].storage in {values[v].storage for v in node.inputs}:
                    source = next(
                        v for v in node.inputs if values[v].storage == values[value].storage
                    )
                    place[value] = storage(source)
                else:
                    place[value] = ("made", value)
                    memory[place[value]] = result
        if group:
            for value, result in registers.items():
                if value in aside:
                    continue
                place[value] = ("fused", value)
                memory[place[value]] = result
    # What a name shows at the end is the content of the storage it lives in by then.
    return read, {value: memory[storage(value)] for value in graph.outputs}
