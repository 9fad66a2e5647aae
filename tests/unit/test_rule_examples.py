"""The examples of every rule page are run: what is found is that rule, before equals after."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fusion_advisor
from fusion_advisor.rules import RULES
from fusion_advisor.runtime import load_function
from fusion_advisor.validation.bits import same_bytes

SHAPE = (64, 96)
ROUNDED_ALIKE = ("FUS003", "FUS005")  # no op in them that eager itself computes in two ways


def bfloat16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


# Inputs of the example's function, in order.
INPUTS: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "FUS001": lambda: (torch.randn(SHAPE),),
    "FUS002": lambda: (torch.randn(SHAPE), torch.randn(SHAPE)),
    "FUS003": lambda: (torch.randn(SHAPE), torch.randn(SHAPE[1]), torch.randn(SHAPE[1])),
    "FUS005": lambda: (bfloat16(*SHAPE), torch.randn(SHAPE[1]), bfloat16(SHAPE[1])),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def example(code: str, which: str) -> str:
    return str(getattr(RULES[code], f"example_{which}"))


def defined(text: str, file: Path, **names: Any) -> Callable[..., Any]:
    """The one function that ``text`` defines, from a file, as a person's module would be."""
    file.write_text(f"import torch\n\n\n{text}\n", encoding="utf-8")
    space: dict[str, Any] = {"__name__": file.stem, **names}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), space)
    (name,) = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return space[name]


def called_names(text: str) -> set[str]:
    """Plain names that are called in ``text``."""
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name)}


@pytest.mark.essential
@pytest.mark.parametrize("code", INPUTS)
def test_before_is_found_by_its_rule_and_after_gives_the_same_values(code, tmp_path):
    inputs = INPUTS[code]()
    before = defined(example(code, "before"), tmp_path / "before.py")
    advice = fusion_advisor.profile(before, args=inputs, target="cpu")
    (finding,) = advice.report.findings
    assert finding.rule == code
    assert len(finding.occurrences[0].nodes) == len(advice.report.capture.graph.nodes)
    kernel = advice.fuse(finding.id)
    fused = load_function(kernel.text, kernel.entry, kernel.hash)

    after_text = example(code, "after")
    (placeholder,) = called_names(after_text)
    assert placeholder.startswith("fused_")
    after = defined(after_text, tmp_path / "after.py", **{placeholder: fused})
    assert after.__name__ == before.__name__
    wanted, got = (_tuple(function(*inputs)) for function in (before, after))
    assert (fused.stats.fused, sum(fused.stats.fallbacks.values())) == (1, 0)
    for one, other in zip(wanted, got, strict=True):
        if code in ROUNDED_ALIKE:
            assert same_bytes(one, other)
        else:  # exp and sigmoid: at most 4 units in the last place each
            torch.testing.assert_close(other, one, rtol=4 * 2**-23, atol=4 * 2**-23)
    advice.close()


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.essential
def test_a_chain_in_a_package_is_swapped_and_exported_as_its_page_says(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    x = torch.randn(SHAPE)
    space: dict[str, Any] = {"x": x, "fusion_advisor": fusion_advisor}
    exec(example("FUS004", "before"), space)
    expected = space["y"].clone()
    text = example("FUS004", "after")
    assert "profile(activation, args=(x,))" in text
    exec(text.replace("args=(x,))", 'args=(x,), target="cpu")'), space)
    advice, activation = space["advice"], space["activation"]
    assert [finding.rule for finding in advice.report.findings] == ["FUS004"]
    torch.testing.assert_close(space["y"], expected, rtol=0.0, atol=2e-6)
    assert torch.equal(activation(x), expected)  # undone
    monkeypatch.syspath_prepend(str(tmp_path))
    import fused_gelu  # type: ignore[import-not-found]

    fused_gelu.apply(activation)
    try:
        torch.testing.assert_close(activation(x), expected, rtol=0.0, atol=2e-6)
    finally:
        fused_gelu.undo(activation)
        sys.modules.pop("fused_gelu")
    assert torch.equal(activation(x), expected)
    advice.close()


@pytest.mark.essential
def test_an_optimizer_step_is_found_and_its_fused_form_gives_the_same_parameters():
    def stepped(text: str, *, profiled: bool) -> tuple[list[torch.Tensor], Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(12)])
        model(torch.randn(4, 16)).square().sum().backward()
        space: dict[str, Any] = {"torch": torch, "model": model}
        made, step = text.split("\n", 1)
        exec(made, space)
        advice = None
        if profiled:
            optimizer = space["optimizer"]
            assert step == "optimizer.step()"
            advice = fusion_advisor.profile_code(optimizer.step, prove=False)
        else:
            exec(step, space)
        return [parameter.detach() for parameter in model.parameters()], advice

    before, advice = stepped(example("FUS006", "before"), profiled=True)
    assert [finding.rule for finding in advice.report.findings][-1] == "FUS006"
    after, _ = stepped(example("FUS006", "after"), profiled=False)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-7)
    advice.close()


def test_every_rule_has_its_example_run_here():
    assert {*INPUTS, "FUS004", "FUS006"} == set(RULES)
