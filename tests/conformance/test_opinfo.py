"""A part of torch's OpInfo samples: every required entry is made into kernels, some are run.

``make conformance`` runs all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import opinfo

pytestmark = pytest.mark.essential

NAMES = opinfo.read_entries()
ENTRIES = opinfo.find_entries()
DTYPES = (torch.float32, torch.int64)
# Kernels of every twelfth entry, and of those whose integer recipe differs from the float's.
RUN = (*NAMES["required"][::12], "addcmul", "heaviside", "isinf")

# What is asked for and refused, on float32 or int64, and a part of the reason.
REFUSED = {
    "div.trunc_rounding": "raises in eager when a divisor is zero",
    "div.floor_rounding": "raises in eager when a divisor is zero",
    "floor_divide": "raises in eager when a divisor is zero",
    "fmod": "raises in eager when a divisor is zero",
    "remainder": "raises in eager when a divisor is zero",
    "__rmod__": "raises in eager when a divisor is zero",
    "pow": "no recipe for dtype int64",
    "__rpow__": "no recipe for dtype int64",
    "ldexp": ("its exponent is no integer", "no recipe for dtype int64"),
    "nn.functional.glu": "not known to be elementwise",
}


@pytest.fixture(autouse=True)
def no_fallback_is_silent(recwarn):
    yield
    assert not [one for one in recwarn if "runs its eager chain" in str(one.message)]


def test_every_name_is_an_entry_of_torch():
    names = [*NAMES["required"], *NAMES["others"]]
    assert len(names) == len(set(names)) > 100
    assert not set(names) - ENTRIES.keys()


def test_required_entries_become_kernels_or_are_refused_for_a_known_reason():
    refused = {}
    for name in NAMES["required"]:
        for dtype in DTYPES:
            for _, call in zip(range(2), opinfo.calls(ENTRIES[name], dtype), strict=False):
                try:
                    opinfo.kernels_of(call)
                except opinfo.Refused as reason:
                    refused.setdefault(name, set()).add(str(reason))
    assert refused.keys() == REFUSED.keys()
    for name, reasons in refused.items():
        known = REFUSED[name]
        parts = known if isinstance(known, tuple) else (known,)
        for reason in reasons:
            assert any(part in reason for part in parts), (name, reasons)


@pytest.mark.parametrize("name", RUN)
def test_kernels_of_samples_agree_with_eager(name):
    tally = opinfo.run_entry(ENTRIES[name], DTYPES, "cpu", 2)
    assert not tally.faults
    assert tally.mismatches == 0
    assert tally.kernels or name in REFUSED


def test_a_result_that_is_one_ulp_off_is_a_mismatch():
    call = next(iter(opinfo.calls(ENTRIES["mul"], torch.float32)))
    (one,) = opinfo.kernels_of(call)
    right, wrong = opinfo.Tally(), opinfo.Tally()
    eager = one.allowed[0].eager
    opinfo.judge(one, (eager.clone(),), right)
    moved = eager.clone()
    moved.view(-1)[-1] = torch.nextafter(eager.view(-1)[-1], torch.tensor(float("inf")))
    opinfo.judge(one, (moved,), wrong)
    assert (right.mismatches, wrong.mismatches) == (0, 1)
    assert wrong.worst_ulp == {"aten.mul.Tensor": 1.0}
