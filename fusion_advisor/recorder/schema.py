"""What the recorder and the replay must know of an op, read from its schema once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fusion_advisor import ops
from fusion_advisor.errors import CaptureError
from fusion_advisor.records import OpKind

# These write their running statistics although their schemas do not say so:
# op -> (positions of the written arguments, position of the flag that makes them written).
_UNDECLARED_WRITES = {
    "aten.native_batch_norm.default": ((3, 4), 5),
    "aten.cudnn_batch_norm.default": ((3, 4), 5),
    "aten.miopen_batch_norm.default": ((3, 4), 5),
}

# Same inputs may give other bits: atomics, or an order that the scheduler decides.
_NONDETERMINISTIC_ANYWHERE = frozenset({"index_put", "_index_put_impl", "put", "histc"})
_NONDETERMINISTIC_ON_DEVICE = frozenset(
    """
    _ctc_loss_backward _embedding_bag_dense_backward adaptive_avg_pool2d_backward
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward avg_pool3d_backward bincount
    cumsum convolution_backward embedding_dense_backward embedding_backward grid_sampler_2d_backward
    grid_sampler_3d_backward index_add index_copy index_reduce kthvalue
    max_pool3d_with_indices_backward max_unpool2d median nll_loss2d_backward
    reflection_pad1d_backward reflection_pad2d_backward replication_pad1d_backward
    replication_pad2d_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_flash_attention_backward scatter_add scatter_reduce
    upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward
    upsample_trilinear3d_backward
    """.split()
)

_UNINITIALISED = frozenset(
    """
    empty empty_like empty_permuted empty_strided empty_quantized _empty_affine_quantized
    new_empty new_empty_strided
    """.split()
)


@dataclass(frozen=True, slots=True, eq=False)
class OpSchema:
    """One op overload.

    ``written`` are the argument positions (or keyword names) that it writes,
    ``written_if`` the position of a flag that must be true for that.
    """

    function: Any
    name: str
    base: str
    kind: OpKind
    written: tuple[int | str, ...] = ()
    written_if: int | None = None
    random: bool = False
    composite: bool = False
    uninitialised: bool = False
    ignored: bool = False  # no work of the program: a profiler's range

    def node_id(self, index: int) -> str:
        """The id of the op that was recorded at ``index``."""
        return f"{self.base}_{index}"

    def written_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors this call writes, in the schema's order."""
        if self.written_if is not None and not (
            len(args) > self.written_if and args[self.written_if]
        ):
            return []
        found: list[Tensor] = []
        for where in self.written:
            if isinstance(where, str):
                argument = kwargs.get(where)
            else:
                argument = args[where] if where < len(args) else None
            if isinstance(argument, Tensor):
                found.append(argument)
            elif isinstance(argument, (list, tuple)):
                found.extend(item for item in argument if isinstance(item, Tensor))
        return found

    def is_nondeterministic(self, device: str) -> bool:
        """True where the same inputs need not give the same bits on ``device``."""
        base = self.base.removesuffix("_")
        if torch.Tag.nondeterministic_bitwise in getattr(self.function, "tags", ()):
            return True
        if base in _NONDETERMINISTIC_ANYWHERE:
            return True
        return not device.startswith("cpu") and base in _NONDETERMINISTIC_ON_DEVICE


def flatten(returned: Any) -> list[Tensor]:
    """The tensors an op returned, in order; undefined ones (None) and numbers are left out."""
    if isinstance(returned, Tensor):
        return [returned]
    if isinstance(returned, (list, tuple)):
        found: list[Tensor] = []
        for item in returned:
            if isinstance(item, Tensor):
                found.append(item)
            elif isinstance(item, (list, tuple)):
                found.extend(flatten(item))
        return found
    return []


def outputs_in_order(returned: Any, written: Sequence[Tensor]) -> list[Tensor]:
    """The tensors behind ``OpNode.outputs``: what is returned, then what is written besides.

    A written argument that is also returned (``add_``) appears once.
    """
    found = flatten(returned)
    if not written:
        return found
    unique: list[Tensor] = []
    for tensor in (*found, *written):
        if not any(tensor is other for other in unique):
            unique.append(tensor)
    return unique


@cache
def schema_of(function: Any) -> OpSchema:
    """The facts of one op overload."""
    if not isinstance(function, torch._ops.OpOverload):
        name = f"higher_order.{getattr(function, '__name__', function)}"
        return OpSchema(function=function, name=name, base=name, kind="other")
    name = str(function)
    tags = function.tags
    written: list[int | str] = []
    position = 0
    for argument in function._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else position)
        position += not argument.kwarg_only
    written_if = None
    if name in _UNDECLARED_WRITES:
        positions, written_if = _UNDECLARED_WRITES[name]
        written = list(positions)
    base = function._schema.name.split("::")[-1]
    return OpSchema(
        function=function,
        name=name,
        base=base,
        kind=ops.classify(
            name,
            pointwise_tag=torch.Tag.pointwise in tags,
            reduction_tag=torch.Tag.reduction in tags,
        ),
        written=tuple(written),
        written_if=written_if,
        random=torch.Tag.nondeterministic_seeded in tags,
        composite=_is_composite(function.name()),
        uninitialised=base in _UNINITIALISED,
        ignored=function.namespace == "profiler",
    )


def _is_composite(name: str) -> bool:
    """Whether torch runs an op as its parts; a few (silu_backward) have kernels as well."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(name, "CompositeImplicitAutograd") and not (
        has_kernel(name, "CPU") or has_kernel(name, "CUDA")
    )


def forget_schemas() -> None:
    """Read schemas anew: the kind of some op has changed."""
    schema_of.cache_clear()
    find_op.cache_clear()


@cache
def find_op(name: str) -> OpSchema:
    """The op called ``name`` (``aten.add.Tensor``).

    Raises:
        CaptureError: it is not registered in this process, or it is not an op that a
            replay can call.
    """
    namespace, _, rest = name.partition(".")
    if namespace == "higher_order":
        raise CaptureError(
            f"The run used {rest}, a higher-order op whose branches are not recorded; it "
            "cannot be replayed."
        )
    base, _, overload = rest.rpartition(".")
    try:
        packet = getattr(getattr(torch.ops, namespace), base)
        function = getattr(packet, overload or "default")
    except (AttributeError, RuntimeError) as error:
        raise CaptureError(
            f"The op {name} is not registered in this process, so its recording cannot be "
            f"replayed here; import the library that defines it ({error})."
        ) from None
    if not isinstance(function, torch._ops.OpOverload):
        raise CaptureError(f"{name} is not an op that can be replayed.")
    return schema_of(function)
