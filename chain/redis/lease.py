"""The lease on a session in Redis, which gives one process at a time the right to write the session.

Changes are queued in order and sent in groups. All changes that the program makes without an await between them are in
one group, and one script applies a group. If the answer to a group is lost, the holder sends the group again until the
server answers or the lease ends. The group keeps its number, so the server recognizes a group that it has already
applied. The lease ends no later by the holder's clock than by the server's clock.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, TypeAlias

import trio

from chain import events
from chain.concurrency.nurseries import background_tasks
from chain.concurrency.wakeup import Wakeup
from chain.errors import SessionError
from chain.journal.records import Receipt, Record, Unknown
from chain.redis import scripts
from chain.redis.redis_server import RedisServer, Unreachable

LEASE_S = 10.0
"""Seconds until an unrenewed lease expires, and another process can claim the session."""
RENEWALS = 4
"""The number of renewals within the duration of a lease."""
LEASE_MARGIN = 0.1
"""The last fraction of a lease that the holder leaves unused, so that its programs end before the lease does."""
SETTLING_TURNS = 2
"""Turns of the trio loop to wait before a group is sent, so that it contains all changes of a step of an agent."""
ROWS_PER_FETCH = 100
LEASE_RETRY_S = 0.2
"""Seconds before an unanswered request is repeated."""

RELEASED = "the session was released"
TAKEN_OVER = "another process has taken over the session"
LEASE_LOST = "the server did not answer in time, so another process may have taken over the session"

ReleaseMode: TypeAlias = Literal["done", "handed over", "retry"]
"""What happens after a release.

``done``: the session needs a worker only if lines wait in it. ``handed over``: another worker continues the run at
once. ``retry``: a worker opens the session again after a pause.
"""

Row: TypeAlias = Mapping[str, Any]


class Lease:
    """The lease on one session, created by ``claim``. It is also the session's journal file (``JournalFile``)."""

    def __init__(self, server: RedisServer, id: str, length_s: float) -> None:
        self.server = server
        self.id = id
        self.token = secrets.token_hex(8)
        self.workspace = ""
        self.answers_s = 0.0
        """Seconds for which a watcher has promised to answer questions."""
        self.has_open_run = False
        """Whether an earlier worker, which died or handed over the session, has left an open run."""
        self.takeovers = 0
        """The number of workers that died while they had the session, since the end of the session's last run."""
        self.lost = trio.Event()
        """Set when the lease is lost or released, and nothing more can be written."""
        self.lost_reason = ""
        """The reason why nothing more can be written; empty until then."""
        self.release_mode: ReleaseMode = "done"
        self.unread: list[tuple[bytes, Row]] = []
        """Fetched rows that are not processed yet, each with its position in the stream."""
        self._fetched = "0"
        self.row_removed = Wakeup()
        """Set when a row was processed and removed."""
        self.count_waiting: Callable[[], int | str] = lambda: ""
        """A function that returns the number of lines in the chain's inbox; empty text before there is a chain."""
        self._length_s = length_s
        self._ends_at = trio.current_time() + (1 - LEASE_MARGIN) * length_s
        self._queue: list[bytes | str] = []
        self._news = Wakeup()
        self._queued = self._done = self._groups = 0
        self._waiters = trio.lowlevel.ParkingLot()
        self._problem: SessionError | None = None
        self._is_closed = False

    # ------------------------------------------------------------------------------------------------ changes

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Queue an attachment of the journal. It is written before rows that are appended later."""
        self._change("file", digest, content)

    def append(self, data: bytes) -> None:
        """Queue a row of the journal. Like all methods that queue, raise ``OSError`` if the lease is lost."""
        self._change("row", data)

    def publish_receipt(self, record: Record | Unknown | events.Receipt) -> None:
        """Queue a receipt as the new status of a line. Ignore records of other types."""
        if isinstance(record, Receipt | events.Receipt):
            where = {"agent": record.agent, "iteration": record.iteration, "point": record.point}
            self.publish_status(record.id, state=record.state, **where, reason=record.reason)

    def publish_status(self, line: str, **status: object) -> None:
        """Queue the new status of the line with the id ``line``."""
        self._change("status", line.encode(errors="replace"), json.dumps(status))  # an id from JSON may be no UTF-8

    def remove_row(self, entry: bytes) -> None:
        """Queue the removal of the row at the position ``entry``, in the step that writes the row's effects."""
        self._change("read", entry)
        self.row_removed.set()

    def publish(self, event: str, type: str) -> None:
        """Queue an event (JSON) for watchers. ``type`` matters only for ``init``, ``run_started`` and ``result``."""
        self._change("event", event, type)

    def publish_size(self, size: int) -> None:
        """Queue the size of the inbox, in lines."""
        self._change("size", str(size))

    def hand_over(self) -> None:
        """Refuse further changes, and let another worker continue the run after the release."""
        self._is_closed = True
        self.release_mode = "handed over"

    def _change(self, kind: str, first: bytes | str, second: bytes | str = "") -> None:
        if self.lost_reason or self._is_closed:
            raise OSError(0, self.lost_reason or RELEASED)
        self._queue += (kind, first, second)
        self._queued += 1
        self._news.set()

    async def sync(self) -> None:
        """Wait until everything queued is on the server's disk. Raise ``OSError`` if the lease is lost first."""
        target = self._queued
        await trio.lowlevel.checkpoint()
        while self._done < target and not self.lost_reason:
            await self._waiters.park()
        if self._done < target:
            raise OSError(0, self.lost_reason)

    async def fetch(self, *, wait_s: float) -> None:
        """Append new rows of the session to ``unread``. If there are none, wait up to ``wait_s`` seconds for one."""
        lines = scripts.key(self.id, "lines")
        for place, fields in await self.server.read_stream(lines, self._fetched, count=ROWS_PER_FETCH, wait_s=wait_s):
            self.unread.append((place, _row(fields)))
            self._fetched = place.decode()

    # ------------------------------------------------------------------------------------------------- duration

    async def write(self) -> None:
        """Send queued changes until the lease is lost."""
        while not self.lost_reason:
            if not self._queue:
                await self._news.wait()
                for _ in range(SETTLING_TURNS):
                    await trio.lowlevel.checkpoint()
                continue
            group, count = tuple(self._queue), self._queued
            self._queue.clear()
            self._groups += 1
            if await self._run_until_answered(scripts.APPEND, self._groups, self.count_waiting(), *group):
                self._done = count
                self._waiters.unpark_all()

    async def renew(self) -> None:
        """Renew the lease until it is lost, for example because the server answers no renewal in time."""
        while not self.lost_reason:
            with trio.move_on_at(self._ends_at):
                with trio.move_on_after(self._length_s / RENEWALS):
                    await self.lost.wait()
                asked_at = trio.current_time()
                if await self._run_until_answered(scripts.RENEW, int(self._length_s * 1000)):
                    self._ends_at = asked_at + (1 - LEASE_MARGIN) * self._length_s
            if trio.current_time() >= self._ends_at:
                self.stop_writing(str(self._problem or LEASE_LOST))

    async def release(self) -> None:
        """Wait until everything is written, then release the session. Do nothing more if the lease is lost."""
        with suppress(OSError):
            await self.sync()
            if await self._run_until_answered(scripts.RELEASE, self.release_mode):
                self.stop_writing(RELEASED)

    @property
    def was_released(self) -> bool:
        """Whether the lease has ended by a release."""
        return self.lost_reason == RELEASED

    def stop_writing(self, why: str) -> None:
        """Drop pending writes and refuse new ones."""
        if not self.lost_reason:
            self.lost_reason = why
            self._queue.clear()
            self.lost.set()
            self._news.set()
            self._waiters.unpark_all()

    async def _run_until_answered(self, script: str, *arguments: bytes | str | int) -> bool:
        """Repeat a script until the server answers or the lease is lost. Return whether the server accepted it.

        If the server refuses the script, another process has taken over the session, and the lease is lost.
        """
        while not self.lost_reason:
            try:
                said = await self.server.run(script, self.id, self.token, *arguments)
            except Unreachable as error:
                self._problem = error
                await trio.sleep(LEASE_RETRY_S)
            except SessionError as error:
                self.stop_writing(str(error))
            else:
                if said[0] == b"ok":
                    return True
                self.stop_writing(TAKEN_OVER)
        return False


