"""Models that nothing was tuned to, each for something the others have not.

DiT takes sines of large angles, DeBERTa and Falcon mask with the lowest float, and T5 buckets
positions through logarithms of zero.
"""

from __future__ import annotations

from collections.abc import Callable

import diffusers
import pytest
import torch
import transformers as tf

import fusion_advisor as fa
from fusion_advisor.kernels import generate_kernel, validate_kernel
from fusion_advisor.records import Capture, FusionCandidate
from tests.transformers_models import Built

pytestmark = [pytest.mark.slow]

_TEXT = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


def _ids() -> torch.Tensor:
    return torch.randint(3, 128, (2, 16))


def dit() -> Built:
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=1,
        sample_size=8,
        num_embeds_ada_norm=10,
    )
    return model, {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([1, 2]),
        "class_labels": torch.tensor([0, 3]),
    }


def t5() -> Built:
    config = tf.T5Config(vocab_size=128, d_model=64, d_ff=128, d_kv=16, num_layers=1, num_heads=4)
    inputs = {"input_ids": _ids(), "decoder_input_ids": _ids()[:, :8], "use_cache": False}
    return tf.T5ForConditionalGeneration(config), inputs


def falcon() -> Built:
    config = tf.FalconConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, alibi=True
    )
    return tf.FalconForCausalLM(config), {"input_ids": _ids(), "use_cache": False}


def deberta() -> Built:
    config = tf.DebertaV2Config(
        **_TEXT,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
    )
    return tf.DebertaV2Model(config), {"input_ids": _ids()}


MODELS: dict[str, Callable[[], Built]] = {
    "DiT": dit,
    "T5": t5,
    "Falcon": falcon,
    "DeBERTa-v2": deberta,
}
# The ops that found faults: their candidates are compiled and validated, the others written only.
_TELLING = {
    "aten.sin.default",
    "aten.masked_fill.Scalar",
    "aten.minimum.default",
}


def _telling(capture: Capture, candidate: FusionCandidate) -> bool:
    members = set(candidate.nodes)
    return any(node.op in _TELLING for node in capture.graph.nodes if node.id in members)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_nothing_was_tuned_to(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        model(**inputs)
        advice = fa.profile(model, (), inputs, isolated=False)
    capture = advice.report.capture
    assert capture.proof.status == "passed", capture.proof.message
    assert len(advice.findings) == len(advice.report.findings)
    assert repr(advice)
    store = advice._open_recording().store
    kernels = [(one, generate_kernel(capture.graph, one)) for one in advice.report.candidates]
    assert kernels
    for candidate, kernel in kernels:
        if _telling(capture, candidate):
            result = validate_kernel(capture, candidate, kernel, store=store, measure=False)
            failed = [rung.detail for rung in result.rungs if rung.status == "failed"]
            assert result.status == "passed", (candidate.nodes, failed)
    advice.close()
