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
