"""Small transformers models that build offline: name -> (model, inputs), random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as tf

_TEXT = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}

Built = tuple[torch.nn.Module, dict[str, Any]]


def _ids(length: int = 16) -> torch.Tensor:
    return torch.randint(0, 128, (2, length))


def llama() -> Built:
    config = tf.LlamaConfig(**_TEXT, num_key_value_heads=2)
    return tf.LlamaForCausalLM(config).eval(), {"input_ids": _ids(), "use_cache": False}


def bert() -> Built:
    return tf.BertModel(tf.BertConfig(**_TEXT)).eval(), {"input_ids": _ids()}


def gpt2() -> Built:
    config = tf.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    return tf.GPT2LMHeadModel(config).eval(), {"input_ids": _ids(), "use_cache": False}


def vit() -> Built:
    return tf.ViTModel(tf.ViTConfig(**_VISION)).eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


def whisper() -> Built:
    config = tf.WhisperConfig(
        vocab_size=128,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        num_mel_bins=8,
        max_source_positions=32,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inputs = {
        "input_features": torch.randn(1, 8, 64),
        "decoder_input_ids": torch.randint(3, 128, (1, 5)),
        "use_cache": False,
    }
    return tf.WhisperForConditionalGeneration(config).eval(), inputs


def mixtral() -> Built:
    config = tf.MixtralConfig(**_TEXT, num_key_value_heads=2, num_local_experts=4)
    return tf.MixtralForCausalLM(config).eval(), {"input_ids": _ids(8), "use_cache": False}


def qwen2() -> Built:
    config = tf.Qwen2Config(**_TEXT, num_key_value_heads=2)
    return tf.Qwen2ForCausalLM(config).eval(), {"input_ids": _ids(), "use_cache": False}


def clip() -> Built:
    text = {**_TEXT, "max_position_embeddings": 16}
    config = tf.CLIPConfig(text_config=text, vision_config=_VISION, projection_dim=32)
    inputs = {"input_ids": _ids(8), "pixel_values": torch.randn(2, 3, 32, 32)}
    return tf.CLIPModel(config).eval(), inputs


def resnet() -> Built:
    config = tf.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"
    )
    model = tf.ResNetForImageClassification(config).train()
    return model, {"pixel_values": torch.randn(4, 3, 32, 32)}


def convnext() -> Built:
    config = tf.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2)
    return tf.ConvNextModel(config).eval(), {"pixel_values": torch.randn(2, 3, 32, 32)}


MODELS: dict[str, Callable[[], Built]] = {
    "Llama": llama,
    "BERT": bert,
    "GPT-2": gpt2,
    "ViT": vit,
    "Whisper": whisper,
    "Mixtral": mixtral,
    "Qwen2": qwen2,
    "CLIP": clip,
    "ResNet": resnet,
    "ConvNeXt": convnext,
}


def build(name: str) -> Built:
    """A warmed model and its inputs, the same for every run."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    with torch.no_grad():
        model(**inputs)
    return model, inputs
