"""The recorder: every op the person's code dispatches, exactly as it runs once.

Bookkeeping per op is kept to what cannot be learnt later; the records are built from
it when the recording is finished.  An error of our own never reaches the person's
code: recording stops and ``finish`` raises it.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from fusion_advisor.errors import CaptureError
from fusion_advisor.recorder import collector, liveness
from fusion_advisor.recorder.build import build_recording
from fusion_advisor.recorder.context import OUR_FRAMES, Context, ModuleEntry
from fusion_advisor.recorder.frames import FrameMark, Frames
from fusion_advisor.recorder.loss import run_backward
from fusion_advisor.recorder.program import process_settings
from fusion_advisor.recorder.recording import CaptureOptions, Recording
from fusion_advisor.recorder.schema import OpSchema, find_op, flatten, outputs_in_order, schema_of
from fusion_advisor.recorder.tensor_store import TensorStore
from fusion_advisor.recorder.values import Value, ValueTable
from fusion_advisor.records import Argument, Phase, Symbol

T = TypeVar("T")
_next_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
_PLAIN_TYPES = frozenset({int, float, bool, str, type(None)})
_SYMBOL_TYPES: dict[type, str] = {
    torch.dtype: "dtype",
    torch.device: "device",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
    complex: "complex",
}


try:  # in C; importing torch._dynamo itself would take a second
    from torch._C._dynamo.eval_frame import (
        _FrameAction,
        _FrameExecStrategy,
        set_code_exec_strategy,
    )
except ImportError:
    set_code_exec_strategy = None  # type: ignore[assignment]


class RawOp(NamedTuple):
    """One op as it was seen."""

    schema: OpSchema
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    inputs: list[Value]  # in order of use, repeated where an op reads one twice
    outputs: list[Value]
    mutates: list[Value]
    code: Any  # CodeType | None
    offset: int
    mark: FrameMark | None
    module: ModuleEntry
    phase: Phase
    by_engine: bool
    sequence: int | None
    autocast: str | None
    grad_enabled: bool
    thread: int
    device: torch.device | None
    stream: int


class Recorder(TorchDispatchMode):
    """Records the ops of a ``with`` block; ``finish`` returns the recording.

    Raises:
        CaptureError: on entry, when another recording runs in this thread.
    """

    supports_higher_order_operators = True
    records_fused_calls = True  # what the runtime looks for: it calls ``fused_call``
    _active = threading.local()

    def __init__(self, options: CaptureOptions | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.options = options or CaptureOptions()
        self.store = TensorStore(self.options.byte_cap)
        self.table = ValueTable(self.store, self._conjure_view)
        self.frames = Frames()
        self.context = Context(self.options.steps, self.stop)
        self.ops: list[RawOp] = []
        self.outputs: list[Value] = []
        self.loss = ""
        self.truncated = ""
        self.notes: list[str] = []
        self.wall_us = 0.0
        self._recording = False
        self._entered = False
        self._pushed = False
        self._sealed = False
        self._open = False  # an op has begun and its bookkeeping has not ended
        self._interrupted = False
        self._error: BaseException | None = None
        self._threads: dict[int, int] = {}
        self._symbols: dict[Any, Symbol] = {}
        self._subclasses: dict[type, str] = {}
        self._fake_ops = 0
        self.fused_ranges: list[range] = []  # of the ops that stand for a kernel in place
        self._inputs: list[Value] = []
        self._started = 0.0
        self._restore_collector: Callable[[], None] = lambda: None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True wraps the method in one that imports torch._dynamo; see below for ours.
        return set_code_exec_strategy is None

    # -- life ---------------------------------------------------------------------------

    def __enter__(self) -> Recorder:
        if getattr(Recorder._active, "recorder", None) is not None:
            raise CaptureError(
                "A recording is already running in this thread; profile one thing at a time."
            )
        if self._entered:
            raise CaptureError("A Recorder records once; make a new one.")
        self._entered = True
        self.store.settings = process_settings()
        Recorder._active.recorder = self
        try:
            self._restore_collector = collector.postpone_full_collections()
            self.context.install()
            self._started = time.perf_counter()
            super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            Recorder._active.recorder = None
            self._restore_collector()
            self.context.uninstall()
            raise
        self._pushed = self._recording = True
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        try:
            recording, self._recording = self._recording, False
            if recording and exc_type is None:
                self._seal()
        finally:
            self._leave()
            self.frames.release(sys._getframe(1))
            _hide_our_frames(exc_tb)

    def _leave(self) -> None:
        """Stop instrumenting: our wrappers go, the mode is popped."""
        self.context.uninstall()
        self._restore_collector()
        if self._pushed:
            self._pushed = False
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if getattr(Recorder._active, "recorder", None) is self:
            Recorder._active.recorder = None

    @contextmanager
    def fused_call(self) -> Iterator[None]:
        """Around the eager chain that runs here in the place of a fused kernel."""
        first = len(self.ops)
        yield
        self.fused_ranges.append(range(first, len(self.ops)))

    def stop(self, reason: str) -> None:
        """End the recording here; what follows in the block runs uninstrumented."""
        if not self._recording:
            return
        self.truncated = reason
        self._recording = False
        self._seal()
        self.context.at_boundary = self._leave_if_on_top
        self._leave_if_on_top()

    def _leave_if_on_top(self) -> None:
        """Pop the mode early where that is allowed; until then it passes every op through."""
        stack = _get_current_dispatch_mode_stack()
        if stack and stack[-1] is self:
            self._leave()

    def _seal(self) -> None:
        """Take down what is alive and what it holds, before anything changes it."""
        if self._sealed:
            return
        self._sealed = True
        self.wall_us = (time.perf_counter() - self._started) * 1e6
        if self._error is not None:
            return
        try:
            with torch.no_grad(), torch._C._DisableTorchDispatch():
                self.outputs = liveness.seal(self.table, self.store, self.ops)
        except Exception as error:
            self._error = error

    def finish(self, result: Any = None) -> Recording:
        """The recording.

        Raises:
            CaptureError: nothing was recorded, or the recording broke off.
        """
        if not self._sealed:
            raise CaptureError(
                "finish() is for after the block; the code in it failed or still runs."
            )
        if self._error is not None:
            raise CaptureError(
                f"The code ran, but recording it failed: {type(self._error).__name__}: "
                f"{self._error}. Please report this with the op that it names."
            ) from self._error
        if not self.ops:
            raise CaptureError(self._why_empty(result))
        if self._interrupted:
            self.notes.append(
                "An interrupt reached the code in the middle of an op and was caught there; "
                "the recording may lack that op."
            )
        if self.context.compiled or self.frames.compiled:
            self.notes.append(
                "Part of the code is compiled by torch.compile; while recording, torch runs it "
                "eagerly, so the ops and times here are those of the uncompiled code."
            )
        self.notes.extend(self.store.notes)
        with collector.paused():
            recording = build_recording(self)
        recording.result = result
        return recording

    def _why_empty(self, result: Any) -> str:
        if self._fake_ops:
            return (
                "The code ran on fake tensors, which hold no data; profile it with real tensors, "
                "outside FakeTensorMode."
            )
        if self.truncated:
            return f"Nothing was recorded: {self.truncated}."
        if inspect.iscoroutine(result) or inspect.isasyncgen(result):
            if inspect.iscoroutine(result):
                result.close()  # nobody can await it any more
            return (
                "The code returned a coroutine, which has not run: profile the function that it "
                "awaits, or await it in a with capture() block."
            )
        if inspect.isgenerator(result):
            return (
                "The code returned a generator, whose body has not run yet: consume it inside, "
                "for example profile(lambda: list(model(x)))."
            )
        return (
            "The code dispatched no torch op in this thread, so there is nothing to profile. "
            "Ops in other threads and processes are not seen; call the model directly."
        )

    # -- one op -------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._recording:
            return func(*args, **kwargs)
        if types:
            handling = self._handling_of(types)
            if handling == "unwrap":
                return NotImplemented  # the subclass unwraps itself; its inner ops come back here
            if handling == "fake":
                self._fake_ops += 1
                return func(*args, **kwargs)
        schema = schema_of(func)
        if schema.ignored:
            return func(*args, **kwargs)
        if schema.composite:
            # Only inference mode shows these; split them as every other mode does.
            with self._reentered():
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        try:
            before = self._before(schema, args, kwargs)
        except Exception as error:
            self._give_up(error)
            return func(*args, **kwargs)
        self._interrupted = self._interrupted or self._open
        self._open = True
        try:
            result = func(*args, **kwargs)
        except BaseException:
            self._open = False  # an op that fails has done nothing
            raise
        try:
            self._after(schema, before, result)
        except Exception as error:
            self._give_up(error)
        self._open = False
        return result

    def _before(self, schema: OpSchema, args: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Take down the arguments, before the op can change them."""
        table = self.table
        inputs: list[Value] = []
        self._inputs = inputs
        argument = self._argument
        frozen = tuple([argument(item) for item in args])
        frozen_kwargs = (
            tuple([(key, argument(item)) for key, item in kwargs.items()]) if kwargs else ()
        )
        written: list[Tensor] = []
        old: list[Value] = []
        if schema.written:
            written = schema.written_arguments(args, kwargs)
            for tensor in written:
                value = table.read(tensor)
                old.append(value)
                table.before_write(tensor, value.storage)
        if schema.random:
            liveness.keep_random_state(self.store, schema.node_id(len(self.ops)), args, kwargs)
        context = self.context
        phase = context.phase
        sequence: int | None = None
        grad = torch.is_grad_enabled()
        if grad and self._note_gradients(args, kwargs):
            sequence = _next_sequence() - 1
        node = torch._C._current_autograd_node()
        if node is not None:
            phase = "backward"
            sequence = node._sequence_nr()
        where = self.frames.locate(sys._getframe(2))
        return frozen, frozen_kwargs, inputs, written, old, grad, phase, sequence, where

    def _note_gradients(self, args: Any, kwargs: dict[str, Any]) -> bool:
        """Mark the inputs that need a gradient; True if there is one."""
        tensors = flatten(args)
        if kwargs:
            tensors += flatten(tuple(kwargs.values()))
        found = False
        for tensor in tensors:
            if tensor.requires_grad:
                found = True
                self.table.read(tensor).requires_grad = True
        return found

    def _after(self, schema: OpSchema, before: tuple[Any, ...], result: Any) -> None:
        """Take down what the op returned and wrote, and append it."""
        frozen, frozen_kwargs, inputs, written, old, grad, phase, sequence, where = before
        table = self.table
        if written:
            outputs = self._written_outputs(written, old, result)
        elif type(result) is Tensor:
            outputs = [table.made(result)]
        else:
            outputs = [table.made(tensor) for tensor in flatten(result)]
        if schema.uninitialised:
            for value in outputs:
                value.blank = True
        index = len(self.ops)
        if not outputs and result is not None:
            self.store.numbers[schema.node_id(index)] = result
        code, offset, mark, by_engine = where
        device = outputs[0].device if outputs else inputs[0].device if inputs else None
        stream = 0
        if device is not None and device.type == "cuda":
            stream = torch.cuda.current_stream(device).stream_id
        thread = threading.get_ident()
        number = self._threads.get(thread)
        if number is None:
            number = self._threads[thread] = len(self._threads)
        context = self.context
        self.ops.append(
            RawOp(
                schema,
                frozen,
                frozen_kwargs,
                inputs,
                outputs,
                old,
                code,
                offset,
                mark,
                context.current,
                phase,
                by_engine or (phase == "backward" and code is None),
                sequence,
                context.autocast,
                grad,
                number,
                device,
                stream,
            )
        )
        if index + 1 >= self.options.max_ops:
            self.stop(
                f"recording stopped after {index + 1} ops (max_ops); the rest ran uninstrumented"
            )

    def _written_outputs(self, written: list[Tensor], old: list[Value], result: Any) -> list[Value]:
        new = self.table.written(written, old)
        of_tensor = {id(tensor): value for tensor, value in zip(written, new, strict=True)}
        outputs: list[Value] = []
        for tensor in outputs_in_order(result, written):
            value = of_tensor.get(id(tensor)) or self.table.made(tensor)
            if value not in outputs:
                outputs.append(value)
        return outputs

    def _argument(self, item: Any) -> Argument:
        """Plain data for one argument; tensors become references to their values."""
        kind = type(item)
        if kind is Tensor or isinstance(item, Tensor):
            value = self.table.read(item)
            self._inputs.append(value)
            return value.ref
        if kind in _PLAIN_TYPES:
            return item  # type: ignore[no-any-return]
        if kind is list or isinstance(item, (list, tuple)):
            argument = self._argument
            return tuple([argument(part) for part in item])
        return self._other_argument(item, kind)

    def _other_argument(self, item: Any, kind: type) -> Argument:
        if kind in _SYMBOL_TYPES:
            known = self._symbols.get(item)
            if known is None:
                name = str(item).removeprefix("torch.")
                known = Symbol(kind=_SYMBOL_TYPES[kind], name=name)  # type: ignore[arg-type]
                self._symbols[item] = known
            return known
        for plain in (bool, int, float, str):
            if isinstance(item, plain):
                return plain(item)  # an enum, a NumPy number
        return Symbol(kind="opaque", name=kind.__name__)

    def _conjure_view(self, base: Value, made: Value) -> None:
        """Record how a view came to be that torch made without dispatching an op."""
        if base.dtype != made.dtype or base.view[0] == "opaque":
            raise CaptureError(
                f"A {made.dtype} view of a {base.dtype} tensor appeared that no recorded op made."
            )
        shape, strides, offset = tuple(made.view[2]), tuple(made.view[3]), made.view[1]
        schema = find_op("aten.as_strided.default")
        where = self.frames.locate(sys._getframe(2))
        self.ops.append(
            RawOp(
                schema,
                (base.ref, shape, strides, offset),
                (),
                [base],
                [made],
                [],
                *where[:3],
                self.context.current,
                self.context.phase,
                where[3],
                None,
                self.context.autocast,
                torch.is_grad_enabled(),
                0,
                made.device,
                0,
            )
        )
        note = "Some views were made without an op; they appear as as_strided."
        if note not in self.notes:
            self.notes.append(note)

    def _handling_of(self, types: Any) -> str:
        for kind in types:
            handling = self._subclasses.get(kind)
            if handling is None:
                handling = self._subclasses[kind] = _handling_of_class(kind)
                if handling == "unwrap":
                    self.notes.append(
                        f"{kind.__name__} tensors were recorded as the ops on what they hold."
                    )
            if handling:
                return handling
        return ""

    def _reentered(self) -> Any:
        return _Reentered(self)

    def _give_up(self, error: Exception) -> None:
        """Stop recording after an error of our own; the person's code goes on."""
        self._error = error
        self._sealed = True
        self._recording = False


