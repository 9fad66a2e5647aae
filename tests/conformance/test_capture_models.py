"""Capture of real models: everything recorded once, proven by replay, every op counted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fusion_advisor.recorder import CaptureOptions, record, replay  # noqa: E402

pytestmark = pytest.mark.essential

Built = tuple[Any, dict[str, Any]]
_SMALL = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_VISION = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def _tokens(*shape: int) -> Any:
    return torch.randint(3, 128, shape)


def _decoder(config: str, model: str, length: int = 16, **more: Any) -> Built:
    made = getattr(transformers, config)(
        **_SMALL, intermediate_size=128, num_key_value_heads=2, **more
    )
    inputs = {"input_ids": _tokens(2, length), "use_cache": False}
    return getattr(transformers, model)(made).eval(), inputs


def _bert() -> Built:
    config = transformers.BertConfig(**_SMALL, intermediate_size=128)
    return transformers.BertModel(config).eval(), {"input_ids": _tokens(2, 16)}


def _gpt2() -> Built:
    config = transformers.GPT2Config(
        vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    return model, {"input_ids": _tokens(2, 16), "use_cache": False}


def _vit() -> Built:
    model = transformers.ViTModel(transformers.ViTConfig(**_VISION)).eval()
    return model, {"pixel_values": torch.randn(2, 3, 32, 32)}


def _whisper() -> Built:
    config = transformers.WhisperConfig(
        vocab_size=128, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, num_mel_bins=8, max_source_positions=32, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {
        "input_features": torch.randn(1, 8, 64),
        "decoder_input_ids": _tokens(1, 5),
        "use_cache": False,
    }
    return transformers.WhisperForConditionalGeneration(config).eval(), inputs


def _clip() -> Built:
    text = dict(**_SMALL, intermediate_size=128, max_position_embeddings=16)
    config = transformers.CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=32)
    inputs = {"input_ids": _tokens(2, 8), "pixel_values": torch.randn(2, 3, 32, 32)}
    return transformers.CLIPModel(config).eval(), inputs


def _resnet() -> Built:
    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config).train()
    return model, {"pixel_values": torch.randn(4, 3, 32, 32)}


def _convnext() -> Built:
    config = transformers.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
    return transformers.ConvNextModel(config).eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


# Dispatched ops of a warm call with transformers 5.24 and torch 2.13.
MODELS: dict[str, tuple[Callable[[], Built], int]] = {
    "llama": (lambda: _decoder("LlamaConfig", "LlamaForCausalLM"), 176),
    "bert": (_bert, 92),
    "gpt2": (_gpt2, 97),
    "vit": (_vit, 89),
    "whisper": (_whisper, 275),
    "mixtral": (
        lambda: _decoder("MixtralConfig", "MixtralForCausalLM", 8, num_local_experts=4), 214,
    ),
    "qwen2": (lambda: _decoder("Qwen2Config", "Qwen2ForCausalLM"), 176),
    "clip": (_clip, 203),
    "resnet": (_resnet, 58),
    "convnext": (_convnext, 40),
}  # fmt: skip
_VERSIONS = ("5.24.", "2.13.")
_counted = transformers.__version__.startswith(_VERSIONS[0]) and torch.__version__.startswith(
    _VERSIONS[1]
)


def _count(run: Callable[[], object]) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops += 1
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        run()
    return counter.ops


@pytest.mark.parametrize("name", MODELS)
def test_forward_is_recorded_and_proven(name):
    build, expected_ops = MODELS[name]
    torch.manual_seed(0)
    model, inputs = build()
    with torch.no_grad():
        model(**inputs)
        torch.manual_seed(1)
        ops = _count(lambda: model(**inputs))
        torch.manual_seed(1)
        recording = record(lambda: model(**inputs))
    graph = recording.graph
    assert len(graph.nodes) == ops
    if _counted and name != "mixtral":  # its ops depend on how many experts the tokens chose
        assert ops == expected_ops
    proof = replay.prove(graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message
    assert proof.compared_values >= 1
    assert proof.unproven_nodes == ()
    named = [node for node in graph.nodes if node.module_path]
    assert len(named) > 0.6 * len(graph.nodes)
    assert all(node.span is not None and node.span.text for node in graph.nodes)
    paths = dict(model.named_modules())
    assert all(recording.module(node.module_path) is paths[node.module_path] for node in named)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_forward_and_backward_are_recorded_and_proven(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name][0]()
    inputs["labels"] = inputs["input_ids"]
    kept = torch.ones_like(model.lm_head.weight)
    model.lm_head.weight.grad = kept
    recording = record(lambda: model(**inputs), CaptureOptions(backward=True))
    assert recording.loss == "the loss of the returned output"
    assert model.lm_head.weight.grad is kept and torch.equal(kept, torch.ones_like(kept))
    assert all(
        parameter.grad is None
        for key, parameter in model.named_parameters()
        if parameter is not model.lm_head.weight
    )
    backward = [node for node in recording.graph.nodes if node.phase == "backward"]
    forward: dict[int | None, Any] = {}
    for node in recording.graph.nodes:
        if node.phase == "forward":
            forward.setdefault(node.sequence, node)  # autograd's own detach comes second
    assert len(backward) > 100
    matched = [node for node in backward if node.sequence in forward]
    assert len(matched) > 0.8 * len(backward)
    tanh_backward = "aten.tanh_backward.default" if name == "gpt2" else "aten.silu_backward.default"
    for node in backward:
        if node.op == tanh_backward:
            assert forward[node.sequence].op == tanh_backward.replace("_backward", "")
            assert node.module_path == forward[node.sequence].module_path
    proof = replay.prove(recording.graph, recording.store, isolated=False)
    assert proof.status == "passed", proof.message
    gradients = sum(1 for _ in model.parameters())
    assert proof.compared_values >= gradients
