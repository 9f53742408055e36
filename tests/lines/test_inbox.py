"""The inbox: accepting, refusing, draining and dropping lines, and their receipts."""

import json
from typing import Any

import pytest
import trio
from support.disks import FullDisk
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

    def restore(self, *lines: records.Line) -> AcceptedLine:
        """Record lines that an earlier process has accepted, and return the last one."""
        opening = records.Session("id", "0", "model", "/")  # the second one is of this process
        for record in (opening, *lines, opening):
            self.journal.record(record)
        *_, last = lines
        return self.state.lines.on_record[last.id]

    def refuse(self, text: str, *, id: str = "") -> str:
        """Put a line that is refused, and return the reason."""
        reason = self.inbox.put(parse_line(text), id=id)
        assert isinstance(reason, str)
        return reason

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
async def synced_desk(desk: Desk, nursery: trio.Nursery) -> Desk:
    """Return a desk whose journal is synced in the background."""
    nursery.start_soon(desk.journal.run)
    await wait_all_tasks_blocked()
    return desk


def texts(lines: tuple[AcceptedLine, ...]) -> list[str]:
    return [accepted.line.text for accepted in lines]


async def test_a_line_is_accepted_in_one_step(desk: Desk) -> None:
    accepted = desk.inbox.put(parse_line("!focus on prices"), origin="json")
    assert isinstance(accepted, AcceptedLine)
    assert desk.inbox.waiting() == (accepted,)
    assert desk.states == {"L1": "queued"}
    (record,) = desk.records
    assert (record["type"], record["id"], record["text"]) == ("line", "L1", "!focus on prices")
    assert (record["kind"], record["urgency"]) == ("guidance", "urgent")
    assert (record["agent"], record["origin"]) == ("main", "json")
    assert "by_rule" not in record


async def test_ids_are_numbered_across_inboxes(desk: Desk) -> None:
    desk.put("a")
    accepted = Inbox(desk.ledger, agent="explore").put(parse_line("b"))
    desk.put("c")
    assert isinstance(accepted, AcceptedLine)
    assert (accepted.id, accepted.agent) == ("L2", "explore")
    assert list(desk.states) == ["L1", "L2", "L3"]


async def test_a_sender_may_choose_the_id(desk: Desk) -> None:
    assert desk.put("a", id="mine").id == "mine"
    assert desk.put("b").id == "L1"


async def test_queued_lines_are_published_after_the_sync(synced_desk: Desk) -> None:
    synced_desk.disk.hold()
    synced_desk.put("focus on prices")
    synced_desk.put("status")
    await wait_all_tasks_blocked()
    assert synced_desk.emitted == []

    synced_desk.disk.release()
    await wait_all_tasks_blocked()

    assert synced_desk.disk.synced == synced_desk.disk.data
    queued = synced_desk.of(events.LineQueued)
    assert [(e.id, e.text, e.kind, e.target_agent, e.waiting, e.adjustment) for e in queued] == [
        ("L1", "focus on prices", "guidance", "main", 1, events.AdjustmentView("focus_query", "prices")),
        ("L2", "status", "question", "main", 2, None),
    ]


async def test_a_full_inbox_refuses() -> None:
    desk = Desk(size=2)
    desk.put("a")
    desk.put("b")

    reason = desk.inbox.put(parse_line("c"), id="mine", iteration=3)

    assert reason == "Interruption channel full, try again"
    assert texts(desk.inbox.waiting()) == ["a", "b"]
    (refusal,) = desk.of(events.LineRefused)
    assert (refusal.id, refusal.text, refusal.kind, refusal.urgency) == ("mine", "c", "redirect", "next")
    assert (refusal.waiting, refusal.reason, refusal.iteration) == (2, reason, 3)
    assert [r["text"] for r in desk.records] == ["a", "b"], "a refused line is not recorded"


async def test_the_length_of_a_line_is_limited(desk: Desk) -> None:
    desk.put("x" * MAX_LINE)
    reason = desk.refuse("x" * (MAX_LINE + 1))
    assert "100,001" in reason
    assert "the limit is 100,000" in reason
    assert len(desk.inbox) == 1


async def test_an_id_is_used_for_one_line_only(desk: Desk) -> None:
    desk.put("a", id="mine")

    assert "mine was used before" in desk.refuse("b", id="mine")
    desk.inbox.drain()
    assert "mine was used before" in desk.refuse("b", id="mine")
    desk.put("c")
    assert "L1 was used before" in desk.refuse("d", id="L1")
    assert [(r.id, r.text, r.state) for r in desk.ledger.receipts] == [
        ("mine", "a", "queued"),
        ("L1", "c", "queued"),
        ("mine", "b", "refused"),
        ("mine", "b", "refused"),
        ("L1", "d", "refused"),
    ]


