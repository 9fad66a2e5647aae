"""Contractions in the machine code of CUDA kernels (SASS), many kernels per disassembly.

Starting the disassembler takes longer than what it does, so kernels wait until there are enough.
Each is put in twice, as it is and with contraction forbidden, see ``contractions``; what was found
is kept by a digest of both texts, and not looked for again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fusion_advisor.errors import ValidationError
from fusion_advisor.validation import resources
from fusion_advisor.validation.contractions import SASS_FMA

ENOUGH = 48  # kernels for one disassembly
TIMEOUT_S = 600.0
KEPT = "sass.json"

_ENTRY = re.compile(r"\.entry ([\w$]+)\(")
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$]+)", re.M)
_TOOLS = ("nvidia-cuda-nvdisasm", "nvidia-nvjitlink")


class Disassembler:
    """Collects kernels' PTX.  ``found`` holds what is known: "" or the problem, by digest."""

    def __init__(self, known: dict[str, str]) -> None:
        self.found = known
        self._waiting: dict[str, tuple[str, str]] = {}

    def add(self, ptx: str, uncontracted: str) -> str:
        """A kernel's PTX, and the same with contraction forbidden; gives its digest."""
        versions = [importlib.metadata.version(name) for name in _TOOLS]
        digest = hashlib.sha256("\n".join([ptx, uncontracted, *versions]).encode()).hexdigest()[:20]
        if digest not in self.found:
            self._waiting[digest] = (ptx, uncontracted)
        return digest

    @property
    def full(self) -> bool:
        """Whether enough kernels wait."""
        return len(self._waiting) >= ENOUGH

    def flush(self, architecture: tuple[int, int]) -> dict[str, str]:
        """Disassemble what waits."""
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return {}
        counts = count_multiply_adds([text for pair in waiting.values() for text in pair],
                                     architecture)  # fmt: skip
        found = {}
        for number, digest in enumerate(waiting):
            own = counts[2 * number] - counts[2 * number + 1]
            found[digest] = f"the assembler made {own} fused multiply-adds" if own > 0 else ""
        self.found |= found
        return found


def count_multiply_adds(texts: list[str], architecture: tuple[int, int]) -> list[int]:
    """The fused multiply-adds in the machine code of each PTX text, which holds one kernel."""
    tool = resources.disassembler()
    if tool is None:
        raise ValidationError("nvdisasm is not installed")
    renamed = []
    for number, text in enumerate(texts):
        (name,) = _ENTRY.findall(text)
        renamed.append(text.replace(name, f"kernel_{number}"))
    with tempfile.TemporaryDirectory(prefix="fusion_advisor_") as folder:
        cubin = Path(folder) / "kernels.cubin"
        cubin.write_bytes(resources.link_all(renamed, architecture)[0])
        done = subprocess.run(
            [tool, "-c", cubin], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        )
    parts = _SECTION.split(done.stdout)
    counts = {
        name: len(SASS_FMA.findall(code))
        for name, code in zip(parts[1::2], parts[2::2], strict=True)
    }
    return [counts[f"kernel_{number}"] for number in range(len(texts))]


def read_known(folder: Path) -> dict[str, str]:
    """What earlier runs found."""
    try:
        known: dict[str, str] = json.loads((folder / KEPT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known


def keep(folder: Path, found: dict[str, str]) -> None:
    """Add to what is known."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{KEPT}.part"
    part.write_text(json.dumps(read_known(folder) | found, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / KEPT)


def all_known(digests: Iterable[str], known: dict[str, str]) -> bool:
    """Whether each kernel was looked through."""
    return all(digest in known for digest in digests)
