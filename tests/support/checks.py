"""The invariants of SPEC section 2, as far as they can be seen from outside."""

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
from chain.config.load import Settings
from chain.messages import to_json
from chain.model import Model, Request

from .asked import check_questions
from .crashes import check_readable
from .disks import FullDisk
from .replays import check_replays
from .sessions import INTERRUPTED, SKIPPED, Mark, Session, open_session, settings
from .small_window import ASKS
from .states import check_states
from .users import MARKED
from .walk import Walk, in_order, walked

FINAL = {"delivered", "handled", "returned", "dropped"}


ONE_IN = 6
"""One session in this number is replayed, since a replay takes 4 ms. The length of the journal decides which."""


def check_invariants(session: Session, *, max_iterations: int = 20) -> None:
    """Everything of SPEC section 2 that can be seen from outside, in every agent, once the chain is idle.

    ``max_iterations`` is the main agent's limit, and that of all kinds that have none of their own.
    """
    records = session.records
    _check_conservation(session, records)
    walk = walked(session, records, max_iterations)
    _check_requests(session.model.requests, _shortened(records))
    for agent in walk.agents.values():
        agent.check_kept()
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_told(session, records, walk)
    _check_order(records)
    check_questions(session, records)
    check_readable(session)
    check_states(session)
    if len(session.file.data) % ONE_IN == 0:
        check_replays(session)
    assert session.chain.is_running or {view.state for view in session.chain.agents} == {"finished"}


def check_session(session: Session, max_iterations: int) -> None:
    """Everything that must hold of an idle session; on a full disk, once it has room again and a run has ended."""
    if not isinstance(session.file, FullDisk):
        check_invariants(session, max_iterations=max_iterations)
    elif session.file.room == math.inf and session.of(events.Result)[-1:] and session.result.status != "error":
        check_full_disk(session)
    check_silence(session, session.interrupted_at)
    check_heard(session)


@asynccontextmanager
async def checked_session(model: Model | str, *, use: Settings | None = None, **options: Any) -> AsyncIterator[Session]:
    """Open a session as ``open_session`` does, and check at its end what must hold of every session."""
    use = use or settings()
    async with open_session(model, use=use, **options) as session:
        yield session
    check_session(session, use.chain().max_iterations)


async def check_next_run(session: Session) -> None:
    """The next run is like any other: it is answered, and nothing of it is skipped or cut."""
    count = len(session.events)
    assert (await session.run("Do another task")).status == "done"
    texts = {event.text for event in session.events[count:] if isinstance(event, events.ToolResult)}
    assert not texts & {SKIPPED, INTERRUPTED}
    check_invariants(session)
    check_silence(session, session.interrupted_at)


def check_full_disk(session: Session) -> None:
    """What holds also where the disk took some records and not others, once it has room again and a run has ended."""
    records = session.records
    receipts = {r.id: r for r in session.chain.lines.receipts if r.state != "refused"}
    assert {r["id"] for r in records if r["type"] == "line"} == set(receipts), "I1: accepted is on record"
    assert not session.chain.lines.waiting
    told: dict[str, list[str]] = {id: [] for id in receipts}
    for event in session.of(events.Receipt):
        if event.state not in ("refused", "unsent"):
            told[event.id].append(event.state)
    for id, receipt in receipts.items():
        assert told[id] in ([receipt.state], ["delivered", "returned"]), f"I1: {id} was told {told[id]}"
        assert told[id][-1] == receipt.state
        assert receipt.state in FINAL, f"I1: {id} is {receipt.state}"
    counted = [receipt for result in session.of(events.Result) for receipt in result.receipts]
    assert all(receipt.state in FINAL or receipt.state == "refused" for receipt in counted)
    _check_requests(session.model.requests, _shortened(records))
    ran = {r["id"] for r in records if r["type"] == "tool_started"}
    for request in session.model.requests:
        assert check_messages([to_json(message) for message in request.messages]) is None, "I2"
        for result in (result for message in request.messages for result in message.results):
            assert result.id not in ran or result.text != SKIPPED, f"{result.id} ran and was told as skipped"
    results = [event.id for event in session.of(events.ToolResult)]
    assert len(results) == len(set(results)), "a result is told once"
    assert {event.id for event in session.of(events.ToolCall)} <= set(results), "a call that was told has a result"
    _check_acknowledged(session, records)
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_order(records)


