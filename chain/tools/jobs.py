"""Background jobs: their state, the file with their output, and the tools for them.

A job is started by ``shell``. ``session.jobs`` runs it, in a task that outlives the call.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chain.journal.records import JobEnded, JobStarted
from chain.regular_file import FLAGS, regular_file
from chain.tools.processes.output import Output
from chain.tools.tool import ToolContext, tool

MAX_OUTPUT = 10_000_000
"""Bytes of a job's output that are stored: enough for the build of a large project. Longer output loses its middle."""

HEAD = MAX_OUTPUT * 2 // 5
"""Bytes of the output's start that are always stored."""

TAIL = MAX_OUTPUT * 3 // 10
"""Bytes of the output's end that are stored when the middle is dropped. The file then has space for more output before
the middle must be dropped again.
"""

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(eq=False, slots=True)
class JobState:
    """The recorded state of a background job.

    ``start_time`` is the Unix time of the job's start. ``ended`` is ``None`` while the job runs. ``line_id`` is the id
    of the line that reports the end to the model.
    """

    started: JobStarted
    start_time: float
    ended: JobEnded | None = None
    line_id: str = ""


class Piece(NamedTuple):
    """A piece of a job's output: its bytes, and the offsets of its start and end in the whole output."""

    data: bytes
    begin: int
    end: int

    @property
    def text(self) -> str:
        """The piece as text, as a terminal would show it."""
        output = Output()
        output.add(self.data, is_last=True)
        return output.text()


class JobOutput:
    """The output of one job, stored in a file of limited size.

    The middle of a long output is replaced by a row that says how many bytes are missing. An error of the disk does not
    end the job: the output that cannot be written is lost.
    """

    def __init__(self, fd: int, *, most: int = MAX_OUTPUT, head: int = HEAD, tail: int = TAIL) -> None:
        self._fd = fd
        self._most = most
        self._head = head
        self._tail = tail
        self._dropped = 0
        self.size = os.fstat(fd).st_size
        """The number of bytes that the job has written."""

    @classmethod
    def create(cls, path: Path | None) -> JobOutput:
        """Create the file for the output of a new job.

        If ``path`` is ``None`` or cannot be created, use a temporary file. Raise ``OSError`` if this fails too.
        """
        if path is not None:
            with suppress(OSError):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                return cls(os.open(path, _CREATE, 0o600))
        fd, name = tempfile.mkstemp(prefix="chain-job-")
        os.unlink(name)
        return cls(fd)

    @classmethod
    def open(cls, path: Path) -> JobOutput | None:
        """Open the output of a job of an earlier process for reading. Return ``None`` if the file cannot be opened."""
        try:
            with regular_file(os.open(path, FLAGS | os.O_NOFOLLOW)) as file:
                return cls(os.dup(file.fileno()))
        except OSError:
            return None

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def write(self, data: bytes) -> None:
        """Append output. Ignore errors of the disk."""
        with suppress(OSError):
            if self._length + len(data) > self._most:
                self._drop_middle()
            self.size += os.pwrite(self._fd, data, self._length)

    def read(self, offset: int, most: int) -> Piece:
        """Return up to ``most`` bytes of the output, starting at ``offset``.

        A negative offset counts from the end. If the byte at ``offset`` was dropped, the piece starts at the first byte
        after the dropped ones.
        """
        begin = max(self.size + offset, 0) if offset < 0 else min(offset, self.size)
        if self._dropped and begin >= self._head:
            begin = max(begin, self._head + self._dropped)
            place = begin - self._dropped + len(self._gap)
        else:
            most = min(most, self._head - begin) if self._dropped else most
            place = begin
        try:
            data = os.pread(self._fd, most, place)
        except OSError:
            data = b""
        return Piece(data, begin, begin + len(data))

    @property
    def _length(self) -> int:
        return self.size - self._dropped + len(self._gap)

    @property
    def _gap(self) -> bytes:
        """The row that replaces dropped output; empty if nothing was dropped. All such rows have the same length."""
        return f"\n[{self._dropped:>15,} bytes left out]\n".encode() if self._dropped else b""

    def _drop_middle(self) -> None:
        tail = os.pread(self._fd, self._tail, self._length - self._tail)
        self._dropped = self.size - self._head - len(tail)
        os.pwrite(self._fd, self._gap + tail, self._head)
        os.ftruncate(self._fd, self._length)


@tool(read_only=True)
async def job_output(ctx: ToolContext, id: str, after: int = 0) -> str:
    """Return the state of a background job, such as J1, and its output after the first `after` bytes.

    A negative `after` returns the last bytes: -2000 returns the last 2,000.
    """
    return ctx.jobs.output(id, after, ctx.room)


@tool
async def job_kill(ctx: ToolContext, id: str) -> str:
    """End a background job, such as J1, and everything that it started."""
    return await ctx.jobs.kill(id, ctx.agent)


JOB_TOOLS = (job_output, job_kill)
