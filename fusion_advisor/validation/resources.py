"""What the CUDA toolchain says about a compiled kernel: registers, spills, fused multiply-adds."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fusion_advisor.errors import ValidationError
from fusion_advisor.records import Resources
from fusion_advisor.validation.cuda_compiler import (
    CompiledKernel,
    assemble,
    protected,
    stray_contractions,
)

_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_STACK = re.compile(r"(\d+) bytes stack frame")
_PTX_FMA = re.compile(r"^\s*fma\.\w+(?:\.ftz)?\.f(?:32|64)\b", re.M)
# A product plus -0.0 is the product to the bit: so the assembler writes the negative of one.
_SASS_FMA = re.compile(r"\b(?:FFMA|DFMA)\b(?![^;\n]*,\s*-RZ\s*;)")
_DISASSEMBLY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Contractions:
    """What was seen of fused multiply-adds in one architecture's PTX.

    ``stray`` names products of the kernel's own text that are added to something;
    ``in_ptx`` counts all fused multiply-adds and ``inside_maths`` those that remain
    when the kernel's own arithmetic cannot contract (``uncontracted`` is that PTX).
    """

    stray: tuple[str, ...]
    in_ptx: int
    inside_maths: int
    uncontracted: str

    def __str__(self) -> str:
        """One clause for a report."""
        own = self.in_ptx - self.inside_maths
        text = f"{self.in_ptx} in PTX, {self.inside_maths} of them asked for or inside maths"
        if own:
            text += f", {own} where a maths function's last product meets the next addition"
        return text


def link_report(compiled: CompiledKernel) -> Resources:
    """Link ``compiled`` to machine code and read the linker's report.

    Raises ``ValidationError`` when the linker refuses the PTX.
    """
    cubin, log = link(compiled.ptx, compiled.architecture)
    used, spills, stack = _USED.search(log), _SPILLS.search(log), _STACK.search(log)
    if used is None:
        raise ValidationError(f"the linker reported no registers: {log[:300]!r}")
    spill_bytes = sum(int(group) for group in spills.groups()) if spills else 0
    if not spills and stack:
        spill_bytes = int(stack.group(1))
    return Resources(
        architecture=compiled.architecture_name,
        registers=int(used.group(1)),
        spill_bytes=spill_bytes,
        shared_bytes=int(used.group(2) or 0),
        fused_multiply_adds=len(_PTX_FMA.findall(compiled.ptx)),
        cubin_bytes=len(cubin),
    )


def contractions(compiled: CompiledKernel) -> Contractions:
    """Look for fused multiply-adds that no op asked for."""
    uncontracted = assemble(protected(compiled.modules), compiled.architecture)
    return Contractions(
        stray=stray_contractions(compiled),
        in_ptx=len(_PTX_FMA.findall(compiled.ptx)),
        inside_maths=len(_PTX_FMA.findall(uncontracted)),
        uncontracted=uncontracted,
    )


def link(ptx: str, architecture: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code of ``ptx`` and the linker's verbose log."""
    from cuda.bindings import nvjitlink  # type: ignore[import-not-found,unused-ignore]

    options = [f"-arch=sm_{architecture[0]}{architecture[1]}", "-verbose", "-O3"]
    handle = nvjitlink.create(len(options), options)
    try:
        text = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
        nvjitlink.complete(handle)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
    except nvjitlink.nvJitLinkError as error:
        raise ValidationError(f"the linker refused the PTX: {error}") from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.decode(errors="replace")


def disassembler() -> Path | None:
    """``nvdisasm`` from the Python packages or the PATH, or None."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except ModuleNotFoundError:
        spec = None
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for candidate in sorted(Path(place).glob("cu*/bin/nvdisasm*")):
            if os.access(candidate, os.X_OK):
                return candidate
    on_path = shutil.which("nvdisasm")
    return Path(on_path) if on_path else None


class Disassembly:
    """Counts fused multiply-adds in machine code, in the background (half a second each).

    Compares a kernel with its uncontracted twin: what the assembler contracted
    on its own is the difference.  ``close`` ends what still runs.
    """

    def __init__(self, compiled: CompiledKernel, seen: Contractions, tool: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fusion_advisor_")
        self._expected = seen.in_ptx - seen.inside_maths
        self._running: list[subprocess.Popen[str]] = []
        for number, ptx in enumerate((compiled.ptx, seen.uncontracted)):
            path = Path(self._folder.name) / f"{number}.cubin"
            path.write_bytes(link(ptx, compiled.architecture)[0])
            self._running.append(
                subprocess.Popen(
                    [str(tool), "-c", str(path)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def report(self) -> str:
        """What was counted.  Raises ``ValidationError`` where the assembler contracted."""
        counts = []
        for process in self._running:
            output, errors = process.communicate(timeout=_DISASSEMBLY_TIMEOUT_S)
            if process.returncode != 0:
                raise ValidationError(f"nvdisasm failed: {errors[:300]}")
            counts.append(len(_SASS_FMA.findall(output)))
        own = counts[0] - counts[1]
        if own > self._expected:
            raise ValidationError(
                f"the assembler made {own - self._expected} fused multiply-adds that the PTX "
                "does not have: write fmul_rn"
            )
        return f"{counts[0]} FMA instructions, {counts[1]} with contraction forbidden"

    def close(self) -> None:
        """End the disassemblers and remove their files."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._folder.cleanup()
