"""A model whose chains are in an installed package: marked where it is called, kept by a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chromium import screenshot
from scenarios import FUSED_CALLS, apply_live, profile

pytestmark = [pytest.mark.essential, pytest.mark.slow]
Opener = Callable[..., Any]
MODEL = """%load_ext fusion_advisor
import torch
from transformers import GPT2Config, GPT2LMHeadModel
torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(vocab_size=512, n_positions=256, n_embd=384, n_layer=2, n_head=6,
                    use_cache=False, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config).eval()
inputs = {"input_ids": torch.randint(0, 512, (2, 256))}
with torch.no_grad():
    eager = model(**inputs).logits"""
CALL = """%%fuse_profile
with torch.no_grad():
    logits = model(**inputs).logits"""
SAME = """with torch.no_grad():
    again = model(**inputs).logits
print("largest difference", float((again - eager).abs().max()))"""
# Rounding differs in tanh alone, by a few units in the last place of each activation; sums of
# 384 products of them stay well within this for logits of about one.
TOLERANCE = 1e-5


def test_a_library_model_is_fused_live_and_after_a_restart(opened: Opener) -> None:
    notebook = opened(MODEL, CALL, SAME)
    notebook.run(0)
    advisor = profile(notebook)
    assert "model(**inputs)" in advisor.marked_text(1)
    tooltip = advisor.tooltip(1)
    screenshot(notebook.page, "library-model")
    assert "transformers" in tooltip.inner_text()
    before = notebook.texts()

    apply_live(advisor, 1, "F1")
    assert difference(notebook.run(2)) <= TOLERANCE
    live = int(notebook.ask_kernel(FUSED_CALLS))
    assert live > 0
    screenshot(notebook.page, "library-model-applied")

    advisor.finding("F1").get_by_role("button", name="Insert re-apply cell").click()
    notebook.page.wait_for_function(
        "n => jupyterapp.shell.currentWidget.content.model.sharedModel.cells.length > n",
        arg=len(before),
    )
    texts = notebook.texts()
    assert [texts[0], texts[1], texts[3]] == before, "one cell more, all others as they were"
    assert "import fused_" in texts[2] or "from fused_" in texts[2]
    notebook.restart(and_run_all=True)
    assert difference(notebook.output(3)) <= TOLERANCE
    assert int(notebook.ask_kernel(FUSED_CALLS)) > 0
    screenshot(notebook.page, "library-model-reapplied")


def difference(output: str) -> float:
    return float(output.split("largest difference")[1])
