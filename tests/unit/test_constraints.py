"""The pins agree with pyproject.toml, with each other and with what runs these tests."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = [
    line
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PINS = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in LINES}


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    texts = [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]
    return [Requirement(text) for text in texts]


def test_every_line_is_one_exact_pin_in_order() -> None:
    assert all(line.count("==") == 1 and line == line.strip() for line in LINES)
    assert len(PINS) == len(LINES)
    assert list(PINS) == sorted(PINS)


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_has_a_pin_that_satisfies_it(requirement: Requirement) -> None:
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_the_nvidia_pins_are_of_the_series_that_torch_needs() -> None:
    # torch 2.13.0 on PyPI asks for cuda-toolkit[...]==13.0.3; compiler and runtime compiler
    # of another series cannot be installed beside it.
    assert PINS["torch"] == "2.13.0"
    assert PINS["cuda-toolkit"].startswith("13.0.3")
    for name in ("nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cublas"):
        assert PINS[name].startswith(("13.0.", "13.1.")), name
    assert PINS["nvidia-nvvm"] == PINS["nvidia-cuda-nvrtc"] == "13.0.88"


def test_what_is_installed_is_what_is_pinned() -> None:
    different = {}
    for name in ("torch", "numba", "numba-cuda", "numpy", "nvidia-nvvm", "nvidia-cuda-nvrtc"):
        try:
            installed = Version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue  # an environment of the person's own making
        if installed.public != PINS[name]:  # 2.13.0+cpu is a build of 2.13.0
            different[name] = f"{installed} for {PINS[name]}"
    assert different == {}


def test_the_resolver_script_reads_the_same_pins() -> None:
    path = ROOT / "tools" / "resolve_constraints.py"
    spec = importlib.util.spec_from_file_location("resolve_constraints", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.pins("# c\nA_b.c==1.0\nx == 2  # why\n") == {"a-b-c": "1.0", "x": "2"}
    assert module.pins("\n".join(LINES)) == PINS
