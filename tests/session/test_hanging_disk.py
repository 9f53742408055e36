"""A disk that hangs in a sync: only acknowledgements wait for it. It may fail after all. ``L1`` is the query."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support.checks import check_invariants
from support.disks import FullDisk, MemoryFile
from support.gate import TWO_STEPS, Gate
from support.places import Place
from support.sessions import Session, call_at_event, open_session
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.events import Event
from chain.journal import file as journal
from chain.session.exit_codes import LINES_LEFT

GUARD_S = 60
"""The limit, in seconds, after which a sync that nothing releases fails the test."""

LINES_WHILE_HANGING = 8
"""The number of lines that arrive while the disk hangs: a few, within the size of the inbox."""

MOMENTS = [events.RunStarted, events.IterationStarted, events.Reply, events.ToolCall, events.ToolResult]


@asynccontextmanager
async def run_on_hanging_disk(disk: MemoryFile, moment: type[Event]) -> AsyncIterator[Session]:
    """Start a run. At its first event of this type the disk begins to hang and the line "use B" arrives."""
    gate = Gate()
    gate.open.set()
    async with open_session(TWO_STEPS, tools=[gate.tool], file=disk) as session:

        def hang_and_submit() -> None:
            disk.hold()
            assert session.chain.submit("use B").what == "queued"

        call_at_event(session, moment, hang_and_submit)
        assert session.chain.submit("Do the task").what == "started"
        await wait_all_tasks_blocked()
        yield session


@pytest.mark.parametrize("moment", MOMENTS)
async def test_lines_are_neither_acknowledged_nor_sent(moment: type[Event]) -> None:
    disk = MemoryFile()
    async with run_on_hanging_disk(disk, moment) as session:
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
async def test_an_interrupt_does_not_wait_for_the_disk(moment: type[Event]) -> None:
    disk = MemoryFile()
    async with run_on_hanging_disk(disk, moment) as session:
        requests_before = len(session.model.requests)
        assert session.chain.interrupt()
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert session.chain.submit("go on").what == "started"
        await wait_all_tasks_blocked()
        assert len(session.model.requests) == requests_before, "the next run waits for the disk"
        disk.release()
        await session.chain.wait_idle()
        assert [result.status for result in session.of(events.Result)] == ["interrupted", "done"]


@pytest.mark.parametrize(
    "line", ["todo: add second", "todo: done 7", "status"], ids=["add a task", "end an unknown task", "status"]
)
async def test_a_failed_sync_returns_handled_lines(line: str) -> None:
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
        assert session.chain.runs.exit_code() == LINES_LEFT


async def test_closing_waits_for_the_sync() -> None:
    disk = MemoryFile()
    async with trio.open_nursery() as nursery, run_on_hanging_disk(disk, events.Reply) as session:

        @nursery.start_soon
        async def release() -> None:
            await wait_all_tasks_blocked()
            disk.release()

    assert [result.status for result in session.of(events.Result)] == ["interrupted"]
    assert session.state("L1") == "delivered"
    assert disk.synced == disk.data


async def test_the_event_loop_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a real file: if a step of the loop waited for the disk, nothing would release it."""
    disk_works, sync = threading.Event(), journal._fdatasync

    def hang(fd: int) -> None:
        assert disk_works.wait(GUARD_S)
        sync(fd)

    gate = Gate()
    place = Place(tmp_path, tmp_path / "state", TWO_STEPS, [gate.tool])
    async with place.open() as chain:
        chain.submit("Do the task")
        await gate.started.wait()
        monkeypatch.setattr(journal, "_fdatasync", hang)
        queued = [chain.submit(f"line {n}").id for n in range(LINES_WHILE_HANGING)]
        assert chain.journal_path is not None
        records_of_lines = chain.journal_path.read_bytes().count(b'{"type":"line"')
        assert records_of_lines == LINES_WHILE_HANGING + 1, "the lines and the query are written, but not synced"
        gate.open.set()
        for _ in range(1_000):  # more steps than an ordinary run needs
            await trio.lowlevel.checkpoint()
        assert chain.is_running, "the request with the lines waits until they are on disk"
        assert not [event for event in place.all_events if isinstance(event, events.LineQueued)]
        disk_works.set()
        await chain.wait_idle()
        assert [event.id for event in place.all_events if isinstance(event, events.LineQueued)] == queued
