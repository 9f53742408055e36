"""Workers in one process with the test: what they begin, go on with, hand over and give up."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
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
from chain.redis.lease import Lease
from chain.redis.redis_server import RedisServer
from chain.redis.redis_store import RedisStore
from chain.text.wording import GO_ON

pytestmark = [pytest.mark.slow, *redis.MARKS]

CONFIG = f"{redis.CONFIG}inbox: {{size: 3}}\n"


class Steps:
    """The tool ``step``, which waits until it may go on; one that is ``deaf`` does so also where it is cancelled."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        self.begun = 0
        self.is_deaf = is_deaf
        self.gate = trio.Event()
        self.has_begun = trio.Event()

    @property
    def tool(self) -> FunctionTool:
        @tool(name="step", read_only=True)
        async def step(context: ToolContext) -> str:
            """Take a step."""
            self.begun += 1
            self.has_begun.set()
            with trio.CancelScope(shield=self.is_deaf):
                await self.gate.wait()
            return "stepped"

        return step


class Reports(list[str]):
    """What a worker reports."""

    def __init__(self) -> None:
        super().__init__()
        self.came = trio.Event()

    def add(self, what: str) -> None:
        self.append(what)
        self.came.set()

    async def until(self, what: str) -> None:
        """Wait for a report that begins so as the latest."""
        while not (self and re.match(what, self[-1])):
            self.came = trio.Event()
            await self.came.wait()


@dataclass
class Place:
    """A server, and a folder in which workers run its sessions."""

    server: redis.OwnRedis
    settings: Settings
    folder: Path

    @property
    def store(self) -> RedisStore:
        return RedisStore(self.server.address)

    @asynccontextmanager
    async def working(
        self, steps: Steps | Asking, *, lease_s: float = 2.0, **limits: Any
    ) -> AsyncIterator[tuple[Worker, Reports, trio.CancelScope]]:
        """A worker beside the block, and what it reports. Cancelling its scope is no end in good order."""
        said = Reports()
        shared = replace(self.settings, state=self.server.address)
        worker = Worker(
            shared, self.folder / "state", WorkerLimits(**limits), said.add, tools=[steps.tool], lease_s=lease_s
        )
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await worker.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield worker, said, scope
            worker.leave()

    def reached(self, *, folder: Path | None = None, id: str = "", is_new: bool = True) -> Any:
        """A session as somebody elsewhere has it."""
        workspace = folder or self.folder
        return remote_session(self.server.address, id=id, workspace=workspace, is_new=is_new, say=lambda what: None)

    def opened(self, steps: Steps, store: RedisStore) -> AbstractAsyncContextManager[Chain]:
        """A session that this process has opened itself."""
        return open_chain(
            self.settings, workspace=self.folder, state=self.folder / "state", store=store, tools=[steps.tool]
        )


