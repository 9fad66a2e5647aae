"""Shows that a planted fault is one: its results differ from the right kernel's.

Both kernels run on the same inputs in a process of their own, and what they give is compared to
the bit (or, where the chain's ops have error budgets, by more than any of them explains).  The
inputs are made here: a large draw from everything that a value can be, at sizes that the kind of
fault asks for.  A mutant that nothing tells from the right kernel is left out, and counted.
"""

from __future__ import annotations

import math
from functools import cache

import mutation_kernels
import numpy as np
import torch
from mutations import Mutant
from validation_kernels import Problem

from fusion_advisor import workers
from fusion_advisor.errors import ValidationError
from fusion_advisor.records import FusedProgram
from fusion_advisor.validation import arrays, inputs, viewed_inputs
from fusion_advisor.validation.budgets import table_budget
from fusion_advisor.validation.cuda_compiler import compile_cuda
from fusion_advisor.validation.execution import CaseOutcome, ExecutionRequest
from fusion_advisor.validation.native_module import HostModule, translate

_EXECUTE = "fusion_advisor.validation.execution:execute"
_TIMEOUT_S = 60.0
_SIZES = (1, 2, 64, 1_543, 20_011)
_APART_ULP = 300.0  # of an inexact chain, where nothing cancelled: no budget here comes near


def is_exact(problem: Problem) -> bool:
    """Whether every op of the chain must give eager's bits."""
    nodes = set(problem.candidate.nodes)
    return all(table_budget(node) == 0 for node in problem.graph.nodes if node.id in nodes)


def _values(program: FusedProgram) -> inputs.Values:
    constants = [value for value in inputs.constants_of(program) if value]

    def values(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, (count,), generator=generator).to(torch.bool)
        if not dtype.is_floating_point:
            return _whole(dtype, count, generator)
        info = torch.finfo(dtype)
        table = torch.tensor(
            [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, info.max, -info.max, info.tiny,
             info.tiny / 4, -info.tiny / 4, 0.5, -0.5, 1.5, 2.5, -2.5, 1e3, -1e3, 1 + info.eps,
             *constants, *(-value for value in constants)],
            dtype=torch.float64,
        )  # fmt: skip
        special = table[torch.randint(0, table.numel(), (count,), generator=generator)]
        normal = torch.randn(count, generator=generator, dtype=torch.float64) * 2
        small = torch.randint(-6, 7, (count,), generator=generator).to(torch.float64) / 2
        kind = torch.randint(0, 3, (count,), generator=generator)
        picked = torch.where(kind == 0, special, torch.where(kind == 1, normal, small))
        return picked.to(dtype)

    return values


def _whole(dtype: torch.dtype, count: int, generator: torch.Generator) -> torch.Tensor:
    info = torch.iinfo(dtype)
    bits = torch.randint(1, info.bits, (count,), generator=generator)
    near = torch.randint(-2, 3, (count,), generator=generator)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    large = ((torch.ones(count, dtype=torch.int64) << (bits - 1)) + near) * sign
    small = torch.randint(-9, 12, (count,), generator=generator)
    return torch.where(torch.rand(count, generator=generator) < 0.5, large, small).to(dtype)


def _cases(problem: Problem, sizes: tuple[int, ...]) -> list[tuple[str, arrays.LaunchSpec]]:
    program, candidate = problem.kernel.program, problem.candidate
    values = _values(program)
    made = []
    if candidate.regions:
        maker = viewed_inputs._Builder(program, problem.graph, candidate, 99)
        made += [maker.case(f"witness {n}", {}, values, 0) for n in range(12)]
    else:
        builder = inputs._Builder(program, problem.graph, candidate, 99)
        rank = len(candidate.shape)
        shapes: list[tuple[int, ...]] = [()] * 20
        if rank:
            shapes = [(1,) * (rank - 1) + (count,) for count in (*_SIZES, *sizes)]
        if rank > 1:
            shapes += [(3, 2, 4, 5, 3)[: rank - 1] + (61,), (70,) + (2,) * (rank - 1), (67,) * rank]
            shapes[-1] = (301,) + (1,) * (rank - 2) + (97,)
        made += [builder.case(f"witness {n}", s, values, 0) for n, s in enumerate(shapes)]
    found = []
    for case in made:
        seen = arrays.seen_regions(problem.graph, candidate, case.tensors)
        found.append((case.name, arrays.launch_spec(program, seen, case.scalars)))
    return found


def _host(problem: Problem) -> HostModule:
    compiled = compile_cuda(problem.kernel, (8, 0))
    return translate(compiled.modules, compiled.name, compiled.architecture)


def _run(problem: Problem, part: str, sizes: tuple[int, ...]) -> list[CaseOutcome]:
    kernel, cases = problem.kernel, tuple(_cases(problem, sizes))
    if part == "cuda":
        request = ExecutionRequest(cases=cases, host=_host(problem))
    else:
        request = ExecutionRequest(
            cases=cases, text=kernel.text, entry=kernel.entry, text_hash=kernel.hash,
            cpu_name=kernel.cpu_name,
        )  # fmt: skip
    outcomes: list[CaseOutcome] = workers.run_isolated(_EXECUTE, request, timeout_s=_TIMEOUT_S)
    return outcomes


@cache
def _right(chain: str, part: str, sizes: tuple[int, ...]) -> list[CaseOutcome]:
    return _run(mutation_kernels.right(chain), part, sizes)


def shown_wrong(mutant: Mutant) -> str:
    """What shows that the mutant is no right kernel, or "" where nothing does."""
    kind = mutant.kind
    if kind.by_construction:
        return "by construction"
    right = _right(mutant.chain, kind.part, kind.sizes)
    assert not any(outcome.trespasses for outcome in right)
    try:
        wrong = _run(mutant.problem, kind.part, kind.sizes)
    except workers.WorkerCrash as error:
        if "numba.core.errors" in error.stderr_tail:
            return ""  # not Python that compiles: no kernel at all
        return f"ends its process: {str(error)[:80]}"
    except ValidationError as error:
        if "does not compile" not in str(error):
            raise
        return ""
    program = mutant.problem.kernel.program
    exact = is_exact(mutant.problem)
    for one, two in zip(right, wrong, strict=True):
        if two.trespasses:
            return two.trespasses[0]
        for output, left, other in zip(program.outputs, one.outputs, two.outputs, strict=True):
            count = _apart(left, other, output.dtype, exact)
            if count:
                return f"{one.case}: {count} of {left.size} elements of {output.name}"
    return ""


def _apart(left: np.ndarray, right: np.ndarray, dtype: str, exact: bool) -> int:
    """How many elements are other ones (any NaN is any NaN)."""
    one, two = torch.from_numpy(left.copy()), torch.from_numpy(right.copy())
    if dtype in ("float16", "bfloat16"):
        one, two = one.view(getattr(torch, dtype)), two.view(getattr(torch, dtype))
    if not one.is_floating_point():
        return int((one != two).sum())
    both = torch.isnan(one) & torch.isnan(two)
    signs = torch.signbit(one) != torch.signbit(two)
    if exact:
        return int((((one != two) | signs) & ~both).sum())
    wide, other = one.double(), two.double()
    only = torch.isnan(wide) != torch.isnan(other)
    scale = torch.finfo(one.dtype).eps * torch.fmax(wide.abs(), other.abs())
    far = (wide - other).abs() > _APART_ULP * scale
    # Where eager overflows or rounds to nothing a budget may reach across.
    usual = (wide.abs() < 1e4) & (wide.abs() > 1e-2) & (other.abs() < 1e6)
    return int((only | (far & usual)).sum())
