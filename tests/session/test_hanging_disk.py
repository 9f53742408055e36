"""A disk that hangs in a write: whom that holds up, what is lost by it, and what follows if it fails after all."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support import Recorder, settings
from support.gate import TWO_STEPS
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.app.open import open_chain
from chain.app.replay import replay
from chain.chain import Chain
from chain.errors import JournalError
from chain.events import Event
from chain.journal import file as journal_module
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.records import Unknown
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.tools.tool import Tool, ToolContext, tool

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


PATIENT_S, IMPATIENT_S = 1_000.0, 0.001
"""How long a write is waited for while the gate is open, and while it is closed: no machine is slow or fast enough to
change what happens."""


class Gate:
    """Holds up every write to a journal while it is closed; a write then fails if there is an ``error``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patches = monkeypatch
        self._passed_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + self._passed_s)
        monkeypatch.setattr(journal_module, "time", clock)
        monkeypatch.setattr(journal_module, "QUICK_S", PATIENT_S)
        self.error: OSError | None = None
        self.writes: list[int] = []
        """The rows of each write."""
        self._open = threading.Event()
        self._open.set()
        self._reached = trio.Event()
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def close(self) -> None:
        """Let no write end from now on."""
        self._token = trio.lowlevel.current_trio_token()
        self._patches.setattr(journal_module, "QUICK_S", IMPATIENT_S)
        self._open.clear()

    def open(self) -> None:
        """Let all writes end, and let so much time pass that the next one is waited for."""
        self._passed_s += PATIENT_S
        self._patches.setattr(journal_module, "QUICK_S", PATIENT_S)
        self._open.set()

    async def reached(self) -> None:
        """Wait until a write is held up."""
        await self._reached.wait()

    def write(self, fd: int, data: bytes) -> int:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
            return self._write(fd, data)
        if not self._open.is_set():
            self._token.run_sync_soon(self._reached.set)
            self._open.wait()
        if self.error is not None:
            raise self.error
        self.writes.append(bytes(data).count(b"\n"))
        return self._write(fd, data)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


def records(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(row) for row in data.split(b"\n")[:-1]]


def saying(said: list[str], what: str) -> Callable[[], None]:
    return lambda: said.append(what)


# ------------------------------------------------------------------------------------------------------- the journal


