"""Accepting and refusing lines: one step each, in order, and every line has a receipt."""

import json
from typing import Any

import pytest
import trio
from support import FullDisk
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.errors import JournalError, UserError
from chain.events import State
from chain.journal import records
from chain.journal.journal import Journal
from chain.lines.accepted import AcceptedLine
from chain.lines.inbox import Inbox
from chain.lines.parse import MAX_LINE, Adjustment, parse_line
from chain.lines.receipts import Ledger, LineOutcomes
from chain.session.state import State as SessionState

FINAL: tuple[State, ...] = ("delivered", "handled", "returned", "dropped")
STATES: tuple[State, ...] = ("queued", *FINAL, "refused", "unsent")


class Desk:
    """An inbox with its journal and ledger, and the emitted events."""

    def __init__(self, size: int = 10) -> None:
        self.disk = FullDisk()
        self.journal = Journal(self.disk)
        self.emitted: list[events.Event] = []
        self.state = SessionState()
        self.ledger = Ledger(self.journal, self.state.lines, self.emitted.append)
        self.journal.connect(self.state.apply, self.emitted.append)
        self.inbox = Inbox(self.ledger, agent="main", size=size)

    def put(self, text: str, *, id: str = "") -> AcceptedLine:
        accepted = self.inbox.put(parse_line(text), id=id)
        assert isinstance(accepted, AcceptedLine)
        return accepted

    def of_earlier_process(self, record: records.Line) -> AcceptedLine:
        """Return a line that was accepted before another process opened the session."""
        opening = records.Session("id", "0", "model", "/")
        for each in (opening, record, opening):
            self.journal.record(each)
        return self.state.lines.on_record[record.id]

    def refused(self, text: str, *, id: str = "") -> str:
        refused = self.inbox.put(parse_line(text), id=id)
        assert isinstance(refused, str)
        return refused

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(row) for row in self.disk.data.splitlines()]

    @property
    def states(self) -> dict[str, str]:
        return {r.id: r.state for r in self.ledger.receipts}

    def of(self, type: type[events.Event]) -> list[Any]:
        return [e for e in self.emitted if isinstance(e, type)]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def synced(desk: Desk, nursery: trio.Nursery) -> Desk:
    """Return a desk whose journal is synced in the background."""
    nursery.start_soon(desk.journal.run)
    await wait_all_tasks_blocked()
    return desk


def texts(lines: tuple[AcceptedLine, ...]) -> list[str]:
    return [a.line.text for a in lines]


# -------------------------------------------------------------------------------------------------------- accepting


async def test_a_line_is_accepted_in_one_step(desk: Desk) -> None:
    accepted = desk.inbox.put(parse_line("!focus on prices"), origin="json")

    assert isinstance(accepted, AcceptedLine)
    assert desk.inbox.waiting() == (accepted,)
    assert desk.states == {"L1": "queued"}
    (record,) = desk.records
    expected = {"type": "line", "id": "L1", "text": "!focus on prices", "kind": "guidance", "urgency": "urgent"}
    assert {**record, **expected, "agent": "main", "origin": "json"} == record
    assert "by_rule" not in record


async def test_ids_are_numbered_or_the_senders(desk: Desk) -> None:
    other = Inbox(desk.ledger, agent="explore")

    assert desk.put("a").id == "L1"
    assert desk.put("b", id="mine").id == "mine"
    accepted = other.put(parse_line("c"))
    assert isinstance(accepted, AcceptedLine)
    assert (accepted.id, accepted.agent) == ("L2", "explore")
    assert desk.put("d").id == "L3"
    assert list(desk.states) == ["L1", "mine", "L2", "L3"]


async def test_queued_lines_are_published_after_the_sync(synced: Desk) -> None:
    synced.disk.hold()
    synced.put("focus on prices")
    synced.put("status")
    await wait_all_tasks_blocked()
    assert synced.emitted == []

    synced.disk.release()
    await wait_all_tasks_blocked()

    assert synced.disk.synced == synced.disk.data
    queued = synced.of(events.LineQueued)
    assert [(e.id, e.text, e.kind, e.target_agent, e.waiting, e.adjustment) for e in queued] == [
        ("L1", "focus on prices", "guidance", "main", 1, events.AdjustmentView("focus_query", "prices")),
        ("L2", "status", "question", "main", 2, None),
    ]


