"""Workers in the process of the test: what they start, resume, hand over and lose."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from support import redis

from chain import FunctionTool, ToolContext, tool
from chain.app import remote, session_worker
from chain.app.open import open_chain
from chain.app.remote import RemoteSession, remote_session
from chain.app.session_worker import DEADLY, MAX_TAKEOVERS, Worker, WorkerLimits
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.errors import SessionError, ToolError
from chain.redis import mailbox, scripts
from chain.redis.redis_store import RedisStore
from chain.text.wording import GO_ON

pytestmark = [pytest.mark.slow, *redis.MARKS]

CONFIG = f"{redis.CONFIG}inbox: {{size: 3}}\n"
LONG_S = 50.0
"""A lease that does not end within a test."""
Row = Mapping[str, Any]


class Steps:
    """The tool ``step``, which waits for ``gate``. If it is ``deaf``, it also waits after a cancellation."""

    def __init__(self, *, is_open: bool = False, is_deaf: bool = False) -> None:
        self.count = 0
        self.gate = trio.Event()
        self.has_begun = trio.Event()
        if is_open:
            self.gate.set()

        @tool(name="step", read_only=True)
        async def step(context: ToolContext) -> str:
            """Take a step."""
            self.count += 1
            self.has_begun.set()
            with trio.CancelScope(shield=is_deaf):
                await self.gate.wait()
            return "stepped"

        self.tool: FunctionTool = step


class Asking:
    """The tool ``step``, which asks a question."""

    def __init__(self) -> None:
        self.heard: list[str] = []

        @tool(name="step", kind="ask", timeout_s=math.inf)
        async def step(context: ToolContext) -> str:
            """Take a step."""
            try:
                self.heard.append(await context.asking.choose("Which?", ["red", "blue"]))
            except ToolError:
                self.heard.append("nobody")
            return "stepped"

        self.tool: FunctionTool = step


class Reports(list[str]):
    """The reports of a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.came = trio.Event()

    def add(self, what: str) -> None:
        self.append(what)
        self.came.set()

    async def until(self, what: str) -> None:
        """Wait until the latest report matches an expression."""
        while not (self and re.match(what, self[-1])):
            self.came = trio.Event()
            await self.came.wait()


@dataclass
class Working:
    """A running worker."""

    worker: Worker
    said: Reports
    steps: Any


