"""Decides which processes may connect to a side door.

Only processes of the same user are accepted, except those that a tool of any chain has started: a command must not
speak for the user. A process of a tool has a guard among its ancestors, even if it has forked or called ``setsid``:
guards and their keepers adopt orphans. To hide this, a process would have to kill both, which the sandbox prevents.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from socket import SO_PEERCRED, SOL_SOCKET, socket

import trio

_SO_PEERPIDFD = 77
"""The socket option ``SO_PEERPIDFD`` of Linux 6.5. Python has no name for it."""
_CREDENTIALS = struct.Struct("3i")

GUARD = b"/chain/tools/processes/guard.py"
"""The end of the path of the program that guards and keepers run."""

ATTEMPTS = 3
"""Attempts to find all ancestors of a process. An attempt fails if an ancestor exits meanwhile."""

OTHER_USER = "only the user who runs this chain may use its side door"
OWN_COMMAND = "processes that the chain started cannot use its side door"
GONE = "the connecting process has exited; keep it running until it is answered"


def refusal_reason(peer: socket | trio.socket.SocketType) -> str:
    """Return the reason to refuse a peer; empty if the peer is accepted.

    Raise ``OSError`` if the peer cannot be identified.
    """
    pid, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
    if uid != os.getuid():
        return OTHER_USER
    try:
        handle = peer.getsockopt(SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:  # an older kernel
            return _origin_refusal(pid)
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):
            return GONE
        raise
    try:
        problem = _origin_refusal(pid)
        # A pid is reused when its process has exited, so the peer must still exist.
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        return GONE if ended.poll(0) else problem
    finally:
        os.close(handle)


def _origin_refusal(pid: int) -> str:
    """Return the reason to refuse a process that a tool started, or whose origin is unknown; empty for any other."""
    if pid == 0:
        return GONE  # in another pid namespace
    me = os.getpid()
    for _ in range(ATTEMPTS):
        ancestor: int | None = pid
        while ancestor is not None and ancestor > 1:
            if ancestor == me:
                return "" if pid == me else OWN_COMMAND
            if _is_guard(ancestor):
                return OWN_COMMAND
            if not _is_visible(ancestor):
                # It belongs to another user, and the options of /proc hide it. So no chain has started it.
                return ""
            ancestor = _parent(ancestor)
        if ancestor is not None:
            return ""
    return GONE


def _is_guard(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return any(word.endswith(GUARD) for word in file.read(4_096).split(b"\0")[:5])
    except OSError:
        return False


def _is_visible(pid: int) -> bool:
    if os.path.exists(f"/proc/{pid}/stat"):
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass  # it has exited meanwhile
    return True


def _parent(pid: int) -> int | None:
    """Return the pid of a process's parent; ``None`` if the process has exited."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
