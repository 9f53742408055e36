"""Sessions in Redis, which several machines share: any of them sends lines, and one of them runs a session."""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import trio

from chain.concurrency.nurseries import unwrap_group
from chain.errors import SessionError
from chain.journal.journal import Journal
from chain.redis import scripts
from chain.redis.lease import LEASE_S, Lease, claim, kept_up
from chain.redis.mailbox import Mailbox, entries
from chain.redis.redis_server import Command, RedisAddress, RedisServer, Unreachable, connected, read_address
from chain.redis.scripts import key
from chain.session.listing import Summary, from_text, match_id, summary_of, to_text
from chain.session.resume import LoadedSession, read_back
from chain.session.state import State
from chain.session.store import OpenSession

T = TypeVar("T")

RECORDS_PER_REQUEST = 100
"""Records per request."""
MAX_DUE = 1_000
"""Sessions that want a worker of which one hears at once."""
MAX_KEPT = 2_000
"""Characters of a summary that is kept, so that the next one who looks reads no journal."""
SIZE = 10
"""Of the inbox of a session that nobody has opened yet."""
IN_LOOP_S = 2.0
"""How long a loop is held up at most by what is asked from inside it: less than the pause between two renewals of a
lease that it may hold."""
CLAIM_PAUSES_S = (0.1, 0.3, 0.6, 0)
"""How long to wait, again and again, for a session that is just being given back."""


@dataclass(frozen=True, slots=True)
class LineStatus:
    """What is known of a line that was sent: its state, and where and why, as its latest receipt says."""

    state: str
    agent: str = "main"
    iteration: int = 0
    point: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """An event of a session, with its place in the stream and the bytes of all events told before and with it."""

    place: str
    row: Mapping[str, Any]
    before: int
    until: int


