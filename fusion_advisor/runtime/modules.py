"""Whether a module call is nothing but its class's own forward, so that it may be fused away."""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as _module

_OWN_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def runs_plain(module: Any, kind: type, **settings: object) -> bool:
    """Whether calling ``module`` runs exactly ``kind.forward`` with these settings and no hooks."""
    if type(module) is not kind or "forward" in module.__dict__:
        return False
    if any(getattr(module, name, None) for name in _OWN_HOOKS):
        return False
    if any(getattr(_module, name, None) for name in _GLOBAL_HOOKS):
        return False
    if getattr(module, "_compiled_call_impl", None) is not None:
        return False
    return all(getattr(module, name, None) == value for name, value in settings.items())
