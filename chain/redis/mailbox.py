"""Delivers the rows that other processes send to a session, and publishes its events.

A row is removed from the server in the step that writes the records of its effects, so it takes effect once, even if a
process is killed. The server has already accepted the rows that arrive here. So a row is not refused if the inbox is
full, but waits until there is room. Meanwhile, later rows are processed only if they need no room.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import trio

from chain.chain import Chain
from chain.concurrency.wakeup import Wakeup
from chain.errors import SessionError
from chain.events import Event, Piece, Receipt, Result
from chain.lines.parse import parse_line
from chain.redis.lease import LEASE_RETRY_S, Lease, Row
from chain.session import event_json

WAIT_S = 20.0
"""The maximum wait of a request for new rows, in seconds. The server answers as soon as there is a row."""
MAX_PROMISE_S = 20.0
"""The longest time, in seconds, for which a watcher can promise to answer questions."""
TEXT_PAUSE_S = 0.1
"""Seconds for which text deltas are collected before they are published together."""


class Mailbox:
    """The connection of an open session to other processes."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._news = Wakeup()
        self._answering = trio.CancelScope(deadline=-1)
        """The scope whose deadline is the time until which a watcher answers questions."""

    async def serve(self, chain: Chain) -> None:
        """Deliver rows and publish events until the lease ends, or the task is cancelled."""
        self._lease.count_waiting = lambda: len(chain.lines.waiting)
        with suppress(OSError):  # the lease is lost
            self._lease.publish_size(chain.inbox_size)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._promise_answers(chain, self._lease.answers_s)
            nursery.start_soon(self._fetch)
            nursery.start_soon(self._wake_reader, chain)
            nursery.start_soon(self._publish, chain)
            nursery.start_soon(self._read_all, chain)
            await self._lease.lost.wait()
            chain.stop_accepting()
            chain.interrupt()  # another process may work in the folder by now
            nursery.cancel_scope.cancel()

    async def _fetch(self) -> None:
        """Fetch new rows again and again, also after errors of the server."""
        while True:
            try:
                await self._lease.fetch(wait_s=WAIT_S)
            except SessionError:  # if this lasts, the lease expires
                await trio.sleep(LEASE_RETRY_S)
            self._news.set()

    async def _wake_reader(self, chain: Chain) -> None:
        """Wake ``_read_all`` whenever the inbox may have room."""
        while not chain.runs.is_closing:
            await chain.lines.wait_for_change()
            self._news.set()

    async def _read_all(self, chain: Chain) -> None:
        while True:
            has_room = True
            for entry, row in tuple(self._lease.unread):
                if chain.runs.is_closing or self._lease.lost_reason:
                    break  # the next holder processes it
                if (line := _line(row)) is not None and chain.lines.needs_no_room(line, urgency="next", to="") is None:
                    has_room = has_room and chain.lines.has_room(line, local=False)
                    if not has_room:
                        continue
                self._lease.unread.remove((entry, row))
                with suppress(OSError):  # the lease is lost, and the row is still on the server
                    self._read(chain, entry, row)
                await trio.lowlevel.checkpoint()
            await self._news.wait()

    def _read(self, chain: Chain, entry: bytes, row: Row) -> None:
        """Process the row at the position ``entry`` of the stream.

        This function must not await: then the server writes the row's records and removes the row in one step.
        """
        lease, id = self._lease, str(row.get("id", ""))
        lease.remove_row(entry)
        match row:
            case {"type": "line", "text": str(text)}:
                kind = parse_line(text, local=False).kind
                said = chain.submit(text, id=id, local=False, origin="door")
                if said.what == "refused":
                    # After a crash in which the server lost its status, the line was sent again and has a receipt.
                    lost = Receipt(id=id, text=text, state="returned", reason=said.message, kind=kind)
                    known = (each for each in chain.lines.receipts if each.id == id and each.state != "refused")
                    lease.publish_receipt(next(known, lost))
                elif said.what in ("handled", "nothing") or not said.id:
                    lease.publish_status(id, state="handled", reason=said.message)
                if said.what == "nothing":  # the chain itself publishes no event
                    self._publish_events([Receipt(id=id, text=text, state="handled", reason=said.message, kind=kind)])
            case {"type": "answer", "question": str(question), "text": str(text)}:
                said = chain.answer(question, text, origin="door")
                lease.publish_status(id, state="returned" if said.what == "refused" else "handled", reason=said.message)
            case {"type": "hello", "for_s": float() | int() as seconds} if seconds >= 0:
                self._promise_answers(chain, seconds)
            case _:
                lease.publish_status(
                    id, state="returned", reason="this worker does not support this request; update chain there"
                )

    def _promise_answers(self, chain: Chain, seconds: float) -> None:
        """Promise, for the next ``seconds``, that a watcher answers questions, so that questions wait."""
        until = trio.current_time() + min(seconds, MAX_PROMISE_S)
        if self._answering.deadline > trio.current_time():
            self._answering.deadline = max(until, self._answering.deadline)
        elif seconds > 0:
            self._answering = trio.CancelScope(deadline=until)
            self._nursery.start_soon(self._wait_for_answers, chain, self._answering)

    async def _wait_for_answers(self, chain: Chain, scope: trio.CancelScope) -> None:
        with chain.answering(), scope:
            await trio.sleep_forever()

    async def _publish(self, chain: Chain) -> None:
        """Publish the session's events until there are no more.

        Each event is published in the same step as its record. Text deltas are collected for ``TEXT_PAUSE_S``.
        """
        feed = chain.feed()

        def publish_pending(event: Event) -> None:
            if not isinstance(event, Piece):
                with suppress(OSError):  # the lease is lost
                    self._publish_events(feed.take())

        with suppress(OSError):
            self._publish_events(() if chain.resumed is None else chain.resumed.recovered)
            chain.listen(publish_pending)
            while batch := await feed.batch():
                self._publish_events(batch)
                await self._lease.sync()
                await trio.sleep(TEXT_PAUSE_S)

    def _publish_events(self, batch: Sequence[Event]) -> None:
        for event in batch:
            row = json.dumps(event_json.to_json(event), separators=(",", ":"))
            was_cut = isinstance(event, Result) and event.program_ended
            self._lease.publish(row, "" if was_cut else event.type)


def _line(row: Row) -> str | None:
    """Return the text of a row of type ``line``; ``None`` for a row of another type."""
    text = row.get("text")
    return text if row.get("type") == "line" and isinstance(text, str) else None