class RedisStore:
    """Sessions in the Redis at an address: ``redis://[USER:PASSWORD@]HOST[:PORT]/DB``, or ``rediss://`` for TLS.

    Raises ``SessionError`` for what is no address. The other methods raise it for what the server cannot do.
    """

    def __init__(self, address: str, *, source: str = "the address", lease_s: float = LEASE_S) -> None:
        self.address: RedisAddress = read_address(address, source)
        self.lease_s = lease_s
        self.claimed: dict[str, Lease] = {}
        """Sessions that a worker claims before it opens them."""
        self._newer: set[str] = set()
        """Sessions that wait for workers of a newer version."""

    def connected(self) -> AbstractAsyncContextManager[RedisServer]:
        """The server, for the block."""
        return connected(self.address)

    # ------------------------------------------------------------------------------------------------ as a store

    def check(self) -> None:
        """Whether sessions are safe there."""

        async def check(server: RedisServer) -> None:
            pass  # whoever connects has checked it

        self._do(check)

    @asynccontextmanager
    async def begin(self, workspace: Path) -> AsyncIterator[OpenSession]:
        """A new session."""
        async with self.connected() as server:
            id = await self.create(server, os.path.realpath(workspace))  # noqa: ASYNC240 - its folders are known by now
            async with self._open(await self._claim(server, id)) as held:
                yield held

    @asynccontextmanager
    async def resume(self, id: str) -> AsyncIterator[OpenSession]:
        """An old one; one that nobody has opened yet is as new."""
        if (lease := self.claimed.pop(id, None)) is not None:
            async with self._open(lease) as held:
                yield held
            return
        async with self.connected() as server:
            lease = await self._claim(server, match_id(await _ids(server), id))
            async with self._open(lease) as held:
                yield held

    @asynccontextmanager
    async def _open(self, lease: Lease) -> AsyncIterator[OpenSession]:
        server, id = lease.server, lease.id
        async with kept_up(lease):
            rows = await _rows(server, id)
            files = await _files(server, id) if any(b'"type":"image"' in row for row in rows) else {}
            read: LoadedSession | None = None
            if rows:
                read = await trio.to_thread.run_sync(read_back, rows, files.get)
            seq = 0 if read is None else read.seq
            journal = Journal(lease, id=id, seq=seq, note=lease.note, writes_later=True)
            state = State() if read is None else read.state
            yield OpenSession(journal, state, read, Mailbox(server, lease).serve)

    async def _claim(self, server: RedisServer, id: str) -> Lease:
        for pause in CLAIM_PAUSES_S:
            found = await claim(server, id, by_worker=False, size=SIZE, length_s=self.lease_s)
            if found != "held":
                break
            await trio.sleep(pause)
        if isinstance(found, Lease):
            return found
        raise SessionError(_REFUSED[found].format(id=id))

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """The sessions."""
        here = None if workspace is None else os.path.realpath(workspace)

        async def read(server: RedisServer) -> list[Summary]:
            ids = await _ids(server)
            if here is not None:
                ids = await _working_in(server, ids, here, most=latest)
            return [await _summary(server, id) for id in ids[:latest]]

        return self._do(read)

    def find(self, id: str) -> Summary:
        """One of them."""

        async def read(server: RedisServer) -> Summary:
            return await _summary(server, match_id(await _ids(server), id))

        return self._do(read)

    def whole_id(self, id: str) -> str:
        """The id of one in full."""

        async def read(server: RedisServer) -> str:
            return match_id(await _ids(server), id)

        return self._do(read)

    @contextmanager
    def rows(self, id: str) -> Iterator[Iterable[bytes]]:
        """The rows of its journal."""

        async def read(server: RedisServer) -> list[bytes]:
            return await _rows(server, match_id(await _ids(server), id))

        yield self._do(read)

    def kept(self, id: str, digest: str) -> bytes | None:
        """The content of a file beside its journal."""

        async def read(server: RedisServer) -> bytes | None:
            whole = match_id(await _ids(server), id)
            (found,) = await server.ask((b"HGET", key(whole, "files"), digest))
            return found if found is None else bytes(found)

        return self._do(read)

    def delete(self, id: str) -> None:
        """Remove it for good."""

        async def remove(server: RedisServer) -> None:
            whole = match_id(await _ids(server), id)
            if (await server.run(scripts.DELETE, whole, ""))[0] == b"held":
                raise SessionError(f"the session {whole} is open in another process; end that first")

        self._do(remove)

    def _do(self, work: Callable[[RedisServer], Awaitable[T]]) -> T:
        """Do something with the server, wherever that is called from."""

        async def run() -> T:
            async with connected(self.address) as server:
                return await work(server)

        if not trio.lowlevel.in_trio_run():
            return _alone(run)
        done: list[T | BaseException] = []
        from threading import Thread

        def in_thread() -> None:
            try:
                done.append(_alone(run))
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asked
                done.append(error)

        thread = Thread(target=in_thread, daemon=True)
        thread.start()
        thread.join(IN_LOOP_S)
        if not done:  # it gives up by itself
            raise Unreachable(f"the Redis at {self.address} did not answer in time; try it again")
        (found,) = done
        if isinstance(found, BaseException):
            raise found
        return found

    # ------------------------------------------------------------------------------------------------ for workers

    async def due(self, server: RedisServer, *, only: str = "") -> list[str]:
        """Sessions that want a worker now, in no order that all workers share; ``only`` those of a folder."""
        found: list[str] = []
        first = 0
        while not found:
            page = [id.decode() for id in await server.run(scripts.DUE_NOW, "", first, MAX_DUE)]
            found = [id for id in page if id not in self._newer]
            if only:
                found = await _working_in(server, found, only)
            if len(page) < MAX_DUE:
                break
            first += MAX_DUE
        random.shuffle(found)  # so that they do not all try the same one
        return found

    async def claim_for_worker(self, server: RedisServer, id: str, *, size: int) -> Lease | None:
        """A lease on a session that wants a worker, if nobody was quicker."""
        found = await claim(server, id, by_worker=True, size=size, length_s=self.lease_s)
        if found == "newer":
            self._newer.add(id)
        return found if isinstance(found, Lease) else None

    async def wait_for_work(self, server: RedisServer, seconds: float) -> None:
        """Wait until a session may want a worker, for so many seconds at most."""
        await server.block(seconds, b"BLPOP", scripts.WAKE, seconds)

    async def delete_old(self, server: RedisServer, keep_s: float) -> None:
        """Delete sessions in which nothing has happened for so many seconds, some at a time."""
        keep_ms = int(keep_s * 1000)
        for id in await server.run(scripts.OLD, "", keep_ms, RECORDS_PER_REQUEST):
            await server.run(scripts.DELETE, id.decode(), keep_ms)

    # --------------------------------------------------------------------------------------- for those who send

    async def create(self, server: RedisServer, workspace: str) -> str:
        """A session that works in a folder, whose path is resolved, for whoever opens it first; its id."""
        while True:
            id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
            if (await server.run(scripts.CREATE, id, os.fsencode(workspace)))[0] == b"ok":
                return id

    async def submit(self, server: RedisServer, id: str, row: Mapping[str, Any], *, needs_room: bool) -> LineStatus:
        """Send a row as at the side door, which has an id of its own: sent again, it is the same. What is known of it.

        ``refused`` is one that there was no room for.
        """
        answers = int(row["for_s"] * 1000) if row["type"] == "hello" else ""
        about = (row["id"], json.dumps(row), int(needs_room), SIZE, answers, row["type"])
        said, *more = await server.run(scripts.SUBMIT, id, *about)
        match said:
            case b"known":
                return _sent(more[0])
            case b"full":
                return LineStatus("refused", reason="Interruption channel full, try again")
            case b"none" | b"newer":
                raise SessionError(_REFUSED[said.decode()].format(id=id))
            case _:
                return LineStatus("queued")

    async def became(self, server: RedisServer, id: str, line: str) -> LineStatus:
        """What became of a line that was sent."""
        (found,) = await server.ask((b"HGET", key(id, "ids"), line))
        return LineStatus("refused", reason="it never came there") if found is None else _sent(found)

    async def discount_death(self, server: RedisServer, lease: Lease) -> None:
        """Say that the worker that lost a session has not died."""
        await server.run(scripts.OUTLIVE, lease.id, lease.token)

    async def ids_in(self, server: RedisServer, workspace: str, *, most: int) -> list[str]:
        """The sessions of a folder, whose path is resolved: so many at most, the one that changed last first."""
        return (await _working_in(server, await _ids(server), workspace, most=most))[:most]

    async def busy(self, server: RedisServer, ids: Sequence[str]) -> list[str]:
        """Those of the sessions that somebody holds, or that want a worker."""
        commands: list[Command] = [(b"TIME",)]
        for id in ids:
            commands += [(b"HGET", key(id, "meta"), b"until"), (b"ZSCORE", scripts.DUE, id)]
        time_, *found = await server.ask(*commands)
        pairs = zip(ids, found[::2], found[1::2], strict=True)
        return [id for id, until, due in pairs if due is not None or int(until or 0) > _ms(time_)]

    async def latest_run(self, server: RedisServer, id: str) -> tuple[str, Mapping[str, Any] | None]:
        """The place of the event with which the latest run began, and the event that tells who began it.

        The place is empty where there was none.
        """
        ((place, init),) = await server.ask((b"HMGET", key(id, "meta"), b"told_from", b"run_init"))
        return (place or b"").decode(), json.loads(init) if init else None

    async def latest_event(self, server: RedisServer, id: str) -> str:
        """The place of the event that was told last."""
        (found,) = await server.ask((b"XREVRANGE", key(id, "events"), b"+", b"-", b"COUNT", 1))
        return found[0][0].decode() if found else "0"

    async def told(self, server: RedisServer, id: str, after: str, *, wait_s: float) -> list[ToldEvent]:
        """The events after one; waits for the next."""
        answer = await server.block(
            wait_s,
            b"XREAD",
            b"COUNT",
            RECORDS_PER_REQUEST,
            b"BLOCK",
            int(wait_s * 1000),
            b"STREAMS",
            key(id, "events"),
            after,
        )
        found: list[ToldEvent] = []
        for place, (_, event, *more) in entries(answer):
            until = int(more[1]) if more else 0
            found.append(ToldEvent(place.decode(), json.loads(event), until - len(event), until))
        return found


