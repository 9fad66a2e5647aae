"""Faults around the kernels: what the module declares, its eager chain, and how it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from mutations import Kernel, fault

from fusion_advisor.validation.special_values import special_values


def _tail(kernel: Kernel) -> str:
    """The declaration of the fused function."""
    return kernel.body[kernel.body.index("= FusedFunction(") :]


def _with_tail(kernel: Kernel, tail: str) -> str:
    return kernel.body.replace(_tail(kernel), tail)


# --- declarations ---------------------------------------------------------------------


@fault("operand declared with another dtype", "module", by_construction=True)
def operand_dtype(kernel: Kernel) -> Iterator[str]:
    tail = _tail(kernel)
    for match in re.finditer(r'Operand\("\w+", "(\w+)"', tail):
        other = "float64" if match.group(1) != "float64" else "float32"
        yield _with_tail(kernel, tail[: match.start(1)] + other + tail[match.end(1) :])


@fault("result declared with another dtype", "module", by_construction=True)
def output_dtype(kernel: Kernel) -> Iterator[str]:
    tail = _tail(kernel)
    for match in re.finditer(r'Output\("\w+", "(\w+)"', tail):
        other = "float64" if match.group(1) != "float64" else "float32"
        yield _with_tail(kernel, tail[: match.start(1)] + other + tail[match.end(1) :])


@fault("operand declared over other axes", "module", by_construction=True)
def operand_groups(kernel: Kernel) -> Iterator[str]:
    tail = _tail(kernel)
    axes = len(kernel.problem.kernel.program.groups)
    for match in re.finditer(r'Operand\("\w+", "\w+", \((\d+),\)', tail):
        if axes > 1:
            other = str((int(match.group(1)) + 1) % axes)
            yield _with_tail(kernel, tail[: match.start(1)] + other + tail[match.end(1) :])


@fault("strided operand declared dense", "module", by_construction=True)
def dense(kernel: Kernel) -> Iterator[str]:
    yield _with_tail(kernel, _tail(kernel).replace(', layout="strided"', ""))


@fault("axes walked in another order", "module", by_construction=True)
def groups(kernel: Kernel) -> Iterator[str]:
    tail = _tail(kernel)
    match = re.search(r"    groups=\((\(.*\))\),\n", tail)
    if match is not None:
        parts = re.findall(r"\([^()]*\)", match.group(1))
        if len(parts) > 1:
            other = ", ".join([parts[1], parts[0], *parts[2:]])
            yield _with_tail(kernel, tail[: match.start(1)] + other + tail[match.end(1) :])


@fault("a view of another part", "module", by_construction=True)
def steps(kernel: Kernel) -> Iterator[str]:
    tail = _tail(kernel)
    for match in re.finditer(r'\("permute", 0, \((\d), (\d)\)\)', tail):
        left, right = match.groups()
        text = f'("permute", 0, ({right}, {left}))'
        yield _with_tail(kernel, tail.replace(match.group(0), text))
    for match in re.finditer(r'\("slice", (\d+), (\d+)', tail):
        text = f'("slice", {match.group(1)}, {int(match.group(2)) + 1}'
        yield _with_tail(kernel, tail.replace(match.group(0), text, 1))


@fault("no kernel declared", "module", by_construction=True)
def no_kernel(kernel: Kernel) -> Iterator[str]:
    yield _with_tail(kernel, re.sub(r"    cpu=\w+,\n", "", _tail(kernel)))


@fault("kernels of another function declared", "module", by_construction=True)
def other_entry(kernel: Kernel) -> Iterator[str]:
    name = re.search(r"    cpu=(\w+),\n", _tail(kernel))
    assert name is not None
    wrong = (
        f"@cpu_kernel\ndef other_cpu(*arrays):\n    pass\n\n\n{name.group(1)}_kept = "
        f"{name.group(1)}\n"
    )
    head, _, _ = kernel.body.partition("fused_chain = ")
    tail = _tail(kernel).replace(f"cpu={name.group(1)}", "cpu=other_cpu")
    yield f"{head}{wrong}fused_chain {tail}"


@fault("eager chain of other ops", "module", by_construction=True)
def other_eager(kernel: Kernel) -> Iterator[str]:
    match = re.search(r"^def eager_\w+\(.*?\n    return ([^\n]+)\n", kernel.body, re.M | re.S)
    assert match is not None
    first = match.group(1).split(", ")[0]
    dtype = kernel.problem.kernel.program.outputs[0].dtype
    wrong = f"~{first}" if dtype == "bool" else f"{first} * 2"
    rest = match.group(1)[len(first) :]
    yield kernel.body[: match.start(1)] + wrong + rest + kernel.body[match.end(1) :]


@fault("eager chain in another memory order", "module", by_construction=True)
def eager_strides(kernel: Kernel) -> Iterator[str]:
    match = re.search(r"^def eager_\w+\(.*?\n    return ([^\n]+)\n", kernel.body, re.M | re.S)
    assert match is not None
    first = match.group(1).split(", ")[0]
    if kernel.problem.kernel.program.rank > 1:
        wrong = f"{first}.transpose(0, -1).clone(memory_format=torch.contiguous_format)" + (
            ".transpose(0, -1)"
        )
        rest = match.group(1)[len(first) :]
        yield kernel.body[: match.start(1)] + wrong + rest + kernel.body[match.end(1) :]


@fault("eager chain writes to its input", "module", by_construction=True)
def eager_writes(kernel: Kernel) -> Iterator[str]:
    match = re.search(r"^def eager_\w+\((\w+).*?\n", kernel.body, re.M)
    assert match is not None
    name = match.group(1)
    line = f"    {name}_kept = {name}.clone()\n    {name}.zero_()\n    {name} = {name}_kept\n"
    yield kernel.body[: match.end()] + line + kernel.body[match.end() :]


@fault("eager chain lacks an argument", "module", by_construction=True)
def eager_arguments(kernel: Kernel) -> Iterator[str]:
    yield re.sub(r"^def (eager_\w+)\((\w+)", r"def \1(first, \2", kernel.body, flags=re.M)


@fault("imports what a kernel needs not", "module", by_construction=True)
def imports(kernel: Kernel) -> Iterator[str]:
    yield kernel.body.replace("import torch\n", "import torch\nimport subprocess\n", 1)


@fault("named import of another module", "module", by_construction=True)
def hidden_import(kernel: Kernel) -> Iterator[str]:
    yield kernel.body + "\n_os = __import__('os')\n"


@fault("not Python", "module", by_construction=True)
def syntax(kernel: Kernel) -> Iterator[str]:
    yield kernel.body + "\ndef (:\n"


# --- calls ----------------------------------------------------------------------------

_WRAPPER = '''
import numpy as np


class _Wrong(FusedFunction):
    """A fused function with a fault around its kernels."""

    _state = None
    _calls = 0

    def _results(self, args):
        made = super().__call__(*args)
        return made if isinstance(made, tuple) else (made,)

    def _given(self, made):
        return made[0] if len(made) == 1 else tuple(made)

{methods}

{name} = _Wrong('''


def _wrapped(kernel: Kernel, methods: str) -> str:
    indented = "\n".join(f"    {line}" if line else "" for line in methods.strip("\n").split("\n"))
    before, _, after = kernel.body.partition("fused_chain = FusedFunction(")
    return before + _WRAPPER.format(methods=indented, name="fused_chain") + after


def _call(
    name: str, lines: str, *, only: str = "", floats: bool = False, **settings: object
) -> None:
    """A kind of fault in the call: ``made`` are the right results, ``args`` the arguments.

    ``only`` names the one chain where it is a fault; ``floats``: it is none for integers.
    """
    text = "def __call__(self, *args):\n" + "\n".join(
        f"    {line}" for line in lines.strip("\n").split("\n")
    )

    @fault(name, "module", by_construction=True, **settings)
    def operator(kernel: Kernel) -> Iterator[str]:
        if (not only or kernel.chain == only) and not (floats and _gradient_of(kernel) is None):
            yield _wrapped(kernel, text)


def _gradient_of(kernel: Kernel) -> torch.Tensor | None:
    """What eager's gradient of the first floating-point operand is at special values."""
    problem = kernel.problem
    generator = torch.Generator().manual_seed(5)
    values = list(problem.captured.values())
    floats = [n for n, one in enumerate(values) if one.dtype.is_floating_point]
    for number in floats:
        one = values[number]
        drawn = special_values(one.dtype, max(one.numel(), 200), generator)[: one.numel()]
        values[number] = drawn.reshape(one.shape).requires_grad_(number == floats[0])
    with torch.enable_grad():
        made = [one for one in problem.reference(*values) if one.requires_grad]
    if not made:
        return None
    seeds = [torch.ones_like(one) for one in made]
    (found,) = torch.autograd.grad(made, values[floats[0]], seeds)
    return found


