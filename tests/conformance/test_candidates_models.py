"""Candidates of real recordings: legal by the slow checker, and as many as were counted by hand."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from slow_checker import lonely, problems  # noqa: E402
from transformers_models import MODELS, build  # noqa: E402

from fusion_advisor.analysis import find_candidates, removable_launches  # noqa: E402
from fusion_advisor.recorder import CaptureOptions, record  # noqa: E402
from fusion_advisor.records import OpGraph  # noqa: E402

pytestmark = pytest.mark.essential

# Groups of two or more ops, and launches saved if each were one kernel.
COUNTED = {
    "Llama": (19, 31),
    "BERT": (1, 1),
    "ViT": (0, 0),
    "Mixtral": (19, 31),
    "Qwen2": (19, 31),
    "CLIP": (7, 12),
    "ResNet": (4, 4),
    "Whisper": (8, 8),  # but for one, across a view
    "ConvNeXt": (2, 2),  # both across a view
    # One pair is the positions, needed whole by the embedding, and `- 1` of their first one: two
    # loops of one kernel, joined through views of which two stay.
    "GPT-2": (4, 16),
}


def recorded(name: str) -> OpGraph:
    torch.manual_seed(0)
    model, inputs = build(name)
    with torch.no_grad():
        model(**inputs)
        return record(lambda: model(**inputs), CaptureOptions()).graph


@pytest.mark.parametrize("name", sorted(MODELS))
def test_candidates(name: str) -> None:
    graph = recorded(name)
    candidates = find_candidates(graph)
    framed = find_candidates(graph, within_frame=True)
    for found in (candidates, framed):
        assert problems(graph, found) == []
        assert not any(lonely(graph, candidate) for candidate in found)
    seen = (len(candidates), removable_launches(candidates))
    if name in COUNTED:
        groups, removable = COUNTED[name]
        assert seen[0] >= groups
        assert seen[1] >= removable
    across = {"ConvNeXt": 2, "GPT-2": 1, "Whisper": 7}
    if name in across:
        assert sum(bool(c.views) for c in candidates) == across[name]
    if name == "ViT":
        assert seen == (0, 0)


def test_a_training_step_s_candidates_are_legal() -> None:
    torch.manual_seed(0)
    model, inputs = build("Llama")
    graph = record(
        lambda: model(**inputs).logits.square().mean().backward(), CaptureOptions()
    ).graph
    candidates = find_candidates(graph)
    assert problems(graph, candidates) == []
    phases = {node.id: node.phase for node in graph.nodes}
    assert {phases[node] for c in candidates for node in c.nodes} >= {"forward"}
    assert any(candidate.saved for candidate in candidates)