@dataclass
class Place:
    """A server, and a folder in which workers run its sessions."""

    server: redis.OwnRedis
    settings: Settings
    folder: Path
    store: RedisStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = RedisStore(self.server.address)

    def worker(self, steps: Any, said: Callable[[str], object], *, lease_s: float = 2.0, **limits: Any) -> Worker:
        shared = replace(self.settings, state=self.server.address)
        limited = WorkerLimits(**limits)
        return Worker(shared, self.folder / "state", limited, said, tools=[steps.tool], lease_s=lease_s)

    @asynccontextmanager
    async def working(self, steps: Any = None, **options: Any) -> AsyncIterator[Working]:
        """Run a worker for the block. At the end it leaves."""
        said, steps = Reports(), steps or Steps(is_open=True)
        worker = self.worker(steps, said.add, **options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            yield Working(worker, said, steps)
            worker.leave()

    def watched(self, id: str = "", *, folder: Path | None = None, is_new: bool | None = None) -> Any:
        """Reach a session from elsewhere; without an id, a new one."""
        found = {"id": id, "workspace": folder or self.folder, "is_new": not id if is_new is None else is_new}
        return remote_session(self.server.address, **found, say=lambda what: None)

    @asynccontextmanager
    async def interrupted(self, steps: Steps, **options: Any) -> AsyncIterator[tuple[RemoteSession, Working, str]]:
        """Start a run at a worker that loses it in the block. Yield also the id of a line that waits."""
        async with self.watched() as session, self.working(steps, lease_s=LONG_S, **options) as first:
            await session.send("work on it")
            await steps.has_begun.wait()
            note, _ = await session.send("note: as well")
            await event(session, lambda row: row["type"] == "line_queued")
            yield session, first, note
            steps.gate.set()
            await first.said.came.wait()
            assert "another process has taken over the session" in first.said[0]

    def opened(self, steps: Any, store: RedisStore | None = None) -> AbstractAsyncContextManager[Chain]:
        """Open a session in this process."""
        state = self.folder / "state"
        store = store or self.store
        return open_chain(self.settings, workspace=self.folder, state=state, store=store, tools=[steps.tool])

    def end_lease(self, session: RemoteSession) -> None:
        """Let a lease end, as if its holder had not responded."""
        self.server.command("HSET", scripts.key(session.id, "meta"), "until", "0")
        self.server.command("ZADD", scripts.DUE, "0", session.id)

    def steal(self, session: RemoteSession) -> None:
        """Give a session to another worker that dies, as if the server had been away for longer than the lease."""
        self.server.command("HSET", scripts.key(session.id, "meta"), "token", "another", "is_worker", "1")
        self.end_lease(session)

    def rows(self, id: str) -> list[bytes]:
        with self.store.rows(id) as found:
            return list(found)


@pytest.fixture
def place(server: redis.OwnRedis, tmp_path: Path) -> Place:
    """Configure workers for the server."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={})
    return Place(server, settings, tmp_path)


async def event(session: RemoteSession, wanted: Callable[[Row], bool]) -> Row:
    """Return the first event that is wanted."""
    async for row in session.events():
        if wanted(row):
            return row
    raise AssertionError


def ended(row: Row) -> bool:
    return row["type"] == "result"


def is_done(row: Row) -> bool:
    return ended(row) and row["status"] == "done"


# ---------------------------------------------------------------------------------------------------- lines and runs


async def test_lines_start_runs_and_have_outcomes(place: Place) -> None:
    async with place.working() as working, place.watched() as session:
        id, known = await session.send("work on it")
        assert known.state == "queued"
        assert (await session.outcome(id)).state == "delivered"
        assert (await event(session, is_done))["result"] == "Done: work on it"
        assert working.steps.count == 4
        id, _ = await session.send("status")
        assert "nothing is running" in (await session.outcome(id)).reason
        id, _ = await session.send("stop")
        assert (await session.outcome(id)).state == "handled"
        await session.send("and again")
        await event(session, lambda row: ended(row) and row["result"] == "Done: and again")
    async with place.store.connect() as connection:
        rows = [each.row for each in await place.store.events(connection, session.id, "0", wait_s=0.01)]
    assert [row["type"] for row in rows].count("run_started") == 1, "only the events of the last run are stored"


async def test_a_full_inbox_refuses_all_but_stops(place: Place) -> None:
    steps = Steps()
    async with place.working(steps), place.watched() as session:
        await session.send("work on it")
        await steps.has_begun.wait()
        sent = [await session.send(f"note {n}") for n in range(4)]
        assert [known.state for _, known in sent] == ["queued"] * 3 + ["refused"]
        assert "full" in sent[-1][1].reason
        async with place.watched(session.id) as another:
            stop, known = await another.send("stop")
            assert known.state == "queued"
            assert (await another.outcome(stop)).state == "handled"
        steps.gate.set()
        assert {(await session.outcome(id)).state for id, _ in sent[:3]} <= {"delivered", "returned"}


async def test_an_opened_session_has_the_same_inbox(place: Place) -> None:
    steps = Steps()
    async with place.opened(steps) as chain, place.watched(chain.session_id) as session:
        chain.start("work on it")
        await steps.has_begun.wait()
        assert [(await session.send(f"note {n}"))[1].state for n in range(4)] == ["queued"] * 3 + ["refused"]


async def test_lines_that_need_no_room_wait_too(place: Place) -> None:
    steps = Steps(is_deaf=True)
    async with place.watched() as session, place.working(steps):
        await session.send("work on it")
        await steps.has_begun.wait()
        sent = [await session.send(f"!!note {n}") for n in range(8)]
        assert {said.state for _, said in sent} == {"queued"}
        await trio.testing.wait_all_tasks_blocked(0.2)
        steps.gate.set()
        assert [(await session.outcome(id)).state for id, _ in sent] == ["delivered"] * 8


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["", "the server has lost the status"])
async def test_a_line_that_is_sent_twice_counts_once(place: Place, is_forgotten: bool) -> None:
    row = {"id": "one", "type": "line", "text": "work on it"}
    async with place.store.connect() as connection, place.watched() as session:
        for _ in range(2):
            assert (await place.store.submit(connection, session.id, row, needs_room=True)).state == "queued"
        async with place.working():
            assert (await session.outcome("one")).state == "delivered"
            if is_forgotten:
                place.server.command("HDEL", scripts.key(session.id, "ids"), "one")
            known = await place.store.submit(connection, session.id, row, needs_room=True)
            assert known.state == ("queued" if is_forgotten else "delivered")
            assert (await session.outcome("one")).state == "delivered"
            assert (await event(session, ended))["result"] == "Done: work on it"
    assert len([row for row in place.rows(session.id) if b'"type":"line"' in row]) == 1


async def test_malformed_rows_are_skipped(place: Place) -> None:
    async with place.watched() as session:
        lines = scripts.key(session.id, "lines")
        hello = '{"type":"hello","id":"y","for_s":%s}'
        bad = ["no JSON", "[]", "{}", '{"type":"line","id":"x","text":1}', '{"type":"hello","id":"y"}']
        bad += [hello % 1, hello % "NaN", hello % ("1" + "0" * 400), '{"type":"line","id":"\\ud800","text":"status"}']
        for row in bad:
            place.server.command("XADD", lines, "*", "j", row)
        place.server.command("XADD", lines, "*", "other", "{")
        async with place.working() as working:
            id, _ = await session.send("hello")
            assert (await session.outcome(id)).state == "delivered"
            await event(session, ended)
        assert not working.said


async def test_events_are_published_with_their_records(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "TEXT_PAUSE_S", math.inf)
    async with place.opened(Steps(is_open=True)) as chain, place.store.connect() as connection:
        chain.start("work on it")
        await chain.wait_idle()
        types, after = list[str](), "0"
        while "result" not in types:  # the server may answer before the event is on its disk
            found = await place.store.events(connection, chain.session_id, after, wait_s=1)
            types += [each.row["type"] for each in found]
            after = found[-1].place if found else after
        assert (types.count("tool_result"), types.count("reply")) == (4, 4)


async def test_a_tool_runs_after_its_start_is_stored(place: Place) -> None:
    seen = list[bool]()

    @tool(name="step")
    async def step(context: ToolContext) -> str:
        """Take a step."""
        records = [json.loads(row) for row in place.rows(chain.session_id)]  # blocks the loop: no record is written
        seen.append(any(each["type"] == "tool_started" and each["id"] == context.call_id for each in records))
        return "stepped"

    async with place.opened(SimpleNamespace(tool=step)) as chain:
        chain.start("work on it")
        await chain.wait_idle()
    assert seen == [True] * 4


# ----------------------------------------------------------------------------------------- workers that lose a session


@pytest.mark.parametrize("ahead_s", [0, -3_600, 3_600])
async def test_another_worker_resumes_an_interrupted_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The clock of the first worker differs from that of the server and of the second worker."""
    first, right = Steps(), time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
    async with place.interrupted(first, keep_s=60.0) as (session, _, note):
        monkeypatch.setattr(time, "time", right)
        place.end_lease(session)
        async with place.working(keep_s=60.0):
            await event(session, lambda row: ended(row) and row["status"] == "interrupted")
            assert GO_ON in (await event(session, is_done))["result"]
            assert (await session.outcome(note)).state == "delivered"
    records = [json.loads(row) for row in place.rows(session.id)]
    interrupted = "[Interrupted: stopped while running, it may have had effects]"
    assert interrupted in json.dumps(records)
    assert [each["type"] for each in records].count("session") == 2
    steps = [abs(later["time"] - former["time"]) for former, later in pairwise(records)]
    assert (max(steps) > 3_500) == (ahead_s != 0), "both wrote"
    assert min(row.get("waited_s") or 0 for row in records if row["type"] == "receipt") >= 0
    (stored,) = await trio.to_thread.run_sync(place.store.summaries)
    assert stored.runs == 2
    assert abs(stored.changed - right()) < 60, "by the clock of the server"


async def test_a_stopped_run_is_not_resumed(place: Place) -> None:
    async with place.interrupted(Steps(is_deaf=True)) as (session, _, note):
        stop, _ = await session.send("stop")
        assert (await session.outcome(stop)).state == "handled"
        place.end_lease(session)
        async with place.working() as second:
            assert (await session.outcome(note)).state == "returned"
            await session.send("hello")
            assert (await event(session, is_done))["result"] == "Done: hello"
        assert second.steps.count == 0


async def test_runs_without_a_worker_are_not_resumed(place: Place) -> None:
    steps = Steps()
    async with place.watched() as session, place.working(steps, lease_s=LONG_S) as first:
        await session.send("work on it")
        await steps.has_begun.wait()
        place.server.command("HDEL", scripts.key(session.id, "meta"), "token")  # as if it had been released long ago
        place.end_lease(session)
        async with place.working() as second:
            await session.send("hello")
            assert (await event(session, is_done))["result"] == "Done: hello"
        assert second.steps.count == 0
        await first.said.came.wait()


async def test_a_run_is_not_resumed_after_several_deaths(place: Place) -> None:
    async with place.watched() as session, AsyncExitStack() as stack:
        await session.send("work on it")
        dead: list[Steps] = []
        for _ in range(MAX_TAKEOVERS + 1):
            dead.append(steps := Steps())
            working = await stack.enter_async_context(place.working(steps, lease_s=LONG_S))
            await steps.has_begun.wait()
            working.worker.leave()
            place.end_lease(session)
        last = await stack.enter_async_context(place.working())
        await event(session, lambda row: row["type"] == "notice" and row["message"] == DEADLY)
        assert DEADLY in last.said[0]
        assert last.steps.count == 0
        await session.send("work on it")
        await event(session, is_done)
        assert last.steps.count == 4
        for steps in dead:
            steps.gate.set()


@pytest.mark.parametrize("is_away", [False, True], ids=["the session is taken", "the server is away"])
async def test_a_lost_session_counts_no_death(place: Place, is_away: bool) -> None:
    steps = Steps()
    async with place.watched() as session, place.working(steps, lease_s=0.8) as working:
        await session.send("work on it")
        for _ in range(MAX_TAKEOVERS + 2):
            await steps.has_begun.wait()
            steps.has_begun = trio.Event()
            if is_away:
                place.server.kill()
                await working.said.until("the Redis .* does not answer")
                place.server.start()
                await working.said.until("the Redis .* can be used again")
                assert working.said[-2:].count(working.said[-1]) == 1
            else:
                place.steal(session)
        await steps.has_begun.wait()
        steps.gate.set()
        await event(session, is_done)


async def test_a_lost_session_waits_for_its_running_tool(place: Place) -> None:
    steps = Steps(is_deaf=True)
    async with place.watched() as session, place.working(steps, lease_s=0.8, at_once=2) as working:
        await session.send("work on it")
        await steps.has_begun.wait()
        place.steal(session)
        await working.said.came.wait()
        for _ in range(4):  # the worker searches for work after each
            async with place.watched() as another:
                await another.send("hello")
                await event(another, ended)
        assert steps.count == 1
        steps.gate.set()
        await event(session, is_done)


async def test_a_chain_stops_when_its_session_is_lost(place: Place) -> None:
    steps = Steps()
    async with place.opened(steps, RedisStore(place.server.address, lease_s=1.0)) as chain:
        chain.start("work on it")
        await steps.has_begun.wait()
        place.server.command("HSET", scripts.key(chain.session_id, "meta"), "token", "another")
        await chain.wait_idle()
        assert chain.runs.is_closing
        assert chain.runs.last_status == "interrupted"


# ------------------------------------------------------------------------------------- leaving, and choosing sessions


async def test_a_leaving_worker_hands_over(place: Place) -> None:
    first = Steps()
    async with place.watched() as session:
        async with place.working(first, lease_s=LONG_S) as leaving:
            await session.send("work on it")
            await first.has_begun.wait()
            leaving.worker.leave()
            first.gate.set()
        assert first.count == 1, "the running call has ended, and no other has started"
        assert not leaving.said
        async with place.working():
            assert GO_ON in (await event(session, is_done))["result"]
    written = b"".join(place.rows(session.id))
    assert b"[Interrupted:" not in written
    assert b'"text":"stepped"' in written


async def test_a_hand_over_waits_for_the_running_tool(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_worker, "HAND_OVER_S", 0.1)
    first = Steps(is_deaf=True)
    async with place.watched() as session, place.working(first, lease_s=LONG_S) as leaving:
        await session.send("work on it")
        await first.has_begun.wait()
        async with place.working() as second:
            leaving.worker.leave()
            await trio.testing.wait_all_tasks_blocked(0.5)
            assert second.steps.count == 0
            first.gate.set()
            await event(session, is_done)
        assert second.steps.count == 4
        assert not leaving.said


async def test_the_session_that_a_sender_means(place: Place) -> None:
    async with place.watched() as first, place.watched() as second:
        place.server.command("ZADD", scripts.SESSIONS, "9e15", second.id)
        async with place.watched(is_new=False) as latest:
            assert latest.id == second.id
        await first.send("hello")
        async with place.watched(is_new=False) as busy:
            assert busy.id == first.id
        await second.send("hello")
        with pytest.raises(SessionError, match=r"several sessions of .* are open or have work: .*--session ID"):
            async with place.watched(is_new=False):
                pass


async def test_a_worker_of_one_folder(place: Place) -> None:
    mine = place.folder / "mine"
    mine.mkdir()
    async with place.working(only=str(mine)), place.watched() as other, place.watched(folder=mine) as own:
        await other.send("hello")
        await own.send("hello")
        await event(own, ended)
    assert not (await trio.to_thread.run_sync(place.store.find, other.id)).was_used


async def test_a_missing_folder_is_reported(place: Place) -> None:
    async with place.store.connect() as connection, place.working() as working:
        id = await place.store.create(connection, "/not/there")
        await place.store.submit(connection, id, {"id": "one", "type": "line", "text": "hello"}, needs_room=True)
        await working.said.came.wait()
        assert "/not/there" in working.said[0]
        (due,) = await connection.ask((b"ZSCORE", scripts.DUE, id))
        assert due is not None, "the session waits for another worker"
    assert (await trio.to_thread.run_sync(place.store.find, id)).is_open is False


# ---------------------------------------------------------------------------------------------------------- questions


async def test_questions_go_to_watchers_that_answer(place: Place) -> None:
    asking = Asking()
    async with place.watched() as session, trio.open_nursery() as nursery:
        nursery.start_soon(place.worker(asking, print).run)
        await session.send("work on it")
        await event(session, ended)
        assert asking.heard == ["nobody"] * 4
        nursery.start_soon(session.renew_promise)
        await trio.testing.wait_all_tasks_blocked(0.2)
        await session.send("work on it")
        for n in range(5, 9):
            await event(session, lambda row, n=n: row["type"] == "question" and row["id"] == f"Q{n}")
            await session.submit(type="answer", question=f"Q{n}", text="blue")
        await event(session, ended)
        assert asking.heard[4:] == ["blue"] * 4
        nursery.cancel_scope.cancel()


async def test_a_promise_before_the_session_is_opened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PROMISE_S", 1e6)
    asking = Asking()
    async with place.watched() as session, trio.open_nursery() as nursery:
        nursery.start_soon(place.worker(asking, print).run)
        await session.promise_answers()
        await session.send("work on it")
        await event(session, lambda row: row["type"] == "question")
        await session.submit(type="answer", question="Q1", text="blue")
        await event(session, lambda row: row["type"] == "question" and row["id"] == "Q2")
        nursery.cancel_scope.cancel()
    assert asking.heard[0] == "blue"
