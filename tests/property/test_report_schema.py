"""The JSON Schema that ships: current, and of one mind with the reader."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from record_strategies import strategy
from report_fixture import empty_report, rich_report
from report_formats import HOSTILE_TEXTS, hostile_report

from fusion_advisor import records
from fusion_advisor.errors import ReportError
from fusion_advisor.record_codecs import SharedSpans, record_codec
from fusion_advisor.report.schema import page, read_schema, report_schema
from fusion_advisor.serialize import dump_report, load_report

pytestmark = pytest.mark.essential
ROOT = Path(__file__).resolve().parents[2]
DEFINED = [
    cls
    for cls in vars(records).values()
    if dataclasses.is_dataclass(cls) and cls.__name__ in report_schema()["$defs"]
]


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    Draft202012Validator.check_schema(read_schema())
    return Draft202012Validator(read_schema())


def test_schema_and_page_are_those_of_the_records():
    command = "run: python -m fusion_advisor.report.schema"
    assert read_schema() == report_schema(), command
    assert (ROOT / "docs" / "report-schema.md").read_text() == page(), command
    assert len(DEFINED) >= 25


@pytest.mark.parametrize("name", [None, "", *HOSTILE_TEXTS])
def test_reports_are_valid(validator, name):
    if name:
        report = hostile_report(HOSTILE_TEXTS[name])
    else:
        report = rich_report() if name is None else empty_report()
    validator.validate(json.loads(dump_report(report)))


@pytest.mark.slow
def test_a_report_of_a_real_run_is_valid(validator):
    import torch

    from fusion_advisor import advisor

    def step(x, w):
        return torch.relu((x @ w) * 0.5 + 1.0).square().mean()

    x, w = torch.randn(256, 256), torch.randn(256, 256, requires_grad=True)
    advice = advisor.profile(step, (x, w), backward=True, isolated=False)
    validator.validate(json.loads(dump_report(advice.report)))
    advice.close()


@pytest.mark.parametrize("cls", DEFINED, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_record_may_hold_is_valid(cls: type, data: st.DataObject) -> None:
    record = data.draw(strategy(cls))
    shared = None if cls is records.SourceSpan else SharedSpans()
    written = json.loads(json.dumps(record_codec(cls).encode(record, shared)))
    _validator_of(cls.__name__).validate(written)


@functools.cache
def _validator_of(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": read_schema()["$defs"]})


def _changed(path: list[Any], value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(dump_report(rich_report()))
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is _Gone:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


class _Gone:
    """No value: the field is taken away."""


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["format"], "other"),
        (["schema_version"], 0),
        (["spans"], _Gone),
        (["spans", 0, "kind"], "page"),
        (["spans", 0, "line"], "17"),
        (["report", "findings", 0, "ignored"], "yes"),
        (["report", "findings", 0, "span"], -1),
        (["report", "findings", 0, "rule"], _Gone),
        (["report", "findings", 0, "colour"], "red"),
        (["report", "findings", 0, "safety"], "harmless"),
        (["report", "capture", "graph", "nodes", 0, "kind"], "magic"),
        (["report", "capture", "wall_us"], "82"),
        (["report", "capture", "wall_us"], {"float": "huge"}),
        (["report", "kernels", 0], ["F1"]),
        (["report", "bounds", 0, 1], "bored"),
    ],
)
def test_what_the_schema_refuses_the_reader_refuses(validator, path, value):
    document = _changed(path, value)
    assert not validator.is_valid(document)
    with pytest.raises(ReportError):
        load_report(json.dumps(document))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["report", "findings", 0, "ignored"], _Gone),  # as an earlier release wrote it
        (["report", "findings", 0, "span"], None),
        (["report", "capture", "wall_us"], 82),
        (["report", "capture", "wall_us"], {"float": "nan"}),
        (["written_by"], _Gone),
    ],
)
def test_what_the_schema_allows_the_reader_reads(validator, path, value):
    document = _changed(path, value)
    validator.validate(document)
    load_report(json.dumps(document))
