"""Replacements for functions of ``os`` that count the calls on a journal and kill the program at one of them.

``install`` must run before the program is imported, since a module may store a function of ``os`` under another name.
Until ``arm`` is called, every call passes through. The counts are stored in a file, which survives the program.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .point import Call, Kill

SLOW_DISK_S = 0.02
"""The delay before a kill that replaces a sync. A faulty program acts meanwhile as if the sync had ended."""

_COUNTS = struct.Struct("<4Q")
_WRITE, _FDATASYNC, _FSYNC, _FTRUNCATE = os.write, os.fdatasync, os.fsync, os.ftruncate


@dataclass(frozen=True, slots=True)
class Counts:
    """The calls of a program on its journal.

    ``is_named``: the folder of the journal was synced; otherwise a power cut removes the whole file. ``synced`` is the
    number of bytes that the last finished sync covered.
    """

    writes: int = 0
    syncs: int = 0
    is_named: bool = False
    synced: int = 0

    @classmethod
    def read(cls, path: Path) -> Counts:
        """Return the counts of a program. They are zero if it ended before it was armed."""
        data = path.read_bytes() if path.exists() else b""
        if len(data) < _COUNTS.size:
            return cls()
        writes, syncs, is_named, synced = _COUNTS.unpack(data)
        return cls(writes, syncs, bool(is_named), synced)


class _Layer:
    def __init__(self) -> None:
        self._fd = -1
        self._kill: Kill | None = None
        self._lock = threading.Lock()
        self._calls: dict[Call, int] = {"write": 0, "sync": 0}
        self._is_named = self._synced = 0

    def arm(self, path: Path, kill: Kill | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._kill = kill

    def write(self, fd: int, data: Any) -> int:
        if not self._is_counted(fd):
            return _WRITE(fd, data)
        where = self._count("write")
        if where == "before":
            _die()
        if where == "middle" and self._kill is not None:
            _WRITE(fd, bytes(data)[: max(1, round(len(data) * self._kill.part))])
            _die()
        written = _WRITE(fd, data)
        if where == "after":
            _die()
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        """Truncate a file. On a journal this counts as a write."""
        where = self._count("write") if self._is_counted(fd) else None
        if where in ("before", "middle"):
            _die()
        _FTRUNCATE(fd, length)
        if where == "after":
            _die()

    def wrap_sync(self, sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted_sync(fd: Any) -> None:
            if not self._is_counted(fd):
                sync(fd)
                if self._fd >= 0 and _path(fd).endswith("/sessions"):
                    self._is_named = 1
                    self._save()
                return
            where, size = self._count("sync"), os.fstat(fd).st_size
            if where == "before":
                time.sleep(SLOW_DISK_S)
                _die()
            sync(fd)
            with self._lock:
                self._synced = size
                self._save()
            if where == "after":
                _die()

        return counted_sync

    def _is_counted(self, fd: int) -> bool:
        return self._fd >= 0 and _path(fd).endswith(".jsonl")

    def _count(self, call: Call) -> str | None:
        """Count a call. Return where in it the program must be killed, or ``None``."""
        with self._lock:
            self._calls[call] += 1
            self._save()
            kill = self._kill
            return kill.where if kill is not None and (kill.call, kill.n) == (call, self._calls[call]) else None

    def _save(self) -> None:
        os.pwrite(self._fd, _COUNTS.pack(*self._calls.values(), self._is_named, self._synced), 0)


_layer = _Layer()
arm = _layer.arm


def install() -> None:
    """Replace the functions of ``os`` for all modules that are imported later."""
    os.write = _layer.write
    os.fdatasync = _layer.wrap_sync(_FDATASYNC)  # type: ignore[assignment]
    os.fsync = _layer.wrap_sync(_FSYNC)  # type: ignore[assignment]
    os.ftruncate = _layer.ftruncate


def _path(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # the signal arrives at the return from the system call at the latest