# --------------------------------------------------------------------------------------------------------- refusing


async def test_a_full_inbox_refuses() -> None:
    desk = Desk(size=2)
    desk.put("a")
    desk.put("b")

    refused = desk.inbox.put(parse_line("c"), id="mine", iteration=3)

    assert refused == "Interruption channel full, try again"
    assert texts(desk.inbox.waiting()) == ["a", "b"]
    (event,) = desk.of(events.LineRefused)
    assert (event.id, event.text, event.kind, event.urgency) == ("mine", "c", "redirect", "next")
    assert (event.waiting, event.reason, event.iteration) == (2, "Interruption channel full, try again", 3)
    assert [r["text"] for r in desk.records] == ["a", "b"], "it was never accepted, so the journal does not know it"


async def test_the_length_of_a_line_is_limited(desk: Desk) -> None:
    desk.put("x" * MAX_LINE)

    refused = desk.refused("x" * (MAX_LINE + 1))

    assert "100,001" in refused
    assert "the limit is 100,000" in refused
    assert len(desk.inbox) == 1


async def test_an_id_is_used_for_one_line_only(desk: Desk) -> None:
    desk.put("a", id="mine")

    assert "mine was used before" in desk.refused("b", id="mine")
    desk.inbox.drain()
    assert "mine was used before" in desk.refused("b", id="mine")
    desk.put("c")
    assert "L1 was used before" in desk.refused("d", id="L1")
    assert [(r.id, r.text, r.state) for r in desk.ledger.receipts] == [
        ("mine", "a", "queued"),
        ("L1", "c", "queued"),
        ("mine", "b", "refused"),
        ("mine", "b", "refused"),
        ("L1", "d", "refused"),
    ]


@pytest.mark.parametrize("id", ["L1", "mine"])
async def test_ids_of_earlier_processes_can_be_reused(desk: Desk, id: str) -> None:
    before = desk.of_earlier_process(records.Line(id, "!old", "redirect", "urgent", "main", "not known yet"))
    assert (before.origin, before.line.urgency, before.on_record) == ("prompt", "next", id)

    assert desk.put("new", id=id).id == id

    assert before.id == f"{id} (before)"
    assert [(r.id, r.text) for r in desk.ledger.receipts] == [(f"{id} (before)", "!old"), (id, "new")]
    assert desk.records[-1]["id"] != id, "what is on record keeps its id"
    assert "was used before" in desk.refused("once more", id=id)


async def test_renaming_avoids_used_ids(desk: Desk) -> None:
    before = desk.of_earlier_process(records.Line("L1", "old", "redirect", "next", "main"))
    desk.put("a", id="L1 (before)")
    desk.put("b", id="L1")

    assert before.id == "L1 (before) (before)"
    assert set(desk.states) == {before.id, "L1 (before)", "L1"}


async def test_a_reopened_session_keeps_the_order_of_acceptance(desk: Desk) -> None:
    opening = records.Session("id", "0", "model", "/")
    starting = records.Line("L1", "a", "redirect", "next", "main", "prompt", "starts")
    for each in (opening, starting, records.Line("L2", "b", "redirect", "next", "main"), opening):
        desk.journal.record(each)
    assert texts(desk.inbox.waiting()) == ["a", "b"], "also of a line whose run never began"


async def test_an_unwritable_line_is_refused(desk: Desk) -> None:
    desk.disk.full = True

    refused = desk.refused("!hello")

    assert "No space left on device" in refused
    assert (desk.inbox.waiting(), desk.inbox.has_urgent, desk.records) == ((), False, [])
    assert [r.state for r in desk.ledger.receipts] == ["refused"]
    assert [e.type for e in desk.emitted] == ["line_refused", "receipt"]
    desk.disk.full = False
    assert desk.put("again").id == "L1"


