"""Who is at the other end of a side door's connection.

Only programs of the same user are let in, and none that a chain's own tools have started: what a command says must not
count as what the user says. Whatever a tool starts stays below this process, since guard and keepers adopt what loses
its parent. So a look at the ancestors is enough, however often the peer has called ``setsid`` or forked.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct

_SO_PEERPIDFD = 77
"""``SO_PEERPIDFD`` of Linux 6.5, which Python does not name."""
_CREDENTIALS = struct.Struct("3i")

LOOKS = 3
"""How often the ancestors are looked for: one may end meanwhile, and its children then have another."""

OTHER_USER = "the side door is for its own user alone"
OWN_COMMAND = "what the chain itself has started cannot use its side door"


def problem_with(peer: socket.socket) -> str:
    """Why a peer is not let in; empty if it is."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.getuid():
        return OTHER_USER
    try:
        handle = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return OWN_COMMAND  # it is gone
        return OWN_COMMAND if _is_below(pid, os.getpid()) else ""
    try:
        # A pid may be given to another process when its own has ended: so the peer has to be there still.
        return OWN_COMMAND if _is_below(pid, os.getpid()) or _has_ended(handle) else ""
    finally:
        os.close(handle)


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _is_below(pid: int, above: int) -> bool:
    """Whether a process was started below another one; also true for one of which that cannot be known."""
    for _ in range(LOOKS):
        at = pid
        while at not in (0, 1, above):
            parent = _parent(at)
            if parent is None:
                break
            at = parent
        else:
            # 0 is the parent of the first process, and of one that is outside of what can be seen from here.
            return (at == above and pid != above) or pid == 0
    return True


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