def _check_acknowledged(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """I6: a line that was told to be queued was on the disk by then."""
    ends: dict[str, int] = {}
    for item in in_order(session, records):
        match item:
            case Mark(what=events.LineQueued(id=id), synced=synced):
                assert ends[id] <= synced, f"I6: {id} was acknowledged before it was on the disk"
            case {"type": "line", "id": str(id), "end": int(end)}:
                ends.setdefault(id, end)  # it may have moved since, with a record that is not on the disk yet
            case _:
                pass


def check_silence(session: Session, interrupted_at: list[int]) -> None:
    """I4: after an interrupt, as after an ending, no tool starts and no iteration begins until the next run."""
    running = False
    for n, event in enumerate(session.events):
        running = running and n not in interrupted_at
        match event:
            case events.RunStarted():
                running = True
            case events.Result():
                running = False
            case events.IterationStarted() | events.ToolCall():
                assert running
            case _:
                pass


def check_heard(session: Session) -> None:
    """What a tool has acted on is neither dropped nor given back, unless a refusal took it out of the conversation."""
    heard = {m for e in session.of(events.ToolProgress) if "heard" in e.text for m in MARKED.findall(e.text)}
    for receipt in session.chain.lines.receipts:
        if heard.intersection(MARKED.findall(receipt.text)):
            assert receipt.state in ("delivered", "handled") or receipt.reason in ("refused", "context_full")


def _check_conservation(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """I1: every accepted line is in one final state, and the events tell the same story."""
    agents: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record["type"] == "line":
            agents[record["id"]].append(record["agent"])
    receipts = {r.id: r for r in session.chain.lines.receipts if r.state != "refused"}
    assert sorted(agents) == sorted(receipts), "each accepted line has one receipt"
    assert not session.chain.lines.waiting
    told: dict[str, list[str]] = {id: [] for id in agents}
    queued: dict[str, list[str]] = {id: [] for id in agents}
    recorded: dict[str, list[str]] = {id: [] for id in agents}
    for event in session.of(events.LineQueued, events.Receipt):
        if isinstance(event, events.LineQueued):
            assert not told[event.id], f"what became of {event.id} was told before that it waits"
            assert event.agent == event.target_agent
            queued[event.id].append(event.agent)
        elif event.state not in ("refused", "unsent"):
            told[event.id].append(event.state)
    for record in records:
        if record["type"] == "receipt":
            recorded[record["id"]].append(record["state"])
            assert record["agent"] == agents[record["id"]][-1]
    for id, receipt in receipts.items():
        assert receipt.state in FINAL, f"{id} is {receipt.state}"
        assert receipt.agent == agents[id][-1]
        # A line that starts a run, and one that is done at once, never waits.
        assert queued[id] == agents[id] or (not queued[id] and len(agents[id]) == 1)
        assert told[id][-1] == receipt.state
        assert told[id] == [receipt.state] or told[id] == ["delivered", "returned"], told[id]
        assert recorded[id] == told[id]


def _shortened(records: Sequence[dict[str, Any]]) -> int:
    """Return how many requests may differ from the start of the previous one: at withdrawals and compactions."""
    return sum(r["type"] in ("withdrawn", "compacted", "removed") for r in records)


def _check_requests(requests: Sequence[Request], withdrawals: int) -> None:
    """I7: in each conversation each request begins with the one before, but for the withdrawals on record."""
    breaks = 0
    conversations: dict[int, list[Request]] = defaultdict(list)
    for request in requests:
        assert all(text.strip() for text in request.tail)
        if request.messages[-1].text.startswith(ASKS):
            continue  # the walk knows what such a request may leave out
        conversations[id(request.memory)].append(request)
    for conversation in conversations.values():
        for before, after in pairwise(conversation):
            assert (before.system, before.tools) == (after.system, after.tools)
            breaks += tuple(after.messages[: len(before.messages)]) != tuple(before.messages)
    assert breaks <= withdrawals


def _check_told(session: Session, records: Sequence[dict[str, Any]], walk: Walk) -> None:
    """The events say of lines, agents and runs what the journal says."""
    was_compacted = any(r["type"] == "compacted" for r in records)
    deliveries = dict(walk.deliveries)
    for event in session.of(events.UserInterruption):
        agent, parent_id, iteration, left = deliveries.pop(event.ids)
        assert (event.agent, event.parent_id, event.iteration) == (agent, parent_id, iteration)
        assert event.target_agent == agent
        is_asked_again = (event.point == "N" or was_compacted) and event.remaining == left + 1
        assert is_asked_again or event.remaining == left > 0
    assert all(point == "start" for ids in deliveries for point in [_point(records, ids)]), "all are told"
    rows = [r for r in records if r["type"] in ("agent_started", "agent_ended")]
    told = [(e.name, e.agent, e.parent_id) for e in session.of(events.AgentStarted, events.AgentEnded)]
    assert told == [(r["name"], r["agent"], r["parent_id"]) for r in rows]
    assert [e.status for e in session.of(events.AgentEnded)] == [r["status"] for r in rows if "status" in r]
    if not isinstance(session.file, FullDisk):
        results = [(r["status"], r["iterations"]) for r in records if r["type"] == "result"]
        assert [(e.status, e.iterations) for e in session.of(events.Result)] == results
        for event, found in zip(session.of(events.Result), walk.found, strict=True):
            told, is_long = list(event.partial_results), sum(map(len, found)) > MAX_RESULT_CHARS
            # Of a long run the latest are kept.
            assert told == (found[-len(told) :] if told and is_long else found if event.partial else [])
    assert len(session.of(events.RunStarted)) == len(session.of(events.Result))


def _point(records: Sequence[dict[str, Any]], ids: Sequence[str]) -> object:
    return next(r["point"] for r in records if r["type"] == "message" and tuple(r["line_ids"]) == tuple(ids))


def _check_order(records: Sequence[dict[str, Any]]) -> None:
    """I9: an agent's lines are delivered in the order of acceptance, follow-ups and ends of jobs among themselves.

    That holds for those that came from an agent below too: while one works, the agent above delivers nothing.
    """
    lines = [r for r in records if r["type"] == "line"]
    order = {r["id"]: n for n, r in reversed(list(enumerate(lines)))}
    kinds = {r["id"]: r["kind"] for r in lines}
    delivered: dict[tuple[str, str], list[str]] = defaultdict(list)
    every = []
    for record in records:
        if record["type"] == "message":
            every += record["line_ids"]
            for id in record["line_ids"]:
                group = kinds[id] if kinds[id] in ("follow-up", "job") else ""
                delivered[record["agent"], group].append(id)
    for group in delivered.values():
        assert group == sorted(group, key=order.__getitem__)
    assert len(every) == len(set(every))
