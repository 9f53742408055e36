"""Unix sockets in folders of any length."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def bind(made: socket.socket, path: Path) -> None:
    """Bind a socket to a path; an address itself has no more than some 107 bytes."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
