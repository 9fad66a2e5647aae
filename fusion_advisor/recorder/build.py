"""From the recorder's bookkeeping to the frozen records."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from fusion_advisor.recorder import source
from fusion_advisor.recorder.recording import Recording
from fusion_advisor.recorder.values import storage_id
from fusion_advisor.records import OpGraph, OpNode, SourceSpan

if TYPE_CHECKING:
    from fusion_advisor.recorder.dispatch import RawOp, Recorder
    from fusion_advisor.recorder.frames import FrameMark

_MAX_DEPTH = 60  # frames of the outer stack that are kept


class _Spans:
    """Source spans by place; the ops of a loop share theirs."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        # By id, as hashing a code object is slow; the recorded ops keep the objects.
        self._spans: dict[tuple[int, int], SourceSpan | None] = {}
        self._stacks: dict[tuple[int, int, int], tuple[SourceSpan, ...]] = {}
        self._outer: dict[int, tuple[SourceSpan, ...]] = {}

    def span(self, code: CodeType | None, offset: int) -> SourceSpan | None:
        if code is None or not self._enabled:
            return None
        place = (id(code), offset)
        if place not in self._spans:
            self._spans[place] = source.span_of(code, offset)
        return self._spans[place]

    def stack(self, raw: RawOp) -> tuple[SourceSpan, ...]:
        """The spans from the innermost frame outwards."""
        if raw.code is None or raw.mark is None or not self._enabled:
            return ()
        key = (id(raw.code), raw.offset, raw.mark.number)
        found = self._stacks.get(key)
        if found is None:
            span = self.span(raw.code, raw.offset)
            outer = self._outer_stack(raw.mark)
            found = self._stacks[key] = outer if span is None else (span, *outer)
        return found

    def _outer_stack(self, mark: FrameMark) -> tuple[SourceSpan, ...]:
        pending: list[FrameMark] = []
        stack: tuple[SourceSpan, ...] = ()
        current: FrameMark | None = mark
        while current is not None:
            known = self._outer.get(current.number)
            if known is not None:
                stack = known
                break
            pending.append(current)
            current = None if current.caller is None else current.caller[2]
        for frame in reversed(pending):
            if frame.caller is not None:
                span = self.span(frame.caller[0], frame.caller[1])
                stack = stack if span is None else (span, *stack)[:_MAX_DEPTH]
            self._outer[frame.number] = stack
        return stack


def _mark_set_aside(ops: Sequence[RawOp]) -> None:
    """Say of what autograd detaches for itself that it is saved, though backward has freed it.

    An op that saves its own result detaches it from within: by the same instruction of the same
    call, right after it.  A person's own ``detach()`` is another instruction.
    """
    maker: RawOp | None = None
    for op in ops:
        if op.schema.name != "aten.detach.default":
            maker = op
        elif (
            maker is not None
            and op.code is not None
            and (op.code, op.offset, op.mark) == (maker.code, maker.offset, maker.mark)
            and any(value in maker.outputs for value in op.inputs)
        ):
            for value in op.outputs:
                value.saved = True


def build_recording(recorder: Recorder) -> Recording:
    """Build the graph and what accompanies it."""
    names: dict[Any, str] = {}
    codes: dict[str, CodeType] = {}
    _mark_set_aside(recorder.ops)
    nodes = _build_nodes(recorder.ops, _Spans(recorder.options.with_source), names, codes)
    graph = OpGraph(
        nodes=nodes,
        values=tuple(value.spec(names) for value in recorder.table.values),
        inputs=tuple(value.id for value in recorder.table.inputs),
        outputs=tuple(value.id for value in recorder.outputs),
    )
    recorder.store.program = graph
    return Recording(
        graph=graph,
        store=recorder.store,
        loss=recorder.loss,
        truncated=recorder.truncated,
        notes=tuple(recorder.notes),
        modules=recorder.context.modules,
        codes=codes,
        side_effects=_side_effects(recorder, nodes),
        fused=frozenset(nodes[index].id for ops in recorder.fused_ranges for index in ops),
        wall_us=recorder.wall_us,
        with_backward=any(node.phase == "backward" for node in nodes),
    )


def _side_effects(recorder: Recorder, nodes: Sequence[OpNode]) -> str:
    """What another run would do a second time to the person's own things, in words."""
    if recorder.truncated:
        return "it was not recorded to its end"
    if any(node.phase == "optimizer" for node in nodes):
        return "it runs an optimizer step"
    if not recorder.options.backward and any(node.phase == "backward" for node in nodes):
        return "it runs a backward pass, which adds to gradients"
    modules = (reference() for reference in recorder.context.modules.values())
    buffers = {
        storage_id(buffer)
        for module in modules
        if module is not None
        for buffer in module._buffers.values()
        if buffer is not None and buffer.layout is torch.strided and not buffer.is_nested
    }
    for storage in recorder.table.storages.values():
        if storage.external and storage.version and storage.values[0].view[0] not in buffers:
            return "it writes tensors in place that were there before it"
    return ""


def _build_nodes(
    ops: Sequence[RawOp], spans: _Spans, names: dict[Any, str], codes: dict[str, CodeType]
) -> tuple[OpNode, ...]:
    nodes: list[OpNode] = []
    forward: dict[int, OpNode] = {}  # the op that autograd will differentiate, by sequence number
    for index, raw in enumerate(ops):
        span, stack = spans.span(raw.code, raw.offset), spans.stack(raw)
        frame = 0 if raw.mark is None else raw.mark.number
        path, class_name = raw.module
        code = raw.code
        if raw.by_engine and raw.sequence is not None and raw.sequence in forward:
            # The line that called backward() says nothing; the op it differentiates does.
            origin = forward[raw.sequence]
            span, stack, frame = origin.span, origin.stack, origin.frame
            path, class_name = origin.module_path, origin.module_class
            code = codes.get(origin.id)
        device = raw.device
        node = OpNode(
            id=raw.schema.node_id(index),
            index=index,
            op=raw.schema.name,
            args=raw.args,
            kwargs=raw.kwargs,
            inputs=tuple(dict.fromkeys([value.id for value in raw.inputs])),
            outputs=tuple([value.id for value in raw.outputs]),
            kind=raw.schema.kind,
            mutates=tuple(dict.fromkeys([value.id for value in raw.mutates])),
            module_path=path,
            module_class=class_name,
            span=span,
            stack=stack,
            frame=frame,
            sequence=raw.sequence,
            phase=raw.phase,
            device="cpu"
            if device is None
            else names.get(device) or names.setdefault(device, str(device)),
            stream=raw.stream,
            thread=raw.thread,
            autocast=raw.autocast,
            grad_enabled=raw.grad_enabled,
        )
        nodes.append(node)
        if code is not None:
            codes[node.id] = code
        if raw.phase == "forward" and raw.sequence is not None:
            forward.setdefault(raw.sequence, node)
    return tuple(nodes)
