"""The built wheel elsewhere: JupyterLab 4.2 in an environment of its own, and Notebook 7."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import ROOT
from lab_server import Server
from notebook_page import NotebookPage
from scenarios import CHAIN, DIGEST, SETUP, fuse_accept_and_undo

pytestmark = [pytest.mark.essential, pytest.mark.slow]
OLDEST_LAB = "4.2.7"
# Kept between runs: made anew when a pin changes.
ENVIRONMENT = ROOT / "build" / f"jupyterlab-{OLDEST_LAB}"


@pytest.fixture(scope="module")
def wheel(labextension: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, front end included."""
    pytest.importorskip("hatchling", reason="pip install 'fusion-advisor[browser]'")
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out), cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def old_lab(wheel: Path) -> Path:
    """Python of an environment with JupyterLab 4.2 and the wheel; kernels run elsewhere."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = "\n".join(line for line in pins.splitlines() if not line.startswith("jupyterlab=="))
    wanted = hashlib.sha256(f"{OLDEST_LAB} {pins}".encode()).hexdigest()
    stamp, python = ENVIRONMENT / "made-from", ENVIRONMENT / "bin" / "python"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(ENVIRONMENT))
        constraints = ENVIRONMENT / "constraints.txt"
        constraints.write_text(pins, encoding="utf-8")
        pip(python, "--constraint", str(constraints), f"jupyterlab=={OLDEST_LAB}")
        stamp.write_text(wanted, encoding="utf-8")
    pip(python, "--no-deps", "--force-reinstall", str(wheel))
    return python


def pip(python: Path, *arguments: str) -> None:
    run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "-qq",
        "--disable-pip-version-check", *arguments,
    )  # fmt: skip


def run(*command: str, cwd: Path | None = None) -> str:
    """What the command printed; a failure shows it all."""
    # The pins of this checkout are of another JupyterLab.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_installed_extension_is_enabled_and_ok(old_lab: Path) -> None:
    listed = run(str(old_lab), "-m", "jupyter", "labextension", "list")
    (line,) = [line for line in listed.splitlines() if "fusion-advisor" in line]
    assert "enabled" in line and "OK" in line, line
    assert str(ENVIRONMENT) in listed


@pytest.fixture
def front_end(
    request: pytest.FixtureRequest, labextension: Path, tmp_path: Path
) -> Iterator[Server]:
    """The server of one of the other front ends."""
    if request.param == "notebook-7":
        server = Server(tmp_path, labextension, app="notebook")
    else:
        # Its own installed extension, none of ours beside it.
        old = request.getfixturevalue("old_lab")
        server = Server(tmp_path, None, python=str(old))
    yield server
    server.stop()


@pytest.mark.parametrize("front_end", ["notebook-7", "jupyterlab-4.2"], indirect=True)
def test_from_mark_to_kernel_and_back(
    front_end: Server, context: Any, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["front_end"]
    front_end.write("notebook.ipynb", SETUP, CHAIN, DIGEST)
    notebook = NotebookPage.open(context, front_end, "notebook.ipynb")
    fuse_accept_and_undo(notebook, name)
    assert notebook.own_errors() == []
