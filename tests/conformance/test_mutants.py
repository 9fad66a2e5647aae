"""One fault of every kind is planted and rejected; ``make mutants`` plants them everywhere.

What decides a kind does not depend on the part of the module that it is planted in: kinds that
both kernels can have are planted in the CUDA kernel, which is compiled faster.
"""

from __future__ import annotations

import mutation_kernels
import pytest
import run_mutants
from mutations import REGISTRY, Kind, Mutant, mutants

from fusion_advisor.validation import toolchain_missing

pytestmark = pytest.mark.essential

# Planted by hand in test_validator_rejects, or told by the clock (which needs a large input).
_ELSEWHERE = frozenset(
    """zeros|swapped operands|neighbour read|stride ignored|wrong broadcast dimension|NaN dropped
    |sign of zero lost|16-bit rounding missing|one ULP too many|one thread too many|no bounds check
    |tail skipped|written before the start|adds to what its output held|input changed|alpha ignored
    |eager's own contraction missing|contraction left to the compiler|many ULP too many
    |elements of one value left as they were|imports what a kernel needs not
    |does not do the work in time|does the work before""".replace("\n    ", "").split("|")
)
_CHAINS = ("bias and rows", *(name for name in mutation_kernels.CASES if name != "large"))
# On other chains no number comes near the ends of its dtype.
_WHERE = {"integers saturate": "wrapping integers"}


def _chosen() -> list[Kind]:
    """A part for every kind of fault, the cheapest to judge."""
    order = ("cpu", "module", "cuda") if toolchain_missing() else ("module", "cuda", "cpu")
    found: dict[str, Kind] = {}
    for part in order:
        for kind in REGISTRY.kinds:
            if kind.part == part and kind.name not in _ELSEWHERE:
                found.setdefault(kind.name, kind)
    return list(found.values())


def _planted(kind: Kind) -> Mutant:
    first = "itself" if kind.part == "cpu" else _CHAINS[0]  # quick to compile
    for chain in (_WHERE.get(kind.name, first), *_CHAINS):
        problem = mutation_kernels.right(chain)
        if kind.exact_only and not run_mutants.mutation_witness.is_exact(problem):
            continue
        for mutant in mutants(chain, problem, kind, most=1):
            return mutant
    raise AssertionError(f"{kind.name} applies to no chain")


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in _chosen()])
def test_a_planted_fault_is_rejected(kind: Kind) -> None:
    mutant = _planted(kind)
    result = run_mutants.validated(mutant)
    outcome, _, detail = run_mutants.outcome(mutant, result)
    assert outcome == "rejected", f"{detail}\n{mutant.problem.kernel.text}"


@pytest.mark.parametrize("chain", ["divided", "run-time numbers"])
def test_a_right_function_passes(chain: str) -> None:
    """Where a call is more than tensors; what is around the kernels is judged."""
    kind = next(kind for kind in REGISTRY.kinds if kind.part == "module")
    right = mutation_kernels.right(chain)
    result = run_mutants.partly_validated(Mutant(kind, chain, 0, right, right))
    assert result.status == "passed", [r.detail for r in result.rungs if r.status == "failed"]


def test_there_are_many_kinds_of_fault() -> None:
    assert len({kind.name for kind in REGISTRY.kinds}) >= 120
