"""Resolve constraints.txt against PyPI, without installing anything.

    python tools/resolve_constraints.py            check
    python tools/resolve_constraints.py --write    renew the pins (keeps those in KEPT)

uv reads PyPI's metadata alone, so it sees PyPI's own CUDA build of torch and all that
this asks for, also on a machine whose pip finds another build on its disk.  The check
fails when the pins contradict each other on a supported Python, or when something that
would be installed has no pin.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
PYTHONS = ("3.11", "3.12", "3.13")  # uv takes 3.11 to mean its first release, 3.11.0
PLATFORM = "x86_64-manylinux_2_28"
BUILD_REQUIREMENTS = ("hatchling", "editables", "jupyter-builder")
# Never renewed by --write: what generated kernels, validation and torch itself depend on.
KEPT = ("torch", "numba", "numba-cuda", "cuda-toolkit", "nvidia-cuda-nvrtc", "nvidia-nvvm")


def normalised(name: str) -> str:
    """The name by which package indexes compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Package to version, from lines like ``name==1.2``."""
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {normalised(name.strip()): version.strip() for name, version in pairs}


def resolve(python: str, constraints: Path) -> dict[str, str]:
    """What ``pip install .[all extras]`` would install on ``python``; exits with uv's reason."""
    done = subprocess.run(
        [
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header",
            "--no-annotate", "--all-extras", "--constraints", str(constraints),
            "--python-version", python, "--python-platform", PLATFORM,
            "pyproject.toml", "-",
        ],
        input="\n".join(BUILD_REQUIREMENTS), capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"The pins do not resolve on Python {python}:\n{done.stderr.strip()}")
    return pins(done.stdout)


def check() -> int:
    """Print one line per Python; 1 when something would be installed unpinned."""
    known = pins(CONSTRAINTS.read_text(encoding="utf-8"))
    failed = False
    used: set[str] = set()
    for python in PYTHONS:
        found = resolve(python, CONSTRAINTS)
        used |= set(found)
        unpinned = sorted(set(found) - set(known))
        failed |= bool(unpinned)
        print(
            f"Python {python}: {len(found)} packages resolve, torch {found['torch']} with "
            f"cuda-toolkit {found['cuda-toolkit']}"
            + (f"; WITHOUT A PIN: {', '.join(unpinned)}" if unpinned else "")
        )
    unused = sorted(set(known) - used)
    if unused:
        print(f"Pinned but not needed any more: {', '.join(unused)}")
    return int(failed or bool(unused))


def write() -> int:
    """Resolve anew with only ``KEPT`` fixed, and write constraints.txt."""
    text = CONSTRAINTS.read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if normalised(line.split("==")[0]) in KEPT]
    (ROOT / "build").mkdir(exist_ok=True)
    fixed = ROOT / "build" / "kept-constraints.txt"
    fixed.write_text("\n".join(kept), encoding="utf-8")
    found: dict[str, str] = {}
    for python in reversed(PYTHONS):  # the oldest last: its versions serve all
        found.update(resolve(python, fixed))
    head = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    body = "".join(f"{name}=={version}\n" for name, version in sorted(found.items()))
    CONSTRAINTS.write_text(head + body, encoding="utf-8")
    return check()


if __name__ == "__main__":
    sys.exit(write() if sys.argv[1:] == ["--write"] else check())
