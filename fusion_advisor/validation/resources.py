"""What the CUDA toolchain says about a compiled kernel: registers, spills, machine code."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from fusion_advisor.errors import ValidationError
from fusion_advisor.records import Resources
from fusion_advisor.validation.cuda_compiler import CompiledKernel

_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_STACK = re.compile(r"(\d+) bytes stack frame")
_PTX_FMA = re.compile(r"^\s*fma\.", re.M)


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


def link(ptx: str, architecture: tuple[int, int]) -> tuple[bytes, str]:
    """Machine code of ``ptx`` and the linker's verbose log."""
    return link_all((ptx,), architecture)


def link_all(texts: Sequence[str], architecture: tuple[int, int]) -> tuple[bytes, str]:
    """One piece of machine code of PTX texts that share no name, and the linker's verbose log."""
    from cuda.bindings import nvjitlink  # type: ignore[import-not-found,unused-ignore]

    options = [f"-arch=sm_{architecture[0]}{architecture[1]}", "-verbose", "-O3"]
    handle = nvjitlink.create(len(options), options)
    try:
        for number, text in enumerate(texts):
            data = text.encode()
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), f"kernel{number}")
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
