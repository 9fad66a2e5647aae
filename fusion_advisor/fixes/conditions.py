"""What must hold at run time for a chain that looks at more than its tensors' values.

A cast that did nothing when recorded (``.to(input_dtype)``) leaves no op behind; the fused call
leaves it out, so it is made only while the cast still does nothing: while all tensors under it,
and the dtype it names, are of the recorded dtype.  Otherwise the original text runs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fusion_advisor.fixes.callees import Callees, dtype_literal
from fusion_advisor.fixes.dataflow import Cast, Flow, Leaf
from fusion_advisor.fixes.module_calls import HELPER, HELPER_IMPORT, condition_text
from fusion_advisor.fixes.placement import Placer
from fusion_advisor.fixes.refusal import Refusal
from fusion_advisor.fixes.region import Region
from fusion_advisor.fixes.source_index import SourceIndex

_FLOATING = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True)
class Condition:
    """A Python expression, empty where none is needed, and the imports it needs."""

    text: str = ""
    imports: tuple[str, ...] = ()


def conditions_of(
    index: SourceIndex,
    callees: Callees,
    flow: Flow,
    placer: Placer,
    region: Region,
    where: str,
) -> Condition:
    """The condition under which the fused call does what the text does."""
    by_dtype: dict[str, list[str]] = {}
    for cast in flow.casts:
        dtype, terms = _cast_terms(index, callees, flow, placer, cast)
        known = by_dtype.setdefault(dtype, [])
        known += [term for term in terms if term not in known]
    parts = [
        " == ".join([*sorted(terms, key=len), f"torch.{dtype}"])
        for dtype, terms in by_dtype.items()
        if terms
    ]
    guards = _module_guards(index, flow)
    parts += guards
    is_known = callees.means("torch", "torch", region.statements[0])
    if parts and not is_known and (where == "function" or "torch" in placer.live_locals()):
        raise Refusal(
            "name-clash", "`torch` is not torch in this function, so a dtype cannot be named"
        )
    if not guards:
        return Condition(" and ".join(parts))
    if HELPER in placer.taken and not callees.means(
        HELPER, f"fusion_advisor.runtime.modules.{HELPER}", region.statements[0]
    ):
        raise Refusal("name-clash", f"`{HELPER}` already means something in this text")
    return Condition(" and ".join(parts), (HELPER_IMPORT,))


def _module_guards(index: SourceIndex, flow: Flow) -> list[str]:
    guards = []
    stored = {name for _, name in flow.stores} | set(flow.names)
    for match in flow.modules:
        assert match.module is not None
        names = {one.id for one in ast.walk(match.module) if isinstance(one, ast.Name)}
        if names & stored:
            raise Refusal(
                "module-call",
                f"the module `{index.short(match.module)}` is set between the chain's statements",
            )
        guards.append(condition_text(index.segment(match.module), match.last))
    return list(dict.fromkeys(guards))


def _cast_terms(
    index: SourceIndex, callees: Callees, flow: Flow, placer: Placer, cast: Cast
) -> tuple[str, list[str]]:
    dtype = placer.specs[cast.value].dtype.removeprefix("torch.")
    shown = index.short(cast.expression)
    if dtype not in _FLOATING:
        raise Refusal("cast-inside", f"`{shown}` is a cast to {dtype} inside the chain")
    terms = []
    if cast.literal is None:
        names = {n.id for n in ast.walk(cast.expression) if isinstance(n, ast.Name)}
        stored = {name for _, name in flow.stores}
        base = cast.dtype.split(".")[0]
        if base in stored or (base in flow.names and names):
            raise Refusal(
                "cast-inside", f"the dtype in `{shown}` is set between the chain's statements"
            )
        terms.append(cast.dtype)
    elif cast.literal != dtype:
        raise Refusal("cast-inside", f"`{shown}` was recorded as no cast, yet its dtype is {dtype}")
    under = flow.feeds.get(cast.value, set())
    for leaf in flow.leaves:
        if leaf.operand.value in under:
            terms += _leaf_terms(index, callees, placer, leaf, dtype, shown)
    return dtype, terms


def _leaf_terms(
    index: SourceIndex, callees: Callees, placer: Placer, leaf: Leaf, dtype: str, shown: str
) -> list[str]:
    """What makes sure that one operand under a cast has the recorded dtype."""
    expression = leaf.operand.expression
    recorded = placer.specs[leaf.operand.value or ""].dtype.removeprefix("torch.")
    if recorded != dtype:
        raise Refusal(
            "cast-inside",
            f"`{shown}` lies behind operands of different dtypes, so it may cast another time",
        )
    if _literal_cast(callees, expression) == dtype:
        return []
    base: ast.AST = expression
    while isinstance(base, ast.Attribute):
        base = base.value
    if not isinstance(base, ast.Name) or any(version for _, version in leaf.versions):
        raise Refusal(
            "cast-inside",
            f"`{shown}` did nothing when recorded, but the dtype of "
            f"`{index.short(expression)}` cannot be asked before the chain starts",
        )
    return [f"{index.segment(expression)}.dtype"]


def _literal_cast(callees: Callees, expression: ast.AST) -> str | None:
    """The dtype an operand is cast to by its own text, where that is a literal."""
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return None
    attribute = expression.func.attr
    if attribute == "float" and not expression.args and not expression.keywords:
        return "float32"
    if attribute == "to" and len(expression.args) == 1 and not expression.keywords:
        return dtype_literal(callees, expression.args[0])
    return None
