"""Clients of a side door, in the process of the test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from cli.door import sockets
from cli.door.server import side_door

from .sessions import Session


@dataclass(eq=False)
class Client:
    """A connection, and the rows that it received."""

    stream: trio.SocketStream
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_closed: bool = False
    _rest: bytes = b""
    _changed: trio.Event = field(default_factory=trio.Event)

    async def read(self) -> None:
        """Read rows until the other side closes."""
        try:
            while chunk := await self.stream.receive_some(65_536):
                *complete, self._rest = (self._rest + chunk).split(b"\n")
                self.rows += [json.loads(row) for row in complete]
                self._changed.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.is_closed = True
        self._changed.set()

    async def send(self, *rows: dict[str, Any] | bytes) -> None:
        """Send rows, and wait until they are read and carried out."""
        data = b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)
        await self.stream.send_all(data)
        await wait_all_tasks_blocked()

    async def send_line(self, text: str, **more: Any) -> None:
        await self.send({"type": "line", "text": text, **more})

    async def wait_for(self, type: str, **fields: object) -> dict[str, Any]:
        """Wait for a row of this type with these fields, and return it."""
        while True:
            for row in self.rows_of(type):
                if all(row[name] == value for name, value in fields.items()):
                    return row
            assert not self.is_closed, f"no {type} {fields} in {self.types}"
            await self._wait()

    async def wait_closed(self) -> None:
        while not self.is_closed:
            await self._wait()

    def rows_of(self, *types: str) -> list[dict[str, Any]]:
        """Return the rows of these types so far."""
        return [row for row in self.rows if row["type"] in types]

    @property
    def types(self) -> list[str]:
        """The types of the rows so far."""
        return [row["type"] for row in self.rows]

    async def disconnect(self) -> None:
        await trio.aclose_forcefully(self.stream)
        await wait_all_tasks_blocked()

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()


@dataclass
class OpenDoor:
    """A side door that clients can connect to."""

    path: Path
    nursery: trio.Nursery
    clients: list[Client] = field(default_factory=list)

    async def connect(self, *, reads: bool = True) -> Client:
        """Return a new client, which stores the rows that it receives if ``reads``."""
        client = Client(trio.SocketStream(trio.socket.from_stdlib_socket(sockets.connect(self.path))))
        self.clients.append(client)
        if reads:
            self.nursery.start_soon(client.read)
        await wait_all_tasks_blocked()
        return client


@asynccontextmanager
async def open_door(session: Session, folder: Path) -> AsyncIterator[OpenDoor]:
    """Yield the side door of a session, which is open in a state folder until the end of the block."""
    async with trio.open_nursery() as nursery:
        async with side_door(session.chain, folder, {}) as problem:
            assert not problem
            door = OpenDoor(folder / sockets.FALLBACK / session.chain.session_id, nursery)
            yield door
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        for client in door.clients:
            client.stream.socket.close()
