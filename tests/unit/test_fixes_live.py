"""Live swaps: functions, single modules, source files, exported modules; all taken back exactly."""

from __future__ import annotations

import copy
import importlib
import io
import linecache
import pickle
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fix_support import candidates_of, record_call, same, stand_in

from fusion_advisor.errors import FixError
from fusion_advisor.fixes import (
    ChangeStack,
    ModulePiece,
    apply_file,
    apply_function,
    apply_module,
    find_function,
    function_source,
    global_name,
    module_file,
    plan_function,
    plan_text,
    read_source,
    reapply_cell,
    runtime_scalars,
)
from fusion_advisor.records import Fix, KernelSource, OpGraph

SOURCE = '''"""A module of a person."""
import torch
from torch import nn


def scaled(factor):
    def inner(x, *, shift=1.0):
        """Doc."""
        h = x * factor
        return torch.tanh(h) + shift

    return inner


class Base(nn.Module):
    def extra(self, x):
        return x


class Block(Base):
    """A block."""

    def __init__(self, size=6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size) * 0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        x = super().extra(x)
        h = x * self.weight
        # the gate
        y = torch.sigmoid(h) * x
        z = torch.relu(y.sum(-1, keepdim=True) + x)
        return z * 2

    def check(self, x):
        t = x + 1
        t = t * 2
        if t.sum() != 0:
            raise ValueError("wrong")


inner = scaled(3.0)
'''


@dataclass
class World:
    module: types.ModuleType
    path: Path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    name = f"person_{tmp_path.name}".replace("-", "_")
    path = tmp_path / f"{name}.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield World(importlib.import_module(name), path)
    sys.modules.pop(name, None)


def pieces(
    call: Callable[[], object], function: types.FunctionType
) -> list[tuple[Fix, KernelSource, dict[str, object]]]:
    """Fix, kernel and namespace of every chain of a function that a call runs."""
    graph: OpGraph = record_call(call)
    text = function_source(function)
    found = []
    for number, candidate in enumerate(candidates_of(graph)):
        span = next(node.span for node in graph.nodes if node.id == candidate.nodes[-1])
        if span is None or span.file != function.__code__.co_filename:
            continue
        kernel = stand_in(
            graph, candidate, runtime_scalars(graph, candidate, text), f"fused_{number}"
        )
        name = global_name(kernel)
        fix = plan_function(
            graph, candidate, kernel, text, call_name=name, namespace=function.__globals__
        )
        space: dict[str, Any] = {}
        exec(kernel.text, space)
        found.append((fix, kernel, {name: space[kernel.entry]}))
    return found


def data() -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(3))


def test_function_swap_keeps_everything_and_undoes_exactly(world: World) -> None:
    inner = world.module.inner
    code, before = inner.__code__, dict(inner.__globals__)
    wanted = inner(data(), shift=2.0)
    ((fix, _, namespace),) = pieces(lambda: inner(data()), inner)
    assert not fix.blockers
    other = world.module.scaled(5.0)  # another closure of the same code
    change = apply_function(inner, fix, namespace)
    assert inner.__code__ is not code
    assert other.__code__ is inner.__code__
    assert inner.__code__.co_firstlineno == code.co_firstlineno
    assert inner.__doc__ == "Doc."
    assert same(inner(data(), shift=2.0), wanted)
    assert same(other(data()), torch.tanh(data() * 5.0) + 1.0)
    with pytest.raises(FixError, match="already"):
        apply_function(inner, fix, namespace)
    change.undo()
    change.undo()
    assert inner.__code__ is code
    assert other.__code__ is code
    assert dict(inner.__globals__) == before


def test_several_fixes_are_undone_in_any_order(world: World) -> None:
    block = world.module.Block()
    forward = world.module.Block.forward
    code, wanted = forward.__code__, block(data())
    found = pieces(lambda: block(data()), forward)
    assert len(found) == 2
    changes = [apply_function(forward, fix, namespace) for fix, _, namespace in found]
    names = set(forward.__code__.co_names)
    assert {name for _, _, space in found for name in space} <= names
    assert same(block(data()), wanted)
    changes[0].undo()
    assert next(iter(found[0][2])) not in forward.__code__.co_names
    assert next(iter(found[1][2])) in forward.__code__.co_names
    assert same(block(data()), wanted)
    changes[1].undo()
    assert forward.__code__ is code


