"""Rungs that call the fused function as a person would, in this process.

They run only after its kernels behaved on guarded memory elsewhere.
"""

from __future__ import annotations

import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import torch

from fusion_advisor.errors import FusionAdvisorError, ValidationError
from fusion_advisor.quantities import bytes_text
from fusion_advisor.runtime import FusedFunction, FusionFallbackWarning, load_kernel
from fusion_advisor.validation import benchmark, process_state
from fusion_advisor.validation.bits import same_bits, same_bytes
from fusion_advisor.validation.inputs import Case
from fusion_advisor.validation.session import PreparedCase, RaisingCase, Session, Tally

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

SPARE_MEMORY_BYTES = 256 << 20  # of a call, beside its tensors: threads, compiled code


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
        label = f"eager chain, {case.name}"
        with torch.no_grad(), _left_alone(label, case.tensors):
            actual = results(eager(*case.tensors, *case.scalars))
        _same(label, actual, prepared.expected)
    return f"{len(session.prepared)} cases bitwise equal to the recorded ops"


@contextmanager
def _left_alone(label: str, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Arguments, settings and the screen are afterwards as before; what is not, is put back.

    Raises ``ValidationError`` naming what was changed.
    """
    before = [tensor.clone() for tensor in tensors]
    facts = [_facts(tensor) for tensor in tensors]
    state = process_state.snapshot()
    printed = io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(printed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\b")  # autograd's own, of eager's ops
            yield
    finally:
        changed = process_state.changed_since(state)
        process_state.restore(state)
        wrong = []
        for number, (old, new) in enumerate(zip(before, tensors, strict=True)):
            if not same_bytes(old, new):
                wrong.append(number)
                with torch.no_grad():
                    new.copy_(old)
    if changed:
        raise ValidationError(f"{label}: changed {', '.join(changed)}")
    if wrong:
        raise ValidationError(f"{label}: changed its input {wrong[0]}")
    for number, (fact, tensor) in enumerate(zip(facts, tensors, strict=True)):
        if fact != _facts(tensor):
            raise ValidationError(f"{label}: wrote to its input {number}, or asked for a gradient")
    if printed.getvalue():
        raise ValidationError(f"{label}: printed {printed.getvalue()[:60]!r}")


def _facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What an operation leaves as it is in an argument that it only reads."""
    version = None if tensor.is_inference() else tensor._version
    return version, tensor.requires_grad, tensor.data_ptr(), tensor.shape, tensor.stride()


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


def check_declaration(session: Session, fused: FusedFunction) -> None:
    """The fused function is declared as its program is: what launches a kernel reads this alone.

    Raises ``ValidationError`` naming what is declared otherwise.
    """
    program, declared = session.kernel.program, fused.signature
    tensors = [entry for entry in program.inputs if entry.kind == "tensor"]
    given = [one.name for one in program.parameters] or [entry.name for entry in tensors]
    pairs: dict[str, tuple[Any, Any]] = {
        "loops": (declared.spaces, tuple((s.rank, s.groups) for s in program.spaces)),
        "operands": (
            [(o.name, o.dtype, o.groups, o.layout, o.steps, o.region) for o in declared.operands],
            [(e.name, e.dtype, e.groups, e.layout, e.steps, e.region) for e in tensors],
        ),
        "views": (
            list(declared.sources),
            [given.index(entry.parameter or entry.name) for entry in tensors],
        ),
        "arguments": ([name for name, _ in declared.parameters], given),
        "results": (
            [(one.dtype, one.region) for one in declared.outputs],
            [(one.dtype, one.region) for one in program.outputs],
        ),
        "run-time numbers": (
            [name for name, _ in declared.scalars],
            [entry.name for entry in program.inputs if entry.kind == "scalar"],
        ),
    }
    for what, (one, two) in pairs.items():
        if one != two:
            raise ValidationError(f"its {what} are declared as {one}, the program has {two}")


def check_calls(session: Session) -> Tally:
    """Call the fused function on every case: values, strides, inputs, state; and then again.

    Raises ``ValidationError`` at the first difference that no budget covers.
    """
    fused, eager = load(session)
    check_declaration(session, fused)
    tally = Tally()
    for index, prepared in enumerate(session.prepared):
        _check_call(session, fused, index, prepared, tally)
        tally.cases += 1
    for raising in session.raising:
        _check_raising(fused, raising)
        tally.cases += 1
    _check_kind_of_result(session, fused, eager)
    _check_other_contents(session, fused, tally)
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
    if refusal and session.kernel.program.checks_divisors and not prepared.elements:
        # What is divided may hold a 0 where the results hold nothing: eager is asked, and raises.
        _check_foreign(session, fused, case, prepared.expected)
        return
    if refusal:
        raise ValidationError(f"{case.name}: the guards refuse it: {refusal}")
    with torch.no_grad(), _left_alone(case.name, case.tensors):
        actual = _called(case.name, fused, case)
    for number, (one, two) in enumerate(zip(actual, prepared.expected, strict=True)):
        problem = metadata_problem(one, two)
        if problem:
            raise ValidationError(f"{case.name}: result {number} {problem}")
    for comparison in session.judge(index, actual):
        tally.add(f"fused call, {case.name}", comparison)
    kept = [one.clone() for one in actual]
    with torch.no_grad(), _left_alone(case.name, case.tensors):
        again = results(fused(*case.tensors, *case.scalars))
    for old, first, second in zip(kept, actual, again, strict=True):
        if not same_bytes(old, first):
            raise ValidationError(f"{case.name}: a second call changed the result of the first")
        if first.shape != second.shape or not bool(same_bits(first, second).all()):
            raise ValidationError(f"{case.name}: a second call gives another result")
    _check_memory(case, actual, again, prepared.expected)


def _called(label: str, fused: FusedFunction, case: Case) -> tuple[torch.Tensor, ...]:
    """The results of a call that takes no more memory than such a call can need.

    Raises ``ValidationError`` where the process grew by far more.
    """
    grown = _peak_memory_bytes()
    actual = results(fused(*case.tensors, *case.scalars))
    grown = _peak_memory_bytes() - grown
    own = benchmark.bytes_of([*case.tensors, *actual])
    if grown > SPARE_MEMORY_BYTES + 4 * own:
        raise ValidationError(
            f"{label}: took {bytes_text(grown)} of memory for {bytes_text(own)} of tensors"
        )
    return actual


def _peak_memory_bytes() -> int:
    """The most memory this process has held so far; 0 where the system does not tell."""
    if resource is None or sys.platform == "darwin":  # where it counts in other units
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _check_memory(
    case: Case,
    first: Sequence[torch.Tensor],
    second: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> None:
    """Results lie in memory of their own, as far as eager's do."""
    for number, one in enumerate(first):
        if one.numel() and any(_shared(one, tensor) for tensor in case.tensors):
            raise ValidationError(f"{case.name}: result {number} lies in the memory of an input")
        if one.numel() and any(_shared(one, other) for other in second):
            raise ValidationError(f"{case.name}: two calls give the same memory")
        for place in range(number):
            apart = not _shared(expected[number], expected[place])
            if one.numel() and apart and _shared(one, first[place]):
                raise ValidationError(f"{case.name}: results {place} and {number} share memory")


def _shared(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


def _check_kind_of_result(
    session: Session, fused: FusedFunction, eager: Callable[..., Any]
) -> None:
    """One tensor or a tuple of plain tensors, as the eager chain gives."""
    case = session.prepared[0].case
    with torch.no_grad():
        made = fused(*case.tensors, *case.scalars)
        expected = eager(*case.tensors, *case.scalars)
    if type(made) is not type(expected):
        raise ValidationError(
            f"gives a {type(made).__name__} where eager gives a {type(expected).__name__}"
        )


def _check_other_contents(session: Session, fused: FusedFunction, tally: Tally) -> None:
    """The very tensors of the last call with other contents: nothing may be kept of it."""
    base = _small_case(session)
    tensors = tuple(_same_layout(base.tensors))
    case = replace(base, name=f"{base.name}, same memory", tensors=tensors, captured=False)
    with torch.no_grad():
        fused(*case.tensors, *case.scalars)
        for tensor in tensors:
            if tensor.numel() > 1:
                flat = tensor.as_strided((_extent(tensor),), (1,), tensor.storage_offset())
                flat.copy_(flat.flip(0))
        try:
            expected = session.run_reference(case.tensors)
        except FusionAdvisorError:
            raise
        except Exception:  # eager takes the values only where they stood
            return
        actual = results(fused(*case.tensors, *case.scalars))
    for comparison in session.judge_apart(case, expected, actual):
        tally.add(f"fused call, {case.name}", comparison)


def _extent(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def check_gradients(session: Session) -> str:
    """The fused function's gradients against eager's; they are recomputed, so equal bits.

    Of all operands together, of each alone, from each result alone, and once more of gradients.

    Raises ``ValidationError`` when they differ, ``LookupError`` with the reason
    when there is nothing to differentiate.
    """
    fused, eager = load(session)
    checked = 0
    for number, prepared in enumerate(_gradient_cases(session)):
        case = prepared.case
        if not any(one.dtype.is_floating_point for one in prepared.expected):
            raise LookupError("no output is a floating-point tensor")
        for way in _ways_to_differentiate(prepared) if not number else (_Way(),):
            try:
                reference = _without_scalars(session.reference, len(case.tensors))
                expected = _gradients(reference, case, way)
            except (RuntimeError, NotImplementedError) as error:
                if way.twice or way.operand is not None or way.result is not None:
                    continue
                raise LookupError(f"eager has no gradient here: {str(error)[:120]}") from error
            try:
                own = _gradients(eager, case, way)
            except RuntimeError as error:
                # The reference's ops are functional, the chain writes in place where the code did.
                if "modified by an inplace operation" not in str(error):
                    raise
                raise LookupError("eager overwrites what its own gradient needs") from error
            with _left_alone(case.name, case.tensors):
                actual = _gradients(fused, case, way)
            checked += _compared_gradients(f"{case.name}{way}", actual, own, expected)
    if not checked:
        raise LookupError("no input is a floating-point tensor")
    return f"{checked} gradients bitwise equal to eager's"


@dataclass(frozen=True)
class _Way:
    """Which operand needs a gradient (None: all), of which result (None: all), and how often."""

    operand: int | None = None
    result: int | None = None
    twice: bool = False

    def __str__(self) -> str:
        words = "" if self.operand is None else f", operand {self.operand} alone"
        words += "" if self.result is None else f", result {self.result} alone"
        return words + (", differentiated twice" if self.twice else "")


def _ways_to_differentiate(prepared: PreparedCase) -> tuple[_Way, ...]:
    operands = [n for n, t in enumerate(prepared.case.tensors) if t.dtype.is_floating_point]
    outputs = [n for n, t in enumerate(prepared.expected) if t.dtype.is_floating_point]
    ways = [_Way(), _Way(twice=True)]
    ways += [_Way(operand=number) for number in operands if len(operands) > 1]
    ways += [_Way(result=number) for number in outputs if len(outputs) > 1]
    return tuple(ways)


def _compared_gradients(
    label: str,
    actual: Sequence[torch.Tensor | None],
    own: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor | None],
) -> int:
    """How many gradients agree.  Raises ``ValidationError`` for one that does not."""
    if not len(actual) == len(own) == len(expected):
        raise ValidationError(
            f"{label}: {len(actual)} gradients, {len(expected)} of the recorded ops"
        )
    checked = 0
    for number, (one, two, three) in enumerate(zip(actual, own, expected, strict=True)):
        if (one is None) != (two is None) or (one is None) != (three is None):
            raise ValidationError(f"{label}: input {number} has a gradient in one only")
        if one is None or two is None or three is None:
            continue
        if not bool(same_bits(one, two).all()):
            raise ValidationError(
                f"{label}: the gradient of input {number} is not that of its eager chain"
            )
        if not _close(one, three):
            raise ValidationError(
                f"{label}: the gradient of input {number} is not that of the recorded ops"
            )
        checked += 1
    return checked


def _without_scalars(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The recorded ops hold their numbers themselves: pass the first ``count`` arguments on."""
    return lambda *arguments: function(*arguments[:count])


def _gradient_cases(session: Session) -> list[PreparedCase]:
    """A captured or random case and one with special values; small ones."""
    small = [
        one for one in session.prepared if 0 < one.elements <= 1 << 16 and one.recorded_numbers
    ]
    wanted = [one for one in small if one.case.captured or one.case.name.startswith("random")][:2]
    wanted += [one for one in small if one.case.name.startswith(("special", "0-dim"))][:1]
    return wanted


def _gradients(function: Callable[..., Any], case: Case, way: _Way) -> list[torch.Tensor | None]:
    leaves = [
        tensor.requires_grad_() if _wants_gradient(tensor, number, way) else tensor
        for number, tensor in enumerate(_same_layout(case.tensors))
    ]
    with torch.enable_grad():
        # As a run's own tensors are: no leaves, which autograd lets nobody write.
        inputs = [leaf.view_as(leaf) if leaf.requires_grad else leaf for leaf in leaves]
        made = results(function(*inputs, *case.scalars))
        if way.result is not None:
            made = made[way.result : way.result + 1]
        outputs = [one for one in made if one.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not outputs or not wanted:
            return []
        found = _differentiated(outputs, wanted, twice=way.twice)
        again = [one for one in found if one is not None and one.requires_grad]
        if not way.twice:
            return found
        return _differentiated(again, wanted, twice=False) if again else []


def _wants_gradient(tensor: torch.Tensor, number: int, way: _Way) -> bool:
    return tensor.dtype.is_floating_point and way.operand in (None, number)


def _differentiated(
    outputs: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], *, twice: bool
) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(7)
    seeds = [torch.randn(one.shape, generator=generator).to(one.dtype) for one in outputs]
    return list(torch.autograd.grad(outputs, wanted, seeds, create_graph=twice, allow_unused=True))


def _same_layout(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the very strides: a clone would close the gaps of a strided operand."""
    copies = []
    for tensor in tensors:
        flat = tensor.detach().as_strided((_extent(tensor),), (1,), tensor.storage_offset()).clone()
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
    base = _small_case(session)
    writes = "copy" in inspect.signature(eager).parameters
    cases = [replace(case, name=f"guards, {case.name}") for case in session.beyond]
    cases += [
        replace(base, name=f"guards, {name}", tensors=tensors, captured=False)
        for name, tensors in foreign_arguments(base)
        # What is written in place and lies on itself has torch raise, or write, as eager does.
        if not (writes and _overlap(tensors))
    ]
    for case in cases:
        try:
            with torch.no_grad():
                expected = results(eager(*case.tensors, *case.scalars))
        except Exception:  # noqa: S112 - what eager refuses has no result to compare
            continue
        _check_foreign(session, fused, case, expected)
        tried.append(case.name.removeprefix("guards, "))
    return f"eager's results for {', '.join(tried)}" if tried else "nothing to try"


def _check_foreign(
    session: Session, fused: FusedFunction, case: Case, expected: tuple[torch.Tensor, ...]
) -> None:
    """Refused arguments give eager's bits and are counted; taken ones give a kernel's results."""
    arguments = (*case.tensors, *case.scalars)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FusionFallbackWarning)
        refused = bool(fused.why_not(*arguments))
        before = sum(fused.stats.fallbacks.values())
        with _left_alone(case.name, case.tensors):
            actual = results(fused(*arguments))
    if refused:
        if sum(fused.stats.fallbacks.values()) != before + 1:
            raise ValidationError(f"{case.name}: the fallback was not counted")
        _same(case.name, actual, expected)
        return
    if case.name.startswith("guards, dtype"):
        raise ValidationError(f"{case.name}: the kernel took arguments it was not made for")
    for number, (one, two) in enumerate(zip(actual, expected, strict=True)):
        problem = metadata_problem(one, two)
        if problem:
            raise ValidationError(f"{case.name}: result {number} {problem}")
    for comparison in session.judge_apart(case, expected, actual):
        if comparison.mismatches:
            raise ValidationError(f"{case.name}: {comparison.first}")


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an element is reached twice: by one operand, or by two."""
    expanded = any(
        size > 1 and not step
        for tensor in tensors
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return expanded or len({tensor.data_ptr() for tensor in tensors}) < len(tensors)


def _small_case(session: Session) -> Case:
    """Random values where there are, of sizes above 1."""
    for prepared in session.prepared:
        usual = prepared.case.name.startswith("random") and prepared.recorded_numbers
        if usual and 0 < prepared.elements <= 1 << 16:
            return prepared.case
    return session.prepared[0].case


def foreign_arguments(case: Case) -> list[tuple[str, tuple[torch.Tensor, ...]]]:
    """Arguments of other dtypes, layouts, ranks and broadcast patterns, made of a case's."""
    tensors = case.tensors
    found: list[tuple[str, tuple[torch.Tensor, ...]]] = []
    for number, tensor in enumerate(tensors):
        if tensor.dtype.is_floating_point:
            other = torch.float32 if tensor.dtype == torch.float64 else torch.float64
        else:
            other = torch.int32 if tensor.dtype == torch.int64 else torch.int64
        found.append((f"dtype of operand {number}", _put(tensors, number, tensor.to(other))))
    for number, tensor in enumerate(tensors):
        label = f"of operand {number}"
        if tensor.dim() >= 2:
            turned = tensor.transpose(0, -1).contiguous().transpose(0, -1)
            found.append((f"another layout {label}", _put(tensors, number, turned)))
        every_other = torch.stack([tensor, tensor], -1)[..., 0]
        found.append((f"memory with gaps {label}", _put(tensors, number, every_other)))
        found.append((f"one more dimension {label}", _put(tensors, number, tensor.unsqueeze(0))))
        if tensor.numel() and tensor.dim():
            one = tensor.narrow(-1, 0, 1)
            found.append((f"one column {label}", _put(tensors, number, one)))
            wide = one.expand_as(tensor)
            found.append((f"an expanded column {label}", _put(tensors, number, wide)))
            wide = tensor.narrow(0, 0, 1).expand_as(tensor)
            found.append((f"an expanded row {label}", _put(tensors, number, wide)))
            found.append((f"one dimension less {label}", _put(tensors, number, tensor[0])))
        if tensor.dtype.is_floating_point:
            found.append((f"a lazy sign {label}", _put(tensors, number, torch._neg_view(tensor))))
    same = [t for t in tensors[1:] if t.shape == tensors[0].shape and t.dtype == tensors[0].dtype]
    if same and len(same) == len(tensors) - 1:
        found.append(("one tensor for all operands", (tensors[0],) * len(tensors)))
    return found


def _put(
    tensors: tuple[torch.Tensor, ...], number: int, tensor: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    return (*tensors[:number], tensor, *tensors[number + 1 :])
