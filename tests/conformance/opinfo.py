"""torch's own OpInfo samples as calls, each in the forms in which a person's code may make it.

An OpInfo entry names an op and makes sample inputs for it.  Here every sample is called as it is
and on non-contiguous tensors.  Samples of different arguments are called once more in place and
with ``out=``, where torch has such forms, and with other memory: permuted, 0-dim, empty, and 4,099
elements long with special values mixed in, so that vector bodies, tails and threads have something
to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from fusion_advisor.validation.inputs import special_values

DTYPES = (
    torch.int32, torch.uint8, torch.bool, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int8, torch.int16, torch.float32,
)  # fmt: skip
ENTRIES = Path(__file__).with_name("opinfo_entries.txt")
FORMS = (
    "as it is", "non-contiguous", "in place", "out=", "permuted", "0-dim", "empty", "long",
    "long, strided",
)  # fmt: skip
SEED = 20  # of the samples' values
LONG_ELEMENTS = 4_099  # prime: whole vectors are never all of it
MOST_BASES = 3  # samples of different arguments that an entry's derived forms are made of
SPECIAL_SHARE = 0.8  # of the elements of a long tensor: nearly every two special values meet
# Eager itself dies (SIGFPE) of the lowest int32 or int64 divided by -1.
WITHOUT_LOWEST = ("div.trunc_rounding",)

Transform = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class SampleCall:
    """One call; ``run`` may be called again, and then gives the same."""

    form: str
    run: Callable[[], Any]


def read_entries() -> dict[str, tuple[str, ...]]:
    """The names under ``required`` and ``others``."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in ENTRIES.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = []
        elif line and not line.startswith("#"):
            found[section].append(line)
    return {name: tuple(names) for name, names in found.items()}


def find_entries() -> dict[str, Any]:
    """torch's OpInfo objects by name[.variant]."""
    return {entry_name(entry): entry for entry in op_db}


def entry_name(entry: Any) -> str:
    """``name`` or ``name.variant``."""
    variant = entry.variant_test_name
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def calls(entry: Any, dtype: torch.dtype) -> Iterator[SampleCall]:
    """The entry's calls for a dtype: every sample as it is, then every other form."""
    if dtype not in entry.supported_dtypes("cpu"):
        return
    torch.manual_seed(SEED)
    samples = []
    # Not sample_inputs: it seeks the test that it runs in, which takes longer than all else.
    for sample in entry.sample_inputs_func(entry, "cpu", dtype, requires_grad=False):
        samples.append(sample)
        yield SampleCall("as it is", _functional(entry, sample))
        yield SampleCall("non-contiguous", _functional(entry, sample.noncontiguous()))
    bases = _bases(samples)
    derived = []
    lowest = entry_name(entry) not in WITHOUT_LOWEST
    for form, attempts in _transforms(lowest=lowest).items():
        for base in bases:
            found = _accepted(entry, [base.transform(one) for one in attempts])
            if found is not None:
                yield SampleCall(form, _functional(entry, found))
                derived.append(found)
    for sample in (*bases, *(base.noncontiguous() for base in bases), *derived):
        call = _in_place(entry, sample)
        if call is not None:
            yield SampleCall("in place", call)
    for sample in bases:
        call = _into_given(entry, sample)
        if call is not None:
            yield SampleCall("out=", call)


def _functional(entry: Any, sample: Any) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return entry.op(sample.input, *sample.args, **sample.kwargs)

    return call


def _in_place(entry: Any, sample: Any) -> Callable[[], Any] | None:
    """The call that writes a copy of the sample's input, where torch takes it."""
    variant = entry.inplace_variant
    if variant is None or not isinstance(sample.input, torch.Tensor):
        return None

    def call() -> Any:
        with torch.no_grad():
            return variant(sample.input.clone(), *sample.args, **sample.kwargs)

    return call if _runs(call) else None


def _into_given(entry: Any, sample: Any) -> Callable[[], Any] | None:
    """The call with ``out=``, where torch takes it."""
    if not entry.supports_out:
        return None
    result = _functional(entry, sample)()
    if not isinstance(result, torch.Tensor):
        return None

    def call() -> Any:
        with torch.no_grad():
            given = torch.empty_like(result)
            return entry.op(sample.input, *sample.args, **sample.kwargs, out=given)

    return call if _runs(call) else None