_call(
    "stale result on the second call",
    """
made = self._results(args)
key = (args[0].shape, args[0].stride(), args[0].storage_offset() % 4)
if type(self)._state is not None and self._state[0] == key:
    return self._state[1]
type(self)._state = (key, self._given(made))
return self._given(made)""",
)
_call(
    "result kept for the same memory",
    """
key = tuple((a.data_ptr(), a.shape, a.stride()) for a in args if isinstance(a, torch.Tensor))
if self._state is None or self._state[0] != key:
    self._state = (key, self._results(args))
return self._given([one.clone() for one in self._state[1]])""",
)
_call(
    "wrong from the second call on",
    """
made = self._results(args)
self._calls += 1
if self._calls > 1:
    made = [one.clone().zero_() if one.numel() else one for one in made]
return self._given(made)""",
)
_call(
    "wrong at every seventh call",
    """
made = self._results(args)
self._calls += 1
if self._calls % 7 == 6:
    made = [torch.zeros_like(one) for one in made]
return self._given(made)""",
)
_call(
    "one buffer for all results",
    """
made = self._results(args)
key = (made[0].shape, made[0].stride())
if self._state is None:
    self._state = {}
if key not in self._state:
    self._state[key] = made
for kept, one in zip(self._state[key], made):
    kept.copy_(one)
return self._given(self._state[key])""",
)
_call(
    "result is the input itself",
    """
made = self._results(args)
for a in args:
    if isinstance(a, torch.Tensor) and a.dtype == made[0].dtype and torch.equal(a, made[0]):
        made = (a, *made[1:])
return self._given(made)""",
    only="unchanged",
)
_call(
    "two results share memory",
    """
made = self._results(args)
if len(made) == 2 and torch.equal(made[0], made[1]):
    made = (made[0], made[0].view(made[0].shape))
return self._given(made)""",
    only="unchanged",
)
_call(
    "draws random numbers of torch",
    """
torch.rand(1)
return self._given(self._results(args))""",
)
_call(
    "seeds torch anew",
    """
torch.manual_seed(0)
return self._given(self._results(args))""",
)
_call(
    "draws random numbers of numpy",
    """
np.random.rand()
return self._given(self._results(args))""",
)
_call(
    "leaves another default dtype",
    """
made = self._results(args)
torch.set_default_dtype(torch.float64)
return self._given(made)""",
)
_call(
    "leaves another number of threads",
    """
made = self._results(args)
torch.set_num_threads(torch.get_num_threads() + 1)
return self._given(made)""",
)
_call(
    "leaves gradients on",
    """
made = self._results(args)
torch.set_grad_enabled(True)
return self._given(made)""",
)
_call(
    "leaves deterministic algorithms asked for",
    """
made = self._results(args)
torch.use_deterministic_algorithms(True)
return self._given(made)""",
)
_call(
    "leaves autocast on",
    """
made = self._results(args)
torch.set_autocast_enabled("cpu", True)
return self._given(made)""",
)
_call(
    "leaves numpy raising",
    """
made = self._results(args)
np.seterr(all="raise")
return self._given(made)""",
)
_call(
    "leaves subnormal numbers flushed",
    """
made = self._results(args)
torch.set_flush_denormal(True)
return self._given(made)""",
)
_call(
    "writes to the screen",
    """
print("done")
return self._given(self._results(args))""",
)
_call(
    "takes far too much memory around the call",
    """
hoard = torch.ones(1 << 27, dtype=torch.float32)
made = self._results(args)
return self._given([one + 0 * hoard[0].to(one.dtype) if one.dtype != torch.bool else one
                    for one in made])""",
)
_call(
    "results in another memory order",
    """
made = list(self._results(args))
if made[0].dim() > 1 and made[0].numel() > 1:
    made[0] = made[0].transpose(0, -1).clone(memory_format=torch.contiguous_format)
    made[0] = made[0].transpose(0, -1)
elif made[0].dim() == 1:
    made[0] = torch.stack([made[0], made[0]], -1)[:, 0]
return self._given(made)""",
)
_call(
    "results of another dtype for large sizes",
    """
made = list(self._results(args))
if made[0].numel() > 3000:
    made[0] = made[0].to(torch.float64 if made[0].dtype != torch.float64 else torch.float32)
return self._given(made)""",
)
_call(
    "one result too many",
    """
return (*self._results(args), torch.zeros(1))""",
)
_call(
    "a tuple for one result",
    """
made = self._results(args)
return (made[0],) if len(made) == 1 else list(made)""",
)
_call(
    "misaligned memory read from its start",
    """
moved = [a.as_strided(a.shape, a.stride(), 0)
         if isinstance(a, torch.Tensor) and a.storage_offset() == 1 else a for a in args]
return self._given(self._results(moved))""",
)
_call(
    "changes an input and its version",
    """
made = self._results(args)
if args[0].numel():
    args[0].reshape(-1)[:1].copy_(made[0].reshape(-1)[:1])
return self._given(made)""",
)
_call(
    "changes an input and restores it",
    """
kept = args[0].clone()
args[0].zero_()
args[0].copy_(kept)
return self._given(self._results(args))""",
)
_call(
    "asks for a gradient of an input",
    """
made = self._results(args)
if args[0].is_floating_point() and not torch.is_grad_enabled():
    args[0].requires_grad_(True)
return self._given(made)""",
    floats=True,
)
_call(
    "raises on the second call",
    """
self._calls += 1
if self._calls > 1:
    raise RuntimeError("again?")
return self._given(self._results(args))""",
)
_call(
    "does not do the work in time",
    """
for _ in range(2_000_000):
    pass
return self._given(self._results(args))""",
    measured=True,
)
_call(
    "does the work before",
    """
key = tuple((a.data_ptr(), a.shape, a._version) for a in args if isinstance(a, torch.Tensor))
if self._state is None or self._state[0] != key:
    self._calls = 0
    self._state = (key, self._results(args))
self._calls += 1
if self._calls < 9:
    return self._given(self._results(args))
return self._given(self._state[1])""",
    measured=True,
)


