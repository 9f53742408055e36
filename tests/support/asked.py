"""Checks of the questions that a session asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chain import events

from .sessions import Mark, Session
from .walk import in_order

DECIDED_BY = {
    "allowed": {"user", "config"},
    "refused": {"user", "nobody", "config"},
    "answered": {"user"},
    "withdrawn": {"user"},
}


def check_questions(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """Check that each question has one answer, that one is open at a time, and that calls start with approval."""
    questions = [r for r in records if r["type"] == "question"]
    answers = {r["id"]: r for r in records if r["type"] == "answer"}
    assert [r["id"] for r in questions] == [f"Q{n}" for n in range(1, len(questions) + 1)]
    assert sorted(answers) == sorted(r["id"] for r in questions)
    assert sum(r["type"] == "answer" for r in records) == len(questions)
    assert session.chain.questions.open_id is None
    _check_events(session, answers)
    _check_starts(session, records)


def _check_events(session: Session, answers: dict[str, dict[str, Any]]) -> None:
    """Check that the events agree with the records, and that one question is open at a time."""
    open_id = None
    emitted: list[str] = []
    for event in session.of(events.Question, events.Answer):
        if isinstance(event, events.Question):
            assert event.id not in emitted
            assert open_id is None or answers[event.id]["by"] != "user", "one question is open at a time"
            emitted.append(event.id)
            open_id = event.id if answers[event.id]["by"] == "user" else open_id
        else:
            record = answers[event.id]
            assert event.id in emitted
            assert (event.text, event.decision, event.by) == (record["text"], record["decision"], record["by"])
            assert event.by in DECIDED_BY[event.decision]
            open_id = None if open_id == event.id else open_id
    assert sorted(emitted) == sorted(answers)
    assert len(session.of(events.Answer)) == len(answers)


def _check_starts(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """Check that calls that need approval start only once the answer that allows them is on disk.

    The test tool ``change_file`` needs no approval for the path "none".
    """
    tools = {tool.name for tool in session.chain.tools if tool.needs_approval}
    started = {r["id"] for r in records if r["type"] == "tool_started"}
    calls = [e for e in session.of(events.ToolCall) if e.id in started and e.name in tools]
    needs_approval = {call.id for call in calls if call.input.get("path") != "none"}
    if not needs_approval:
        return
    allowed: dict[str, int] = {}
    approvals: dict[str, str] = {}
    for item in in_order(session, records):
        match item:
            case {"type": "question", "kind": "approval"}:
                approvals[item["id"]] = item["tool_call_id"]
            case {"type": "answer", "decision": "allowed"}:
                allowed[approvals[item["id"]]] = item["end"]
            case {"type": "tool_started"} if item["id"] in needs_approval:
                assert item["id"] in allowed, f"{item['name']} starts without approval"
            case Mark(what=events.ToolCall(id=id), synced=synced) if id in needs_approval:
                assert allowed[id] <= synced, "the call starts before the answer is on disk"
            case _:
                pass
