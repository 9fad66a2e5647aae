"""Draws random programs and holds their kernels against eager; writes build/programs.json.

    python tests/conformance/run_programs.py [--count 100] [--seed 5] [--from 0] [--most-steps 30]
        [--again] [--minutes 60] [--folder build/programs] [--output build/programs.json]

Each program's outcome is kept in the folder, by seed, as soon as it is known: a second call goes
on where the first one stopped, and tries what failed once more.  An outcome counts for as long as
the program of its number is drawn alike; those of earlier sources are counted apart, and made anew
with --again.  The output keeps what was counted and each failure with its program as text.  Exits
with 1 where a program fails, or more than a thousandth of all elements lie at jumps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
sys.path.insert(0, str(UNIT))

import numba  # noqa: E402
import torch  # noqa: E402
from drawn_programs import forms  # noqa: E402
from program_checks import Tally, check_numbered  # noqa: E402

MOST_AT_JUMPS = 0.001  # of the elements: either side of a jump is right there
ENOUGH_ELEMENTS = 5_000_000  # for a share to say something
_DRAWING = (UNIT / "drawn_programs.py", UNIT / "random_values.py")
_CHECKING = (UNIT / "program_checks.py", UNIT / "slow_checker.py")


def _digest(files: Iterable[Path], *more: object) -> str:
    found = hashlib.sha256(repr((torch.__version__, numba.__version__, *more)).encode())
    for file in sorted(files):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


class Outcomes:
    """What became of each program of a seed: one JSON line each, the last one counts."""

    def __init__(self, folder: Path, seed: int, most_steps: int) -> None:
        drawing = _digest(_DRAWING, forms(), most_steps)
        product = (ROOT / "fusion_advisor").rglob("*.py")
        self.sources = _digest((*_DRAWING, *_CHECKING, *product), most_steps)
        self.path = folder / f"seed-{seed}-{most_steps}-{drawing}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.known: dict[int, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                outcome = json.loads(line)
                self.known[outcome["number"]] = outcome

    def done(self, number: int, *, again: bool) -> bool:
        """Whether a program need not be tried."""
        outcome = self.known.get(number)
        if outcome is None or "error" in outcome:
            return False
        return not again or outcome["sources"] == self.sources

    def keep(self, outcome: dict[str, Any]) -> None:
        """Add one, on disk as well."""
        self.known[outcome["number"]] = outcome
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")

    def attempt(self, seed: int, number: int, most_steps: int) -> None:
        """Draw and check one program."""
        started = time.process_time()
        outcome: dict[str, Any] = {"number": number, "sources": self.sources}
        try:
            outcome["tally"] = check_numbered(seed, number, most_steps).plain()
        except Exception as error:
            outcome["error"] = f"{type(error).__name__}: {error}"
            outcome["notes"] = getattr(error, "__notes__", [])
            print(f"program {number}: {outcome['error'].splitlines()[0][:200]}", flush=True)
        self.keep({**outcome, "cpu_s": round(time.process_time() - started, 2)})


def summary(outcomes: Outcomes, numbers: Iterable[int]) -> dict[str, Any]:
    """All that is known of these programs."""
    found = [outcomes.known[number] for number in numbers if number in outcomes.known]
    total = Tally()
    for one in found:
        if "tally" in one:
            total.add(Tally.of(one["tally"]))
    return {
        "tried": len(found),
        "by_earlier_sources": sum(one["sources"] != outcomes.sources for one in found),
        "cpu_minutes": round(sum(one["cpu_s"] for one in found) / 60, 1),
        **total.plain(),
        "failures": [
            {key: one[key] for key in ("number", "error", "notes")}
            for one in found
            if "error" in one
        ],
    }


def main() -> int:
    """Parse, draw, check, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--most-steps", type=int, default=30)
    parser.add_argument("--again", action="store_true", help="also what earlier sources passed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--folder", type=Path, default=Path("build/programs"))
    parser.add_argument("--output", type=Path, default=Path("build/programs.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    outcomes = Outcomes(options.folder, options.seed, options.most_steps)
    numbers = range(options.first, options.first + options.count)
    started = time.monotonic()
    for number in numbers:
        if time.monotonic() - started > 60 * options.minutes:
            break
        if not outcomes.done(number, again=options.again):
            outcomes.attempt(options.seed, number, options.most_steps)
    found = {"seed": options.seed, "from": options.first, **summary(outcomes, numbers)}
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    judged = max(1, found["elements"])
    print(
        f"seed {options.seed}: {found['tried']} programs ({found['by_earlier_sources']} by earlier "
        f"sources) in {found['cpu_minutes']} CPU minutes, {found['with_kernel']} with a kernel, "
        f"{found['kernels']} kernels, {found['kernel_runs']} runs, {found['elements']} elements, "
        f"{found['exact']} to the bit, {found['discontinuous']} at a discontinuity "
        f"({found['discontinuous'] / judged:.3%}); {len(found['failures'])} programs failed"
    )
    too_many = judged >= ENOUGH_ELEMENTS and found["discontinuous"] > MOST_AT_JUMPS * judged
    return 1 if found["failures"] or too_many else 0


if __name__ == "__main__":
    raise SystemExit(main())
