"""The inner end of the side door: lets clients in, does what their rows ask for, and tells them what happens.

Nothing a client does holds anything up. What it asks for is done in one step in trio's thread, as what is typed is;
what it is told waits in a queue of its own, and one that does not read it is cut off. An event is made into JSON once
for all who watch.

A client is told ``init``, then the answers to its own rows and the receipts of its own lines. One that said that it
answers hears of the questions too, and one that watches of everything.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import trio

from chain import events
from chain.chain import Answerer, Chain, Submitted
from chain.errors import UserError
from cli.door import peers, places
from cli.event_rows import json_row
from cli.input.rows import Drop, Hello, Interrupt, JsonAnswer, JsonLine, JsonRow, Malformed, Watch, read_row
from cli.input.stdin import JSON_BYTES, Splitter

MAX_CLIENTS = 250
"""Clients at the same time; each holds a descriptor."""
MAX_TURNED_AWAY = 50
"""Others at the same time that may take ``LINGER_S`` to hear why they are not let in; each holds a descriptor, too."""
MAX_BEHIND = 8 * 1024 * 1024
"""Bytes that may wait for a client: more than any reply or diff has."""
STALL_S = 10.0
"""How long a client may read nothing while something waits for it."""
CLOSING_S = 1.0
"""How long clients may take to read the rest when the door closes."""
LINGER_S = 0.2
"""How long a client may take to close its end when it was told the last."""
_CHUNK = 65_536

KIND = "door"
"""The kind of the errors that a client is told."""
TOO_MANY = f"the side door has {MAX_CLIENTS} clients already; try again later"
NOT_ASKED = 'a client that answers says so first: {"type":"hello","answers":true}'

_OfLine: TypeAlias = events.LineQueued | events.LineRefused | events.Receipt
_OF_LINES = (events.LineQueued, events.LineRefused, events.Receipt)
_OF_QUESTIONS = (events.Question, events.Answer)


@asynccontextmanager
async def side_door(chain: Chain, state: Path, environ: Mapping[str, str]) -> AsyncIterator[str]:
    """Let other programs reach a chain until the block is left. Yields why they cannot; empty if they can."""
    try:
        listening, path = places.listen(state, environ, chain.session_id)
    except UserError as error:
        yield str(error)
        return
    about = path.stat()
    door = Door(chain)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.serve, trio.socket.from_stdlib_socket(listening))
            try:
                yield ""
            finally:
                nursery.cancel_scope.shield = True
                nursery.cancel_scope.deadline = trio.current_time() + CLOSING_S
                await door.close()
                nursery.cancel_scope.cancel()
    finally:
        listening.close()
        with suppress(OSError):
            # Another program may have opened the session meanwhile, with a socket of its own.
            if os.path.samestat(path.stat(), about):
                path.unlink()


class Door:
    """The clients of one chain."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._clients: set[_Client] = set()
        self._turned_away: set[_Client] = set()
        self._owners: dict[str, _Client] = {}
        """Who sent the lines that can still be told of, by their ids."""
        self._deciders: dict[str, _Client] = {}
        """Who answered the questions whose answers are not told yet, by their ids; a line may have the same."""
        self._watchers: set[_Client] = set()
        self._feed = chain.feed()
        self._feed.close()
        self._has_watchers = trio.Event()
        self._settled: set[str] = set()
        """The ids of their lines that were told of for good, unless they come back."""
        self._during: list[_OfLine] | None = None
        """What is told of lines in the step in which a row is done."""
        self._all_gone = trio.Event()
        chain.listen(self._hear)

    async def serve(self, listening: trio.socket.SocketType) -> None:
        """Let clients in."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_watchers)
            while True:
                try:
                    peer, _ = await listening.accept()
                except OSError:
                    # No descriptor is left, for now.
                    await trio.sleep(CLOSING_S)
                    continue
                problem = self._problem_with(peer)
                if problem and len(self._turned_away) >= MAX_TURNED_AWAY:
                    with socket.socket(fileno=peer.detach()) as there, suppress(OSError):
                        there.send(_error_row(problem))
                    continue
                client = _Client(self, trio.SocketStream(peer))
                if problem:
                    self._turned_away.add(client)
                    client.put(_error_row(problem))
                    client.close_when_told()
                else:
                    self._clients.add(client)
                    client.tell(self._chain.init)
                nursery.start_soon(client.serve)

    def _problem_with(self, peer: trio.socket.SocketType) -> str:
        with socket.socket(fileno=os.dup(peer.fileno())) as same:
            problem = peers.problem_with(same)
        return problem or (TOO_MANY if len(self._clients) >= MAX_CLIENTS else "")

    async def close(self) -> None:
        """Let no more clients in, and wait until those that are there have read what there is."""
        self._pass_on(self._feed.take())
        for client in tuple(self._clients):
            client.close_when_told()
        if self._clients:
            await self._all_gone.wait()

    def leave(self, client: _Client) -> None:
        """A client is gone. What it sent stays."""
        self._clients.discard(client)
        self._turned_away.discard(client)
        self._watchers.discard(client)
        for of in (self._owners, self._deciders):
            for id in [id for id, owner in of.items() if owner is client]:
                del of[id]
        if not self._watchers:
            self._feed.close()
        if not self._clients:
            self._all_gone.set()

    # ------------------------------------------------------------------------------------------- what is asked for

    def do(self, client: _Client, row: JsonRow) -> None:
        """Do what a row asks for."""
        match row:
            case JsonLine():
                self._submit(client, row)
            case Interrupt():
                self._chain.interrupt()
            case Drop(id):
                try:
                    self._chain.drop(id)
                except UserError as error:
                    client.tell_error(str(error), id)
            case JsonAnswer(id, text):
                self._answer(client, id, text)
            case Hello(answers):
                client.answers = answers
                self._show_question(client)
            case Watch():
                self._watch(client)
            case Malformed(_, id, why):
                client.tell_error(why, id)

    def _submit(self, client: _Client, row: JsonLine) -> None:
        said = self._in_one_step(
            client,
            lambda: self._chain.submit(row.text, urgency=row.urgency, id=row.id, local=False, origin="door", to=row.to),
            self._owners,
        )
        if said.what == "nothing":  # no event says so
            client.tell(events.Receipt(id=row.id, text=row.text, state="handled", reason=said.message))

    def _answer(self, client: _Client, id: str, text: str) -> None:
        if client.answerer is None:
            client.tell_error(NOT_ASKED, id)
        else:
            self._in_one_step(client, lambda: self._chain.answer(id, text, origin="door"), self._deciders)

    def _in_one_step(self, client: _Client, act: Callable[[], Submitted], owners: dict[str, _Client]) -> Submitted:
        """Do something of a client's, tell it what is told of that in the same step, and note that it is its own."""
        during: list[_OfLine] = []
        self._during = during
        try:
            said = act()
        finally:
            self._during = None
        if said.what != "refused" and said.id:
            owners[said.id] = client
        if said.what == "handled" and said.message:
            client.tell(events.Notice(message=said.message))  # what was asked for, and is there at once
        for event in during:
            self._tell_of_line(event, client if _is_refusal(event) else self._owners.get(event.id))
        return said

    def _show_question(self, client: _Client) -> None:
        """Let a client answer, or no longer; the question that is open is told to it."""
        if client.answers and client.answerer is None:
            client.answerer = self._chain.answering()
            if client not in self._watchers:
                for event in self._chain.standing:
                    if isinstance(event, events.Question):
                        client.tell(event)
        elif not client.answers and client.answerer is not None:
            client.answerer.close()
            client.answerer = None

    def _watch(self, client: _Client) -> None:
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

    # --------------------------------------------------------------------------------------------- what is told

    def _hear(self, event: events.Event) -> None:
        """Tell those of an event whom it concerns though they do not watch."""
        if not self._clients:
            return
        if isinstance(event, _OF_LINES):
            # What is refused has no owner, since its id may be that of another's line: it is its sender's in whose step
            # it comes.
            if self._during is not None and (event.origin == "door" or not _is_refusal(event)):
                self._during.append(event)
            elif not _is_refusal(event):
                self._tell_of_line(event, self._owners.get(event.id))
        elif isinstance(event, _OF_QUESTIONS):
            owner = self._deciders.pop(event.id, None) if isinstance(event, events.Answer) else None
            for client in self._clients - self._watchers:
                if client.answers or client is owner:
                    client.tell(event)
        elif isinstance(event, events.Result) and event.status == "done":
            # After another ending the next run may still withdraw what was delivered.
            for id in self._settled:
                self._owners.pop(id, None)
            self._settled.clear()

    def _tell_of_line(self, event: _OfLine, client: _Client | None) -> None:
        if client is None:
            return
        if isinstance(event, events.Receipt) and not _is_refusal(event):
            # One that was delivered may still come back, until a run is done. Refused lines are not kept: whoever sends
            # them without end must not make this grow.
            self._settled.add(event.id)
        if client not in self._watchers:
            client.tell(event)

    async def _tell_watchers(self) -> None:
        while True:
            await self._has_watchers.wait()
            self._has_watchers = trio.Event()
            while batch := await self._feed.batch():
                self._pass_on(batch)

    def _pass_on(self, batch: Iterable[events.Event]) -> None:
        data = "".join(json_row(event) for event in batch).encode()
        if data:
            for client in tuple(self._watchers):
                client.put(data)


