"""The safety net of the other tests is itself tested, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def run(tmp_path: Path, text: str, **environment: str) -> str:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = essential: may not be skipped\n")
    (tmp_path / "test_it.py").write_text(text)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "FUSION_ADVISOR"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path,
        env=clean | environment,
    )  # fmt: skip
    return done.stdout


SKIPS = """
import pytest

@pytest.mark.essential
def test_a(): pytest.skip("no compiler")

@pytest.mark.essential
@pytest.mark.skipif(True, reason="no card")
def test_b(): pass

def test_c(): pytest.skip("fine")
"""


def test_essential_skips_fail_only_where_asked(tmp_path: Path) -> None:
    assert "3 skipped" in run(tmp_path, SKIPS)
    strict = run(tmp_path, SKIPS, FUSION_ADVISOR_REQUIRE_ESSENTIAL="1")
    assert "1 skipped" in strict
    assert "no compiler" in strict
    assert "no card" in strict
    assert "passed" not in strict.splitlines()[-1]


def test_a_file_with_essential_tests_cannot_skip_itself(tmp_path: Path) -> None:
    text = 'import pytest\npytest.skip("all", allow_module_level=True)\npytest.mark.essential\n'
    assert "1 skipped" in run(tmp_path, text)
    assert "1 error" in run(tmp_path, text, FUSION_ADVISOR_REQUIRE_ESSENTIAL="1")


LEAKS = """
import os, sys, torch
from torch.utils._python_dispatch import TorchDispatchMode

def test_clean(): torch.zeros(2).add(1)
def test_mode(): TorchDispatchMode().__enter__()
def test_hook(): torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
def test_threads(): torch.set_num_threads(torch.get_num_threads() + 1)
def test_patch(): torch.nn.Module.__call__ = lambda *_: None
def test_display(): sys.displayhook = print
def test_folder(): os.chdir("/")
"""


def test_what_a_test_leaves_behind_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = run(tmp_path, LEAKS)
    for what in (
        "torch dispatch modes", "forward hooks on all modules", "torch threads",
        "torch.nn.Module.__call__", "sys.displayhook", "the current folder",
    ):  # fmt: skip
        assert f"left changed behind: {what}" in output, what
    assert "7 passed" in output
    assert "6 errors" in output