def test_traceback_shows_the_line_of_the_source(world: World) -> None:
    block = world.module.Block()
    check = world.module.Block.check
    with pytest.raises(ValueError, match="wrong") as plain:
        block.check(data())
    line = traceback.extract_tb(plain.tb)[-1].lineno

    def run() -> None:
        with pytest.raises(ValueError, match="wrong"):
            block.check(data())

    ((fix, _, namespace),) = pieces(run, check)
    assert not fix.blockers, fix.blockers
    change = apply_function(check, fix, namespace)
    with pytest.raises(ValueError, match="wrong") as patched:
        block.check(data())
    last = traceback.extract_tb(patched.tb)[-1]
    assert (last.lineno, last.line) == (line, 'raise ValueError("wrong")')
    change.undo()


def test_changed_source_is_refused(world: World) -> None:
    forward = world.module.Block.forward
    block = world.module.Block()
    (fix, _, namespace), _ = pieces(lambda: block(data()), forward)
    world.path.write_text(
        SOURCE.replace("y = torch.sigmoid(h) * x", "y = torch.sigmoid(h) * x * 2")
    )
    with pytest.raises(FixError, match="not what is running"):
        apply_function(forward, fix, namespace)
    world.path.write_text(SOURCE)


def test_function_is_found_by_its_place(world: World) -> None:
    block = world.module.Block()
    graph = record_call(lambda: (block(data()), world.module.inner(data())))
    spans = {node.span.function: node.span for node in graph.nodes if node.span is not None}
    assert find_function(spans["Block.forward"]) is world.module.Block.forward
    inner = next(span for name, span in spans.items() if name.endswith("inner"))
    assert find_function(inner) is world.module.inner
    with pytest.raises(FixError, match=r"not inside a function.*edit the text"):
        find_function(replace(inner, function="", line=1))
    with pytest.raises(FixError, match=r"no live function holds .*defined again"):
        find_function(replace(inner, line=1))


