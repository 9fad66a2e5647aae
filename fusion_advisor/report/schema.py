"""The JSON Schema of a saved report, and the page about it, made from the records' own types.

``python -m fusion_advisor.report.schema`` writes both into a checkout; a test compares.  The
schema ships beside this module and is read by :func:`read_schema`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from fusion_advisor.records import SCHEMA_VERSION, Report, SourceSpan, Symbol
from fusion_advisor.serialize import FORMAT

SCHEMA_FILE = Path(__file__).parent / "report.schema.json"
PAGE_FILE = Path("docs/report-schema.md")
Schema = dict[str, Any]

_SPAN = {"type": "integer", "minimum": 0, "description": "number of a span in the list of spans"}
_NUMBER = {
    "anyOf": [
        {"type": "number"},
        {
            "type": "object",
            "properties": {"float": {"enum": ["nan", "inf", "-inf"]}},
            "required": ["float"],
            "additionalProperties": False,
        },
    ]
}


@functools.cache
def read_schema() -> Schema:
    """The schema that ships with the package."""
    loaded: Schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return loaded


def report_schema() -> Schema:
    """The schema as the records are now."""
    definitions = {record.__name__: _record(record) for record in _records(Report)}
    definitions["SourceSpan"] = _record(SourceSpan)
    definitions |= {"Number": _NUMBER, "Argument": _argument()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:fusion-advisor:report:{SCHEMA_VERSION}",
        "title": f"Fusion Advisor report, schema {SCHEMA_VERSION}",
        "type": "object",
        "properties": {
            "format": {"const": FORMAT},
            "schema_version": {"type": "integer", "minimum": 1, "maximum": SCHEMA_VERSION},
            "written_by": {"type": "string", "description": "version of Fusion Advisor"},
            "spans": {"type": "array", "items": {"$ref": "#/$defs/SourceSpan"}},
            "report": {"$ref": "#/$defs/Report"},
        },
        "required": ["format", "schema_version", "spans", "report"],
        "$defs": dict(sorted(definitions.items())),
    }


def _hints(record: type) -> dict[str, Any]:
    # The recursive alias of op arguments is one definition of its own.
    return typing.get_type_hints(record, localns={"Argument": _Argument})


class _Argument:
    """Stands for the ``Argument`` alias."""


def _records(root: type) -> Iterator[type]:
    """Every record class below ``root``, itself first, each once; spans are apart."""
    seen: dict[type, None] = {}
    waiting = [root]
    while waiting:
        record = waiting.pop(0)
        if record in seen or record is SourceSpan:
            continue
        seen[record] = None
        for hint in _hints(record).values():
            waiting += [
                part
                for part in _parts(hint)
                if isinstance(part, type) and dataclasses.is_dataclass(part)
            ]
    yield from seen


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)


def _record(record: type) -> Schema:
    hints = _hints(record)
    fields = dataclasses.fields(record)
    return {
        "type": "object",
        "description": _summary(record),
        "properties": {field.name: _schema(hints[field.name]) for field in fields},
        "required": [field.name for field in fields if _needed(field)],
        "additionalProperties": False,
    }


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _summary(record: type) -> str:
    return (inspect.getdoc(record) or "").split("\n\n")[0].replace("\n", " ")


def _schema(hint: Any) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is _Argument:
        return {"$ref": "#/$defs/Argument"}
    if hint is SourceSpan:
        return dict(_SPAN)
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{typing.cast(type, hint).__name__}"}
    if hint is float:
        return {"$ref": "#/$defs/Number"}
    if hint in (bool, int, str, type(None)):
        names = {bool: "boolean", int: "integer", str: "string", type(None): "null"}
        return {"type": names[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_schema(argument) for argument in arguments],
            "items": False,
            "minItems": len(arguments),
        }
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    raise TypeError(f"no schema for a field of type {hint!r}")


def _argument() -> Schema:
    """An op's argument: plain data, a tensor by its value id, a named thing, or a list of them."""
    kinds = typing.get_args(_hints(Symbol)["kind"])
    return {
        "anyOf": [
            {"type": ["null", "boolean", "integer", "string"]},
            {"$ref": "#/$defs/Number"},
            {
                "type": "object",
                "properties": {"value": {"type": "string"}},
                "required": ["value"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"symbol": {"enum": list(kinds)}, "name": {"type": "string"}},
                "required": ["symbol", "name"],
                "additionalProperties": False,
            },
            {"type": "array", "items": {"$ref": "#/$defs/Argument"}},
        ]
    }


