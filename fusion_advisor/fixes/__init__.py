"""Puts fused kernels in place and takes them out again.

``plan_text`` and ``plan_function`` prove that a chain can be replaced and give a ``Fix`` (or its
blockers); ``edited_text``/``fix_diff``/``apply_file`` use it on text; ``apply_function`` and
``apply_module`` on running code; ``module_file`` and ``reapply_cell`` write what puts it back after
a restart.  Every application returns an object with ``.places`` and ``.undo()``.
"""

from fusion_advisor.fixes.cell_edit import plan_function, plan_text, runtime_scalars
from fusion_advisor.fixes.live_code import find_function, functions_of
from fusion_advisor.fixes.live_function import (
    FunctionChange,
    apply_function,
    function_source,
    global_name,
)
from fusion_advisor.fixes.live_module import ModuleChange, apply_module
from fusion_advisor.fixes.module_file import ModulePiece, module_file, reapply_cell
from fusion_advisor.fixes.source_file import FileChange, apply_file, read_source
from fusion_advisor.fixes.text_edits import apply_edits, edited_text, fix_diff, text_hash
from fusion_advisor.fixes.undo import Change, ChangeStack

__all__ = [
    "Change",
    "ChangeStack",
    "FileChange",
    "FunctionChange",
    "ModuleChange",
    "ModulePiece",
    "apply_edits",
    "apply_file",
    "apply_function",
    "apply_module",
    "edited_text",
    "find_function",
    "fix_diff",
    "function_source",
    "functions_of",
    "global_name",
    "module_file",
    "plan_function",
    "plan_text",
    "read_source",
    "reapply_cell",
    "runtime_scalars",
    "text_hash",
]