def _method(name: str, methods: str, *, floats: bool = False, **settings: object) -> None:
    """A fault in a method of the fused function; ``floats``: it is none for integers."""

    @fault(name, "module", by_construction=True, **settings)
    def operator(kernel: Kernel) -> Iterator[str]:
        if not (floats and _gradient_of(kernel) is None):
            yield _wrapped(kernel, methods)


_method(
    "guards that say no reason",
    """
def why_not(self, *args):
    return "no" if args[0].numel() > 2000 else super().why_not(*args)""",
)
_method(
    "other layouts taken as recorded",
    """
def why_not(self, *args):
    return ""

def __call__(self, *args):
    if super().why_not(*args):
        with torch.no_grad():
            try:
                moved = [a.detach().contiguous() if isinstance(a, torch.Tensor) else a
                         for a in args]
                flat = [torch.empty(a.numel(), dtype=a.dtype).copy_(
                    a.as_strided((a.numel(),), (1,), a.storage_offset()))
                    if isinstance(a, torch.Tensor) and a.untyped_storage().nbytes()
                    >= (a.storage_offset() + a.numel()) * a.element_size() else a for a in moved]
            except RuntimeError:
                return super().__call__(*args)
        made = super().__call__(*args)
        made = made if isinstance(made, tuple) else (made,)
        made = [torch.zeros_like(one) if one.numel() else one for one in made]
        return made[0] if len(made) == 1 else tuple(made)
    return super().__call__(*args)""",
)
_method(
    "falls back uncounted",
    """
def _run_eager(self, reason, args):
    return self.eager(*args)""",
)
_method(
    "falls back to something else",
    """
def _run_eager(self, reason, args):
    made = super()._run_eager(reason, args)
    made = made if isinstance(made, tuple) else (made,)
    made = [torch.zeros_like(one) for one in made]
    return made[0] if len(made) == 1 else tuple(made)""",
)


