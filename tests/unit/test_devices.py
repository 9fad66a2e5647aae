from __future__ import annotations

import pytest

from fusion_advisor.devices import device_table, find_device
from fusion_advisor.errors import UsageError


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("h100", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("h100_pcie", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("a100", "a100-80gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10"),
        ("RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("mi250", "mi250x"),
        ("NVIDIA B200", "b200"),
    ],
)
def test_names_as_people_and_drivers_write_them(written: str, key: str) -> None:
    assert find_device(written).device == key


@pytest.mark.parametrize(
    "name", ["", "h1000", "a1000", "gtx", "l40", "v10", "rtx4090ti", "t400", "NVIDIA"]
)
def test_another_model_is_never_guessed(name: str) -> None:
    with pytest.raises(UsageError, match=r"Known: .*a100-40gb.*v100\."):
        find_device(name)


def test_a_slip_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="Did you mean 'rtx4090'"):
        find_device("rtx490")


def test_published_figures() -> None:
    h100, a100 = find_device("h100"), find_device("a100-40gb")
    assert h100.bandwidth[-1].gb_per_s == pytest.approx(3350 * 0.9)
    assert a100.bandwidth[-1].gb_per_s == pytest.approx(1555 * 0.9)
    assert dict(a100.gflops) == {
        "bfloat16": 312_000, "float16": 312_000, "float32": 19_500, "float64": 9_700,
    }  # fmt: skip
    # No bfloat16 matrix unit on Volta: it computes as float32.
    assert dict(find_device("v100").gflops)["bfloat16"] == pytest.approx(15_700)
    assert find_device("v100").bandwidth[0].gb_per_s == 2155


@pytest.mark.parametrize("ceilings", device_table(), ids=lambda ceilings: ceilings.device)
def test_every_row_is_physically_sensible(ceilings) -> None:
    cache, dram = ceilings.bandwidth
    rates = dict(ceilings.gflops)
    assert cache.working_set_bytes < dram.working_set_bytes
    assert cache.gb_per_s > 1.5 * dram.gb_per_s
    assert 200 < dram.gb_per_s < 8000
    assert rates["float64"] <= rates["float32"] <= rates["float16"]
    # FLOP per byte at the ridge of plain float32: between 5 (MI210-like) and 120 (L4, 4090).
    assert 5 < rates["float32"] / dram.gb_per_s < 120
    assert ceilings.origin == "table"
    assert ceilings.launch_us > 0
    assert ceilings.page_fault_us_per_mb == 0
