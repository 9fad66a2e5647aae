"""Plants every kind of fault in every chain and asks the validator; writes build/mutants.json.

What was decided before, by the same validator on the same text, is not asked again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit")]  # beside this folder

import mutation_kernels  # noqa: E402
import mutation_witness  # noqa: E402
import mutations  # noqa: E402
import mutations_arguments  # noqa: E402, F401  # registers its kinds
import mutations_calls  # noqa: E402, F401  # registers its kinds
import mutations_places  # noqa: E402, F401  # registers its kinds
import mutations_values  # noqa: E402, F401  # registers its kinds
import validation_kernels  # noqa: E402
from mutations import REGISTRY, Kind, Mutant  # noqa: E402

from fusion_advisor import runtime  # noqa: E402
from fusion_advisor.records import BandwidthPoint, Ceilings, ValidationResult  # noqa: E402
from fusion_advisor.runtime import cpu_kernels  # noqa: E402
from fusion_advisor.validation import contractions, cuda_compiler, isolated, ladder  # noqa: E402
from fusion_advisor.validation.session import Tally  # noqa: E402

# Slow enough that no honest kernel is faster, fast enough that one without work is.
CEILINGS = Ceilings(
    device="cpu", name="a slow machine", dispatch_us=1.0, gflops=(),
    bandwidth=(BandwidthPoint(working_set_bytes=1 << 40, gb_per_s=40.0),),
)  # fmt: skip
SLOWER = 3.0  # a right kernel that takes this many times eager's time is shown to be slow
FAULTY_CALLS = 4  # chains for each kind of fault around the kernels
_NO_KERNEL = ("does not compile", "TypingError", "LoweringError", "UnsupportedError")
_FOLDERS = ("validation", "runtime", "ops")


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: "rejected", "slower", "equivalent" or "survived"."""

    outcome: str
    rung: str
    detail: str
    shown: str
    seconds: float


def judge(mutant: Mutant) -> Verdict:
    """Show that it is wrong, then ask the validator."""
    started = time.perf_counter()
    shown = mutation_witness.shown_wrong(mutant)
    if not shown:
        return Verdict("equivalent", "", "", "", time.perf_counter() - started)
    result = validated(mutant)
    said, rung, detail = outcome(mutant, result)
    return Verdict(said, rung, detail, shown, time.perf_counter() - started)


def validated(mutant: Mutant) -> ValidationResult:
    """The ladder, as far as the fault's part of the module goes.

    At first without the dear rungs that see nothing of most faults in that part.  To fail one rung
    is to be rejected; only what passes the others is asked of the whole ladder.
    """
    limit = mutant.kind.limit_s or isolated.TIMEOUT_S
    with mock.patch.object(isolated, "TIMEOUT_S", limit):
        if not mutant.kind.measured:
            result = partly_validated(mutant)
            if result.status == "failed":
                return result
        return _validated(mutant)


def partly_validated(mutant: Mutant) -> ValidationResult:
    """The ladder without the rungs that see nothing of most faults in that part."""
    with _fewer_rungs(mutant):
        return _validated(mutant)


def _validated(mutant: Mutant) -> ValidationResult:
    kind = mutant.kind
    result: ValidationResult = validation_kernels.validate(
        mutant.problem,
        targets=("cuda",) if kind.part == "cuda" else ("cpu",),
        measure=kind.measured,
        ceilings=CEILINGS if kind.measured else None,
    )
    return result


@contextmanager
def _fewer_rungs(mutant: Mutant) -> Iterator[None]:
    """One architecture, no counting of multiply-adds, no kernels alone where they are right."""
    with ExitStack() as changes:

        def change(owner: Any, name: str, value: Any) -> None:
            changes.enter_context(mock.patch.object(owner, name, value))

        change(cuda_compiler, "ARCHITECTURES", cuda_compiler.ARCHITECTURES[-1:])
        change(ladder, "_compile", _compiled_only)
        change(ladder, "_contraction", lambda kernel, findings: "left out")
        change(contractions, "contraction_problem", lambda kernel, target: "")
        if mutant.kind.part == "module" and mutations.kernels_are_right(mutant):
            change(isolated, "run_cpu", lambda session: Tally())
            change(runtime, "cpu_kernel", _compiled_once)
        yield


def _compiled_only(session: Any, findings: Any, architecture: tuple[int, int]) -> str:
    """The kernel's IR, without what NVVM and the assembler make of it."""
    with mock.patch.object(cuda_compiler, "assemble", return_value=""):
        findings.compiled.append(cuda_compiler.compile_cuda(session.kernel, architecture))
    return "left out"


def _compiled_once(function: Any) -> cpu_kernels.CpuKernel:
    """The kernel that another module holds in the very same words."""
    code = function.__code__
    key = (code.co_code, code.co_consts, code.co_names, code.co_varnames)
    return _kernels.setdefault(key, cpu_kernels.CpuKernel(function))


_kernels: dict[Any, cpu_kernels.CpuKernel] = {}


def outcome(mutant: Mutant, result: ValidationResult) -> tuple[str, str, str]:
    """What a validation says of a mutant, at which rung, in which words."""
    if result.status == "failed":
        rung = next(rung for rung in result.rungs if rung.status == "failed")
        if any(word in rung.detail for word in _NO_KERNEL) and mutant.kind.part != "module":
            return "equivalent", "", f"does not compile: {rung.detail[:200]}"
        return "rejected", rung.name, rung.detail
    timing = next(iter(result.timings), None)
    if mutant.kind.measured and timing and timing.fused_us > SLOWER * timing.eager_us:
        return "slower", "timing", f"{timing.fused_us / timing.eager_us:.1f} times eager's time"
    return "survived", "", result.status


