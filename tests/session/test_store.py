"""The behaviour of every store of sessions. Tests of ``store`` run for files and for Redis."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import trio
from support import redis

from chain.app import sessions
from chain.errors import SessionError
from chain.journal import records
from chain.journal.journal import Journal
from chain.messages import Image, Message, Text
from chain.redis.redis_store import RedisStore
from chain.session import listing
from chain.session.store import FileStore, Store

PIXEL = b"\x89PNG\r\n\x1a\nnot much of an image"
DIGEST = sha256(PIXEL).hexdigest()
SERVERS = [pytest.param(program, id=Path(program).name) for program in redis.PROGRAMS]
NO_SERVER = pytest.param("", marks=pytest.mark.skip(reason=redis.WHY_NOT), id="redis")


@pytest.fixture(params=["files", *(SERVERS or [NO_SERVER])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "files":
        yield FileStore(tmp_path / "state")
    else:
        with redis.own_redis(tmp_path / "redis", program=request.param) as server:
            yield RedisStore(server.address)


async def write_session(journal: Journal, *more: records.Record, workspace: Path | str = "/somewhere") -> str:
    """Write the records of a session with one waiting line. Return its id."""
    journal.record(records.Session(journal.id, "1", "m", str(workspace)))
    for record in (records.Line("L1", "First row", "redirect", "next", "main"), *more):
        journal.record(record)
    await journal.sync()
    assert journal.failure is None
    return journal.id


async def create_session(store: Store, *more: records.Record, workspace: Path | str = "/somewhere") -> str:
    """Create a closed session with one waiting line. Return its id."""
    async with store.open_new(Path(workspace)) as opened:
        assert opened.loaded is None
        return await write_session(opened.journal, *more, workspace=workspace)


async def find(store: Store, id: str) -> sessions.Summary:
    return await trio.to_thread.run_sync(store.find, id)


async def test_a_summary_file_follows_its_session(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    id = await create_session(store)
    journal = tmp_path / "sessions" / f"{id}.jsonl"
    path = listing.summary_path(journal)
    saved = path.read_bytes()
    path.unlink()
    assert store.find(id).query == "First row"
    assert path.read_bytes() == saved
    async with store.resume(id) as opened:
        opened.journal.record(records.Receipt("L1", "dropped", "main", 0))
    assert b'"open_lines": []' in path.read_bytes()
    store.delete(id)
    assert list(journal.parent.iterdir()) == []


async def test_a_resumed_session_has_its_records(store: Store) -> None:
    id = await create_session(store)
    async with store.resume(id) as opened:
        assert opened.loaded is not None
        assert list(opened.loaded.state.lines.on_record) == ["L1"]
        assert (opened.journal.id, opened.loaded.complaints) == (id, ())
        assert opened.journal.seq == 2, "the session and a line were recorded"
        opened.journal.record(records.Receipt("L1", "dropped", "main", 0))
        await opened.journal.sync()
    async with store.resume(id) as opened:
        assert opened.loaded is not None
        assert opened.loaded.state.lines.on_record["L1"].state == "dropped"


async def test_a_session_has_only_one_writer(store: Store) -> None:
    async with store.open_new(Path("/")) as opened:
        id = await write_session(opened.journal)
        assert (await find(store, id)).is_open
        with pytest.raises(SessionError, match=r"is open.*chain watch.*chain send"):
            async with store.resume(id):
                pytest.fail("an open session was opened again")
        with pytest.raises(SessionError, match="is open"):
            await trio.to_thread.run_sync(store.delete, id)
    assert not (await find(store, id)).is_open


async def test_sessions_are_listed_latest_first(store: Store, tmp_path: Path) -> None:
    assert await trio.to_thread.run_sync(store.summaries) == []
    first = await create_session(store, workspace=tmp_path)
    second = await create_session(store)
    listed = await trio.to_thread.run_sync(store.summaries)
    assert [each.id for each in listed] == [second, first]
    for summary in listed:
        assert (summary.query, summary.open_lines, summary.was_used) == ("First row", ("L1",), True)
    latest_here = await trio.to_thread.run_sync(sessions.latest_session, store, tmp_path)
    assert latest_here is not None
    assert latest_here.id == first
    [latest] = await trio.to_thread.run_sync(lambda: store.summaries(latest=1))
    assert latest.id == second


async def test_part_of_an_id_identifies_a_session(store: Store) -> None:
    first = await create_session(store)
    await create_session(store)
    year, random_digits = first[:4], first[-6:]
    for part in (first, random_digits):
        assert await trio.to_thread.run_sync(store.whole_id, part) == first
        assert (await find(store, part)).id == first
    with pytest.raises(SessionError, match="matches 2 sessions"):
        await trio.to_thread.run_sync(store.whole_id, year)
    for wrong in ("nothing", "", "*", "../x"):
        with pytest.raises(SessionError, match="there is no session"):
            await trio.to_thread.run_sync(store.whole_id, wrong)


async def test_a_deleted_session_is_not_found(store: Store) -> None:
    deleted, other = await create_session(store), await create_session(store)
    await trio.to_thread.run_sync(store.delete, deleted)
    assert [each.id for each in await trio.to_thread.run_sync(store.summaries)] == [other]
    with pytest.raises(SessionError, match="there is no session"):
        async with store.resume(deleted):
            pytest.fail("a deleted session was opened")


async def test_a_session_is_exported_with_its_image(store: Store) -> None:
    image = Image("image/png", DIGEST, "it", b64encode(PIXEL).decode())
    message = records.Message(Message("user", (Text("see"), image)), "main", 0)
    id = await create_session(store, message, message)
    assert await trio.to_thread.run_sync(store.attachment, id, DIGEST) == PIXEL
    assert await trio.to_thread.run_sync(store.attachment, id, "0" * 64) is None
    document = await trio.to_thread.run_sync(lambda: "".join(sessions.export(store, id, "json")))
    assert b64encode(PIXEL).decode() in document
    first, second, *_ = await trio.to_thread.run_sync(lambda: list(sessions.session_events(store, id)))
    assert (first.type, second.type) == ("init", "line_queued")
