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

INBOX_SIZE = 3
CONFIG = f"{redis.CONFIG}inbox: {{size: {INBOX_SIZE}}}\n"
STEPS_OF_WORK = 4
"""The calls of ``step`` in a run that works, see ``support/redis_rules.yaml``."""
LONG_S = 50.0
"""A lease that does not end within a test."""
Row = Mapping[str, Any]


class Steps:
    """The tool ``step``, which waits for ``gate``. If it ``is_deaf``, it waits even if it is cancelled."""

    def __init__(self, *, is_open: bool = False, is_deaf: bool = False) -> None:
        self.count = 0
        self.gate = trio.Event()
        self.has_started = trio.Event()
        if is_open:
            self.gate.set()

        @tool(name="step", read_only=True)
        async def step(context: ToolContext) -> str:
            """Take a step."""
            self.count += 1
            self.has_started.set()
            with trio.CancelScope(shield=is_deaf):
                await self.gate.wait()
            return "stepped"

        self.tool: FunctionTool = step


class AskingSteps:
    """The tool ``step``, which asks a question."""

    def __init__(self) -> None:
        self.answers: list[str] = []

        @tool(name="step", kind="ask", timeout_s=math.inf)
        async def step(context: ToolContext) -> str:
            """Take a step."""
            try:
                self.answers.append(await context.asking.choose("Which?", ["red", "blue"]))
            except ToolError:
                self.answers.append("nobody")
            return "stepped"

        self.tool: FunctionTool = step


class Reports(list[str]):
    def __init__(self) -> None:
        super().__init__()
        self.has_news = trio.Event()

    def add(self, text: str) -> None:
        self.append(text)
        self.has_news.set()

    async def wait_for(self, pattern: str) -> None:
        """Wait until the latest report matches a regular expression."""
        while not (self and re.match(pattern, self[-1])):
            self.has_news = trio.Event()
            await self.has_news.wait()


@dataclass
class RunningWorker:
    """A running worker, its reports and its tool."""

    process: Worker
    reports: Reports
    steps: Any


@dataclass
class Cluster:
    """A Redis server, and a folder in which workers run the sessions of the server."""

    server: redis.OwnRedis
    settings: Settings
    folder: Path
    store: RedisStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = RedisStore(self.server.address)

    def new_worker(self, steps: Any, say: Callable[[str], object], *, lease_s: float = 2.0, **limits: Any) -> Worker:
        settings = replace(self.settings, state=self.server.address)
        state = self.folder / "state"
        return Worker(settings, state, WorkerLimits(**limits), say, tools=[steps.tool], lease_s=lease_s)

    @asynccontextmanager
    async def run_worker(self, steps: Any = None, **options: Any) -> AsyncIterator[RunningWorker]:
        """Run a worker for the duration of the block. It leaves at the end of the block."""
        reports, steps = Reports(), steps or Steps(is_open=True)
        worker = self.new_worker(steps, reports.add, **options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            yield RunningWorker(worker, reports, steps)
            worker.leave()

    def open_remote(self, id: str = "", *, folder: Path | None = None, is_new: bool | None = None) -> Any:
        """Open a session as another machine does. Without an id, create it."""
        is_new = not id if is_new is None else is_new
        address, workspace = self.server.address, folder or self.folder
        return remote_session(address, id=id, workspace=workspace, is_new=is_new, say=lambda text: None)

    @asynccontextmanager
    async def lose_run(self, steps: Steps, **options: Any) -> AsyncIterator[tuple[RemoteSession, str]]:
        """Start a run at a worker. Yield the session and the id of a line that waits.

        In the block, another worker must take over the session.
        """
        async with self.open_remote() as session, self.run_worker(steps, lease_s=LONG_S, **options) as first:
            await start_work(session, steps)
            note, _ = await session.send("note: as well")
            await wait_event(session, lambda row: row["type"] == "line_queued")
            yield session, note
            steps.gate.set()
            await first.reports.has_news.wait()
            assert "another process has taken over the session" in first.reports[0]

    def open_chain(self, steps: Any, store: RedisStore | None = None) -> AbstractAsyncContextManager[Chain]:
        """Open a session in this process."""
        state = self.folder / "state"
        store = store or self.store
        return open_chain(self.settings, workspace=self.folder, state=state, store=store, tools=[steps.tool])

    def expire_lease(self, session: RemoteSession) -> None:
        """End the lease of a session, as if its holder had not responded."""
        self.server.command("HSET", scripts.key(session.id, "meta"), "until", "0")
        self.server.command("ZADD", scripts.DUE, "0", session.id)

    def steal(self, session: RemoteSession) -> None:
        """Give a session to another worker that dies, as if the server had been away for longer than the lease."""
        self.server.command("HSET", scripts.key(session.id, "meta"), "token", "another", "is_worker", "1")
        self.expire_lease(session)

    def rows(self, id: str) -> list[bytes]:
        with self.store.rows(id) as found:
            return list(found)


@pytest.fixture
def cluster(server: redis.OwnRedis, tmp_path: Path) -> Cluster:
    (tmp_path / "config.yaml").write_text(CONFIG)
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={})
    return Cluster(server, settings, tmp_path)


