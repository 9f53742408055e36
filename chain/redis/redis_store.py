"""Sessions in Redis, which several machines share.

Any machine can send lines to a session, and one process at a time runs the session. ``RedisStore`` is a store of
sessions like ``FileStore``. Its methods with a ``server`` parameter are for workers, and for processes that send lines
to a session or watch it.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TypeVar

import trio

from chain.chain import ServedSession
from chain.errors import SessionError
from chain.journal.journal import Journal
from chain.redis import scripts
from chain.redis.lease import LEASE_S, Lease, Row, claim, hold_lease
from chain.redis.mailbox import Mailbox
from chain.redis.redis_server import Command, RedisAddress, RedisServer, Unreachable, connect, read_address
from chain.redis.scripts import key
from chain.session.listing import Summary, from_text, match_id, summary_of, to_text
from chain.session.resume import load_journal
from chain.session.state import State
from chain.session.store import OpenSession
from chain.text.wording import FULL

T = TypeVar("T")

RECORDS_PER_REQUEST = 100
MAX_DUE = 1_000
"""The maximum number of sessions that a worker reads at once from the list of sessions that need a worker."""
MAX_SUMMARY = 2_000
"""The maximum length of a stored summary, in characters. Without one, each listing reads the journal again."""
IN_LOOP_S = 2.0
"""The maximum time, in seconds, that a method blocks a trio loop: less than between two renewals of a lease."""
CLAIM_PAUSES_S = (0.1, 0.3, 0.6, 0)
"""The pauses after failed attempts to claim a session, in seconds: a worker may be about to release it."""


@dataclass(frozen=True, slots=True)
class LineStatus:
    """The latest status of a line that was sent, with the fields of its receipt."""

    state: str
    agent: str = "main"
    iteration: int = 0
    point: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a session, at the position ``place`` of the stream.

    ``before`` is the number of bytes of all earlier events. ``until`` is that number plus the bytes of this event.
    """

    place: str
    row: Row
    before: int
    until: int


