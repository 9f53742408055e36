"""What is sent to a session from anywhere goes in, and its events go out, as long as somebody holds it.

A row that was sent is removed in the very step of the server in which the records of what it did are written, so it is
done once, whoever is killed whenever. What was sent has been accepted: it waits until there is room for it, and only
what needs none may overtake it meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import trio

from chain.chain import Chain
from chain.concurrency.wakeup import Wakeup
from chain.errors import SessionError, UserError
from chain.events import Event, Piece, Receipt
from chain.lines.accepted import BEFORE
from chain.lines.parse import Urgency, parse_line
from chain.redis.lease import LEASE_RETRY_S, Lease
from chain.redis.redis_server import RedisServer
from chain.redis.scripts import key
from chain.session import event_json

ROWS_PER_READ = 100
"""Rows that are read at once."""
WAIT_S = 20.0
"""How long one look for new rows lasts: the server answers at once when there are some."""
_DAY_S = 86_400
TEXT_PAUSE_S = 0.1
"""The pause between two groups of running text, which makes many events."""


class Mailbox:
    """The rows that were sent to a session, and its events for those who watch."""

    def __init__(self, server: RedisServer, lease: Lease) -> None:
        self._server = server
        self._lease = lease
        self._unread: list[tuple[bytes, Mapping[str, Any]]] = []
        self._news = Wakeup()
        self._answerers: dict[str, trio.CancelScope] = {}

    async def serve(self, chain: Chain) -> None:
        """Read what is sent, and tell what happens, until the session is lost."""
        self._lease.waiting = lambda: len(chain.lines.waiting)
        self._lease.unpaused = self._news.set
        with suppress(OSError):  # it is lost
            self._lease.use_size(chain.inbox_size)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._let_answer(chain, "", self._lease.answers_s)
            nursery.start_soon(self._fetch)
            nursery.start_soon(self._wake, chain)
            nursery.start_soon(self._publish, chain)
            nursery.start_soon(self._read_all, chain)
            await self._lease.lost.wait()
            if not self._lease.was_released:  # another may be at work in the folder by now
                chain.stop_accepting()
                chain.interrupt()
            nursery.cancel_scope.cancel()

    async def _fetch(self) -> None:
        """Read the rows that are there, then those that come."""
        last = b"0"
        while True:
            try:
                answer = await self._server.block(
                    WAIT_S,
                    b"XREAD",
                    b"COUNT",
                    ROWS_PER_READ,
                    b"BLOCK",
                    int(WAIT_S * 1000),
                    b"STREAMS",
                    key(self._lease.id, "lines"),
                    last,
                )
            except SessionError:  # the lease says what becomes of that
                await trio.sleep(LEASE_RETRY_S)
                continue
            for last, fields in entries(answer):
                self._unread.append((last, _row(fields)))
            self._news.set()

    async def _wake(self, chain: Chain) -> None:
        """Look again whenever there may be room."""
        while not chain.runs.is_closing:
            await chain.lines.wait_for_change()
            self._news.set()

    async def _read_all(self, chain: Chain) -> None:
        while True:
            waits_for_room = False
            for row in tuple(self._unread):
                if chain.runs.is_closing or self._lease.is_pausing or self._lease.why:
                    break  # it is for who holds the session next
                if waits_for_room and not self._needs_none(chain, row[1]):
                    continue
                if not self._has_room(chain, row[1]):
                    waits_for_room = True
                    continue
                self._unread.remove(row)
                self._read(chain, *row)
                await trio.lowlevel.checkpoint()
            await self._news.wait()

    def _has_room(self, chain: Chain, row: Mapping[str, Any]) -> bool:
        if row.get("type") != "line" or self._needs_none(chain, row):
            return True
        return chain.lines.has_room(row["text"], urgency=_urgency(row), local=False, to=row.get("to", ""))

    def _needs_none(self, chain: Chain, row: Mapping[str, Any]) -> bool:
        if row.get("type") != "line":
            return True
        return chain.lines.needs_no_room(row["text"], urgency=_urgency(row), to=row.get("to", "")) is not None

    def _read(self, chain: Chain, entry: bytes, row: Mapping[str, Any]) -> None:
        """Do what a row says. No await: what is recorded and that it was read are one step of the server."""
        lease, id = self._lease, str(row.get("id", ""))
        try:
            lease.read(entry)
            match row:
                case {"type": "line", "text": str(text)}:
                    kind = parse_line(text, local=False).kind
                    said = chain.submit(
                        text, urgency=_urgency(row), id=id, local=False, origin="door", to=row.get("to", "")
                    )
                    if said.what == "refused":
                        # It was accepted when it was sent, or a crash of the server forgot a line that we have read.
                        lost = Receipt(id=id, text=text, state="returned", reason=said.message, kind=kind)
                        known = (each for each in chain.lines.receipts if each.id == id and each.state != "refused")
                        lease.settle_as(next(known, lost))
                    elif said.what in ("handled", "nothing") or not said.id:
                        lease.settle(id, state="handled", reason=said.message)
                    if said.what == "nothing":  # no event says so
                        self._tell([Receipt(id=id, text=text, state="handled", reason=said.message, kind=kind)])
                    return
                case {"type": "answer", "question": str(question), "text": str(text)}:
                    said = chain.answer(question, text, origin="door")
                    state = "returned" if said.what == "refused" else "handled"
                    lease.settle(id, state=state, reason=said.message)
                    return
                case {"type": "interrupt"}:
                    was_running = chain.interrupt()
                    lease.settle(id, state="handled", reason="" if was_running else "Nothing is running.")
                    return
                case {"type": "drop", "line": str(line)}:
                    lease.settle(id, state="handled", reason=_drop(chain, line))
                case {"type": "hello", "client": str(client), "for_s": float() | int() as seconds} if (
                    0 <= seconds < _DAY_S
                ):
                    self._let_answer(chain, client, float(seconds))
                    lease.settle(id, state="handled")
                case _:
                    lease.settle(id, state="returned", reason="the worker does not know what this asks for; update it")
        except OSError:
            pass  # the session is lost, and the row with it for us

    def _let_answer(self, chain: Chain, client: str, seconds: float) -> None:
        """Wait for a client's answers for a time from now on."""
        until = trio.current_time() + min(seconds, WAIT_S)
        if (scope := self._answerers.get(client)) is not None:
            scope.deadline = until
        elif seconds > 0:
            self._answerers[client] = scope = trio.CancelScope(deadline=until)
            self._nursery.start_soon(self._wait_for_answers, chain, client, scope)

    async def _wait_for_answers(self, chain: Chain, client: str, scope: trio.CancelScope) -> None:
        with chain.answering(), scope:
            await trio.sleep_forever()
        self._answerers.pop(client, None)

    async def _publish(self, chain: Chain) -> None:
        """Tell of each event in its step, so that the server has it as soon as its record; but running text joined."""
        feed = chain.feed()
        self._lease.tell_rest = lambda: self._tell(feed.take())

        def hear(event: Event) -> None:
            if not isinstance(event, Piece):
                with suppress(OSError):  # it is lost
                    self._tell(feed.take())

        try:
            self._tell(() if chain.resumed is None else chain.resumed.made_up)
            chain.listen(hear)
            while batch := await feed.batch():
                self._tell(batch)
                await self._lease.sync()
                await trio.sleep(TEXT_PAUSE_S)  # what comes meanwhile is joined
        except OSError:
            return

    def _tell(self, batch: Sequence[Event]) -> None:
        for event in batch:
            row = json.dumps(event_json.to_json(event), separators=(",", ":"))
            self._lease.tell(row, event.type)


