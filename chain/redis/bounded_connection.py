"""A connection of ``coredis`` with a limit on the length of an answer."""

from __future__ import annotations

from coredis.connection import TCPConnection
from coredis.exceptions import ConnectionError as LostConnection

MAX_SERVER_ANSWER = 64 * 1024 * 1024
"""The maximum length, in bytes, of an answer: it is stored in memory. The longest answers are pages of a journal."""


class BoundedConnection(TCPConnection):
    """A TCP connection that is closed when an answer is longer than ``MAX_SERVER_ANSWER``."""

    _unfinished = 0
    """Bytes received since the last complete answer."""

    def _data_received(self, data: bytes) -> None:
        waiting = len(self._requests)
        super()._data_received(data)
        self._unfinished = self._unfinished + len(data) if len(self._requests) == waiting else 0
        if self._unfinished > MAX_SERVER_ANSWER:
            raise LostConnection("The answer is too long")
