"""Random programs of elementwise ops, views and in-place writes over awkward operands, as data.

Ops, their overloads and their arguments are drawn from the op table and torch's own schemas, so
that an op with a new recipe takes part by itself.  A program is grown on real tensors: a step that
torch refuses is not part of it, and a step after which too little is left to compare (infinities,
one value everywhere, floats too large for the integers they are cast to) is mostly drawn again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from hypothesis import strategies as st
from random_values import DTYPES, FLOATS, INTEGERS, LAYOUTS, TAME, WILD, Operand

from fusion_advisor import ops

MOST_STEPS = 30
LENGTHS = (*range(2, 12), *range(2, 8), *range(12, MOST_STEPS + 1, 3))  # short ones more often
LEAST_COMPUTING = 3  # ops that make a tensor: mostly as many, so that two of them can be fused
MOST_ELEMENTS = 600  # of a value: the kernels are tried on other sizes as well
MOST_RANK = 5
# Of steps like floor on values that a kernel need not have to the bit.  Many of them would leave
# too much undecided: each element at a jump may come out on either side.
STEPS_ON_INEXACT = 0.002  # taken whatever they meet: a few, to see both sides judged
LEFT_OUT_ON_INEXACT = 0.9  # of those that meet no jump here; other operands may
ATTEMPTS = 40  # for each step, before it is left out
KINDS = {"op": 0.66, "view": 0.16, "in place": 0.12, "cast": 0.06}  # of steps, how often
SHAPES = (
    (), (1,), (37,), (64,), (5, 8), (3, 17), (1, 9), (16, 1), (1, 1), (3, 1, 7), (2, 3, 6),
    (4, 5, 6), (2, 3, 4, 5), (1, 3, 4, 4), (2, 1, 3, 1, 4), (2, 2, 2, 3, 4),
    (4, 0), (0,), (2, 0, 3),
)  # fmt: skip
NUMBERS = (0, 1, 2, -1, 3, 7, 0.5, -0.5, 1.5, 0.1, 1e-3, 100.0, -2.25, 0.0, True, False)
WHOLE_NUMBERS = (0, 1, 2, -1, 3, 5, -7, 13, 100, True)
POSITIVE_NUMBERS = (1, 2, 0.5, 0.1, 1.25)
ODD_NUMBERS = (math.inf, -math.inf, math.nan, -0.0, 300, -(2**31), 1e30)
TEXTS = {"approximate": ("none", "tanh"), "rounding_mode": (None, "floor", "trunc")}
# Numbers whose meaning torch does not check: others give what no caller means.
POSITIVE_PARAMETERS = ("alpha", "lambd", "beta", "scale", "input_scale", "eps")
_NOT_OPS = ("aten.alias.default",)  # torch's own bookkeeping, no call of a person


@dataclass(frozen=True)
class Ref:
    """A value of the program, by number: operands first, then results in order."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True)
class Step:
    """One call of an aten overload (``add_.Tensor``)."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def call(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run it; its results."""

        def bind(item: Any) -> Any:
            return values[item.number] if isinstance(item, Ref) else item

        named = {name: bind(item) for name, item in self.kwargs}
        result = overload(self.op)(*[bind(item) for item in self.args], **named)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    @property
    def reads(self) -> tuple[int, ...]:
        """The numbers of the values it is called with."""
        given = (*self.args, *(item for _, item in self.kwargs))
        return tuple(item.number for item in given if isinstance(item, Ref))

    @property
    def kind(self) -> str:
        """``view``, ``in place`` or ``op``."""
        if ops.is_inplace(f"aten.{self.op}"):
            return "in place"
        return "view" if self.op in VIEWS else "op"