class _Reentered:
    """The recorder back on the mode stack for ops inside an op it is handling."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self.recorder)

    def __exit__(self, *exc: Any) -> None:
        TorchDispatchMode.__exit__(self.recorder, *exc)


def _handling_of_class(kind: type) -> str:
    """How to record a class: empty for plain, "fake" without data, "unwrap" for wrappers."""
    if getattr(kind, "__torch_dispatch__", None) is Tensor.__torch_dispatch__:
        return ""
    if kind.__name__ in ("FakeTensor", "FunctionalTensor", "AsyncCollectiveTensor"):
        return "fake"
    return "unwrap"


def _hide_our_frames(traceback: TracebackType | None) -> None:
    """Take our wrappers out of the traceback that the person will read."""
    while traceback is not None:
        following = traceback.tb_next
        while following is not None and following.tb_frame.f_code in OUR_FRAMES:
            following = following.tb_next
        traceback.tb_next = following
        traceback = following


_handler = inspect.unwrap(Recorder.__torch_dispatch__)
OUR_FRAMES.add(_handler.__code__)
if set_code_exec_strategy is not None:
    # torch.compile must never trace the recorder, nor anything it calls.
    set_code_exec_strategy(
        _handler.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    )


def record(run: Callable[[], T], options: CaptureOptions | None = None) -> Recording:
    """Run ``run()`` exactly once and return its recording.

    With ``options.backward`` the loss is found in what it returned and differentiated
    under the recording too; every ``.grad`` is then put back as it was.

    Raises:
        CaptureError: nothing could be recorded, or there is no loss to differentiate.
        Whatever ``run`` raises, unchanged.
    """
    recorder = Recorder(options)
    gradients = None
    try:
        with recorder:
            result = run()
            if recorder.options.backward:
                recorder.loss, gradients = run_backward(result)
    finally:
        if gradients is not None:
            gradients.restore()
    return recorder.finish(result)
