"""Where benchmarks leave their figures: one row each in ``build/bench.json``, and a verdict."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def write_row(name: str, figures: dict[str, Any], path: Path | None = None) -> None:
    """Put a row in place of the one of the same name; other rows stay."""
    path = path or Path(os.environ.get("BENCH_JSON", ROOT / "build" / "bench.json"))
    rows: dict[str, Any] = {}
    try:
        rows = {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet, or not ours
    rows[name] = {"name": name, **figures}
    saved = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "rows": sorted(rows.values(), key=lambda row: str(row["name"])),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(saved, indent=2) + "\n", encoding="utf-8")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def holds(what: str, value: float, *, at_most: float | None = None, least: float = 0.0) -> bool:
    """Print a bound and whether it is kept."""
    kept = value >= least and (at_most is None or value <= at_most)
    bound = f"at least {least:g}" if at_most is None else f"at most {at_most:g}"
    print(f"  {'ok    ' if kept else 'MISSED'} {what}: {value:.4g} ({bound})")
    return kept
