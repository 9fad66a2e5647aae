"""Write docs/ops.md: every elementwise op of torch, and what becomes of it.

    python tools/op_page.py docs/ops.md

The rows come from the op table; the dtypes from trying each recipe, and torch, on tiny tensors.
Where an overload's schema leaves arguments open, calls are made with the numbers of SETTINGS.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fusion_advisor import ops
from fusion_advisor.ops.table import refusal
from fusion_advisor.records import Argument, OpNode, TensorSpec, ValueRef

DTYPES = (*ops.SUPPORTED_DTYPES,)
FLOATS = ("bfloat16", "float16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
# Arguments without a default, and those whose default is not what a kernel computes.
SETTINGS: Mapping[str, Any] = {
    "reduction": 0,
    "train": False,
    "training": False,
    "self_is_result": False,
    "is_result": False,
    "p": 0.5,
    "non_blocking": False,
}
SCALARS = ("value",)  # tensors of no dimension
MASKS = ("mask", "condition")  # tensors of bool whatever the others are
_OWN_DTYPES = {"aten.ldexp.Tensor": {"other": "int64"}}
_NEEDED = {"aten.clamp.Tensor": ("min",), "aten.clamp.default": ("min",)}


@dataclass(frozen=True)
class Slot:
    """An argument of an overload: a tensor (or 0-dim one) or a number."""

    name: str
    tensor: bool
    keyword: bool
    value: Any = None  # of numbers
    dtype: str = ""  # of tensors that have one of their own


def overloads() -> Iterator[Any]:
    """Every overload in torch's own registry."""
    for name in sorted(dir(torch.ops.aten)):
        packet = getattr(torch.ops.aten, name, None)
        if isinstance(packet, torch._ops.OpOverloadPacket):
            for overload in packet.overloads():
                yield getattr(packet, overload)


def is_functional(overload: Any) -> bool:
    """Whether it takes tensors, gives new ones and writes none."""
    schema = overload._schema
    arguments, returns = schema.arguments, schema.returns
    takes = any("Tensor" in str(argument.type) for argument in arguments)
    gives = any(str(one.type) == "Tensor" for one in returns)
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    return takes and gives and not writes and not any(a.is_out for a in arguments)


def is_recorded(overload: Any) -> bool:
    """Whether a recording shows it, not the ops that torch makes of it."""
    try:
        return not torch._C._dispatch_has_kernel_for_dispatch_key(
            overload.name(), "CompositeImplicitAutograd"
        )
    except RuntimeError:  # made for TorchScript: it has no kernels to dispatch to
        return False


def resolve(name: str) -> Any:
    """The overload of an op's full name."""
    _, base, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, base), overload)


def slots(overload: Any) -> tuple[Slot, ...]:
    """The arguments that a call has to be made with."""
    needed = _NEEDED.get(str(overload), ())
    own = _OWN_DTYPES.get(str(overload), {})
    found = []
    skipped = False
    for argument in overload._schema.arguments:
        name, kind = argument.name, str(argument.type)
        if argument.has_default_value() and name not in SETTINGS and name not in needed:
            skipped = True
            continue
        optional = kind.startswith("Optional") and name not in needed
        tensor = "Tensor" in kind and not optional
        value = SETTINGS.get(name, None if tensor or optional else 2)
        keyword = argument.kwarg_only or skipped
        found.append(Slot(name, tensor, keyword, value, own.get(name, "")))
    return tuple(found)


@dataclass(frozen=True)
class TinyCall:
    """A call on tensors of one or two elements, with what eager gives."""

    overload: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[torch.Tensor, ...]

    def refusal(self) -> str:
        """Why no kernel computes this, or gives these dtypes; empty where one does."""
        name = str(self.overload)
        info = ops.lookup(name)
        if info is None or info.recipe is None:
            return f"{name} has no recipe"
        specs: dict[str, TensorSpec] = {}

        def argument(value: Any) -> Argument:
            if not isinstance(value, torch.Tensor):
                assert value is None or isinstance(value, (bool, int, float))
                return value
            one = f"v{len(specs)}"
            specs[one] = _spec(one, value)
            return ValueRef(value=one)

        args = tuple(argument(value) for value in self.args)
        kwargs = tuple((key, argument(value)) for key, value in self.kwargs.items())
        inputs = tuple(specs)
        outputs = tuple(f"r{place}" for place in range(len(self.results)))
        specs |= {one: _spec(one, made) for one, made in zip(outputs, self.results, strict=True)}
        node = OpNode(
            id="n0", index=0, op=name, args=args, kwargs=kwargs, inputs=inputs, outputs=outputs,
            kind=info.kind,
        )  # fmt: skip
        return ops.why_unwritable(node, info, specs)


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(
        id=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        storage=0,
    )