_REFUSED = {
    "none": "there is no session {id!r:.60}; chain sessions list shows all sessions",
    "held": "the session {id} is open in another process; chain watch shows it, and chain send sends it lines",
    "newer": "the session {id} was written by a newer chain; update this one",
}


def _alone(run: Callable[[], Awaitable[T]]) -> T:
    try:
        return trio.run(run)
    except BaseExceptionGroup as group:
        raise unwrap_group(group) from None


def _sent(found: bytes) -> LineStatus:
    raw = json.loads(found)
    names = LineStatus.__dataclass_fields__
    return LineStatus(**{name: value for name, value in raw.items() if name in names})


async def _ids(server: RedisServer) -> list[str]:
    """All sessions, the one that changed last first."""
    (found,) = await server.ask((b"ZRANGE", scripts.SESSIONS, 0, -1, b"REV"))
    return [each.decode(errors="replace") for each in found]


async def _working_in(server: RedisServer, ids: Sequence[str], folder: str, *, most: int | None = None) -> list[str]:
    """Those of the sessions that work in a folder, in their order; the first so many, and a few more."""
    found: list[str] = []
    for first in range(0, len(ids), RECORDS_PER_REQUEST):
        page = ids[first : first + RECORDS_PER_REQUEST]
        commands: list[Command] = [(b"HGET", key(id, "meta"), b"workspace") for id in page]
        places = await server.ask(*commands)
        found += (id for id, place in zip(page, places, strict=True) if place == os.fsencode(folder))
        if most is not None and len(found) >= most:
            break
    return found


