"""Ceilings of a busy machine: what beats them plainly has them measured again, and it is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import fusion_advisor as fa  # noqa: E402
from fusion_advisor.records import BandwidthPoint, Ceilings  # noqa: E402
from fusion_advisor.validation import ceilings as module  # noqa: E402

CEILINGS = Ceilings(
    device="cpu",
    name="test",
    bandwidth=(BandwidthPoint(working_set_bytes=2**20, gb_per_s=10.0),),
    gflops=(("float32", 10.0),),
    dispatch_us=4.0,
)


@pytest.mark.parametrize(
    ("moved", "taken_us", "beaten"),
    [
        (1_000_000, 51.0, ""),  # 100 us at 10 GB/s, and half of it is within the noise
        (1_000_000, 49.0, "moving"),
        (64, 2.1, ""),
        (64, 1.9, "dispatch"),
    ],
)
def test_twice_as_fast_as_the_ceilings_contradicts_them(
    moved: int, taken_us: float, beaten: str
) -> None:
    reason = module.contradiction(CEILINGS, [(1_000_000, 1e6), (moved, taken_us)])
    assert bool(reason) == bool(beaten)
    assert beaten in reason


def test_other_devices_are_not_judged_by_host_times() -> None:
    assert module.contradiction(replace(CEILINGS, device="cuda"), [(10**9, 0.1)]) == ""


def test_the_better_of_old_and_new_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = module.measure_ceilings(cache_dir=tmp_path)
    mixed = replace(
        true,
        bandwidth=tuple(
            replace(point, gb_per_s=1e6 if k == 0 else point.gb_per_s / 1e3)
            for k, point in enumerate(true.bandwidth)
        ),
        dispatch_us=1e6,
        call_us=1e-3,
    )
    (path,) = tmp_path.iterdir()
    module._write(path, mixed)
    best = module.measure_again(cache_dir=tmp_path)
    assert best.bandwidth[0].gb_per_s == 1e6
    assert all(
        new.gb_per_s > 10 * old.gb_per_s
        for new, old in zip(best.bandwidth[1:], mixed.bandwidth[1:], strict=True)
    )
    assert best.dispatch_us < 1e5
    assert best.call_us == 1e-3
    assert module.measure_ceilings(cache_dir=tmp_path) == best


def test_a_run_that_beats_stored_ceilings_has_them_measured_again_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    true = module.measure_ceilings()
    (path,) = tmp_path.rglob("*.json")
    slow = replace(
        true,
        bandwidth=tuple(replace(p, gb_per_s=p.gb_per_s / 1e5) for p in true.bandwidth),
        measured_at="2001-01-01T00:00:00",
    )
    module._write(path, slow)
    x = torch.ones(256, 1024)
    advice = fa.profile(lambda: torch.relu(x * 2.0), prove=False, isolated=False)
    try:
        capture = advice.report.capture
        (note,) = [note for note in capture.notes if "measured again" in note]
        assert "2001-01-01" in note
        assert capture.ceilings is not None
        assert capture.ceilings.bandwidth[-1].gb_per_s > 100 * slow.bandwidth[-1].gb_per_s
        assert capture.ceilings == module.measure_ceilings()
    finally:
        advice.close()
