"""Ops from outside: a recipe is held against torch's schema and eager, then added to the table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from fusion_advisor import ops
from fusion_advisor.errors import CodegenError, UnsupportedOpError, UsageError
from fusion_advisor.recorder.schema import forget_schemas
from fusion_advisor.records import Argument, OpNode, TensorSpec, ValueRef

RecipeT = TypeVar("RecipeT", bound=ops.Recipe)
_SHAPE = (2, 3)
_NUMBERS: dict[str, Any] = {"float": 1.0, "int": 1, "bool": False, "number": 1.0}
_HOW = "see 'Ops of your own' in docs/custom-ops.md"


def register_op(
    name: Any,
    *,
    flops: float = 1.0,
    budget_ulp: float = 0.0,
    error_scale: Literal["result", "operand"] = "result",
    discontinuous: bool = False,
    note: str = "",
) -> Callable[[RecipeT], RecipeT]:
    """A decorator that adds an elementwise op, such as one of ``torch.library``, to the op table.

    ``name`` is an overload: ``"mylib::soft_cap"``, ``"mylib.soft_cap.default"`` or
    ``torch.ops.mylib.soft_cap.default`` (``.default`` may be left out).  The function it decorates
    writes the op for one element: it is given a ``Call`` and gives the result, or as many as the
    op has.  ``flops`` is its work per element; ``budget_ulp`` how far a float32 result may be off,
    in units in the last place of the result or (``error_scale="operand"``) of the larger of result
    and first operand, 0 meaning eager's very bits; above 4 it needs a ``note`` that says why.
    ``discontinuous`` results jump.

    What is recorded from then on can be fused.  An op that was added may be added again, which
    replaces it; one that Fusion Advisor itself knows may not.

    Raises:
        UsageError: the name, a number, or the recipe cannot be right; nothing is added.
    """
    overload = _overload(name)
    full = str(overload)
    _check_schema(full, overload)
    _check_numbers(full, flops, budget_ulp, note)
    if error_scale not in ("result", "operand"):
        raise UsageError(f"{full}: error_scale is {error_scale!r}; it is 'result' or 'operand'")

    def add(recipe: RecipeT) -> RecipeT:
        info = ops.OpInfo(
            name=full,
            kind="elementwise",
            recipe=recipe,
            flops=float(flops),
            budget_ulp=float(budget_ulp),
            error_scale=error_scale,
            discontinuous=discontinuous,
            parameters=_parameters(overload),
            note=note,
        )
        _check_recipe(overload, info)
        ops.add_row(info)
        forget_schemas()
        return recipe

    return add


def unregister_op(name: Any) -> None:
    """Take an op that was added out of the table again; UsageError if there is none such."""
    full = str(_overload(name))
    if not ops.remove_row(full):
        raise UsageError(f"{full} was not added from outside; nothing was changed")
    forget_schemas()


def _overload(name: Any) -> torch._ops.OpOverload:
    if isinstance(name, torch._ops.OpOverload):
        return name
    if isinstance(name, torch._ops.OpOverloadPacket) and "default" in name.overloads():
        return name.default
    text = name if isinstance(name, str) else ""
    space, _, rest = text.replace("::", ".", 1).partition(".")
    base, _, kind = rest.partition(".")
    if not all(part.isidentifier() for part in (space, base, kind or "default")):
        raise UsageError(
            f"{name!r} is no name of an op: give 'mylib::soft_cap', or torch.ops' own overload"
        )
    try:
        found = getattr(getattr(getattr(torch.ops, space), base), kind or "default")
    except AttributeError:
        raise UsageError(
            f"torch has no op {text!r} here: define it first (torch.library.custom_op), or import "
            "what defines it"
        ) from None
    if not isinstance(found, torch._ops.OpOverload):
        raise UsageError(f"{text!r} is no op of torch")
    return found


def _parameters(overload: torch._ops.OpOverload) -> str:
    return " ".join(f"{'*' * one.kwarg_only}{one.name}" for one in overload._schema.arguments)


def _results(overload: torch._ops.OpOverload) -> int:
    return len(overload._schema.returns)


def _check_schema(full: str, overload: torch._ops.OpOverload) -> None:
    """Refuse what is known already, and what cannot be elementwise by its schema."""
    known = ops.lookup(full)
    if known is not None and known.recipe is not None and not ops.is_added(full):
        raise UsageError(f"{full} has a recipe already; an op of Fusion Advisor's stays as it is")
    kind = ops.classify(full)
    if kind not in ("elementwise", "other"):
        raise UsageError(f"{full} is a {kind} op, and no kernel of one element at a time")
    schema = overload._schema
    if any(one.alias_info is not None for one in (*schema.arguments, *schema.returns)):
        raise UsageError(
            f"{full} writes or shows one of its arguments: add the functional form of it, "
            "which gives new tensors"
        )
    if not any(str(one.type) == "Tensor" for one in schema.arguments):
        raise UsageError(f"{full} takes no tensor")
    if not schema.returns or any(str(one.type) != "Tensor" for one in schema.returns):
        raise UsageError(f"{full} gives something else than tensors")


def _check_numbers(full: str, flops: float, budget_ulp: float, note: str) -> None:
    for word, number in (("flops", flops), ("budget_ulp", budget_ulp)):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise UsageError(f"{full}: {word} is {number!r}, not a number")
        if not 0 <= number < float("inf"):
            raise UsageError(f"{full}: {word} is {number}; it is a number from 0 on")
    if budget_ulp > 4 and not note:
        raise UsageError(f"{full}: a budget above 4 ULP needs a note that says why")


def _check_recipe(overload: torch._ops.OpOverload, info: ops.OpInfo) -> None:
    """Write the recipe for tensors of every dtype and hold its dtypes against eager's."""
    if not callable(info.recipe):
        raise UsageError(f"{info.name}: its recipe is {info.recipe!r}, not a function")
    refusals: list[str] = []
    for dtype in ops.SUPPORTED_DTYPES:
        args, kwargs = _arguments(overload, dtype)
        results = _eager(overload, args, kwargs)
        if results is None:
            refusals.append(f"{dtype}: torch itself raises an error")
            continue
        if any(tuple(result.shape) != _SHAPE for result in results):
            raise UsageError(
                f"{info.name} gives {tuple(results[0].shape)} for {_SHAPE}: it is not elementwise"
            )
        refused = _refusal(info, dtype, args, kwargs, results)
        if refused:
            refusals.append(f"{dtype}: {refused}")
    if len(refusals) == len(ops.SUPPORTED_DTYPES):
        raise UsageError(f"the recipe of {info.name} takes no dtype at all; {refusals[-2]}")


