"""Every legal candidate of the transformers models: generated, compiled, run, validated.

CPU kernels run on the captured inputs; the CUDA kernels' own code runs natively.  Programs that
repeat over layers are validated once.
"""

from __future__ import annotations

import pytest
import torch

import fusion_advisor as fa
from fusion_advisor.codegen import program_hash
from fusion_advisor.kernels import generate_kernel, validate_kernel
from fusion_advisor.validation import cuda_compiler
from tests.transformers_models import MODELS, build

pytestmark = [pytest.mark.slow, pytest.mark.essential]

_seen: set[str] = set()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_candidate_validates_on_both_targets(name: str) -> None:
    missing = cuda_compiler.toolchain_missing()
    if missing:
        pytest.skip(missing)
    model, inputs = build(name)
    with torch.no_grad():
        advice = fa.profile(model, (), inputs, isolated=False)
    capture = advice.report.capture
    assert capture.proof.status == "passed", capture.proof.message
    store = advice._open_recording().store
    for candidate in advice.report.candidates:
        kernel = generate_kernel(capture.graph, candidate)
        digest = program_hash(kernel.program)
        if digest in _seen:
            continue
        _seen.add(digest)
        result = validate_kernel(capture, candidate, kernel, store=store, measure=False)
        failed = [f"{rung.name}: {rung.detail}" for rung in result.rungs if rung.status == "failed"]
        assert result.status == "passed", (candidate.nodes, failed, kernel.text)
        assert result.mismatches == 0 and result.cases > 0
        assert all(resource.spill_bytes == 0 for resource in result.resources)
        native = {rung.name: rung for rung in result.rungs}["CUDA kernel, run natively"]
        assert native.status == "passed", native.detail
        assert {one.architecture for one in result.resources} == {"sm_80", "sm_90"}
    advice.close()
