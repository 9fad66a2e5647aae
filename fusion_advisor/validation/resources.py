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
_SASS_FMA = re.compile(r"\b(?:FFMA|DFMA)\b")
_DISASSEMBLY_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Contractions:
    """What was seen of fused multiply-adds.

    ``stray`` names products of the kernel's own text that are added to something;
    ``in_ptx`` counts all in the PTX and ``inside_maths`` those that remain when
    the kernel's own arithmetic cannot contract.  ``in_machine_code`` holds the
    same two counts for machine code, None where it was not disassembled.
    """

    stray: tuple[str, ...]
    in_ptx: int
    inside_maths: int
    in_machine_code: tuple[int, int] | None

    def __str__(self) -> str:
        """One clause for a report."""
        own = self.in_ptx - self.inside_maths
        text = f"{self.in_ptx} in PTX, {self.inside_maths} of them inside maths functions"
        if own:
            text += f", {own} where a maths function's last product meets the next addition"
        if self.in_machine_code is None:
            return text
        code, protected_code = self.in_machine_code
        return f"{text}; {code} in machine code, {protected_code} without contraction"


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


def contractions(compiled: CompiledKernel, *, machine_code: bool = False) -> Contractions:
    """Look for fused multiply-adds that no op asked for.

    ``machine_code`` disassembles as well, where ``nvdisasm`` is installed (half a second).
    """
    uncontracted = assemble(protected(compiled.modules), compiled.architecture)
    counts = None
    tool = disassembler() if machine_code else None
    if tool is not None:
        texts = (compiled.ptx, uncontracted)
        counts = _count_sass(tool, [link(text, compiled.architecture)[0] for text in texts])
    return Contractions(
        stray=stray_contractions(compiled),
        in_ptx=len(_PTX_FMA.findall(compiled.ptx)),
        inside_maths=len(_PTX_FMA.findall(uncontracted)),
        in_machine_code=counts,
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


def _count_sass(tool: Path, cubins: list[bytes]) -> tuple[int, int]:
    """FMA instructions in two pieces of machine code, disassembled side by side."""
    with tempfile.TemporaryDirectory(prefix="fusion_advisor_") as folder:
        running = []
        for number, cubin in enumerate(cubins):
            path = Path(folder) / f"{number}.cubin"
            path.write_bytes(cubin)
            running.append(
                subprocess.Popen(
                    [str(tool), "-c", str(path)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        counts = []
        try:
            for process in running:
                output, errors = process.communicate(timeout=_DISASSEMBLY_TIMEOUT_S)
                if process.returncode != 0:
                    raise ValidationError(f"nvdisasm failed: {errors[:300]}")
                counts.append(len(_SASS_FMA.findall(output)))
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    return counts[0], counts[1]
