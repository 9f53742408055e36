"""The file layer under a program's journals, which counts its calls and kills the program at one of them.

It stands between the program and the system: ``install`` has to come before the program is imported, since a module
may keep a function of ``os`` under a name of its own. Until ``arm`` is called everything passes through.

What it counts is kept in a file that the program's end leaves as it is: how many writes and syncs there were, and how
many bytes of the journal the last finished sync covered. A power cut may take the bytes after those.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .point import Kill

SLOW_DISK_S = 0.02
"""Before a sync that never ends: by then, what should have waited for it has been said or done."""

_COUNTS, _SYNCED = struct.Struct("<3Q"), struct.Struct("<2Q")
_WRITE, _FDATASYNC, _FSYNC, _FTRUNCATE = os.write, os.fdatasync, os.fsync, os.ftruncate


@dataclass(frozen=True, slots=True)
class Counts:
    """The calls of a program on its journals, and the bytes of each, by its inode, that a finished sync covered.

    ``is_named``: the folder of the journals was synced; before that a power cut takes the whole file.
    """

    writes: int = 0
    syncs: int = 0
    is_named: bool = False
    synced: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Counts:
        """What a program left in its file; nothing where it did not come so far."""
        data = path.read_bytes() if path.exists() else b""
        if len(data) < _COUNTS.size:
            return cls()
        writes, syncs, is_named = _COUNTS.unpack_from(data)
        return cls(writes, syncs, bool(is_named), dict(_SYNCED.iter_unpack(data[_COUNTS.size :])))


class _Layer:
    def __init__(self) -> None:
        self._fd = -1
        self._kill: Kill | None = None
        self._lock = threading.Lock()
        self._writes = self._syncs = self._is_named = 0
        self._synced: dict[int, int] = {}

    def arm(self, path: Path, kill: Kill | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._kill = kill

    def write(self, fd: int, data: Any) -> int:
        if not self._counts(fd):
            return _WRITE(fd, data)
        with self._lock:
            self._writes += 1
            kill = self._due("write", self._writes)
            self._note()
        if kill == "before":
            _die()
        if kill == "middle":
            size = max(1, round(len(data) * self._part()))
            _WRITE(fd, bytes(data)[:size])
            _die()
        written = _WRITE(fd, data)
        if kill == "after":
            _die()
        return written

    def syncing(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def synced(fd: Any) -> None:
            if not self._counts(fd):
                sync(fd)
                if self._fd >= 0 and _path(fd).endswith("/sessions"):
                    self._is_named = 1
                    self._note()
                return
            with self._lock:
                self._syncs += 1
                kill = self._due("sync", self._syncs)
                self._note()
            found = os.fstat(fd)
            if kill == "before":
                time.sleep(SLOW_DISK_S)
                _die()
            sync(fd)
            with self._lock:
                self._synced[found.st_ino] = found.st_size
                self._note()
            if kill == "after":
                _die()

        return synced

    def ftruncate(self, fd: int, length: int) -> None:
        """A cut is a write like any other."""
        if self._counts(fd):
            with self._lock:
                self._writes += 1
                kill = self._due("write", self._writes)
                self._note()
            if kill in ("before", "middle"):
                _die()
            _FTRUNCATE(fd, length)
            if kill == "after":
                _die()
        else:
            _FTRUNCATE(fd, length)

    def _counts(self, fd: int) -> bool:
        return self._fd >= 0 and _path(fd).endswith(".jsonl")

    def _due(self, call: str, n: int) -> str | None:
        kill = self._kill
        return kill.where if kill is not None and (kill.call, kill.n) == (call, n) else None

    def _part(self) -> float:
        return 0.5 if self._kill is None else self._kill.part

    def _note(self) -> None:
        counts = _COUNTS.pack(self._writes, self._syncs, self._is_named)
        os.pwrite(self._fd, counts + b"".join(_SYNCED.pack(*each) for each in self._synced.items()), 0)


_layer = _Layer()
arm = _layer.arm


def install() -> None:
    """Put the layer between ``os`` and everything that is imported from here on."""
    os.write = _layer.write
    os.fdatasync = _layer.syncing(_FDATASYNC)  # type: ignore[assignment]
    os.fsync = _layer.syncing(_FSYNC)  # type: ignore[assignment]
    os.ftruncate = _layer.ftruncate


def _path(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal takes effect on the way back from the system at the latest