def tiny_call(overload: Any, made: tuple[Slot, ...], values: tuple[Any, ...]) -> TinyCall | None:
    """The call with these values in these slots; None where eager raises."""
    args = tuple(v for slot, v in zip(made, values, strict=True) if not slot.keyword)
    kwargs = {slot.name: v for slot, v in zip(made, values, strict=True) if slot.keyword}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = overload(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
            return None
    results = result if isinstance(result, (tuple, list)) else (result,)
    return TinyCall(overload, args, kwargs, tuple(results))


def uniform_call(overload: Any, dtype: str) -> TinyCall | None:
    """A call on tensors of one dtype (masks of bool)."""
    made = slots(overload)
    values = tuple(
        operand(slot, slot.dtype or dtype, 1) if slot.tensor else slot.value for slot in made
    )
    return tiny_call(overload, made, values)


def operand(slot: Slot, dtype: str, dimensions: int) -> torch.Tensor:
    """Ones of a dtype, or what the slot takes whatever the other operands are."""
    shape = (2,) * dimensions if slot.name not in SCALARS else ()
    return torch.ones(shape, dtype=torch.bool if slot.name in MASKS else getattr(torch, dtype))


def supported_dtypes(overload: Any) -> tuple[str, ...]:
    """The dtypes of operands that both eager and the recipe take."""
    found = []
    for dtype in DTYPES:
        call = uniform_call(overload, dtype)
        if call is not None and not call.refusal():
            found.append(dtype)
    return tuple(found)


def _dtypes_text(dtypes: tuple[str, ...]) -> str:
    parts: list[str] = []
    left = list(dtypes)
    for word, group in (("floats", FLOATS), ("integers", INTEGERS)):
        if set(group) <= set(left):
            parts.append(word)
            left = [dtype for dtype in left if dtype not in group]
    return ", ".join([*parts, *left])


def listed() -> tuple[list[str], list[str]]:
    """Names of the overloads with a recipe, and of the elementwise ones without."""
    with_recipe, without = [], []
    for overload in overloads():
        name = str(overload)
        if not is_functional(overload) or not is_recorded(overload):
            continue
        info = ops.lookup(name)
        if info is not None and info.recipe is not None:
            if info.kind not in ("view", "metadata"):
                with_recipe.append(name)
        elif is_elementwise(overload):
            without.append(name)
    return with_recipe, without


def is_elementwise(overload: Any) -> bool:
    """By torch's own tag, or by the table."""
    name = str(overload)
    tagged = torch.Tag.pointwise in overload.tags
    kind = ops.classify(name, pointwise_tag=tagged)
    return kind == "elementwise" or bool(refusal(name))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page() -> str:
    """The page's text."""
    with_recipe, without = listed()
    version = torch.__version__.split("+")[0].rpartition(".")[0]
    lines = [
        "# Ops",
        "",
        "<!-- Written by `make docs` from the op table: edit that. -->",
        "",
        f"What becomes of each elementwise op of torch {version}. In-place forms (`add_`) are",
        "taken as the op they are named after, and round to the dtype of what they write. What",
        "torch makes of other ops (`clip` of `clamp`, `divide` of `div`) is recorded as those.",
        "",
        "## Written into kernels",
        "",
        "Dtypes are those of the operands; *floats* are bfloat16, float16, float32 and float64,",
        "*integers* uint8, int8, int16, int32 and int64. The error is the most that a float32",
        "result may be off, in units in the last place; 0 stands for eager's very bits. `(x)` says",
        "that the unit is that of the first operand where it is larger than the result: what",
        "cancels has no bound of its own.",
        "",
        "| op | dtypes | error | |",
        "|---|---|---|---|",
    ]
    for name in with_recipe:
        info = ops.lookup(name)
        assert info is not None
        error = f"{info.budget_ulp:g}" + (" (x)" if info.error_scale == "operand" else "")
        dtypes = _dtypes_text(supported_dtypes(resolve(name)))
        short = name.removeprefix("aten.")
        lines.append(f"| `{short}` | {dtypes} | {error} | {_cell(info.note)} |")
    lines += [
        "",
        "## Left to eager",
        "",
        "A group ends at these; the report says so with the same words. Of the losses above, those",
        'with `reduction="none"` are written into kernels; of dropout, that out of training.',
        "",
        "| op | it |",
        "|---|---|",
    ]
    reasons: dict[str, list[str]] = {}
    for name in without:
        info = ops.lookup(name)
        reason = info.reason if info is not None else "is not known"
        reasons.setdefault(reason, []).append(name.removeprefix("aten."))
    for reason, names in sorted(reasons.items(), key=lambda item: item[1]):
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {_cell(reason)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page to the path given."""
    if len(arguments) != 1:
        print("usage: python tools/op_page.py docs/ops.md", file=sys.stderr)
        return 2
    Path(arguments[0]).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
