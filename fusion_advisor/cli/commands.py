"""The command line: ``fusion-advisor``.  Parses, calls the advisor, prints.

Exit status: 0 done, 1 findings were made and ``--fail-on-findings`` was given, or the gate found
a regression, 2 an error.
An error of ours is one line on standard error; a script's own error is its own traceback.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from fusion_advisor._version import __version__
from fusion_advisor.cli import gate
from fusion_advisor.cli.completion import completion_script
from fusion_advisor.cli.target import load_function, run_as_main
from fusion_advisor.errors import FusionAdvisorError, ReportError, UsageError
from fusion_advisor.report.files import (
    FORMATS,
    check_export,
    export_report,
    format_of,
    read_text,
    render,
    suffixes_text,
    write_module,
)
from fusion_advisor.rules import RULES, explain

if TYPE_CHECKING:
    from fusion_advisor.records import KernelSource, Report, Target

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DONE, FINDINGS, ERROR = 0, 1, 2
INTERRUPTED = 130  # as shells report a command ended by Ctrl-C


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error here."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and the way to the help."""
        self.exit(ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


class ScriptFailed(Exception):  # noqa: N818 - carries the person's own error to the exit status
    """The profiled code raised; its traceback has been printed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, script_words = _split(words)
    parser = build_parser()
    try:
        parsed = parser.parse_args(own)
    except SystemExit as leaving:  # argparse has printed its help or its message
        return leaving.code if isinstance(leaving.code, int) else ERROR
    parsed.script_words = script_words
    try:
        status: int = parsed.command(parsed)
        sys.stdout.flush()
        return status
    except FusionAdvisorError as error:
        print(f"fusion-advisor: {error}", file=sys.stderr)
        return ERROR
    except ScriptFailed:
        return ERROR
    except KeyboardInterrupt:
        print("fusion-advisor: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone: nothing left to say, or to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what follows ``--`` for the script."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


# -- the parser --------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    parser = _Parser(
        prog="fusion-advisor",
        description="Find, prove and apply kernel fusion in PyTorch code.",
        epilog="Exit status: 0 done, 1 findings (with --fail-on-findings) or a regression (gate), "
        "2 error.",
    )
    parser.add_argument("--version", action="version", version=f"fusion-advisor {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = _command(commands, "run", _run, "run a script as __main__ and report on it")
    run.add_argument("script", help="a Python file")
    run.add_argument("words", nargs="*", metavar="ARGS", help="the script's arguments; options of "
                     "its own go after --")  # fmt: skip
    _profile_options(run)

    profile = _command(commands, "profile", _profile, "call one function and report on it")
    profile.add_argument("function", metavar="MODULE:FUNCTION", help="called without arguments")
    _profile_options(profile, backward=True)

    report = _command(commands, "report", _report, "show a saved report in another form")
    report.add_argument("file", help="a report saved as .json")
    report.add_argument("--format", choices=tuple(FORMATS), help="default: text, or by the suffix "
                        "of --output; " + "; ".join(
                            f"{one.name}: {one.what} ({', '.join(one.suffixes)})"
                            for one in FORMATS.values()
                        ))  # fmt: skip
    report.add_argument("-o", "--output", help="write here instead of to standard output")
    _fail_option(report)

    gate_text = "compare a report with its baseline: exit 1 if it regressed, 2 if it cannot be"
    gate.add_arguments(_command(commands, "gate", gate.gate, gate_text))

    kernel = _command(commands, "kernel", _kernel, "print the fused kernel of a finding")
    kernel.add_argument("file", help="a report saved as .json")
    kernel.add_argument("finding", help="for example F1")
    kernel.add_argument("--target", choices=("cpu", "cuda", "both"), default="both")
    kernel.add_argument("--match", choices=("eager", "fast"), default="eager",
                        help="round as eager does, or less often")  # fmt: skip
    kernel.add_argument("-o", "--output", help="write here instead of to standard output")

    rule = _command(commands, "explain", _explain, "explain a rule")
    rule.add_argument("rule", nargs="?", help="for example FUS001; without it, list all")

    _command(commands, "doctor", _doctor, "what this machine can do, and how to install the rest")

    demo = _command(commands, "demo", _demo, "profile a small model made here")
    _profile_options(demo)

    completion = _command(commands, "completion", _completion, "print a tab-completion script")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _command(
    commands: Any, name: str, function: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(command=function)
    return parser


def _profile_options(parser: argparse.ArgumentParser, *, backward: bool = False) -> None:
    if backward:
        parser.add_argument(
            "--backward",
            action="store_true",
            help="record the backward pass too (of a scalar loss, .loss, or the sum)",
        )
    parser.add_argument("--device", help="estimate for a device that is not here, e.g. h100")
    parser.add_argument("--target", choices=("cpu", "cuda", "both"), default="both",
                        help="kernels to generate")  # fmt: skip
    parser.add_argument("--steps", type=_positive, default=2, help="loop steps to record (2)")
    parser.add_argument("--max-ops", type=_positive, default=50_000, help="most ops to record")
    parser.add_argument("--top", type=_positive, default=10, help="findings to show (10)")
    parser.add_argument("--all", action="store_true", help="also candidates that are not worth it")
    parser.add_argument(
        "--export",
        action="append",
        default=[],
        metavar="PATH",
        help=f"write the report; the suffix chooses the format: {suffixes_text()} (may be "
        "repeated)",
    )
    _fail_option(parser)


def _fail_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fail-on-findings", action="store_true", help="exit 1 if there are any")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1, not {text!r}")
    return int(text)


# -- commands ----------------------------------------------------------------------------------


def _run(parsed: argparse.Namespace) -> int:
    words = [*parsed.words, *parsed.script_words]
    return _advise(parsed, run_as_main(parsed.script, words), title=os.path.basename(parsed.script))


def _profile(parsed: argparse.Namespace) -> int:
    function = load_function(parsed.function)
    return _advise(parsed, function, title=parsed.function)


def _demo(parsed: argparse.Namespace) -> int:
    example = os.path.join(PACKAGE, "examples", "written_out_gelu.py")
    with tempfile.TemporaryDirectory(prefix="fusion-advisor-demo-") as folder:
        # A file of one's own: frames inside this package are not attributed.
        script = shutil.copy(example, folder)
        title = "demo: an MLP that writes its GELU out"
        return _advise(parsed, run_as_main(script, []), title=title)


def _advise(parsed: argparse.Namespace, run: Callable[[], Any], *, title: str) -> int:
    """Profile ``run``, print the report, write it where asked."""
    for path in parsed.export:
        check_export(path)  # before anything runs
    from fusion_advisor import advisor

    outcome = _Outcome(run)
    try:
        advice = advisor.profile_code(
            outcome,
            backward=getattr(parsed, "backward", False),
            device=parsed.device,
            target=parsed.target,
            steps=parsed.steps,
            max_ops=parsed.max_ops,
            title=title,
            progress=_say if sys.stderr.isatty() else None,
        )
    except BaseException as error:
        if error is outcome.error and not isinstance(error, KeyboardInterrupt):
            traceback.print_exception(_from_the_script(error))
            raise ScriptFailed from error
        raise
    report: Report = advice.report
    sys.stdout.flush()
    from fusion_advisor.report.text import render_text

    saved = next((path for path in parsed.export if format_of(path) == "json"), "")
    print(render_text(report, top=parsed.top, all=parsed.all, saved=saved))
    for path in parsed.export:
        print(f"Report written to {advice.export(path)}")
    advice.close()
    if outcome.exit_status not in (None, 0):
        print(f"fusion-advisor: the script exited with {outcome.exit_status!r}", file=sys.stderr)
        return ERROR
    return _status(report, parsed)


class _Outcome:
    """Runs the person's code; ``sys.exit`` ends the script, not the report."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self.error: BaseException | None = None
        self.exit_status: Any = None

    def __call__(self) -> Any:
        try:
            return self._run()
        except SystemExit as leaving:
            self.exit_status = leaving.code
            return None
        except BaseException as error:
            self.error = error
            raise


def _from_the_script(error: BaseException) -> BaseException:
    """The error with its traceback cut above the first frame of the person's own code."""
    step, last_of_ours = error.__traceback__, None
    here = os.path.dirname(os.path.abspath(__file__)) + os.sep
    while step is not None:
        if os.path.abspath(step.tb_frame.f_code.co_filename).startswith(here):
            last_of_ours = step  # what called the script, or the function
        step = step.tb_next
    inner = last_of_ours.tb_next if last_of_ours is not None else None
    return error if inner is None else error.with_traceback(inner)


def _status(report: Report, parsed: argparse.Namespace) -> int:
    asked_for = any(not finding.ignored for finding in report.findings)
    return FINDINGS if parsed.fail_on_findings and asked_for else DONE


def _say(stage: str, fraction: float) -> None:
    end = "\n" if fraction >= 1.0 else ""
    print(f"\r\x1b[2K{stage} ({fraction:.0%})", end=end, file=sys.stderr, flush=True)


def _report(parsed: argparse.Namespace) -> int:
    report = _load(parsed.file)
    if parsed.output is None and parsed.format in (None, "text"):
        from fusion_advisor.report.text import render_text

        print(render_text(report, top=0, all=True, saved=parsed.file))
    elif parsed.output is None:
        text = render(report, parsed.format)
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    else:
        print(f"Report written to {export_report(report, parsed.output, format=parsed.format)}")
    return _status(report, parsed)


def _load(path: str) -> Report:
    from fusion_advisor.serialize import load_report

    text = read_text(path)
    try:
        return load_report(text)
    except ReportError as error:
        raise ReportError(f"{path}: {error}") from error


def _kernel(parsed: argparse.Namespace) -> int:
    report = _load(parsed.file)
    found = {finding.id.lower(): finding for finding in report.findings}
    finding = found.get(parsed.finding.lower())
    if finding is None:
        known = ", ".join(one.id for one in report.findings) or "none"
        raise UsageError(f"{parsed.file} has no finding {parsed.finding!r} (there are: {known})")
    from fusion_advisor.kernels import generate_kernel
    from fusion_advisor.report.view import advice_only

    reason = advice_only(finding)
    if reason:
        raise UsageError(f"{reason}: {finding.message}")
    targets: tuple[Target, ...] = ("cpu", "cuda") if parsed.target == "both" else (parsed.target,)
    stored = dict(report.kernels).get(finding.id)
    if stored is not None and not stored.is_intact:
        raise ReportError(
            f"the kernel of {finding.id} in {parsed.file} was changed: its text does not have the "
            "recorded SHA-256; profile again and save the report anew"
        )
    wanted = stored is not None and stored.program.match == parsed.match
    if stored is not None and wanted and _has_targets(stored, targets):
        kernel = stored
    else:
        kernel = generate_kernel(
            report.capture.graph, finding.occurrences[0], targets=targets, match=parsed.match
        )
    if parsed.output is None:
        print(kernel.text.rstrip("\n"))
    else:
        print(f"Kernel written to {write_module(parsed.output, kernel.text)}")
    return DONE


def _has_targets(kernel: KernelSource, targets: tuple[Target, ...]) -> bool:
    """Whether a stored kernel holds exactly what was asked for."""
    return bool(kernel.cpu_name) == ("cpu" in targets) and bool(kernel.cuda_name) == (
        "cuda" in targets
    )


def _explain(parsed: argparse.Namespace) -> int:
    if parsed.rule is None:
        for code, rule in sorted(RULES.items()):
            print(f"{code}  {rule.title}")
    else:
        print(explain(parsed.rule).rstrip("\n"))
    return DONE


def _doctor(parsed: argparse.Namespace) -> int:
    from fusion_advisor.cli.doctor import examine, render_checks

    checks = examine()
    print(render_checks(checks))
    return DONE if all(check.ok or not check.required for check in checks) else ERROR


def _completion(parsed: argparse.Namespace) -> int:
    print(completion_script(build_parser(), parsed.shell))
    return DONE