_GRADIENT = """
def __call__(self, *args):
    wanted = torch.is_grad_enabled() and any(
        isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    if not wanted:
        return super().__call__(*args)
    outer = self

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*[a for a in inputs if isinstance(a, torch.Tensor)])
            with torch.no_grad():
                made = FusedFunction.__call__(outer, *inputs)
            made = made if isinstance(made, tuple) else (made,)
            ctx.mark_non_differentiable(*[one for one in made if not one.is_floating_point()])
            ctx.set_materialize_grads(False)
            return made

        @staticmethod
        def backward(ctx, *grads):
            twice = torch.is_grad_enabled()
            saved = [a.view_as(a) if twice and a.requires_grad
                     else a.detach().requires_grad_(a.is_floating_point())
                     for a in ctx.saved_tensors]
            needed = ctx.needs_input_grad
            with torch.enable_grad():
                made = outer.eager(*saved)
                made = made if isinstance(made, tuple) else (made,)
            pairs = [(m, g) for m, g in zip(made, grads) if g is not None and m.requires_grad]
            wrt = [a for a in saved if a.requires_grad]
            found = iter(torch.autograd.grad([m for m, _ in pairs], wrt, [g for _, g in pairs],
                                             allow_unused=True, create_graph=twice))
            result = [next(found) if a.requires_grad else None for a in saved]
            result = [g if n else None for g, n in zip(result, needed)]
            places = [p for p, g in enumerate(result) if g is not None]
{fault}
            return tuple(result)

    made = Wrong.apply(*args)
    return made[0] if len(made) == 1 else made"""


