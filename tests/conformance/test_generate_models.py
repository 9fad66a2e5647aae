"""Every candidate of the transformers models, forward and backward: generated, compiled, run.

The CPU kernel runs on the captured operands and is compared with a replay of the captured ops;
the CUDA kernel is compiled for two architectures.
"""

from __future__ import annotations

import pytest
import torch
import transformers_models
from kernel_harness import (
    compile_cuda,
    differing,
    fused_multiply_adds,
    has_transcendental,
    load,
    poisoned_like,
)

from fusion_advisor.analysis import find_candidates
from fusion_advisor.codegen import generate, lower, program_hash
from fusion_advisor.recorder import CaptureOptions, record, replay
from fusion_advisor.validation import budget
from fusion_advisor.validation.compare import compare

MODELS = [
    "llama",
    "bert",
    "gpt2",
    "vit",
    "whisper",
    "mixtral",
    "qwen2",
    "clip",
    "resnet",
    "convnext",
]
_loaded: dict[str, object] = {}


def _function(graph, candidate):
    """The loaded function of a candidate; repeated layers share one."""
    program = lower(graph, candidate, name="fused")
    key = program_hash(program)
    if key not in _loaded:
        kernel = generate(program, graph)
        _loaded[key] = load(kernel)[kernel.entry]
        _check_cuda(kernel)
    return program, _loaded[key]


def _check_cuda(kernel):
    try:
        import numba_cuda  # noqa: F401  # only whether it is there
    except ImportError:
        return
    own = sum(statement.opcode == "fma" for statement in kernel.program.statements)
    for architecture in ((8, 0), (9, 0)):
        ptx = compile_cuda(kernel, architecture)
        if not has_transcendental(kernel.program):
            assert fused_multiply_adds(ptx) == own, kernel.text


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", MODELS)
def test_every_candidate(name, backward, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    model, inputs = getattr(transformers_models, name)()

    def run():
        with torch.set_grad_enabled(backward):
            return model(**inputs)

    recording = record(run, CaptureOptions(backward=backward))
    graph = recording.graph
    candidates = find_candidates(graph)
    wanted = {operand.value for c in candidates for operand in c.inputs}
    values = replay.materialize(graph, recording.store, wanted)
    for candidate in candidates:
        program, function = _function(graph, candidate)
        arguments = tuple(values[one.value] for one in program.given)
        names = [operand.value for operand in candidate.inputs]
        reference = replay.subgraph(graph, candidate.computed, names, candidate.outputs)
        with torch.no_grad():
            expected = reference(*(values[value] for value in names))
            eager = function.eager(*arguments)
        eager = eager if isinstance(eager, tuple) else (eager,)
        results = function.run_cpu(arguments, poisoned_like(expected), parallel=False)
        # What rounding may do is known before: the ops' own budgets, carried through the chain.
        allowed = budget(graph, candidate, {name: values[name] for name in names})
        for result, wanted_result, chain, limit in zip(
            results, expected, eager, allowed, strict=True
        ):
            assert differing(chain, wanted_result) == 0, candidate.id
            if has_transcendental(program) and result.is_floating_point():
                assert compare(result, limit).mismatches == 0, candidate.id
            else:
                assert differing(result, wanted_result) == 0, candidate.id
        assert function.why_not(*arguments) == ""
