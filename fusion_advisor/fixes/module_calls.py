"""Calls of ``torch.nn`` activation modules inside a chain: ``self.act(x)``.

What such a call computes depends on the instance, so the fused call is made only while the module
is of the recorded class with the recorded settings and has no hooks (``runs_plain``); otherwise the
original text runs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.records import Fix, OpNode

HELPER = "runs_plain"
HELPER_IMPORT = f"from fusion_advisor.runtime.modules import {HELPER}"

# class in torch.nn -> (op without underscore, whether it has `inplace`, settings by argument)
_CLASSES: dict[str, tuple[str, bool, tuple[tuple[str, int, float], ...]]] = {
    "ReLU": ("relu", True, ()),
    "SiLU": ("silu", True, ()),
    "Sigmoid": ("sigmoid", False, ()),
    "Tanh": ("tanh", False, ()),
    "GELU": ("gelu", False, ()),
    "Mish": ("mish", True, ()),
    "Hardswish": ("hardswish", True, ()),
    "Hardsigmoid": ("hardsigmoid", True, ()),
    "LeakyReLU": ("leaky_relu", True, (("negative_slope", 1, 0.01),)),
    "ELU": ("elu", True, (("alpha", 1, 1.0),)),
}


def is_module_call(call: ast.Call, op: OpNode) -> bool:
    """Whether a call of one argument can be a known activation module that ran just this op."""
    known = _CLASSES.get(op.module_class.rsplit(".", 1)[-1])
    base = op.op.split(".")[1].rstrip("_") if "." in op.op else op.op
    if known is None or known[0] != base or call.keywords or len(call.args) != 1:
        return False
    callee: ast.AST = call.func
    while isinstance(callee, ast.Attribute):
        callee = callee.value
    return isinstance(callee, ast.Name)


def condition_text(callee: str, op: OpNode) -> str:
    """The call of ``runs_plain`` that guards a module call."""
    name = op.module_class.rsplit(".", 1)[-1]
    _, has_inplace, settings = _CLASSES[name]
    parts = [callee, f"torch.nn.{name}"]
    if has_inplace:
        parts.append(f"inplace={bool(op.mutates)}")
    if name == "GELU":
        approximate = dict(op.kwargs).get("approximate", "none")
        if approximate not in ("none", "tanh"):
            raise Refusal("module-settings", f"`{callee}` is a GELU of an unknown kind", (op.id,))
        parts.append(f"approximate={str(approximate)!r}")
    for setting, position, default in settings:
        value = op.args[position] if position < len(op.args) else default
        if not isinstance(value, int | float):
            raise Refusal("module-settings", f"`{setting}` of `{callee}` is no number", (op.id,))
        parts.append(f"{setting}={value!r}")
    return f"{HELPER}({', '.join(parts)})"


def with_helpers(fix: Fix, namespace: Mapping[str, object]) -> dict[str, object]:
    """The names an edited function needs, the guard's helper included where it is used."""
    found = dict(namespace)
    if any(f"{HELPER}(" in edit.new for edit in fix.edits):
        from fusion_advisor.runtime.modules import runs_plain

        found[HELPER] = runs_plain
    return found
