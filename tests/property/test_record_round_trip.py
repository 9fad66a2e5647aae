"""Any record that its types allow comes back from JSON as it was."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_strategies import strategy

from fusion_advisor import records
from fusion_advisor.serialize import from_data, to_data

RECORDS = [cls for cls in vars(records).values() if dataclasses.is_dataclass(cls)]


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(cls: type, data: st.DataObject) -> None:
    record = data.draw(strategy(cls))
    text = json.dumps(to_data(record), allow_nan=False)
    # NaN differs from itself; the printed form shows values and their types.
    assert repr(from_data(cls, json.loads(text))) == repr(record)