def _is_refusal(event: _OfLine) -> bool:
    return isinstance(event, events.LineRefused) or (isinstance(event, events.Receipt) and event.state == "refused")


def _error_row(why: str, id: str = "") -> bytes:
    return json_row(events.Error(message=why, kind=KIND), id=id).encode()


class _Client:
    """One connection."""

    def __init__(self, door: Door, stream: trio.SocketStream) -> None:
        self.answers = False
        self.answerer: Answerer | None = None
        self._door = door
        self._stream = stream
        self._behind: deque[bytes] = deque()
        self._size = 0
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        self._is_last = False
        self._has_left = trio.Event()

    async def serve(self) -> None:
        """Read what it asks for, and write what it is told, until it is gone or does not read."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._read)
                    with suppress(trio.TooSlowError):
                        with suppress(trio.BrokenResourceError):  # it is gone
                            await self._write()
                            await self._stream.send_eof()
                        # What it has sent and nobody has read would be lost, and make its end fail before it has read
                        # the rest.
                        with trio.move_on_after(LINGER_S):
                            await self._has_left.wait()
                    nursery.cancel_scope.cancel()
        finally:
            if self.answerer is not None:
                self.answerer.close()
            self._door.leave(self)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    def tell(self, event: events.Event) -> None:
        """Tell it of an event."""
        self.put(json_row(event).encode())

    def tell_error(self, why: str, id: str = "") -> None:
        """Tell it what could not be done."""
        self.put(_error_row(why, id))

    def put(self, data: bytes) -> None:
        """Let it be written; one that is too far behind is cut off."""
        self._behind.append(data)
        self._size += len(data)
        self._news.set()
        if self._size > MAX_BEHIND:
            self._scope.cancel()

    def close_when_told(self) -> None:
        """Close when all is written that is there."""
        self._is_last = True
        self._news.set()

    async def _read(self) -> None:
        splitter = Splitter(JSON_BYTES)
        with suppress(trio.BrokenResourceError):
            while chunk := await self._stream.receive_some(_CHUNK):
                splitter.add(bytes(chunk))
                while splitter.has_line:
                    row = read_row(splitter.next(), at_door=True)
                    if row is not None and not self._is_last:
                        self._door.do(self, row)
                    # Many rows may come at once, and others want their turn.
                    await trio.lowlevel.checkpoint()
        # A row without its end was not sent: who leaves in the middle of it takes it along.
        self.close_when_told()
        self._has_left.set()

    async def _write(self) -> None:
        while True:
            while self._behind:
                data = memoryview(b"".join(self._behind))
                self._behind.clear()
                self._size = 0
                for start in range(0, len(data), _CHUNK):
                    with trio.fail_after(STALL_S):
                        await self._stream.send_all(data[start : start + _CHUNK])
            if self._is_last:
                return
            self._news = trio.Event()
            await self._news.wait()
