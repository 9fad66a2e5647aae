"""A CUDA call by addresses: what is handed to the driver, run as the kernel's own code natively."""

from __future__ import annotations

import concurrent.futures
import ctypes
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forms_support import recorded
from kernel_harness import load

from fusion_advisor.analysis import find_candidates
from fusion_advisor.kernels import generate_kernel
from fusion_advisor.runtime import launch as launches
from fusion_advisor.runtime import launch_cuda
from fusion_advisor.runtime.plan import Plan, make_plan
from fusion_advisor.validation import cuda_compiler, native_module

pytestmark = [
    pytest.mark.essential,
    pytest.mark.skipif(
        cuda_compiler.toolchain_missing() != "", reason="numba-cuda's toolchain is not installed"
    ),
]


C_TYPES = {
    "i8": ctypes.c_int8,
    "i32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "double": ctypes.c_double,
}


def read(address: int, kinds: list[str]) -> list[Any]:
    """The machine arguments at an address, each in its width: what the driver does."""
    places = (ctypes.c_void_p * len(kinds)).from_address(address)
    return [
        C_TYPES.get(kind, ctypes.c_int64).from_address(place).value
        for place, kind in zip(places, kinds, strict=True)
    ]


class Call:
    """A recorded chain's kernel, planned for tensors, with what a launch would be told."""

    def __init__(
        self, function: Callable[..., Any], recorded_with: tuple[torch.Tensor, ...], args: Any
    ) -> None:
        recording = recorded(function, *recorded_with)
        (candidate,) = find_candidates(recording.graph)
        self.kernel = generate_kernel(recording.graph, candidate)
        self.fused = load(self.kernel)[self.kernel.entry]
        signature = self.fused.signature
        self.plan: Plan = make_plan(signature, args, with_gradient=False, target="cuda")
        assert not self.plan.problem
        first = launches.cuda_launch(
            self.fused.cuda, signature, self.plan, args, launches.allocate(self.plan)
        )
        self.packed = launch_cuda.PackedArguments(signature, self.plan, first)

    def run(self, args: Any) -> tuple[torch.Tensor, ...]:
        """The kernel's IR over exactly the words that the driver would be given."""
        out = launches.allocate(self.plan)
        compiled = cuda_compiler.compile_cuda(self.kernel, wide=self.plan.wide)
        host = native_module.translate(compiled.modules, compiled.name, compiled.architecture)
        assert len(self.packed) == len(host.parameters)
        words = read(self.packed.of(args, out), list(host.parameters))
        blocks = launch_cuda.blocks_of(self.plan.elements)
        native_module.NativeKernel(host).launch(blocks, 256, words)
        return out


def scaled(x: torch.Tensor, bias: torch.Tensor, y: torch.Tensor) -> Any:
    made = torch.relu(x + bias) * y
    return made, made - 1.0


