"""What this machine can do, part by part, and the line that installs what is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util

from fusion_advisor.records import Environment

CUDA_EXTRA = "pip install 'fusion-advisor[cuda]'"
LAB_EXTRA = "pip install 'fusion-advisor[lab]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One part: whether it is there, what was found, and what to do if it is not."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    required: bool = False


def examine() -> tuple[Check, ...]:
    """All checks; nothing is changed and nothing is measured."""
    checks = [
        Check(
            name="Python",
            ok=sys.version_info >= (3, 11),
            found=".".join(str(part) for part in sys.version_info[:3]),
            remedy="Python 3.11 or newer",
            required=True,
        ),
        _package("torch", "record and replay models", "pip install torch", required=True),
        _package("numba", "run fused CPU kernels", "pip install numba", required=True),
        _package("numba-cuda", "generate and check CUDA kernels", CUDA_EXTRA),
        _package("nvidia-cuda-nvdisasm", "look for stray instructions in CUDA code", CUDA_EXTRA),
        _package("ipython", "notebook magics", "pip install ipython", required=True),
        _package("matplotlib", "plots in notebooks", "pip install matplotlib"),
        _package("pandas", "findings and ops as tables", "pip install pandas"),
        _package("jupyterlab", "notebooks in a browser", LAB_EXTRA),
    ]
    for probe in (_devices, _threads):
        checks.append(_guarded(probe))
    return tuple(checks)


def render_checks(checks: tuple[Check, ...]) -> str:
    """The checks as a table, then the lines to type."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        mark = "ok     " if check.ok else "MISSING" if check.required else "absent "
        lines.append(f"{mark}  {check.name:<{width}}  {check.found}")
    remedies = dict.fromkeys(check.remedy for check in checks if not check.ok and check.remedy)
    if remedies:
        lines += ["", "To have the rest:", *(f"    {remedy}" for remedy in remedies)]
    return "\n".join(lines)


def _package(name: str, purpose: str, remedy: str, *, required: bool = False) -> Check:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(
            name=name, ok=False, found=f"needed to {purpose}" if required else f"would {purpose}",
            remedy=remedy, required=required,
        )  # fmt: skip
    return Check(name=name, ok=True, found=f"{version} ({purpose})", required=required)


def _guarded(probe: Callable[[], Check]) -> Check:
    """A probe's check; one that cannot run says why instead of ending the list."""
    try:
        return probe()
    except Exception as error:  # a broken driver or library may raise anything
        name = probe.__name__.strip("_")
        return Check(name=name, ok=False, found=f"could not be examined: {error}")


def _devices() -> Check:
    if util.find_spec("torch") is None:
        return Check(name="devices", ok=False, found="unknown without torch")
    from fusion_advisor.recorder import environment

    machine: Environment = environment()
    if machine.devices:
        return Check(name="devices", ok=True, found=f"{machine.cpu}; {', '.join(machine.devices)}")
    return Check(
        name="devices",
        ok=True,
        found=f"{machine.cpu}; no CUDA device: CUDA kernels are generated and checked, not timed",
    )


def _threads() -> Check:
    if util.find_spec("numba") is None:
        return Check(name="threads", ok=False, found="unknown without numba")
    from fusion_advisor.runtime.threads import threading_layer

    layer = threading_layer()
    if layer:
        return Check(name="threads", ok=True, found=f"parallel CPU kernels on {layer}")
    return Check(
        name="threads", ok=False, found="no thread-safe layer: CPU kernels run on one thread",
        remedy="pip install tbb",
    )  # fmt: skip