async def start_work(session: RemoteSession, steps: Steps) -> None:
    """Start a run, and wait until its first step has started."""
    await session.send("work on it")
    await steps.has_started.wait()


async def wait_event(session: RemoteSession, is_wanted: Callable[[Row], bool]) -> Row:
    """Wait for an event. Return its row."""
    async for row in session.events():
        if is_wanted(row):
            return row
    raise AssertionError


def is_result(row: Row) -> bool:
    return row["type"] == "result"


async def wait_done(session: RemoteSession) -> str:
    """Wait until a run is done. Return its result."""
    return (await wait_event(session, lambda row: is_result(row) and row["status"] == "done"))["result"]


async def outcome(session: RemoteSession, line: str) -> str:
    """Send a line, wait for its outcome and return the state."""
    id, _ = await session.send(line)
    return (await session.outcome(id)).state


# ---------------------------------------------------------------------------------------------------- lines and runs


async def test_lines_start_runs_and_have_outcomes(cluster: Cluster) -> None:
    async with cluster.run_worker() as worker, cluster.open_remote() as session:
        id, status = await session.send("work on it")
        assert status.state == "queued"
        assert (await session.outcome(id)).state == "delivered"
        assert await wait_done(session) == "Done: work on it"
        assert worker.steps.count == STEPS_OF_WORK
        id, _ = await session.send("status")
        assert "nothing is running" in (await session.outcome(id)).reason
        assert await outcome(session, "stop") == "handled"


async def test_only_events_of_the_last_run_are_stored(cluster: Cluster) -> None:
    async with cluster.run_worker(), cluster.open_remote() as session:
        for line in ("hello", "and again"):
            await session.send(line)
            await wait_done(session)
    async with cluster.store.connect() as connection:
        stored = await cluster.store.events(connection, session.id, "0", wait_s=0.01)
    assert [event.row["type"] for event in stored].count("run_started") == 1


async def test_a_full_inbox_refuses_all_but_stops(cluster: Cluster) -> None:
    steps = Steps()
    async with cluster.run_worker(steps), cluster.open_remote() as session:
        await start_work(session, steps)
        notes = [await session.send(f"note {n}") for n in range(INBOX_SIZE)]
        assert {status.state for _, status in notes} == {"queued"}
        _, refused = await session.send("one more")
        assert (refused.state, "full" in refused.reason) == ("refused", True)
        async with cluster.open_remote(session.id) as another:
            assert await outcome(another, "stop") == "handled"
        steps.gate.set()
        assert {(await session.outcome(id)).state for id, _ in notes} <= {"delivered", "returned"}


async def test_an_opened_session_has_the_same_inbox(cluster: Cluster) -> None:
    steps = Steps()
    async with cluster.open_chain(steps) as chain, cluster.open_remote(chain.session_id) as session:
        chain.start("work on it")
        await steps.has_started.wait()
        for n in range(INBOX_SIZE):
            _, status = await session.send(f"note {n}")
            assert status.state == "queued"
        _, status = await session.send("one more")
        assert status.state == "refused"


async def test_lines_that_need_no_room_wait_too(cluster: Cluster) -> None:
    steps = Steps(is_deaf=True)
    async with cluster.open_remote() as session, cluster.run_worker(steps):
        await start_work(session, steps)
        lines = [await session.send(f"!!note {n}") for n in range(INBOX_SIZE + 5)]
        assert {status.state for _, status in lines} == {"queued"}
        await trio.testing.wait_all_tasks_blocked(0.2)  # the worker has read the lines
        steps.gate.set()
        assert {(await session.outcome(id)).state for id, _ in lines} == {"delivered"}


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["known status", "status lost by the server"])
async def test_a_line_that_is_sent_twice_counts_once(cluster: Cluster, is_forgotten: bool) -> None:
    row = {"id": "one", "type": "line", "text": "work on it"}
    async with cluster.store.connect() as connection, cluster.open_remote() as session:
        for _ in range(2):
            assert (await cluster.store.submit(connection, session.id, row, needs_room=True)).state == "queued"
        async with cluster.run_worker():
            assert (await session.outcome("one")).state == "delivered"
            if is_forgotten:
                cluster.server.command("HDEL", scripts.key(session.id, "ids"), "one")
            status = await cluster.store.submit(connection, session.id, row, needs_room=True)
            assert status.state == ("queued" if is_forgotten else "delivered")
            assert (await session.outcome("one")).state == "delivered"
            assert await wait_done(session) == "Done: work on it"
    assert sum(b'"type":"line"' in row for row in cluster.rows(session.id)) == 1


