"""Turns the NVVM IR of a CUDA kernel into a function that runs on this CPU.

The kernel's IR, the libdevice functions it reaches and the stand-ins of
``native_shims`` are linked into one x86 module with a loop over blocks and
threads around the kernel, optimised, and compiled by LLVM's MCJIT.  Only
kernels without barriers, shared memory or shuffles can run so: each thread
runs to its end before the next one starts.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

from fusion_advisor.errors import ValidationError
from fusion_advisor.validation.native_assembly import ASSEMBLY_NAMES, normalise_assembly
from fusion_advisor.validation.native_shims import REGISTER_GLOBALS, SHIMS, WIDENINGS

_DEFINITION = re.compile(r"^define [^\n]*?@\"?([\w.$]+)\"?\([^\n]*\{\n.*?^\}\n", re.M | re.S)
_REFERENCE = re.compile(r"@\"?([\w.$]+)\"?")
_ASSEMBLY_CALL = re.compile(
    r"call ([^@\n]*?) asm +(?:sideeffect +)?\"((?:[^\"\\]|\\.)*)\", \"[^\"]*\"\("
)
_SHIFT = re.compile(
    r"= (shl|lshr)(?: (?:nuw|nsw|exact|disjoint))* (i32|i64) (\S+), (%\S+)$", re.M
)  # by an amount that is not written out
# LLVM takes a maximum of widened numbers for the widened maximum, whose zero may have another sign
# (NVVM does not): it must not see through these.
_WIDENING = re.compile(r"= fpext (float|half) (\S+) to (float|double)")
_RUN = "fusion_advisor_run"
_C_TYPES: dict[str, Any] = {
    "i1": ctypes.c_int8, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32,
    "i64": ctypes.c_int64, "float": ctypes.c_float, "double": ctypes.c_double,
}  # fmt: skip


class UnsupportedKernelError(ValidationError):
    """The kernel's IR needs something that cannot run on a CPU; the message names it."""


@dataclass(frozen=True)
class _Library:
    """libdevice as host text: function definitions, globals and types by name."""

    functions: dict[str, str]
    globals: dict[str, str]
    types: str


def _target_machine(effort: int = 3) -> Any:
    """A fresh target machine: an execution engine takes its machine with it when it goes."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        opt=effort, cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten()
    )


@functools.cache
def _host_header() -> str:
    """The header lines of a module for this machine."""
    return (
        f'target datalayout = "{_target_machine().target_data}"\n'
        f'target triple = "{llvm.get_default_triple()}"\n'
    )


def _to_host(text: str) -> str:
    """Rewrite device IR text so that a host module can hold it."""
    text = re.sub(r"^target (triple|datalayout) = .*\n", "", text, flags=re.M)
    text = re.sub(
        r"@\"?llvm\.nvvm\.([\w.]+)\"?",
        lambda match: "@nvvm_" + match.group(1).replace(".", "_"),
        text,
    )
    text = re.sub(r"^attributes #\d+ = .*\n", "", text, flags=re.M)
    text = re.sub(r"^@\"?llvm\.(?:compiler\.)?used\"?.*\n", "", text, flags=re.M)
    text = re.sub(r"^!.*\n?", "", text, flags=re.M)
    text = re.sub(r", ![\w.]+ !\d+", "", text)
    text = re.sub(r"(?<=[\s)]) ?#\d+(?=[\s,{])", "", text)
    return _ASSEMBLY_CALL.sub(_assembly_call, text)


def _assembly_call(match: re.Match[str]) -> str:
    shim = ASSEMBLY_NAMES.get(normalise_assembly(match.group(2)))
    if shim is None:
        return match.group(0)
    return f"call {match.group(1)} @{shim}("


@functools.cache
def _libdevice() -> _Library:
    """Parse libdevice once per process."""
    bitcode = importlib.import_module("numba.cuda.cudadrv.nvvm").LibDevice().get()
    text = _to_host(str(llvm.parse_bitcode(bytes(bitcode))))
    text = _SHIFT.sub(r"= call \2 @ptx_\1_\2(\2 \3, \2 \4)", text)
    functions = {match.group(1): match.group(0) for match in _DEFINITION.finditer(text)}
    outside = _DEFINITION.sub("", text)
    variables = re.findall(r"^@\"?([\w.$]+)\"? = .*\n", outside, flags=re.M)
    lines = dict(zip(variables, _global_lines(outside), strict=True))
    types = "".join(re.findall(r"^%[\w.]+ = type .*\n", outside, flags=re.M))
    return _Library(functions=functions, globals=lines, types=types)


def _global_lines(text: str) -> list[str]:
    return re.findall(r"^@\"?[\w.$]+\"? = .*\n", text, flags=re.M)


def _reflect_shim(library: _Library, architecture: tuple[int, int]) -> str:
    """``__nvvm_reflect`` answers libdevice's questions about flags by the name it passes."""
    answers = {
        "__CUDA_FTZ": 0, "__CUDA_PREC_SQRT": 1, "__CUDA_PREC_DIV": 1,
        "__CUDA_ARCH": architecture[0] * 100 + architecture[1] * 10,
    }  # fmt: skip
    body, last = "", "0"
    for number, (name, line) in enumerate(library.globals.items()):
        match = re.search(r'c"(__CUDA_\w+)\\00"', line)
        if match is None or match.group(1) not in answers:
            continue
        value = answers[match.group(1)]
        body += f"  %q{number} = icmp eq ptr %p, @{name}\n"
        body += f"  %v{number} = select i1 %q{number}, i32 {value}, i32 {last}\n"
        last = f"%v{number}"
    return (
        f"define internal i32 @__nvvm_reflect(ptr %p) alwaysinline {{\n{body}  ret i32 {last}\n}}\n"
    )


