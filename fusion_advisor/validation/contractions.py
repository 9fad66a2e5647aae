"""Fused multiply-adds that no op asked for: in PTX, in SASS, and in the CPU kernel's assembly.

Eager rounds between ops, so a kernel may hold a fused multiply-add only where its program has one
(``fma``), or inside one maths function.  Counting all of them says nothing, since maths functions
and divisions are made of them.  So each is counted against a twin of the same kernel that cannot
be contracted; what is more than in the twin is stray.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusion_advisor.errors import ValidationError
from fusion_advisor.records import KernelSource, Target
from fusion_advisor.validation import cuda_compiler, resources
from fusion_advisor.validation.arrays import numpy_dtype
from fusion_advisor.validation.cuda_compiler import (
    CompiledKernel,
    assemble,
    protected,
    stray_contractions,
)

KEPT = 512  # kernels whose result is remembered
PTX_FMA = re.compile(r"^\s*(?:@!?%p\d+ )?fma\.", re.M)
# A product plus -0.0 is the product to the bit: so the assembler writes the negative of one.
# HFMA2 of nothing but zeros and immediates is how it loads a constant.
SASS_FMA = re.compile(r"\b(?:FFMA2?|DFMA)\b(?![^;\n]*,\s*-RZ\s*;)|\bHFMA2\b(?![^;\n]*-RZ, RZ)")
_PRODUCT = re.compile(r"\bfmul\b|fma")  # in LLVM IR
_SASS_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$]+)", re.M)
MACHINE_FMA = re.compile(
    r"\b(?:vfn?m(?:add|sub)(?:add|sub)?\d{3}[ps][sdh]"  # x86
    r"|fn?m(?:add|sub)|fml[as])\b"  # ARM
)
_FAST_FLAGS = re.compile(
    r"\b(fmul|fadd|fsub|fdiv|frem|fneg|fcmp|call|select|phi)"
    r"((?: (?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc))+)\b"
)
_OWN_FMA = frozenset({"fma", "fmaf", "fma_rn", "fmaf_rn"})
_DISASSEMBLY_TIMEOUT_S = 20.0


def contraction_problem(kernel: KernelSource, target: Target) -> str:
    """A fused multiply-add of ``kernel`` that its program does not have, or "".

    Measured so, on either target:

    1. The kernel's own text calls a fused multiply-add as often as its program has the opcode.
    2. ``cpu``: the serial twin is compiled anew with the options that calls use, and the fused
       multiply-adds in its assembly are counted; then in the assembly of the same optimised IR
       without any flag that lets LLVM contract (``contract``, ``reassoc``, ``fast``).  The counts
       must be equal, and the IR must hold no ``llvm.fmuladd``.
    3. ``cuda``, for every architecture of ``cuda_compiler.ARCHITECTURES``: no product of the
       kernel's own IR may be read by an addition (``stray_contractions``); the PTX may hold no
       more ``fma`` than that of the same IR with every multiplication and addition of the kernel
       made uncontractable (``protected``).  For the last architecture, where ``nvdisasm`` is
       installed, the SASS of both is compared in the same way: the assembler contracts as well.

    The result is kept by the kernel's hash.  A kernel without that target has no problem.
    Raises ``MissingDependencyError`` where the compiler is not installed, ``ValidationError``
    where it refuses the kernel.
    """
    name = kernel.cpu_name if target == "cpu" else kernel.cuda_name
    if not name:
        return ""
    key = (kernel.hash, target)
    if key not in _known:
        if len(_known) >= KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = asked_for_problem(kernel, name) or (
            cpu_contractions(kernel).problem if target == "cpu" else _cuda_problem(kernel)
        )
    return _known[key]


_known: dict[tuple[str, str], str] = {}


def asked_for_problem(kernel: KernelSource, name: str) -> str:
    """How the fused multiply-adds that a kernel's text asks for are not its program's, or ""."""
    wanted = sum(statement.opcode == "fma" for statement in kernel.program.statements)
    for node in ast.walk(ast.parse(kernel.text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            calls = (one.func for one in ast.walk(node) if isinstance(one, ast.Call))
            found = sum(isinstance(one, ast.Attribute) and one.attr in _OWN_FMA for one in calls)
            if found != wanted:
                return f"{name} asks for {found} fused multiply-adds, its program for {wanted}"
    return ""


# --- CPU ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineContractions:
    """Fused multiply-adds in a CPU kernel's assembly: as it is, and where none can be contracted.

    ``loose`` counts multiply-adds in its IR that LLVM may or may not fuse.  Without ``products``
    the optimised IR multiplies no floats: there is nothing to fuse.
    """

    found: int
    uncontracted: int
    loose: int
    products: bool = True

    @property
    def problem(self) -> str:
        """What is wrong with these numbers, or ""."""
        if self.loose:
            return f"the CPU kernel's IR holds {self.loose} llvm.fmuladd"
        if self.found != self.uncontracted:
            return (
                f"the CPU kernel's machine code holds {self.found} fused multiply-adds, "
                f"{self.uncontracted} with contraction forbidden"
            )
        return ""

    def __str__(self) -> str:
        """One clause for a report."""
        return f"{self.found} in machine code, {self.uncontracted} with contraction forbidden"


def cpu_contractions(kernel: KernelSource, *, parallel: bool = False) -> MachineContractions:
    """Count the fused multiply-adds of a CPU kernel's twin; see ``contraction_problem``."""
    from fusion_advisor.runtime import cpu_kernels, load_kernel

    found = load_kernel(kernel.text, kernel.entry, kernel.hash).get(kernel.cpu_name)
    if not isinstance(found, cpu_kernels.CpuKernel):
        raise ValidationError(f"{kernel.cpu_name} is not a CPU kernel")
    signature = _cpu_signature(kernel, found.py_func.__code__.co_argcount)
    # Kept on disk, it is what the kernel's runs and calls begin with.
    twin = cpu_kernels.CpuKernel(found.py_func).serial
    if not parallel:
        twin.compile(signature)
    if parallel or twin.stats.cache_hits:  # what was kept is machine code alone
        twin = cpu_kernels.compiled_twin(found.py_func, parallel=parallel)
        twin.compile(signature)
    return machine_contractions(twin.overloads[signature].library)


