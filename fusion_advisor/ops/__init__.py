"""The op table: the one place where an op's kind, recipe, work and rounding are known.

``lookup`` gives an op's row, ``classify`` the kind of any op.  Importing this
package registers every recipe module.
"""

from fusion_advisor.ops import (
    activations,
    arithmetic,
    division,
    elementary,
    extrema,
    factories,
    gradients,
    logic,
    losses,
    powers,
)
from fusion_advisor.ops.calls import Call, Operand, bind, flat_arguments, flat_length, unread_inputs
from fusion_advisor.ops.dtypes import ITEM_BYTES, SUPPORTED_DTYPES
from fusion_advisor.ops.kinds import (
    classify,
    functional_name,
    is_added,
    is_inplace,
    out_keyword,
    written_argument,
)
from fusion_advisor.ops.scalars import OPCODES, Builder, Opcode, type_error
from fusion_advisor.ops.table import OpInfo, Recipe, add_row, lookup, remove_row, rows
from fusion_advisor.ops.writing import operand_of, takeable_numbers, why_unwritable, write_call

RECIPE_MODULES = (
    arithmetic,
    division,
    powers,
    extrema,
    elementary,
    logic,
    activations,
    gradients,
    losses,
    factories,
)

__all__ = [
    "ITEM_BYTES",
    "OPCODES",
    "RECIPE_MODULES",
    "SUPPORTED_DTYPES",
    "Builder",
    "Call",
    "OpInfo",
    "Opcode",
    "Operand",
    "Recipe",
    "add_row",
    "bind",
    "classify",
    "flat_arguments",
    "flat_length",
    "functional_name",
    "is_added",
    "is_inplace",
    "lookup",
    "operand_of",
    "out_keyword",
    "remove_row",
    "rows",
    "takeable_numbers",
    "type_error",
    "unread_inputs",
    "why_unwritable",
    "write_call",
    "written_argument",
]
