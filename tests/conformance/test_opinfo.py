"""A part of torch's OpInfo samples: every required entry is made into kernels, some are run.

``make conformance`` runs all of them.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import opinfo
import opinfo_page
import opinfo_report
import opinfo_sass
import opinfo_units
import run_opinfo
from opinfo_kernels import Refused, checks_of, laid_out, same_layout
from opinfo_targets import Tally, judge, make_target, run_checks, spoil
from opinfo_units import Batch, Unit

from fusion_advisor.recorder import CaptureOptions, record
from fusion_advisor.records import TensorSpec
from fusion_advisor.validation import cuda_compiler, resources
from fusion_advisor.workers import WorkerCrash

pytestmark = pytest.mark.essential

NAMES = opinfo.read_entries()
ENTRIES = opinfo.find_entries()
DTYPES = (torch.float32, torch.int64)
# Kernels of every twentieth entry, and of those whose integer recipe differs from the float's.
RUN = (*NAMES["required"][::20], "addcmul", "heaviside", "isinf")

# What is asked for and refused, on float32 or int64, and a part of the reason.
REFUSED = {}


@pytest.fixture(autouse=True)
def no_fallback_is_silent(recwarn):
    yield
    assert not [one for one in recwarn if "runs its eager chain" in str(one.message)]


def first_call(name, dtype, form="as it is"):
    return next(call for call in opinfo.calls(ENTRIES[name], dtype) if call.form == form)


# -- samples -----------------------------------------------------------------------------------


def test_every_name_is_an_entry_of_torch():
    names = [*NAMES["required"], *NAMES["others"]]
    assert len(names) == len(set(names)) > 100
    assert not set(names) - ENTRIES.keys()


def test_required_entries_become_kernels_or_are_refused_for_a_known_reason():
    refused = {}
    for name in NAMES["required"]:
        for dtype in DTYPES:
            for call in itertools.islice(opinfo.calls(ENTRIES[name], dtype), 1):
                try:
                    checks_of(call)
                except Refused as reason:
                    refused.setdefault(name, set()).add(str(reason))
    assert refused.keys() == REFUSED.keys()
    for name, reasons in refused.items():
        parts = (REFUSED[name],) if isinstance(REFUSED[name], str) else REFUSED[name]
        assert all(any(part in reason for part in parts) for reason in reasons), (name, reasons)


def test_a_call_is_made_in_every_form_that_torch_takes():
    forms = {call.form for call in opinfo.calls(ENTRIES["add"], torch.float32)}
    assert forms == set(opinfo.FORMS)
    assert "in place" not in {call.form for call in opinfo.calls(ENTRIES["isnan"], torch.float32)}


def operands_of(call):
    recording = record(call.run, CaptureOptions(with_source=False))
    return [recording.store.get(value) for value in recording.graph.inputs]


def test_long_calls_hold_special_values_and_lie_as_their_form_says():
    for form, stride in (("long", 1), ("long, strided", 2)):
        operands = operands_of(first_call("maximum", torch.float32, form))
        assert len(operands) == 2
        for tensor in operands:
            assert (tensor.shape, tensor.stride()) == ((4099,), (stride,))
            assert tensor.isnan().any() and tensor.isinf().any()
            assert tensor[tensor == 0].signbit().any()
        assert operands[0].isnan().logical_and(operands[1].isinf()).any()


def test_the_lowest_integer_is_not_where_eager_dies_of_it():
    lowest = torch.iinfo(torch.int32).min
    for name, there in (("div.trunc_rounding", False), ("div.floor_rounding", True)):
        dividend = operands_of(first_call(name, torch.int32, "long"))[0]
        assert bool((dividend == lowest).any()) is there


def test_operands_lie_as_recorded_with_poison_between():
    spec = TensorSpec(
        id="v", dtype="int16", shape=(2, 3), strides=(7, 2), offset=5, storage=0, version=0,
        device="cpu",
    )  # fmt: skip
    tensor = laid_out(torch.arange(6, dtype=torch.int16).reshape(2, 3), spec)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (tensor.stride(), tensor.storage_offset()) == ((7, 2), 5)
    memory = torch.empty(0, dtype=torch.int16).set_(tensor.untyped_storage())
    assert (memory == torch.tensor([0xA5A5 - 0x10000])).sum() == 5 + 12 - 6


def test_an_expanded_operand_stays_expanded():
    spec = TensorSpec(
        id="v", dtype="float32", shape=(4, 3), strides=(0, 1), offset=0, storage=0, version=0,
        device="cpu",
    )  # fmt: skip
    tensor = laid_out(torch.arange(3.0).expand(4, 3), spec)
    assert tensor.stride() == (0, 1)
    assert tensor.tolist() == [[0.0, 1.0, 2.0]] * 4


# -- kernels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUN)
def test_kernels_of_samples_agree_with_eager(name):
    target = make_target("cpu")
    for dtype in DTYPES:
        checks, tally = opinfo_units.prepare(ENTRIES[name], dtype, 2)
        run_checks(target, checks, tally, thoroughly=False)
        assert not tally.faults
        assert tally.mismatches == 0
        assert tally.kernels or tally.idle or tally.refused or not checks


@pytest.mark.parametrize("name", ["where", "nn.functional.silu"])
def test_long_permuted_and_written_samples_agree_on_both_targets(name):
    forms = ("long", "long, strided", "permuted", "in place")
    calls = {call.form: call for call in opinfo.calls(ENTRIES[name], torch.bfloat16)}
    checks = [check for form in forms if form in calls for check in checks_of(calls[form])]
    for target in ("cpu", "cuda"):
        tally = Tally()
        run_checks(make_target(target), checks, tally, thoroughly=target == "cpu")
        assert not tally.faults
        assert tally.kernels == len(checks) > 2
        assert (tally.called, tally.parallel) == ((1, 1) if target == "cpu" else (0, 0))
        assert tally.contracted == 0


def test_what_guards_leave_to_eager_is_told_where_nothing_is_computed():
    calls = [c for c in opinfo.calls(ENTRIES["remainder"], torch.int64) if c.form == "empty"]
    checks = [check for call in calls for check in checks_of(call)]
    assert len(checks) > 1 and all(check.empty for check in checks)
    tally = Tally()
    run_checks(make_target("cpu"), checks, tally, thoroughly=False)
    assert not tally.faults
    assert 0 < sum(tally.refused.values()) < len(checks)
    assert all("the result is empty" in reason for reason in tally.refused)


def test_ops_of_one_sample_run_as_one_group_too():
    call = first_call("isclose", torch.float32)
    checks = checks_of(call)
    groups = [check for check in checks if " + " in check.what]
    assert groups and len(checks) > len(groups)
    tally = Tally()
    run_checks(make_target("cpu"), groups, tally, thoroughly=False)
    assert (tally.groups, tally.mismatches) == (len(groups), 0)


def test_in_place_the_value_is_the_one_written_in_the_tensor_s_own_dtype():
    (check,) = checks_of(first_call("ge", torch.float32, "in place"))
    assert check.what == "aten.ge_.Tensor"
    assert check.allowed[0].eager.dtype == torch.float32
    tally = Tally()
    run_checks(make_target("cpu"), [check], tally, thoroughly=False)
    assert (tally.kernels, tally.mismatches) == (1, 0)


def test_a_result_that_is_one_ulp_off_is_a_mismatch():
    (check,) = checks_of(first_call("mul", torch.float32, "long"))
    right, wrong = Tally(), Tally()
    eager = check.allowed[0].eager
    judge(check, (eager.clone(),), right)
    moved = eager.clone()
    place = int(torch.nonzero(eager.isfinite())[-1])
    moved[place] = torch.nextafter(eager[place], torch.tensor(float("inf")))
    judge(check, (moved,), wrong)
    assert (right.mismatches, wrong.mismatches) == (0, 1)
    assert wrong.worst_ulp == {"aten.mul.Tensor": 1.0}


def test_a_nan_that_only_one_has_is_no_number_of_ulp():
    (check,) = checks_of(first_call("mul", torch.float32))
    eager, tally = check.allowed[0].eager.clone(), Tally()
    eager.view(-1)[0] = float("nan")
    judge(check, (eager,), tally)
    assert (tally.mismatches, list(tally.nan_differs)) == (1, ["aten.mul.Tensor"])
    assert "1 elements" in tally.nan_differs["aten.mul.Tensor"]
    json.dumps(tally.as_json(), allow_nan=False)


def test_a_right_result_at_other_places_in_memory_is_a_fault():
    check = checks_of(first_call("abs", torch.float32, "permuted"))[0]
    eager = check.allowed[0].eager
    assert not eager.is_contiguous()
    tally = Tally()
    judge(check, (eager.contiguous(),), tally)
    assert tally.mismatches == 1
    assert "laid out as" in tally.faults[0]


def test_strides_that_say_nothing_are_not_compared():
    assert same_layout(torch.empty_strided((3, 1), (1, 9)), (3, 1), (1, 1))
    assert same_layout(torch.empty(0, 3), (0, 3), (7, 7))
    assert not same_layout(torch.empty(3, 2), (3, 2), (1, 3))
    assert not same_layout(torch.empty(3, 2), (2, 3), (3, 1))


def test_an_element_that_a_cpu_kernel_leaves_out_is_a_mismatch():
    for dtype in (torch.float32, torch.int64, torch.bool):
        eager = torch.tensor([0, 1, 2, 3]).to(dtype)
        output = eager.clone()
        spoil(output, eager)
        assert not (output == eager).any()
    output, nan = torch.tensor([float("nan")]), torch.tensor([float("nan")])
    spoil(output, nan)
    assert not output.isnan().any()


def test_one_result_too_many_is_a_fault():
    (check,) = checks_of(first_call("mul", torch.float32))
    eager, tally = check.allowed[0].eager, Tally()
    judge(check, (eager, eager), tally)
    assert tally.mismatches == 1


@pytest.mark.skipif(resources.disassembler() is None, reason="nvdisasm is not installed")
def test_what_the_assembler_contracts_is_found_among_many_kernels():
    (check,) = checks_of(first_call("add", torch.float32))
    strict = cuda_compiler.compile_cuda(check.kernel).ptx
    place = re.compile(r"add(?:\.rn)?\.f32\s+(%f\d+), (%f\d+), (%f\d+)")
    loose = place.sub(r"mul.f32 \1, \2, \3;\nadd.f32 \1, \1, \3", strict)
    assert loose != strict
    disassembler = opinfo_sass.Disassembler({})
    first, second = disassembler.add(strict, strict), disassembler.add(loose, strict)
    found = disassembler.flush((9, 0))
    assert found[first] == ""
    assert "made 1 fused" in found[second]
    assert disassembler.add(loose, strict) == second and not disassembler.flush((9, 0))


# -- the run -----------------------------------------------------------------------------------


@pytest.fixture
def outcomes(monkeypatch, tmp_path):
    """Runs the unit ``abs float32``; gives how often its checks were run, per call."""
    runs = []
    monkeypatch.setattr(
        opinfo_units, "run_checks", lambda *args, **kwargs: runs.append(len(args[1]))
    )
    unit = Unit("abs", "float32")

    def run(**changes):
        runs.clear()
        batch = replace(Batch((unit,), ("cpu",), tmp_path, most_samples=2), **changes)
        for target, outcome in opinfo_units.run_unit(ENTRIES["abs"], unit, {"cpu": None}, batch):
            opinfo_units.write_outcome(unit.file(tmp_path, target), outcome)
        return list(runs)

    return run


def test_a_unit_is_run_again_only_where_something_it_follows_from_changed(outcomes, monkeypatch):
    assert outcomes() == [2]
    assert outcomes() == []
    assert outcomes(fresh=True) == [2]
    assert outcomes(most_samples=3) == [3]
    assert outcomes(most_samples=3) == []
    monkeypatch.setattr(opinfo_units, "_budget_row", lambda op: (op, 4.0))
    assert outcomes(most_samples=3) == [3]


def test_a_kernel_that_kills_its_process_is_a_fault_and_the_rest_is_run(tmp_path):
    units = tuple(Unit(name, "float32") for name in ("abs", "add", "mul"))
    started = []

    def start(function, batch, *, timeout_s, on_progress):
        started.append([unit.entry for unit in batch.units])
        for unit in batch.units:
            on_progress(("unit", unit))
            if unit.entry == "add":
                on_progress(("check", "cpu, long: aten.add.Tensor(float32)"))
                raise WorkerCrash("was ended by SIGSEGV", exit_code=-11)
            outcome = {**Tally(kernels=5).as_json(), "digest": "d", "seconds": 1.0}
            on_progress(("outcome", unit, "cpu", outcome))

    run_opinfo.Pool([Batch(units, ("cpu",), tmp_path)], 3, start).run(1)
    assert started == [["abs", "add", "mul"], ["mul"]]
    summary = opinfo_report.summarize(tmp_path, units, ("cpu",), ["abs", "add"])
    assert (summary["kernels"], summary["mismatches"], summary["not_run"]) == (10, 1, 0)
    assert "long: aten.add.Tensor(float32): was ended by SIGSEGV" in str(summary["faults"])


def test_the_summary_tells_refused_samples_from_refused_further_forms(tmp_path):
    units = [Unit("abs", "float32"), Unit("add", "float32"), Unit("i0", "float32")]
    tallies = [
        Tally(samples={"as it is": 2, "long": 9}, refused={"out=: unsupported-op: writes": 1}),
        Tally(samples={"non-contiguous": 1}, refused={"as it is: dtype: none": 2}, idle=4),
    ]
    tallies[0].worst_ulp = {"aten.abs.default": 1.0}
    for unit, tally in zip(units, tallies, strict=False):
        outcome = {**tally.as_json(), "digest": "d", "seconds": 1.0}
        opinfo_units.write_outcome(unit.file(tmp_path, "cpu"), outcome)
    summary = opinfo_report.summarize(tmp_path, units, ("cpu",), ["abs", "add"])
    assert summary["required"] == ["abs", "add"]
    assert summary["supported"] == ["abs"]
    assert summary["required_not_supported"] == ["add"]
    assert (summary["samples"], summary["idle"], summary["not_run"]) == (3, 4, 1)
    assert summary["refused"] == {"dtype: none": {"samples": 2, "entries": {"add": 2}}}
    assert list(summary["refused_forms"]) == ["out=: unsupported-op: writes"]
    assert summary["worst_ulp"] == {"aten.abs.default": {"cpu": 1.0}}
    assert json.loads(json.dumps(summary)) == summary
    page = opinfo_page.render(opinfo_page.kept_part(summary))
    assert "| `abs` | f32 | 2 | 1 |  |" in page
    assert "- 2 calls of `add`: dtype: none" in page
    assert "1 of those are supported" in page and "not supported: add." in page
    assert "**Not run**: 1 of 3 units" in page


def test_the_page_is_written_from_the_kept_run_which_found_nothing_wrong():
    kept = opinfo_page.load()
    assert opinfo_page.PAGE.read_text(encoding="utf-8") == opinfo_page.render(kept)
    assert (kept["mismatches"], kept["contractions"]["contracted"]) == (0, 0)
    assert not kept["required_not_supported"]
    assert set(kept["required"]) == set(NAMES["required"])
