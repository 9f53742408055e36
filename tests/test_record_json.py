"""The JSON of records: each is read back as it was written, and records of other versions are kept."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drawn import JSON, SECONDS, WORDS, drawn

from chain.journal import records
from chain.journal.json import from_json, to_json
from chain.journal.records import Entry, Unknown
from chain.messages import Overrides, Usage

FIELDS = "id text kind agent message tasks by change status n usage state phase"


@given(st.one_of(*map(drawn, get_args(records.Record))), st.integers(1, 10**9), SECONDS)
def test_a_record_is_read_back_unchanged(record: records.Record, seq: int, time: float) -> None:
    row = json.dumps({"type": record.type, "seq": seq, "time": time, **to_json(record)})
    assert from_json(json.loads(row)) == Entry(seq, time, record)


@given(st.dictionaries(WORDS, JSON, max_size=4))
def test_a_record_of_another_version_is_kept_whole(fields: dict[str, Any]) -> None:
    row = {**fields, "type": "of the future", "seq": 7, "time": 1.5}
    entry = from_json(row)
    assert isinstance(entry.record, Unknown)
    assert {**to_json(entry.record), "type": "of the future", "seq": 7, "time": 1.5} == row
    plan = {"type": "plan", "seq": 1, "time": 0.0, "change": "sorted", "by": "user"}
    assert from_json(plan).record == Unknown("plan", {"change": "sorted", "by": "user"})


@given(
    st.sampled_from(sorted(kind.type for kind in get_args(records.Record))),
    st.dictionaries(WORDS, JSON, max_size=4),
    st.data(),
)
def test_an_invalid_record_raises_a_valueerror(type: str, fields: dict[str, Any], data: st.DataObject) -> None:
    fields |= {name: data.draw(JSON) for name in data.draw(st.sets(st.sampled_from(FIELDS.split())))}
    why = ""
    try:
        from_json({**fields, "type": type, "seq": 1, "time": 0.0})
    except ValueError as error:
        why = str(error)
    assert not why or why.startswith("record 1: ")
    for broken in ({}, {"type": type}, {"type": 5, "seq": 1, "time": 0}, {"type": type, "seq": "1", "time": 0}):
        with pytest.raises(ValueError, match="a record needs a type, a seq and a time"):
            from_json(broken)


MEANT = {"effect": "waits", "origin": "prompt", "always": "tool", "attempt": 1}
MEANT |= {"usage": Usage(), "overrides": Overrides(), "why": records.REFUSED}
"""The values of fields that a record omits. All others are false, 0 or empty."""


def test_omitted_fields_keep_their_meaning() -> None:
    for kind in get_args(records.Record):
        for each in fields(kind):
            if each.default is not MISSING:
                assert each.default == MEANT[each.name] if each.name in MEANT else not each.default, each


@pytest.mark.parametrize("number", [10**400, -1, 1e13])
def test_a_time_out_of_range_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="the time of a record is in seconds"):
        from_json({"type": "model", "seq": 1, "time": number, "name": "x"})
    row = {"type": "receipt", "seq": 1, "time": 0, "id": "L1", "state": "queued", "agent": "main", "iteration": 0}
    with pytest.raises(ValueError, match="record 1: "):
        from_json({**row, "waited_s": 10**400})
