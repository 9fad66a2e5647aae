"""Compiles a generated CUDA kernel with no GPU: numba-cuda → NVVM IR → PTX.

NVVM and ptxas turn ``a * b + c`` into one fused multiply-add unless told
otherwise.  ``stray_contractions`` finds what could be contracted in the kernel's
own IR; ``protected`` is the same IR with every multiplication and addition made
uncontractable, the yardstick for counting what really was.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusion_advisor.errors import MissingDependencyError, ValidationError
from fusion_advisor.records import FusedProgram, KernelSource
from fusion_advisor.runtime import index_width

INSTALL_TOOLCHAIN = 'pip install "numba-cuda[cu13]"'
ARCHITECTURES = ((8, 0), (9, 0))

_NUMBA_TYPES = {
    "bool": "boolean", "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32",
    "int64": "int64", "float32": "float32", "float64": "float64",
    # Bit patterns: numba-cuda cannot take a bfloat16 array, and float16 travels the same way.
    "bfloat16": "uint16", "float16": "uint16",
}  # fmt: skip
_ARITHMETIC = re.compile(
    r"^(\s*%\S+ = )(fmul|fadd|fsub) (?:\w+ )*?(float|double) (.+?), (.+?)$", re.M
)


@dataclass(frozen=True)
class CompiledKernel:
    """One kernel for one architecture.  ``modules`` are NVVM IR texts, the kernel's own first."""

    name: str
    architecture: tuple[int, int]
    modules: tuple[str, ...]
    ptx: str

    @property
    def architecture_name(self) -> str:
        return f"sm_{self.architecture[0]}{self.architecture[1]}"


def toolchain_missing() -> str:
    """What is missing to compile for CUDA, with the command that installs it; "" if nothing."""
    needed = {"numba_cuda": "numba-cuda", "cuda.bindings": "cuda-bindings"}
    for module, package in needed.items():
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            return f"{package} is not installed: {INSTALL_TOOLCHAIN}"
    try:
        nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
        nvvm.NVVM()
        nvvm.LibDevice().get()
    except Exception as error:
        return f"NVVM cannot be loaded ({type(error).__name__}: {error}): {INSTALL_TOOLCHAIN}"
    return ""


def kernel_signature(program: FusedProgram, *, wide: bool = False) -> Any:
    """The numba types of the CUDA kernel's arguments, by the calling convention.

    ``wide``: of its variant with 64-bit indices.
    """
    types: Any = importlib.import_module("numba.cuda.types")

    def array(dtype: str) -> Any:
        if dtype not in _NUMBA_TYPES:
            raise ValidationError(f"no CUDA array type for {dtype}")
        return getattr(types, _NUMBA_TYPES[dtype])[::1]

    tensors = [entry for entry in program.inputs if entry.kind == "tensor"]
    scalars = [entry for entry in program.inputs if entry.kind == "scalar"]
    arguments = [array(entry.dtype) for entry in tensors]
    arguments += [array(entry.dtype) for entry in program.outputs]
    index = types.uint64 if wide else types.uint32
    arguments += [index] * sum(len(space.groups) for space in program.spaces)
    strided = [entry for entry in tensors if entry.layout == "strided"]
    arguments += [index] * sum(len(entry.groups) for entry in strided)
    arguments += [
        types.float64 if entry.dtype.startswith(("float", "bfloat")) else types.int64
        for entry in scalars
    ]
    return types.void(*arguments)


def compile_function(
    function: Callable[..., None],
    program: FusedProgram,
    architecture: tuple[int, int],
    *,
    wide: bool = False,
) -> CompiledKernel:
    """Compile the Python function of a CUDA kernel; ``wide``: with 64-bit indices.

    Raises ``ValidationError`` with the compiler's message when it does not compile.
    """
    missing = toolchain_missing()
    if missing:
        raise MissingDependencyError(missing)
    compiler = importlib.import_module("numba.cuda.compiler")
    signature = kernel_signature(program, wide=wide)
    if wide:
        function = index_width.widened(function)
    try:
        library, _ = compiler._compile_pyfunc_with_fixup(
            function, signature, device=False, abi="numba", cc=architecture
        )
        modules = tuple(str(text) for text in library.llvm_strs)
        ptx = assemble(modules, architecture)
    except ValidationError:
        raise
    except Exception as error:
        raise ValidationError(
            f"the CUDA kernel does not compile for sm_{architecture[0]}{architecture[1]}: "
            f"{type(error).__name__}: {str(error)[:600]}"
        ) from error
    return CompiledKernel(
        name=str(library._entry_name), architecture=architecture, modules=modules, ptx=ptx
    )


