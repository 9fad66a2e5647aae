"""Rungs that call the fused function as a person would, in this process.

They run only after its kernels behaved on guarded memory elsewhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fusion_advisor.errors import ValidationError
from fusion_advisor.runtime import FusedFunction, FusionFallbackWarning, load_kernel
from fusion_advisor.validation.bits import same_bits, same_bytes
from fusion_advisor.validation.inputs import Case
from fusion_advisor.validation.session import PreparedCase, RaisingCase, Session, Tally


def load(session: Session) -> tuple[FusedFunction, Callable[..., Any]]:
    """The fused function and the eager chain of the kernel's text."""
    kernel = session.kernel
    namespace = load_kernel(kernel.text, kernel.entry, kernel.hash)
    fused, eager = namespace[kernel.entry], namespace.get(kernel.eager_name)
    if not isinstance(fused, FusedFunction) or not callable(eager):
        raise ValidationError(f"{kernel.entry} is not a fused function with an eager chain")
    return fused, eager


def results(value: Any) -> tuple[torch.Tensor, ...]:
    """One tensor or several, as a tuple."""
    return value if isinstance(value, tuple) else (value,)


def check_eager_text(session: Session) -> str:
    """The text's own eager chain must be the recorded ops: same bits, dtypes, strides."""
    _, eager = load(session)
    for prepared in session.prepared:
        case = prepared.case
        with torch.no_grad():
            actual = results(eager(*case.tensors, *case.scalars))
        _same(f"eager chain, {case.name}", actual, prepared.expected)
    return f"{len(session.prepared)} cases bitwise equal to the recorded ops"