async def test_malformed_rows_are_skipped(cluster: Cluster) -> None:
    async with cluster.open_remote() as session:
        lines = scripts.key(session.id, "lines")
        hello = '{"type":"hello","id":"y","for_s":%s}'
        rows = ["no JSON", "[]", "{}", '{"type":"line","id":"x","text":1}', '{"type":"hello","id":"y"}']
        rows += [hello % 1, hello % "NaN", hello % ("1" + "0" * 400), '{"type":"line","id":"\\ud800","text":"status"}']
        for row in rows:
            cluster.server.command("XADD", lines, "*", "j", row)
        cluster.server.command("XADD", lines, "*", "other", "{")
        async with cluster.run_worker() as worker:
            assert await outcome(session, "hello") == "delivered"
            await wait_event(session, is_result)
        assert not worker.reports


async def test_events_are_published_with_their_records(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "TEXT_PAUSE_S", math.inf)
    async with cluster.open_chain(Steps(is_open=True)) as chain, cluster.store.connect() as connection:
        chain.start("work on it")
        await chain.wait_idle()
        types, after = list[str](), "0"
        while "result" not in types:  # the server may answer before the event is on its disk
            page = await cluster.store.events(connection, chain.session_id, after, wait_s=1)
            types += [event.row["type"] for event in page]
            after = page[-1].place if page else after
        assert types.count("tool_result") == STEPS_OF_WORK
        assert types.count("reply") == 4  # three with steps, and the final answer


async def test_a_tool_runs_after_its_start_is_stored(cluster: Cluster) -> None:
    was_start_stored = list[bool]()

    @tool(name="step")
    async def step(context: ToolContext) -> str:
        """Take a step."""
        records = [json.loads(row) for row in cluster.rows(chain.session_id)]  # blocks the loop: no record is written
        starts = {record["id"] for record in records if record["type"] == "tool_started"}
        was_start_stored.append(context.call_id in starts)
        return "stepped"

    async with cluster.open_chain(SimpleNamespace(tool=step)) as chain:
        chain.start("work on it")
        await chain.wait_idle()
    assert was_start_stored == [True] * STEPS_OF_WORK


# ----------------------------------------------------------------------------------------- workers that lose a session


async def test_another_worker_resumes_an_interrupted_run(cluster: Cluster) -> None:
    async with cluster.lose_run(Steps()) as (session, note):
        cluster.expire_lease(session)
        async with cluster.run_worker():
            await wait_event(session, lambda row: is_result(row) and row["status"] == "interrupted")
            assert GO_ON in await wait_done(session)
            assert (await session.outcome(note)).state == "delivered"
    rows = cluster.rows(session.id)
    assert b"[Interrupted: stopped while running, it may have had effects]" in b"".join(rows)
    assert sum(b'"type":"session"' in row for row in rows) == 2, "two workers opened the session"


@pytest.mark.parametrize("ahead_s", [-3_600, 3_600], ids=["an hour behind", "an hour ahead"])
async def test_the_clock_of_a_worker_does_not_matter(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + ahead_s)
    async with cluster.lose_run(Steps(), keep_s=60.0) as (session, note):
        monkeypatch.setattr(time, "time", real_time)
        cluster.expire_lease(session)
        async with cluster.run_worker(keep_s=60.0):
            await wait_done(session)
            assert (await session.outcome(note)).state == "delivered"
    records = [json.loads(row) for row in cluster.rows(session.id)]
    pauses = [abs(later["time"] - earlier["time"]) for earlier, later in pairwise(records)]
    assert max(pauses) > 3_500, "both workers wrote records"
    assert min(row.get("waited_s") or 0 for row in records if row["type"] == "receipt") >= 0
    (summary,) = await trio.to_thread.run_sync(cluster.store.summaries)
    assert summary.runs == 2
    assert abs(summary.changed - real_time()) < 60, "by the clock of the server"