# -- the page ----------------------------------------------------------------------------------

_PAGE = """\
# A report as JSON

Made from `fusion_advisor/records.py` by `python -m fusion_advisor.report.schema`.

`advice.export("report.json")`, `%fuse_export report.json` and `--export report.json` write all that
a report holds; `fusion_advisor.load("report.json")` gives back an equal report, and
`fusion-advisor report report.json --format …` every other form of it. The file is ASCII. Its JSON
Schema (draft 2020-12) ships with the package:

```python
from fusion_advisor.report.schema import read_schema
```

## The document

| field | holds |
|---|---|
| `format` | `"{format}"` |
| `schema_version` | {version} |
| `written_by` | the version of Fusion Advisor that wrote it |
| `spans` | every source span once; elsewhere a span is its number in this list |
| `report` | a `Report`, below |

- Times end in `_us` (microseconds), sizes are bytes. A number that JSON has no word for is
  `{{"float": "nan"}}`, `"inf"` or `"-inf"`.
- An argument of an op is plain data, `{{"value": "v3"}}` (a tensor, by its id),
  `{{"symbol": "dtype", "name": "float32"}}`, or a list of these.
- Names refer: ops and values to those of the graph, kernels, validations and fixes to findings,
  `estimates` to `candidates` by place. A file in which they do not is refused, with the place.

## Versions

A field may be left out where a default is given. A release that adds or changes a field raises
`schema_version`. Each release reads the reports of all earlier ones, and refuses later ones by
saying which version to install; a field that it does not know is never passed over.

## Records

{records}"""


def page() -> str:
    """``docs/report-schema.md``."""
    sections = "\n".join(_section(record) for record in (*_records(Report), SourceSpan))
    return _PAGE.format(format=FORMAT, version=SCHEMA_VERSION, records=sections)


def _section(record: type) -> str:
    hints = _hints(record)
    rows = "\n".join(
        f"| `{field.name}` | {_type_text(hints[field.name])} | {_default_text(field)} |"
        for field in dataclasses.fields(record)
    )
    text = (inspect.getdoc(record) or "").replace("``", "`")
    return f"### {record.__name__}\n\n{text}\n\n| field | type | default |\n|---|---|---|\n{rows}\n"


def _type_text(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is _Argument:
        return "argument"
    if hint is SourceSpan:
        return "span number"
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        return f"[{name}](#{name.lower()})"
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_type_text(arguments[0])}"
    if origin is tuple:
        return "[" + ", ".join(_type_text(argument) for argument in arguments) + "]"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_text(argument) for argument in arguments)
    names = {bool: "true or false", int: "integer", float: "number", str: "string"}
    return names.get(hint, "null")


def _default_text(field: dataclasses.Field[Any]) -> str:
    if _needed(field):
        return ""
    value = [] if field.default == () else field.default
    return f"`{json.dumps(value)}`"


def main(arguments: list[str]) -> int:
    """Write the schema into the package and the page into ``docs`` of the current folder."""
    if arguments or not PAGE_FILE.parent.is_dir():
        print("usage, in a checkout: python -m fusion_advisor.report.schema", file=sys.stderr)
        return 2
    text = json.dumps(report_schema(), indent=1, ensure_ascii=False) + "\n"
    SCHEMA_FILE.write_text(text, encoding="utf-8")
    PAGE_FILE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
