"""What eager gives for the same elements in its other loops.

Eager runs one op by several loops: vectors where memory is contiguous, one element at a time in
what is left over and in strided memory.  Some ops differ between them, in the sign of a zero, in
one rounding of a 16-bit product, in a remainder of very large quotients.  What a person gets then
depends on sizes and strides alone, and any of it is eager's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fusion_advisor.ops import functional_name
from fusion_advisor.records import OpNode, ValueRef
from fusion_advisor.validation import aten

# Tensors that stand for one number: torch takes them of no dimension alone.
_NUMBERS = {"aten.fill.Tensor": 1, "aten.masked_fill.Tensor": 2}
LONGEST_VECTOR = 128  # elements: several turns of an unrolled loop over 8-bit lanes


def other_results(
    node: OpNode, values: Mapping[str, torch.Tensor], value: str, eager: torch.Tensor
) -> list[torch.Tensor]:
    """An elementwise op's result by eager's vector and by its single-element loop.

    ``values`` are the op's operands, ``eager`` its result ``value`` as it came about.
    """
    count = eager.numel()
    if not count:
        return []
    flat = {name: _flat(values[name], eager.shape) for name in node.inputs if values[name].dim()}
    if not flat:  # one element of 0-dim operands alone: it too has a place in a longer tensor
        number = _NUMBERS.get(functional_name(node.op))
        kept = None if number is None else node.args[number]
        flat = {
            name: values[name].reshape(1)
            for name in node.inputs
            if not isinstance(kept, ValueRef) or name != kept.value
        }
        if not flat:
            return []
    copies = LONGEST_VECTOR // count + 2  # the first of them lies within whole vectors
    long = {name: tensor.repeat(copies) for name, tensor in flat.items()}
    apart = {name: tensor.repeat_interleave(2)[::2] for name, tensor in flat.items()}
    # A memory format may ask for dimensions that are not there; it changes no value.
    kwargs = tuple((name, item) for name, item in node.kwargs if name != "memory_format")
    bare = replace(node, kwargs=kwargs)
    found = []
    for operands in (long, apart):
        try:
            with torch.no_grad():
                results = aten.bind_outputs(node, aten.call(bare, {**values, **operands}))
        except RuntimeError:  # another library's kernel that does not take these dtypes: no loop
            continue
        found.append(results[value][:count].reshape(eager.shape))
    return found


def _flat(tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return tensor.broadcast_to(shape).reshape(-1)