def machine_contractions(library: Any) -> MachineContractions:
    """Count the fused multiply-adds of what Numba compiled (its code library)."""
    import llvmlite.binding as llvm

    text = str(library.get_llvm_str())
    loose = len(re.findall(r"^\s*%?\S* ?=? ?(?:tail )?call [^\n]*@llvm\.fmuladd", text, re.M))
    if not loose and not _PRODUCT.search(text):
        return MachineContractions(found=0, uncontracted=0, loose=0, products=False)
    found = len(MACHINE_FMA.findall(str(library.get_asm_str())))
    strict, flags = _FAST_FLAGS.subn(r"\1", text)
    uncontracted = found
    if flags:
        assembly = library.codegen._tm.emit_assembly(llvm.parse_assembly(strict))
        uncontracted = len(MACHINE_FMA.findall(str(assembly)))
    return MachineContractions(found=found, uncontracted=uncontracted, loose=loose)


def _cpu_signature(kernel: KernelSource, count: int) -> tuple[Any, ...]:
    """Numba's types of a call with contiguous arrays."""
    from numba import from_dtype, types

    program = kernel.program
    tensors = [entry for entry in program.inputs if entry.kind == "tensor"]
    arrays = [(entry.dtype, max(len(entry.groups), 1)) for entry in tensors]
    arrays += [
        (output.dtype, max(len(program.spaces[output.region].groups), 1))
        for output in program.outputs
    ]
    arguments: list[Any] = [
        types.Array(from_dtype(numpy_dtype(dtype)), rank, "C") for dtype, rank in arrays
    ]
    arguments += [
        types.float64 if entry.dtype.startswith(("float", "bfloat")) else types.int64
        for entry in program.inputs
        if entry.kind == "scalar"
    ]
    if program.checks_divisors:  # the flag that tells of a zero divisor stands before the numbers
        arguments.insert(len(arrays), types.Array(types.boolean, 1, "C"))
    if len(arguments) != count:
        raise ValidationError(f"{kernel.cpu_name} takes {count} arguments, not {len(arguments)}")
    return tuple(arguments)


# --- CUDA ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CudaContractions:
    """What was seen of fused multiply-adds in one architecture's PTX.

    ``stray`` names products of the kernel's own text that are added to something;
    ``in_ptx`` counts all fused multiply-adds and ``inside_maths`` those that remain
    when the kernel's own arithmetic cannot contract (``uncontracted`` is that PTX).
    """

    stray: tuple[str, ...]
    in_ptx: int
    inside_maths: int
    uncontracted: str

    @property
    def problem(self) -> str:
        """What is wrong with these numbers, or ""."""
        if self.stray:
            return (
                f"a product is added without its own rounding ({len(self.stray)} times, "
                f"first {self.stray[0]!r}): write fmul_rn"
            )
        # (Fewer than the uncontracted has: a constant that was folded.)
        own = self.in_ptx - self.inside_maths
        if own > 0:
            return f"the PTX holds {own} fused multiply-adds that neither an op nor maths asks for"
        return ""

    def __str__(self) -> str:
        """One clause for a report."""
        return f"{self.in_ptx} in PTX, all asked for or inside maths"


