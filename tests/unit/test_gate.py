"""The gate: what counts as a regression, what never does, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from report_fixture import empty_report, rich_report

from fusion_advisor.cli import main
from fusion_advisor.cli.gate import fraction
from fusion_advisor.errors import ReportError
from fusion_advisor.records import FusionRatio, Report
from fusion_advisor.report import export_report
from fusion_advisor.report.baseline import Figures, dump_baseline, figures_of, load_baseline
from fusion_advisor.report.regression import Comparison, Limits, compare, comparison_markdown

pytestmark = pytest.mark.essential


@pytest.fixture(scope="module")
def report() -> Report:
    return rich_report()


@pytest.fixture(scope="module")
def figures(report) -> Figures:
    """As of the fixture, with a spread of 2 ms around its 82 ms."""
    return dataclasses.replace(figures_of(report), wall_spread_us=2_000.0)


def outcomes(comparison: Comparison) -> dict[str, str]:
    return {line.metric: line.outcome for line in comparison.lines}


def time_outcome(before: Figures, after: Figures, **limits: Any) -> str:
    return outcomes(compare(before, after, Limits(**limits)))["time per run"]


def slower(figures: Figures, us: float, **other: Any) -> Figures:
    return dataclasses.replace(figures, wall_us=figures.wall_us + us, **other)


def test_figures_of_a_report(report):
    figures = figures_of(report)
    assert figures.title == report.capture.title
    assert (figures.bytes, figures.kernels) == (report.bytes_before, 39)  # 40 ops, one a view
    assert figures.modules == ("transformer",)
    assert dict(figures.findings) == {
        rule: sum(one.rule == rule for one in report.findings)
        for rule in {one.rule for one in report.findings}
    }
    ignored = dataclasses.replace(
        report,
        findings=(dataclasses.replace(report.findings[0], ignored=True), *report.findings[1:]),
    )
    left = figures_of(ignored)
    assert left.ignored == 1
    assert sum(count for _, count in left.findings) == 2


def test_a_baseline_comes_back_equal_and_a_report_serves_as_one(report, tmp_path):
    figures = figures_of(report)
    text = dump_baseline(figures)
    assert load_baseline(text) == figures
    assert len(text) < 3_000
    assert load_baseline(export_report(report, tmp_path / "r.json").read_text()) == figures


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no valid JSON"),
        ("[]", "make one with"),
        ('{"format": "other"}', "make one with"),
        ('{"format": "fusion-advisor-baseline", "schema_version": 9}', "has schema 9"),
        (
            '{"format": "fusion-advisor-baseline", "schema_version": 1, "figures": {"title": 3}}',
            "damaged at figures.title",
        ),
        ("[" * 100_000, "no valid JSON"),
    ],
)
def test_what_is_no_baseline_says_why(text, message):
    with pytest.raises(ReportError, match=message):
        load_baseline(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bytes": -1}, "bytes cannot be -1"),
        ({"kernels": -5}, "kernels cannot be -5"),
        ({"fused_ops": 10**6}, "fused_ops are more than ops"),
        ({"wall_us": float("nan")}, "wall_us cannot be nan"),
        ({"wall_spread_us": float("inf")}, "wall_spread_us cannot be inf"),
        ({"machine": {"dispatch_us": -2.0}}, "dispatch_us cannot be -2"),
        ({"bytes": 10**400}, r"figures\.bytes: expected .* at most 256 bits"),
        ({"wall_us": 10**400}, r"figures\.wall_us: expected a number of at most 256 bits"),
    ],
)
def test_figures_that_no_run_has_are_damage(figures, change, said):
    document = json.loads(dump_baseline(figures))
    machine = {**document["figures"]["machine"], **change.get("machine", {})}
    document["figures"] |= {**change, "machine": machine}
    with pytest.raises(ReportError, match=f"this baseline is damaged at .*{said}"):
        load_baseline(json.dumps(document))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_not_compared(figures, number):
    for change in ({"wall_us": number}, {"wall_spread_us": number}):
        strange = dataclasses.replace(figures, **change)
        assert time_outcome(figures, strange) == time_outcome(strange, figures) == "not compared"
    for name in ("dispatch_us", "bandwidth_gb_per_s"):
        machine = dataclasses.replace(figures.machine, **{name: number})
        strange = dataclasses.replace(figures, machine=machine)
        assert time_outcome(figures, strange) == time_outcome(strange, figures) == "not compared"


def test_equal_figures_are_no_regression(figures):
    comparison = compare(figures, figures, Limits())
    assert not comparison.regressed
    assert set(outcomes(comparison).values()) == {"ok"}
    exact = Limits(ratio_drop=0, bytes_growth=0, kernels_growth=0, time=0, time_spreads=0)
    assert not compare(figures, figures, exact).regressed


@pytest.mark.parametrize(
    ("metric", "change", "limits", "outcome"),
    [
        ("memory traffic", {"bytes": 1_010_000}, {}, "ok"),  # 1 % exactly
        ("memory traffic", {"bytes": 1_010_001}, {}, "regressed"),
        ("memory traffic", {"bytes": 1_040_000}, {"bytes_growth": 0.05}, "ok"),
        ("memory traffic", {"bytes": 990_000}, {}, "better"),
        ("kernels", {"kernels": 101}, {}, "ok"),
        ("kernels", {"kernels": 102}, {}, "regressed"),
        ("kernels", {"kernels": 101}, {"kernels_growth": 0.0}, "regressed"),
        ("fusion ratio", {"fused_ops": 49}, {}, "ok"),  # one point of a hundred
        ("fusion ratio", {"fused_ops": 48}, {}, "regressed"),
        ("fusion ratio", {"fused_ops": 48}, {"ratio_drop": 0.05}, "ok"),
        ("fusion ratio", {"fused_ops": 60}, {}, "better"),
        ("FUS003 findings", {"findings": (("FUS003", 1),)}, {"rules": ("FUS003",)}, "regressed"),
        ("FUS003 findings", {"findings": (("FUS001", 1),)}, {"rules": ("FUS003",)}, "ok"),
    ],
)
def test_counts_against_their_limits(figures, metric, change, limits, outcome):
    before = dataclasses.replace(
        figures, bytes=1_000_000, kernels=100, fused_ops=50, ops=100, findings=()
    )
    after = dataclasses.replace(before, **change)
    comparison = compare(before, after, Limits(**limits))
    assert outcomes(comparison)[metric] == outcome
    assert comparison.regressed is (outcome == "regressed")
    others = {name: value for name, value in outcomes(comparison).items() if name != metric}
    assert set(others.values()) == {"ok"}


def test_times_within_tolerance_or_spread_never_fail(figures):
    # 82 ms: 10 % are 8.2 ms, three spreads 6 ms
    assert time_outcome(figures, slower(figures, 8_199)) == "ok"
    assert time_outcome(figures, slower(figures, 8_201)) == "regressed"
    # the larger spread of the two counts: 3 x 5 ms = 15 ms
    noisy = slower(figures, 14_900, wall_spread_us=5_000.0)
    assert time_outcome(figures, noisy) == "ok"
    assert time_outcome(noisy, slower(noisy, 14_900, wall_spread_us=2_000.0)) == "ok"
    assert time_outcome(figures, slower(noisy, 200)) == "regressed"
    assert time_outcome(figures, noisy, time_spreads=2.0) == "regressed"
    assert time_outcome(figures, slower(figures, 8_201), time=0.2) == "ok"
    assert time_outcome(figures, slower(figures, -7_000)) == "ok"  # noise is no gain either
    assert time_outcome(figures, slower(figures, -20_000)) == "better"


@settings(max_examples=300, deadline=None)
@given(
    wall=st.floats(1.0, 1e7),
    spreads=st.tuples(st.floats(0.001, 1e6), st.floats(0.001, 1e6)),
    tolerance=st.floats(0.0, 2.0),
    factor=st.floats(0.0, 10.0),
    part=st.floats(-3.0, 3.0),
)
def test_a_time_fails_beyond_the_larger_of_the_two_and_never_inside(
    wall, spreads, tolerance, factor, part
):
    before = dataclasses.replace(figures_of(rich_report()), wall_us=wall, wall_spread_us=spreads[0])
    allowed = max(tolerance * wall, factor * max(spreads))
    after = slower(before, part * allowed, wall_spread_us=spreads[1])
    assume(after.wall_us > 0 and abs(part - 1) > 1e-6)
    found = time_outcome(before, after, time=tolerance, time_spreads=factor)
    assume(allowed > 1e-3)
    assert (found == "regressed") is (part > 1)


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ({"cpu": "another one"}, "another machine (processor: "),
        ({"threads": 64}, "another machine (threads: "),
        ({"devices": ("H100",)}, "another machine (devices: none, now H100)"),
        ({"bandwidth_gb_per_s": 140.0}, "memory bandwidth was 14.0 and is now 140"),
        ({"dispatch_us": 0.0}, "dispatch time was"),
    ],
)
def test_times_of_another_machine_are_not_compared_and_it_says_so(figures, machine, reason):
    elsewhere = slower(figures, 500_000, machine=dataclasses.replace(figures.machine, **machine))
    comparison = compare(figures, elsewhere, Limits())
    assert not comparison.regressed
    line = comparison.lines[-1]
    assert line.outcome == "not compared"
    assert reason in line.note
    assert comparison.headline == "No regression in 3 figures (1 not compared)"


def test_ceilings_measured_twice_are_near_enough(figures):
    machine = dataclasses.replace(
        figures.machine,
        bandwidth_gb_per_s=figures.machine.bandwidth_gb_per_s * 1.4,
        dispatch_us=figures.machine.dispatch_us / 1.4,
    )
    assert time_outcome(figures, slower(figures, 500_000, machine=machine)) == "regressed"


def test_a_time_without_spread_or_without_time_is_not_compared(figures):
    once = dataclasses.replace(figures, wall_spread_us=0.0)
    never = dataclasses.replace(figures, wall_us=0.0)
    for before, after, reason in (
        (once, figures, "the baseline was timed once"),
        (figures, slower(once, 1e6), "the report was timed once"),
        (never, figures, "the baseline has no measured time"),
        (figures, never, "the report has no measured time"),
    ):
        line = compare(before, after, Limits()).lines[-1]
        assert (line.outcome, reason in line.note) == ("not compared", True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": "BERT"}, "the baseline is of .*, this report of BERT"),
        ({"backward": True}, "forward and backward pass"),
        ({"estimated_for": "NVIDIA H100"}, "times estimated for NVIDIA H100"),
        ({"modules": ("bert", "cls")}, "another model .*transformer.*bert, cls"),
    ],
)
def test_what_is_not_of_one_thing_is_not_compared(figures, change, message):
    with pytest.raises(ReportError, match=message):
        compare(figures, dataclasses.replace(figures, **change), Limits())
    grown = dataclasses.replace(figures, modules=("transformer", "lm_head"), inputs=("int64 2",))
    notes = compare(figures, grown, Limits()).notes
    assert "the inputs differ" in notes[0]
    assert "modules are not all the same" in notes[1]


def test_markdown_and_escaping(figures):
    named = dataclasses.replace(figures, title="a | b <script> @me")
    text = comparison_markdown(compare(named, dataclasses.replace(named, kernels=99), Limits()))
    assert "| **regressed** | kernels | 39 | 99 (+150 %) | at most 39 (+1.00 %) |" in text
    assert "<script>" not in text
    assert "@me" not in text


@pytest.mark.parametrize(("text", "value"), [("2%", 0.02), ("0.02", 0.02), ("150%", 1.5), ("0", 0)])
def test_shares(text, value):
    assert fraction(text) == pytest.approx(value)


# -- the command ---------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, report: Report) -> dict[str, str]:
    """A report, its baseline, and a report that is worse."""
    saved = str(export_report(report, tmp_path / "r.json"))
    baseline = str(tmp_path / "base.json")
    assert main(["gate", saved, "--baseline", baseline, "--write-baseline"]) == 0
    fused = dataclasses.replace(
        report,
        bytes_before=report.bytes_before * 2,
        ratios=(FusionRatio(name="as it is", fused_ops=0, ops=39), report.ratios[1]),
    )
    return {
        "REPORT": saved,
        "BASE": baseline,
        "WORSE": str(export_report(fused, tmp_path / "worse.json")),
        "OTHER": str(export_report(empty_report(), tmp_path / "other.json")),
        "MISSING": str(tmp_path / "missing.json"),
    }


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["REPORT", "--baseline", "BASE"], 0, "No regression"),
        (["REPORT", "--baseline", "REPORT"], 0, "No regression"),
        (["WORSE", "--baseline", "BASE"], 1, "Regressed: 1 of 4 figures"),
        (["WORSE", "--baseline", "BASE", "--max-bytes-growth", "100%"], 0, "No regression"),
        (["REPORT", "--baseline", "BASE", "--fail-on", "fus006"], 0, "FUS006 findings"),
        (["REPORT", "--baseline", "BASE", "--fail-on", "FUS001,FUS004"], 1, "Regressed"),
        (["REPORT", "--baseline", "BASE", "--fail-on", "elementwise-chain"], 1, "FUS001 findings"),
    ],
)
def test_exit_status(files, capsys, words, status, said):
    assert main(["gate", *(files.get(word, word) for word in words)]) == status
    captured = capsys.readouterr()
    assert said in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["REPORT", "--baseline", "MISSING"], "no such file; make it with --write-baseline"),
        (["MISSING", "--baseline", "BASE"], "cannot read"),
        (["BASE", "--baseline", "BASE"], "not a Fusion Advisor report"),
        (["OTHER", "--baseline", "BASE"], "cannot compare"),
        (["REPORT", "--baseline", "BASE", "--fail-on", "FUS999"], "no rule 'FUS999'"),
        (["REPORT", "--baseline", "BASE", "--max-bytes-growth", "5"], "a share such as 2% or 0.02"),
        (["REPORT", "--baseline", "BASE", "--time-tolerance", "x"], "a share such as"),
        (["REPORT", "--baseline", "BASE", "--time-spreads", "-1"], "a number of at least 0"),
        (["REPORT"], "--baseline"),
        (["REPORT", "--baseline", "REPORT", "--write-baseline"], "is not a baseline"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_status_two(files, capsys, words, message):
    capsys.readouterr()
    before = {name: Path(path).read_bytes() for name, path in files.items() if name != "MISSING"}
    assert main(["gate", *(files.get(word, word) for word in words)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert before == {
        name: Path(path).read_bytes() for name, path in files.items() if name != "MISSING"
    }


def test_a_line_says_metric_baseline_now_and_limit(files, capsys):
    capsys.readouterr()
    main(["gate", files["WORSE"], "--baseline", files["BASE"]])
    [line] = [one for one in capsys.readouterr().out.splitlines() if "memory traffic" in one]
    words = line.split()
    assert words[0] == "regressed"
    for part in ("baseline", "now", "(+100 %)", "limit at most", "(+1.00 %)"):
        assert part in line
    assert main(["gate", files["WORSE"], "--baseline", files["BASE"], "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["regressed"] is True
    [traffic] = [one for one in data["figures"] if one["metric"] == "memory traffic"]
    assert traffic["now"] == 2 * traffic["baseline"]
    assert traffic["limit"] == pytest.approx(1.01 * traffic["baseline"])
    assert traffic["unit"] == "bytes"


def test_a_damaged_baseline_is_written_anew_and_nothing_else_is(files, tmp_path, capsys):
    Path(files["BASE"]).write_text('{"format": "fusion-advisor-baseline", "schema_version": 0}')
    assert main(["gate", files["REPORT"], "--baseline", files["BASE"], "--write-baseline"]) == 0
    assert main(["gate", files["REPORT"], "--baseline", files["BASE"]]) == 0
    mine = tmp_path / "package.json"
    mine.write_text('{"name": "mine"}')
    assert main(["gate", files["REPORT"], "--baseline", str(mine), "--write-baseline"]) == 2
    assert mine.read_text() == '{"name": "mine"}'


def test_the_gate_does_not_import_torch(files):
    code = (
        "import sys; from fusion_advisor.cli import main\n"
        f"status = main(['gate', {files['REPORT']!r}, '--baseline', {files['BASE']!r}])\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
        "sys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
