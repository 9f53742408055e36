"""Who is at the other end of a side door's connection.

Only programs of the same user are let in, and none that the tools of a chain have started, of this one or another: what
a command says must not count as what the user says. Whatever a command starts stays below its keeper, which adopts what
loses its parent, and below the guard, which adopts what loses its keeper. So a look at the ancestors is enough, however
often the peer has called ``setsid`` or forked, unless it has killed both, which a fence does not allow.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Literal, Protocol, TypeAlias, assert_never, overload

_SO_PEERPIDFD = 77
"""``SO_PEERPIDFD`` of Linux 6.5, which Python does not name."""
_CREDENTIALS = struct.Struct("3i")

GUARD = b"/chain/tools/guard.py"
"""How the path of the program ends that guards, and keepers, are."""

LOOKS = 3
"""How often the ancestors are looked for: one may end meanwhile, and its children then have another."""

OTHER_USER = "the side door is for its own user alone"
OWN_COMMAND = "what the chain itself has started cannot use its side door"
GONE = "it cannot be seen any more who has connected; stay until you are answered"

_Found: TypeAlias = Literal["let in", "started by a chain", "gone"]


class Peer(Protocol):
    """The connection."""

    @overload
    def getsockopt(self, level: int, option: int, /) -> int: ...

    @overload
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def problem_with(peer: Peer) -> str:
    """Why a peer is not let in; empty if it is. Raises ``OSError`` when that cannot be found out."""
    pid, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS.size))
    if uid != os.getuid():
        return OTHER_USER
    found = _look(peer, pid)
    match found:
        case "let in":
            return ""
        case "started by a chain":
            return OWN_COMMAND
        case "gone":
            return GONE
        case _:
            assert_never(found)


def _look(peer: Peer, pid: int) -> _Found:
    try:
        handle = peer.getsockopt(SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:  # an older kernel
            return _origin(pid)
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):
            return "gone"
        raise
    try:
        found = _origin(pid)
        # A pid may be given to another process when its own has ended: so the peer has to be there still.
        return "gone" if _has_ended(handle) else found
    finally:
        os.close(handle)


def _has_ended(handle: int) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))


def _origin(pid: int) -> _Found:
    """Whether a process was started by a tool of a chain."""
    if pid == 0:
        return "gone"  # outside of what can be seen from here
    me = os.getpid()
    for _ in range(LOOKS):
        at: int | None = pid
        while at is not None and at > 1:
            if at == me:
                return "let in" if pid == me else "started by a chain"
            if _is_guard(at):
                return "started by a chain"
            if not _is_visible(at):
                # Somebody else's, where /proc hides what is not one's own: no chain has started that.
                return "let in"
            at = _parent(at)
        if at is not None:
            return "let in"
    return "gone"


def _is_guard(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return any(word.endswith(GUARD) for word in file.read(4_096).split(b"\0")[:5])
    except OSError:
        return False


def _is_visible(pid: int) -> bool:
    """Whether it is a process of one's own, or one of others that can be seen."""
    if os.path.exists(f"/proc/{pid}/stat"):
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass  # it has ended meanwhile
    return True


def _parent(pid: int) -> int | None:
    """The parent of a process; ``None`` if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
