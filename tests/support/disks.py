"""Implementations of ``JournalFile`` in memory: disks that are slow, full or broken."""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from .clock import pass_time


class MemoryFile:
    """A journal's file in memory. It uses no thread, since the test clock would continue while a thread works."""

    writes_later = False

    def __init__(self, sync_s: float = 0) -> None:
        self.data = b""
        self.attachments: dict[str, bytes] = {}
        """The attachments by their digests."""
        self.synced = b""
        self._sync_s = sync_s
        self._syncs_may_end = trio.Event()
        self._syncs_may_end.set()

    @property
    def is_slow(self) -> bool:
        """Whether its syncs take time."""
        return self._sync_s > 0

    def store_attachment(self, digest: str, content: bytes) -> None:
        self.attachments[digest] = content

    def append(self, data: bytes) -> None:
        self.data += data

    def hold(self) -> None:
        """Block all syncs."""
        self._syncs_may_end = trio.Event()

    def release(self) -> None:
        """Let all blocked syncs end."""
        self._syncs_may_end.set()

    async def sync(self) -> None:
        written = self.data
        await pass_time(self._sync_s)
        if not self._syncs_may_end.is_set():
            await self._syncs_may_end.wait()
        self.check_sync()
        self.synced = written

    def check_sync(self) -> None:
        """Raise ``OSError`` if the disk is broken."""


class BackgroundFile(MemoryFile):
    """A file in a store behind a network, which writes at the next sync, and counts the syncs."""

    writes_later = True

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    async def sync(self) -> None:
        self.syncs += 1
        await super().sync()


SMALL = 420
"""The largest record, in bytes, that a nearly full disk accepts: lines and receipts, but no long result or reply."""


class FullDisk(MemoryFile):
    """A disk that accepts records of up to ``room`` bytes. Syncs fail if it is ``broken``."""

    room: float = math.inf
    broken = False

    @property
    def full(self) -> bool:
        """Whether it accepts no record."""
        return self.room == 0

    @full.setter
    def full(self, full: bool) -> None:
        self.room = 0 if full else math.inf

    def append(self, data: bytes) -> None:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(data)

    def check_sync(self) -> None:
        if self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Limit the size of files. A write beyond it is cut short by the operating system, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
