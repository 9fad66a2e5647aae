"""What every test can rely on: a quiet, offline process, and global state put back.

``FUSION_ADVISOR_REQUIRE_ESSENTIAL=1`` turns skips of tests marked ``essential``
into failures: a green run then cannot hide a missing install step.
"""

from __future__ import annotations

import builtins
import os
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before torch, transformers or matplotlib is imported by any test.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["KINETO_LOG_LEVEL"] = "6"
os.environ["MPLBACKEND"] = "Agg"
# Two processes of two threads each share two cores: a thread that waits leaves its core to others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

REQUIRE_ESSENTIAL = bool(os.environ.get("FUSION_ADVISOR_REQUIRE_ESSENTIAL"))


# Nothing global is left changed


def _torch_state(torch: Any) -> dict[str, object]:
    module = torch.nn.modules.module
    optimizer = sys.modules["torch.optim.optimizer"]  # deleted from torch.optim itself
    return {
        "torch dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch function modes": torch._C._len_torch_function_stack(),
        "forward hooks on all modules": len(module._global_forward_hooks),
        "forward pre-hooks on all modules": len(module._global_forward_pre_hooks),
        "backward hooks on all modules": len(module._global_backward_hooks),
        "optimizer hooks": len(optimizer._global_optimizer_pre_hooks)  # type: ignore[attr-defined]
        + len(optimizer._global_optimizer_post_hooks),  # type: ignore[attr-defined]
        "gradients enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch threads": torch.get_num_threads(),
        "torch.nn.Module.__call__": torch.nn.Module.__call__,
        "torch.nn.Module._call_impl": torch.nn.Module._call_impl,
        "torch.nn.Module.__setattr__": torch.nn.Module.__setattr__,
        "torch.Tensor.backward": torch.Tensor.backward,
        "torch.autograd.backward": torch.autograd.backward,
        "torch.optim.Optimizer.step": torch.optim.Optimizer.step,
        "torch.nn.functional.gelu": torch.nn.functional.gelu,
        "torch.compile": torch.compile,
    }


def _python_state() -> dict[str, object]:
    return {
        "builtins.__import__": builtins.__import__,
        "builtins.compile": builtins.compile,
        "sys.displayhook": sys.displayhook,
        "sys.excepthook": sys.excepthook,
        "the trace function": None if _under_debugger() else sys.gettrace(),
        "the profile function": None if _under_debugger() else sys.getprofile(),
        "warnings.showwarning": warnings.showwarning,
        "the current folder": os.getcwd(),
    }


def _under_debugger() -> bool:
    return any(name in sys.modules for name in ("pydevd", "coverage"))


@pytest.fixture(autouse=True)
def global_state_is_restored() -> Iterator[None]:
    """Fails a test that leaves a mode, hook, setting or patch behind (about 20 microseconds)."""
    torch = sys.modules.get("torch")
    python_before = _python_state()
    torch_before = _torch_state(torch) if torch is not None else {}
    yield
    changed = _differences(python_before, _python_state())
    if torch is not None:
        changed += _differences(torch_before, _torch_state(torch))
    if changed:
        pytest.fail("left changed behind: " + "; ".join(changed), pytrace=False)


def _differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [
        f"{name} ({value!r} is now {after[name]!r})"
        for name, value in before.items()
        if after[name] != value
    ]


# Essential tests are not skipped where that is asked for


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip of an essential test into a failure."""
    report = yield
    if REQUIRE_ESSENTIAL and report.skipped and item.get_closest_marker("essential"):
        _fail(report, "essential test was skipped")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file that skips itself while it is imported."""
    report = yield
    if REQUIRE_ESSENTIAL and report.skipped and isinstance(collector, pytest.File):
        text = Path(collector.path).read_text(encoding="utf-8")
        if "mark.essential" in text:
            _fail(report, "file with essential tests was skipped")
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport, what: str) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{what}, and FUSION_ADVISOR_REQUIRE_ESSENTIAL is set: {reason}"
