"""Entering a CPU kernel by addresses: no NumPy arrays are made for small tensors.

Making an array of a tensor costs about a microsecond each; an address costs a tenth of that.  The
entry is a small compiled function that views the addresses as contiguous arrays and calls the
kernel.  It holds for operands that are dense over their own axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from fusion_advisor.runtime import compile_cache

# dtype name, and the iteration axes whose sizes are the array's (none: one element).
ArraySpec = tuple[str, tuple[int, ...]]

_BIT_PATTERNS = {"bfloat16": "uint16", "float16": "uint16", "bool": "boolean"}


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def lower(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), lower


def make_entry(
    kernel: Any,
    arrays: tuple[ArraySpec, ...],
    axes: int,
    scalars: tuple[str, ...],
    kernel_key: str = "",
    checks_divisors: bool = False,
) -> Callable[..., bool | None]:
    """``entry(*addresses, *sizes, *scalars)`` for a compiled kernel.

    With ``checks_divisors`` the entry gives whether an integer divisor was 0.

    ``arrays`` describes operands then outputs, ``axes`` is the number of iteration axes,
    ``scalars`` the run-time numbers' dtypes, ``kernel_key`` the kernel's content: with one the
    entry is kept on disk.
    """
    addresses = [f"p{index}" for index in range(len(arrays))]
    sizes = [f"n{index}" for index in range(axes)]
    numbers = [f"s{index}" for index in range(len(scalars))]
    views = []
    for address, (dtype, own) in zip(addresses, arrays, strict=True):
        shape = ", ".join(f"n{index}" for index in own) or "1"
        views.append(f"carray(pointer({address}), ({shape},), {_BIT_PATTERNS.get(dtype, dtype)})")
    lines = [f"def entry({', '.join(addresses + sizes + numbers)}):"]
    if checks_divisors:
        lines += ["    zero_divisor = zeros(1, bool_)"]
        lines += [f"    kernel({', '.join([*views, 'zero_divisor', *numbers])})"]
        lines += ["    return zero_divisor[0]"]
    else:
        lines += [f"    kernel({', '.join(views + numbers)})"]
    text = "\n".join(lines) + "\n"
    names = {_BIT_PATTERNS.get(dtype, dtype) for dtype, _ in arrays}
    namespace: dict[str, Any] = {name: getattr(types, name) for name in names}
    namespace |= {"zeros": np.zeros, "bool_": np.bool_}
    namespace |= {"carray": numba.carray, "pointer": _pointer, "kernel": kernel}
    namespace["__name__"] = __name__
    exec(text, namespace)  # the text above, made of names and indices only
    argument_types = (types.intp,) * (len(arrays) + axes)
    argument_types += tuple(getattr(types, dtype) for dtype in scalars)
    entry = numba.njit(nogil=True)(namespace["entry"])
    if kernel_key:
        compile_cache.attach(entry, compile_cache.digest(kernel_key, text, scalars))
    entry.compile(argument_types)
    entry.disable_compile()
    compiled: Callable[..., bool | None] = entry
    return compiled
