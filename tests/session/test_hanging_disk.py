"""A disk that hangs in a sync: what waits for it, what does not, and what follows if the sync fails after all."""

from __future__ import annotations

import pytest
import trio
from support import FullDisk, MemoryFile, Session, at, check_invariants, open_session
from support.gate import TWO_STEPS, Gate
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.events import Event

MOMENTS = [events.RunStarted, events.IterationStarted, events.Reply, events.ToolCall, events.ToolResult]


def open_gate() -> Gate:
    gate = Gate()
    gate.open.set()
    return gate


async def hang(session: Session, disk: MemoryFile, moment: type[Event]) -> None:
    """Start a run during which the disk hangs from an event on, in whose step a line comes in."""

    def begin() -> None:
        disk.hold()
        assert session.chain.submit("use B").what == "queued"

    at(session, moment, begin)
    assert session.chain.submit("Do the task").what == "started"
    await wait_all_tasks_blocked()


@pytest.mark.parametrize("moment", MOMENTS)
async def test_while_a_sync_hangs_lines_are_not_acknowledged_and_no_call_carries_them(moment: type[Event]) -> None:
    disk = MemoryFile()
    async with open_session(TWO_STEPS, tools=[open_gate().tool], file=disk) as session:
        await hang(session, disk, moment)
        assert session.chain.submit("use C").what == "queued"
        await wait_all_tasks_blocked()
        assert session.of(events.LineQueued) == []
        assert "use B" not in str([request.messages for request in session.model.requests])
        disk.release()
        await session.chain.wait_idle()
        assert [event.id for event in session.of(events.LineQueued)] == ["L2", "L3"]
        assert session.result.status == "done"
        assert [session.state(f"L{n}") for n in (1, 2, 3)] == ["delivered"] * 3
        check_invariants(session)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_interrupt_does_not_wait_for_a_sync_that_hangs(moment: type[Event]) -> None:
    disk = MemoryFile()
    async with open_session(TWO_STEPS, tools=[open_gate().tool], file=disk) as session:
        await hang(session, disk, moment)
        asked = len(session.model.requests)
        assert session.chain.interrupt()
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert session.chain.submit("go on").what == "started"
        await wait_all_tasks_blocked()
        assert len(session.model.requests) == asked
        disk.release()
        await session.chain.wait_idle()
        assert [result.status for result in session.of(events.Result)] == ["interrupted", "done"]


@pytest.mark.parametrize("line", ["todo: add second", "todo: done 7", "status"])
async def test_what_was_done_at_once_comes_back_if_the_sync_fails(line: str) -> None:
    disk = FullDisk()
    async with open_session(TWO_STEPS, file=disk) as session:
        disk.hold()
        assert session.chain.submit(line).what == "handled"
        await wait_all_tasks_blocked()
        disk.broken = True
        disk.release()
        await session.chain.wait_idle()
        [receipt] = session.chain.lines.receipts
        assert receipt.state == "returned"
        assert "Input/output error" in receipt.reason
        assert [event.state for event in session.of(events.Receipt)] == ["returned"]
        assert session.chain.runs.exit_code() == 3


async def test_a_chain_that_is_left_while_a_sync_hangs_waits_for_it_and_loses_nothing() -> None:
    disk = MemoryFile()
    async with trio.open_nursery() as nursery, open_session(TWO_STEPS, tools=[open_gate().tool], file=disk) as session:
        await hang(session, disk, events.Reply)

        @nursery.start_soon
        async def release() -> None:
            await wait_all_tasks_blocked()
            disk.release()

    assert [result.status for result in session.of(events.Result)] == ["interrupted"]
    assert session.state("L1") == "delivered"
    assert disk.synced == disk.data
