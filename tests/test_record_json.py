"""The JSON of records: each record is read back unchanged, and records of other versions are kept."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import JSON, SECONDS, WORDS, instances_of

from chain.journal import records
from chain.journal.json import from_json, to_json
from chain.journal.records import Entry, Unknown
from chain.messages import Overrides, Usage

SOME_FIELDS = "id text kind agent message tasks by change status n usage state phase"
"""Names that fields of several records have, so that random values reach their checks."""


@given(st.one_of(*map(instances_of, get_args(records.Record))), st.integers(1, 10**9), SECONDS)
def test_a_record_is_read_back_unchanged(record: records.Record, seq: int, time: float) -> None:
    row = json.dumps({"type": record.type, "seq": seq, "time": time, **to_json(record)})
    assert from_json(json.loads(row)) == Entry(seq, time, record)


@given(st.dictionaries(WORDS, JSON, max_size=4))
def test_a_record_of_another_version_is_kept_whole(fields: dict[str, Any]) -> None:
    head = {"type": "of the future", "seq": 7, "time": 1.5}
    entry = from_json({**fields, **head})
    assert isinstance(entry.record, Unknown)
    assert {**to_json(entry.record), **head} == {**fields, **head}


def test_an_unknown_change_of_the_plan_is_kept() -> None:
    record = {"type": "plan", "seq": 1, "time": 0.0, "change": "sorted", "by": "user"}
    assert from_json(record).record == Unknown("plan", {"change": "sorted", "by": "user"})


@given(
    st.sampled_from(sorted(kind.type for kind in get_args(records.Record))),
    st.dictionaries(WORDS, JSON, max_size=4),
    st.data(),
)
def test_an_invalid_record_raises_valueerror_only(type: str, fields: dict[str, Any], data: st.DataObject) -> None:
    fields |= {name: data.draw(JSON) for name in data.draw(st.sets(st.sampled_from(SOME_FIELDS.split())))}
    try:
        from_json({**fields, "type": type, "seq": 1, "time": 0.0})
    except ValueError as error:
        assert str(error).startswith("record 1: ")  # noqa: PT017 - random fields may be valid


@pytest.mark.parametrize(
    "record",
    [{}, {"type": "model"}, {"type": 5, "seq": 1, "time": 0}, {"type": "model", "seq": "1", "time": 0}],
    ids=["empty", "no seq", "type is a number", "seq is a text"],
)
def test_a_record_needs_type_seq_and_time(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a record needs a type, a seq and a time"):
        from_json(record)


DEFAULTS = {"effect": "waits", "origin": "prompt", "always": "tool", "attempt": 1}
DEFAULTS |= {"usage": Usage(), "overrides": Overrides(), "why": records.REFUSED}
"""The values of fields that a record omits. All others are false, 0 or empty."""


def test_omitted_fields_keep_their_meaning() -> None:
    for kind in get_args(records.Record):
        for each in fields(kind):
            if each.name in DEFAULTS and each.default is not MISSING:
                assert each.default == DEFAULTS[each.name], each
            elif each.default is not MISSING:
                assert not each.default, each


@pytest.mark.parametrize("time", [10**400, -1, 1e13], ids=["no float", "negative", "in milliseconds"])
def test_a_time_out_of_range_is_refused(time: float) -> None:
    with pytest.raises(ValueError, match="the time of a record is in seconds"):
        from_json({"type": "model", "seq": 1, "time": time, "name": "x"})


def test_a_number_out_of_range_is_refused() -> None:
    receipt = {"type": "receipt", "seq": 1, "time": 0, "id": "L1", "state": "queued", "agent": "main", "iteration": 0}
    with pytest.raises(ValueError, match="record 1: "):
        from_json({**receipt, "waited_s": 10**400})  # no float
