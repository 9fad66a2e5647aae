"""The race's own arithmetic and reporting, which need no device."""

from __future__ import annotations

import pytest
import race
import torch
from device_chains import CHAINS, fused_function, profiled


def test_missing_figures_are_dashes_and_columns_line_up():
    text = race.table(
        [
            {"kernel": "one", "fused_gb_per_s": 3125.46, "copy_gb_per_s": 3900.0, "fused_us": 12.0},
            {"kernel": "another name"},
        ]
    )
    header, one, two = text.splitlines()
    assert one.split() == ["one", "3125", "3900", "–", "12", "–", "–"]
    assert two.split() == ["another", "name", *"––––––"]
    assert len({len(line) for line in (header, one, two)}) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_everything_says_so(capsys):
    assert race.main([]) == race.NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().out
    row, reasons = race.race(CHAINS[0])
    assert row == {"kernel": CHAINS[0].name}
    assert len(reasons) == 1 and reasons[0].startswith(f"{CHAINS[0].name}, inputs: ")


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_every_chain_is_one_finding_whose_kernel_runs(chain):
    small = type(chain)(
        chain.name,
        chain.function,
        tuple((512, 1536) if len(shape) == 2 else (1536,) for shape in chain.shapes),
        chain.dtype,
    )
    advice, inputs = profiled(small, "cpu")
    try:
        fused = fused_function(advice)
        with torch.no_grad():
            expected, actual = small.function(*inputs), fused(*inputs)
        assert (fused.stats.fused, dict(fused.stats.fallbacks)) == (1, {})
        assert torch.allclose(actual.double(), expected.double(), rtol=2e-2, atol=1e-3)
    finally:
        advice.close()
