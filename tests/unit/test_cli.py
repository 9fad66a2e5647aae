"""The command line: parsing, exit status, one-line errors, the script's own world."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_fixture import KERNEL_TEXT, empty_report, rich_report

import fusion_advisor
from fusion_advisor.cli import build_parser, main
from fusion_advisor.cli.completion import completion_script
from fusion_advisor.cli.doctor import Check, examine, render_checks
from fusion_advisor.report import export_report
from fusion_advisor.report.files import FORMATS, suffixes_text


class FakeAdvice:
    """A ready report."""

    report = rich_report()

    def export(self, path: str) -> Path:
        return export_report(self.report, path)

    def close(self) -> None:
        pass


@pytest.fixture
def advisor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An advisor that only runs the code."""
    fake = types.ModuleType("fusion_advisor.advisor")
    fake.options = []  # type: ignore[attr-defined]

    def profile_code(run: Callable[[], Any], **options: Any) -> FakeAdvice:
        fake.options.append({**options, "result": run()})  # type: ignore[attr-defined]
        return FakeAdvice()

    fake.profile_code = profile_code  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fusion_advisor.advisor", fake)
    monkeypatch.setattr(fusion_advisor, "advisor", fake, raising=False)
    return fake


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return str(export_report(rich_report(), tmp_path / "r.json"))


def script(folder: Path, text: str) -> str:
    path = folder / "work.py"
    path.write_text(text)
    return str(path)


