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
    _data: bytearray = field(default_factory=bytearray)
    _changed: trio.Event = field(default_factory=trio.Event)

    async def read(self) -> None:
        """Read rows until the other side closes."""
        try:
            while chunk := await self.stream.receive_some(65_536):
                *whole, rest = (bytes(self._data) + chunk).split(b"\n")
                self._data = bytearray(rest)
                self.rows += [json.loads(row) for row in whole]
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

    async def say(self, text: str, **more: Any) -> None:
        """Send a line."""
        await self.send({"type": "line", "text": text, **more})

    async def until(self, type: str, **fields: object) -> dict[str, Any]:
        """Wait for a row of this type with these fields, and return it."""
        while True:
            for row in self.of(type):
                if all(row[name] == value for name, value in fields.items()):
                    return row
            assert not self.is_closed, f"no {type} {fields} in {self.types}"
            await self._wait()

    async def until_closed(self) -> None:
        """Wait until the other side closes."""
        while not self.is_closed:
            await self._wait()

    def of(self, *types: str) -> list[dict[str, Any]]:
        """Return the rows of these types so far."""
        return [row for row in self.rows if row["type"] in types]

    @property
    def types(self) -> list[str]:
        """The types of the rows so far."""
        return [row["type"] for row in self.rows]

    async def leave(self) -> None:
        """Close the connection."""
        await trio.aclose_forcefully(self.stream)
        await wait_all_tasks_blocked()

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()


@dataclass
class Entrance:
    """An open side door."""

    path: Path
    nursery: trio.Nursery
    clients: list[Client] = field(default_factory=list)

    async def client(self, *, reads: bool = True) -> Client:
        """Return a new client."""
        client = Client(trio.SocketStream(trio.socket.from_stdlib_socket(sockets.connect(self.path))))
        self.clients.append(client)
        if reads:
            self.nursery.start_soon(client.read)
        await wait_all_tasks_blocked()
        return client


@asynccontextmanager
async def open_door(session: Session, folder: Path) -> AsyncIterator[Entrance]:
    """Open the side door of a session, below a folder."""
    async with trio.open_nursery() as nursery:
        async with side_door(session.chain, folder, {}) as problem:
            assert not problem
            entrance = Entrance(folder / sockets.FALLBACK / session.chain.session_id, nursery)
            yield entrance
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        for client in entrance.clients:
            client.stream.socket.close()
