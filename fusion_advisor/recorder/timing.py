"""Times a recorded program: the whole uninstrumented, and each op by itself.

The program is turned into straight-line Python, so that a replay adds little of its
own; values are let go where the recorded program could have let them go.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from fusion_advisor.errors import CaptureError
from fusion_advisor.recorder import collector
from fusion_advisor.recorder.kineto import PREFIX, OpEvents, join
from fusion_advisor.recorder.program import (
    Program,
    Step,
    set_random_state,
    symbol_value,
    undisturbed,
    uses_generator,
)
from fusion_advisor.recorder.replay import fresh_inputs
from fusion_advisor.recorder.schema import outputs_in_order
from fusion_advisor.recorder.tensor_store import TensorStore
from fusion_advisor.records import Argument, OpGraph, OpTime, Symbol, ValueRef

_BLOCK = 500  # ops per generated function: compiling one huge function takes quadratic time
_MIN_RUNS = 3
_MAX_RUNS = 60
_WARM_RUNS = 2
_PROFILED_RUNS = 3
_MAX_PROFILED_RUNS = 9
_PROFILED_SHARE = 0.35  # of the time budget

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of a warmed replay.

    ``times`` are medians over profiled replays, without the profiler's own cost;
    ``wall_us`` and ``wall_spread_us`` (interquartile range) come from replays without
    any instrument; ``rest_us`` is the part of the wall time that no op accounts for:
    the replay's own Python and what runs between ops.
    """

    times: tuple[OpTime, ...]
    wall_us: float
    wall_spread_us: float
    rest_us: float = 0.0
    runs: int = 0
    note: str = ""


