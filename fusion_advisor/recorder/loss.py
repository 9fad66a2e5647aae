"""Finds what to differentiate, differentiates it, and puts ``.grad`` back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fusion_advisor.errors import CaptureError

_MAX_NAMED = 4  # outputs that are listed by name when a sum is differentiated


class Gradients:
    """The ``.grad`` of every leaf as it was before our backward pass."""

    def __init__(self, leaves: list[Tensor]) -> None:
        self._before = [(leaf, leaf.grad) for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None

    def restore(self) -> None:
        """Put back the very objects that were there, and None where there was none."""
        for leaf, gradient in self._before:
            leaf.grad = gradient


def run_backward(result: Any) -> tuple[str, Gradients]:
    """Differentiate the loss in ``result``; returns what was differentiated, in words.

    The new gradients stay in ``.grad`` until ``restore``, so that a recording sees
    them as results.

    Raises:
        CaptureError: nothing in ``result`` needs a gradient.
    """
    loss, description = find_loss(result)
    gradients = Gradients(_leaves_of(loss))
    try:
        loss.backward()
    except BaseException:
        gradients.restore()
        raise
    return description, gradients


def find_loss(result: Any) -> tuple[Tensor, str]:
    """The scalar to differentiate, and a sentence that says what it is.

    A scalar result, ``.loss`` or ``["loss"]``, or the first element of a sequence if it
    is a scalar; otherwise the sum of every floating output that needs a gradient.
    """
    if _is_scalar(result):
        return result, "the returned scalar"
    named: Any = getattr(result, "loss", None)
    if named is None and isinstance(result, Mapping):
        named = result.get("loss")
    if _is_scalar(named):
        return named, "the loss of the returned output"
    if isinstance(result, (list, tuple)) and result and _is_scalar(result[0]):
        return result[0], "the first returned element"
    outputs = [
        (name, tensor)
        for name, tensor in tensors_in(result)
        if tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    ]
    if not outputs:
        raise CaptureError(
            "There is nothing to differentiate: no returned tensor needs a gradient. Call the "
            "model with gradients on (not under no_grad or inference_mode, and with parameters "
            "that require them), or leave out the backward pass."
        )
    total: Tensor | None = None
    for _, tensor in outputs:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        part = real.sum(dtype=torch.float32 if real.dtype.itemsize < 4 else None)
        part = part.to(outputs[0][1].device)
        total = part if total is None else total + part
    assert total is not None
    names = [f"{name} {'×'.join(map(str, tensor.shape))}".strip() for name, tensor in outputs]
    listed = ", ".join(names[:_MAX_NAMED])
    if len(names) > _MAX_NAMED:
        listed += f" and {len(names) - _MAX_NAMED} more"
    return total, f"no scalar loss was returned, so the sum of {listed} was differentiated"


def _is_scalar(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.numel() == 1
        and value.is_floating_point()
        and value.requires_grad
    )


def tensors_in(value: Any, name: str = "output") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in nested containers, with the way to it."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_in(item, str(key) if name == "output" else f"{name}.{key}")
    elif isinstance(value, (list, tuple, set)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{name}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name, None), field.name)


def _leaves_of(loss: Tensor) -> list[Tensor]:
    """The leaves that a backward pass from ``loss`` accumulates into."""
    if loss.grad_fn is None:
        return [loss]
    leaves: list[Tensor] = []
    seen = {loss.grad_fn}
    pending: list[Any] = [loss.grad_fn]
    while pending:
        node = pending.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            leaves.append(leaf)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return leaves
