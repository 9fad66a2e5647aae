"""A recorded graph as something that runs: ops looked up, arguments bound, lifetimes known."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusion_advisor.errors import CaptureError
from fusion_advisor.recorder.schema import OpSchema, find_op, outputs_in_order
from fusion_advisor.records import Argument, OpGraph, OpNode, Symbol, TensorSpec, ValueRef

Getter = Callable[[Mapping[str, Tensor]], Any]
_GENERATOR = "Generator"  # an opaque argument that is replayed from its stored state


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One op, ready to run.  ``dead`` are the values that nothing later reads."""

    node: OpNode
    schema: OpSchema
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    dead: tuple[str, ...] = ()


class Program:
    """The steps of a graph in order, with the aliases its values resolve to."""

    def __init__(
        self,
        graph: OpGraph,
        *,
        nodes: Sequence[OpNode] | None = None,
        keep: Iterable[str] = (),
    ) -> None:
        self.specs: dict[str, TensorSpec] = {spec.id: spec for spec in graph.values}
        self.nodes = graph.nodes if nodes is None else tuple(nodes)
        made = {value for node in self.nodes for value in node.outputs}
        self._made = made
        self.home: dict[str, str] = {}  # value -> the older value whose tensor it is
        for spec in graph.values:
            if spec.alias_of is not None and spec.id not in made:
                self.home[spec.id] = self.home.get(spec.alias_of, spec.alias_of)
        self.kept = {self.resolve(value) for value in keep}
        self.steps = self._steps()

    def resolve(self, value: str) -> str:
        """The value whose tensor holds ``value``."""
        return self.home.get(value, value)

    def needed(self) -> tuple[str, ...]:
        """The values that must be given: read or kept, made by no step."""
        wanted: dict[str, None] = {}
        for node in self.nodes:
            for value in (*node.inputs, *node.mutates):
                wanted.setdefault(self.resolve(value))
        for value in self.kept:
            wanted.setdefault(value)
        return tuple(value for value in wanted if value not in self._made)

    def _steps(self) -> tuple[Step, ...]:
        last: dict[str, int] = {}
        for index, node in enumerate(self.nodes):
            for value in (*node.inputs, *node.mutates, *node.outputs):
                last[self.resolve(value)] = index
        dead: dict[int, list[str]] = {}
        for value, index in last.items():
            if value not in self.kept:
                dead.setdefault(index, []).append(value)
        return tuple(
            Step(
                node=node,
                schema=find_op(node.op),
                args=node.args,
                kwargs=node.kwargs,
                dead=tuple(dead.get(index, ())),
            )
            for index, node in enumerate(self.nodes)
        )

    def run(
        self,
        tensors: Mapping[str, Tensor],
        *,
        random_states: Mapping[str, Tensor] | None = None,
        after: Callable[[Step, Any, dict[str, Tensor]], None] | None = None,
        device: torch.device | None = None,
    ) -> dict[str, Tensor]:
        """Run every step; returns the tensors of ``keep``.

        Ops that write do write: into the given tensors too.  ``after`` sees each step with
        what its op returned, before dead values are let go.

        Raises:
            CaptureError: a value is missing, or an op does not take its recorded arguments.
        """
        states = random_states or {}
        missing = [value for value in self.needed() if value not in tensors]
        if missing:
            raise CaptureError(f"The tensors {', '.join(missing[:5])} are missing.")
        environment = {value: tensors[value] for value in self.needed()}
        for step in self.steps:
            returned = self.run_step(step, environment, states)
            if after is not None:
                after(step, returned, environment)
            for value in step.dead:
                environment.pop(value, None)
        return {value: environment[value] for value in self.kept if value in environment}

    def run_step(
        self, step: Step, environment: dict[str, Tensor], states: Mapping[str, Tensor]
    ) -> Any:
        """Run one op and bind its outputs."""
        node, schema = step.node, step.schema
        state = states.get(node.id)
        try:
            args = tuple([self._bind(item, environment, state) for item in step.args])
            kwargs = {key: self._bind(item, environment, state) for key, item in step.kwargs}
            if state is not None and not uses_generator(node):
                set_random_state(state, node.device)
            returned = schema.function(*args, **kwargs)
        except CaptureError:
            raise
        except KeyError as error:
            raise CaptureError(
                f"{node.id} reads {error.args[0]}, which no op before made."
            ) from None
        except Exception as error:
            raise CaptureError(f"{node.id} ({node.op}) failed in the replay: {error}") from error
        written = schema.written_arguments(args, kwargs)
        tensors = outputs_in_order(returned, written)
        if len(tensors) != len(node.outputs):
            raise CaptureError(
                f"{node.id} ({node.op}) gave {len(tensors)} tensors in the replay and "
                f"{len(node.outputs)} when it was recorded."
            )
        for value, tensor in zip(node.outputs, tensors, strict=True):
            environment[value] = tensor
        return returned

    def _bind(self, item: Argument, environment: Mapping[str, Tensor], state: Tensor | None) -> Any:
        if isinstance(item, ValueRef):
            return environment[self.resolve(item.value)]
        if isinstance(item, tuple):
            return [self._bind(part, environment, state) for part in item]
        if isinstance(item, Symbol):
            return symbol_value(item, state)
        return item