def entries(answer: Any) -> list[tuple[bytes, list[bytes]]]:  # noqa: ANN401 - the edge of the protocol
    """The entries of the one stream that an XREAD asked for."""
    if not answer:
        return []
    ((_, found),) = answer.items() if isinstance(answer, dict) else answer
    return [(place, fields) for place, fields in found]


def _row(fields: list[bytes]) -> Mapping[str, Any]:
    """What an entry says; nothing that is known if it is not as we write it."""
    try:
        row = json.loads(fields[1])
    except (ValueError, IndexError, RecursionError):
        row = None
    if not isinstance(row, dict):
        return {"type": "unknown", "id": ""}
    is_line = row.get("type") == "line" and isinstance(row.get("text"), str) and isinstance(row.get("to", ""), str)
    return row if is_line or row.get("type") != "line" else {"type": "unknown", "id": row.get("id", "")}


def _urgency(row: Mapping[str, Any]) -> Urgency:
    urgency = row.get("urgency", "next")
    return "now" if urgency == "now" else "urgent" if urgency == "urgent" else "next"


def _drop(chain: Chain, line: str) -> str:
    """Remove a line that waits; what is to be said of that."""
    for id in (line, line + BEFORE):
        try:
            chain.lines.drop(id)
        except UserError as error:
            why = str(error)
        else:
            return f"{line} was dropped."
    return why
