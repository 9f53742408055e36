"""Writing to a descriptor until all is written."""

from __future__ import annotations

import os
import select


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, however long that takes. Raises ``OSError``."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])


def write_text(fd: int, text: str) -> None:
    """Write all of a text; what UTF-8 cannot express becomes a question mark. Raises ``OSError``."""
    write_all(fd, text.encode(errors="replace"))


def try_to_write(fd: int, text: str) -> str:
    """Write a text as it is; returns why that failed. That the reader has closed its end is no failure."""
    try:
        write_text(fd, text)
    except BrokenPipeError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""