@pytest.mark.parametrize("id", ["L1", "mine"])
async def test_ids_of_earlier_processes_can_be_reused(desk: Desk, id: str) -> None:
    restored = desk.restore(records.Line(id, "!old", "redirect", "urgent", "main"))
    assert (restored.line.urgency, restored.on_record) == ("next", id)
    accepted = desk.put("new", id=id)
    assert accepted.id == id
    assert accepted.on_record != id, "the journal keeps the id of the earlier line"
    assert restored.id == f"{id} (before)"
    assert [(r.id, r.text) for r in desk.ledger.receipts] == [(f"{id} (before)", "!old"), (id, "new")]
    assert "was used before" in desk.refuse("once more", id=id)


async def test_an_unknown_origin_is_restored_as_the_prompt(desk: Desk) -> None:
    restored = desk.restore(records.Line("L1", "old", "redirect", "next", "main", origin="future origin"))
    assert restored.origin == "prompt"


async def test_renaming_avoids_used_ids(desk: Desk) -> None:
    restored = desk.restore(records.Line("L1", "old", "redirect", "next", "main"))
    desk.put("a", id="L1 (before)")
    desk.put("b", id="L1")
    assert restored.id == "L1 (before) (before)"
    assert set(desk.states) == {restored.id, "L1 (before)", "L1"}


async def test_a_reopened_session_keeps_the_order_of_acceptance(desk: Desk) -> None:
    query_of_unstarted_run = records.Line("L1", "a", "redirect", "next", "main", effect="starts")
    desk.restore(query_of_unstarted_run, records.Line("L2", "b", "redirect", "next", "main"))
    assert texts(desk.inbox.waiting()) == ["a", "b"]


async def test_an_unwritable_line_is_refused(desk: Desk) -> None:
    desk.disk.full = True
    reason = desk.refuse("!hello")
    assert "No space left on device" in reason
    assert (desk.inbox.waiting(), desk.inbox.has_urgent, desk.records) == ((), False, [])
    assert [r.state for r in desk.ledger.receipts] == ["refused"]
    assert [e.type for e in desk.emitted] == ["line_refused", "receipt"]
    desk.disk.full = False
    assert desk.put("again").id == "L1"


async def test_after_a_failed_sync_all_lines_are_refused(synced_desk: Desk) -> None:
    synced_desk.disk.broken = True
    synced_desk.put("hello")
    await wait_all_tasks_blocked()
    assert "could not be flushed to disk" in synced_desk.refuse("again")
    assert synced_desk.of(events.LineQueued) == []
    assert texts(synced_desk.inbox.drain_all()) == ["hello"], "the first line can still be returned"


async def test_senders_are_notified_of_room(nursery: trio.Nursery) -> None:
    desk, sizes = Desk(size=2), list[int]()

    async def listen() -> None:
        while True:
            await desk.inbox.room.wait()
            sizes.append(len(desk.inbox))

    nursery.start_soon(listen)
    await wait_all_tasks_blocked()
    desk.put("then: a")
    desk.put("then: b")
    for act, expected_sizes in (
        (desk.inbox.waiting, []),
        (desk.inbox.drain, []),  # does not drain follow-ups
        (desk.inbox.take_follow_up, [1]),
        (desk.inbox.drain_all, [1, 0]),
        (lambda: desk.inbox.drop(desk.put("d").id), [1, 0, 0]),
    ):
        act()
        await wait_all_tasks_blocked()
        assert sizes == expected_sizes
    nursery.cancel_scope.cancel()


async def test_lines_are_drained_in_order(desk: Desk) -> None:
    for text in ("a", "!b", "todo: list", "c?", "then: d", "then: e"):
        desk.put(text)
    assert texts(desk.inbox.drain_todos()) == ["todo: list"]
    assert desk.inbox.has_urgent
    assert texts(desk.inbox.drain()) == ["a", "!b", "c?"]
    assert not desk.inbox.has_urgent
    follow_up = desk.inbox.take_follow_up()
    assert follow_up is not None
    assert (follow_up.line.text, texts(desk.inbox.waiting())) == ("then: d", ["then: e"])


async def test_a_dropped_line_leaves_the_others_in_order(synced_desk: Desk) -> None:
    for text in ("a", "!b", "then: c"):
        synced_desk.put(text)

    dropped = synced_desk.inbox.drop(" l2 ", iteration=3, reason="edited")
    await wait_all_tasks_blocked()

    assert (dropped.id, dropped.line.text) == ("L2", "!b")
    assert texts(synced_desk.inbox.waiting()) == ["a", "then: c"]
    assert not synced_desk.inbox.has_urgent
    (receipt,) = synced_desk.of(events.Receipt)
    assert (receipt.id, receipt.state, receipt.iteration, receipt.reason) == ("L2", "dropped", 3, "edited")
    assert (receipt.point, receipt.waited_s) == (None, None)
    *_, record = synced_desk.records
    assert (record["type"], record["id"], record["state"], record["reason"]) == ("receipt", "L2", "dropped", "edited")
    assert [e.type for e in synced_desk.emitted if getattr(e, "id", "") == "L2"] == ["line_queued", "receipt"]


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
    assert desk.inbox.drop("Mine").id == "Mine"
    assert desk.inbox.drop("MINE").id == "mine"


