"""Values of any record's fields, for property tests; written apart from the codec's reading."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

from hypothesis import strategies as st

from fusion_advisor.records import Symbol, ValueRef

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates included
# As wide as the codec takes.
INTEGERS = st.integers(-(2**256 - 1), 2**256 - 1)
ARGUMENTS = st.recursive(
    st.none()
    | st.booleans()
    | INTEGERS
    | NUMBERS
    | TEXTS
    | st.builds(ValueRef, value=TEXTS)
    | st.builds(Symbol, kind=st.sampled_from(["dtype", "device", "opaque"]), name=TEXTS),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


class _Argument:
    """Stands for the recursive alias while hints are read."""


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, written apart from the codec's own reading of types."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is _Argument:
        return ARGUMENTS
    if hint in (bool, int, float, str, type(None)):
        plain = {bool: st.booleans(), int: INTEGERS, float: NUMBERS, str: TEXTS}
        return plain.get(hint, st.none())
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([strategy(part) for part in parts])
    if origin is tuple:
        if parts[-1] is Ellipsis:
            return st.lists(strategy(parts[0]), max_size=2).map(tuple)
        return st.tuples(*(strategy(part) for part in parts))
    hints = typing.get_type_hints(hint, localns={"Argument": _Argument})
    return st.builds(
        hint, **{name: st.deferred(lambda h=h: strategy(h)) for name, h in hints.items()}
    )
