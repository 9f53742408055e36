"""The records of a journal: what is written is read back, and so is what version 0.1.0 wrote."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain import events, messages
from chain.journal import records
from chain.journal.json import from_json, to_json
from chain.journal.records import Entry, Unknown

WORDS = st.text(max_size=20)
COUNTS = st.integers(0, 10**9)
SECONDS = st.floats(0, 1e9)
TEXTS = st.lists(WORDS, max_size=3).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | COUNTS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
IMAGES = st.lists(st.builds(messages.Image, WORDS, WORDS, WORDS), max_size=2).map(tuple)
BLOCKS = st.one_of(
    st.builds(messages.Text, WORDS),
    st.builds(messages.Thinking, WORDS, WORDS),
    st.builds(messages.ToolCall, WORDS, WORDS, st.dictionaries(WORDS, JSON, max_size=3)),
    st.builds(messages.ToolResult, WORDS, WORDS, st.booleans(), IMAGES),
    st.builds(messages.Image, WORDS, WORDS, WORDS),
    st.just(messages.Opaque({"type": "redacted_thinking", "data": "x"})),
)
MESSAGES = st.builds(messages.Message, st.sampled_from(["user", "assistant"]), st.lists(BLOCKS, max_size=4).map(tuple))
POINTS = st.none() | st.sampled_from(get_args(events.Point))
TASKS = st.builds(events.TaskView, st.integers(1, 200), WORDS, st.sampled_from(get_args(events.TaskState)), WORDS)
AUTHORS = st.sampled_from(["user", "main", "explore-1"])
USAGE = st.builds(messages.Usage, COUNTS, COUNTS, COUNTS, COUNTS, st.none() | SECONDS)
OVERRIDES = st.builds(messages.Overrides, st.none() | COUNTS, st.none() | SECONDS, st.none() | WORDS)
RECORDS: dict[type[Any], st.SearchStrategy[Any]] = {
    records.Session: st.builds(records.Session, WORDS, WORDS, WORDS, WORDS, TEXTS, st.booleans(), COUNTS, WORDS),
    records.InstructionsRead: st.builds(records.InstructionsRead, WORDS, TEXTS, TEXTS),
    records.ServerTools: st.builds(
        records.ServerTools,
        st.lists(
            st.builds(
                *(events.OfferedTool, WORDS, WORDS, st.dictionaries(WORDS, JSON, max_size=3)),
                *(st.booleans(), st.booleans()),
            ),
            max_size=3,
        ).map(tuple),
    ),
    records.Line: st.builds(
        records.Line, *[WORDS] * 6, st.sampled_from(get_args(records.Effect)), COUNTS, st.booleans()
    ),
    records.RunBegun: st.builds(records.RunBegun, WORDS, st.booleans()),
    records.Receipt: st.builds(
        *(records.Receipt, WORDS, st.sampled_from(get_args(events.State)), WORDS, COUNTS, POINTS),
        *(st.none() | SECONDS, WORDS),
    ),
    records.Message: st.builds(
        *(records.Message, MESSAGES, WORDS, WORDS, st.booleans(), TEXTS, POINTS, WORDS, COUNTS, TEXTS),
    ),
    records.Withdrawn: st.builds(records.Withdrawn, COUNTS, WORDS, WORDS, TEXTS),
    records.ImagesRefused: st.builds(records.ImagesRefused, WORDS, COUNTS, TEXTS, TEXTS),
    records.ToolStarted: st.builds(records.ToolStarted, WORDS, WORDS, WORDS),
    records.ToolFinished: st.builds(records.ToolFinished, WORDS, WORDS, st.booleans(), SECONDS, WORDS, IMAGES),
    records.Question: st.builds(
        *(records.Question, WORDS, st.sampled_from(get_args(events.QuestionKind)), WORDS, WORDS, WORDS, WORDS),
        *(TEXTS, WORDS, TEXTS, WORDS, WORDS, st.sampled_from(["tool", "subject"]), st.booleans()),
    ),
    records.Answer: st.builds(
        *(records.Answer, WORDS, WORDS, st.sampled_from(get_args(events.Decision))),
        *(st.sampled_from(get_args(events.AnsweredBy)), WORDS, st.booleans()),
    ),
    records.AgentStarted: st.builds(records.AgentStarted, *[WORDS] * 5),
    records.AgentEnded: st.builds(
        *(records.AgentEnded, WORDS, WORDS, st.sampled_from(get_args(events.Status)), COUNTS, WORDS, USAGE)
    ),
    records.TaskAdded: st.builds(records.TaskAdded, WORDS, AUTHORS, WORDS),
    records.TaskClosed: st.builds(
        records.TaskClosed, st.integers(1, 200), st.sampled_from(["DONE", "FAILED"]), WORDS, AUTHORS, WORDS
    ),
    records.PlanReplaced: st.builds(records.PlanReplaced, TEXTS, AUTHORS, WORDS),
    records.PlanRestored: st.builds(records.PlanRestored, st.lists(TASKS, max_size=4).map(tuple), AUTHORS, WORDS),
    records.Model: st.builds(records.Model, WORDS),
    records.RequestSent: st.builds(
        records.RequestSent, WORDS, COUNTS, WORDS, WORDS, COUNTS, COUNTS, TEXTS, OVERRIDES, st.booleans()
    ),
    records.RequestEnded: st.builds(
        *(records.RequestEnded, WORDS, COUNTS, st.none() | st.sampled_from(get_args(messages.StopReason)), USAGE),
        *(st.none() | MESSAGES, TEXTS, WORDS, st.booleans(), st.none() | SECONDS, TEXTS, st.booleans(), WORDS),
        *(COUNTS, COUNTS, COUNTS),
    ),
    records.CompactionAsked: st.builds(records.CompactionAsked, WORDS, WORDS),
    records.Compacted: st.builds(
        *(
            records.Compacted,
            WORDS,
            COUNTS,
            st.sampled_from(get_args(events.CompactedBy)),
            WORDS,
            WORDS,
            COUNTS,
            COUNTS,
        ),
        *(TEXTS, TEXTS, WORDS, COUNTS, COUNTS),
    ),
    records.Interrupted: st.builds(
        *(records.Interrupted, WORDS, COUNTS, st.sampled_from(get_args(events.Phase))),
        *(st.sampled_from(["user", "line", "time"]), USAGE),
    ),
    records.Result: st.builds(records.Result, st.sampled_from(get_args(events.Status)), WORDS, COUNTS, USAGE),
}


def test_every_type_of_record_is_drawn() -> None:
    assert set(RECORDS) == set(get_args(records.Record))


@given(st.one_of(*RECORDS.values()), st.integers(1, 10**9), SECONDS, st.dictionaries(WORDS, COUNTS, max_size=3))
def test_what_is_written_is_read_back(record: records.Record, seq: int, time: float, looks: dict[str, int]) -> None:
    row = json.dumps({"type": record.type, "seq": seq, "time": time, **to_json(record), "looks": looks})
    assert from_json(json.loads(row)) == Entry(seq, time, record, looks)


@given(st.dictionaries(WORDS, JSON, max_size=4))
def test_a_record_of_another_version_is_kept_whole(fields: dict[str, Any]) -> None:
    row = {**fields, "type": "of the future", "seq": 7, "time": 1.5}
    entry = from_json(row)
    assert isinstance(entry.record, Unknown)
    assert {**to_json(entry.record), "type": "of the future", "seq": 7, "time": 1.5} == row


@given(st.sampled_from(sorted(kind.type for kind in RECORDS)), st.dictionaries(WORDS, JSON, max_size=4), st.data())
def test_what_is_no_record_says_so(type: str, fields: dict[str, Any], data: st.DataObject) -> None:
    names = [
        "id",
        "text",
        "kind",
        "agent",
        "message",
        "tasks",
        "by",
        "change",
        "status",
        "n",
        "usage",
        "state",
        "phase",
    ]
    fields |= {name: data.draw(JSON) for name in data.draw(st.sets(st.sampled_from(names)))}
    why = ""
    try:
        from_json({**fields, "type": type, "seq": 1, "time": 0.0})
    except ValueError as error:
        why = str(error)
    assert not why or why.startswith("record 1: ")
    with pytest.raises(ValueError, match="looks"):
        from_json({"type": "model", "seq": 1, "time": 0, "name": "x", "looks": {"main": "often"}})
    for broken in ({}, {"type": type}, {"type": 5, "seq": 1, "time": 0}, {"type": type, "seq": "1", "time": 0}):
        with pytest.raises(ValueError, match="a record needs a type, a seq and a time"):
            from_json(broken)


@pytest.mark.parametrize("number", [10**400, -1, 1e13])
def test_a_time_that_cannot_be_is_no_record(number: float) -> None:
    with pytest.raises(ValueError, match="the time of a record is in seconds"):
        from_json({"type": "model", "seq": 1, "time": number, "name": "x"})
    row = {"type": "receipt", "seq": 1, "time": 0, "id": "L1", "state": "queued", "agent": "main", "iteration": 0}
    with pytest.raises(ValueError, match="record 1: "):
        from_json({**row, "waited_s": 10**400})


def test_a_change_of_the_future_is_kept_whole() -> None:
    row = {"type": "plan", "seq": 1, "time": 0.0, "change": "sorted", "by": "user"}
    assert from_json(row).record == Unknown("plan", {"change": "sorted", "by": "user"})
