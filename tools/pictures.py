"""Screenshots of the browser tests, made small, as the pictures of the documentation.

python tools/pictures.py    from build/screenshots to docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FROM, TO = ROOT / "build" / "screenshots", ROOT / "docs" / "images"
# Screenshot to picture: what docs/jupyterlab.md shows.
PICTURES = {
    "mark-and-tooltip": "lab-mark",
    "preview": "lab-preview",
    "fused": "lab-fused",
    "panel-light": "lab-panel",
    "panel-dark": "lab-panel-dark",
    "library-model": "lab-library-model",
}
MAX_BYTES = 200_000
COLOURS = 128  # pages of flat colours and text; more are not seen


def main() -> int:
    """Write the pictures; 1 with the names of screenshots that are missing or too big."""
    problems = []
    for name, picture in PICTURES.items():
        source, target = FROM / f"{name}.png", TO / f"{picture}.png"
        if not source.exists():
            problems.append(f"{source} is missing: run the browser tests (make pictures)")
            continue
        with Image.open(source) as image:
            image.convert("RGB").quantize(COLOURS).save(target, optimize=True)
        if target.stat().st_size > MAX_BYTES:
            problems.append(f"{target} has {target.stat().st_size} bytes, more than {MAX_BYTES}")
    print("\n".join(problems) or f"{len(PICTURES)} pictures in {TO}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
