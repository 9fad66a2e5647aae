"""The library function by which LLVM rounds a float64 to float16, which processes mostly lack.

LLVM calls it of its own accord: where a float32 that is rounded to float16 has its sign from a
float64, it rounds that float64 to float16 for the sign alone.  A function that is not there ends
the process.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

# Rounded to odd in float32 first: a tie of float16 then stays one only where it was one.
_TEXT = """
define half @fusion_advisor_truncdfhf2(double %x) {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %inexact = fcmp one double %back, %x
  %bits = bitcast float %near to i32
  %odd = and i32 %bits, 1
  %is_even = icmp eq i32 %odd, 0
  %size = call double @llvm.fabs.f64(double %x)
  %reached = call double @llvm.fabs.f64(double %back)
  %beyond = fcmp ogt double %reached, %size
  %step = select i1 %beyond, i32 -1, i32 1
  %other = add i32 %bits, %step
  %move = and i1 %inexact, %is_even
  %chosen = select i1 %move, i32 %other, i32 %bits
  %wide = bitcast i32 %chosen to float
  %half = fptrunc float %wide to half
  ret half %half
}
declare double @llvm.fabs.f64(double)
"""
_kept: list[Any] = []


def provide() -> None:
    """Let compiled code find the function; once a process."""
    if _kept or llvm.address_of_symbol("__truncdfhf2"):
        return
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_TEXT)
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _kept.append(engine)
    llvm.add_symbol("__truncdfhf2", engine.get_function_address("fusion_advisor_truncdfhf2"))