class RedisStore:
    """Sessions in the Redis at an address: ``redis://[USER:PASSWORD@]HOST[:PORT]/DB``, or ``rediss://`` for TLS.

    The constructor raises ``SessionError`` for any other address, and all methods raise it if the server fails.
    """

    def __init__(self, address: str, *, source: str = "the address", lease_s: float = LEASE_S) -> None:
        self.address: RedisAddress = read_address(address, source)
        self.lease_s = lease_s
        self.claimed: dict[str, Lease] = {}
        """The leases that a worker has claimed already, by session id. ``resume`` uses these leases first."""

    def connect(self) -> AbstractAsyncContextManager[RedisServer]:
        """Connect to the server for the duration of the block."""
        return connect(self.address)

    # ------------------------------------------------------------------------------------------------ as a store

    def check(self) -> None:
        """Raise ``SessionError`` if sessions would not be safe on the server."""

        async def check(server: RedisServer) -> None:
            pass  # ``connect`` has checked it

        self._run(check)

    @asynccontextmanager
    async def open_new(self, workspace: Path) -> AsyncIterator[OpenSession]:
        """Create a session and hold its lease for the duration of the block."""
        async with self.connect() as server:
            id = await self.create(server, os.path.realpath(workspace))  # noqa: ASYNC240 - its folders are known by now
            async with self._claim_and_open(server, id) as opened:
                yield opened

    @asynccontextmanager
    async def resume(self, id: str) -> AsyncIterator[OpenSession]:
        """Open a session, whose journal may be empty, and hold its lease for the duration of the block."""
        if (lease := self.claimed.get(id)) is not None:
            yield await _open(lease)
            return
        async with self.connect() as server, self._claim_and_open(server, match_id(await _ids(server), id)) as opened:
            yield opened

    @asynccontextmanager
    async def _claim_and_open(self, server: RedisServer, id: str) -> AsyncIterator[OpenSession]:
        for pause in CLAIM_PAUSES_S:
            found = await claim(server, id, by_worker=False, length_s=self.lease_s)
            if found != "held":
                break
            await trio.sleep(pause)
        if not isinstance(found, Lease):
            raise SessionError(_REFUSED[found].format(id=id))
        async with hold_lease(found):
            yield await _open(found)

    def summaries(self, *, latest: int | None = None, workspace: Path | None = None) -> list[Summary]:
        """Return session summaries, latest change first: at most ``latest``, only of this ``workspace`` if given."""
        here = None if workspace is None else os.path.realpath(workspace)

        async def read(server: RedisServer) -> list[Summary]:
            ids = await _ids(server)
            if here is not None:
                ids = await _filter_by_folder(server, ids, here, most=latest)
            return [await _summary(server, id) for id in ids[:latest]]

        return self._run(read)

    def find(self, id: str) -> Summary:
        """Return the summary of a session. ``id`` may be a part of the session's id."""
        return self._run_for(id, _summary)

    def whole_id(self, id: str) -> str:
        """Return the full id of a session. ``id`` may be a part of the full id."""

        async def whole(server: RedisServer, id: str) -> str:
            return id

        return self._run_for(id, whole)

    @contextmanager
    def rows(self, id: str) -> Iterator[Iterable[bytes]]:
        """Yield the rows of a session's journal."""
        yield self._run_for(id, _rows)

    def attachment(self, id: str, digest: str) -> bytes | None:
        """Return the content of an attachment; ``None`` if there is none with this digest."""

        async def read(server: RedisServer, id: str) -> bytes | None:
            (found,) = await server.ask((b"HGET", key(id, "files"), digest))
            return found if found is None else bytes(found)

        return self._run_for(id, read)

    def delete(self, id: str) -> None:
        """Delete a session. Raise ``SessionError`` if it does not exist, or if another process has it open."""

        async def remove(server: RedisServer, id: str) -> None:
            if (await server.run(scripts.DELETE, id, ""))[0] == b"held":
                raise SessionError(f"the session {id} is open in another process; end that first")

        self._run_for(id, remove)

    def _run_for(self, id: str, work: Callable[[RedisServer, str], Awaitable[T]]) -> T:
        """Run ``work`` as ``_run`` does, with the full id of a session. ``id`` may be a part of that id."""

        async def run(server: RedisServer) -> T:
            return await work(server, match_id(await _ids(server), id))

        return self._run(run)

    def _run(self, work: Callable[[RedisServer], Awaitable[T]]) -> T:
        """Run ``work`` with a connection, in a new thread with its own trio loop. Return the result.

        If the caller is in a trio loop, wait at most ``IN_LOOP_S``, then raise ``Unreachable``.
        """
        done: Future[T] = Future()

        async def run() -> T:
            async with connect(self.address) as server:
                return await work(server)

        def in_thread() -> None:
            try:
                done.set_result(trio.run(run))
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                done.set_exception(error)

        Thread(target=in_thread, daemon=True).start()
        try:
            return done.result(IN_LOOP_S if trio.lowlevel.in_trio_run() else None)
        except TimeoutError:  # the thread ends by its own timeout
            raise Unreachable(f"the Redis at {self.address} did not answer in time; try again") from None

    # ------------------------------------------------------------------------------------------------ for workers

    async def due_sessions(self, server: RedisServer, *, only: str = "") -> list[str]:
        """Return the ids of the sessions that need a worker now, in random order. ``only`` may name their folder."""
        found = [id.decode() for id in await server.run(scripts.DUE_NOW, "", -1 if only else MAX_DUE)]
        if only:
            found = await _filter_by_folder(server, found, only)
        random.shuffle(found)  # so that workers do not all try the same one
        return found

    async def claim_for_worker(self, server: RedisServer, id: str) -> Lease | None:
        """Return a lease on a session that needs a worker; ``None`` if another worker was faster."""
        found = await claim(server, id, by_worker=True, length_s=self.lease_s)
        return found if isinstance(found, Lease) else None

    async def wait_for_work(self, server: RedisServer, seconds: float) -> None:
        """Wait until a session may need a worker, at most ``seconds``."""
        await server.ask((b"BLPOP", scripts.WAKE, seconds), wait_s=seconds)

    async def discount_death(self, server: RedisServer, lease: Lease) -> None:
        """Report that the worker that lost this lease is alive, so that the loss does not count as a death."""
        await server.run(scripts.OUTLIVE, lease.id, lease.token)

    async def delete_old(self, server: RedisServer, keep_s: float) -> None:
        """Delete up to ``RECORDS_PER_REQUEST`` sessions that have not changed for ``keep_s`` seconds."""
        keep_ms = int(keep_s * 1000)
        for id in await server.run(scripts.OLD, "", keep_ms, RECORDS_PER_REQUEST):
            await server.run(scripts.DELETE, id.decode(), keep_ms)

    # ---------------------------------------------------------------------------------- for senders and watchers

    async def create(self, server: RedisServer, workspace: str) -> str:
        """Create a session for a workspace, which must be a resolved path. Return the id of the session."""
        while True:
            id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
            if (await server.run(scripts.CREATE, id, os.fsencode(workspace)))[0] == b"ok":
                return id

    async def submit(self, server: RedisServer, id: str, row: Row, *, needs_room: bool) -> LineStatus:
        """Send a row to a session. Return the status of the row, which is ``refused`` if the inbox has no room.

        If a row with the same id was sent before, add nothing, and return its latest status.
        """
        answers_ms = int(row["for_s"] * 1000) if row["type"] == "hello" else ""
        about = (row["id"], json.dumps(row), row["type"], int(needs_room), answers_ms)
        said, *more = await server.run(scripts.SUBMIT, id, *about)
        match said:
            case b"known":
                return LineStatus(**json.loads(more[0]))
            case b"full":
                return LineStatus("refused", reason=FULL)
            case b"none":
                raise SessionError(_REFUSED["none"].format(id=id))
            case _:
                return LineStatus("queued")

    async def status(self, server: RedisServer, id: str, line: str) -> LineStatus:
        """Return the latest status of the line with the id ``line``; ``refused`` if the line never arrived."""
        (found,) = await server.ask((b"HGET", key(id, "ids"), line))
        return (
            LineStatus("refused", reason="it was lost; resend it") if found is None else LineStatus(**json.loads(found))
        )

    async def sessions_in(self, server: RedisServer, workspace: str, *, most: int) -> list[str]:
        """Return the ids of up to ``most`` sessions of a resolved folder, most recently changed first."""
        return (await _filter_by_folder(server, await _ids(server), workspace, most=most))[:most]

    async def active_sessions(self, server: RedisServer, ids: Sequence[str]) -> list[str]:
        """Return the ``ids`` of sessions that are open in a process or need a worker."""
        commands: list[Command] = [(b"TIME",)]
        for id in ids:
            commands += [(b"HGET", key(id, "meta"), b"until"), (b"ZSCORE", scripts.DUE, id)]
        time_, *found = await server.ask(*commands)
        pairs, now = zip(ids, found[::2], found[1::2], strict=True), _ms(time_)
        return [
            id for id, until, due in pairs if due is not None or now < int(until or 0) <= now + scripts.MAX_AHEAD_MS
        ]

    async def latest_run(self, server: RedisServer, id: str) -> tuple[str, Row | None]:
        """Return the position of the first event of the latest run, and the ``init`` event of its process.

        Without any run, the position is empty and the event is ``None``.
        """
        ((place, init),) = await server.ask((b"HMGET", key(id, "meta"), b"told_from", b"run_init"))
        return (place or b"").decode(), json.loads(init) if init else None

    async def latest_event(self, server: RedisServer, id: str) -> str:
        """Return the position of the latest event; ``0`` if there is no event."""
        (found,) = await server.ask((b"XREVRANGE", key(id, "events"), b"+", b"-", b"COUNT", 1))
        return found[0][0].decode() if found else "0"

    async def events(self, server: RedisServer, id: str, after: str, *, wait_s: float) -> list[StoredEvent]:
        """Return the events after a position. If there are none, wait up to ``wait_s`` seconds for the next one."""
        found: list[StoredEvent] = []
        entries = await server.read_stream(key(id, "events"), after, count=RECORDS_PER_REQUEST, wait_s=wait_s)
        for place, (_, event, _, until) in entries:
            found.append(StoredEvent(place.decode(), json.loads(event), int(until) - len(event), int(until)))
        return found