async def _rows(server: RedisServer, id: str) -> list[bytes]:
    rows: list[bytes] = []
    after = "-"
    while True:
        (found,) = await server.ask((b"XRANGE", key(id, "journal"), after, b"+", b"COUNT", RECORDS_PER_REQUEST))
        rows += (fields[1] for _, fields in found)
        if len(found) < RECORDS_PER_REQUEST:
            return rows
        after = f"({found[-1][0].decode()}"


async def _files(server: RedisServer, id: str) -> dict[str, bytes]:
    (found,) = await server.ask((b"HGETALL", key(id, "files")))
    pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
    return {digest.decode(): content for digest, content in pairs}


def _ms(time_: Sequence[bytes]) -> int:
    """The server's time in milliseconds."""
    return int(time_[0]) * 1000 + int(time_[1]) // 1000


async def _summary(server: RedisServer, id: str) -> Summary:
    time_, (until, workspace, known), changed, last = await server.ask(
        (b"TIME",),
        (b"HMGET", key(id, "meta"), b"until", b"workspace", b"summary"),
        (b"ZSCORE", scripts.SESSIONS, id),
        (b"XREVRANGE", key(id, "journal"), b"+", b"-", b"COUNT", 1),
    )
    place = last[0][0].decode() if last else ""
    found = from_text(known or b"", place)
    if found is None:
        found = summary_of(id, read_back(await _rows(server, id)).state)
        kept = to_text(found, place)
        if place and len(kept) <= MAX_KEPT:
            with suppress(SessionError):  # it may be full, or read-only for this user
                await server.run(scripts.SUMMARIZE, id, kept)
    return replace(
        found,
        changed=float(changed or 0) / 1000,
        workspace=found.workspace or os.fsdecode(workspace or b""),
        is_open=int(until or 0) > _ms(time_),
    )
