"""The whole ladder on right kernels, without a toolchain, and when it is interrupted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import validation_kernels as kernels

from fusion_advisor.validation import cuda_compiler, in_process, toolchain_missing

pytestmark = pytest.mark.essential

_MISSING = toolchain_missing()
needs_toolchain = pytest.mark.skipif(bool(_MISSING), reason=_MISSING or "present")


def _rungs(result: Any) -> dict[str, str]:
    return {rung.name: rung.status for rung in result.rungs}


def test_a_right_kernel_passes_every_rung_of_the_cpu() -> None:
    seen: list[str] = []
    one = kernels.tanh_scale()
    result = kernels.validate(one, targets=("cpu",), predicted_us=5.0, progress=seen.append)
    details = [(rung.name, rung.detail) for rung in result.rungs if rung.status == "failed"]
    assert result.status == "passed", details
    rungs = _rungs(result)
    for name in ("program", "inputs", "eager text", "CPU kernel", "float64 reference",
                 "fused call", "gradients", "guards", "timing", "after timing"):  # fmt: skip
        assert rungs[name] == "passed", name
    assert rungs["compile for sm_90"] == rungs["CUDA device"] == "not run"
    assert seen[0] == "program"
    assert result.mismatches == 0
    assert result.cases > 30
    assert 0 < result.worst_ulp <= result.budget_ulp < 20
    (timing,) = result.timings
    assert timing.inputs == "captured"
    assert timing.predicted_us == 5.0
    assert timing.bytes == 2 * 33 * 65 * 4
    assert timing.eager_us > 0 < timing.fused_us


@needs_toolchain
@pytest.mark.parametrize(
    "make", [kernels.bias_relu_scale, kernels.bfloat16_affine, kernels.scaled_add]
)
def test_a_right_cuda_kernel_passes(make: Any) -> None:
    result = kernels.validate(make(), targets=("cuda",))
    assert result.status == "passed", [
        (rung.name, rung.detail) for rung in result.rungs if rung.status == "failed"
    ]
    assert (result.mismatches, result.worst_ulp) == (0, 0.0)
    assert [one.architecture for one in result.resources] == ["sm_80", "sm_90"]
    assert all(one.spill_bytes == 0 for one in result.resources)


def test_without_the_toolchain_cuda_rungs_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        cuda_compiler, "toolchain_missing", lambda: f"missing: {cuda_compiler.INSTALL_TOOLCHAIN}"
    )
    result = kernels.validate(kernels.tanh_scale(), targets=("cuda",))
    assert result.status == "not run"
    rung = next(rung for rung in result.rungs if rung.name == "compile for sm_80")
    assert rung.status == "not run"
    assert "pip install" in rung.detail


def test_synthetic_inputs_are_said() -> None:
    result = kernels.validate(kernels.tanh_scale(), targets=(), captured=None, measure=False)
    rung = next(rung for rung in result.rungs if rung.name == "inputs")
    assert "synthetic" in rung.detail
    assert result.status == "not run"


def test_an_interrupt_travels_and_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(session: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(in_process, "check_eager_text", interrupt)
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        kernels.validate(kernels.tanh_scale(), targets=("cuda",))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_a_time_beyond_the_ceiling_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusion_advisor.records import BandwidthPoint, Ceilings
    from fusion_advisor.validation import benchmark, ladder

    slow = Ceilings(
        device="cpu", name="test", dispatch_us=1.0, gflops=(),
        bandwidth=(BandwidthPoint(working_set_bytes=1 << 15, gb_per_s=1e-6),),
    )  # fmt: skip
    sample = benchmark.Sample(median_us=1.0, spread_us=0.1, rounds=9)
    monkeypatch.setattr(benchmark, "interleaved", lambda *a, **k: (sample, sample))
    monkeypatch.setattr(ladder, "measure_again", lambda: slow)
    one = kernels.tanh_scale()
    session = ladder.Session(
        one.kernel, one.graph, one.candidate, one.reference, one.reference, one.captured
    )
    session.prepare()
    with pytest.raises(ladder.ValidationError, match="cannot have done the work"):
        ladder._timing(session, ladder._Findings(), slow, 0.0, True)
    # Ceilings that were stored on a busy machine are measured again before a kernel is blamed.
    (point,) = slow.bandwidth
    fast = replace(slow, bandwidth=(replace(point, gb_per_s=1e6),))
    monkeypatch.setattr(ladder, "measure_again", lambda: fast)
    said = ladder._timing(session, ladder._Findings(), slow, 0.0, True)
    assert "the stored ceilings were too low" in said


def test_large_inputs_are_judged_where_they_differ() -> None:
    from fusion_advisor.validation.session import WHOLE_BUDGET_ELEMENTS, Session

    one = kernels.tanh_scale()
    x = torch.randn(300, 401)
    assert x.numel() > WHOLE_BUDGET_ELEMENTS
    candidate = replace(one.candidate, shape=(300, 401))
    captured = {candidate.inputs[0].value: x}
    session = Session(one.kernel, one.graph, candidate, one.reference, one.reference, captured)
    session.prepare()
    assert session.prepared[0].case.captured
    (eager,) = session.prepared[0].expected
    (same,) = session.judge(0, [eager.clone()])
    assert same.mismatches == 0
    one_up = torch.nextafter(eager, torch.full_like(eager, 9.0))
    (close,) = session.judge(0, [one_up])
    assert close.mismatches == 0
    assert close.worst_ulp == 1.0
    wrong = eager.clone()
    wrong[200, 3] += 1e-3
    (far,) = session.judge(0, [wrong])
    assert far.mismatches == 1
    wrong[200, 4] += 1e-3  # written after it was judged: nothing is remembered by address
    assert session.judge(0, [wrong])[0].mismatches == 2
    assert session.judge(0, [one_up])[0] == close


def test_a_reference_that_is_not_near_float64_fails_and_cancelled_digits_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from forms_support import recorded

    from fusion_advisor.analysis import find_candidates
    from fusion_advisor.errors import ValidationError
    from fusion_advisor.kernels import generate_kernel
    from fusion_advisor.recorder import replay
    from fusion_advisor.validation import ladder
    from fusion_advisor.validation.session import Session

    def cancels(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.tanh_backward(x * 1.0, torch.tanh(x))

    x = torch.linspace(2.5, 3.5, 96).bfloat16()
    recording = recorded(cancels, x)
    graph = recording.graph
    (candidate,) = find_candidates(graph)
    names = tuple(operand.value for operand in candidate.inputs)
    part = (graph, candidate.computed, names, candidate.outputs)
    session = Session(
        generate_kernel(graph, candidate),
        graph,
        candidate,
        replay.subgraph(*part),
        replay.subgraph(*part, high_precision=True),
        replay.materialize(graph, recording.store, names),
    )
    session.prepare()
    assert "amplified" in ladder._against_float64(session)
    truth = ladder._in_float64
    monkeypatch.setattr(
        ladder, "_in_float64", lambda *given: tuple(3 * one for one in truth(*given))
    )
    with pytest.raises(ValidationError, match="ULP from the float64 result"):
        ladder._against_float64(session)
