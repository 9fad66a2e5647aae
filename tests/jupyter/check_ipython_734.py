"""Runs the magics' tests under IPython 7.34, in an environment of its own.

``python tests/jupyter/check_ipython_734.py [FOLDER]``: makes a virtual environment in FOLDER
(default: a temporary one, removed afterwards), installs IPython 7.34 and pytest, and runs the
shell tests there.  torch and all else come from the environment that this script runs in.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("test_magics_run.py", "test_magics_findings.py", "test_magics_bad_input.py")


def main(folder: Path) -> int:
    """Make the environment if it is not there, and run; the status of pytest."""
    python, made = folder / "bin" / "python", folder / "made"
    if not made.exists():
        venv.create(folder, with_pip=True, clear=True)
        # setuptools: IPython 7.34 imports pkg_resources
        packages = ["ipython==7.34.0", "setuptools<81", "pytest"]
        # The pins of this checkout are of another IPython.
        environment = {k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"}
        subprocess.run(
            [python, "-m", "pip", "install", "-q", *packages], check=True, env=environment
        )
        # Behind the environment's own packages, so that its IPython is the one imported.
        (own,) = folder.glob("lib/python3*/site-packages")
        (own / "beside.pth").write_text(sysconfig.get_paths()["purelib"], encoding="utf-8")
        made.touch()
    paths = " ".join(str(ROOT / part) for part in (".", "tests", "tests/unit"))
    return subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
         "--rootdir", ROOT, "--import-mode=importlib", "-o", f"pythonpath={paths}",
         *(ROOT / "tests" / "jupyter" / name for name in TESTS)],
        check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(temporary)))
