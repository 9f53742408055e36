"""A session of a Redis that somebody holds: the lease on it, and what is written as long as that lasts.

What is to be written waits in its order, in groups: what comes up in one step is in one group, and a group is one step
of the server, too. A group whose answer was lost on the way is sent again; the server knows it by its number. Only the
end of the lease makes an end of that: by the holder's own clock it comes no later than by the server's.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal, TypeAlias

import trio

from chain import events
from chain.concurrency.nurseries import background_tasks
from chain.concurrency.wakeup import Wakeup
from chain.errors import SessionError
from chain.journal.records import Receipt, Record, Unknown
from chain.redis import scripts
from chain.redis.redis_server import RedisServer, Unreachable

LEASE_S = 10.0
"""How long nobody else gets a session whose holder says nothing."""
RENEWALS = 4
"""How often a lease is renewed before it would end."""
LEASE_MARGIN = 0.1
"""The part of a lease before its end in which its holder stops: what it runs is to have ended by then."""
SETTLING = 2
"""Turns of the loop in which more may come up before a group is sent: a step of the agent takes some, and a group costs
as much as the rest of it."""
LEASE_RETRY_S = 0.2
"""The pause before a server that does not answer is asked again."""

RELEASED = "the session was given back"
TAKEN_OVER = "another process has taken the session over"
LEASE_LOST = "the server did not answer for so long that another process may have taken the session over"

How: TypeAlias = Literal["idle", "over", "handed"] | int
"""Why a lease ends: there is nothing left to do (refused if a line has come), its holder goes, another worker is to go
on at once, or one is wanted in so many milliseconds."""


class Lease:
    """Holds a session, and writes it: the file layer under its journal. Made by ``claim``."""

    def __init__(self, server: RedisServer, id: str, token: str, length_s: float, *, by_worker: bool) -> None:
        self.id = id
        self.workspace = ""
        self.answers_s = 0.0
        """For how long somebody answers questions, who said so before."""
        self.goes_on = False
        """Whether a run that is open was cut just now, or handed over."""
        self.takeovers = 0
        """How many workers have died with the session since a run of it came to its end."""
        self.lost = trio.Event()
        """Set when nothing can be written any more."""
        self.why = ""
        """Why that is."""
        self.at_exit: How = "over"
        """How it is given back by who leaves without a word."""
        self.was_read = Wakeup()
        """Set when a row that was sent has been read."""
        self.is_pausing = False
        """Whether it is being given back, so that nothing more is read meanwhile."""
        self.unpaused: Callable[[], None] = lambda: None
        """Called when it was not given back after all."""
        self.tell_rest: Callable[[], None] = lambda: None
        """Called before the session is given back: events that nobody was told of yet are told now."""
        self.waiting: Callable[[], int] | None = None
        """How many lines wait in the journal, once that is known."""
        self.server = server
        self.token = token
        self._length_s = length_s
        self._by_worker = int(by_worker)
        self._ends_at = trio.current_time() + (1 - LEASE_MARGIN) * length_s
        self._left: list[bytes | str] = []
        self._news = Wakeup()
        self._asked = self._done = self._groups = 0
        self._waiters = trio.lowlevel.ParkingLot()
        self._problem: SessionError | None = None
        self._is_closed = False

    # ------------------------------------------------------------------------------------------ what is written

    def store_attachment(self, digest: str, content: bytes) -> None:
        """Queue an attachment of the journal, to be written before what is appended next."""
        self._do("keep", digest, content)

    def append(self, data: bytes) -> None:
        """Queue a row of the journal, to be written in the background."""
        self._do("row", data, "")

    def note(self, record: Record | Unknown) -> None:
        """Tell the sender of a line what became of it, in the step that records that."""
        match record:
            case Receipt():
                self.settle_as(record)
            case _:
                pass

    def settle_as(self, said: Receipt | events.Receipt) -> None:
        """Say what became of a line, as a receipt does."""
        where = {"agent": said.agent, "iteration": said.iteration, "point": said.point}
        self.settle(said.id, state=said.state, **where, reason=said.reason)

    def settle(self, line: str, **what: object) -> None:
        """Say what became of a line, to who sent it."""
        self._do("became", line.encode(errors="replace"), json.dumps(what))  # JSON can say what UTF-8 cannot

    def read(self, entry: bytes) -> None:
        """Remove a line from those that wait to be read, in the step that does what it says."""
        self._do("read", entry, "")
        self.was_read.set()

    def tell(self, event: str, type: str) -> None:
        """Tell those who watch of an event. Raises ``OSError`` when nothing can be written any more."""
        self._do("told", event, type)

    def use_size(self, size: int) -> None:
        """Say how many lines the inbox holds."""
        self._do("size", str(size), "")

    def end_run(self) -> None:
        """Say that a run has come to its end, so that the workers that died before do not count any more."""
        if self.takeovers:
            self.takeovers = 0
            self._do("ended", "", "")

    def close(self) -> None:
        """Accept nothing more to write; what waits is still written. It is as if the process ended here."""
        if not self._is_closed:
            with suppress(OSError):
                self.tell_rest()
        self._is_closed = True

    def _do(self, what: str, one: bytes | str, other: bytes | str) -> None:
        if self.why or self._is_closed:
            raise OSError(0, self.why or RELEASED)
        self._left += (what, one, other)
        self._asked += 1
        self._news.set()

    async def sync(self) -> None:
        """Wait until all that was asked for is safe. Raises ``OSError`` if it never will be."""
        target = self._asked
        await trio.lowlevel.checkpoint()
        while self._done < target and not self.why:
            await self._waiters.park()
        if self._done < target:
            raise OSError(0, self.why)

    # ------------------------------------------------------------------------------------------ how long it lasts

    async def write(self) -> None:
        """Write what comes up, until the lease is lost."""
        while not self.why:
            if not self._left:
                await self._news.wait()
                for _ in range(SETTLING):
                    await trio.lowlevel.checkpoint()
                continue
            group, count = tuple(self._left), self._asked
            self._left.clear()
            self._groups += 1
            waiting = "" if self.waiting is None else self.waiting()
            if await self._insist(scripts.APPEND, self._groups, waiting, *group):
                self._done = count
                self._waiters.unpark_all()

    async def renew(self) -> None:
        """Renew the lease again and again, until it is lost."""
        while not self.why:
            with trio.move_on_after(self._length_s / RENEWALS):
                await self.lost.wait()
                return
            asked_at = trio.current_time()
            if await self._insist(scripts.RENEW, int(self._length_s * 1000), self._by_worker):
                self._ends_at = asked_at + (1 - LEASE_MARGIN) * self._length_s

    async def end(self) -> None:
        """Lose the lease when it ends by this process's clock. One that was stopped for long finds that out here."""
        while not self.why:
            with trio.move_on_at(self._ends_at):
                await self.lost.wait()
            if trio.current_time() >= self._ends_at:
                self.lose(str(self._problem or LEASE_LOST))

    async def release(self, how: How) -> bool:
        """Give the session back once all is written. Whether it was: not if it was to be idle, and a line has come."""
        if self._is_closed and how == "idle":
            return False  # it is not: its run was cut
        # A line that was read while the server is asked would be the run of nobody.
        self.is_pausing = True
        try:
            if not (self.why or self._is_closed):
                self.tell_rest()
            await self.sync()
            while not self.why:
                try:
                    (said,) = await self.server.run(scripts.RELEASE, self.id, self.token, how)
                except Unreachable as error:
                    if trio.current_time() >= self._ends_at:  # perhaps nobody else looks at that
                        self.lose(str(error))
                    await trio.sleep(LEASE_RETRY_S)
                    continue
                if said == b"more":
                    self.is_pausing = False
                    self.unpaused()
                    return False
                self.lose(RELEASED if said == b"ok" else TAKEN_OVER)
        except (OSError, SessionError) as error:
            self.lose(str(error))
        return True

    @property
    def was_released(self) -> bool:
        """Whether it was given back, and not lost."""
        return self.why == RELEASED

    def lose(self, why: str) -> None:
        """Write nothing from now on. What waits to be written never will be."""
        if not self.why:
            self.why = why
            self._left.clear()
            self.lost.set()
            self._news.set()
            self._waiters.unpark_all()

    async def _insist(self, script: scripts.LuaScript, *arguments: bytes | str | int) -> bool:
        """Run a script until the server answers, or the lease is lost. Whether it was run."""
        while not self.why:
            try:
                said = await self.server.run(script, self.id, self.token, *arguments)
            except Unreachable as error:
                self._problem = error
                await trio.sleep(LEASE_RETRY_S)
            except SessionError as error:
                self.lose(str(error))
            else:
                if said[0] == b"ok":
                    return True
                self.lose(TAKEN_OVER)
        return False


