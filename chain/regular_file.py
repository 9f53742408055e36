"""Opens files of unknown origin without blocking: a FIFO or a device could block forever."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Any

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags for opening a file of unknown origin. Without O_NONBLOCK, opening a FIFO waits for a writer."""


class _RegularFile(io.FileIO):
    """A file whose reads raise ``BlockingIOError`` if there is no data yet, as for some files in /proc.

    The reads of a plain ``FileIO`` return ``None`` instead.
    """

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a writable buffer
        if (count := super().readinto(buffer)) is None:
            raise BlockingIOError(errno.EAGAIN, "it has no content that can be read")
        return count


def regular_file(descriptor: int) -> io.BufferedReader:
    """Return a reader that owns an open descriptor. If the file is not regular, close it and raise ``OSError``."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, a device, a pipe or a socket")
    return io.BufferedReader(_RegularFile(descriptor))