def _support_text(kernel_text: str, architecture: tuple[int, int]) -> str:
    """All libdevice functions, globals and shims that ``kernel_text`` reaches."""
    library = _libdevice()
    available = SHIMS | library.functions
    available["__nvvm_reflect"] = _reflect_shim(library, architecture)
    defined = {match.group(1) for match in _DEFINITION.finditer(kernel_text)}
    found: dict[str, str] = {}
    variables: dict[str, str] = {}
    waiting = [kernel_text]
    while waiting:
        for name in _REFERENCE.findall(waiting.pop()):
            if name in library.globals:
                variables[name] = library.globals[name]
            elif name in available and name not in found and name not in defined:
                found[name] = available[name]
                waiting.append(available[name])
    return library.types + "".join(variables.values()) + "".join(found.values())


def _run_text(name: str, parameters: list[str]) -> str:
    """The loop over blocks and threads; grid and block are one-dimensional."""
    listed = ", ".join(f"{kind} %a{index}" for index, kind in enumerate(parameters))
    return f"""
define void @{_RUN}(i32 %first, i32 %grid, i32 %block, i1 %backwards, {listed}) {{
entry:
  store i32 %grid, ptr @sreg_nctaid_x
  store i32 %block, ptr @sreg_ntid_x
  store i32 0, ptr @sreg_tid_y
  store i32 0, ptr @sreg_tid_z
  store i32 0, ptr @sreg_ctaid_y
  store i32 0, ptr @sreg_ctaid_z
  br label %blocks
blocks:
  %b = phi i32 [%first, %entry], [%next_b, %block_end]
  %from_b = sub i32 %b, %first
  %left_b = sub i32 %grid, %from_b
  %last_b = sub i32 %left_b, 1
  %this_b = select i1 %backwards, i32 %last_b, i32 %b
  store i32 %this_b, ptr @sreg_ctaid_x
  br label %threads
threads:
  %t = phi i32 [0, %blocks], [%next_t, %threads]
  %left_t = sub i32 %block, %t
  %last_t = sub i32 %left_t, 1
  %this_t = select i1 %backwards, i32 %last_t, i32 %t
  store i32 %this_t, ptr @sreg_tid_x
  call void @"{name}"({listed})
  %next_t = add i32 %t, 1
  %more_threads = icmp ult i32 %next_t, %block
  br i1 %more_threads, label %threads, label %block_end
block_end:
  %next_b = add i32 %b, 1
  %more_blocks = icmp ult i32 %next_b, %grid
  br i1 %more_blocks, label %blocks, label %done
done:
  ret void
}}
"""


def _kernel_parameters(text: str, name: str) -> list[str]:
    match = re.search(rf"^define [^\n]*@\"?{re.escape(name)}\"?\((.*?)\)\s", text, flags=re.M)
    if match is None:
        raise ValidationError(f"the compiled module holds no kernel named {name!r}")
    kinds = [part.strip().split(" ")[0] for part in match.group(1).split(",") if part.strip()]
    return ["ptr" if kind.endswith("*") else kind for kind in kinds]


@dataclass(frozen=True)
class HostModule:
    """A kernel as x86 LLVM text, ready to be compiled by any process on this machine.

    ``texts`` are linked in order, the kernel's own module first; ``parameters``
    are the LLVM types of the kernel's machine arguments.
    """

    name: str
    texts: tuple[str, ...]
    parameters: tuple[str, ...]