async def test_each_adjustment_is_given_once(desk: Desk) -> None:
    given = set[str]()
    focus, plain = desk.put("focus on prices"), desk.put("and hurry")

    assert desk.inbox.use_adjustments(given) == (Adjustment("focus_query", "prices"),)
    with pytest.raises(UserError, match="a running tool has acted on L1 already"):
        desk.inbox.drop("L1")
    skip = desk.put("skip docs")
    assert desk.inbox.use_adjustments(given) == (Adjustment("skip_source", "docs"),)
    assert desk.inbox.use_adjustments(given) == ()

    assert [line.is_used for line in (focus, plain, skip)] == [True, False, True]
    assert desk.inbox.use_adjustments(set()) == (Adjustment("focus_query", "prices"), Adjustment("skip_source", "docs"))
    assert desk.inbox.drain() == (focus, plain, skip)
    assert desk.inbox.use_adjustments(set()) == ()
    assert focus.is_used, "also after the line has left the inbox"


LEGAL = {("queued", state) for state in FINAL} | {("delivered", "returned")}


def put_with_state(desk: Desk, state: State) -> AcceptedLine:
    """Put a line, and bring it to this state."""
    accepted = desk.put("hello")
    desk.inbox.drain()
    if state != "queued":
        desk.ledger.settle(accepted, state, iteration=1)
    return accepted


@pytest.mark.parametrize(("old", "new"), sorted(LEGAL))
async def test_legal_changes_of_state_are_recorded(desk: Desk, old: State, new: State) -> None:
    accepted = put_with_state(desk, old)
    desk.ledger.settle(accepted, new, iteration=2)
    assert desk.states == {"L1": new}
    *_, record = desk.records
    assert (record["type"], record["state"]) == ("receipt", new)


async def test_a_returned_line_loses_its_delivery(desk: Desk) -> None:
    accepted = desk.put("hello")
    desk.ledger.settle(accepted, "delivered", iteration=1, point="D")
    desk.ledger.settle(accepted, "returned", iteration=2)
    (receipt,) = desk.ledger.receipts
    assert (receipt.point, receipt.waited_s) == (None, None)


@pytest.mark.parametrize(
    ("old", "new"), [(old, new) for old in ("queued", *FINAL) for new in STATES if (old, new) not in LEGAL]
)
async def test_illegal_changes_of_state_are_refused(desk: Desk, old: State, new: State) -> None:
    accepted = put_with_state(desk, old)
    before = desk.records
    with pytest.raises(ValueError, match=f"L1 cannot go from {old} to {new}"):
        desk.ledger.settle(accepted, new, iteration=2)
    assert desk.states == {"L1": old}
    assert desk.records == before


async def test_a_receipt_has_the_point_and_the_wait(synced_desk: Desk, mock_clock: MockClock) -> None:
    accepted = synced_desk.put("hello")
    mock_clock.jump(3.25)
    synced_desk.ledger.settle(accepted, "delivered", iteration=4, point="D")
    await wait_all_tasks_blocked()

    (receipt,) = synced_desk.of(events.Receipt)
    assert synced_desk.ledger.receipts == (receipt,)
    assert (receipt.id, receipt.text, receipt.state, receipt.agent) == ("L1", "hello", "delivered", "main")
    assert (receipt.iteration, receipt.point, receipt.waited_s) == (4, "D", 3.25)
    *_, record = synced_desk.records
    assert (record["type"], record["id"], record["state"]) == ("receipt", "L1", "delivered")
    assert (record["iteration"], record["point"], record["waited_s"]) == (4, "D", 3.25)


async def test_unsent_lines_are_published_and_counted(desk: Desk) -> None:
    desk.ledger.mark_unsent("@iteration 9 hurry", "too late", "main", id="mine", iteration=3)
    (receipt,) = desk.of(events.Receipt)
    assert (receipt.id, receipt.text, receipt.state) == ("mine", "@iteration 9 hurry", "unsent")
    assert receipt.reason == "too late"
    assert (desk.ledger.unsent, desk.ledger.settled()) == (1, LineOutcomes(unsent=("@iteration 9 hurry",)))


async def test_lines_are_settled_on_a_full_disk(desk: Desk) -> None:
    accepted = desk.put("hello")
    desk.disk.full = True
    desk.ledger.settle(accepted, "returned", iteration=1, reason="error")
    assert desk.states == {"L1": "returned"}
    with pytest.raises(JournalError):
        desk.journal.record(records.Unknown("anything", {}))