@dataclass(frozen=True)
class Program:
    """Operands, steps, how many results each step has, and the values that are returned."""

    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    kept: tuple[int, ...]

    def inputs(self) -> list[torch.Tensor]:
        """Fresh operands."""
        return [operand.make() for operand in self.operands]

    def run(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run eagerly; what ops draw at random is the same every time."""
        torch.manual_seed(0)
        values = list(inputs)
        for step in self.steps:
            values += step.call(values)
        return tuple(values[number] for number in self.kept)

    def text(self) -> str:
        """The program as it would be written down."""
        lines = [f"v{number} = {operand}" for number, operand in enumerate(self.operands)]
        number = len(self.operands)
        for step, results in zip(self.steps, self.results, strict=True):
            names = ", ".join(f"v{number + k}" for k in range(results))
            named = [f"{name}={item!r}" for name, item in step.kwargs]
            lines.append(f"{names} = {step.op}({', '.join([*map(repr, step.args), *named])})")
            number += results
        return "\n".join([*lines, "return " + ", ".join(f"v{number}" for number in self.kept)])


def overload(op: str) -> Any:
    """torch's function for ``add.Tensor``."""
    base, name = op.split(".")
    return getattr(getattr(torch.ops.aten, base), name)


@dataclass(frozen=True)
class Form:
    """One overload that may be drawn, and what its schema asks for."""

    op: str
    arguments: tuple[tuple[str, str, bool, bool], ...]  # name, type, keyword only, has a default
    in_place: bool
    gives_bool: bool

    @property
    def base(self) -> str:
        """The op's name, whatever the overload."""
        return self.op.split(".")[0].rstrip("_")


@functools.cache
def forms() -> dict[str, tuple[Form, ...]]:
    """Every overload with a recipe and its in-place twin, by the op's name."""
    found: dict[str, list[Form]] = {}
    for row in ops.rows():
        namespace, base, name = row.name.split(".")
        if namespace != "aten" or row.name in _NOT_OPS:
            continue
        twins = [f"{base}_.{name}", f"{base}_.{name.removeprefix('Tensor_')}", f"{base}_.Tensor"]
        writing = [twin for twin in twins if ops.functional_name(f"aten.{twin}") == row.name]
        for own in (f"{base}.{name}", *dict.fromkeys(writing)):
            try:
                schema = overload(own)._schema
            except AttributeError:
                continue
            form = Form(
                op=own,
                arguments=tuple(
                    (a.name, str(a.type), a.kwarg_only, a.has_default_value())
                    for a in schema.arguments
                ),
                in_place=ops.is_inplace(f"aten.{own}"),
                gives_bool=row.promotion == "bool",
            )
            found.setdefault(form.base, []).append(form)
    return {base: tuple(known) for base, known in sorted(found.items())}


# --- views --------------------------------------------------------------------------------------


def _dim(random: Random, x: torch.Tensor) -> int:
    return random.randrange(-x.dim(), x.dim()) if x.dim() else 0


def _permutation(random: Random, x: torch.Tensor) -> tuple[Any, ...]:
    return (random.sample(range(x.dim()), x.dim()),)


def _slice(random: Random, x: torch.Tensor) -> tuple[Any, ...]:
    dim = _dim(random, x)
    size = x.shape[dim]
    start = random.choice((0, 1, -2, size // 2))
    end = random.choice((None, size, -1, 2**63 - 1, start + 3 if start >= 0 else None))
    return (dim, start, end, random.choice((1, 1, 2, 3)))


def _select(random: Random, x: torch.Tensor) -> tuple[Any, ...]:
    dim = _dim(random, x)
    return (dim, random.randrange(-x.shape[dim], x.shape[dim]))


def _expand(random: Random, x: torch.Tensor) -> tuple[Any, ...]:
    sizes = [random.choice((2, 3)) if n == 1 and random.random() < 0.7 else n for n in x.shape]
    lead = [random.choice((1, 2, 3))] if random.random() < 0.4 else []
    return ([*lead, *sizes],)


def _reshape(random: Random, x: torch.Tensor) -> tuple[Any, ...]:
    """One dimension split, or two neighbours joined."""
    sizes = list(x.shape)
    at = random.randrange(len(sizes))
    if len(sizes) > 1 and random.random() < 0.4:
        at = min(at, len(sizes) - 2)
        return ([*sizes[:at], sizes[at] * sizes[at + 1], *sizes[at + 2 :]],)
    inner = random.choice([n for n in range(1, sizes[at] + 1) if sizes[at] % n == 0])
    return ([*sizes[:at], sizes[at] // inner, inner, *sizes[at + 1 :]],)


VIEWS: dict[str, Callable[[Random, torch.Tensor], tuple[Any, ...]]] = {
    "transpose.int": lambda random, x: (_dim(random, x), _dim(random, x)),
    "permute.default": _permutation,
    "t.default": lambda random, x: (),
    "slice.Tensor": _slice,
    "select.int": _select,
    "unsqueeze.default": lambda random, x: (random.randrange(-x.dim() - 1, x.dim() + 1),),
    "squeeze.dim": lambda random, x: (_dim(random, x),),
    "expand.default": _expand,
    "view.default": _reshape,
}


# --- growing ------------------------------------------------------------------------------------


class _Grower:
    """A program being grown, with its values as they are by now."""

    def __init__(self, random: Random, most_steps: int) -> None:
        self.random = random
        lengths = [length for length in LENGTHS if length <= most_steps]
        self.length = random.choice(lengths)
        self.wild = random.random() < 0.3
        self.steps: list[Step] = []
        self.results: list[int] = []
        self.operands = self._operands()
        self.values = [operand.make() for operand in self.operands]
        self.inexact: set[int] = set()  # values that a kernel may have otherwise, by number
        self.given = {value.untyped_storage().data_ptr() for value in self.values}

    def _operands(self) -> tuple[Operand, ...]:
        random = self.random
        shape = random.choice(SHAPES[:-3] if random.random() < 0.96 else SHAPES[-3:])
        main = random.choice(FLOATS if random.random() < 0.75 else (*INTEGERS, torch.bool))
        palette = [main, *random.choices(DTYPES, k=random.choice((0, 0, 1, 2, 3)))]
        found = []
        for number in range(random.choice((1, 2, 2, 3, 3, 4, 5))):
            own = shape
            if number:
                own = shape[random.randrange(len(shape) + 1) :] if random.random() < 0.5 else shape
                own = tuple(1 if random.random() < 0.25 else n for n in own)
            wild = self.wild and random.random() < 0.6
            found.append(
                Operand(
                    dtype=main if not number else random.choice(palette),
                    shape=own,
                    layout="plain" if random.random() < 0.4 else random.choice(LAYOUTS),
                    values=random.choice(WILD if wild else TAME),
                    seed=random.randrange(2**31),
                )
            )
        return tuple(found)

    # -- drawing -------------------------------------------------------------------------------

    def grow(self) -> Program:
        """Draw steps until there are enough, or nothing more is found."""
        kinds = self.random.choices(list(KINDS), KINDS.values(), k=self.length)
        for kind in kinds:
            any(self._attempt(kind) for _ in range(ATTEMPTS))
        return Program(
            operands=self.operands,
            steps=tuple(self.steps),
            results=tuple(self.results),
            kept=self._kept(),
        )

    def _attempt(self, kind: str) -> bool:
        step = self._draw(kind)
        return step is not None and self._take(step)

    def _draw(self, kind: str) -> Step | None:
        """A step that torch may or may not take."""
        if kind == "view":
            return self._view()
        if kind == "cast":
            dtype = self.random.choice(DTYPES)
            return Step("_to_copy.default", (self._recent(),), (("dtype", dtype),))
        # By name every op is as likely, by form those with many overloads, as arithmetic has.
        by_name = list(forms().values())
        own = self.random.choice(by_name) if self.random.random() < 0.6 else sum(by_name, ())
        fitting = [form for form in own if form.in_place == (kind == "in place")]
        form = self.random.choice(fitting) if fitting else None
        if form is None or (form.gives_bool and self.random.random() < 0.5):
            return None
        return self._call(form)

    def _view(self) -> Step | None:
        op = self.random.choice(list(VIEWS))
        source = self._recent()
        try:
            return Step(op, (source, *VIEWS[op](self.random, self.values[source.number])))
        except (ValueError, IndexError):
            return None  # no dimension to split, nothing to select

    def _call(self, form: Form) -> Step | None:
        args: list[Any] = []
        kwargs: list[tuple[str, Any]] = []
        for name, kind, keyword_only, has_default in form.arguments:
            if has_default and self.random.random() < 0.5:
                if keyword_only:
                    continue
                break
            first = next((item for item in args if isinstance(item, Ref)), None)
            if form.in_place and not args:
                value: Any = self._target()
            else:
                value = self._argument(form, name, kind, first)
            if value is _NONE_FITS:
                return None
            if keyword_only:
                kwargs.append((name, value))
            else:
                args.append(value)
        return Step(form.op, tuple(args), tuple(kwargs))

    def _argument(self, form: Form, name: str, kind: str, first: Ref | None) -> Any:
        random = self.random
        if kind.startswith("Optional["):
            if random.random() < 0.3:
                return None
            kind = kind[len("Optional[") : -1]
        if kind == "Tensor":
            if first is not None and name == "other" and random.random() < 0.15:
                return self._number(name, first)
            return self._fitting(first, mask=name in ("condition", "mask"))
        if kind in ("number", "Scalar"):
            return self._number(name, first)
        if kind == "float":
            return float(random.choice(POSITIVE_NUMBERS))
        if kind == "int":
            if name == "dtype":
                return random.choice(DTYPES)
            return random.choice((-1, 0, 1, 2, 3)) if name == "decimals" else None
        if kind == "bool":
            return random.random() < 0.5
        if kind == "str":
            return random.choice(TEXTS[name])
        return None

    def _number(self, name: str, first: Ref | None) -> Any:
        random = self.random
        if name in POSITIVE_PARAMETERS and random.random() < 0.8:
            return random.choice(POSITIVE_NUMBERS)
        if random.random() < (0.1 if self.wild else 0.01):
            return random.choice(ODD_NUMBERS)
        floating = first is None or self.values[first.number].is_floating_point()
        return random.choice(NUMBERS if floating or random.random() < 0.3 else WHOLE_NUMBERS)

    def _recent(self) -> Ref:
        """Mostly one of the last values, so that chains come about; any of them else."""
        count = len(self.values)
        if self.random.random() < 0.65:
            return Ref(count - 1 - self.random.randrange(min(3, count)))
        return Ref(self.random.randrange(count))

    def _fitting(self, first: Ref | None, *, mask: bool) -> Any:
        """A value that broadcasts with the first one."""
        if first is None and not mask:
            return self._recent()
        fits = [
            number
            for number, value in enumerate(self.values)
            if (not mask or value.dtype == torch.bool)
            and (first is None or _broadcasts(value.shape, self.values[first.number].shape))
        ]
        if not fits:
            return _NONE_FITS
        late = fits[-4:] if self.random.random() < 0.5 else fits
        return Ref(self.random.choice(late))

    def _target(self) -> Any:
        """What an in-place op writes: mostly something that was made here."""
        made = [
            number
            for number, value in enumerate(self.values)
            if value.untyped_storage().data_ptr() not in self.given
        ]
        if self.random.random() < 0.04:
            made = list(range(len(self.values)))
        return Ref(self.random.choice(made[-4:])) if made else _NONE_FITS

    # -- taking --------------------------------------------------------------------------------

    def _take(self, step: Step) -> bool:
        """Run a step for real where torch takes it and its result is worth comparing."""
        try:
            with torch.no_grad():
                results = self._tried(step)
                if not self._worth(step, results):
                    return False
                inexact = any(number in self.inexact for number in step.reads)
                if inexact and _may_jump(step, results) and self._falls_both_ways(step, results):
                    return False
                if step.kind == "in place":
                    results = step.call(self.values)
        except (RuntimeError, TypeError, IndexError, ValueError, ZeroDivisionError):
            return False  # (NotImplementedError is a RuntimeError)
        self.steps.append(step)
        self.results.append(len(results))
        if inexact or _leaves_room(step):
            self.inexact.update(range(len(self.values), len(self.values) + len(results)))
            if step.kind == "in place":  # all that shows the memory written
                memory = self.values[step.args[0].number].untyped_storage().data_ptr()
                self.inexact.update(
                    number
                    for number, value in enumerate(self.values)
                    if value.untyped_storage().data_ptr() == memory
                )
        self.values += results
        return True

    def _tried(self, step: Step) -> tuple[torch.Tensor, ...]:
        """A step's results; one that writes does so to a copy, as it cannot be taken back."""
        if step.kind != "in place":
            return step.call(self.values)
        target = step.args[0].number
        copy = _copy(self.values[target])
        results = step.call([*self.values[:target], copy, *self.values[target + 1 :]])
        if copy.shape != self.values[target].shape:
            raise ValueError("torch makes the target larger, and warns that it will not for long")
        return results

    def _falls_both_ways(self, step: Step, results: Sequence[torch.Tensor]) -> bool:
        """Whether a jump lies so near that the step is mostly not taken.

        It counts as near within many ULP of what is inexact.  Away from there a jump may still
        be met by other values than these: it is left out more often than other steps are.
        """
        if self.random.random() < STEPS_ON_INEXACT:
            return False
        for sign in (-1, 1):
            moved = list(self.values)
            for number in step.reads:
                if number in self.inexact and moved[number].is_floating_point():
                    away = moved[number].double() * (1 + sign * 2.0**-9)
                    moved[number] = away.to(moved[number].dtype)
            if step.kind == "in place":
                target = step.args[0].number
                moved[target] = _copy(moved[target])
            for one, two in zip(step.call(moved), results, strict=True):
                apart = (one.double() - two.double()).abs()
                if bool((apart > 0.05 * two.double().abs()).any()):
                    return True
        return self.random.random() < LEFT_OUT_ON_INEXACT

    def _worth(self, step: Step, results: Sequence[torch.Tensor]) -> bool:
        for value in results:
            if value.dtype not in DTYPES or value.layout != torch.strided:
                return False
            if value.numel() > MOST_ELEMENTS or value.dim() > MOST_RANK:
                return False
        if step.kind == "view" or not all(value.numel() for value in results):
            return True
        return not (self._dull(step, results) and self.random.random() < 0.9)

    def _dull(self, step: Step, results: Sequence[torch.Tensor]) -> bool:
        """Whether a comparison of the result, or of what is made of it, would say little."""
        for value in results:
            if value.numel() > 3 and bool((value == value.reshape(-1)[0]).all()):
                return True
            if not value.is_floating_point():
                if self._overflows(step, value):
                    return True
                continue
            finite = torch.isfinite(value)
            if float((~finite).float().mean()) > (0.35 if self.wild else 0.02):
                return True
            size = value[finite].abs().double()
            largest = 1e30 if self.wild else 1e5
            if size.numel() and float(size.median()) > min(largest, _limit(value.dtype)):
                return True
        return False

    def _overflows(self, step: Step, result: torch.Tensor) -> bool:
        """Whether a float was cast to an integer dtype that does not hold it."""
        if result.dtype == torch.bool:
            return False
        bounds = torch.iinfo(result.dtype)
        for number in step.reads:
            value = self.values[number]
            if value.is_floating_point():
                whole = value.double().trunc()
                if not bool(((whole >= bounds.min) & (whole < float(bounds.max) + 1)).all()):
                    return True
        return False

    def _kept(self) -> tuple[int, ...]:
        """The last value, results that nobody reads, and some that others read too."""
        first = len(self.operands)
        read = {number for step in self.steps for number in step.reads}
        made = range(first, len(self.values))
        kept = [number for number in made if number not in read and self.random.random() < 0.8]
        kept += self.random.sample(made, min(len(made), self.random.choice((0, 0, 1, 2))))
        last = [made[-1]] if made else []
        return tuple(dict.fromkeys([*last, *kept[-7:]]))


_NONE_FITS = object()


def _limit(dtype: torch.dtype) -> float:
    return math.sqrt(torch.finfo(dtype).max)


def _copy(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, of memory of its own."""
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return copy.copy_(value)


def _broadcasts(one: Sequence[int], two: Sequence[int]) -> bool:
    pairs = zip(reversed(one), reversed(two), strict=False)
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _leaves_room(step: Step) -> bool:
    info = ops.lookup(f"aten.{step.op}")
    return info is not None and bool(info.budget_ulp)


def _may_jump(step: Step, results: Sequence[torch.Tensor]) -> bool:
    """Whether a small change of an operand may make a large one of the result."""
    info = ops.lookup(f"aten.{step.op}")
    if info is None or step.kind == "view":
        return False
    return info.discontinuous or not all(value.is_floating_point() for value in results)


def random_program(random: Random, most_steps: int = MOST_STEPS) -> Program:
    """A program of 2 to ``most_steps`` ops."""
    while True:
        program = _Grower(random, most_steps).grow()
        computing = sum(step.kind == "op" for step in program.steps)
        if len(program.steps) < 2 or not program.kept:
            continue
        if computing >= LEAST_COMPUTING or random.random() < 0.2:
            return program


def programs() -> st.SearchStrategy[Program]:
    """Random programs, every choice drawn by Hypothesis."""
    return st.randoms(use_true_random=False).map(random_program)