async def test_after_a_failed_sync_all_lines_are_refused(synced: Desk) -> None:
    synced.disk.broken = True
    synced.put("hello")
    await wait_all_tasks_blocked()

    assert "could not be flushed to disk" in synced.refused("again")
    assert synced.of(events.LineQueued) == []
    assert texts(synced.inbox.drain_all()) == ["hello"], "it can still be given back"


# ------------------------------------------------------------------------------------------------------- taking out


async def test_senders_are_notified_of_room(nursery: trio.Nursery) -> None:
    desk, room = Desk(size=2), list[int]()

    async def listen() -> None:
        while True:
            await desk.inbox.room.wait()
            room.append(len(desk.inbox))

    nursery.start_soon(listen)
    await wait_all_tasks_blocked()
    desk.put("then: a")
    desk.put("then: b")
    for take, expected in (
        (desk.inbox.waiting, []),
        (desk.inbox.drain, []),
        (desk.inbox.next_follow_up, [1]),
        (desk.inbox.drain_all, [1, 0]),
        (lambda: desk.inbox.drop(desk.put("d").id), [1, 0, 0]),
    ):
        take()
        await wait_all_tasks_blocked()
        assert room == expected
    nursery.cancel_scope.cancel()


# --------------------------------------------------------------------------------------------------------- dropping


async def test_lines_are_drained_in_order(desk: Desk) -> None:
    for text in ("a", "!b", "todo: list", "c?", "then: d", "then: e"):
        desk.put(text)

    assert texts(desk.inbox.drain_todos()) == ["todo: list"]
    assert (desk.inbox.has_urgent, texts(desk.inbox.drain()), desk.inbox.has_urgent) == (True, ["a", "!b", "c?"], False)
    follow_up = desk.inbox.next_follow_up()
    assert follow_up is not None
    assert (follow_up.line.text, texts(desk.inbox.waiting())) == ("then: d", ["then: e"])


async def test_a_dropped_line_leaves_the_others_in_order(synced: Desk) -> None:
    for text in ("a", "!b", "then: c"):
        synced.put(text)

    dropped = synced.inbox.drop(" l2 ", iteration=3, reason="edited")
    await wait_all_tasks_blocked()

    assert (dropped.id, dropped.line.text) == ("L2", "!b")
    assert texts(synced.inbox.waiting()) == ["a", "then: c"]
    assert not synced.inbox.has_urgent
    (receipt,) = synced.of(events.Receipt)
    assert (receipt.id, receipt.state, receipt.iteration, receipt.reason) == ("L2", "dropped", 3, "edited")
    assert (receipt.point, receipt.waited_s) == (None, None)
    record = synced.records[-1]
    assert (record["type"], record["id"], record["state"], record["reason"]) == ("receipt", "L2", "dropped", "edited")
    assert [e.type for e in synced.emitted if getattr(e, "id", "") == "L2"] == ["line_queued", "receipt"]


async def test_only_waiting_lines_can_be_dropped(desk: Desk) -> None:
    with pytest.raises(UserError, match=r"^no line is waiting$"):
        desk.inbox.drop("L1")
    for text in "abc":
        desk.put(text)
    desk.inbox.drop("L2")

    for id in ("L2", "l9"):
        with pytest.raises(UserError, match=f"^{id} is not waiting; the waiting lines are L1, L3$"):
            desk.inbox.drop(id)
    assert desk.states == {"L1": "queued", "L2": "dropped", "L3": "queued"}


async def test_exact_ids_are_preferred_to_other_cases(desk: Desk) -> None:
    for id in ("mine", "Mine"):
        desk.put("a", id=id)

    assert [desk.inbox.drop(id).id for id in ("Mine", "MINE")] == ["Mine", "mine"]


# ------------------------------------------------------------------------------------------------------ adjustments


