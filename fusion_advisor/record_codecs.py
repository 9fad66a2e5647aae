"""How each record becomes plain JSON data and comes back: one codec per field type.

Codecs are derived once from a record's field types, so a new field needs no
code here.  Tuples become lists; a float that JSON has no word for becomes
``{"float": "nan"}``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from fusion_advisor.records import Constant, SourceSpan, Symbol, ValueRef

_SYMBOL_KINDS = frozenset(typing.get_args(typing.get_type_hints(Symbol)["kind"]))
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

# Nothing that is counted here comes near; beyond it, figures made of it fit no float.
_MAX_INTEGER_BITS = 256

JsonValue = Any  # what the json module reads and writes


class MismatchError(Exception):
    """Data that does not fit a type; ``path`` grows as the error travels outwards."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path: list[str] = []

    def inside(self, step: str) -> MismatchError:
        """The same error, seen from one level further out."""
        self.path.insert(0, step)
        return self

    def describe(self, root: str) -> str:
        """Where and what, for a person."""
        return f"{root}{''.join(self.path)}: {self.message}"


class SharedSpans:
    """Spans stored once: writing numbers them, reading looks them up."""

    def __init__(self, spans: list[SourceSpan] | None = None) -> None:
        self.spans: list[SourceSpan] = [] if spans is None else spans
        self._by_value: dict[SourceSpan, int] = {}
        self._by_identity: dict[int, int] = {}  # hashing eleven fields per op is the slow part

    def number(self, span: SourceSpan) -> int:
        """The span's place in ``spans``, added when it is new."""
        known = self._by_identity.get(id(span))
        if known is not None:
            return known
        number = self._by_value.setdefault(span, len(self.spans))
        if number == len(self.spans):
            self.spans.append(span)
        self._by_identity[id(span)] = number
        return number


class Codec(NamedTuple):
    """The two directions; spans are numbers where ``SharedSpans`` are given, else records."""

    encode: Callable[[Any, SharedSpans | None], JsonValue]
    decode: Callable[[JsonValue, SharedSpans | None], Any]


class _ArgumentMarker:
    """Stands for the recursive ``Argument`` alias while field types are read."""


def _expected(what: str, value: object) -> MismatchError:
    shown = repr(value)
    return MismatchError(
        f"expected {what}, found {shown if len(shown) <= 60 else shown[:57] + '…'}"
    )


# Plain values


def _encode_float(value: float) -> JsonValue:
    if math.isfinite(value):
        return value
    return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}


def _decode_float(data: JsonValue) -> float:
    name = data.get("float") if isinstance(data, dict) and len(data) == 1 else None
    if name not in _NON_FINITE:
        raise _expected("a number", data)
    return _NON_FINITE[name]


def _plain(kind: type, what: str) -> Codec:
    def check(value: Any, _: SharedSpans | None) -> Any:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
                raise _expected(f"{what} of at most {_MAX_INTEGER_BITS} bits", value)
            return value
        raise _expected(what, value)

    return Codec(check, check)


def _encode_number(value: Any, _: SharedSpans | None) -> JsonValue:
    if isinstance(value, float):
        return _encode_float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # an int in a float field stays an int
    raise _expected("a number", value)


def _decode_number(data: JsonValue, _: SharedSpans | None) -> Any:
    if isinstance(data, float):
        return data
    if isinstance(data, int) and not isinstance(data, bool):
        if data.bit_length() > _MAX_INTEGER_BITS:
            raise _expected(f"a number of at most {_MAX_INTEGER_BITS} bits", data)
        return data
    return _decode_float(data)


def _literal(choices: tuple[object, ...]) -> Codec:
    allowed = frozenset(choices)
    what = "one of " + ", ".join(repr(choice) for choice in choices)

    def check(value: Any, _: SharedSpans | None) -> Any:
        if isinstance(value, str) and value in allowed:
            return value
        raise _expected(what, value)

    return Codec(check, check)


# Containers


def _encode_items(value: Any, shared: SharedSpans | None, encode: Callable[..., Any]) -> JsonValue:
    if not isinstance(value, tuple):
        raise _expected("a tuple", value)
    items = []
    for index, item in enumerate(value):
        try:
            items.append(encode(item, shared))
        except MismatchError as mismatch:
            raise mismatch.inside(f"[{index}]") from None
    return items


def decode_items(data: JsonValue, shared: SharedSpans | None, decode: Callable[..., Any]) -> Any:
    """A tuple from a JSON list, each item decoded; raises ``MismatchError``."""
    if not isinstance(data, list):
        raise _expected("a list", data)
    items = []
    for index, item in enumerate(data):
        try:
            items.append(decode(item, shared))
        except MismatchError as mismatch:
            raise mismatch.inside(f"[{index}]") from None
    return tuple(items)


def _sequence(item: Codec) -> Codec:
    return Codec(
        lambda value, shared: _encode_items(value, shared, item.encode),
        lambda data, shared: decode_items(data, shared, item.decode),
    )


def _fixed(items: tuple[Codec, ...]) -> Codec:
    """A tuple of fixed length with one type per place."""
    places = range(len(items))

    def encode(value: Any, shared: SharedSpans | None) -> JsonValue:
        if not isinstance(value, tuple) or len(value) != len(items):
            raise _expected(f"a tuple of {len(items)}", value)
        return [items[place].encode(value[place], shared) for place in places]

    def decode(data: JsonValue, shared: SharedSpans | None) -> Any:
        if not isinstance(data, list) or len(data) != len(items):
            raise _expected(f"a list of {len(items)}", data)
        return tuple(items[place].decode(data[place], shared) for place in places)

    return Codec(encode, decode)


