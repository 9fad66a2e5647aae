"""The oldest IPython that is supported: its shell runs the magics' own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.essential
@pytest.mark.slow
def test_the_magics_under_ipython_7_34():
    folder = ROOT / "build" / "ipython-7.34"  # kept between runs
    script = Path(__file__).with_name("check_ipython_734.py")
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    version = subprocess.run(
        [folder / "bin" / "python", "-c", "import IPython; print(IPython.__version__)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert version.stdout.strip() == "7.34.0"
    assert "skipped" not in done.stdout