_REFUSED = {
    "none": "there is no session {id!r:.60}; chain sessions list shows all sessions",
    "held": "the session {id} is open in another process; chain watch shows it, and chain send sends it lines",
}


async def _open(lease: Lease) -> ServedSession:
    """Open the session of a lease: read its journal, and fetch the rows that were sent to it."""
    await lease.fetch(wait_s=0)
    rows = await _rows(lease.server, lease.id)
    files = await _files(lease.server, lease.id) if any(b'"type":"image"' in row for row in rows) else {}
    read = await trio.to_thread.run_sync(load_journal, rows, files.get) if rows else None
    seq, state = (0, State()) if read is None else (read.seq, read.state)
    journal = Journal(lease, id=lease.id, seq=seq, on_written=lease.publish_receipt, writes_later=True)
    return ServedSession(journal, state, read, serve=Mailbox(lease).serve)


async def _ids(server: RedisServer) -> list[str]:
    """Return the ids of all sessions, most recently changed first."""
    (found,) = await server.ask((b"ZRANGE", scripts.SESSIONS, 0, -1, b"REV"))
    return [each.decode(errors="replace") for each in found]


async def _filter_by_folder(
    server: RedisServer, ids: Sequence[str], folder: str, *, most: int | None = None
) -> list[str]:
    """Return, in their order, the ``ids`` of sessions in ``folder``. The search may end after ``most`` such ids."""
    found: list[str] = []
    for first in range(0, len(ids), RECORDS_PER_REQUEST):
        page = ids[first : first + RECORDS_PER_REQUEST]
        places = await server.ask(*((b"HGET", key(id, "meta"), b"workspace") for id in page))
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
    """Return the attachments of a session by digest. Each is requested alone, to stay below ``MAX_SERVER_ANSWER``."""
    (digests,) = await server.ask((b"HKEYS", key(id, "files")))
    return {digest.decode(): (await server.ask((b"HGET", key(id, "files"), digest)))[0] for digest in digests}


def _ms(time_: Sequence[bytes]) -> int:
    """Convert the answer of the command TIME to milliseconds."""
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
        found = summary_of(id, load_journal(await _rows(server, id)).state)
        text = to_text(found, place)
        if place and len(text) <= MAX_SUMMARY:
            with suppress(SessionError):  # the server may be full, or read-only for this user
                await server.run(scripts.SUMMARIZE, id, text)
    return replace(
        found,
        changed=float(changed or 0) / 1000,
        workspace=found.workspace or os.fsdecode(workspace or b""),
        is_open=int(until or 0) > _ms(time_),
    )
