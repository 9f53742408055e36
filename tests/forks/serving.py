"""What forks a process for each request: the socket on which they come, and what each fork is given."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from . import LONGEST, MOST


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork for each request, and say how those that have ended did.

    Returns in each fork, with its request and its descriptors, and where nobody can ask any more.
    """
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 2 * LONGEST, MOST)
        if not data:
            return None
        request: dict[str, Any] = json.loads(data)
        if "reap" in request:
            channel.send(str(os.waitpid(request["reap"], 0)[1]).encode())
        elif pid := os.fork():
            channel.send(str(pid).encode())
            for each in descriptors:
                os.close(each)
        else:
            for number, each in enumerate(descriptors[:3]):
                os.dup2(each, number)
                os.close(each)
            return request, descriptors[3:]