@pytest.fixture
def place(server: redis.OwnRedis, tmp_path: Path) -> Place:
    """Configure workers for the server."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={})
    return Place(server, settings, tmp_path)


async def event(session: RemoteSession, wanted: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """The first event of this kind."""
    async for row in session.events():
        if wanted(row):
            return row
    raise AssertionError


def ended(row: Mapping[str, Any]) -> bool:
    return row["type"] == "result"


async def test_a_line_starts_a_run_and_its_sender_hears_what_became_of_it(place: Place) -> None:
    steps = Steps()
    steps.gate.set()
    async with place.working(steps), place.reached() as session:
        id, known = await session.send("work on it")
        assert known.state == "queued"
        assert (await session.outcome(id)).state == "delivered"
        result = await event(session, ended)
        assert (result["status"], result["result"]) == ("done", "Done: work on it")
        assert steps.begun == 4
        id, _ = await session.send("status")
        assert "nothing is running" in (await session.outcome(id)).reason
        id, _ = await session.send("stop")
        assert (await session.outcome(id)).state == "handled"


async def test_lines_of_anybody_interrupt_the_run_that_is_active_and_a_full_inbox_refuses_all_but_stops(
    place: Place,
) -> None:
    steps = Steps()
    async with place.working(steps), place.reached() as session:
        await session.send("work on it")
        await steps.has_begun.wait()
        sent = [await session.send(f"note {n}") for n in range(4)]
        assert [known.state for _, known in sent] == ["queued"] * 3 + ["refused"]
        assert "full" in sent[-1][1].reason
        async with place.reached(id=session.id, is_new=False) as another:
            stop, known = await another.send("stop")
            assert known.state == "queued"
            assert (await another.outcome(stop)).state == "handled"
        steps.gate.set()
        states = {(await session.outcome(id)).state for id, _ in sent[:3]}
        assert states <= {"delivered", "returned"}, "a stop returns what waits"


async def test_of_a_session_that_rests_only_the_events_of_the_last_run_are_kept(place: Place) -> None:
    store, steps = place.store, Steps()
    async with place.working(steps), place.reached() as session:
        for line in ("hello", "and again"):
            await session.send(line)
            await event(session, lambda row, line=line: ended(row) and row["result"] == f"Done: {line}")
    async with store.connected() as link:
        told = [each.row for each in await store.events(link, session.id, "0", wait_s=0.01)]
    assert [row["type"] for row in told].count("run_started") == 1
    assert told[-1]["result"] == "Done: and again"


async def test_the_same_line_sent_twice_is_one(place: Place) -> None:
    store, steps = place.store, Steps()
    steps.gate.set()
    async with store.connected() as link:
        id = await store.create(link, str(place.folder))
        row = {"id": "one", "type": "line", "text": "hello"}
        for _ in range(2):
            assert (await store.submit(link, id, row, needs_room=True)).state == "queued"
        async with place.working(steps):
            async with place.reached(id=id, is_new=False) as session:
                assert (await session.outcome("one")).state == "delivered"
                await event(session, ended)
            assert (await store.submit(link, id, row, needs_room=True)).state == "delivered"
    assert len([row for row in rows(store, id) if b'"type":"line"' in row]) == 1


def rows(store: RedisStore, id: str) -> list[bytes]:
    with store.rows(id) as found:
        return list(found)


async def test_another_worker_goes_on_where_one_was_cut_off(place: Place) -> None:
    """The first one is cut off from the server, as by a network: what it still does is not written."""
    first, second = Steps(), Steps()
    second.gate.set()
    async with (
        place.reached() as session,
        place.working(first, lease_s=30) as (_, said, scope),
    ):
        await session.send("work on it")
        await first.has_begun.wait()
        note, _ = await session.send("note: as well")
        await waits(session)
        end_lease(place, session)
        async with place.working(second):
            await event(session, lambda row: ended(row) and row["status"] == "interrupted")
            result = await event(session, lambda row: ended(row) and row["status"] == "done")
            assert GO_ON in result["result"]
            assert (await session.outcome(note)).state == "delivered"
        first.gate.set()
        await said.came.wait()
        assert "another process has taken over the session" in said[0]
        scope.cancel()
    store = place.store
    written = b"".join(rows(store, session.id))
    assert b"[Interrupted: stopped while running, it may have had effects]" in written
    assert written.count(b'"type":"session"') == 2


@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
async def test_workers_whose_clocks_differ_by_an_hour_take_over_from_each_other(
    place: Place, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """The clock of the second worker is that of the place.server."""
    first, second, right = Steps(), Steps(), time.time
    second.gate.set()
    async with (
        place.reached() as session,
        place.working(first, lease_s=30, keep_s=60.0) as (_, said, _scope),
    ):
        monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
        await session.send("work on it")
        await first.has_begun.wait()
        note, _ = await session.send("note: as well")
        await waits(session)
        monkeypatch.setattr(time, "time", right)
        end_lease(place, session)
        async with place.working(second, keep_s=60.0):
            await event(session, lambda row: ended(row) and row["status"] == "done")
            assert (await session.outcome(note)).state == "delivered"
        first.gate.set()
        await said.came.wait()
    store = place.store
    found = [json.loads(row) for row in rows(store, session.id)]
    assert max(abs(later["time"] - former["time"]) for former, later in pairwise(found)) > 3_500, "both wrote"
    assert min(row.get("waited_s") or 0 for row in found if row["type"] == "receipt") >= 0
    (kept,) = await trio.to_thread.run_sync(store.summaries)
    assert kept.runs == 2
    assert abs(kept.changed - right()) < 60, "by the server's clock"


def end_lease(place: Place, session: RemoteSession) -> None:
    """As if the holder had been silent for so long."""
    place.server.command("HSET", scripts.key(session.id, "meta"), "until", "0")
    place.server.command("ZADD", scripts.DUE, "0", session.id)


async def test_a_run_that_was_stopped_is_not_gone_on_with_after_its_worker(place: Place) -> None:
    first, second = Steps(is_deaf=True), Steps()
    second.gate.set()
    async with (
        place.reached() as session,
        place.working(first, lease_s=30) as (_, said, _scope),
    ):
        await session.send("work on it")
        await first.has_begun.wait()
        note, _ = await session.send("note: as well")
        await waits(session)
        stop, _ = await session.send("stop")
        assert (await session.outcome(stop)).state == "handled"
        end_lease(place, session)
        async with place.working(second):
            assert (await session.outcome(note)).state == "returned"
            next_, _ = await session.send("hello")
            result = await event(session, lambda row: ended(row) and row["status"] == "done")
            assert result["result"] == "Done: hello"
            assert (await session.outcome(next_)).state == "delivered"
        assert second.begun == 0
        first.gate.set()
        await said.came.wait()


async def test_a_run_that_kills_its_workers_does_not_go_through_all_of_them(place: Place) -> None:
    async with place.reached() as session, AsyncExitStack() as stack:
        await session.send("work on it")
        dead: list[Steps] = []
        for _ in range(MAX_TAKEOVERS + 1):
            dead.append(steps := Steps())
            opened = place.working(steps, lease_s=300)
            worker, _, _ = await stack.enter_async_context(opened)
            await steps.has_begun.wait()
            worker.leave()  # when it finds out that it was cut off, it must not begin anything
            end_lease(place, session)
        last = Steps()
        last.gate.set()
        _, said, _ = await stack.enter_async_context(place.working(last))
        await event(session, lambda row: row["type"] == "notice" and row["message"] == DEADLY)
        assert DEADLY in said[0]
        assert last.begun == 0
        await session.send("work on it")
        await event(session, lambda row: ended(row) and row["status"] == "done")
        assert last.begun == 4
        for steps in dead:
            steps.gate.set()


async def test_of_several_sessions_the_one_with_work_is_meant_and_of_several_with_work_none(place: Place) -> None:
    async with place.reached() as first, place.reached() as second:
        place.server.command("ZADD", scripts.SESSIONS, "9e15", second.id)
        async with place.reached(is_new=False) as latest:
            assert latest.id == second.id
        await first.send("hello")
        async with place.reached(is_new=False) as busy:
            assert busy.id == first.id
        await second.send("hello")
        with pytest.raises(SessionError, match=r"several sessions of .* are open or have work: .*--session ID"):
            async with place.reached(is_new=False):
                pass


def steal(place: Place, session: RemoteSession) -> None:
    """As if the server had been away for longer than the lease, and somebody else had got the session meanwhile."""
    place.server.command("HSET", scripts.key(session.id, "meta"), "token", "another", "until", "0", "is_worker", "1")
    place.server.command("ZADD", scripts.DUE, "0", session.id)


@pytest.mark.parametrize(
    "is_away", [False, pytest.param(True, marks=pytest.mark.slow, id="the server is away for longer than a lease")]
)
async def test_workers_that_lose_a_run_and_do_not_die_keep_nobody_from_going_on_with_it(
    place: Place, is_away: bool
) -> None:
    steps = Steps()
    async with (
        place.reached() as session,
        place.working(steps, lease_s=0.8) as (_, said, _scope),
    ):
        await session.send("work on it")
        for _ in range(MAX_TAKEOVERS + 2):
            await steps.has_begun.wait()
            steps.has_begun = trio.Event()
            if is_away:
                place.server.kill()
                await said.until("the Redis .* does not answer")
                place.server.start()
                await said.until("the Redis .* can be used again")
            else:
                steal(place, session)
        await steps.has_begun.wait()
        steps.gate.set()
        await event(session, lambda row: ended(row) and row["status"] == "done")


async def test_of_sessions_that_are_lost_while_another_is_being_told_each_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = replace(place.settings, state=place.server.address)
    worker = Worker(shared, place.folder / "state", WorkerLimits(at_once=2), lambda what: None)
    discount, told = RedisStore.discount_death, list[str]()
    async with worker._store.connected() as link:
        leases = [Lease(link, id, 10) for id in ("one", "two")]

        async def lose_another(store: RedisStore, link: RedisServer, lease: Lease) -> None:
            if not told:
                worker._lost_leases.append(leases[1])
            told.append(lease.id)
            await discount(store, link, lease)

        monkeypatch.setattr(RedisStore, "discount_death", lose_another)
        worker._lost_leases.append(leases[0])
        assert await worker._claim_next(link) is None
    assert told == ["one", "two"]


async def test_a_session_that_was_lost_is_not_begun_again_beside_a_tool_of_it_that_still_runs(place: Place) -> None:
    steps = Steps(is_deaf=True)
    async with (
        place.reached() as session,
        place.working(steps, lease_s=0.8, at_once=2) as (_, said, _scope),
    ):
        await session.send("work on it")
        await steps.has_begun.wait()
        steal(place, session)
        await said.came.wait()
        for _ in range(4):  # it looks for work after each
            async with place.reached() as another:
                await another.send("hello")
                await event(another, ended)
        assert steps.begun == 1
        steps.gate.set()
        await event(session, lambda row: ended(row) and row["status"] == "done")


async def test_a_line_that_a_crash_of_the_server_forgot_and_we_have_read_is_sent_again_and_not_done_twice(
    place: Place,
) -> None:
    store, steps, row = place.store, Steps(), {"id": "one", "type": "line", "text": "work on it"}
    async with (
        store.connected() as link,
        place.reached() as session,
        place.working(steps),
    ):
        await store.submit(link, session.id, row, needs_room=True)
        await steps.has_begun.wait()
        assert (await session.outcome("one")).state == "delivered"
        place.server.command("HDEL", scripts.key(session.id, "ids"), "one")
        assert (await store.submit(link, session.id, row, needs_room=True)).state == "queued"
        assert (await session.outcome("one")).state == "delivered"
        steps.gate.set()
        result = await event(session, ended)
        assert result["result"] == "Done: work on it"


async def test_a_run_that_was_cut_where_no_worker_had_it_is_not_gone_on_with_at_the_next_line(place: Place) -> None:
    first, second = Steps(), Steps()
    second.gate.set()
    async with (
        place.reached() as session,
        place.working(first, lease_s=30) as (_, said, _scope),
    ):
        await session.send("work on it")
        await first.has_begun.wait()
        place.server.command("HDEL", scripts.key(session.id, "meta"), "token")  # as one who gave it back long ago
        end_lease(place, session)
        async with place.working(second):
            await session.send("hello")
            result = await event(session, lambda row: ended(row) and row["status"] == "done")
            assert result["result"] == "Done: hello"
        assert second.begun == 0
        await said.came.wait()


async def waits(session: RemoteSession) -> None:
    await event(session, lambda row: row["type"] == "line_queued")


async def test_who_is_to_leave_hands_over_at_the_next_safe_point(place: Place) -> None:
    first, second = Steps(), Steps()
    second.gate.set()
    async with place.reached() as session:
        async with place.working(first, lease_s=60) as (worker, said, _):
            await session.send("work on it")
            await first.has_begun.wait()
            worker.leave()
            first.gate.set()
        assert first.begun == 1, "the call that ran has ended, and no other began"
        assert not said
        async with place.working(second):
            result = await event(session, lambda row: ended(row) and row["status"] == "done")
        assert GO_ON in result["result"], "at once, and not when a minute is over"
    written = b"".join(rows(place.store, session.id))
    assert b"[Interrupted:" not in written
    assert b'"text":"stepped"' in written


async def test_a_session_that_somebody_has_opened_takes_as_many_lines_as_its_inbox_holds(place: Place) -> None:
    store, steps = place.store, Steps()
    opened = place.opened(steps, store)
    async with opened as chain, place.reached(id=chain.session_id, is_new=False) as session:
        chain.start("work on it")
        await steps.has_begun.wait()
        assert [(await session.send(f"note {n}"))[1].state for n in range(4)] == ["queued"] * 3 + ["refused"]


async def test_lines_that_need_no_room_wait_where_there_is_none_even_for_them(place: Place) -> None:
    steps = Steps(is_deaf=True)
    async with place.reached() as session, place.working(steps):
        await session.send("work on it")
        await steps.has_begun.wait()
        sent = [await session.send(f"!!note {n}") for n in range(8)]
        assert {said.state for _, said in sent} == {"queued"}
        await trio.testing.wait_all_tasks_blocked(0.2)
        steps.gate.set()
        assert [(await session.outcome(id)).state for id, _ in sent] == ["delivered"] * 8


async def test_who_watches_hears_of_what_is_on_record_though_the_worker_dies_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "TEXT_PAUSE_S", math.inf)
    store, steps = place.store, Steps()
    steps.gate.set()
    opened = place.opened(steps, store)
    async with opened as chain, store.connected() as link:
        chain.start("work on it")
        await chain.wait_idle()
        types, after = list[str](), "0"
        while "result" not in types:  # the server may bring it to its disk a moment later
            found = await store.events(link, chain.session_id, after, wait_s=1)
            types += [each.row["type"] for each in found]
            after = found[-1].place if found else after
        assert (types.count("tool_result"), types.count("reply")) == (4, 4)


async def test_a_tool_runs_only_once_its_start_is_in_the_store(place: Place) -> None:
    store, seen = place.store, list[bool]()

    @tool(name="step")
    async def step(context: ToolContext) -> str:
        """Take a step."""
        with store.rows(chain.session_id) as rows:  # blocks the loop, so nothing is written meanwhile
            records = [json.loads(row) for row in rows]
        seen.append(any(each["type"] == "tool_started" and each["id"] == context.call_id for each in records))
        return "stepped"

    async with open_chain(
        place.settings, workspace=place.folder, state=place.folder / "state", store=store, tools=[step]
    ) as chain:
        chain.start("work on it")
        await chain.wait_idle()
    assert seen == [True] * 4


async def test_who_loses_a_session_that_it_has_opened_itself_stops_its_work(place: Place) -> None:
    store, steps = RedisStore(place.server.address, lease_s=1.0), Steps()
    opened = place.opened(steps, store)
    async with opened as chain:
        chain.start("work on it")
        await steps.has_begun.wait()
        place.server.command("HSET", scripts.key(chain.session_id, "meta"), "token", "another")
        await chain.wait_idle()
        assert chain.runs.is_closing
        assert chain.runs.last_status == "interrupted"


async def test_what_is_handed_over_is_held_until_the_work_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_worker, "HAND_OVER_S", 0.1)
    first, second = Steps(is_deaf=True), Steps()
    second.gate.set()
    async with place.reached() as session:
        async with place.working(first, lease_s=60) as (worker, said, _):
            await session.send("work on it")
            await first.has_begun.wait()
            async with place.working(second):
                worker.leave()
                await trio.testing.wait_all_tasks_blocked(0.5)
                assert second.begun == 0
                first.gate.set()
                await event(session, lambda row: ended(row) and row["status"] == "done")
        assert second.begun == 4
        assert not said


async def test_a_worker_says_once_that_the_server_is_away_and_that_it_is_back(place: Place) -> None:
    async with place.working(Steps()) as (worker, said, _scope):
        await worker.ready.wait()
        place.server.kill()
        await said.until("the Redis .* does not answer")
        place.server.start()
        await said.until("the Redis .* can be used again")
        assert len(said) == 2


async def test_a_worker_leaves_sessions_of_other_folders_alone(place: Place) -> None:
    (place.folder / "mine").mkdir()
    steps = Steps()
    steps.gate.set()
    async with (
        place.working(steps, only=str(place.folder / "mine")),
        place.reached() as theirs,
        place.reached(folder=place.folder / "mine") as mine,
    ):
        await theirs.send("hello")
        await mine.send("hello")
        await event(mine, ended)
    found = await trio.to_thread.run_sync(place.store.find, theirs.id)
    assert not found.was_used


async def test_what_is_no_row_of_ours_is_passed_over(place: Place) -> None:
    steps = Steps()
    steps.gate.set()
    async with place.reached() as session:
        lines = scripts.key(session.id, "lines")
        hello = '{"type":"hello","id":"y","for_s":%s}'
        bad = ["no JSON", "[]", "{}", '{"type":"line","id":"x","text":1}', '{"type":"hello","id":"y"}']
        bad += [hello % 1, hello % "NaN", hello % ("1" + "0" * 400), '{"type":"line","id":"\\ud800","text":"status"}']
        for row in bad:
            place.server.command("XADD", lines, "*", "j", row)
        place.server.command("XADD", lines, "*", "other", "{")
        async with place.working(steps) as (_, said, _scope):
            id, _ = await session.send("hello")
            assert (await session.outcome(id)).state == "delivered"
            await event(session, ended)
        assert not said


async def test_a_folder_that_is_not_there_is_said_and_the_session_waits_for_another_worker(place: Place) -> None:
    store = place.store
    async with store.connected() as link, place.working(Steps()) as (_, said, _scope):
        id = await store.create(link, "/not/there")
        await store.submit(link, id, {"id": "one", "type": "line", "text": "hello"}, needs_room=True)
        await said.came.wait()
        assert "/not/there" in said[0]
        (due,) = await link.ask((b"ZSCORE", scripts.DUE, id))
        assert due is not None
    assert (await trio.to_thread.run_sync(store.find, id)).is_open is False


class Asking:
    """The tool ``step``, which asks."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @property
    def tool(self) -> FunctionTool:
        @tool(name="step", kind="ask", timeout_s=math.inf)
        async def step(context: ToolContext) -> str:
            """Take a step."""
            try:
                self.heard.append(await context.asking.choose("Which?", ["red", "blue"]))
            except ToolError:
                self.heard.append("nobody")
            return "stepped"

        return step


async def test_questions_of_a_new_session_wait_for_a_watcher_that_is_about_to_come(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PROMISE_S", 1e6)
    async with place.reached() as session:
        asking = Asking()
        shared = replace(place.settings, state=place.server.address)
        worker = Worker(shared, place.folder / "state", WorkerLimits(), print, tools=[asking.tool])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await session.promise_answers()
            await session.send("work on it")
            await event(session, lambda row: row["type"] == "question")
            await session.submit(type="answer", question="Q1", text="blue")
            await event(session, lambda row: row["type"] == "question" and row["id"] == "Q2")
            nursery.cancel_scope.cancel()
        assert asking.heard[0] == "blue"


async def test_questions_are_asked_of_who_says_that_it_answers_and_else_the_allowances_decide(place: Place) -> None:
    async with place.reached() as session:
        asking = Asking()
        shared = replace(place.settings, state=place.server.address)
        worker = Worker(shared, place.folder / "state", WorkerLimits(), print, tools=[asking.tool])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
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
