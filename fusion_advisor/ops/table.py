"""The op table's rows and the decorator that recipe modules register with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from fusion_advisor.ops.calls import Call
from fusion_advisor.ops.dtypes import is_integer
from fusion_advisor.ops.kinds import classify, functional_name, is_added, mark_elementwise
from fusion_advisor.ops.refused import REASONS
from fusion_advisor.ops.scalars import Value
from fusion_advisor.records import OpKind, OpNode, ValueRef

Recipe = Callable[[Call], Value | tuple[Value, ...]]
RecipeT = TypeVar("RecipeT", bound=Recipe)
PromotionKind = Literal["default", "float", "bool", "self", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo:
    """What is known about one overload.

    ``recipe`` writes the op in scalar opcodes; ``reason`` says why there is none.
    ``budget_ulp`` bounds the float32 result's distance from the true value, in ULP
    of the result or, with ``error_scale="operand"``, of the larger of result and
    first operand (ops that cancel: no bound relative to the result exists); 0 means
    bit-equal to eager.  ``budgets_by_text`` are those of calls with such a text
    argument.  ``note`` says why a budget is above 4 or not 0 for plain
    arithmetic.  ``half_steps``: in 16 bits eager rounds between its steps, so that an ULP of one
    of them is seen whole in the result.  ``parameters`` lists the schema's names, keyword-only
    ones starred.  ``promotion`` tells how the output dtype comes about.  Of ``unread``
    parameters shape and dtype matter, their elements do not.  With ``halves`` an element of the
    result needs two of the first operand, from either half of a dimension; a recipe has them as
    ``self`` and ``second``.  ``zero_raises``: dividing an integer by 0 does in eager.
    """

    name: str
    kind: OpKind
    recipe: Recipe | None = None
    flops: float = 1.0
    budget_ulp: float = 0.0
    budgets_by_text: tuple[tuple[str, float], ...] = ()
    error_scale: Literal["result", "operand"] = "result"
    half_steps: bool = False
    discontinuous: bool = False
    reason: str = ""
    promotion: PromotionKind = "default"
    parameters: str = "self"
    note: str = ""
    unread: str = ""
    halves: bool = False
    zero_raises: bool = False

    def may_raise(self, node: OpNode, dtype: str) -> bool:
        """Whether eager may raise at an element of this call, whose result has ``dtype``."""
        divides = self.zero_raises and is_integer(dtype)
        return divides and isinstance(dict(enumerate(node.args)).get(1), ValueRef)


_TABLE: dict[str, OpInfo] = {}

_GIVEN = ("out", "output", "grad_input")  # ends of overloads that write into a given tensor
_NO_RECIPE = "no scalar recipe is known for it"  # of an op that no list here names


def op(
    *names: str,
    parameters: str = "self",
    flops: float = 1.0,
    budget_ulp: float = 0.0,
    budgets_by_text: tuple[tuple[str, float], ...] = (),
    error_scale: Literal["result", "operand"] = "result",
    half_steps: bool = False,
    discontinuous: bool = False,
    promotion: PromotionKind = "default",
    note: str = "",
    unread: str = "",
    halves: bool = False,
    zero_raises: bool = False,
) -> Callable[[RecipeT], RecipeT]:
    """Register a recipe for one or more overloads (``add.Tensor``) of the same schema."""

    def register(recipe: RecipeT) -> RecipeT:
        for name in names:
            full = f"aten.{name}"
            _TABLE[full] = OpInfo(
                name=full,
                kind=classify(full, pointwise_tag=True),
                recipe=recipe,
                flops=flops,
                budget_ulp=budget_ulp,
                budgets_by_text=budgets_by_text,
                error_scale=error_scale,
                half_steps=half_steps,
                discontinuous=discontinuous,
                promotion=promotion,
                parameters=parameters,
                note=note,
                unread=unread,
                halves=halves,
                zero_raises=zero_raises,
            )
        return recipe

    return register


def add_row(info: OpInfo) -> None:
    """Add an op from outside, or replace one that was added."""
    _TABLE[info.name] = info
    mark_elementwise(info.name, True)


def remove_row(name: str) -> bool:
    """Take out an op that was added; False where it was not."""
    if not is_added(name):
        return False
    del _TABLE[name]
    mark_elementwise(name, False)
    return True


def lookup(name: str) -> OpInfo | None:
    """The table's row for an overload; in-place names give their functional row.

    An elementwise op without a recipe gives a row with a ``reason``; any other op
    without a recipe gives None.
    """
    functional = functional_name(name)
    known = _TABLE.get(functional)
    if known is not None:
        return known
    kind = classify(functional)
    reason = refusal(functional)
    if not reason and kind != "elementwise":
        return None
    overload = functional.rpartition(".")[2]
    if overload.endswith(_GIVEN) or overload.lower().startswith("out"):
        reason = "writes into a tensor that it is given: call it without out=, for a new one"
    return OpInfo(name=functional, kind=kind, reason=reason or _NO_RECIPE)


def refusal(functional: str) -> str:
    """Why an op by name has no recipe; empty for ops that are not listed."""
    full = functional.removeprefix("aten.")
    return REASONS.get(full) or REASONS.get(full.partition(".")[0], "")


def rows() -> tuple[OpInfo, ...]:
    """Every row with a recipe, by name."""
    return tuple(replace(_TABLE[name]) for name in sorted(_TABLE))
