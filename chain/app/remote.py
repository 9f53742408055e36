"""A session that machines share, for who sends it lines or watches it from anywhere.

What is sent has an id of its own. Where an answer is lost on the way, the same is sent again, and is still the same.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from chain.errors import SessionError, UserError
from chain.lines.parse import overtakes, parse_line, problem_of
from chain.redis.redis_server import RedisServer, Unreachable
from chain.redis.redis_store import LineStatus, RedisStore
from chain.text.wording import first_of

SERVER_RETRY_S = 1.0
"""The pause before a server that did not answer is asked again."""
NEWS_WAIT_S = 5.0
"""How long one read waits for news."""
STANDS_S = 15.0
"""How long a promise of answers holds; it is renewed before that."""
MOST_LISTED = 500
"""Sessions of a workspace among which the one that is meant is looked for: those that changed last."""
FINAL = frozenset({"delivered", "handled", "returned", "dropped", "refused"})

NOT_BEGUN = "no run of the session {id} has begun yet"
CUT = "the first events of this run are no longer kept; chain sessions show {id} has them"
MISSED = "some events came faster than they were read, and are left out here; chain sessions show {id} has them"
NEVER_KNOWN = "it is not known whether the line was taken before: chain sessions show {id} says"
UNKNOWN = "it is not known yet whether it was taken, so it is sent again with the same id until that is"


class RemoteSession:
    """A session in a Redis. ``say`` is told when the server does not answer."""

    def __init__(self, store: RedisStore, server: RedisServer, id: str, say: Callable[[str], object]) -> None:
        self.id = id
        self._store = store
        self._server = server
        self._say = say

    async def send(self, line: str) -> tuple[str, LineStatus]:
        """Send a line; returns its id, and whether it is queued or not. Raises ``UserError`` for what is no line."""
        parsed = parse_line(line, local=False)
        if parsed.kind == "blank":
            raise UserError("the line is empty")
        if problem := problem_of(parsed):
            raise UserError(problem)
        return await self.submit(needs_room=not overtakes(line), type="line", text=line)

    async def submit(self, *, needs_room: bool = False, **row: Any) -> tuple[str, LineStatus]:  # noqa: ANN401 - JSON
        """Send a row, and again until the server has answered."""
        id = secrets.token_hex(5)
        has_said = False
        while True:
            try:
                return id, await self._store.submit(self._server, self.id, {**row, "id": id}, needs_room=needs_room)
            except Unreachable as error:
                if not has_said:
                    self._say(f"{error}; {UNKNOWN}" if row["type"] == "line" else str(error))
                    has_said = True
                await trio.sleep(SERVER_RETRY_S)
            except SessionError as error:
                if not has_said or row["type"] != "line":
                    raise
                raise SessionError(f"{error}; {NEVER_KNOWN.format(id=self.id)}") from None

    async def outcome(self, id: str) -> LineStatus:
        """Wait for the final status of a row."""
        after = ""
        while True:
            try:
                after = after or await self._store.latest_event(self._server, self.id)
                known = await self._store.became(self._server, self.id, id)
                if known.state in FINAL:
                    return known
                # Any news may be of it; some of them are lost with their worker, so one looks again in any case.
                found = await self._store.told(self._server, self.id, after, wait_s=NEWS_WAIT_S)
                after = found[-1].place if found else after
            except Unreachable:
                await trio.sleep(SERVER_RETRY_S)

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        """The ``init`` and the events of the active or latest run, then all that follow, without end."""
        after, until, has_said = "", 0, False
        begun, init = "", None
        while True:
            try:
                if not after:
                    begun, init = await self._store.latest_run(self._server, self.id)
                    after = _before(begun) if begun else "0"
                    if not begun:
                        self._say(NOT_BEGUN.format(id=self.id))
                found = await self._store.told(self._server, self.id, after, wait_s=NEWS_WAIT_S)
            except Unreachable as error:
                if not has_said:
                    self._say(str(error))
                    has_said = True
                await trio.sleep(SERVER_RETRY_S)
                continue
            if has_said:
                self._say(f"the Redis at {self._store.address} answers again")
                has_said = False
            if not found:
                continue
            if init is not None:
                yield init
                init = None
            if begun and found[0].place != begun:
                self._say(CUT.format(id=self.id))
            elif until and found[0].until and found[0].before != until:
                self._say(MISSED.format(id=self.id))
            begun, after, until = "", found[-1].place, found[-1].until
            for each in found:
                yield each.row

    async def expect_answerer(self) -> None:
        """Let questions wait for somebody who is about to answer them."""
        await self.submit(type="hello", client=secrets.token_hex(5), for_s=STANDS_S)

    async def answer_questions(self) -> None:
        """Promise that questions are answered, and renew that until cancelled."""
        client = secrets.token_hex(5)
        try:
            while True:
                await self.submit(type="hello", client=client, for_s=STANDS_S)
                await trio.sleep(STANDS_S / 3)
        finally:
            # Also where it is cut, no question may wait for who has gone; a server that hangs has a bound.
            with trio.move_on_after(SERVER_RETRY_S, shield=True):
                await self.submit(type="hello", client=client, for_s=0)


def _before(place: str) -> str:
    """The last place before one, in a stream."""
    time, _, number = place.partition("-")
    return f"{time}-{int(number) - 1}" if number != "0" else f"{int(time) - 1}-{2**64 - 1}"


async def _meant(store: RedisStore, server: RedisServer, workspace: str) -> str:
    """The session that is meant where none is named: the only one that is open or has work, else the latest."""
    ids = await store.ids_in(server, workspace, most=MOST_LISTED)
    if not ids:
        raise SessionError(f"no session of {workspace} is kept there; chain send --new begins one")
    busy = await store.busy(server, ids)
    if len(busy) > 1:
        named = first_of(busy, 10)
        raise SessionError(
            f"several sessions of {workspace} are open or have work: {named}; say which one with --session ID"
        )
    return busy[0] if busy else ids[0]


@asynccontextmanager
async def remote_session(
    address: str, say: Callable[[str], object], *, id: str, workspace: Path, is_new: bool
) -> AsyncIterator[RemoteSession]:
    """The session with an id, a new one, or of those of a workspace the only one with work, else the latest.

    Raises ``UserError``, also where the server cannot be reached to begin with: nothing was sent then.
    """
    store = RedisStore(address, source="the state")
    async with store.connected() as server:
        if is_new:
            found = await store.create(server, str(await trio.Path(workspace).resolve()))
        elif id:
            found = await trio.to_thread.run_sync(store.whole_id, id)
        else:
            found = await _meant(store, server, str(await trio.Path(workspace).resolve()))
        yield RemoteSession(store, server, found, say)
