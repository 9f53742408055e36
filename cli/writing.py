"""Blocking writes of whole texts to a descriptor."""

from __future__ import annotations

import os
import select


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, without a timeout. Raise ``OSError`` if that fails."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])


def write_text(fd: int, text: str) -> None:
    """Write all of a text, with question marks for surrogates. Raise ``OSError`` if that fails."""
    write_all(fd, text.encode(errors="replace"))


def try_to_write(fd: int, text: str) -> str:
    """Write a text. Return an error message, or "" on success or if the reader has closed its end."""
    try:
        write_text(fd, text)
    except BrokenPipeError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""
