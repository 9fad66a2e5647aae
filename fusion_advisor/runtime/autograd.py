"""Gradients of fused functions: backward recomputes the eager chain from the saved inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Launch = Callable[[tuple[Any, ...]], tuple[torch.Tensor, ...]]


def call(
    launch: Launch,
    eager: Callable[..., Any],
    differentiable: tuple[bool, ...],
    args: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:
    """``launch(args)`` with a gradient; ``differentiable`` says which outputs have one."""
    apply: Any = _Recompute.apply  # untyped in torch
    result: tuple[torch.Tensor, ...] = apply(launch, eager, differentiable, *args)
    return result


class _Recompute(torch.autograd.Function):
    """Saves the tensor inputs only; the chain's intermediates exist during backward alone."""

    @staticmethod
    def forward(
        ctx: Any,
        launch: Launch,
        eager: Callable[..., Any],
        differentiable: tuple[bool, ...],
        *args: Any,
    ) -> tuple[torch.Tensor, ...]:
        outputs = launch(args)
        ctx.eager = eager
        ctx.plain = tuple(None if isinstance(arg, torch.Tensor) else (arg,) for arg in args)
        ctx.save_for_backward(*(arg for arg in args if isinstance(arg, torch.Tensor)))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(out for out, keeps in zip(outputs, differentiable, strict=True) if not keeps)
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        twice = torch.is_grad_enabled()  # create_graph: the result must be differentiable again
        saved = iter(ctx.saved_tensors)
        needed = ctx.needs_input_grad[3:]
        with torch.enable_grad():
            inputs: list[Any] = []
            for plain, needs in zip(ctx.plain, needed, strict=True):
                if plain is not None:
                    inputs.append(plain[0])
                    continue
                tensor = next(saved)
                if not needs:
                    inputs.append(tensor.detach())
                elif twice:
                    # A view of its own, so that an input passed twice gets two gradients.
                    inputs.append(tensor.view_as(tensor))
                else:
                    inputs.append(tensor.detach().requires_grad_())
            wanted = [value for value, needs in zip(inputs, needed, strict=True) if needs]
            outputs = _without_autocast(ctx.eager, inputs)
            pairs = [
                (output, grad)
                for output, grad in zip(outputs, grads, strict=True)
                if grad is not None and output.requires_grad
            ]
            found = iter(
                torch.autograd.grad(
                    [output for output, _ in pairs],
                    wanted,
                    [grad for _, grad in pairs],
                    create_graph=twice,
                    allow_unused=True,
                )
                if pairs
                else [None] * len(wanted)
            )
        return (None, None, None, *(next(found) if needs else None for needs in needed))


def _without_autocast(eager: Callable[..., Any], inputs: list[Any]) -> tuple[torch.Tensor, ...]:
    """The chain as forward computed it: without autocast, which a guard saw to change nothing."""
    device = next(value.device.type for value in inputs if isinstance(value, torch.Tensor))
    with torch.autocast(device, enabled=False):
        outputs = eager(*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)