def _arguments(
    overload: torch._ops.OpOverload, dtype: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Ones of a dtype for the tensors, and numbers where there is no default."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    skipped = False
    for one in overload._schema.arguments:
        kind = str(one.type)
        if one.has_default_value():
            skipped = True
            continue
        if kind == "Tensor":
            value: Any = torch.ones(_SHAPE, dtype=getattr(torch, dtype))
        elif kind in _NUMBERS:
            value = _NUMBERS[kind]
        elif kind.startswith("Optional"):
            value = None
        else:
            raise UsageError(
                f"{overload} takes {one.name} of type {kind}, which no kernel can be given"
            )
        if one.kwarg_only or skipped:
            kwargs[one.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _eager(
    overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, ...] | None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = overload(*args, **kwargs)
        except Exception:  # what an op of others raises is not known
            return None
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _refusal(
    info: ops.OpInfo,
    dtype: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    results: tuple[Tensor, ...],
) -> str:
    """Why the recipe does not take such tensors; UsageError where it is wrong."""
    specs: dict[str, TensorSpec] = {}

    def argument(value: Any) -> Argument:
        if not isinstance(value, Tensor):
            return value  # type: ignore[no-any-return]
        name = f"v{len(specs)}"
        specs[name] = _spec(name, value)
        return ValueRef(value=name)

    node = OpNode(
        id="n0",
        index=0,
        op=info.name,
        args=tuple(argument(value) for value in args),
        kwargs=tuple((key, argument(value)) for key, value in kwargs.items()),
        inputs=tuple(specs),
        outputs=tuple(f"r{place}" for place in range(len(results))),
        kind="elementwise",
    )
    builder = ops.Builder({name: spec.dtype for name, spec in specs.items()})
    dtypes = [str(result.dtype).removeprefix("torch.") for result in results]
    try:
        ops.write_call(node, info, builder, lambda one: ops.operand_of(specs[one], one), dtypes)
    except UnsupportedOpError as refused:
        if " gave " in str(refused):
            raise UsageError(f"the recipe of {info.name} is wrong: {refused}") from refused
        return str(refused)
    except CodegenError as wrong:
        problem = str(wrong).removesuffix("; report this with the op's name")  # it is the caller's
        raise UsageError(
            f"the recipe of {info.name} is wrong for {dtype}: {problem}. Where it does not take "
            f"that dtype, call.require_float or call.refuse says so; {_HOW}"
        ) from wrong
    except Exception as wrong:
        raise UsageError(
            f"the recipe of {info.name} raises {type(wrong).__name__} for {dtype}: {wrong}; {_HOW}"
        ) from wrong
    return ""


def _spec(name: str, tensor: Tensor) -> TensorSpec:
    return TensorSpec(
        id=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        storage=0,
    )
