"""What this machine can do, part by part, and the line that installs what is missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

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
    for probe in (_extension, _devices, _threads):
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


def _extension() -> Check:
    """The JupyterLab extension where this Python's JupyterLab looks: wheels can be without it."""
    for folder in _labextension_folders():
        package = folder / "fusion-advisor" / "package.json"
        if package.is_file():
            version = json.loads(package.read_text(encoding="utf-8"))["version"]
            found = f"{version} (marks and actions in JupyterLab's cells)"
            return Check(name="extension", ok=True, found=found)
    return Check(
        name="extension",
        ok=False,
        found="would mark findings in JupyterLab's cells",
        remedy="a wheel that was built where node is; in a checkout: make extension",
    )


def _labextension_folders() -> list[Path]:
    if util.find_spec("jupyter_core") is None:
        return [Path(sys.prefix, "share", "jupyter", "labextensions")]
    from jupyter_core.paths import jupyter_path

    return [Path(folder) for folder in jupyter_path("labextensions")]


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
