"""The chain's end of the side door: accepts clients, carries out their rows, and sends them events.

A client gets the event ``init``, then the answers to its own rows and the receipts of its own lines. A client that has
offered to answer questions also gets the questions. A client that watches gets all events.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, assert_never

import trio

from chain import events
from chain.chain import CLOSING_S, Chain
from chain.concurrency.wakeup import Wakeup
from chain.errors import UserError
from chain.lines.parse import parse_line
from cli.door import peers, sockets
from cli.door.connection import Connection, error_row
from cli.event_rows import json_row
from cli.input.json_rows import Drop, Hello, Interrupt, JsonAnswer, JsonLine, JsonRow, Malformed, Watch

MAX_CLIENTS = 250
"""Maximum clients at the same time. Each uses a descriptor."""
MAX_TURNED_AWAY = 50
"""Maximum refused clients that have not read the reason yet. Each uses a descriptor."""
NO_DESCRIPTOR_PAUSE_S = 1.0
"""Seconds to wait before the next client is accepted, if the process has no free descriptor."""
LAST_S = 1.0
"""Seconds for the clients to read their remaining rows when the door closes."""

TOO_MANY_CLIENTS = f"the side door has {MAX_CLIENTS} clients already; try again later"
NOT_AN_ANSWERER = 'to answer questions, first send {"type":"hello","answers":true}'
CLOSING = "the chain is closing"
IDLE = "Nothing is running."


@asynccontextmanager
async def side_door(chain: Chain, state: Path, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """Open a chain's side door for the block. On exit, end the chain's run and jobs, then close the door.

    Yield an empty string, or the reason if the door cannot be opened.
    """
    try:
        listening, path = sockets.listen(state, environ, chain.session_id)
    except UserError as error:
        yield str(error)
        return
    about = os.stat(path)
    door = Door(chain)
    # Clients get the last events even if the block is cancelled.
    serving = trio.CancelScope(shield=True)

    async def serve() -> None:
        with serving:
            await door.serve(trio.socket.from_stdlib_socket(listening))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            try:
                yield ""
            finally:
                # Also after a cancellation, clients receive the end of the run; the time is bounded.
                with trio.move_on_after(CLOSING_S + LAST_S, shield=True) as closing:
                    await chain.wind_down()
                    closing.deadline = trio.current_time() + LAST_S
                    await door.close()
                serving.cancel()
    finally:
        with suppress(OSError):
            # Another program may have opened the session meanwhile, with a socket of its own.
            if os.path.samestat(os.stat(path), about):
                path.unlink()
        listening.close()  # last, since a closed socket looks like the stale one of a killed chain


class Door:
    """The side door of one chain, and its clients."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._clients: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        self._watchers: set[Connection] = set()
        self._owners: dict[tuple[Literal["line", "answer"], str], Connection] = {}
        """The client that sent each line and answer, by kind and id. It gets the events about that line or answer."""
        self._feed = chain.feed()
        self._feed.take()  # without init, which each client gets when it connects
        self._is_closing = False
        self._client_left = Wakeup()

    async def serve(self, listening: trio.socket.SocketType) -> None:
        """Accept clients and send them events until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_events)
            while True:
                try:
                    peer, _ = await listening.accept()
                except OSError:
                    await trio.sleep(NO_DESCRIPTOR_PAUSE_S)
                    continue
                with suppress(OSError):  # it has left already
                    self._admit(peer, nursery)

    def _admit(self, peer: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        problem = peers.refusal_reason(peer)
        if not problem and len(self._clients) >= MAX_CLIENTS:
            problem = TOO_MANY_CLIENTS
        if self._is_closing or (problem and len(self._turned_away) >= MAX_TURNED_AWAY):
            with socket.socket(fileno=peer.detach()) as blocking:
                blocking.send(error_row(problem or CLOSING).encode())
            return
        client = Connection(trio.SocketStream(peer), self._carry_out)
        if problem:
            self._turned_away.add(client)
            client.send_error(problem)
            client.close_when_flushed()
        else:
            self._flush()
            self._clients.add(client)
            client.send_event(self._chain.init)
        nursery.start_soon(self._serve, client)

    async def _serve(self, client: Connection) -> None:
        try:
            await client.serve()
        finally:
            for group in (self._clients, self._turned_away, self._watchers):
                group.discard(client)
            self._owners = {key: owner for key, owner in self._owners.items() if owner is not client}
            self._client_left.set()

    async def close(self) -> None:
        """Refuse new clients, and wait until all connected clients have read their events and left."""
        self._is_closing = True
        self._flush()
        for client in self._clients:
            client.close_when_flushed()
        while self._clients:
            await self._client_left.wait()

    def _carry_out(self, client: Connection, row: JsonRow) -> None:
        """Carry out a row of a client. Before and after, send the events that wait."""
        self._flush()
        match row:
            case JsonLine():
                self._submit(client, row)
            case Interrupt():
                if not self._chain.interrupt():
                    client.send_event(events.Notice(message=IDLE))
            case Drop(id):
                self._drop(client, id)
            case JsonAnswer(id, text):
                self._answer(client, id, text)
            case Hello(answers):
                self._set_answerer(client, answers)
            case Watch():
                if client not in self._watchers:
                    self._watchers.add(client)
                    for event in self._chain.snapshot:
                        client.send_event(event)
            case Malformed(_, id, why):
                client.send_error(why, id)
            case _:
                assert_never(row)
        self._flush(client)

    def _submit(self, client: Connection, row: JsonLine) -> None:
        said = self._chain.submit(row.text, urgency=row.urgency, id=row.id, local=False, origin="door", to=row.to)
        if said.what != "refused" and said.id:
            self._owners["line", said.id] = client
        if said.what == "handled" and said.message:
            client.send_event(events.Notice(message=said.message))
        if said.what == "nothing":  # no event reports it
            kind = parse_line(row.text).kind
            client.send_event(events.Receipt(id=row.id, text=row.text, state="handled", reason=said.message, kind=kind))

    def _answer(self, client: Connection, id: str, text: str) -> None:
        if client.answerer is None:
            client.send_error(NOT_AN_ANSWERER, id)
        elif self._chain.answer(id, text, origin="door").what != "refused":
            self._owners["answer", id] = client

    def _drop(self, client: Connection, id: str) -> None:
        try:
            sender = self._owners.get(("line", self._chain.lines.find(id).id))
            self._chain.lines.drop(id)
        except UserError as error:
            client.send_error(str(error), id)
            return
        if sender is not client and client not in self._watchers:
            client.send_event(events.Notice(message=f"{id} was dropped."))  # the sender of the line gets the receipt

    def _set_answerer(self, client: Connection, answers: bool) -> None:
        """Record that a client offers to answer questions, or withdraws the offer if not ``answers``.

        When a client makes an offer, send it the open question, unless it watches and so has the question already.
        """
        if answers and client.answerer is None:
            client.answerer = self._chain.answering()
            if client not in self._watchers:
                for event in self._chain.snapshot:
                    if isinstance(event, events.Question):
                        client.send_event(event)
        elif not answers and client.answerer is not None:
            client.answerer.close()
            client.answerer = None

    async def _send_events(self) -> None:
        while batch := await self._feed.batch():
            self._send(batch)

    def _flush(self, sender: Connection | None = None) -> None:
        """Send the waiting events. Refusals go to ``sender``, the client whose row was just carried out."""
        self._send(self._feed.take(), sender)

    def _send(self, batch: Iterable[events.Event], sender: Connection | None = None) -> None:
        for event in batch:
            if recipients := self._watchers | self._concerned_clients(event, sender):
                data = json_row(event).encode()
                for client in recipients:
                    client.put(data)

    def _concerned_clients(self, event: events.Event, sender: Connection | None) -> set[Connection]:
        """Return the clients that get an event even if they do not watch. Refusals of lines go to ``sender``."""
        match event:
            case events.LineRefused(origin="door") | events.Receipt(origin="door", state="refused"):
                return set() if sender is None else {sender}  # another line may have the same id
            case events.LineQueued(origin="door") | events.Receipt(origin="door"):
                owner = self._owners.get(("line", event.id))
                return set() if owner is None else {owner}
            case events.Question():
                return {client for client in self._clients if client.answerer is not None}
            case events.Answer(id=id):
                owner = self._owners.pop(("answer", id), None)
                return {client for client in self._clients if client.answerer is not None or client is owner}
            case _:
                return set()
