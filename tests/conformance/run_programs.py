"""Draws random programs and holds their kernels against eager; writes build/programs.json.

    python tests/conformance/run_programs.py [--count 100] [--seed 5] [--from 0] [--most-steps 30]
        [--output build/programs.json]

The file keeps what was counted and each failure with its program as text.  Exits with 1 where a
program fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from program_checks import Tally, check_numbered


def main() -> int:
    """Parse, draw, check, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--most-steps", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("build/programs.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    total, failures, started = Tally(), [], time.monotonic()
    for number in range(options.first, options.first + options.count):
        try:
            total.add(check_numbered(options.seed, number, options.most_steps))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            failures.append({"number": number, "error": text, "notes": error.__notes__})
            print(f"program {number}: {text.splitlines()[0][:200]}", flush=True)
        summary = {
            "seed": options.seed,
            "from": options.first,
            "tried": number + 1 - options.first,
            "most_steps": options.most_steps,
            "seconds": round(time.monotonic() - started, 1),
            **total.plain(),
            "failures": failures,
        }
        # After every program: an interrupted run keeps what it has seen.
        options.output.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(
        f"seed {options.seed}: {options.count} programs in {summary['seconds']} s, {total.kernels} "
        f"kernels, {total.kernel_runs} runs, {total.elements} elements, {total.exact} to the bit, "
        f"{total.discontinuous} at a discontinuity; {len(failures)} programs failed"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
