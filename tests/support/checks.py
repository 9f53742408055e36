"""Checks of the invariants I1 to I9 of SPEC section 2, by the requests, records and events of a session."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from double import check_messages

from chain import events
from chain.agent.state import MAX_RESULT_CHARS
from chain.app.replay import Replayed, replay
from chain.config.load import Settings
from chain.messages import to_json
from chain.model import Model, Request

from .crashes import check_readable
from .disks import FullDisk
from .sessions import INTERRUPTED, SKIPPED, Mark, Session, make_settings, modification_times, open_session
from .small_window import SUMMARY_REQUEST
from .states import check_states
from .users import LINE_MARK
from .walk import Walk, merge_in_order, walk_session

FINAL = {"delivered", "handled", "returned", "dropped"}
"""The final states of an accepted line."""

DECIDED_BY = {
    "allowed": {"user", "config"},
    "refused": {"user", "nobody", "config"},
    "answered": {"user"},
    "withdrawn": {"user"},
}
"""Who may make each decision."""

REPLAYED_ONE_IN = 6
"""One session in this number is replayed, since a replay takes 4 ms. The length of the journal decides which."""


def check_invariants(session: Session, *, max_iterations: int = 20) -> None:
    """Check all invariants of an idle chain, in every agent.

    ``max_iterations`` is the limit of the main agent, and of each kind of agent without a limit of its own.
    """
    records = session.records
    _check_conservation(session, records)
    walk = walk_session(session, records, max_iterations)
    _check_requests(session.model.requests, _shortened(records))
    for agent in walk.agents.values():
        agent.check_kept()
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_events(session, records, walk)
    _check_order(records)
    check_questions(session, records)
    check_readable(session)
    check_states(session)
    if len(session.file.data) % REPLAYED_ONE_IN == 0:
        check_replays(session)
    assert session.chain.is_running or {view.state for view in session.chain.agents} == {"finished"}


def check_session(session: Session, max_iterations: int) -> None:
    """Check an idle session. Its disk may be full, but is only checked after it has room again and a run has ended."""
    if not isinstance(session.file, FullDisk):
        check_invariants(session, max_iterations=max_iterations)
    elif session.file.room == math.inf and session.of(events.Result)[-1:] and session.result.status != "error":
        check_full_disk(session)
    check_no_late_starts(session, session.interrupted_at)
    check_used_lines(session)


@asynccontextmanager
async def checked_session(
    model: Model | str, *, settings: Settings | None = None, **options: Any
) -> AsyncIterator[Session]:
    """Yield a session as ``open_session`` does, and check it at the end of the block."""
    settings = settings or make_settings()
    async with open_session(model, settings=settings, **options) as session:
        yield session
    check_session(session, settings.chain().max_iterations)


async def check_next_run(session: Session) -> None:
    """Start another run, and check that it is answered and that none of its tools is skipped or interrupted."""
    earlier_events = len(session.events)
    assert (await session.run("Do another task")).status == "done"
    texts = {event.text for event in session.events[earlier_events:] if isinstance(event, events.ToolResult)}
    assert not texts & {SKIPPED, INTERRUPTED}
    check_invariants(session)
    check_no_late_starts(session, session.interrupted_at)


def check_full_disk(session: Session) -> None:
    """Check what holds even if the disk refused some records, after it has room again and a run has ended."""
    records = session.records
    receipts = {r.id: r for r in session.chain.lines.receipts if r.state != "refused"}
    assert {r["id"] for r in records if r["type"] == "line"} == set(receipts), "I1: each accepted line is on record"
    assert not session.chain.lines.waiting
    states: dict[str, list[str]] = {id: [] for id in receipts}
    for event in session.of(events.Receipt):
        if event.state not in ("refused", "unsent"):
            states[event.id].append(event.state)
    for id, receipt in receipts.items():
        assert states[id] in ([receipt.state], ["delivered", "returned"]), f"I1: the receipts of {id} are {states[id]}"
        assert states[id][-1] == receipt.state
        assert receipt.state in FINAL, f"I1: {id} is {receipt.state}"
    of_results = [receipt for result in session.of(events.Result) for receipt in result.receipts]
    assert all(receipt.state in FINAL or receipt.state == "refused" for receipt in of_results)
    _check_requests(session.model.requests, _shortened(records))
    started = {r["id"] for r in records if r["type"] == "tool_started"}
    for request in session.model.requests:
        assert check_messages([to_json(message) for message in request.messages]) is None, "I2"
        for result in (result for message in request.messages for result in message.results):
            assert result.id not in started or result.text != SKIPPED, f"{result.id} ran, but its result is: skipped"
    results = [event.id for event in session.of(events.ToolResult)]
    assert len(results) == len(set(results)), "each result has one event"
    assert {event.id for event in session.of(events.ToolCall)} <= set(results), "each call with an event has a result"
    _check_acknowledged(session, records)
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_order(records)


def _check_acknowledged(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """Check I6: a line was on the disk before its event ``line_queued``."""
    ends: dict[str, int] = {}
    for item in merge_in_order(session, records):
        match item:
            case Mark(what=events.LineQueued(id=id), synced=synced):
                assert ends[id] <= synced, f"I6: {id} was acknowledged before it was on the disk"
            case {"type": "line", "id": str(id), "end": int(end)}:
                ends.setdefault(id, end)  # a later record, not on the disk yet, may have given it to another agent
            case _:
                pass


def check_no_late_starts(session: Session, interrupted_at: list[int]) -> None:
    """Check I4: after an interrupt or the end of a run, no tool and no iteration starts until the next run.

    ``interrupted_at`` are the numbers of events that had happened before each interrupt.
    """
    is_running = False
    for n, event in enumerate(session.events):
        is_running = is_running and n not in interrupted_at
        match event:
            case events.RunStarted():
                is_running = True
            case events.Result():
                is_running = False
            case events.IterationStarted() | events.ToolCall():
                assert is_running
            case _:
                pass


def check_used_lines(session: Session) -> None:
    """Check that a line that a tool used is delivered, unless it was withdrawn from the conversation."""
    used = {mark for e in session.of(events.ToolProgress) if "heard" in e.text for mark in LINE_MARK.findall(e.text)}
    for receipt in session.chain.lines.receipts:
        if used.intersection(LINE_MARK.findall(receipt.text)):
            assert receipt.state in ("delivered", "handled") or receipt.reason in ("refused", "context_full")


def _check_conservation(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """Check I1: every accepted line is in one final state, and its events agree with its records."""
    agents: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record["type"] == "line":
            agents[record["id"]].append(record["agent"])
    receipts = {r.id: r for r in session.chain.lines.receipts if r.state != "refused"}
    assert sorted(agents) == sorted(receipts), "each accepted line has one receipt"
    assert not session.chain.lines.waiting
    queued_for: dict[str, list[str]] = {id: [] for id in agents}
    states: dict[str, list[str]] = {id: [] for id in agents}
    recorded_states: dict[str, list[str]] = {id: [] for id in agents}
    for event in session.of(events.LineQueued, events.Receipt):
        if isinstance(event, events.LineQueued):
            assert not states[event.id], f"{event.id} has a receipt before its event line_queued"
            assert event.agent == event.target_agent
            queued_for[event.id].append(event.agent)
        elif event.state not in ("refused", "unsent"):
            states[event.id].append(event.state)
    for record in records:
        if record["type"] == "receipt":
            recorded_states[record["id"]].append(record["state"])
            assert record["agent"] == agents[record["id"]][-1]
    for id, receipt in receipts.items():
        assert receipt.state in FINAL, f"{id} is {receipt.state}"
        assert receipt.agent == agents[id][-1]
        # A line that starts a run, or that is carried out immediately, is never queued.
        assert queued_for[id] == agents[id] or (not queued_for[id] and len(agents[id]) == 1)
        assert states[id][-1] == receipt.state
        assert states[id] == [receipt.state] or states[id] == ["delivered", "returned"], states[id]
        assert recorded_states[id] == states[id]


def _shortened(records: Sequence[dict[str, Any]]) -> int:
    """Return the number of records that shorten a conversation, after which a request may differ from the previous."""
    return sum(r["type"] in ("withdrawn", "compacted", "removed") for r in records)


def _check_requests(requests: Sequence[Request], shortenings: int) -> None:
    """Check I7: each request of a conversation begins with the one before, with at most ``shortenings`` exceptions."""
    differences = 0
    conversations: dict[int, list[Request]] = defaultdict(list)
    for request in requests:
        assert all(text.strip() for text in request.tail)
        if request.messages[-1].text.startswith(SUMMARY_REQUEST):
            continue  # the module walk checks the requests for a summary
        conversations[id(request.memory)].append(request)
    for conversation in conversations.values():
        for before, after in pairwise(conversation):
            assert (before.system, before.tools) == (after.system, after.tools)
            differences += tuple(after.messages[: len(before.messages)]) != tuple(before.messages)
    assert differences <= shortenings


def _check_events(session: Session, records: Sequence[dict[str, Any]], walk: Walk) -> None:
    """Check that the events of deliveries, agents and runs agree with the journal."""
    was_compacted = any(r["type"] == "compacted" for r in records)
    deliveries = dict(walk.deliveries)
    for event in session.of(events.UserInterruption):
        agent, parent_id, iteration, remaining = deliveries.pop(event.ids)
        assert (event.agent, event.parent_id, event.iteration) == (agent, parent_id, iteration)
        assert event.target_agent == agent
        # A request that was cancelled or too long is repeated, and counts as remaining until then.
        is_repeated = (event.point == events.Point.AT_ONCE or was_compacted) and event.remaining == remaining + 1
        assert is_repeated or event.remaining == remaining > 0
    assert all(_point_of(records, ids) == "start" for ids in deliveries), "each delivery but a query has an event"
    rows = [r for r in records if r["type"] in ("agent_started", "agent_ended")]
    agents = [(e.name, e.agent, e.parent_id) for e in session.of(events.AgentStarted, events.AgentEnded)]
    assert agents == [(r["name"], r["agent"], r["parent_id"]) for r in rows]
    assert [e.status for e in session.of(events.AgentEnded)] == [r["status"] for r in rows if "status" in r]
    if not isinstance(session.file, FullDisk):
        results = [(r["status"], r["iterations"]) for r in records if r["type"] == "result"]
        assert [(e.status, e.iterations) for e in session.of(events.Result)] == results
        for event, recorded in zip(session.of(events.Result), walk.run_results, strict=True):
            partial_results, is_long = list(event.partial_results), sum(map(len, recorded)) > MAX_RESULT_CHARS
            if partial_results and is_long:  # the event has only the latest ones
                recorded = recorded[-len(partial_results) :]
            elif not event.partial:
                recorded = []
            assert partial_results == recorded
    assert len(session.of(events.RunStarted)) == len(session.of(events.Result))


def _point_of(records: Sequence[dict[str, Any]], ids: Sequence[str]) -> object:
    """Return the safe point at which these lines were delivered."""
    return next(r["point"] for r in records if r["type"] == "message" and tuple(r["line_ids"]) == tuple(ids))


def _check_order(records: Sequence[dict[str, Any]]) -> None:
    """Check I9: each agent receives its lines in the order of acceptance, except that follow-ups and jobs wait longer.

    This includes lines that a child agent passes on: while a child works, its parent receives no lines.
    """
    lines = [r for r in records if r["type"] == "line"]
    order = {r["id"]: n for n, r in reversed(list(enumerate(lines)))}
    kinds = {r["id"]: r["kind"] for r in lines}
    delivered: dict[tuple[str, str], list[str]] = defaultdict(list)
    for record in records:
        if record["type"] == "message":
            for id in record["line_ids"]:
                group = kinds[id] if kinds[id] in ("follow-up", "job") else ""
                delivered[record["agent"], group].append(id)
    for ids in delivered.values():
        assert ids == sorted(ids, key=order.__getitem__)
    every_id = [id for ids in delivered.values() for id in ids]
    assert len(every_id) == len(set(every_id)), "no line is delivered twice"


def check_questions(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """Check that each question has one answer, that one is open at a time, and that calls start with approval."""
    questions = [r for r in records if r["type"] == "question"]
    answers = {r["id"]: r for r in records if r["type"] == "answer"}
    assert [r["id"] for r in questions] == [f"Q{n}" for n in range(1, len(questions) + 1)]
    assert sorted(answers) == sorted(r["id"] for r in questions)
    assert sum(r["type"] == "answer" for r in records) == len(questions)
    assert session.chain.questions.open_id is None
    _check_question_events(session, answers)
    _check_starts(session, records)


def _check_question_events(session: Session, answers: dict[str, dict[str, Any]]) -> None:
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
    for item in merge_in_order(session, records):
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


def replay_session(session: Session) -> Replayed:
    """Return the replay of a session with its own settings."""
    assert session.settings is not None
    return replay(session.settings, session.file.data.splitlines(keepends=True), tools=session.tools)


def check_replays(session: Session) -> None:
    """Check that a replay finds no difference, unless prompts were changed while the session was open."""
    if session.settings is not None and modification_times(session.settings) == session.prompts:
        replayed = replay_session(session)
        assert replayed.is_same, "\n".join(replayed.rows)