async def test_a_write_that_hangs_holds_up_nobody_but_those_who_wait_for_it(
    tmp_path: Path, gate: Gate, nursery: trio.Nursery
) -> None:
    said = list[str]()
    path = tmp_path / "s1.jsonl"
    with closing(DiskFile(path, is_new=True)) as file:
        journal = Journal(file, path=path)
        nursery.start_soon(journal.run)
        journal.record(Unknown("before", {}))
        await journal.written()
        gate.close()
        for n in range(100):
            journal.record(Unknown("line", {"n": n}))
            journal.acknowledge(saying(said, f"L{n}"))
            await gate.reached()
        journal.in_order(saying(said, "after"))

        async def wait(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            said.append("written")
            assert len(records(path.read_bytes())) == 101

        nursery.start_soon(wait, journal.written)
        nursery.start_soon(wait, journal.flush)
        await wait_all_tasks_blocked()
        assert (said, len(records(path.read_bytes()))) == ([], 1)

        gate.open()
        await journal.flush()
        await wait_all_tasks_blocked()
        assert said == [*(f"L{n}" for n in range(100)), "after", "written", "written"]
        assert [record.get("n") for record in records(path.read_bytes())] == [None, *range(100)]
        assert gate.writes == [1, 1, 99], "what came meanwhile is written together"
        journal.record(Unknown("line", {"n": 100}))
        assert len(records(path.read_bytes())) == 102


async def test_after_slow_writes_the_next_is_not_waited_for_until_some_time_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, gate, write = 10 * PATIENT_S, threading.Event(), os.write
    monkeypatch.setattr(journal_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(journal_module, "QUICK_S", PATIENT_S)

    def slowly(fd: int, data: bytes) -> int:
        nonlocal now
        now += 0.6 * PATIENT_S
        return write(fd, data)

    def stand(fd: int, data: bytes) -> int:
        gate.wait()
        return write(fd, data)

    with closing(DiskFile(tmp_path / "s1.jsonl", is_new=True)) as file:
        with monkeypatch.context() as disk:
            disk.setattr(os, "write", slowly)
            assert [file.append(b"x\n"), file.append(b"x\n")] == [False, False]
            disk.setattr(os, "write", stand)
            assert file.append(b"x\n"), "else this would wait for the gate, and for ever"
            gate.set()
            await file.sync()
        now += PATIENT_S
        assert not file.append(b"x\n")


async def test_a_flush_waits_for_what_is_late_also_where_nobody_is_to_be_told(
    tmp_path: Path, gate: Gate, nursery: trio.Nursery
) -> None:
    path, said = tmp_path / "s1.jsonl", list[str]()
    with closing(DiskFile(path, is_new=True)) as file:
        journal = Journal(file, path=path)
        nursery.start_soon(journal.run)
        gate.close()
        journal.record(Unknown("line", {}))
        journal.in_order(saying(said, "told"))
        assert said == ["told"], "what nobody has to wait for is told at once"
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.written()
        assert scope.cancelled_caught
        gate.open()
        await journal.written()
        assert len(records(path.read_bytes())) == 1
        await journal.written()


async def test_a_late_record_that_cannot_be_written_is_a_failure_for_good(
    tmp_path: Path, gate: Gate, nursery: trio.Nursery
) -> None:
    path, said, failed = tmp_path / "s1.jsonl", list[str](), list[str]()
    with closing(DiskFile(path, is_new=True)) as file:
        journal = Journal(file, path=path)
        journal.when_failed(lambda error: failed.append(str(error)))
        nursery.start_soon(journal.run)
        journal.record(Unknown("before", {}))
        gate.close()
        for n in range(3):
            journal.record(Unknown("line", {"n": n}))
        journal.acknowledge(saying(said, "queued"))
        journal.in_order(saying(said, "returned"))
        gate.error = FULL
        gate.open()
        with pytest.raises(JournalError, match=r"s1\.jsonl: No space left on device"):
            await journal.written()
        assert (said, len(failed)) == (["returned"], 1)
        gate.error = None
        with pytest.raises(JournalError, match="No space left"):
            journal.record(Unknown("line", {}))
        assert [record["type"] for record in records(path.read_bytes())] == ["before"]


async def test_a_late_failure_is_met_by_the_next_record_before_anybody_waited(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "s1.jsonl"
    with closing(DiskFile(path, is_new=True)) as file:
        gate.close()
        assert file.append(b"one\n")
        gate.error = FULL
        gate.open()
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                await file.sync()
            with pytest.raises(OSError, match="No space left"):
                file.append(b"two\n")


async def test_a_file_is_closed_when_its_last_write_has_ended(tmp_path: Path, gate: Gate) -> None:
    path = tmp_path / "s1.jsonl"
    file = DiskFile(path, is_new=True)
    gate.close()
    file.append(b"one\n")
    file.append(b"two\n")
    file.close()
    with pytest.raises(BlockingIOError):
        DiskFile(path)
    gate.open()
    await file._caught_up.wait()
    DiskFile(path).close()
    assert path.read_bytes() == b"one\ntwo\n"


# ------------------------------------------------------------------------------------------------------- a session


@dataclass
class Hanging:
    """A chain whose disk hangs from some event on, and all that it did."""

    chain: Chain
    model: Recorder
    gate: Gate
    told: list[Event] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    given: Sequence[Tool] = ()

    @property
    def begun(self) -> tuple[int, int]:
        """How many model calls and tools."""
        return len(self.model.requests), len(self.tools)

    @property
    def results(self) -> list[events.Result]:
        return [event for event in self.told if isinstance(event, events.Result)]

    async def hang(self, at: type[Event]) -> None:
        """Start a run, and wait until the disk hangs that does so from this event on."""

        def listen(event: Event) -> None:
            if isinstance(event, at) and event is next(each for each in self.told if isinstance(each, at)):
                self.gate.close()

        self.chain.listen(listen)
        assert self.chain.submit("Do the task").what == "started"
        await self.gate.reached()
        await wait_all_tasks_blocked()

    def check_record(self) -> None:
        """Check that the record is whole, and says of each line what was told."""
        assert self.chain.journal_path is not None
        rows = records(self.chain.journal_path.read_bytes())
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        recorded = {row["id"]: row["state"] for row in rows if row["type"] == "receipt"}
        assert recorded == {receipt.id: receipt.state for receipt in self.chain.receipts if receipt.state != "refused"}
        told = {event.id: event.state for event in self.told if isinstance(event, events.Receipt)}
        assert recorded.items() <= told.items()
        assert [row["status"] for row in rows if row["type"] == "result"] == [each.status for each in self.results]


@asynccontextmanager
async def hanging(folder: Path, gate: Gate, *, resume: str = "") -> AsyncIterator[Hanging]:
    tools: list[str] = []

    @tool
    async def wait(ctx: ToolContext) -> str:
        """Wait for nothing."""
        tools.append(ctx.call_id)
        return "waited"

    model = Recorder(ScriptedModel.parse(TWO_STEPS))
    async with open_chain(
        settings(), workspace=folder, state=folder / "state", model=model, tools=[wait], resume=resume
    ) as chain:
        found = Hanging(chain, model, gate, tools=tools, given=[wait])
        chain.listen(found.told.append)
        try:
            yield found
        except BaseException:
            gate.open()  # closing would wait for it
            raise


MOMENTS = [events.RunStarted, events.IterationStarted, events.Reply, events.ToolCall, events.ToolResult]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_while_the_disk_hangs_lines_come_in_nothing_begins_and_nothing_is_lost(
    moment: type[Event], tmp_path: Path, gate: Gate
) -> None:
    async with hanging(tmp_path, gate) as session:
        await session.hang(moment)
        begun, count = session.begun, len(session.told)
        for n in range(3):
            assert session.chain.submit(f"line {n}").what == "queued"
            await wait_all_tasks_blocked()
        assert session.begun == begun
        assert not [event for event in session.told[count:] if isinstance(event, events.LineQueued)]
        gate.open()
        await session.chain.wait_idle()
        assert session.results[-1].status == "done"
        assert {receipt.state for receipt in session.chain.receipts} == {"delivered"}
        assert len(session.tools) == 1
        session.check_record()


async def test_a_now_line_that_comes_before_the_request_is_on_the_disk_spends_no_iteration(
    tmp_path: Path, gate: Gate
) -> None:
    async with hanging(tmp_path, gate) as session:
        await session.hang(events.IterationStarted)
        assert session.chain.submit("use B", urgency="now").what == "queued"
        await wait_all_tasks_blocked()
        gate.open()
        await session.chain.wait_idle()
        assert [(result.status, result.iterations) for result in session.results] == [("done", 2)]
        assert len(session.model.requests) == 2
        session.check_record()
        assert session.chain.journal_path is not None
        rows = session.chain.journal_path.read_bytes().splitlines(keepends=True)
    assert [json.loads(row)["iteration"] for row in rows if b'"phase":"sent"' in row] == [1, 1, 2]
    found = replay(settings(), rows, tools=session.given)
    assert found.is_same, found.rows
    async with hanging(tmp_path, gate, resume=session.chain.session_id) as again:
        again.chain.submit("go on")
        await again.chain.wait_idle()
        assert [result.status for result in again.results] == ["done"]


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_interrupt_does_not_wait_for_a_disk_that_hangs(
    moment: type[Event], tmp_path: Path, gate: Gate
) -> None:
    async with hanging(tmp_path, gate) as session:
        await session.hang(moment)
        begun = session.begun
        assert session.chain.interrupt()
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert [result.status for result in session.results] == ["interrupted"]
        assert session.begun == begun
        assert session.chain.submit("go on").what == "started"
        await wait_all_tasks_blocked()
        assert session.begun == begun
        gate.open()
        await session.chain.wait_idle()
        assert [result.status for result in session.results] == ["interrupted", "done"]
        session.check_record()


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_disk_that_hangs_and_then_is_full_ends_the_run_and_returns_what_waits(
    moment: type[Event], tmp_path: Path, gate: Gate
) -> None:
    async with hanging(tmp_path, gate) as session:
        await session.hang(moment)
        begun = session.begun
        assert session.chain.submit("use B").what == "queued"
        gate.error = FULL
        gate.open()
        await session.chain.wait_idle()
        [result] = session.results
        assert (result.status, result.exit_code) == ("error", 1)
        assert "No space left on device" in result.result
        assert session.begun == begun
        [line] = [receipt for receipt in session.chain.receipts if receipt.id == "L2"]
        assert (line.state, line.reason) == ("returned", "error")
        assert not [event for event in session.told if isinstance(event, events.LineQueued)]
        gate.error = None
        refused = session.chain.submit("use C")
        assert (refused.what, "No space left on device" in refused.message) == ("refused", True)


@pytest.mark.parametrize("line", ["todo: add second", "todo: done 7", "status"])
async def test_what_was_done_at_once_comes_back_if_the_disk_is_full_after_all(
    line: str, tmp_path: Path, gate: Gate
) -> None:
    async with hanging(tmp_path, gate) as session:
        gate.close()
        assert session.chain.submit(line).what == "handled"
        await gate.reached()
        gate.error = FULL
        gate.open()
        await session.chain.wait_idle()
        [receipt] = session.chain.receipts
        assert receipt.state == "returned"
        assert "No space left on device" in receipt.reason
        assert [event.state for event in session.told if isinstance(event, events.Receipt)] == ["returned"]
        assert session.chain.exit_code() == 3


async def test_a_chain_that_is_left_while_its_disk_hangs_waits_for_it_and_loses_nothing(
    tmp_path: Path, gate: Gate
) -> None:
    async with trio.open_nursery() as nursery, hanging(tmp_path, gate) as session:
        await session.hang(events.Reply)
        session.chain.submit("use B")

        @nursery.start_soon
        async def open_it() -> None:
            await wait_all_tasks_blocked()
            gate.open()

    assert [result.status for result in session.results] == ["interrupted"]
    assert {receipt.id: receipt.state for receipt in session.chain.receipts} == {"L1": "delivered", "L2": "returned"}
    session.check_record()