def translate(modules: tuple[str, ...], name: str, architecture: tuple[int, int]) -> HostModule:
    """Rewrite a kernel's NVVM IR for this CPU, with everything it reaches in libdevice.

    ``modules`` are the texts numba-cuda hands to NVVM, the kernel's own first.
    Raises ``UnsupportedKernelError`` for PTX assembly that has no CPU equivalent.
    """
    hosted = [_WIDENING.sub(r"= call \3 @widened_\1_\3(\1 \2)", _to_host(text)) for text in modules]
    support = _support_text("\n".join(hosted), architecture)
    for text in (*hosted, support):
        left = _ASSEMBLY_CALL.search(text)
        if left is not None:
            raise UnsupportedKernelError(
                f"PTX assembly without a CPU equivalent: {left.group(2)[:80]!r}"
            )
    parameters = _kernel_parameters(hosted[0], name)
    # Names must meet across modules while linking; all become internal afterwards.
    support = re.sub(r"define (?:internal|linkonce_odr)", "define", support)
    registers = REGISTER_GLOBALS.replace("internal ", "")
    declaration = f'declare void @"{name}"({", ".join(parameters)})\n'
    driver = registers + support + declaration + _run_text(name, parameters)
    declared = [text + _assembly_declarations(text) for text in hosted]
    texts = tuple(_host_header() + text for text in (*declared, driver))
    return HostModule(name=name, texts=texts, parameters=tuple(parameters))


def _assembly_declarations(text: str) -> str:
    """Declarations of the shims that stand in a module for what it had itself."""
    known = {*ASSEMBLY_NAMES.values(), *WIDENINGS}
    used = sorted(set(_REFERENCE.findall(text)).intersection(known))
    heads = (re.split(" (?:always|no)inline", SHIMS[name])[0] for name in used)
    return "".join(head.replace("define internal", "declare") + "\n" for head in heads)


class NativeKernel:
    """A CUDA kernel's IR compiled for this CPU.

    ``effort`` is LLVM's optimisation level: 3 runs fast, 1 compiles in a quarter of the time, which
    is more where a kernel runs over few elements.
    """

    def __init__(self, host: HostModule, *, effort: int = 3) -> None:
        machine = _target_machine(effort)
        self.parameters = host.parameters
        try:
            module = llvm.parse_assembly(host.texts[0])
            for text in host.texts[1:]:
                module.link_in(llvm.parse_assembly(text))
            module.verify()
        except RuntimeError as error:
            raise UnsupportedKernelError(
                f"LLVM refused the kernel's IR: {str(error)[:300]}"
            ) from error
        self._compile(module, machine, host.name, effort)

    def _compile(self, module: Any, machine: Any, name: str, effort: int) -> None:
        for function in module.functions:
            if function.name != _RUN and not function.is_declaration:
                function.linkage = "internal"
                if function.name == name:
                    function.add_function_attribute("alwaysinline")
        for variable in module.global_variables:
            if not variable.is_declaration:
                variable.linkage = "internal"
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(effort))
        builder.getModulePassManager().run(module, builder)
        missing = sorted(
            function.name
            for function in module.functions
            if function.is_declaration and not function.name.startswith("llvm.")
        )
        if missing:
            raise UnsupportedKernelError(f"no CPU equivalent for {', '.join(missing)}")
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        kinds = [_C_TYPES.get(kind, ctypes.c_void_p) for kind in self.parameters]
        prototype = ctypes.CFUNCTYPE(
            None, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool, *kinds
        )
        self._function = prototype(self._engine.get_function_address(_RUN))

    def launch(
        self,
        grid: int,
        block: int,
        arguments: list[Any],
        *,
        backwards: bool = False,
        first_block: int = 0,
    ) -> None:
        """Run all blocks and threads; numpy arrays are passed as numba passes them.

        ``first_block`` leaves out the blocks before it, for the far end of a huge launch.
        ``backwards`` runs the last thread first: a GPU promises no order, and a
        kernel whose threads step on each other gives another result.
        """
        flat: list[Any] = []
        for argument in arguments:
            if hasattr(argument, "ctypes"):
                flat += [None, None, argument.size, argument.itemsize, argument.ctypes.data]
                flat += [*argument.shape, *argument.strides]
            else:
                flat.append(argument)
        if len(flat) != len(self.parameters):
            raise ValidationError(
                f"the kernel takes {len(self.parameters)} machine arguments, not {len(flat)}"
            )
        self._function(first_block, grid, block, backwards, *flat)