async def test_a_stopped_run_is_not_resumed(cluster: Cluster) -> None:
    async with cluster.lose_run(Steps(is_deaf=True)) as (session, note):
        assert await outcome(session, "stop") == "handled"
        cluster.expire_lease(session)
        async with cluster.run_worker() as second:
            assert (await session.outcome(note)).state == "returned"
            await session.send("hello")
            assert await wait_done(session) == "Done: hello"
        assert second.steps.count == 0


async def test_runs_without_a_worker_are_not_resumed(cluster: Cluster) -> None:
    steps = Steps()
    async with cluster.open_remote() as session, cluster.run_worker(steps, lease_s=LONG_S) as first:
        await start_work(session, steps)
        cluster.server.command("HDEL", scripts.key(session.id, "meta"), "token")  # as if it had been released long ago
        cluster.expire_lease(session)
        async with cluster.run_worker() as second:
            await session.send("hello")
            assert await wait_done(session) == "Done: hello"
        assert second.steps.count == 0
        await first.reports.has_news.wait()


async def test_a_run_is_not_resumed_after_several_deaths(cluster: Cluster) -> None:
    async with cluster.open_remote() as session, AsyncExitStack() as stack:
        await session.send("work on it")
        dead_workers: list[Steps] = []
        for _ in range(MAX_TAKEOVERS + 1):
            dead_workers.append(steps := Steps())
            worker = await stack.enter_async_context(cluster.run_worker(steps, lease_s=LONG_S))
            await steps.has_started.wait()
            worker.process.leave()
            cluster.expire_lease(session)
        last = await stack.enter_async_context(cluster.run_worker())
        await wait_event(session, lambda row: row["type"] == "notice" and row["message"] == DEADLY)
        assert DEADLY in last.reports[0]
        assert last.steps.count == 0
        await session.send("work on it")
        await wait_done(session)
        assert last.steps.count == STEPS_OF_WORK
        for steps in dead_workers:
            steps.gate.set()


@pytest.mark.parametrize("is_away", [False, True], ids=["the session is taken", "the server is away"])
async def test_a_lost_session_counts_no_death(cluster: Cluster, is_away: bool) -> None:
    steps = Steps()
    async with cluster.open_remote() as session, cluster.run_worker(steps, lease_s=0.8) as worker:
        await session.send("work on it")
        for _ in range(MAX_TAKEOVERS + 2):  # more than deaths of workers are allowed
            await steps.has_started.wait()
            steps.has_started = trio.Event()
            if is_away:
                cluster.server.kill()
                await worker.reports.wait_for("the Redis .* does not answer")
                cluster.server.start()
                await worker.reports.wait_for("the Redis .* can be used again")
                previous, latest = worker.reports[-2:]
                assert previous != latest, "it is reported once"
            else:
                cluster.steal(session)
        await steps.has_started.wait()
        steps.gate.set()
        await wait_done(session)


async def test_a_lost_session_waits_for_its_running_tool(cluster: Cluster) -> None:
    steps = Steps(is_deaf=True)
    async with cluster.open_remote() as session, cluster.run_worker(steps, lease_s=0.8, at_once=2) as worker:
        await start_work(session, steps)
        cluster.steal(session)
        await worker.reports.has_news.wait()
        for _ in range(4):  # the worker searches for work after each
            async with cluster.open_remote() as another:
                await another.send("hello")
                await wait_event(another, is_result)
        assert steps.count == 1
        steps.gate.set()
        await wait_done(session)


async def test_a_chain_stops_when_its_session_is_lost(cluster: Cluster) -> None:
    steps = Steps()
    async with cluster.open_chain(steps, RedisStore(cluster.server.address, lease_s=1.0)) as chain:
        chain.start("work on it")
        await steps.has_started.wait()
        cluster.server.command("HSET", scripts.key(chain.session_id, "meta"), "token", "another")
        await chain.wait_idle()
        assert chain.runs.is_closing
        assert chain.runs.last_status == "interrupted"


# ------------------------------------------------------------------------------------- leaving, and choosing sessions


async def test_a_leaving_worker_hands_over(cluster: Cluster) -> None:
    steps = Steps()
    async with cluster.open_remote() as session:
        async with cluster.run_worker(steps, lease_s=LONG_S) as leaving:
            await start_work(session, steps)
            leaving.process.leave()
            steps.gate.set()
        assert steps.count == 1, "the running call has ended, and no other has started"
        assert not leaving.reports
        async with cluster.run_worker():
            assert GO_ON in await wait_done(session)
    journal = b"".join(cluster.rows(session.id))
    assert b"[Interrupted:" not in journal
    assert b'"text":"stepped"' in journal