def test_run_gives_the_script_its_own_world_and_puts_ours_back(advisor, tmp_path, capsys):
    (tmp_path / "helper_of_work.py").write_text("VALUE = 7")
    path = script(
        tmp_path,
        "import sys, helper_of_work, __main__\n"
        "assert __name__ == '__main__' and __main__.__file__ == __file__\n"
        "answer = helper_of_work.VALUE\n"
        "assert __main__.answer == 7\n"
        "print(sys.argv[1:])\n",
    )
    before = (sys.argv[:], sys.path[:], sys.modules["__main__"])
    assert main(["run", "--top", "1", path, "a", "--", "--flag", "--top", "9"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("['a', '--flag', '--top', '9']")
    assert "Fusing 3 places" in out
    assert "2 more findings" in out
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_options_reach_the_advisor(advisor, tmp_path):
    path = script(tmp_path, "")
    assert main(["run", path, "--device", "h100", "--target", "cuda", "--steps", "5"]) == 0
    options = advisor.options[0]
    assert (options["device"], options["target"], options["steps"]) == ("h100", "cuda", 5)
    assert options["title"] == "work.py"


def test_a_script_that_exits_is_still_reported(advisor, tmp_path, capsys):
    assert main(["run", script(tmp_path, "import sys; sys.exit(0)")]) == 0
    assert "Fusing 3 places" in capsys.readouterr().out
    assert main(["run", script(tmp_path, "raise SystemExit(3)")]) == 2
    captured = capsys.readouterr()
    assert "Fusing 3 places" in captured.out
    assert "the script exited with 3" in captured.err


def test_the_scripts_own_error_is_its_own_traceback(advisor, tmp_path, capsys):
    path = script(tmp_path, "def f():\n    raise KeyError('mine')\nf()\n")
    assert main(["run", path]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("Traceback") == 1
    assert captured.err.splitlines()[1].strip().startswith(f'File "{path}", line 3')
    assert "KeyError: 'mine'" in captured.err
    assert "Fusing" not in captured.out


def test_interrupt_ends_with_the_shells_status(advisor, tmp_path, capsys):
    assert main(["run", script(tmp_path, "raise KeyboardInterrupt")]) == 130
    assert capsys.readouterr().err == "fusion-advisor: interrupted\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "no.py"], "cannot read no.py: No such file"),
        (["run", "BROKEN"], "line 2: "),
        (["profile", "json"], "MODULE:FUNCTION"),
        (["profile", "no_such_module_here:f"], "no module 'no_such_module_here'"),
        (["profile", "json:nothing"], "json has no 'nothing'"),
        (["profile", "json:__name__"], "is a str, not a function"),
        (["run", "OK", "--export", "r.docx"], "end the name in one of .txt, .html"),
        (["run", "OK", "--export", "no_such_folder/r.html"], "there is no folder no_such_folder"),
        (["report", "no.json"], "cannot read no.json"),
        (["report", "BROKEN"], "BROKEN: "),
        (["kernel", "SAVED", "F9"], "no finding 'F9' (there are: F1, F2, F3)"),
        (["explain", "FUS999"], "FUS999"),
        (["report", "SAVED", "-o", "/proc/version/x.html"], "cannot write"),
    ],
)
def test_an_error_is_one_line_and_status_two(advisor, tmp_path, capsys, saved, words, message):
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\n1 +\n")
    places = {"BROKEN": str(broken), "OK": script(tmp_path, "print('ran')"), "SAVED": saved}
    assert main([places.get(word, word) for word in words]) == 2
    captured = capsys.readouterr()
    assert message.replace("BROKEN", str(broken)) in captured.err
    assert captured.err.startswith("fusion-advisor: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("words", [[], ["nonsense"], ["run"], ["run", "x.py", "--top", "0"]])
def test_wrong_usage_is_one_line_and_status_two(words, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fusion-advisor")
    assert "--help)" in error
    assert error.count("\n") == 1


def test_the_next_step_is_a_command(advisor, tmp_path, saved, capsys):
    path = script(tmp_path, "")
    kept = str(tmp_path / "kept.json")
    assert main(["run", path]) == 0
    assert "--export report.json, then: fusion-advisor kernel report.json F1" in (
        capsys.readouterr().out
    )
    assert main(["run", path, "--export", kept]) == 0
    assert f"next    fusion-advisor kernel {kept} F1" in capsys.readouterr().out
    assert main(["report", saved]) == 0
    out = capsys.readouterr().out
    assert f"next    fusion-advisor kernel {saved} F1" in out
    assert "next    %fuse_" not in out


@pytest.mark.slow
def test_the_demo_names_a_line_of_its_script_and_its_report_gives_the_kernel(tmp_path):
    """In processes of their own, from another folder, as a person would."""
    root = str(Path(fusion_advisor.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fusion_advisor", *words],
            capture_output=True, text=True, cwd=tmp_path, env=environment,
        )  # fmt: skip

    demo = run("demo", "--export", "demo.json")
    assert (demo.returncode, demo.stderr) == (0, "")
    example = Path(fusion_advisor.__file__).parent / "examples" / "written_out_gelu.py"
    lines = example.read_text().splitlines()
    number = 1 + next(at for at, line in enumerate(lines) if "torch.tanh" in line)
    assert f"written_out_gelu.py:{number} in MLP.forward" in demo.stdout
    assert lines[number - 1].split("h = ")[1] in demo.stdout
    kernel = run("kernel", "demo.json", "f1", "--target", "cuda")
    assert (kernel.returncode, kernel.stderr) == (0, "")
    assert "@cuda.jit" in kernel.stdout
    assert "@cpu_kernel" not in kernel.stdout
    assert run("report", "demo.json", "--fail-on-findings").returncode == 1


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fusion-advisor ")
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in ("run", "profile", "report", "gate", "kernel", "explain", "doctor", "demo"):
        assert f"\n    {command} " in out
    assert "Exit status" in out


def test_profile_calls_a_function_of_the_current_folder(advisor, tmp_path, monkeypatch):
    (tmp_path / "own_training.py").write_text(
        "class Box:\n    @staticmethod\n    def step(): return 5"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert main(["profile", "own_training:Box.step", "--backward"]) == 0
    assert advisor.options[0]["result"] == 5
    assert advisor.options[0]["backward"] is True


def test_fail_on_findings(advisor, tmp_path, saved, capsys):
    assert main(["run", script(tmp_path, ""), "--fail-on-findings"]) == 1
    assert main(["report", saved, "--fail-on-findings"]) == 1
    empty = str(export_report(empty_report(), tmp_path / "e.json"))
    assert main(["report", empty, "--fail-on-findings"]) == 0
    ignored = dataclasses.replace(
        rich_report(),
        findings=tuple(dataclasses.replace(one, ignored=True) for one in rich_report().findings),
    )
    left = str(export_report(ignored, tmp_path / "ignored.json"))
    assert main(["report", left, "--fail-on-findings"]) == 0
    assert "Nothing left to fuse: 3 findings ignored by comments" in capsys.readouterr().out


def test_report_formats_and_output(saved, tmp_path, capsys):
    assert main(["report", saved]) == 0
    assert "Fusing 3 places" in capsys.readouterr().out
    assert main(["report", saved, "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!DOCTYPE html>")
    assert main(["report", saved, "--format", "json"]) == 0
    assert capsys.readouterr().out.strip() == Path(saved).read_text().strip()
    for one in FORMATS.values():  # the suffix, the name and the standard output agree
        if one.name == "text":  # there it is for a shell
            continue
        target = tmp_path / f"out{one.suffixes[0]}"
        capsys.readouterr()
        assert main(["report", saved, "-o", str(target)]) == 0
        assert capsys.readouterr().out == f"Report written to {target}\n"
        assert main(["report", saved, "--format", one.name]) == 0
        printed = capsys.readouterr().out.encode()
        assert printed.rstrip(b"\r\n") == target.read_bytes().rstrip(b"\r\n")
        named = tmp_path / "out.anything"
        assert main(["report", saved, "--format", one.name, "-o", str(named)]) == 0
        assert named.read_bytes() == target.read_bytes()


def test_help_names_every_format(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")  # no word is broken
    assert main(["report", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for one in FORMATS.values():
        assert f"{one.name}: {one.what} ({', '.join(one.suffixes)})" in out
    assert main(["run", "--help"]) == 0
    assert suffixes_text() in " ".join(capsys.readouterr().out.split())


def test_stored_kernel_is_printed(saved, tmp_path, capsys):
    assert main(["kernel", saved, "f1"]) == 0
    assert capsys.readouterr().out == KERNEL_TEXT
    target = tmp_path / "k.py"
    assert main(["kernel", saved, "F1", "-o", str(target)]) == 0
    assert target.read_text() == KERNEL_TEXT
    target.write_text("mine = 1\n")
    assert main(["kernel", saved, "F1", "-o", str(target)]) == 2
    assert "is a file of yours" in capsys.readouterr().err
    assert target.read_text() == "mine = 1\n"


def test_explain(capsys):
    assert main(["explain", "fus001"]) == 0
    assert "FUS001" in capsys.readouterr().out
    assert main(["explain"]) == 0
    assert "FUS001  " in capsys.readouterr().out


def test_doctor_tells_what_is_missing_and_how_to_install_it(monkeypatch):
    from importlib import metadata

    from fusion_advisor.cli import doctor

    real = metadata.version

    def version(name: str) -> str:
        if name in ("numba-cuda", "jupyterlab"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr(doctor, "_devices", lambda: 1 / 0)
    doctor._devices.__name__ = "_devices"
    checks = {check.name: check for check in examine()}
    assert not checks["numba-cuda"].ok
    assert not checks["numba-cuda"].required
    assert checks["torch"].ok
    assert "could not be examined: division by zero" in checks["devices"].found
    text = render_checks(tuple(checks.values()))
    assert "pip install 'fusion-advisor[cuda]'" in text
    assert "pip install 'fusion-advisor[lab]'" in text
    assert "To have the rest" not in render_checks((Check(name="a", ok=True, found="1"),))


def test_doctor_tells_whether_jupyterlab_has_the_extension(monkeypatch, tmp_path):
    from fusion_advisor.cli import doctor

    monkeypatch.setattr(doctor, "_labextension_folders", lambda: [tmp_path])
    without = doctor._extension()
    assert not without.ok
    assert not without.required
    assert "make extension" in render_checks((without,))
    folder = tmp_path / "fusion-advisor"
    folder.mkdir()
    (folder / "package.json").write_text('{"version": "7.8.9"}')
    assert doctor._extension().ok
    assert "7.8.9" in doctor._extension().found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_command_and_option(shell):
    text = completion_script(build_parser(), shell)
    for word in (
        "run",
        "explain",
        "fail-on-findings",
        "cpu cuda both",
        "text html markdown json csv ops-csv sarif trace",
    ):
        assert word in text


def test_bash_completion_completes(tmp_path):
    bash = Path("/bin/bash")
    if not bash.exists():
        pytest.skip("no bash here")
    text = completion_script(build_parser(), "bash")

    def completed(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        code = (
            f"{text}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _fusion_advisor; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        run = subprocess.run(
            [str(bash), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    (tmp_path / "train.py").touch()
    assert completed("fusion-advisor", "re") == ["report"]
    assert completed("fusion-advisor", "run", "--fail") == ["--fail-on-findings"]
    assert completed("fusion-advisor", "kernel", "x", "--target", "c") == ["cpu", "cuda"]
    assert completed("fusion-advisor", "run", "tr") == ["train.py"]


def test_module_runs_and_a_closed_pipe_is_quiet(saved):
    command = [sys.executable, "-m", "fusion_advisor"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fusion-advisor ")
    reading, writing = os.pipe()
    os.close(reading)
    piped = subprocess.run(
        [*command, "report", saved, "--format", "html"],
        stdout=writing, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert piped.stderr == ""
    assert piped.returncode == 0
