"""The invariants of SPEC section 2, as far as they can be seen from outside."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from double import check_messages

from chain import events
from chain.messages import from_json, to_json
from chain.model import Request

from .asked import check_questions
from .sessions import SKIPPED, Mark, Session
from .users import MARKED
from .walk import Walk, in_order

FINAL = {"delivered", "handled", "returned", "dropped"}


def check_invariants(session: Session, *, max_iterations: int = 20) -> None:
    """Everything of SPEC section 2 that can be seen from outside, once the chain is idle."""
    records = session.records
    _check_conservation(session, records)
    _check_requests(session.model.requests, sum(r["type"] == "withdrawn" for r in records))
    walk = Walk(session)
    for item in in_order(session, records):
        walk.take(item)
    assert [to_json(from_json(m)) for m in walk.history] == walk.history
    assert [r["seq"] for r in records] == list(range(1, len(records) + 1))
    _check_counts(session, max_iterations)
    _check_order(records)
    check_questions(session, records)


def check_full_disk(session: Session) -> None:
    """What holds also where the disk took some records and not others, once it has room again and a run has ended."""
    records = session.records
    receipts = {r.id: r for r in session.chain.receipts if r.state != "refused"}
    assert sorted(r["id"] for r in records if r["type"] == "line") == sorted(receipts), "I1: accepted is on record"
    assert not session.chain.waiting
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
    _check_requests(session.model.requests, sum(r["type"] == "withdrawn" for r in records))
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
                ends[id] = end
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
    for receipt in session.chain.receipts:
        if heard.intersection(MARKED.findall(receipt.text)):
            assert receipt.state in ("delivered", "handled") or receipt.reason == "refused"


def _check_conservation(session: Session, records: Sequence[dict[str, Any]]) -> None:
    """I1: every accepted line is in one final state, and the events tell the same story."""
    accepted = [r["id"] for r in records if r["type"] == "line"]
    receipts = {r.id: r for r in session.chain.receipts if r.state != "refused"}
    assert sorted(accepted) == sorted(receipts), "each accepted line has one receipt"
    assert not session.chain.waiting
    told: dict[str, list[str]] = {id: [] for id in accepted}
    recorded: dict[str, list[str]] = {id: [] for id in accepted}
    for event in session.of(events.LineQueued, events.Receipt):
        if isinstance(event, events.LineQueued):
            assert not told[event.id], f"what became of {event.id} was told before that it waits"
        elif event.state not in ("refused", "unsent"):
            told[event.id].append(event.state)
    for record in records:
        if record["type"] == "receipt":
            recorded[record["id"]].append(record["state"])
    for id, receipt in receipts.items():
        assert receipt.state in FINAL, f"{id} is {receipt.state}"
        assert told[id][-1] == receipt.state
        assert told[id] == [receipt.state] or told[id] == ["delivered", "returned"], told[id]
        assert recorded[id] == told[id]


def _check_requests(requests: Sequence[Request], withdrawals: int) -> None:
    """I7: each request begins with the one before, but for the withdrawals on record; and its tail is not blank."""
    breaks = 0
    for request in requests:
        assert all(text.strip() for text in request.tail)
    for before, after in pairwise(requests):
        assert (before.system, before.tools) == (after.system, after.tools)
        breaks += tuple(after.messages[: len(before.messages)]) != tuple(before.messages)
    assert breaks <= withdrawals


def _check_counts(session: Session, max_iterations: int) -> None:
    """I5: in each run the iterations count 1, 2, 3, ... and never pass the limit."""
    count = 0
    for event in session.events:
        match event:
            case events.RunStarted():
                count = 0
            case events.IterationStarted():
                count += 1
                assert event.iteration == count <= max_iterations
            case events.UserInterruption():
                assert event.iteration == count
                is_asked_again = event.point == "N" and event.remaining == session.chain.max_iterations - count + 1
                assert is_asked_again or event.remaining == session.chain.max_iterations - count > 0
            case events.Result():
                assert event.iterations == count
            case _:
                pass
    assert len(session.of(events.RunStarted)) == len(session.of(events.Result))


def _check_order(records: Sequence[dict[str, Any]]) -> None:
    """I9: lines are delivered in the order of acceptance, follow-ups among themselves."""
    order = {r["id"]: n for n, r in enumerate(records) if r["type"] == "line"}
    kinds = {r["id"]: r["kind"] for r in records if r["type"] == "line"}
    delivered = [id for r in records if r["type"] == "message" for id in r["line_ids"]]
    for is_follow_up in (True, False):
        group = [id for id in delivered if (kinds[id] == "follow-up") == is_follow_up]
        assert group == sorted(group, key=order.__getitem__)
    assert len(delivered) == len(set(delivered))
