"""From a candidate group to kernel text: scalar program, checker, CPU and CUDA kernels."""

from fusion_advisor.codegen.lower import lower
from fusion_advisor.codegen.program import check_program, program_hash
from fusion_advisor.codegen.wrapper import generate

__all__ = ["check_program", "generate", "lower", "program_hash"]
