"""A JupyterLab server of its own: settings, kernels and folders apart from the person's."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from chromium import ROOT

# JupyterLab and its kernels start slowly where the whole test suite runs beside them.
START_SECONDS = 120
QUIET_SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


class Server:
    """Started by the constructor, with the extension from ``labextension`` (a folder)."""

    def __init__(
        self,
        folder: Path,
        labextension: Path | None,
        *,
        python: str = sys.executable,
        app: str = "lab",
        settings: dict[str, dict[str, object]] | None = None,
    ) -> None:
        self.folder = folder
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.token = secrets.token_hex(16)
        self.app = app
        self.log = folder / "server.log"
        self._write_settings(QUIET_SETTINGS | (settings or {}))
        self._write_kernel("python3", "Python 3", sys.executable, {"PYTHONPATH": str(ROOT)})
        if labextension is not None:
            links = folder / "path" / "labextensions"
            links.mkdir(parents=True)
            (links / "fusion-advisor").symlink_to(labextension, target_is_directory=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    python, "-m", "jupyterlab" if app == "lab" else "notebook", "--no-browser",
                    "--allow-root", "--expose-app-in-browser", "--ServerApp.port=0",
                    f"--ServerApp.root_dir={self.notebooks}",
                    f"--IdentityProvider.token={self.token}",
                    "--LabApp.news_url=None",
                    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                ],
                cwd=self.notebooks, env=self._environment(), stdout=log, stderr=log,
            )  # fmt: skip
        self.url = self._wait_until_up()

    def _environment(self) -> dict[str, str]:
        # Kernels see what their kernelspec says, and nothing of the tests' own surroundings.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("JUPYTER") and name != "PYTHONPATH"
        }
        return kept | {
            "JUPYTER_CONFIG_DIR": str(self.folder / "config"),
            "JUPYTER_DATA_DIR": str(self.folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.folder / "runtime"),
            "JUPYTER_PATH": str(self.folder / "path"),
            "IPYTHONDIR": str(self.folder / "ipython"),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "KINETO_LOG_LEVEL": "6",
            "PYTHONWARNINGS": "ignore",
        }

    def _write_settings(self, settings: dict[str, dict[str, object]]) -> None:
        for plugin, values in settings.items():
            path = (
                self.folder / "config" / "lab" / "user-settings" / f"{plugin}.jupyterlab-settings"
            )
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), encoding="utf-8")

    def _write_kernel(
        self, name: str, title: str, python: str, environment: dict[str, str]
    ) -> None:
        spec = {
            "argv": [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": title,
            "language": "python",
            "env": environment,
        }
        path = self.folder / "path" / "kernels" / name / "kernel.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(spec), encoding="utf-8")

    def add_kernel(self, name: str, title: str, python: str) -> None:
        """A kernel that does not see this checkout."""
        self._write_kernel(name, title, python, {})

    def _wait_until_up(self) -> str:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            for file in (self.folder / "runtime").glob("jpserver-*.json"):
                try:
                    url = str(json.loads(file.read_text(encoding="utf-8"))["url"])
                    with urllib.request.urlopen(f"{url}api?token={self.token}", timeout=5):
                        return url
                except (OSError, ValueError, KeyError):
                    continue
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"the Jupyter server did not start:\n{self.log.read_text()[-4000:]}")

    def write(self, name: str, *cells: str, kernel: str = "python3") -> str:
        """A notebook of code cells under ``name``, as a person would have saved it."""
        import nbformat

        book = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={
                "kernelspec": {"name": kernel, "display_name": kernel, "language": "python"},
                "language_info": {"name": "python"},
            },
        )
        nbformat.write(book, self.notebooks / name)
        return name

    def read(self, name: str) -> Any:
        """The notebook as it is on disk."""
        import nbformat

        return nbformat.read(self.notebooks / name, as_version=4)

    def address(self, notebook: str) -> str:
        """Where ``notebook`` opens, in a workspace of its own."""
        if self.app == "lab":
            workspace = secrets.token_hex(4)
            return f"{self.url}lab/workspaces/{workspace}/tree/{notebook}?token={self.token}"
        return f"{self.url}notebooks/{notebook}?token={self.token}"

    def stop_kernels(self) -> None:
        """End every kernel, so that a test does not pay for those before it."""
        for kernel in self._ask("api/kernels"):
            self._ask(f"api/kernels/{kernel['id']}", method="DELETE")

    def _ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(
            self.url + path, method=method, headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def stop(self) -> None:
        """End the server, and with it its kernels."""
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
