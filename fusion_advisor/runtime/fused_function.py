"""The callable that generated text defines: a fused kernel behind guards, eager beyond them."""

from __future__ import annotations

import functools
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.autograd import forward_ad
from torch.nn import Parameter

from fusion_advisor.errors import UsageError
from fusion_advisor.runtime import (
    autograd,
    given_outputs,
    guards,
    index_width,
    launch,
    launch_cuda,
    threads,
)
from fusion_advisor.runtime.cpu_kernels import SERIAL_BELOW
from fusion_advisor.runtime.launch import Launch
from fusion_advisor.runtime.layouts import Groups
from fusion_advisor.runtime.operands import CallStats, FusionFallbackWarning, Operand, Output
from fusion_advisor.runtime.plan import (
    ZERO_DIVISOR,
    Plan,
    Signature,
    fits_64_bits,
    make_plan,
)

is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_function_modes = torch._C._len_torch_function_stack
_any_autocast = torch._C._is_any_autocast_enabled
_default_dtype = torch.get_default_dtype

_RECENT = 4
_MOST_PLANS = 1024  # plans kept per function: beyond, the oldest goes (ever new shapes)


class FusedFunction:
    """Runs one fused kernel in place of an eager chain, with the chain's results.

    Call it as the chain: tensors, then run-time numbers.  Where a guard does not hold the eager
    chain runs instead, which is counted in ``stats`` and warned of once per reason.  Sizes are
    run-time values.  Gradients come from recomputing the chain in backward.

    ``groups`` partitions the ``rank`` dimensions of the result into the axes the kernels walk,
    outermost first; ``further`` are rank and groups of the regions after the first, for results
    of other shapes.  ``parameters`` (name, dtype) are the tensors of a call where the operands are
    views of them.  ``scalars`` name the run-time numbers, each alone or with its dtype
    (``("alpha", "float64")``).  ``written`` are parameters that the eager chain writes in place:
    it takes ``copy=``, what makes the tensor it writes of one.

    ``checks_divisors``: integers are divided by what may be 0.  Eager
    on the CPU raises there; so the CPU kernel takes a flag and sets it, and the eager chain is
    called to raise.  On CUDA eager promises no error and no value for a zero divisor, and reading
    a flag back would wait for the device: CUDA kernels divide by 1 there.
    """

    def __init__(
        self,
        name: str,
        *,
        eager: Callable[..., Any],
        cpu: Any = None,
        cuda: Any = None,
        rank: int,
        groups: tuple[tuple[int, ...], ...],
        operands: tuple[Operand, ...],
        outputs: tuple[Output, ...],
        scalars: tuple[Any, ...] = (),
        further: tuple[tuple[int, Groups], ...] = (),
        parameters: tuple[tuple[str, str], ...] = (),
        written: tuple[str, ...] = (),
        checks_divisors: bool = False,
        program_hash: str = "",
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = getattr(eager, "__module__", __name__)
        self.__doc__ = eager.__doc__ or f"{name}: one fused kernel for {eager.__name__}."
        self.eager = eager
        self.cpu = cpu
        self.cuda = cuda
        self.program_hash = program_hash
        named = tuple(_scalar(entry) for entry in scalars)
        given = parameters or tuple((operand.name, operand.dtype) for operand in operands)
        places = {parameter: place for place, (parameter, _) in enumerate(given)}
        self.signature = Signature(
            eager=eager,
            spaces=((rank, groups), *further),
            parameters=given,
            sources=tuple(places[operand.of or operand.name] for operand in operands),
            operands=operands,
            outputs=outputs,
            scalars=named,
            checks_divisors=checks_divisors,
            viewed=bool(parameters),
        )
        self.source: tuple[str, str, str] | None = None  # text, entry, hash: set by load_kernel
        self._tensor_count = len(given)
        self._single = len(outputs) == 1
        self._argument_count = len(given) + len(named)
        self._written = tuple(places[name] for name in written)
        self._plans: dict[Any, Plan] = {}
        self._recent: tuple[
            tuple[Plan, Callable[..., bool]], ...
        ] = ()  # on the fast path, the newest first
        self._fused = 0
        self._copied = 0
        self._fallbacks: dict[str, int] = {}
        self._warned: set[str] = set()
        self._forced: str | None = None

    @functools.cached_property
    def cuda64(self) -> Any:
        """The CUDA kernel with 64-bit indices, for calls that reach offsets beyond 32 bits."""
        return None if self.cuda is None else index_width.wide_kernel(self.cuda)

    # -- calling ---------------------------------------------------------------------------

    def __call__(self, *args: Any) -> Any:
        """The chain's result: one tensor, or a tuple in the order of the outputs."""
        if is_compiling():
            return self.eager(*args)  # the compiler fuses the single ops itself
        if self._written:
            shared = guards.written_problem(self.signature.parameters, self._written, args)
            if shared:
                return self._run_eager(shared, args, copy=_itself)
        plan = self._recent_plan(args)
        if plan is None:
            problem = self._forced or guards.context_problem()
            if problem:
                return self._run_eager(problem, args)
            try:
                plan = self._plan(args)
            except (RuntimeError, TypeError, AttributeError) as error:
                # Sparse, nested and wrapped tensors refuse to tell shape or strides.
                return self._run_eager(f"not a plain tensor ({type(error).__name__})", args)
            if plan.problem:
                return self._run_eager(plan.problem, args)
        try:
            if plan.with_gradient:
                results = autograd.call(
                    lambda inner: self._launch(plan, inner), self.eager, plan.differentiable, args
                )
            else:
                results = self._launch(plan, args)
        except launch_cuda.CannotLaunchError as error:
            self._forced = str(error)  # it would fail again at every call
            return self._run_eager(self._forced, args)
        except launch.ZeroDivisorError:
            results = ()
        if not results:
            return self._run_eager(ZERO_DIVISOR, args)
        self._fused += 1
        return results[0] if self._single else results

    def into(self, out: torch.Tensor | Sequence[torch.Tensor], *args: Any) -> Any:
        """The chain's results in ``out``, which is returned: no memory is allocated for them.

        Each tensor of ``out`` has its result's shape, strides, dtype and device; it may be an
        operand of that shape and strides, which is then overwritten.  Where a guard does not hold
        the eager chain runs and its results are copied, counted as for a call.  Like torch's own
        ``out=`` it has no gradients.

        Raises:
            UsageError: a tensor of ``out`` does not fit, shares memory with what is read at other
                elements, or gradients are asked for.
        """
        given = tuple(out) if isinstance(out, tuple | list) else (out,)
        if torch.is_grad_enabled() and any(
            getattr(one, "requires_grad", False) for one in (*given, *args[: self._tensor_count])
        ):
            raise UsageError(f"{self.name}.into has no gradients: call it under torch.no_grad()")
        problem = self._forced or ("torch.compile traces it" if is_compiling() else "")
        plan = None if problem else self._recent_plan(args)
        if plan is None:
            problem = problem or guards.context_problem()
            if not problem:
                try:
                    plan = self._plan(args)
                    problem = plan.problem
                except (RuntimeError, TypeError, AttributeError) as error:
                    problem = f"not a plain tensor ({type(error).__name__})"
        if self._written and not problem:
            problem = "it writes an operand in place"
        if plan is not None and not problem:
            if plan.given is None:
                plan.given = given_outputs.GivenOutputs(self.signature, plan, args, given)
            overwrites = plan.given.check(args, given)
            try:
                if overwrites and self.signature.checks_divisors:
                    # Eager is to find a zero divisor in operands as they were given.
                    given_outputs.fill(given, self._launch(plan, args))
                else:
                    self._launch(plan, args, given)
                    torch.autograd.graph.increment_version(given)
                self._fused += 1
                return out
            except launch_cuda.CannotLaunchError as error:
                problem = self._forced = str(error)
            except launch.ZeroDivisorError:
                problem = ZERO_DIVISOR
        given_outputs.fill(given, self._run_eager(problem, args))
        return out

    def _recent_plan(self, args: tuple[Any, ...]) -> Plan | None:
        """The plan of one of the last kinds of call, if this is such a call: the fast path.

        torch's own guard compares type, dtype, device, sizes, strides, dispatch keys (conj, neg,
        wrappers) and the thread's dispatch state (modes, transforms, autocast) in one go; what it
        does not see is asked here.
        """
        if self._forced or _function_modes() or forward_ad._current_level >= 0:
            return None
        count = self._tensor_count
        if len(args) != self._argument_count:
            return None
        tensors, numbers = (args, ()) if count == len(args) else (args[:count], args[count:])
        grad_enabled, default_dtype = _grad_enabled(), _default_dtype()
        for plan, matches in self._recent:
            if (
                plan.grad_enabled is grad_enabled
                and plan.default_dtype is default_dtype
                and matches(*tensors)
                and (not numbers or plan.takes(numbers))
            ):
                return plan
        return None

    def _plan(self, args: tuple[Any, ...]) -> Plan:
        key: list[Any] = []
        with_gradient = False
        grad_enabled = _grad_enabled()
        for arg in args:
            kind = type(arg)
            if kind is torch.Tensor or kind is Parameter:
                needs = grad_enabled and arg.requires_grad
                with_gradient = with_gradient or needs
                key += (kind, arg.dtype, arg.shape, arg.stride(), arg.device)
                key += (arg.is_neg(), arg._is_zerotensor(), arg.requires_grad, needs)
            else:
                key += (kind, kind is int and not fits_64_bits(arg))
        if _any_autocast():
            key += (guards.autocast_state("cpu"), guards.autocast_state("cuda"))
        key += (grad_enabled, torch.is_inference_mode_enabled(), _default_dtype())
        frozen = tuple(key)
        plan = self._plans.get(frozen)
        if plan is None:
            plan = self._new_plan(frozen, args, with_gradient)
        if not plan.problem:
            self._remember(plan, args)
        return plan

    def _new_plan(self, key: Any, args: tuple[Any, ...], with_gradient: bool) -> Plan:
        plan = make_plan(self.signature, args, with_gradient)
        if not plan.problem and (self.cuda if plan.device.type == "cuda" else self.cpu) is None:
            plan = Plan(f"no kernel for {plan.device.type}")
        if not plan.problem and plan.addressable and 0 < plan.elements < SERIAL_BELOW:
            plan.entry = launch.cpu_entry(self.cpu, self.signature, plan, args)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.pop(next(iter(self._plans)), None)
        if not plan.of_values:
            self._plans[key] = plan
        return plan

    def _remember(self, plan: Plan, args: tuple[Any, ...]) -> None:
        """Put a plan on the fast path."""
        if plan.matches is None:
            count = self._tensor_count
            plan.matches = guards.exact_match(args[:count])
            plan.number_types = tuple(map(type, args[count:]))
            plan.grad_enabled = torch.is_grad_enabled()
            plan.default_dtype = _default_dtype()
        if plan.matches is not None:
            others = (entry for entry in self._recent if entry[0] is not plan)
            self._recent = ((plan, plan.matches), *others)[:_RECENT]

    def _launch(
        self, plan: Plan, args: tuple[Any, ...], out: tuple[torch.Tensor, ...] | None = None
    ) -> tuple[torch.Tensor, ...]:
        if out is None:
            out = launch.allocate(plan)
        if plan.entry is not None:
            count = self._tensor_count
            met_zero_divisor = plan.entry(
                *[tensor.data_ptr() for tensor in args[:count]],
                *[tensor.data_ptr() for tensor in out],
                *plan.sizes,
                *args[count:],
            )
            if met_zero_divisor:
                raise launch.ZeroDivisorError
        elif plan.cuda_entry is not None:
            plan.cuda_entry(args, out)
        elif plan.elements:
            self._copied += plan.copies
            if plan.device.type == "cuda":
                kernel = self.cuda64 if plan.wide else self.cuda
                prepared = launch.cuda_launch(kernel, self.signature, plan, args, out)
                launch_cuda.run(prepared, plan.device)
                plan.cuda_entry = launch_cuda.entry_for(self.signature, plan, prepared)
            else:
                prepared = launch.cpu_launch(self.cpu, self.signature, plan, args, out)
                self.cpu.run(prepared.arguments, plan.elements)
                if prepared.met_zero_divisor:
                    raise launch.ZeroDivisorError
                prepared.finish()
        return out

    def _run_eager(self, reason: str, args: tuple[Any, ...], **options: Any) -> Any:
        recorder = guards.recorder()
        if recorder is not None:
            with recorder.fused_call():
                return self.eager(*args, **options)
        if self._forced != _FORCED_EAGER:
            self._fallbacks[reason] = self._fallbacks.get(reason, 0) + 1
            if reason not in self._warned:
                self._warned.add(reason)
                warnings.warn(
                    f"{self.name} runs its eager chain: {reason}",
                    FusionFallbackWarning,
                    stacklevel=3,
                )
        return self.eager(*args, **options)

    # -- looking at it ---------------------------------------------------------------------

    @property
    def stats(self) -> CallStats:
        """Calls that ran fused, and fallbacks by reason, since creation or ``reset_stats``."""
        return CallStats(self._fused, dict(self._fallbacks), self._copied)

    def reset_stats(self) -> None:
        """Count from zero, and warn again."""
        self._fused = self._copied = 0
        self._fallbacks.clear()
        self._warned.clear()

    @contextmanager
    def forced_eager(self) -> Iterator[None]:
        """Run the eager chain inside the block, uncounted (to compare and to time)."""
        previous, self._forced = self._forced, _FORCED_EAGER
        try:
            yield
        finally:
            self._forced = previous

    def why_not(self, *args: Any) -> str:
        """The reason these arguments would fall back, or "" if they would run fused.

        (A zero divisor is only seen in running, or where the eager chain has to be run to plan.)
        """
        shared = guards.written_problem(self.signature.parameters, self._written, args)
        return shared or guards.context_problem() or self._plan(args).problem

    # -- for validation --------------------------------------------------------------------

    def prepare(
        self,
        args: tuple[Any, ...],
        target: Literal["cpu", "cuda"] = "cpu",
        out: tuple[torch.Tensor, ...] | None = None,
    ) -> Launch:
        """The exact arrays and numbers a kernel would get, writing to ``out`` or fresh outputs.

        Tensors on the CPU give NumPy arrays for either target, so that a CUDA kernel's code can
        be run without a GPU.  ``elements`` may be 0: then no kernel must be launched.  After the
        kernel call the launch's ``finish``.

        Raises:
            UsageError: a guard refuses the arguments (the message says which), or ``out`` is not
                exactly what the function makes.
        """
        with torch.no_grad():
            plan = make_plan(self.signature, args, with_gradient=False, target=target)
            if plan.problem:
                raise UsageError(f"{self.name} cannot run fused on these arguments: {plan.problem}")
            if out is None:
                out = launch.allocate(plan)
            else:
                launch.check_outputs(plan, out)
            if target == "cuda":
                kernel = self.cuda64 if plan.wide else self.cuda
                return launch.cuda_launch(kernel, self.signature, plan, args, out)
            return launch.cpu_launch(self.cpu, self.signature, plan, args, out)

    def run_cpu(
        self,
        args: tuple[Any, ...],
        out: tuple[torch.Tensor, ...] | None = None,
        *,
        parallel: bool | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Run the CPU kernel, never eager; ``parallel`` picks a twin (None: as a call would).

        Raises:
            UsageError: as ``prepare``, this function has no CPU kernel, or a divisor is zero.
        """
        if self.cpu is None:
            raise UsageError(f"{self.name} has no CPU kernel; generate it with target='cpu'")
        prepared = self.prepare(args, "cpu", out)
        if prepared.elements:
            if parallel is None:
                self.cpu.run(prepared.arguments, prepared.elements)
            elif parallel:
                with threads.limited_to(None):
                    self.cpu.parallel(*prepared.arguments)
            else:
                self.cpu.serial(*prepared.arguments)
            if prepared.met_zero_divisor:
                raise UsageError(f"{self.name}: {ZERO_DIVISOR}, where eager raises")
            prepared.finish()
        return prepared.outputs

    # -- being copied ----------------------------------------------------------------------

    def __copy__(self) -> FusedFunction:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FusedFunction:
        """Itself, as a function: it holds no state that a copied model could own."""
        return self

    def __reduce__(self) -> Any:
        """By kernel text where it came from ``load_kernel``, else by module and name."""
        if self.source is not None:
            from fusion_advisor.runtime.loading import load_function

            return load_function, self.source
        home = sys.modules.get(self.__module__)
        if getattr(home, self.name, None) is not self:
            raise pickle.PicklingError(
                f"{self.name} cannot be pickled: {self.__module__}.{self.name} is not this "
                "function; save the module without it (undo the fix) or load the kernel by text"
            )
        return self.name

    def __repr__(self) -> str:
        return f"<fused {self.name}: {self._fused} fused, {sum(self._fallbacks.values())} eager>"


_FORCED_EAGER = "forced to run eager"


def _itself(tensor: Any) -> Any:
    """In the place of a copy: the chain then writes the caller's own tensor, as eager does."""
    return tensor


def _scalar(entry: Any) -> tuple[str, str]:
    if isinstance(entry, str):
        return entry, ""
    name, dtype = entry
    if dtype not in ("float64", "int64"):
        raise UsageError(f"run-time number {name!r} must be float64 or int64, not {dtype!r}")
    return name, dtype
