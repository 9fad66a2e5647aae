"""The machine and the versions that a capture was made with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch

from fusion_advisor.records import Environment

_PACKAGES = (
    "fusion-advisor",
    "torch",
    "numpy",
    "numba",
    "numba-cuda",
    "transformers",
    "diffusers",
    "ipython",
)


def environment() -> Environment:
    """Versions, processor, threads and devices of this process, now."""
    return Environment(
        python=platform.python_version(),
        packages=_versions(),
        platform=platform.platform(),
        cpu=_cpu_name(),
        threads=torch.get_num_threads(),
        devices=tuple(
            torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
        ),
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return f"{line.partition(':')[2].strip()} ({os.cpu_count()} CPUs)"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()} ({os.cpu_count()} CPUs)"
