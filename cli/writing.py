"""Writing all of something to a descriptor."""

from __future__ import annotations

import os
import select


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however long that takes. Raises ``OSError`` when nobody reads any more."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])