async def test_a_hand_over_waits_for_the_running_tool(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_worker, "HAND_OVER_S", 0.1)
    steps = Steps(is_deaf=True)
    async with cluster.open_remote() as session, cluster.run_worker(steps, lease_s=LONG_S) as leaving:
        await start_work(session, steps)
        async with cluster.run_worker() as second:
            leaving.process.leave()
            await trio.testing.wait_all_tasks_blocked(0.5)  # longer than HAND_OVER_S
            assert second.steps.count == 0
            steps.gate.set()
            await wait_done(session)
        assert second.steps.count == STEPS_OF_WORK
        assert not leaving.reports


async def test_a_sender_gets_the_busy_or_latest_session(cluster: Cluster) -> None:
    async with cluster.open_remote() as first, cluster.open_remote() as second:
        cluster.server.command("ZADD", scripts.SESSIONS, "9e15", second.id)  # a time in the future
        async with cluster.open_remote(is_new=False) as latest:
            assert latest.id == second.id
        await first.send("hello")
        async with cluster.open_remote(is_new=False) as busy:
            assert busy.id == first.id
        await second.send("hello")
        with pytest.raises(SessionError, match=r"several sessions of .* are open or have work: .*--session ID"):
            async with cluster.open_remote(is_new=False):
                pass


async def test_a_worker_can_be_limited_to_one_folder(cluster: Cluster) -> None:
    mine = cluster.folder / "mine"
    mine.mkdir()
    async with (
        cluster.run_worker(only=str(mine)),
        cluster.open_remote() as other,
        cluster.open_remote(folder=mine) as own,
    ):
        await other.send("hello")
        await own.send("hello")
        await wait_event(own, is_result)
    assert not (await trio.to_thread.run_sync(cluster.store.find, other.id)).was_used


async def test_a_missing_folder_is_reported(cluster: Cluster) -> None:
    async with cluster.store.connect() as connection, cluster.run_worker() as worker:
        id = await cluster.store.create(connection, "/not/there")
        await cluster.store.submit(connection, id, {"id": "one", "type": "line", "text": "hello"}, needs_room=True)
        await worker.reports.has_news.wait()
        assert "/not/there" in worker.reports[0]
        (due,) = await connection.ask((b"ZSCORE", scripts.DUE, id))
        assert due is not None, "the session waits for another worker"
    assert (await trio.to_thread.run_sync(cluster.store.find, id)).is_open is False


# ---------------------------------------------------------------------------------------------------------- questions


async def wait_question(session: RemoteSession, id: str) -> None:
    await wait_event(session, lambda row: row["type"] == "question" and row["id"] == id)


async def test_nobody_answers_without_a_promise(cluster: Cluster) -> None:
    steps = AskingSteps()
    async with cluster.open_remote() as session, cluster.run_worker(steps):
        await session.send("work on it")
        await wait_event(session, is_result)
    assert steps.answers == ["nobody"] * STEPS_OF_WORK


async def test_questions_go_to_watchers_that_answer(cluster: Cluster) -> None:
    steps = AskingSteps()
    async with cluster.open_remote() as session, cluster.run_worker(steps), trio.open_nursery() as nursery:
        nursery.start_soon(session.renew_promise)
        await trio.testing.wait_all_tasks_blocked(0.2)  # the promise is sent
        await session.send("work on it")
        for n in range(1, STEPS_OF_WORK + 1):
            await wait_question(session, f"Q{n}")
            await session.submit(type="answer", question=f"Q{n}", text="blue")
        await wait_event(session, is_result)
        assert steps.answers == ["blue"] * STEPS_OF_WORK
        nursery.cancel_scope.cancel()


async def test_a_promise_before_the_session_is_opened(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PROMISE_S", 1e6)
    steps = AskingSteps()
    async with cluster.open_remote() as session, trio.open_nursery() as nursery:
        nursery.start_soon(cluster.new_worker(steps, print).run)
        await session.promise_answers()
        await session.send("work on it")
        await wait_question(session, "Q1")
        await session.submit(type="answer", question="Q1", text="blue")
        await wait_question(session, "Q2")
        nursery.cancel_scope.cancel()
    first_answer, *_ = steps.answers  # the end of the worker may have withdrawn the second question
    assert first_answer == "blue"
