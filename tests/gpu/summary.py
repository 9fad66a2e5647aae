"""One table and one JSON of what the parts of ``run.sh`` left: ``summary.py FOLDER``."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = ("correct", "race", "layouts", "host", "models")
Row = dict[str, Any]


def main(folder: Path) -> int:
    """Print the table, write FOLDER/gpu.json; 1 where a part is missing or has a failed row."""
    found: dict[str, Any] = {}
    for part in PARTS:
        try:
            found[part] = json.loads((folder / f"gpu-{part}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            found[part] = {"rows": [], "missing": f"{type(error).__name__}: {error}"}
    (folder / "gpu.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(text(found))
    whole = all(data["rows"] and "missing" not in data for data in found.values())
    return int(not whole or any("failed" in row for data in found.values() for row in data["rows"]))


def text(found: dict[str, Any]) -> str:
    """Markdown, part by part: means first, then what failed."""
    lines = []
    for part, data in found.items():
        rows = [row for row in data["rows"] if "failed" not in row]
        lines += [f"## {part}", ""]
        if "missing" in data:
            lines.append(f"No figures: {data['missing']}")
        else:
            lines.append(f"{data['device']}: {len(rows)} of {len(data['rows'])} rows whole.")
            lines += ["", *table(rows)] if rows else []
            lines += [f"- {mean}" for mean in means(part, rows)]
        lines += [f"- failed: {row['name']}: {row['failed']}" for row in data["rows"]
                  if "failed" in row]  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> list[str]:
    """Rows as a Markdown table of all figures that some row has."""
    keys = list(dict.fromkeys(
        key for row in rows for key, value in row.items() if isinstance(value, (int, float))
    ))  # fmt: skip
    lines = [f"| | {' | '.join(keys)} |", f"|---|{'---:|' * len(keys)}"]
    for row in rows:
        cells = [f"{row[key]:.4g}" if key in row else "–" for key in keys]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return lines


def means(part: str, rows: Sequence[Row]) -> list[str]:
    """Geometric means of the ratios that a reader asks for."""
    pairs = {
        "race": (
            ("eager_us", "ours_fast_us", "as fast as eager"),
            ("compile_us", "ours_fast_us", "as fast as torch.compile"),
            ("max_autotune_us", "ours_fast_us", "as fast as torch.compile with max-autotune"),
            ("ours_fast_gb_per_s", "copy_gb_per_s", "of a device copy's bandwidth"),
        ),
        "host": (
            ("numba_launch_us", "ours_us", "as cheap as numba's launch"),
            ("eager_3_ops_us", "ours_us", "as cheap as the three ops"),
        ),
        "models": (("before_us", "with_us", "as fast as the model was"),),
    }.get(part, ())
    found = []
    for over, under, what in pairs:
        both = [row for row in rows if row.get(over) and row.get(under)]
        if both:
            mean = math.exp(statistics.fmean(math.log(row[over] / row[under]) for row in both))
            found.append(f"{mean:.2f} × {what} (geometric mean of {len(both)})")
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "build")))
