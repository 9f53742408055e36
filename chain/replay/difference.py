"""The first difference of a replay in words: where it is, then both sides. Pure."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Iterator

from chain.journal import json as record_json
from chain.journal import records
from chain.journal.records import Entry, Record, Unknown
from chain.messages import Image, Message, Opaque, Text, Thinking, ToolCall, ToolResult
from chain.replay.tape import Difference
from chain.text.wording import counted

CONTEXT = 2
"""Rows of both sides around those that differ."""


def describe(difference: Difference) -> tuple[str, ...]:
    """A difference as rows: where it is, then both sides."""
    recorded, today = difference.recorded, difference.today
    at = f"{difference.agent}, iteration {difference.iteration}" if difference.iteration else difference.agent
    head = [f"The first difference ({at}): {_what(recorded, today)}.", *filter(None, [difference.why])]
    if difference.hangs_on_moment:
        head = [
            f"This session cannot be followed any further ({at}): what came of it hung on which of two things came "
            "first, which is not on record. chain help sessions says more."
        ]
    rows = difflib.unified_diff(_shown(recorded), _shown(today), "recorded", "today", lineterm="", n=CONTEXT)
    return (*head, *(row for row in rows if not row.startswith("@@")))


def describe_same(entries: Iterable[Entry], *, is_whole: bool) -> str:
    """Say that all is as it was, and of how many records of each type that is true.

    If the journal is not whole, what is missing from it was not compared.
    """
    # A model call that was cut has no record of its end.
    counts = Counter(e.record.type for e in entries if not isinstance(e.record, records.RequestEnded))
    found = {
        "run": counts["result"],
        "model call": counts["request"],
        "tool call": counts["tool_started"],
        "line": counts["line"],
    }
    same = "The same" if is_whole else "The same as far as the journal can be read"
    return f"{same}: {', '.join(counted(n, thing) for thing, n in found.items())}."


def _what(recorded: Record | Unknown | None, today: Record | Unknown | None) -> str:
    match recorded, today:
        case records.RequestSent(), records.RequestSent():
            return f"the request has {_request_parts(recorded, today)}"
        case records.Message(point=point), records.Message(point=other) if point == other and point is not None:
            return "what the model is told is another"
        case _, None:
            return f"{_name(recorded)} does not come"
        case _ if type(recorded) is type(today):
            return f"{_name(recorded)} is another"
        case _:
            return f"{_name(today)} comes instead of {_name(recorded)}"


def _request_parts(recorded: records.RequestSent, today: records.RequestSent) -> str:
    parts = {
        "system": "another system prompt",
        "tools": "other tools",
        "tail": "other instructions at its end",
        "overrides": "other settings",
        "max_iterations": "another limit of iterations",
        "iteration": "another iteration",
        "attempt": "another attempt",
    }
    found = [words for name, words in parts.items() if getattr(recorded, name) != getattr(today, name)]
    return " and ".join(found) or "another form"


_NOT_COMPARED = frozenset({"usage", "seconds", "waited_s", "waiting"})

_NAMES: dict[str, str] = {
    "line": "a line",
    "run": "the beginning of a run",
    "receipt": "a receipt",
    "withdrawn": "a withdrawal",
    "removed": "a removal of content",
    "tool_started": "the start of a tool",
    "tool_finished": "the end of a tool",
    "question": "a question",
    "answer": "an answer",
    "plan": "a change of the plan",
    "agent_started": "the start of an agent",
    "agent_ended": "the end of an agent",
    "interrupted": "a cut",
    "result": "the end of the run",
    "session": "an opening",
    "instructions": "a reading of the project instructions",
    "server_tools": "a change of the servers' tools",
    "model": "a change of the model",
}


def _name(record: Record | Unknown | None) -> str:
    match record:
        case None:
            return "nothing"
        case records.RequestSent():
            return "a request"
        case records.RequestEnded():
            return "the end of a request"
        case records.Message(message=message) if message.role == "assistant":
            return "a reply"
        case records.Message(message=message) if message.results:
            return "a message with results"
        case records.Message():
            return "a message to the model"
        case _:
            return _NAMES.get(record.type, record.type)


def _shown(record: Record | Unknown | None) -> list[str]:
    match record:
        case None:
            return ["(nothing)"]
        case records.Message(message=message):
            about = {name: getattr(record, name) for name in ("point", "line_ids", "source", "remaining", "skipped")}
            named = [f"{name}: {_plain(value)}" for name, value in about.items() if value]
            return [f"{_name(record)}, {message.role}", *named, *_rows_of(message)]
        case records.RequestSent():
            fields = record_json.to_json(record)
            rows = [
                f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items() if name != "tail"
            ]
            tail = [row for text in record.tail for row in ("tail:", *(f"  {row}" for row in text.splitlines()))]
            return [*rows, *tail]
        case _:
            return [_name(record), *_fields(record)]


def _plain(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _fields(record: Record | Unknown) -> Iterator[str]:
    for name, value in record_json.to_json(record).items():
        if name in _NOT_COMPARED:
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        first, *more = text.splitlines() or [""]
        yield f"{name}: {first}"
        yield from (f"  {row}" for row in more)


def _rows_of(message: Message) -> Iterator[str]:
    for block in message.blocks:
        match block:
            case Text(text) | Thinking(text):
                yield from text.splitlines()
            case ToolCall(id, name, input):
                yield f"call {id}: {name} {json.dumps(dict(input), ensure_ascii=False)}"
            case ToolResult(id, text, is_error, images):
                yield f"{'error of' if is_error else 'result of'} {id}:"
                yield from text.splitlines()
                yield from (f"image {image.name} ({image.digest[:16]})" for image in images)
            case Image(digest=digest, name=name):
                yield f"image {name} ({digest[:16]})"
            case Opaque(raw):
                yield json.dumps(dict(raw), ensure_ascii=False)