def right_kernels_rejected(chains: list[str]) -> dict[str, str]:
    """What the whole ladder holds against the kernels that faults are planted in: nothing."""
    found = {}
    for chain in chains:
        result = validation_kernels.validate(mutation_kernels.right(chain), measure=False)
        if result.status != "passed":
            found[chain] = "; ".join(r.detail for r in result.rungs if r.status == "failed")
    return found


def planted(kinds: list[Kind], chains: list[str], *, most: int, spread: int) -> list[Mutant]:
    """All mutants: of each kind at most ``most`` in a chain, in at most ``spread`` chains."""
    found = []
    for number, kind in enumerate(kinds):
        chosen = 0
        # Each kind begins with another chain, so that few chains per kind are many in all.
        for place in range(len(chains)):
            chain = chains[(number + place) % len(chains)]
            if (chain == "large") is not kind.measured or chosen >= _most_chains(kind, spread):
                continue
            problem = mutation_kernels.right(chain)
            if kind.exact_only and not mutation_witness.is_exact(problem):
                continue
            planted_here = list(mutations.mutants(chain, problem, kind, most=most))
            chosen += bool(planted_here)
            found += planted_here
    return found


def _most_chains(kind: Kind, spread: int) -> int:
    """Faults around the kernels do not depend on what is computed; one that hangs costs time."""
    if kind.limit_s:
        return 1
    return min(spread, FAULTY_CALLS) if kind.part == "module" else spread


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((ROOT / "fusion_advisor" / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def summary(entries: dict[str, dict[str, Any]], rejected: dict[str, str]) -> dict[str, Any]:
    """Counts by outcome, kind and rung, and every survivor with its text.

    What is right but slow is no fault that a validator rejects: its measurement says so, and a
    kernel that slows its call down is taken back.  It is counted apart, as is what nothing shows
    to be wrong.
    """
    outcomes = Counter(entry["outcome"] for entry in entries.values())
    real = [e for e in entries.values() if e["outcome"] in ("rejected", "survived")]
    return {
        "kinds": len({entry["kind"] for entry in real}),
        "mutants": len(real),
        "rejected": outcomes["rejected"],
        "right_but_slower_excluded": outcomes["slower"],
        "survived": outcomes["survived"],
        "equivalent_excluded": outcomes["equivalent"],
        "by_rung": dict(Counter(e["rung"] for e in real if e["rung"]).most_common()),
        "by_kind": {
            kind: dict(Counter(e["outcome"] for e in entries.values() if e["kind"] == kind))
            for kind in sorted({e["kind"] for e in entries.values()})
        },
        "right_kernels_rejected": rejected,
        "survivors": {n: e for n, e in entries.items() if e["outcome"] == "survived"},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="", help="only kinds whose name holds this")
    parser.add_argument("--chain", default="", help="only chains whose name holds this")
    parser.add_argument("--part", default="", choices=["", "cpu", "cuda", "module"])
    parser.add_argument("--most", type=int, default=2, help="mutants of a kind per chain and part")
    parser.add_argument("--spread", type=int, default=99, help="chains for a kind and part")
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--again", action="store_true", help="ask all again")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants.json")
    options = parser.parse_args()
    os.nice(options.nice)
    kinds = [
        kind for kind in REGISTRY.kinds
        if options.kind in kind.name and options.part in ("", kind.part)
    ]  # fmt: skip
    chains = [name for name in mutation_kernels.CASES if options.chain in name]
    wanted = planted(kinds, chains, most=options.most, spread=options.spread)
    rejected = right_kernels_rejected(sorted({mutant.chain for mutant in wanted}))
    print(f"right kernels rejected: {rejected or 'none'}", flush=True)
    state = options.out.with_suffix(".state.json")
    mark = _fingerprint()
    known: dict[str, Any] = {}
    if state.exists() and not options.again:
        known = {n: e for n, e in json.loads(state.read_text()).items() if e["mark"] == mark}
    options.out.parent.mkdir(exist_ok=True)
    entries: dict[str, dict[str, Any]] = {}
    for number, mutant in enumerate(wanted, start=1):
        entry = known.get(mutant.name)
        if entry is None or entry["hash"] != mutant.problem.kernel.hash:
            verdict = judge(mutant)
            entry = {"kind": mutant.kind.name, "part": mutant.kind.part, "chain": mutant.chain,
                     "hash": mutant.problem.kernel.hash, "mark": mark, **vars(verdict)}  # fmt: skip
            if verdict.outcome == "survived":
                entry["text"] = mutant.problem.kernel.text
            print(f"{number}/{len(wanted)} {verdict.outcome:10} {mutant.name}: {verdict.rung} "
                  f"{verdict.detail[:150]}", flush=True)  # fmt: skip
        entries[mutant.name] = known[mutant.name] = entry
        if number % 20 == 0 or number == len(wanted):
            state.write_text(json.dumps(known))
            options.out.write_text(json.dumps(summary(entries, rejected), indent=1))
    found = summary(entries, rejected)
    print({key: found[key] for key in ("kinds", "mutants", "rejected", "survived",
                                       "right_but_slower_excluded",
                                       "equivalent_excluded", "by_rung")})  # fmt: skip
    for name in found["survivors"]:
        print("SURVIVED", name)
    return 1 if found["survived"] or rejected else 0


if __name__ == "__main__":
    sys.exit(main())