async def claim(
    server: RedisServer, id: str, *, by_worker: bool, size: int, length_s: float = LEASE_S
) -> Lease | Literal["none", "held", "newer"]:
    """A lease on a session, or why there is none. Raises ``SessionError``."""
    lease = Lease(server, id, secrets.token_hex(8), length_s, by_worker=by_worker)
    arguments = (lease.token, int(length_s * 1000), int(by_worker), size)
    try:
        said, *more = await server.run(scripts.CLAIM, id, *arguments)
    except Unreachable:  # if only the answer was lost, nobody would get the session before the lease ends
        await trio.sleep(LEASE_RETRY_S)
        lease = Lease(server, id, lease.token, length_s, by_worker=by_worker)  # whose time begins here
        said, *more = await server.run(scripts.CLAIM, id, *arguments)
    if said != b"ok":
        return "none" if said == b"none" else "newer" if said == b"newer" else "held"
    lease.workspace, lease.answers_s = os.fsdecode(more[0]), int(more[1]) / 1000
    lease.goes_on, lease.takeovers = bool(int(more[2])), int(more[3])
    return lease


@asynccontextmanager
async def kept_up(lease: Lease) -> AsyncIterator[None]:
    """Write and renew for the block, and give the session back after it, unless that was done."""
    async with background_tasks(lease.write, lease.renew, lease.end):
        try:
            yield
        finally:
            # What was accepted is still written, also where the holder is cancelled; the end of the lease bounds it.
            with trio.CancelScope(shield=True):
                await lease.release(lease.at_exit)
