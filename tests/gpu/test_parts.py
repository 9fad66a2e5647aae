"""What the parts of the device run compute and say, as far as a CPU can show it."""

from __future__ import annotations

import dataclasses
import json

import fused_groups
import parts
import pytest
import summary
import torch
from chains import CHAINS
from device_chains import CHAINS as DEVICE_CHAINS
from device_chains import fused_function, profiled

SWIGLU = next(chain for chain in CHAINS if chain.name == "SwiGLU")


def test_a_part_keeps_each_row_and_the_reason_of_one_that_fails(tmp_path, capsys, monkeypatch):
    file = tmp_path / "correct.json"
    monkeypatch.setattr(parts, "DTYPES", (torch.float32,))
    monkeypatch.setattr(parts, "LAYOUTS", ("aligned", "off by one"))
    asked = ["correct", str(file), "--device", "cpu", "--elements", "4000", "--chains", "SwiGLU"]
    assert parts.main(asked) == parts.DONE
    data = json.loads(file.read_text())
    names = [row["name"] for row in data["rows"]]
    assert names == ["SwiGLU, float32, aligned", "SwiGLU, float32, off by one"]
    assert all(row["eager_mismatches"] == row["fast_mismatches"] == 0 for row in data["rows"])
    # A kernel of another chain, and one that raises, are rows that say so.
    wrong = dataclasses.replace(SWIGLU, function=lambda gate, up: SWIGLU.function(gate, up))
    real = fused_groups.Groups.call
    monkeypatch.setattr(fused_groups.Groups, "call", lambda self: [one + 1 for one in real(self)])
    monkeypatch.setattr(parts, "CHAINS", (wrong,))
    assert parts.main(asked) == parts.PART_FAILED
    monkeypatch.setattr(fused_groups.Groups, "call", lambda self: 1 / 0)
    assert parts.main(asked) == parts.PART_FAILED
    (first, _) = json.loads(file.read_text())["rows"]
    assert first["failed"] == "ZeroDivisionError: division by zero"
    assert parts.main([*asked, "--seconds", "0"]) == parts.PART_FAILED
    assert "not tried: the time was up" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("layout", "strides", "offset"),
    [
        ("aligned", (1000, 1), 0),
        ("off by one", (1000, 1), 1),
        ("rows with gaps", (1024, 1), 0),
        ("transposed", (1, 3), 0),
    ],
)
def test_operands_lie_as_they_are_called(layout, strides, offset):
    plain = fused_groups.laid_out(SWIGLU, 3000, torch.float32, "cpu", "aligned")
    for tensor, same in zip(
        fused_groups.laid_out(SWIGLU, 3000, torch.float32, "cpu", layout), plain, strict=True
    ):
        assert (tensor.stride(), tensor.storage_offset()) == (strides, offset)
        assert torch.equal(tensor, same)


def test_the_second_operand_may_be_broadcast():
    first, second = fused_groups.laid_out(SWIGLU, 3000, torch.float32, "cpu", "broadcast")
    assert (first.stride(), second.stride()) == ((1000, 1), (1000, 0))


def test_the_summary_has_means_and_what_is_missing(tmp_path, capsys):
    rows = [
        {"name": "a", "eager_us": 8.0, "ours_fast_us": 2.0, "compile_us": 3.0},
        {"name": "b", "eager_us": 2.0, "ours_fast_us": 2.0},
        {"name": "c", "failed": "RuntimeError: no"},
    ]
    (tmp_path / "gpu-race.json").write_text(json.dumps({"device": "a card", "rows": rows}))
    assert summary.main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "a card: 2 of 3 rows whole." in out
    assert "| a | 8 | 2 | 3 |" in out and "| b | 2 | 2 | – |" in out
    assert "2.00 × as fast as eager (geometric mean of 2)" in out
    assert "1.50 × as fast as torch.compile (geometric mean of 1)" in out
    assert "failed: c: RuntimeError: no" in out
    assert "## models\n\nNo figures: FileNotFoundError" in out
    assert json.loads((tmp_path / "gpu.json").read_text())["race"]["rows"] == rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_device_a_part_says_so(tmp_path, capsys):
    assert parts.main(["race", str(tmp_path / "race.json")]) == parts.NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().out


@pytest.mark.parametrize("chain", DEVICE_CHAINS, ids=lambda chain: chain.name)
def test_every_chain_is_one_finding_whose_kernel_runs(chain):
    small = dataclasses.replace(
        chain,
        shapes=tuple((512, 1536) if len(shape) == 2 else (1536,) for shape in chain.shapes),
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
