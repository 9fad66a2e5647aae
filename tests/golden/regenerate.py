"""Write the golden kernel texts anew: ``python tests/golden/regenerate.py``, then read the diff."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "unit"), str(HERE.parent.parent)]

if __name__ == "__main__":
    from golden_kernels import GOLDEN, golden_text

    for name in GOLDEN:
        path = HERE / "data" / f"{name}.py.txt"
        path.write_text(golden_text(name), encoding="utf-8", newline="\n")
        print(path)