def test_threads_run_while_it_is_swapped(world: World) -> None:
    inner, wanted = world.module.inner, world.module.inner(data())
    ((fix, _, namespace),) = pieces(lambda: inner(data()), inner)
    stop, wrong = threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            if not same(inner(data()), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        apply_function(inner, fix, namespace).undo()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_module_swap_changes_one_instance(world: World) -> None:
    patched, other = world.module.Block(), world.module.Block()
    forward = world.module.Block.forward
    wanted, state = patched(data()), copy.deepcopy(patched.state_dict())
    hooked: list[int] = []
    patched.register_forward_hook(lambda *_: hooked.append(1))
    shown = repr(patched)
    changes = [
        apply_module(patched, forward, fix, namespace)
        for fix, _, namespace in pieces(lambda: other(data()), forward)
    ]
    kind = type(patched)
    assert type(other) is world.module.Block
    assert kind is not world.module.Block
    assert isinstance(patched, world.module.Block)
    assert (kind.__name__, kind.__qualname__, kind.__module__) == (
        "Block",
        "Block",
        world.module.__name__,
    )
    assert repr(patched) == shown
    assert same(patched(data()), wanted)
    assert hooked
    assert patched.train().training
    assert not patched.eval().training
    assert patched.to(torch.float64)(data().double()).dtype == torch.float64
    patched.to(torch.float32)
    assert all(same(one, patched.state_dict()[name]) for name, one in state.items())
    for copied in (copy.deepcopy(patched), copy.copy(patched)):
        assert type(copied) is world.module.Block
        assert same(copied(data()), wanted)
    changes[0].undo()
    assert same(patched(data()), wanted)
    changes[1].undo()
    assert type(patched) is world.module.Block
    assert not set(vars(world.module)) & {"fused_0", "fused_1"}
    assert forward.__globals__.keys() == vars(world.module).keys()


def test_patched_module_saves_as_the_original(world: World) -> None:
    patched, wanted = world.module.Block(), None
    forward = world.module.Block.forward
    wanted = patched(data())
    (fix, _, namespace), _ = pieces(lambda: patched(data()), forward)
    change = apply_module(patched, forward, fix, namespace)
    del patched._buffers["calls"]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        loaded = pickle.loads(pickle.dumps(patched, protocol))
        assert type(loaded) is world.module.Block
        assert same(loaded(data()), wanted)
    buffer = io.BytesIO()
    torch.save(patched, buffer)
    buffer.seek(0)
    assert type(torch.load(buffer, weights_only=False)) is world.module.Block
    buffer = io.BytesIO()
    torch.save(patched.state_dict(), buffer)
    buffer.seek(0)
    assert patched.load_state_dict(torch.load(buffer, weights_only=True)).missing_keys == []
    change.undo()


def test_module_swap_refuses_what_it_cannot_do(world: World) -> None:
    block = world.module.Block()
    (fix, _, namespace), _ = pieces(lambda: block(data()), world.module.Block.forward)
    with pytest.raises(FixError, match="not a plain method"):
        apply_module(torch.nn.ReLU(), world.module.Block.forward, fix, namespace)
    change = apply_module(block, world.module.Block.forward, fix, namespace)
    patched = type(block)
    block.__class__ = world.module.Block
    with pytest.raises(FixError, match="somebody else"):
        change.undo()
    block.__class__ = patched
    change.undo()
    assert type(block) is world.module.Block


def test_stack_takes_back_one_all_or_a_trial(world: World) -> None:
    block, forward = world.module.Block(), world.module.Block.forward
    code = forward.__code__
    found = pieces(lambda: block(data()), forward)
    stack = ChangeStack()
    for number, (fix, _, namespace) in enumerate(found):
        stack.push(f"F{number + 1}", apply_function(forward, fix, namespace))
    assert stack.findings() == ("F1", "F2")
    assert stack.undo("F1") == (f"{world.module.__name__}.Block.forward",)
    assert stack.findings() == ("F2",)
    stack.undo()
    assert forward.__code__ is code
    fix, _, namespace = found[0]

    def interrupted() -> None:
        with stack.trial() as attempt:
            attempt.push("F1", apply_function(forward, fix, namespace))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert forward.__code__ is code
    with stack.trial() as attempt:
        attempt.push("F1", apply_function(forward, fix, namespace))
        stack.keep(attempt)
    assert forward.__code__ is not code
    stack.undo()
    assert forward.__code__ is code


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_file_edit_keeps_all_other_bytes(world: World, newline: str, mark: bytes) -> None:
    import linecache

    block = world.module.Block()
    graph = record_call(lambda: block(data()))
    content = mark + SOURCE.replace("\n", newline).encode().removesuffix(newline.encode())
    world.path.write_bytes(content)
    linecache.checkcache()
    plain = "".join(linecache.getlines(str(world.path)))
    for text in (plain, read_source(world.path)):
        candidate = candidates_of(graph)[0]
        kernel = stand_in(graph, candidate)
        fix = plan_text(graph, candidate, kernel, text)
        assert not fix.blockers, fix.blockers
        change = apply_file(fix)
        changed = world.path.read_bytes()
        assert changed.startswith(mark)
        assert (b"\r\n" in changed) == (newline == "\r\n")
        assert changed.replace(b"\r\n", b"").count(b"\n") == (
            0 if newline == "\r\n" else changed.count(b"\n")
        )
        assert b"fused_chain(x, self.weight)" in changed
        with pytest.raises(FixError, match="changed since"):
            apply_file(fix)
        change.undo()
        assert world.path.read_bytes() == content
    change = apply_file(fix)
    world.path.write_bytes(world.path.read_bytes() + b"# mine")
    with pytest.raises(FixError, match="edited after"):
        change.undo()
    world.path.write_text(SOURCE)


def test_exported_module_applies_by_import_path(world: World, tmp_path: Path) -> None:
    block, forward = world.module.Block(), world.module.Block.forward
    code, wanted = forward.__code__, block(data())
    found = pieces(lambda: block(data()), forward)
    text = module_file([ModulePiece(k, forward, fix) for fix, k, _ in found], title="Fused block")
    (tmp_path / "fused_block.py").write_text(text)
    fused = importlib.import_module("fused_block")
    assert fused.apply(block) == [f"{world.module.__name__}:Block.forward"]
    assert forward.__code__ is not code
    assert same(block(data()), wanted)
    assert "".join(linecache.getlines(str(world.path))) == world.path.read_text()
    assert fused.apply(block) == []
    assert fused.undo(block) == [f"{world.module.__name__}:Block.forward"]
    assert forward.__code__ is code
    with pytest.raises(RuntimeError, match="has no Block"):
        fused.apply(torch.nn.ReLU())
    world.path.write_text(SOURCE.replace("# the gate", "# another gate"))
    with pytest.raises(RuntimeError, match="not the one these kernels were made for"):
        fused.apply(block)
    assert forward.__code__ is code
    world.path.write_text(SOURCE)
    sys.modules.pop("fused_block")
    script = (
        f"import torch, {world.module.__name__} as person\nblock = person.Block()\n"
        f"{reapply_cell('fused_block', 'block')}\nassert 'fused' in str("
        "person.Block.forward.__code__.co_names)\nprint(block(torch.ones(2, 6)).sum().item())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) == pytest.approx(block(torch.ones(2, 6)).sum().item())


def test_notebook_functions_cannot_be_exported(world: World) -> None:
    inner = world.module.inner
    ((fix, kernel, _),) = pieces(lambda: inner(data()), inner)
    with pytest.raises(FixError, match="no import can find it"):
        module_file([ModulePiece(kernel, inner, fix)])