def uses_generator(node: OpNode) -> bool:
    """True where the op draws from a generator of its own."""
    return any(
        isinstance(item, Symbol) and item.kind == "opaque" and item.name == _GENERATOR
        for _, item in node.kwargs
    )


def symbol_value(symbol: Symbol, state: Tensor | None = None) -> Any:
    """The object behind a printed argument.

    Raises:
        CaptureError: it cannot be made again.
    """
    match symbol.kind:
        case "dtype" | "layout" | "memory_format":
            return getattr(torch, symbol.name)
        case "device":
            return torch.device(symbol.name)
        case "complex":
            return complex(symbol.name)
    if symbol.name == _GENERATOR and state is not None:
        generator = torch.Generator("cpu")
        generator.set_state(state)
        return generator
    raise CaptureError(f"An argument of type {symbol.name} cannot be replayed.")


def set_random_state(state: Tensor, device: str) -> None:
    """Set the default generator of a device."""
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def process_settings() -> dict[str, Any]:
    """The process-wide settings that decide which bits an op gives."""
    return {
        "threads": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": (
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
        ),
    }


def apply_settings(settings: Mapping[str, Any]) -> None:
    """Put ``process_settings`` of another process in force here."""
    if not settings:
        return
    if torch.get_num_threads() != settings["threads"]:
        torch.set_num_threads(settings["threads"])
    torch.set_default_dtype(getattr(torch, settings["default_dtype"]))
    if torch.get_float32_matmul_precision() != settings["matmul_precision"]:
        torch.set_float32_matmul_precision(settings["matmul_precision"])
    if torch.are_deterministic_algorithms_enabled() != settings["deterministic"]:
        torch.use_deterministic_algorithms(settings["deterministic"])
    torch._C._set_mkldnn_enabled(settings["mkldnn"])
    cudnn = torch.backends.cudnn
    enabled, benchmark, allow_tf32 = settings["cudnn"]
    torch._C._set_cudnn_enabled(enabled)
    cudnn.benchmark = benchmark
    cudnn.allow_tf32 = allow_tf32


@contextlib.contextmanager
def undisturbed(settings: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Run ops as recorded (no autograd, no autocast) and leave no trace in the process.

    The random state of every device is put back, and so are the process-wide settings
    where ``settings`` asks for others.
    """
    before = process_settings()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    state = torch.get_rng_state()
    changed = settings is not None and bool(settings) and dict(settings) != before
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", enabled=False))
        if cuda is not None:
            stack.enter_context(torch.autocast("cuda", enabled=False))
        try:
            if changed and settings is not None:
                apply_settings(settings)
            yield
        finally:
            if changed:
                apply_settings(before)
            torch.set_rng_state(state)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