def assemble(modules: tuple[str, ...], architecture: tuple[int, int]) -> str:
    """PTX of NVVM IR texts, with libdevice linked in."""
    nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
    arch = f"compute_{architecture[0]}{architecture[1]}"
    raw = nvvm.compile_ir(list(modules), fastmath=False, opt=3, arch=arch)
    return str(raw.decode().strip("\x00").strip())


def compile_cuda(
    kernel: KernelSource, cc: tuple[int, int] = (9, 0), *, wide: bool = False
) -> CompiledKernel:
    """Load ``kernel``'s text and compile its CUDA kernel for ``cc``; ``wide``: 64-bit indices."""
    if not kernel.cuda_name:
        raise ValidationError("this kernel was generated without a CUDA target")
    return compile_function(cuda_function(kernel), kernel.program, cc, wide=wide)


def cuda_function(kernel: KernelSource) -> Callable[..., None]:
    """The plain Python function of the kernel's CUDA half."""
    from fusion_advisor.runtime import load_kernel

    namespace = load_kernel(kernel.text, kernel.entry, kernel.hash)
    function = namespace.get(kernel.cuda_name)
    plain = getattr(function, "py_func", None)
    if plain is None:
        raise MissingDependencyError(
            f"{kernel.cuda_name} is not a CUDA kernel on this machine: {INSTALL_TOOLCHAIN}"
        )
    return plain  # type: ignore[no-any-return]


def protected(modules: tuple[str, ...]) -> tuple[str, ...]:
    """The same IR with each multiplication and addition as an uncontractable intrinsic."""
    result = []
    for text in modules:
        counter = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal counter
            head, operation, kind, left, right = match.groups()
            letter = "f" if kind == "float" else "d"
            if operation == "fsub":
                counter += 1
                negated = f'%"negated.{counter}"'
                before = f"  {negated} = fsub {kind} -0.0, {right}\n"
                right, operation = negated, "fadd"
            else:
                before = ""
            name = f"llvm.nvvm.{operation[1:]}.rn.{letter}"
            return f'{before}{head}call {kind} @"{name}"({kind} {left}, {kind} {right})'

        changed = _ARITHMETIC.sub(replace, text)
        for operation in ("add", "mul"):
            for letter, kind in (("f", "float"), ("d", "double")):
                name = f'@"llvm.nvvm.{operation}.rn.{letter}"'
                if name in changed and f"declare {kind} {name}" not in changed:
                    changed += f"\ndeclare {kind} {name}({kind}, {kind})\n"
        result.append(changed)
    return tuple(result)


def stray_contractions(compiled: CompiledKernel) -> tuple[str, ...]:
    """Multiplications in the kernel's own IR whose result is added: each may become one FMA.

    Looks at the IR before libdevice is linked, after stack slots became values,
    so that only what the kernel's text says is judged.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    found: list[str] = []
    for text in compiled.modules:
        if " = fmul " not in text:
            continue
        module = llvm.parse_assembly(text)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0))
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_instruction_combine_pass()
        passes.run(module, builder)
        found += _products_added(module)
    return tuple(found)


def _name_products(function: Any) -> None:
    """Name what the passes made anew: a constant has no name either, and is no product."""
    for block in function.blocks:
        for number, instruction in enumerate(block.instructions):
            if instruction.opcode in ("fmul", "fneg") and not instruction.name:
                instruction.name = f"product{number}"  # LLVM appends to a name that is taken


def _products_added(module: Any) -> list[str]:
    found: list[str] = []
    for function in module.functions:
        products: set[str] = set()
        _name_products(function)
        for block in function.blocks:
            for instruction in block.instructions:
                operands = [operand.name for operand in instruction.operands]
                touched = bool(products.intersection(operands))
                if instruction.opcode == "fmul" or (instruction.opcode == "fneg" and touched):
                    products.add(instruction.name)
                elif instruction.opcode in ("fadd", "fsub") and touched:
                    found.append(str(instruction).strip())
    return found