def _same(label: str, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    if len(actual) != len(expected):
        raise ValidationError(f"{label}: {len(actual)} results instead of {len(expected)}")
    for number, (one, two) in enumerate(zip(actual, expected, strict=True)):
        problem = metadata_problem(one, two)
        if problem:
            raise ValidationError(f"{label}: result {number} {problem}")
        if not bool(same_bits(one, two).all()):
            raise ValidationError(f"{label}: result {number} differs from the recorded ops'")


def metadata_problem(actual: torch.Tensor, expected: torch.Tensor) -> str:
    """How dtype, sizes, device or strides differ from eager's; empty where they do not."""
    if actual.dtype != expected.dtype:
        return f"has dtype {actual.dtype}, eager gives {expected.dtype}"
    if actual.shape != expected.shape:
        return f"has shape {tuple(actual.shape)}, eager gives {tuple(expected.shape)}"
    if actual.device != expected.device:
        return f"is on {actual.device}, eager gives {expected.device}"
    if expected.numel() and _strides(actual) != _strides(expected):
        return f"has strides {actual.stride()}, eager gives {expected.stride()}"
    return ""


def _strides(tensor: torch.Tensor) -> list[int]:
    """Strides that mean something: eager itself is not consistent about those of size 1."""
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


def check_calls(session: Session) -> Tally:
    """Call the fused function on every case: values, strides, inputs and global state.

    Raises ``ValidationError`` at the first difference that no budget covers.
    """
    fused, _ = load(session)
    tally = Tally()
    for index, prepared in enumerate(session.prepared):
        _check_call(session, fused, index, prepared, tally)
        tally.cases += 1
    for raising in session.raising:
        _check_raising(fused, raising)
        tally.cases += 1
    return tally


def _check_raising(fused: FusedFunction, raising: RaisingCase) -> None:
    """The fused function must raise what eager raises, as a counted fallback."""
    case = raising.case
    before = [tensor.clone() for tensor in case.tensors]
    counted = sum(fused.stats.fallbacks.values())
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", FusionFallbackWarning)
        try:
            fused(*case.tensors, *case.scalars)
        except Exception as error:
            if (type(error), str(error)) != (type(raising.error), str(raising.error)):
                raise ValidationError(
                    f"{case.name}: raises {error!r}, eager {raising.error!r}"
                ) from error
        else:
            raise ValidationError(f"{case.name}: gives a result, eager raises {raising.error!r}")
    if sum(fused.stats.fallbacks.values()) != counted + 1:
        raise ValidationError(f"{case.name}: the fallback was not counted")
    for number, (old, new) in enumerate(zip(before, case.tensors, strict=True)):
        if not same_bytes(old, new):
            raise ValidationError(f"{case.name}: changed its input {number}")


def _check_call(
    session: Session, fused: FusedFunction, index: int, prepared: PreparedCase, tally: Tally
) -> None:
    case = prepared.case
    with torch.no_grad():
        refusal = fused.why_not(*case.tensors, *case.scalars)
    if refusal:
        raise ValidationError(f"{case.name}: the guards refuse it: {refusal}")
    before = [tensor.clone() for tensor in case.tensors]
    state = _global_state()
    with torch.no_grad():
        actual = results(fused(*case.tensors, *case.scalars))
    if _global_state() != state:
        raise ValidationError(f"{case.name}: changed torch's random state or defaults")
    for number, (old, new) in enumerate(zip(before, case.tensors, strict=True)):
        if not same_bytes(old, new):
            raise ValidationError(f"{case.name}: changed its input {number}")
    for number, (one, two) in enumerate(zip(actual, prepared.expected, strict=True)):
        problem = metadata_problem(one, two)
        if problem:
            raise ValidationError(f"{case.name}: result {number} {problem}")
    for comparison in session.judge(index, actual):
        tally.add(f"fused call, {case.name}", comparison)


def _global_state() -> tuple[Any, ...]:
    return (
        torch.get_rng_state().numpy().tobytes(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
    )


def check_gradients(session: Session) -> str:
    """The fused function's gradients against eager's; they are recomputed, so equal bits.

    Raises ``ValidationError`` when they differ, ``LookupError`` with the reason
    when there is nothing to differentiate.
    """
    fused, eager = load(session)
    checked = 0
    for prepared in _gradient_cases(session):
        case = prepared.case
        if not any(one.dtype.is_floating_point for one in prepared.expected):
            raise LookupError("no output is a floating-point tensor")
        try:
            expected = _gradients(_without_scalars(session.reference, len(case.tensors)), case)
        except (RuntimeError, NotImplementedError) as error:
            raise LookupError(f"eager has no gradient here: {str(error)[:120]}") from error
        try:
            own = _gradients(eager, case)
        except RuntimeError as error:
            # The reference's ops are functional, the chain writes in place where the code did.
            if "modified by an inplace operation" not in str(error):
                raise
            raise LookupError("eager overwrites what its own gradient needs") from error
        actual = _gradients(fused, case)
        for number, (one, two, three) in enumerate(zip(actual, own, expected, strict=True)):
            if (one is None) != (two is None) or (one is None) != (three is None):
                raise ValidationError(f"{case.name}: input {number} has a gradient in one only")
            if one is None or two is None or three is None:
                continue
            if not bool(same_bits(one, two).all()):
                raise ValidationError(
                    f"{case.name}: the gradient of input {number} is not that of its eager chain"
                )
            if not _close(one, three):
                raise ValidationError(
                    f"{case.name}: the gradient of input {number} is not that of the recorded ops"
                )
            checked += 1
    if not checked:
        raise LookupError("no input is a floating-point tensor")
    return f"{checked} gradients bitwise equal to eager's"


def _without_scalars(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The recorded ops hold their numbers themselves: pass the first ``count`` arguments on."""
    return lambda *arguments: function(*arguments[:count])


def _gradient_cases(session: Session) -> list[PreparedCase]:
    """A captured or random case and one with special values; small ones."""
    small = [one for one in session.prepared if 0 < one.elements <= 1 << 16]
    wanted = [one for one in small if one.case.captured or one.case.name.startswith("random")][:2]
    wanted += [one for one in small if one.case.name.startswith(("special", "0-dim"))][:1]
    return wanted


def _gradients(function: Callable[..., Any], case: Case) -> list[torch.Tensor | None]:
    leaves = [
        tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        if tensor.dtype.is_floating_point
        else tensor
        for tensor in _same_layout(case.tensors)
    ]
    with torch.enable_grad():
        # As a run's own tensors are: no leaves, which autograd lets nobody write.
        inputs = [leaf.view_as(leaf) if leaf.requires_grad else leaf for leaf in leaves]
        outputs = [one for one in results(function(*inputs, *case.scalars)) if one.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not outputs or not wanted:
            return []
        generator = torch.Generator().manual_seed(7)
        seeds = [torch.randn(one.shape, generator=generator).to(one.dtype) for one in outputs]
        return list(torch.autograd.grad(outputs, wanted, seeds, allow_unused=True))


def _same_layout(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the very strides: a clone would close the gaps of a strided operand."""
    copies = []
    for tensor in tensors:
        extent = 0
        if tensor.numel():
            extent = 1 + sum((n - 1) * s for n, s in
                             zip(tensor.shape, tensor.stride(), strict=True))  # fmt: skip
        flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset()).clone()
        copies.append(flat.as_strided(tensor.shape, tensor.stride()))
    return copies


def _close(one: torch.Tensor, two: torch.Tensor) -> bool:
    # The same formulas in another order of accumulation at most.
    tolerance = 64 * torch.finfo(one.dtype).eps
    return bool(torch.allclose(one, two, rtol=tolerance, atol=tolerance, equal_nan=True))


def check_guards(session: Session) -> str:
    """Arguments outside the kernel's specialisation: eager's results, counted, or as good ones.

    What lies otherwise in memory may be served, by copying it first: then it is judged as every
    result is.  Raises ``ValidationError`` otherwise.
    """
    fused, eager = load(session)
    tried: list[str] = []
    base = _guard_case(session)
    cases = [*session.beyond]
    cases += [
        replace(base, name=name, tensors=tensors) for name, tensors in _foreign_arguments(base)
    ]
    for case in cases:
        try:
            with torch.no_grad():
                expected = results(eager(*case.tensors, *case.scalars))
        except Exception:  # noqa: S112 - what eager refuses has no result to compare
            continue
        _check_foreign(session, fused, case, expected)
        tried.append(case.name)
    return f"eager's results for {', '.join(tried)}" if tried else "nothing to try"


def _check_foreign(
    session: Session, fused: FusedFunction, case: Case, expected: tuple[torch.Tensor, ...]
) -> None:
    arguments = (*case.tensors, *case.scalars)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionFallbackWarning)
        refused = bool(fused.why_not(*arguments))
        before = sum(fused.stats.fallbacks.values())
        actual = results(fused(*arguments))
    if refused:
        if sum(fused.stats.fallbacks.values()) != before + 1:
            raise ValidationError(f"{case.name}: the fallback was not counted")
        _same(f"guards, {case.name}", actual, expected)
        return
    if case.name.startswith("dtype"):
        raise ValidationError(f"{case.name}: the kernel took arguments it was not made for")
    for number, (one, two) in enumerate(zip(actual, expected, strict=True)):
        problem = metadata_problem(one, two)
        if problem:
            raise ValidationError(f"{case.name}: result {number} {problem}")
    for comparison in session.judge_apart(case, expected, actual):
        if comparison.mismatches:
            raise ValidationError(f"guards, {case.name}: {comparison.first}")


def _guard_case(session: Session) -> Case:
    for prepared in session.prepared:
        if prepared.case.name.startswith("random") and prepared.elements:
            return prepared.case
    return session.prepared[0].case


def _foreign_arguments(case: Case) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    tensors = case.tensors
    found: list[tuple[str, tuple[torch.Tensor, ...]]] = []
    for number, tensor in enumerate(tensors):
        if tensor.dtype.is_floating_point:
            other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
            found.append((f"dtype of operand {number}", _put(tensors, number, tensor.to(other))))
            break
    widest = max(range(len(tensors)), key=lambda number: tensors[number].dim())
    tensor = tensors[widest]
    if tensor.dim() >= 2:
        turned = tensor.transpose(0, -1).contiguous().transpose(0, -1)
        found.append(("another layout", _put(tensors, widest, turned)))
    every_other = torch.stack([tensor, tensor], -1)[..., 0]
    found.append(("memory with gaps", _put(tensors, widest, every_other)))
    found.append(("one more dimension", _put(tensors, widest, tensor.unsqueeze(0))))
    return found


def _put(
    tensors: tuple[torch.Tensor, ...], number: int, tensor: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return (*tensors[:number], tensor, *tensors[number + 1 :])