def _runs(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:  # whatever eager raises: it does not take this form
        return False
    return True


# -- derived forms -----------------------------------------------------------------------------


def _bases(samples: list[Any]) -> list[Any]:
    """Of the samples that differ in more than shapes, the ones with most dimensions.

    Those of which every tensor has dimensions come first.
    """
    by_arguments: dict[Any, Any] = {}
    for sample in samples:
        if not isinstance(sample.input, torch.Tensor) or not sample.input.numel():
            continue
        key = _shapeless((sample.args, sample.kwargs))
        known = by_arguments.get(key)
        if known is None or sample.input.dim() > known.input.dim():
            by_arguments[key] = sample
    found = sorted(by_arguments.items(), key=lambda item: repr(item[0]).count("0-dim"))
    return [sample for _, sample in found][:MOST_BASES]


def _shapeless(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return ("tensor" if argument.dim() else "0-dim tensor", argument.dtype)
    if isinstance(argument, dict):
        return tuple((name, _shapeless(item)) for name, item in sorted(argument.items()))
    if isinstance(argument, (tuple, list)):
        return tuple(map(_shapeless, argument))
    return (type(argument).__name__, repr(argument))


def _accepted(entry: Any, attempts: list[Any]) -> Any:
    """The first of the samples that eager takes; None where it takes none."""
    return next((one for one in attempts if _runs(_functional(entry, one))), None)


def _transforms(*, lowest: bool) -> dict[str, tuple[Transform, ...]]:
    """Per derived form what it makes of tensors; a second and third way for what eager refuses.

    ``lowest``: whether the lowest integer may be among the special values.
    """
    changes = (_same, _no_zeros, _positive)
    return {
        "permuted": (_permuted,),
        "0-dim": (_first_element,),
        "empty": (_emptied,),
        "long": tuple(_long(change, lowest=lowest) for change in changes),
        "long, strided": tuple(_long(change, 2, lowest=lowest) for change in changes),
    }


def _permuted(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2:
        return tensor
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _first_element(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return tensor
    return tensor.reshape(-1)[0].clone()


def _emptied(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or not tensor.dim():
        return tensor
    return tensor[..., :0].clone()


def _long(change: Transform, step: int = 1, *, lowest: bool) -> Transform:
    """Tensors with dimensions become one-dimensional; ``step`` elements apart in memory."""
    generator = torch.Generator().manual_seed(SEED)

    def transform(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.dim() or not tensor.numel():
            return tensor
        flat = tensor.reshape(-1)
        copies = math.ceil(LONG_ELEMENTS / flat.numel())
        values = flat.repeat(copies)[:LONG_ELEMENTS]
        special = _specials(tensor.dtype, generator, lowest=lowest)
        # Places are drawn anew for each operand, so that special values meet each other.
        chosen = torch.rand(LONG_ELEMENTS, generator=generator) < SPECIAL_SHARE
        values = change(torch.where(chosen, special, values))
        return torch.stack([values] * step, dim=-1)[:, 0] if step > 1 else values

    return transform


def _specials(dtype: torch.dtype, generator: torch.Generator, *, lowest: bool) -> torch.Tensor:
    """Special values of a dtype; of integers their own extremes."""
    if dtype.is_floating_point or dtype == torch.bool:
        return special_values(dtype, LONG_ELEMENTS, generator)
    info = torch.iinfo(dtype)
    table = [info.max, info.max - 1, 0, 1, 2, 3, 7, info.min + 1]
    table += [info.min] if lowest else []
    table += [-1, -2, -3, -7] if info.min else []
    picks = torch.randint(0, len(table), (LONG_ELEMENTS,), generator=generator)
    return torch.tensor(table, dtype=dtype)[picks]


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


def _no_zeros(values: torch.Tensor) -> torch.Tensor:
    """Eager refuses to divide integers by zero."""
    return torch.where(values == 0, 1, values) if _is_integer(values) else values


def _positive(values: torch.Tensor) -> torch.Tensor:
    """Eager refuses negative exponents of integers."""
    return values.clamp(min=1) if _is_integer(values) else values


def _is_integer(values: torch.Tensor) -> bool:
    return not values.dtype.is_floating_point and values.dtype != torch.bool
