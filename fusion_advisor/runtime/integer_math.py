"""Integer arithmetic that wraps and rounds as eager's, in kernels of both targets.

The functions are plain Python on NumPy scalars; inside a compiled kernel each becomes the
instructions of :mod:`fusion_advisor.runtime.scalar_ir`.  Operands and result have one integer type,
except in ``ldexp``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusion_advisor.runtime import scalar_ir
from fusion_advisor.runtime.cuda_support import HAVE_NUMBA_CUDA


def _wrapped(value: int, like: Any) -> Any:
    """A whole number in the type of an operand."""
    kind = np.dtype(type(like)) if isinstance(like, np.integer) else np.dtype(np.int64)
    bits = value & ((1 << 8 * kind.itemsize) - 1)
    return np.array([bits], f"u{kind.itemsize}").view(kind)[0]


def _quotient(a: int, b: int) -> int:
    """a / b rounded towards zero."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def divisor(x: Any, zero_divisor: Any = None) -> Any:
    """``x``, or 1 where it is 0; there a CPU kernel's ``zero_divisor[0]`` is set."""
    if x != 0:
        return x
    if zero_divisor is not None:
        zero_divisor[0] = True
    return _wrapped(1, x)


def floordiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded down, for b not 0."""
    return _wrapped(int(a) // int(b), a)


def truncdiv(a: Any, b: Any) -> Any:
    """``a / b`` rounded towards zero, for b not 0."""
    return _wrapped(_quotient(int(a), int(b)), a)


def power(a: Any, b: Any) -> Any:
    """``a ** b``; for b below 0 the integer part of the inverse, 0 for a = 0."""
    if b >= 0:
        return _wrapped(pow(int(a), int(b), 1 << 64), a)
    return _wrapped(int(a) ** (int(b) & 1) if abs(int(a)) == 1 else 0, a)


def shift_left(a: Any, b: Any) -> Any:
    """``a << b``; 0 for b below 0 or not below the width."""
    return _wrapped(int(a) << int(b) if 0 <= b < 64 else 0, a)


def shift_right(a: Any, b: Any) -> Any:
    """``a >> b`` keeping the sign; b below 0 or not below the width shifts all bits out."""
    return _wrapped(int(a) >> (int(b) if 0 <= b < 64 else 63), a)


def gcd(a: Any, b: Any) -> Any:
    """The largest number that divides both; the smallest integer's magnitude wraps, as eager's."""
    left, right = (int(_wrapped(abs(int(value)), a)) for value in (a, b))
    while left:
        left, right = right - _quotient(right, left) * left, left
    return _wrapped(right, a)


def lcm(a: Any, b: Any) -> Any:
    """The smallest multiple of both; 0 if one is 0.  Below 32 bits it wraps at the end only."""
    factor = int(gcd(a, b))
    if factor == 0:
        return _wrapped(0, a)
    multiple = _quotient(int(a), factor) * int(b)
    if a.dtype.itemsize >= 4:
        multiple = int(_wrapped(multiple, a))
    return _wrapped(abs(multiple), a)


def ldexp(x: Any, exponent: Any) -> Any:
    """``x * 2**exponent`` rounded once; a float and an int32."""
    with np.errstate(all="ignore"):
        return np.ldexp(x, max(-3000, min(3000, int(exponent))))


_OF_INTEGERS: tuple[Callable[..., Any], ...] = (
    floordiv,
    truncdiv,
    power,
    shift_left,
    shift_right,
    gcd,
    lcm,
)


def _fits(kinds: Any, args: tuple[Any, ...], function: Callable[..., Any]) -> bool:
    """Whether a function takes arguments of these types; ``kinds`` is a target's types module."""
    if function is ldexp:
        return args[0] in (kinds.float32, kinds.float64) and args[1] == kinds.int32
    first = args[0]
    return isinstance(first, kinds.Integer) and all(arg == first for arg in args)


def _lowering(function: Callable[..., Any]) -> Callable[..., Any]:
    build = getattr(scalar_ir, function.__name__)

    def lower(_context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return build(builder, *args, getattr(signature.args[0], "signed", True))

    return lower


def _register_cpu() -> None:
    from numba import types
    from numba.extending import intrinsic, overload

    def typed(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return (args[0](*args), _lowering(function)) if _fits(types, args, function) else None

    def register(function: Callable[..., Any]) -> None:
        @intrinsic
        def instructions(typingctx: Any, a: Any, b: Any) -> Any:
            return typed(function, (a, b))

        # No annotations: numba wants an overload and what it returns to have equal signatures.
        def choose(a, b):  # type: ignore[no-untyped-def]
            fits = _fits(types, (a, b), function)
            return (lambda a, b: instructions(a, b)) if fits else None

        # Both names are part of the text numba compares with the stub's.
        def choose_ldexp(x, exponent):  # type: ignore[no-untyped-def]
            fits = _fits(types, (x, exponent), function)
            return (lambda x, exponent: instructions(x, exponent)) if fits else None

        overload(function, jit_options=_OPTIONS)(choose_ldexp if function is ldexp else choose)

    for function in (*_OF_INTEGERS, ldexp):
        register(function)

    @overload(divisor, jit_options=_OPTIONS)
    def checked(x, zero_divisor=None):  # type: ignore[no-untyped-def]
        if not isinstance(x, types.Integer) or not isinstance(zero_divisor, types.Array):
            return None
        one = getattr(np, str(x))(1)

        def check(x, zero_divisor=None):  # type: ignore[no-untyped-def]
            if x == 0:
                zero_divisor[0] = True
                return one
            return x

        return check


_OPTIONS = {"forceinline": True, "error_model": "numpy"}


def _register_cuda() -> None:
    """A typing and a lowering each: unlike ``@overload`` they compile without a GPU."""
    from numba.cuda import types
    from numba.cuda.cudadecl import registry as typing_registry
    from numba.cuda.cudaimpl import registry as lowering_registry
    from numba.cuda.typing.templates import AbstractTemplate, signature

    def register(function: Callable[..., Any], *kinds: Any) -> None:
        class Template(AbstractTemplate):  # type: ignore[misc]  # numba-cuda is untyped
            key = function

            def generic(self, args: Any, kws: Any) -> Any:
                fits = len(args) == len(kinds) and not kws and _fits(types, args, function)
                return signature(args[0], *args) if fits else None

        typing_registry.register_global(function, types.Function(Template))
        lowering_registry.lower(function, *kinds)(_lowering(function))

    register(divisor, types.Integer)
    for function in _OF_INTEGERS:
        register(function, types.Integer, types.Integer)
    register(ldexp, types.Float, types.Integer)


_register_cpu()
if HAVE_NUMBA_CUDA:
    _register_cuda()