# Unions


def _optional(inner: Codec) -> Codec:
    return Codec(
        lambda value, shared: None if value is None else inner.encode(value, shared),
        lambda data, shared: None if data is None else inner.decode(data, shared),
    )


def _scalar_union(kinds: tuple[type, ...], constant: bool) -> Codec:
    """Any of ``bool``, ``int``, ``float``, ``str`` in ``kinds``, and ``Constant`` if asked for."""
    exact = frozenset(kinds)
    what = " or ".join(sorted(kind.__name__ for kind in exact))

    def encode(value: Any, shared: SharedSpans | None) -> JsonValue:
        if constant and isinstance(value, Constant):
            return record_codec(Constant).encode(value, shared)
        for kind in (bool, int, float, str):  # bool before int: it is one
            if isinstance(value, kind):
                if kind not in exact:
                    break
                return _encode_float(value) if isinstance(value, float) else value
        raise _expected(what, value)

    def decode(data: JsonValue, shared: SharedSpans | None) -> Any:
        if isinstance(data, dict):
            if constant and "dtype" in data:
                return record_codec(Constant).decode(data, shared)
            if float in exact:
                return _decode_float(data)
        elif type(data) in exact:
            return data
        raise _expected(what, data)

    return Codec(encode, decode)


def _encode_argument(value: Any, shared: SharedSpans | None) -> JsonValue:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _encode_float(value)
    if isinstance(value, ValueRef):
        return {"value": value.value}
    if isinstance(value, Symbol):
        return {"symbol": value.kind, "name": value.name}
    return _encode_items(value, shared, _encode_argument)


def _decode_argument(data: JsonValue, shared: SharedSpans | None) -> Any:
    if data is None or isinstance(data, bool | int | float | str):
        return data
    if isinstance(data, list):
        return decode_items(data, shared, _decode_argument)
    match data:
        case {"value": str(name), **rest} if not rest:
            return ValueRef(value=name)
        case {"symbol": str(kind), "name": str(name), **rest} if not rest:
            if kind not in _SYMBOL_KINDS:
                raise _expected("a symbol kind", kind)
            return Symbol(kind=kind, name=name)  # type: ignore[arg-type]  # checked above
        case _:
            return _decode_float(data)


def _union(members: tuple[Any, ...]) -> Codec:
    rest = tuple(member for member in members if member is not type(None))
    if len(rest) == 1:
        inner = _codec(rest[0])
    else:
        scalars = tuple(member for member in rest if member in (bool, int, float, str))
        if set(rest) - set(scalars) - {Constant}:
            raise TypeError(f"no codec for the union {members}")  # a new kind of field
        inner = _scalar_union(scalars, Constant in rest)
    return _optional(inner) if len(rest) < len(members) else inner


# Records


def record_codec(cls: Any) -> Codec:
    """The codec of one record class; ``encode`` and ``decode`` raise ``MismatchError``."""
    return _derive(cls)


@functools.cache
def _derive(cls: Any) -> Codec:
    hints = typing.get_type_hints(cls, localns={"Argument": _ArgumentMarker})
    fields = dataclasses.fields(cls)
    codecs = {field.name: _codec(hints[field.name]) for field in fields}
    encoders = tuple((name, codec.encode) for name, codec in codecs.items())
    required = frozenset(
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )

    def encode(value: Any, shared: SharedSpans | None) -> JsonValue:
        if type(value) is not cls:
            raise _expected(f"a {cls.__name__}", value)
        data = {}
        for name, encode_field in encoders:
            try:
                data[name] = encode_field(getattr(value, name), shared)
            except MismatchError as mismatch:
                raise mismatch.inside(f".{name}") from None
        return data

    def decode(data: JsonValue, shared: SharedSpans | None) -> Any:
        if not isinstance(data, dict):
            raise _expected(f"a {cls.__name__}", data)
        values = {}
        for name, item in data.items():
            codec = codecs.get(name)
            if codec is None:
                raise MismatchError(f"a {cls.__name__} has no field {name!r}")
            try:
                values[name] = codec.decode(item, shared)
            except MismatchError as mismatch:
                raise mismatch.inside(f".{name}") from None
        missing = required.difference(values)
        if missing:
            raise MismatchError(f"a {cls.__name__} needs {', '.join(sorted(missing))}")
        return cls(**values)

    return Codec(encode, decode)


def _span() -> Codec:
    plain = record_codec(SourceSpan)

    def encode(value: Any, shared: SharedSpans | None) -> JsonValue:
        if shared is None or type(value) is not SourceSpan:
            return plain.encode(value, shared)
        return shared.number(value)

    def decode(data: JsonValue, shared: SharedSpans | None) -> Any:
        if shared is None:
            return plain.decode(data, shared)
        if type(data) is not int or not 0 <= data < len(shared.spans):
            raise _expected(f"a span number below {len(shared.spans)}", data)
        return shared.spans[data]

    return Codec(encode, decode)


@functools.cache
def _codec(hint: Any) -> Codec:
    """The codec of one field type; raises ``TypeError`` for a kind of field not known here."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is _ArgumentMarker:
        return Codec(_encode_argument, _decode_argument)
    if hint is float:
        return Codec(_encode_number, _decode_number)
    if hint in (bool, int, str):
        return _plain(hint, {bool: "true or false", int: "an integer", str: "a string"}[hint])
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _sequence(_codec(arguments[0]))
        return _fixed(tuple(_codec(argument) for argument in arguments))
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if hint is SourceSpan:
        return _span()
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record_codec(hint)
    raise TypeError(f"no codec for a field of type {hint!r}")
