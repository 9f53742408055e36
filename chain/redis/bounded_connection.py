"""A connection of ``coredis`` that ends when the server sends more than anybody asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream
from coredis.connection import TCPConnection

MAX_ANSWER = 64 * 1024 * 1024
"""Bytes between two requests. The longest answers are pages of a journal; the library keeps all of one in memory."""


class BoundedConnection(TCPConnection):
    """A TCP connection that is lost when an answer is longer than ``MAX_ANSWER``."""

    async def _connect(self) -> ByteStream:
        return _BoundedStream(await super()._connect())


class _BoundedStream(ByteStream):
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._received = 0
        """Bytes since the last request."""

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        self._received += len(data)
        if self._received > MAX_ANSWER:
            raise anyio.BrokenResourceError
        return data

    async def send(self, item: bytes) -> None:
        self._received = 0
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