def views_of(memory: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A row with gaps that begins late, a row, and one number."""
    return memory[0, 3:].as_strided((5, 7), (16, 1), 9), memory[1, 2:9], memory[2, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_addresses_lengths_and_sizes_are_the_kernel_s_own(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    args = views_of(torch.randn(3, 120).to(dtype))
    call = Call(scaled, args, args)
    for _ in range(2):  # the second call's memory is another one
        args = views_of(torch.randn(3, 120).to(dtype))
        for actual, expected in zip(call.run(args), scaled(*args), strict=True):
            assert torch.equal(actual, expected)


def test_a_view_in_the_chain_is_read_where_it_begins() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[:, 3:].t() + 1

    x = torch.randn(4, 9)
    assert torch.equal(Call(turned, (x,), (x,)).run((x,))[0], turned(x))


def test_bools_and_whole_numbers_keep_their_width() -> None:
    def picked(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, x * 2, y) + 1

    args = (torch.arange(300), torch.rand(300) > 0.5, torch.arange(300, 0, -1))
    assert torch.equal(Call(picked, args, args).run(args)[0], picked(*args))


def test_an_entry_starts_on_torch_s_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1000)
    call = Call(lambda x: torch.relu(x * 2) + 1, (x,), (x,))
    handles, streams, started = iter([7, 7, 0]), [], []
    monkeypatch.setattr(launch_cuda, "_raw_stream_getter", lambda: lambda index: next(handles))

    def start(*words: Any) -> tuple[int]:
        started.append((*words[:9], *read(words[9], ["i64"] * len(call.packed)), *words[10:]))
        return (0,)

    def stream(handle: int) -> str:
        streams.append(handle)
        return f"stream {handle}"

    entry = launch_cuda.make_entry(call.packed, call.plan, "function", start, stream)
    for _ in range(3):
        out = launches.allocate(call.plan)
        entry((x,), out)
        assert started[-1][9:].count(x.data_ptr()) == 1
        assert started[-1][9:].count(out[0].data_ptr()) == 1
    assert started[0][:9] == ("function", 4, 1, 1, 256, 1, 1, 0, "stream 7")
    assert [words[8] for words in started] == ["stream 7", "stream 7", "stream 0"]
    assert streams == [7, 0]  # one object a stream, however many launches


def test_threads_do_not_share_what_the_driver_reads() -> None:
    x, y = torch.randn(8), torch.randn(8)
    call = Call(lambda x: torch.relu(x * 2) + 1, (x,), (x,))
    out = launches.allocate(call.plan)
    first = call.packed.of((x,), out)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        second = pool.submit(call.packed.of, (y,), out).result()
        kinds = ["i64"] * len(call.packed)
        assert x.data_ptr() in read(first, kinds)
        assert y.data_ptr() in read(second, kinds)
        assert y.data_ptr() not in read(first, kinds)


def test_a_driver_s_refusal_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_cuda, "_raw_stream_getter", lambda: lambda index: 0)
    x = torch.randn(8)
    call = Call(lambda x: torch.relu(x * 2) + 1, (x,), (x,))
    entry = launch_cuda.make_entry(call.packed, call.plan, None, lambda *words: (1,), int)
    with pytest.raises(launch_cuda.CannotLaunchError, match="cannot be launched here"):
        entry((x,), launches.allocate(call.plan))


def test_a_call_that_copies_first_is_left_to_the_long_way() -> None:
    x = torch.randn(6, 4)
    recording = recorded(lambda x, y: torch.relu(x * 2) + y, x, x.clone())
    (candidate,) = find_candidates(recording.graph)
    kernel = generate_kernel(recording.graph, candidate)
    fused = load(kernel)[kernel.entry]
    odd = torch.randn(4, 6).t()  # lies otherwise than the other: laid out anew for the kernel
    plan = make_plan(fused.signature, (odd, x), with_gradient=False, target="cuda")
    first = launches.cuda_launch(
        fused.cuda, fused.signature, plan, (odd, x), launches.allocate(plan)
    )
    assert plan.copies
    assert launch_cuda.entry_for(fused.signature, plan, first) is None


def test_run_time_numbers_are_doubles_or_64_bit_integers() -> None:
    class Launch:
        arrays = (torch.zeros(5, dtype=torch.int16),)
        sizes, strides, scalars = (5,), (), (math.pi, -3)

    class Kind:
        sources, parameters = (0,), (("x", "int16"),)

    plan = Plan(operands=(type("Planned", (), {"offset": 2})(),))
    packed = launch_cuda.PackedArguments(Kind(), plan, Launch())  # type: ignore[arg-type]
    x = torch.zeros(9, dtype=torch.int16)
    words = read(packed.of((x, 2.5, -(2**40)), ()), [*["i64"] * 7, "i32", "double", "i64"])
    assert words == [0, 0, 5, 2, x.data_ptr() + 4, 5, 2, 5, 2.5, -(2**40)]