async def claim(
    server: RedisServer, id: str, *, by_worker: bool, length_s: float = LEASE_S
) -> Lease | Literal["none", "held"]:
    """Claim a session. Return the lease, or the reason for a refusal. Raise ``SessionError`` if the server fails.

    ``none``: there is no such session. ``held``: another process has it or, with ``by_worker``, it needs no worker.
    """
    lease = Lease(server, id, length_s)
    arguments = (lease.token, int(length_s * 1000), int(by_worker))
    try:
        said, *more = await server.run(scripts.CLAIM, id, *arguments)
    except Unreachable:  # if only the answer was lost, the session would stay claimed until the lease ends
        await trio.sleep(LEASE_RETRY_S)
        said, *more = await server.run(scripts.CLAIM, id, *arguments)
    if said != b"ok":
        return "none" if said == b"none" else "held"
    lease.workspace, lease.answers_s = os.fsdecode(more[0]), int(more[1]) / 1000
    lease.has_open_run, lease.takeovers = bool(int(more[2])), int(more[3])
    return lease


@asynccontextmanager
async def hold_lease(lease: Lease) -> AsyncIterator[None]:
    """Send changes and renew the lease for the duration of the block. Release the session on exit."""
    async with background_tasks(lease.write, lease.renew):
        try:
            yield
        finally:
            # Accepted changes are still written if the holder is cancelled, at most until the lease ends.
            with trio.CancelScope(shield=True):
                await lease.release()


def _row(fields: Sequence[bytes]) -> Row:
    """Return the row in the fields of a stream entry; an empty row if chain did not write the entry."""
    try:
        row = json.loads(fields[1])
    except (ValueError, IndexError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}
