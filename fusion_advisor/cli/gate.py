"""``fusion-advisor gate``: compare a report with its baseline, for continuous integration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from fusion_advisor.errors import FusionAdvisorError, ReportError, UsageError
from fusion_advisor.report.baseline import dump_baseline, figures_of, load_baseline
from fusion_advisor.report.files import read_text, write_atomic
from fusion_advisor.report.regression import (
    Comparison,
    Limits,
    compare,
    comparison_json,
    comparison_markdown,
    comparison_text,
)
from fusion_advisor.rules import RULES
from fusion_advisor.serialize import load_report

DONE, REGRESSED = 0, 1
Loaded = TypeVar("Loaded")
FORMATS: Mapping[str, Callable[[Comparison], str]] = MappingProxyType(
    {"text": comparison_text, "markdown": comparison_markdown, "json": comparison_json}
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    limits = Limits()
    parser.add_argument("file", metavar="REPORT", help="a report saved as .json")
    parser.add_argument(
        "--baseline", required=True, metavar="FILE", help="a baseline, or a report saved as .json"
    )
    parser.add_argument(
        "--write-baseline",
        action="store_true",
        help="write the report's figures to the baseline file, and compare nothing",
    )
    for option, default, text in (
        ("--max-ratio-drop", limits.ratio_drop, "points the share of fused ops may fall"),
        ("--max-bytes-growth", limits.bytes_growth, "growth of memory traffic"),
        ("--max-kernels-growth", limits.kernels_growth, "growth of the number of kernels"),
        ("--time-tolerance", limits.time, "growth of the time per run, on the same machine"),
    ):
        parser.add_argument(
            option,
            type=fraction,
            default=default,
            metavar="SHARE",
            help=f"{text}: 2%% or 0.02 (default {default:.0%})".replace("%)", "%%)"),
        )
    parser.add_argument(
        "--time-spreads",
        type=_factor,
        default=limits.time_spreads,
        metavar="K",
        help="times within K spreads of the measurement are never a regression (default 3)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="RULE",
        help="fail if there is a finding of this rule that no comment ignores (may be repeated)",
    )
    parser.add_argument("--format", choices=tuple(FORMATS), default="text")


def fraction(text: str) -> float:
    """``2%`` or ``0.02``; a bare number from 1 on says neither percent nor times."""
    try:
        percent = text.strip().endswith("%")
        value = float(text.strip().rstrip("%")) / (100 if percent else 1)
    except ValueError:
        value, percent = -1.0, False
    if not 0 <= value < float("inf") or (value >= 1 and not percent):
        raise argparse.ArgumentTypeError(f"a share such as 2% or 0.02, not {text!r}")
    return value


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of at least 0, not {text!r}")
    return value


def gate(parsed: argparse.Namespace) -> int:
    """0 no regression, 1 a regression; what cannot be compared raises, which is status 2."""
    rules = _rules(parsed.fail_on)
    now = figures_of(_loaded(parsed.file, load_report))
    if parsed.write_baseline:
        _refuse_other_files(parsed.baseline)
        print(f"Baseline written to {write_atomic(parsed.baseline, dump_baseline(now))}")
        return DONE
    if not os.path.exists(os.path.expanduser(parsed.baseline)):
        raise ReportError(
            f"cannot read {parsed.baseline}: there is no such file; make it with --write-baseline"
        )
    baseline = _loaded(parsed.baseline, load_baseline)
    limits = Limits(
        ratio_drop=parsed.max_ratio_drop,
        bytes_growth=parsed.max_bytes_growth,
        kernels_growth=parsed.max_kernels_growth,
        time=parsed.time_tolerance,
        time_spreads=parsed.time_spreads,
        rules=rules,
    )
    comparison = compare(baseline, now, limits)
    print(FORMATS[parsed.format](comparison))
    return REGRESSED if comparison.regressed else DONE


def _loaded(path: str, load: Callable[[str], Loaded]) -> Loaded:
    text = read_text(path)
    try:
        return load(text)
    except FusionAdvisorError as error:
        raise ReportError(f"{path}: {error}") from error


def _refuse_other_files(path: str) -> None:
    """A baseline is written over a baseline, or over nothing."""
    if not os.path.isfile(os.path.expanduser(path)):
        return
    try:
        text = read_text(path)
        load_baseline(text)
        ours = '"fusion-advisor-baseline"' in text
    except ReportError as error:
        ours = "this baseline" in str(error)  # damaged or of another schema: to be written anew
    if not ours:
        raise UsageError(f"{path} is not a baseline: it is not overwritten; choose another name")


def _rules(named: list[str]) -> tuple[str, ...]:
    words = [word.strip() for one in named for word in one.split(",") if word.strip()]
    names = {rule.name: code for code, rule in RULES.items()}
    codes = [names.get(word.lower(), word.upper()) for word in words]
    unknown = [word for word, code in zip(words, codes, strict=True) if code not in RULES]
    if unknown:
        raise UsageError(f"no rule {unknown[0]!r} (there are: {', '.join(RULES)})")
    return tuple(dict.fromkeys(codes))