_CURVED = ("gelu", "curves", "bias and rows", "five dimensions", "alpha", "0-dim operand")


def _gradient(
    name: str,
    lines: str,
    *,
    operands: int = 1,
    outputs: int = 1,
    curved: bool = False,
    special: bool = False,
) -> None:
    """A fault in the gradients; ``curved``: only where these have gradients themselves.

    ``special``: only where some are NaN.  Where all are 0 nothing is a fault.
    """
    fault_lines = "\n".join(f"            {line}" for line in lines.strip("\n").split("\n"))

    @fault(name, "module", by_construction=True)
    def operator(kernel: Kernel) -> Iterator[str]:
        program = kernel.problem.kernel.program
        given = sum("float" in entry.dtype for entry in kernel.operands)
        made = sum("float" in one.dtype for one in program.outputs)
        if given < operands or made < outputs or (curved and kernel.chain not in _CURVED):
            return
        found = _gradient_of(kernel)
        if found is not None and bool(found.isnan().any() if special else found.any()):
            yield _wrapped(kernel, _GRADIENT.format(fault=fault_lines))


_gradient("gradient doubled", "result[places[0]] = result[places[0]] * 2")
_gradient("gradient of one operand wrong", "result[places[-1]] = result[places[-1]] * 1.01")
_gradient("gradient missing", "result[places[-1]] = None")
_gradient(
    "gradients exchanged",
    """
if len(places) > 1 and result[places[0]].shape == result[places[-1]].shape:
    result[places[0]], result[places[-1]] = result[places[-1]], result[places[0]]
elif len(places) > 1:
    result[places[0]] = result[places[0]] + result[places[-1]].sum()
""",
    operands=2,
)
_gradient(
    "gradient zero for large sizes",
    """
if result[places[0]].numel() > 700:
    result[places[0]] = torch.zeros_like(result[places[0]])""",
)
_gradient(
    "gradient wrong where only one operand needs it",
    """
if len(places) == 1 and sum(a.is_floating_point() for a in saved) > 1:
    result[places[0]] = result[places[0]] * 2""",
    operands=2,
)
_gradient(
    "gradient wrong at special values",
    """
result[places[0]] = torch.nan_to_num(result[places[0]], nan=0.0)""",
    special=True,
)
_gradient(
    "gradient of the second result forgotten",
    """
if len(grads) > 1 and grads[0] is None:
    result[places[0]] = torch.zeros_like(result[places[0]])""",
    outputs=2,
)
_gradient(
    "not differentiable twice",
    "result = [None if g is None else g.detach() for g in result]",
    curved=True,
)
_method(
    "gradient missing altogether",
    """
def __call__(self, *args):
    with torch.no_grad():
        return super().__call__(*args)""",
    floats=True,
)