def cuda_contractions(compiled: CompiledKernel) -> CudaContractions:
    """Look for fused multiply-adds that no op asked for in one compiled kernel's PTX."""
    strict = protected(compiled.modules)
    uncontracted = compiled.ptx  # where no float is multiplied or added
    if strict != compiled.modules:
        uncontracted = assemble(strict, compiled.architecture)
    return CudaContractions(
        stray=stray_contractions(compiled),
        in_ptx=len(PTX_FMA.findall(compiled.ptx)),
        inside_maths=len(PTX_FMA.findall(uncontracted)),
        uncontracted=uncontracted,
    )


def _cuda_problem(kernel: KernelSource) -> str:
    for architecture in cuda_compiler.ARCHITECTURES:
        compiled = cuda_compiler.compile_cuda(kernel, architecture)
        seen = cuda_contractions(compiled)
        if seen.problem:
            return f"{compiled.architecture_name}: {seen.problem}"
    tool = resources.disassembler()
    if tool is None:
        return ""
    disassembly = Disassembly(compiled, seen, tool)
    try:
        return disassembly.problem()
    finally:
        disassembly.close()


class Disassembly:
    """Counts fused multiply-adds in machine code, in the background (half a second).

    Compares a kernel with its uncontracted twin: what the assembler contracted
    on its own is the difference.  Two thirds of all kernels are the same to the byte as their
    twins; then nothing is counted.  ``close`` ends what still runs.
    """

    def __init__(self, compiled: CompiledKernel, seen: CudaContractions, tool: Path) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._running: subprocess.Popen[str] | None = None
        texts, architecture = (compiled.ptx, seen.uncontracted), compiled.architecture
        own, uncontracted = (resources.link(ptx, architecture)[0] for ptx in texts)
        if own == uncontracted:
            return
        # Starting the disassembler takes nearly all of its time: both are told to it at once.
        renamed = [ptx.replace(compiled.name, f"kernel_{n}") for n, ptx in enumerate(texts)]
        self._folder = tempfile.TemporaryDirectory(prefix="fusion_advisor_")
        path = Path(self._folder.name) / "kernels.cubin"
        path.write_bytes(resources.link_all(renamed, architecture)[0])
        self._running = subprocess.Popen(
            [str(tool), "-c", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @functools.cached_property
    def counts(self) -> tuple[int, int] | None:
        """Fused multiply-adds of the kernel, and of its twin; None where these are the same.

        Waits for the disassembler.
        """
        if self._running is None:
            return None
        output, errors = self._running.communicate(timeout=_DISASSEMBLY_TIMEOUT_S)
        if self._running.returncode != 0:
            raise ValidationError(f"nvdisasm failed: {errors[:300]}")
        parts = _SASS_SECTION.split(output)
        found = {
            name: len(SASS_FMA.findall(code))
            for name, code in zip(parts[1::2], parts[2::2], strict=True)
        }
        if not {"kernel_0", "kernel_1"} <= set(found):  # beside the assembler's own functions
            raise ValidationError(f"nvdisasm tells of {sorted(found)} instead of two kernels")
        return found["kernel_0"], found["kernel_1"]

    def problem(self) -> str:
        """What the assembler contracted, or ""."""
        own = self.counts[0] - self.counts[1] if self.counts else 0
        if own > 0:
            return (
                f"the assembler made {own} fused multiply-adds that the PTX does not have: "
                "write fmul_rn"
            )
        return ""

    def report(self) -> str:
        """What was counted.  Raises ``ValidationError`` where the assembler contracted."""
        if self.problem():
            raise ValidationError(self.problem())
        if self.counts is None:
            return "the same instructions with contraction forbidden"
        return f"{self.counts[0]} FMA instructions, {self.counts[1]} with contraction forbidden"

    def close(self) -> None:
        """End the disassembler and remove its files."""
        process = self._running
        if process is not None:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None and not process.stdout.closed:
                process.communicate()
        if self._folder is not None:
            self._folder.cleanup()