def measure(
    graph: OpGraph,
    store: TensorStore,
    *,
    device: str | None = None,
    budget_s: float = 2.0,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Replay until the budget is spent and return medians.

    ``device`` is waited for at the end of each run; by default the first one that is not
    the CPU among the graph's ops.

    Raises:
        CaptureError: inputs were not kept, or an op failed.
    """
    if device is None:
        device = next((node.device for node in graph.nodes if node.device != "cpu"), "cpu")
    program = Program(graph, keep=graph.outputs)
    with undisturbed(store.settings):
        inputs = fresh_inputs(graph, store, program.needed(), program)
        restore = _restorer(graph, store, program, inputs)
        run = compile_program(program, store.random_states)
        wait = _waiter(device)
        walls = _wall_times(run, inputs, restore, wait, clock, budget_s * (1 - _PROFILED_SHARE))
        wall = statistics.median(walls)
        ranged = compile_program(program, store.random_states, ranges=True)
        profiles = _profiles(
            ranged, inputs, restore, wait, device, clock, budget_s * _PROFILED_SHARE
        )
    times = _op_times(graph, profiles, wall)
    attributed = _attributed_us(graph, times)
    quartiles = statistics.quantiles(walls, n=4) if len(walls) > 1 else [wall, wall, wall]
    return Timing(
        times=times,
        wall_us=wall * 1e6,
        wall_spread_us=(quartiles[2] - quartiles[0]) * 1e6,
        rest_us=wall * 1e6 - attributed,
        runs=len(walls),
    )


def _attributed_us(graph: OpGraph, times: tuple[OpTime, ...]) -> float:
    """Time that ops account for: on the host, or on the device where it is the longer one."""
    host = sum(item.host_us for item in times)
    return max(host, sum(item.device_us for item in times))


# -- the program as Python --------------------------------------------------------------


def compile_program(
    program: Program, random_states: Mapping[str, Tensor], *, ranges: bool = False
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """A function of the needed tensors (by value id) that runs every op.

    With ``ranges`` each op stands in a profiler range named by its position.
    """
    blocks = [
        _compile_block(program, program.steps[start : start + _BLOCK], start, random_states, ranges)
        for start in range(0, len(program.steps), _BLOCK)
    ]

    def run(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        environment = dict(tensors)
        for block in blocks:
            block(environment)
        return environment

    return run


class _Writer:
    """Writes one block: names for values and constants, one line or more per op."""

    def __init__(self, program: Program, random_states: Mapping[str, Tensor], ranges: bool) -> None:
        self.program = program
        self.states = random_states
        self.ranges = ranges
        self.constants: dict[str, Any] = {
            "flatten": outputs_in_order,
            "set_random_state": set_random_state,
            "Range": torch._C._profiler._RecordFunctionFast,
        }
        self.lines: list[str] = []
        self.local: set[str] = set()  # values that are local variables by now
        self.loads: list[str] = []

    def constant(self, value: Any) -> str:
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def argument(self, item: Argument, state: Tensor | None) -> str:
        if isinstance(item, ValueRef):
            value = self.program.resolve(item.value)
            if value not in self.local:
                self.local.add(value)
                self.loads.append(value)
            return value
        if isinstance(item, tuple):
            return "[" + ", ".join(self.argument(part, state) for part in item) + "]"
        if isinstance(item, Symbol):
            return self.constant(symbol_value(item, state))
        return self.constant(item)

    def step(self, step: Step, position: int) -> None:
        node, schema = step.node, step.schema
        state = self.states.get(node.id)
        arguments = [self.argument(item, state) for item in step.args]
        arguments += [f"{key}={self.argument(item, state)}" for key, item in step.kwargs]
        if state is not None and not uses_generator(node):
            self.lines.append(f"set_random_state({self.constant(state)}, {node.device!r})")
        function = self.constant(schema.function._op)
        call = f"{function}({', '.join(arguments)})"
        indent = ""
        if self.ranges:
            self.lines.append(f"with {self.constant(_new_range(position))}:")
            indent = "    "
        self._bind(step, call, indent)
        for value in step.dead:
            if value in self.local:
                self.local.discard(value)
                self.lines.append(f"del {value}")

    def _bind(self, step: Step, call: str, indent: str) -> None:
        node, schema = step.node, step.schema
        outputs = node.outputs
        plain = not (node.mutates or schema.written)
        if plain and len(outputs) == 1 and len(schema.function._schema.returns) == 1:
            kind = str(schema.function._schema.returns[0].type)
            if kind == "Tensor":
                self.lines.append(f"{indent}{outputs[0]} = {call}")
                self.local.add(outputs[0])
                return
        self.lines.append(f"{indent}returned = {call}")
        if not outputs:
            return
        written = ""
        if not plain:
            resolved = [self.program.resolve(value) for value in node.mutates]
            written = ", ".join(resolved)
        self.lines.append(f"{', '.join(outputs)}, = flatten(returned, [{written}])")
        self.lines.append("del returned")
        self.local.update(outputs)


def _new_range(position: int) -> Any:
    return torch._C._profiler._RecordFunctionFast(f"{PREFIX}{position}")


def _compile_block(
    program: Program,
    steps: tuple[Step, ...],
    start: int,
    random_states: Mapping[str, Tensor],
    ranges: bool,
) -> Callable[[dict[str, Tensor]], None]:
    writer = _Writer(program, random_states, ranges)
    for offset, step in enumerate(steps):
        writer.step(step, start + offset)
    loads = [f"{value} = environment.pop({value!r})" for value in writer.loads]
    stores = [f"environment[{value!r}] = {value}" for value in sorted(writer.local)]
    body = "\n    ".join((*loads, *writer.lines, *stores, "return"))
    namespace = writer.constants
    exec(compile(f"def block(environment):\n    {body}\n", "<recorded program>", "exec"), namespace)  # noqa: S102 - our own text
    block: Callable[[dict[str, Tensor]], None] = namespace["block"]
    return block


# -- running it -------------------------------------------------------------------------


def _restorer(
    graph: OpGraph, store: TensorStore, program: Program, inputs: Mapping[str, Tensor]
) -> Callable[[], None]:
    """A function that gives inputs which the program writes their first contents again."""
    written = {program.specs[value].storage for node in graph.nodes for value in node.mutates}
    pairs = [
        (tensor, store.get(value))
        for value, tensor in inputs.items()
        if program.specs[value].storage in written
    ]

    def restore() -> None:
        for tensor, original in pairs:
            tensor.copy_(original)

    return restore


def _waiter(device: str) -> Callable[[], None]:
    if device.startswith("cuda"):
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def _wall_times(
    run: Callable[[dict[str, Tensor]], object],
    inputs: dict[str, Tensor],
    restore: Callable[[], None],
    wait: Callable[[], None],
    clock: Clock,
    budget_s: float,
) -> list[float]:
    """Seconds of each run, after warming up."""
    walls: list[float] = []
    begun = clock()
    with collector.paused(collect_first=True):
        while True:
            wait()
            start = clock()
            result = run(inputs)
            wait()
            walls.append(clock() - start)
            del result
            restore()
            done = len(walls) - _WARM_RUNS
            if done >= _MAX_RUNS or (done >= _MIN_RUNS and clock() - begun > budget_s):
                return walls[_WARM_RUNS:]
            if done >= 1 and clock() - begun > 3 * budget_s:
                return walls[_WARM_RUNS:]  # a run so long that few must do


def _profiles(
    run: Callable[[dict[str, Tensor]], object],
    inputs: dict[str, Tensor],
    restore: Callable[[], None],
    wait: Callable[[], None],
    device: str,
    clock: Clock,
    budget_s: float,
) -> list[tuple[float, dict[int, OpEvents]]]:
    """Seconds and joined events of each profiled run; the first one, which warms, is left out."""
    found: list[tuple[float, dict[int, OpEvents]]] = []
    begun = clock()
    with collector.paused(collect_first=True):
        while True:
            with quiet_profiler(device) as profiler:
                wait()
                start = clock()
                result = run(inputs)
                wait()
                seconds = clock() - start
            del result
            restore()
            found.append((seconds, join(profiler.kineto_results.events())))
            done = len(found) - 1
            if done >= _MAX_PROFILED_RUNS:
                return found[1:]
            if done >= _PROFILED_RUNS and clock() - begun > budget_s:
                return found[1:]
            if done >= 1 and clock() - begun > 3 * budget_s:
                return found[1:]


@contextmanager
def quiet_profiler(device: str) -> Iterator[Any]:
    """The profiler's raw events of a block, without its log lines in the cell.

    Raises:
        CaptureError: another profiler is running; torch allows one at a time.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    if torch._C._autograd._profiler_enabled():
        raise CaptureError(
            "Another profiler is running, and torch allows one at a time: leave it, then "
            "profile again."
        )
    on_cuda = device.startswith("cuda")
    profiler = profile(use_device="cuda" if on_cuda else None, use_kineto=True)
    profiler.__enter__()
    try:
        yield profiler
    finally:
        profiler.__exit__(None, None, None)


# -- the result -------------------------------------------------------------------------


def _op_times(
    graph: OpGraph, profiles: list[tuple[float, dict[int, OpEvents]]], wall: float
) -> tuple[OpTime, ...]:
    """Median times by op, less what the profiler costs per event."""
    event_us = _cost_of_event_us(profiles, wall)
    times: list[OpTime] = []
    for position, node in enumerate(graph.nodes):
        seen = [ops[position] for _, ops in profiles if position in ops]
        if not seen:
            times.append(OpTime(node=node.id, host_us=0.0))
            continue
        host = statistics.median(_host_us(item, event_us) for item in seen)
        times.append(
            OpTime(
                node=node.id,
                host_us=host,
                device_us=statistics.median(item.device_ns for item in seen) / 1e3,
                kernels=round(statistics.median(item.kernels for item in seen)),
            )
        )
    total = sum(item.host_us for item in times)
    if total > wall * 1e6 > 0:
        # Profiled runs were slower as a whole (another load, colder caches): keep the
        # proportions, and let the sum be what the uninstrumented runs took.
        scale = wall * 1e6 / total
        times = [
            OpTime(
                node=item.node,
                host_us=item.host_us * scale,
                device_us=item.device_us,
                kernels=item.kernels,
            )
            for item in times
        ]
    return tuple(times)


def _host_us(item: OpEvents, event_us: float) -> float:
    """Host time of an op without what its *nested* events cost (the outermost one's own
    cost lies almost wholly outside what it measures).
    """
    inside = (item.host_ns if item.events else item.range_ns) / 1e3
    return max(inside / 2, inside - event_us * max(0, item.events - 1))


def _cost_of_event_us(profiles: list[tuple[float, dict[int, OpEvents]]], wall: float) -> float:
    """What one profiler event adds to a run, in microseconds."""
    if not profiles:
        return 0.0
    seconds = statistics.median(seconds for seconds, _ in profiles)
    events = statistics.median(sum(item.events + 1 for item in ops.values()) for _, ops in profiles)
    if not events:
        return 0.0
    return min(_MAX_EVENT_US, max(0.0, (seconds - wall) * 1e6 / events))


_MAX_EVENT_US = 1.0  # more than that is not the profiler but another load on the machine
