"""The inner end of the side door: lets clients in, does what their rows ask for, and tells them what happens.

Nothing a client does holds anything up: a row is done in one step in trio's thread, as what is typed is.

A client is told ``init``, then the answers to its own rows and the receipts of its own lines. One that said that it
answers hears of the questions too, and one that watches of everything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias, assert_never

import trio

from chain import events
from chain.chain import CLOSING_S, Chain, Submitted
from chain.concurrency.signal import Signal
from chain.errors import UserError
from chain.lines.parse import parse_line
from cli.door import peers, sockets
from cli.door.connection import Connection, error_row
from cli.event_rows import json_row
from cli.input.json_rows import Drop, Hello, Interrupt, JsonAnswer, JsonLine, JsonRow, Malformed, Watch

MAX_CLIENTS = 250
"""Clients at the same time; each holds a descriptor."""
MAX_TURNED_AWAY = 50
"""Others at the same time that may take a moment to hear why they are not let in; each holds a descriptor, too."""
PAUSE_S = 1.0
"""How long nobody is let in when no descriptor is left."""
LAST_S = 1.0
"""How long clients may take to read the rest when the door closes."""

TOO_MANY = f"the side door has {MAX_CLIENTS} clients already; try again later"
NOT_ASKED = 'a client that answers says so first: {"type":"hello","answers":true}'
CLOSING = "the chain is closing"
IDLE = "Nothing is running."

_OfLine: TypeAlias = events.LineQueued | events.LineRefused | events.Receipt


@asynccontextmanager
async def side_door(chain: Chain, state: Path, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """Let other programs reach a chain inside the block, and wind it down at the end. Yields why they cannot."""
    try:
        listening, path = sockets.listen(state, environ, chain.session_id)
    except UserError as error:
        yield str(error)
        return
    about = os.stat(path)
    door = Door(chain)
    # Clients hear of the end, also if the block is cancelled.
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
        listening.close()  # last: a socket that nobody has open is that of a chain that was killed


class Door:
    """The clients of one chain."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._clients: set[Connection] = set()
        self._turned_away: set[Connection] = set()
        self._senders: dict[str, Connection] = {}
        """Who sent the lines that can still be told of, by their ids."""
        self._deciders: dict[str, Connection] = {}
        """Who answered the questions whose answers are not told yet, by their ids; a line may have the same."""
        self._watchers: set[Connection] = set()
        self._feed = chain.feed()
        self._feed.close()
        self._has_watchers = Signal()
        self._over: set[str] = set()
        """The ids of their lines that have their last receipt, unless they come back."""
        self._during: list[_OfLine] | None = None
        """What is told of lines in the step in which a row is done."""
        self._is_closing = False
        self._left = Signal()
        chain.listen(self._hear)

    async def serve(self, listening: trio.socket.SocketType) -> None:
        """Let clients in."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_watchers)
            while True:
                try:
                    peer, _ = await listening.accept()
                except OSError:
                    await trio.sleep(PAUSE_S)
                    continue
                with suppress(OSError):  # it is gone already
                    self._admit(peer, nursery)

    def _admit(self, peer: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        problem = peers.problem_with(peer)
        if not problem and len(self._clients) >= MAX_CLIENTS:
            problem = TOO_MANY
        if self._is_closing or (problem and len(self._turned_away) >= MAX_TURNED_AWAY):
            with socket.socket(fileno=peer.detach()) as there:
                there.send(error_row(problem or CLOSING).encode())
            return
        client = Connection(trio.SocketStream(peer), self._do)
        if problem:
            self._turned_away.add(client)
            client.tell_error(problem)
            client.close_when_told()
        else:
            self._clients.add(client)
            client.tell(self._chain.init)
        nursery.start_soon(self._serve, client)

    async def _serve(self, client: Connection) -> None:
        try:
            await client.serve()
        finally:
            for group in (self._clients, self._turned_away, self._watchers):
                group.discard(client)
            for of in (self._senders, self._deciders):
                for id in [id for id, sender in of.items() if sender is client]:
                    del of[id]
            self._over &= self._senders.keys()
            if not self._watchers:
                self._feed.close()
            self._left.set()

    async def close(self) -> None:
        """Let no more clients in, and wait until those that are there have read the rest."""
        self._is_closing = True
        self._pass_on(self._feed.take())
        for client in self._clients:
            client.close_when_told()
        while self._clients:
            await self._left.wait()

    def _do(self, client: Connection, row: JsonRow) -> None:
        match row:
            case JsonLine():
                self._submit(client, row)
            case Interrupt():
                if not self._chain.interrupt():
                    client.tell(events.Notice(message=IDLE))
            case Drop(id):
                self._drop(client, id)
            case JsonAnswer(id, text):
                self._answer(client, id, text)
            case Hello(answers):
                self._let_answer(client, answers)
            case Watch():
                self._watch(client)
            case Malformed(_, id, why):
                client.tell_error(why, id)
            case _:
                assert_never(row)

    def _submit(self, client: Connection, row: JsonLine) -> None:
        said = self._in_one_step(
            client,
            lambda: self._chain.submit(row.text, urgency=row.urgency, id=row.id, local=False, origin="door", to=row.to),
            self._senders,
        )
        if said.what == "nothing":  # no event says so
            kind = parse_line(row.text).kind
            client.tell(events.Receipt(id=row.id, text=row.text, state="handled", reason=said.message, kind=kind))

    def _answer(self, client: Connection, id: str, text: str) -> None:
        if client.answerer is None:
            client.tell_error(NOT_ASKED, id)
        else:
            self._in_one_step(client, lambda: self._chain.answer(id, text, origin="door"), self._deciders)

    def _in_one_step(
        self, client: Connection, act: Callable[[], Submitted], owners: dict[str, Connection]
    ) -> Submitted:
        """Do what a client asks, tell it the events of that step, and note who owns the line or answer."""
        during = self._during = list[_OfLine]()
        try:
            said = act()
        finally:
            self._during = None
        if said.what != "refused" and said.id:
            owners[said.id] = client
        if said.what == "handled" and said.message:
            client.tell(events.Notice(message=said.message))  # what was asked for, and is there at once
        for event in during:
            self._tell_of_line(event, client if _is_refusal(event) else self._senders.get(event.id))
        return said

    def _drop(self, client: Connection, id: str) -> None:
        try:
            sender = self._senders.get(self._chain.lines.find(id).id)
            self._chain.lines.drop(id)
        except UserError as error:
            client.tell_error(str(error), id)
            return
        if sender is not client and client not in self._watchers:
            client.tell(events.Notice(message=f"{id} was dropped."))  # the receipt is its sender's

    def _let_answer(self, client: Connection, answers: bool) -> None:
        """Let a client answer questions, or no longer; it is told the one that is open."""
        if answers and client.answerer is None:
            client.answerer = self._chain.answering()
            if client not in self._watchers:
                for event in self._chain.standing:
                    if isinstance(event, events.Question):
                        client.tell(event)
        elif not answers and client.answerer is not None:
            client.answerer.close()
            client.answerer = None

    def _watch(self, client: Connection) -> None:
        if client in self._watchers:
            return
        # What is told to the others is not told to this one: how things stand has it.
        self._pass_on(self._feed.take())
        if not self._watchers:
            self._feed = self._chain.feed()
            self._feed.take()  # its init, which every client has had
            self._has_watchers.set()
        self._watchers.add(client)
        for event in self._chain.standing:
            client.tell(event)

    def _hear(self, event: events.Event) -> None:
        """Tell an event to the clients that it concerns though they do not watch."""
        if not self._clients:
            return
        if isinstance(event, _OfLine):
            # What is refused has no sender, since its id may be that of another's line: it is who sends in that step.
            if self._during is not None and (event.origin == "door" or not _is_refusal(event)):
                self._during.append(event)
            elif not _is_refusal(event):
                self._tell_of_line(event, self._senders.get(event.id))
        elif isinstance(event, events.Question | events.Answer):
            decider = self._deciders.pop(event.id, None) if isinstance(event, events.Answer) else None
            for client in self._clients - self._watchers:
                if client.answerer is not None or client is decider:
                    client.tell(event)
        elif isinstance(event, events.Result) and event.status == "done":
            # After another ending the next run may still withdraw what was delivered.
            for id in self._over:
                self._senders.pop(id, None)
            self._over.clear()

    def _tell_of_line(self, event: _OfLine, client: Connection | None) -> None:
        if client is not None and isinstance(event, events.Receipt) and not _is_refusal(event):
            # One that was delivered may still come back, until a run is done. Refused lines are not kept: whoever sends
            # them without end must not make this grow.
            self._over.add(event.id)
        if client is not None and client not in self._watchers:
            client.tell(event)

    async def _tell_watchers(self) -> None:
        while True:
            await self._has_watchers.wait()
            while batch := await self._feed.batch():
                self._pass_on(batch)

    def _pass_on(self, batch: Iterable[events.Event]) -> None:
        if data := "".join(json_row(event) for event in batch).encode():
            for client in tuple(self._watchers):
                client.put(data)


def _is_refusal(event: _OfLine) -> bool:
    return isinstance(event, events.LineRefused) or (isinstance(event, events.Receipt) and event.state == "refused")
