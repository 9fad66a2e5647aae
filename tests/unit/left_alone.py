"""What a person's session looks like before and after: models, code, random state, files."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from fusion_advisor.recorder.timing import Timing
from fusion_advisor.records import BandwidthPoint, Ceilings, OpGraph, OpTime
from fusion_advisor.validation.whole_call import CallTimes

FAST_MACHINE = Ceilings(
    device="cpu",
    name="a fast machine",
    bandwidth=(BandwidthPoint(working_set_bytes=2**20, gb_per_s=5000.0),),
    gflops=(("float32", 50_000.0), ("float64", 25_000.0)),
    dispatch_us=5.0,
    call_us=1.0,
    threads=2,
)


def fixed_timing(graph: OpGraph, store: object, **_: object) -> Timing:
    """Every op takes 500 us, so that small chains are findings on any machine."""
    times = tuple(OpTime(node=node.id, host_us=500.0) for node in graph.nodes)
    return Timing(times=times, wall_us=500.0 * len(times), wall_spread_us=0.0)


def fixed_call_times(call: Callable[[], object], switch: Callable[[bool], None]) -> CallTimes:
    """One round, twice as fast with the kernels."""
    for inserted in (False, True):
        switch(inserted)
        call()
    return CallTimes(
        before_us=200.0, before_spread_us=1.0, after_us=100.0, after_spread_us=1.0, rounds=1
    )


def make_quick(monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> None:
    """Times that do not depend on the machine's mood, and take none; files go to ``folder``."""
    if folder is not None:
        monkeypatch.setattr(tempfile, "tempdir", os.fspath(folder))
    monkeypatch.setattr("fusion_advisor.recorder.timing.measure", fixed_timing)
    monkeypatch.setattr("fusion_advisor.advisor.measure_ceilings", lambda **_: FAST_MACHINE)
    monkeypatch.setattr("fusion_advisor.validation.whole_call.time_interleaved", fixed_call_times)


def _tensor(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (id(tensor), tensor.dtype, tensor.detach().clone())


def _model(model: torch.nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[f"{name} class"] = type(module)
        found[f"{name} attributes"] = sorted(vars(module))
        found[f"{name} training"] = module.training
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            found[f"{name} {kind}"] = [id(hook) for hook in getattr(module, kind).values()]
    for name, parameter in model.named_parameters():
        found[name] = _tensor(parameter)
        found[f"{name}.grad"] = _tensor(parameter.grad)
        found[f"{name} needs a gradient"] = parameter.requires_grad
    for name, buffer in model.named_buffers():
        found[name] = _tensor(buffer)
    return found


def temporary_files() -> set[str]:
    """What lies in the temporary folder, apart from the warm worker's own folder."""
    from fusion_advisor import workers

    own = {template.folder.name for template in workers._live}
    found = set(os.listdir(tempfile.gettempdir())) - own
    return {name for name in found if not name.startswith("torchinductor")}  # torch's own cache


def _session() -> dict[str, Any]:
    module = torch.nn.modules.module
    optimizer = sys.modules["torch.optim.optimizer"]
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "forward hooks": len(module._global_forward_hooks),
        "module call": torch.nn.Module.__call__,
        "autocast": (torch.amp.autocast.__enter__, torch.amp.autocast.__exit__),
        "optimizer hooks": (
            len(optimizer._global_optimizer_pre_hooks),  # type: ignore[attr-defined]
            len(optimizer._global_optimizer_post_hooks),  # type: ignore[attr-defined]
        ),
        "profiler": torch._C._autograd._profiler_enabled(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "interrupt handler": signal.getsignal(signal.SIGINT),
        "temporary files": temporary_files(),
    }


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = []
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if isinstance(old, tuple) and old and isinstance(old[-1], torch.Tensor):
            same = (
                isinstance(new, tuple)
                and old[:2] == new[:2]
                and torch.equal(old[2].nan_to_num(), new[2].nan_to_num())
            )
        else:
            same = old == new
        if not same:
            shown = f" ({old!r} is now {new!r})" if name == "temporary files" else ""
            found.append(name + shown)
    return found


@contextmanager
def left_alone(
    *models: torch.nn.Module, code: tuple[Any, ...] = (), random: bool = True
) -> Iterator[None]:
    """Fails where the block changes models, the code of functions, or the session.

    ``random`` is False where the person's own code draws random numbers in the block.
    """
    codes = [function.__code__ for function in code]
    names = [set(function.__globals__) for function in code]
    before, session = [_model(model) for model in models], _session()
    state = torch.get_rng_state()
    try:
        yield
    finally:
        changed = _differences(session, _session())
        for model, old in zip(models, before, strict=True):
            changed += _differences(old, _model(model))
        for function, old_code, old_names in zip(code, codes, names, strict=True):
            if function.__code__ is not old_code:
                changed.append(f"code of {function.__qualname__}")
            added = {name for name in set(function.__globals__) - old_names if "fused" in name}
            changed += [f"global {name}" for name in added]
        if random and not torch.equal(state, torch.get_rng_state()):
            changed.append("random state")
        assert not changed, f"changed: {', '.join(changed)}"