async def test_each_adjustment_is_given_once(desk: Desk) -> None:
    seen = set[str]()
    focus, plain = desk.put("focus on prices"), desk.put("and hurry")

    assert desk.inbox.adjustments(seen) == (Adjustment("focus_query", "prices"),)
    with pytest.raises(UserError, match="a running tool has acted on L1 already"):
        desk.inbox.drop("L1")
    skip = desk.put("skip docs")
    assert desk.inbox.adjustments(seen) == (Adjustment("skip_source", "docs"),)
    assert desk.inbox.adjustments(seen) == ()

    assert [a.was_used for a in (focus, plain, skip)] == [True, False, True]
    assert desk.inbox.adjustments(set()) == (Adjustment("focus_query", "prices"), Adjustment("skip_source", "docs"))
    assert desk.inbox.drain() == (focus, plain, skip)
    assert desk.inbox.adjustments(set()) == ()
    assert focus.was_used, "also when the line has left the channel"


# --------------------------------------------------------------------------------------------------------- receipts

LEGAL = {("queued", state) for state in FINAL} | {("delivered", "returned")}


def settled(desk: Desk, state: State) -> AcceptedLine:
    """A line in this state."""
    accepted = desk.put("hello")
    desk.inbox.drain()
    if state != "queued":
        desk.ledger.settle(accepted, state, iteration=1)
    return accepted


@pytest.mark.parametrize(("old", "new"), sorted(LEGAL))
async def test_legal_changes_of_state(desk: Desk, old: State, new: State) -> None:
    accepted = settled(desk, old)

    desk.ledger.settle(accepted, new, iteration=2)

    assert desk.states == {"L1": new}
    assert [r["state"] for r in desk.records if r["type"] == "receipt"][-1] == new
    assert old != "delivered" or (desk.ledger.receipts[0].point, desk.ledger.receipts[0].waited_s) == (None, None)


@pytest.mark.parametrize(
    ("old", "new"), [(old, new) for old in ("queued", *FINAL) for new in STATES if (old, new) not in LEGAL]
)
async def test_illegal_changes_of_state(desk: Desk, old: State, new: State) -> None:
    accepted = settled(desk, old)
    before = desk.records

    with pytest.raises(ValueError, match=f"L1 cannot go from {old} to {new}"):
        desk.ledger.settle(accepted, new, iteration=2)

    assert desk.states == {"L1": old}
    assert desk.records == before


async def test_a_receipt_says_where_and_how_long_after(synced: Desk, mock_clock: MockClock) -> None:
    accepted = synced.put("hello")
    mock_clock.jump(3.25)
    synced.ledger.settle(accepted, "delivered", iteration=4, point="D")
    await wait_all_tasks_blocked()

    (receipt,) = synced.of(events.Receipt)
    assert synced.ledger.receipts == (receipt,)
    assert (receipt.id, receipt.text, receipt.state, receipt.agent) == ("L1", "hello", "delivered", "main")
    assert (receipt.iteration, receipt.point, receipt.waited_s) == (4, "D", 3.25)
    record = synced.records[-1]
    assert (record["type"], record["id"], record["state"]) == ("receipt", "L1", "delivered")
    assert (record["iteration"], record["point"], record["waited_s"]) == (4, "D", 3.25)


async def test_unsent_lines_are_published_and_counted(desk: Desk) -> None:
    desk.ledger.mark_unsent("@iteration 9 hurry", "too late", "main", id="mine", iteration=3)

    (event,) = desk.of(events.Receipt)
    assert (event.id, event.text, event.state, event.reason) == ("mine", "@iteration 9 hurry", "unsent", "too late")
    assert (desk.ledger.unsent, desk.ledger.settled()) == (1, LineOutcomes(unsent=("@iteration 9 hurry",)))


async def test_lines_are_settled_on_a_full_disk(desk: Desk) -> None:
    accepted = desk.put("hello")
    desk.disk.full = True

    desk.ledger.settle(accepted, "returned", iteration=1, reason="error")

    assert desk.states == {"L1": "returned"}
    with pytest.raises(JournalError):
        desk.journal.record(records.Unknown("anything", {}))


# ------------------------------------------------------------------------------- conservation, order (I1, I9)
