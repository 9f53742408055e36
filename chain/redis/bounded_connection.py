"""A connection of ``coredis`` that ends when the server sends more than anybody asked for."""

from __future__ import annotations

from coredis.connection import TCPConnection
from coredis.exceptions import ConnectionError as LostConnection

MAX_SERVER_ANSWER = 64 * 1024 * 1024
"""Bytes of an answer. The longest are pages of a journal; the library holds all of one in memory."""


class BoundedConnection(TCPConnection):
    """A TCP connection that is lost when an answer is longer than ``MAX_SERVER_ANSWER``."""

    _held = 0
    """Bytes since the last answer that was complete."""

    def _data_received(self, data: bytes) -> None:
        waiting = len(self._requests)
        super()._data_received(data)
        self._held = self._held + len(data) if len(self._requests) == waiting else 0
        if self._held > MAX_SERVER_ANSWER:
            raise LostConnection("The answer is too long")
