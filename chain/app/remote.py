"""A client for a session in Redis: it sends lines to the session and reads its events, from any machine.

The client sends rows: a row is a JSON object with a line, an answer or a promise. Each row has a unique id. If the
server's response is lost, the client sends the row again with the same id, and the server recognizes the repetition.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from chain.errors import SessionError, UserError
from chain.lines.parse import is_sent_first, parse_line, problem_of
from chain.redis.redis_server import RedisServer, Unreachable
from chain.redis.redis_store import LineStatus, RedisStore
from chain.text.wording import join_first

T = TypeVar("T")

SERVER_RETRY_S = 1.0
"""The pause before a request is repeated, in seconds."""
NEWS_WAIT_S = 5.0
"""The time that one request waits for new events, in seconds."""
PROMISE_S = 15.0
"""The lifetime of a promise to answer questions, in seconds. It is renewed earlier."""
MAX_LISTED = 500
"""The number of sessions to search if no id is given: the most recently changed ones."""
FINAL = frozenset({"delivered", "handled", "returned", "dropped", "refused"})

NOT_BEGUN = "session {id} has not started a run yet"
MISSED = "some events are no longer stored and were skipped; show them with: chain sessions show {id}"
NEVER_KNOWN = "the line may have been accepted before; check with: chain sessions show {id}"
UNKNOWN = "the line may have been accepted; retrying with the same id"


class RemoteSession:
    """A session in Redis. ``say`` is called when the server stops responding, and when it responds again."""

    def __init__(self, store: RedisStore, server: RedisServer, id: str, say: Callable[[str], object]) -> None:
        self.id = id
        self._store = store
        self._server = server
        self._say = say

    async def send(self, line: str) -> tuple[str, LineStatus]:
        """Send a line. Return its id and its status. Raise ``UserError`` if the line is empty or malformed."""
        parsed = parse_line(line, local=False)
        if parsed.kind == "blank":
            raise UserError("the line is empty")
        if problem := problem_of(parsed):
            raise UserError(problem)
        return await self.submit(needs_room=not is_sent_first(line), type="line", text=line)

    async def submit(self, *, needs_room: bool = False, **row: Any) -> tuple[str, LineStatus]:  # noqa: ANN401 - JSON
        """Send a row, and retry until the server responds. Return the id and the status of the row.

        With ``needs_room``, the row is refused if the inbox is full.
        """
        id = secrets.token_hex(5)
        send = partial(self._store.submit, self._server, self.id, {**row, "id": id}, needs_room=needs_room)
        return id, await self._retry(send, is_line=row["type"] == "line")

    async def outcome(self, id: str) -> LineStatus:
        """Wait for the final status of a row."""
        after = await self._retry(partial(self._store.latest_event, self._server, self.id))
        while True:
            status = await self._retry(partial(self._store.status, self._server, self.id, id))
            if status.state in FINAL:
                return status
            # Any event may mean a new status. The wait is limited, because an event can be lost with its worker.
            found = await self._retry(partial(self._store.events, self._server, self.id, after, wait_s=NEWS_WAIT_S))
            after = found[-1].place if found else after

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the ``init`` and the events of the latest run, then all later events, without end."""
        start, init = await self._retry(partial(self._store.latest_run, self._server, self.id))
        if not start:
            self._say(NOT_BEGUN.format(id=self.id))
        after, until = _preceding_id(start) if start else "0", None
        while True:
            found = await self._retry(partial(self._store.events, self._server, self.id, after, wait_s=NEWS_WAIT_S))
            if not found:
                continue
            if init is not None:
                yield init
                init = None
            if found[0].place != start if start else until not in (None, found[0].before):
                self._say(MISSED.format(id=self.id))
            start, after, until = "", found[-1].place, found[-1].until
            for each in found:
                yield each.row

    async def promise_answers(self) -> None:
        """Promise to answer questions for the next ``PROMISE_S`` seconds."""
        await self.submit(type="hello", for_s=PROMISE_S)

    async def renew_promise(self) -> None:
        """Promise to answer questions, and renew the promise until cancelled."""
        while True:
            await self.promise_answers()
            await trio.sleep(PROMISE_S / 3)

    async def _retry(self, request: Callable[[], Awaitable[T]], *, is_line: bool = False) -> T:
        """Repeat a request until the server responds, and return the result.

        Report the start and the end of an outage. ``is_line``: the request sends a line, so a report says that the line
        may have been accepted.
        """
        is_away = False
        while True:
            try:
                found = await request()
            except Unreachable as error:
                if not is_away:
                    self._say(f"{error}; {UNKNOWN}" if is_line else str(error))
                is_away = True
                await trio.sleep(SERVER_RETRY_S)
            except SessionError as error:
                if not (is_away and is_line):
                    raise
                raise SessionError(f"{error}; {NEVER_KNOWN.format(id=self.id)}") from None
            else:
                if is_away:
                    self._say(f"the Redis at {self._store.address} answers again")
                return found


def _preceding_id(stream_id: str) -> str:
    """Return the greatest possible id of a stream entry that is less than ``stream_id``."""
    time, _, number = stream_id.partition("-")
    return f"{time}-{int(number) - 1}" if number != "0" else f"{int(time) - 1}-{2**64 - 1}"


async def _find_session(store: RedisStore, server: RedisServer, workspace: str) -> str:
    """Return the id of the session of a workspace that is open or has work.

    If no session is open or has work, return the id of the latest one. Raise ``SessionError`` if several sessions are
    open or have work, or if the workspace has no session.
    """
    ids = await store.sessions_in(server, workspace, most=MAX_LISTED)
    if not ids:
        raise SessionError(f"no session of {workspace} is stored there; create one with chain send --new")
    active = await store.active_sessions(server, ids)
    if len(active) > 1:
        named = join_first(active, 10)
        raise SessionError(
            f"several sessions of {workspace} are open or have work: {named}; choose one with --session ID"
        )
    return active[0] if active else ids[0]


@asynccontextmanager
async def remote_session(
    address: str, say: Callable[[str], object], *, id: str, workspace: Path, is_new: bool
) -> AsyncIterator[RemoteSession]:
    """Connect to the session with this ``id``, to a new session, or to the session of the workspace if no id is given.

    Raise ``UserError`` if there is no such session, or if the server cannot be reached when the block begins.
    """
    store = RedisStore(address, source="the state")
    async with store.connect() as server:
        if is_new:
            found = await store.create(server, str(await trio.Path(workspace).resolve()))
        elif id:
            found = await trio.to_thread.run_sync(store.whole_id, id)
        else:
            found = await _find_session(store, server, str(await trio.Path(workspace).resolve()))
        yield RemoteSession(store, server, found, say)
