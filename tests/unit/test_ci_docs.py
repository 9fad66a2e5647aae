"""docs/ci.md: the workflow is one GitHub reads, and its commands run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from sarif_kit.validate import validation_errors

pytestmark = pytest.mark.essential
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def block(language: str, after: str) -> str:
    """The first code block of a language after a heading."""
    found = re.search(rf"## {after}\n.*?```{language}\n(.*?)```", PAGE, re.S)
    assert found is not None, after
    return found[1]


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(block("yaml", "GitHub Actions"))
    return loaded


def steps() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = workflow()["jobs"]["fusion"]["steps"]
    return found


def test_the_workflow_has_what_github_needs():
    loaded = workflow()
    assert loaded[True] == {"pull_request": None, "push": {"branches": ["main"]}}  # "on"
    assert loaded["permissions"]["security-events"] == "write"
    assert all(("uses" in step) != ("run" in step) for step in steps())
    uses = {step["uses"].partition("@")[0]: step for step in steps() if "uses" in step}
    assert all(re.fullmatch(r"[\w-]+/[\w./-]+@v\d+", step["uses"]) for step in uses.values())
    upload = uses["github/codeql-action/upload-sarif"]
    assert upload["if"] == "always()"  # findings are shown when the gate fails, too
    profile = next(step["run"] for step in steps() if "fusion-advisor run" in step.get("run", ""))
    assert f"--export {upload['with']['sarif_file']}" in profile


def test_the_install_step_installs_this_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [install] = [step["run"] for step in steps() if step.get("name") == "Install"]
    lines = install.strip().splitlines()
    assert all(line.startswith("python -m pip install ") for line in lines)
    assert lines[-1].split()[-1] == project["name"]
    version = next(step["with"] for step in steps() if "setup-python" in step.get("uses", ""))
    assert (
        f"Programming Language :: Python :: {version['python-version']}" in (project["classifiers"])
    )


@pytest.mark.slow
def test_the_commands_run_and_the_gate_fails_on_a_regression(tmp_path):
    (tmp_path / "fusion_check.py").write_text(block("python", "What to profile"))
    summary = tmp_path / "summary.md"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    command = tmp_path / "fusion-advisor"  # as the installed script is, of this checkout
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fusion_advisor "$@"\n')
    command.chmod(0o755)

    def run(commands: str) -> subprocess.CompletedProcess[str]:
        """As GitHub does on Linux: one bash that stops at the first failure."""
        return subprocess.run(
            ["bash", "-e", "-c", commands], cwd=tmp_path, env=environment,
            capture_output=True, text=True,
        )  # fmt: skip

    made = run(block("bash", "The baseline").replace("git add", "test -s"))
    assert made.returncode == 0, made.stderr
    for step in steps():
        if "run" in step and step["name"] != "Install":
            done = run(step["run"])
            assert done.returncode == 0, (step["name"], done.stdout, done.stderr)
    assert summary.read_text().startswith("## Fusing 1 place would save")
    log = json.loads((tmp_path / "fusion.sarif").read_text())
    assert validation_errors(log) == []
    [place] = log["runs"][0]["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "fusion_check.py"
    line = place["physicalLocation"]["region"]
    source = (tmp_path / "fusion_check.py").read_text().splitlines()[line["startLine"] - 1]
    expression = source[line["startColumn"] - 1 : line["endColumn"] - 1]
    assert expression.startswith("0.5 * h * (1.0 + torch.tanh(")
    assert expression.endswith(")))")

    worse = (tmp_path / "fusion_check.py").read_text().replace("return x +", "return x * 1.5 +")
    (tmp_path / "fusion_check.py").write_text(worse)
    profile, compare = (step["run"] for step in steps() if "fusion-advisor" in step.get("run", "")
                        and "pip" not in step["run"])  # fmt: skip
    assert run(profile).returncode == 0
    failed = run(compare)
    assert failed.returncode == 1
    found = re.search(r"regressed +kernels +baseline (\d+) +now (\d+) ", failed.stdout)
    assert found is not None, failed.stdout
    assert int(found[2]) == int(found[1]) + 1
    ratio = re.search(r"ok +fusion ratio .* now .* of (\d+) ops", failed.stdout)
    assert ratio is not None
    assert ratio[1] == found[2]  # the ops that the ratio is of are the kernels that are counted
