"""Creates and finds the sockets of side doors, and connects to them.

The system limits a socket's path to 107 bytes, and the path of a state folder may be longer. So a socket is opened by a
short path, which contains the descriptor of the socket's folder: ``/proc/self/fd/N/NAME``.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from chain.errors import UserError

NAME = "chain"
"""The name of the sockets' folder in ``$XDG_RUNTIME_DIR``."""
FALLBACK = "doors"
"""The name of the sockets' folder in the state folder, which is used without ``$XDG_RUNTIME_DIR``."""


def folders(state: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders that may contain sockets. A new socket is created in the first folder that is usable."""
    found = []
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    # A program without the variable (in cron, or a hook) still finds the doors of those with it.
    for folder in (runtime, f"/run/user/{os.getuid()}"):
        if os.path.isabs(folder) and os.path.isdir(folder) and Path(folder, NAME) not in found:
            found.append(Path(folder, NAME))
    return [*found, state / FALLBACK] if runtime else [state / FALLBACK, *found]


def listen(state: Path, environ: Mapping[str, str], id: str) -> tuple[socket.socket, Path]:
    """Create a listening socket for a session that the caller has open. Return the socket and its path.

    Raise ``UserError`` if no folder is usable.
    """
    problem = ""
    for folder in folders(state, environ):
        try:
            return _listen(folder, id), folder / id
        except OSError as error:
            problem = f"{folder}: {error.strerror or error}"
    raise UserError(f"there is no side door, so chain send and chain watch cannot reach this session ({problem})")


def _listen(folder: Path, id: str) -> socket.socket:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "it belongs to another user")
    if about.st_mode & 0o077:
        folder.chmod(0o700)
    # Only one process has the session open, so an existing socket was left by a killed process. The new socket gets its
    # name when it listens: earlier it would look stale, and a client would remove it.
    new = folder / f".{id}"
    new.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_socket_path(new) as name:
            found.bind(name)
        found.listen(128)
        new.replace(folder / id)
    except OSError:
        found.close()
        raise
    return found


def connect(path: Path, *, timeout_s: float | None = None, removes_stale: bool = True) -> socket.socket:
    """Connect to a socket. Raise ``OSError`` on failure. If ``removes_stale``, delete a socket without listener."""
    about = path.stat()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.settimeout(timeout_s)
    try:
        with _short_socket_path(path) as name:
            found.connect(name)
    except OSError as error:
        found.close()
        if removes_stale and isinstance(error, ConnectionRefusedError) and stat.S_ISSOCK(about.st_mode):
            with suppress(OSError):
                if os.path.samestat(path.stat(), about):  # not if the session was opened again meanwhile
                    path.unlink()
        raise
    return found


def sockets(state: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the paths of all sockets, also of those without listener. The name of a socket is its session's id."""
    for folder in folders(state, environ):
        with suppress(OSError):
            # A line must not go to another user's program that claims to be a chain.
            if folder.stat().st_uid == os.getuid():
                yield from sorted(path for path in folder.iterdir() if path.name[0] != "." and path.is_socket())


@contextmanager
def _short_socket_path(path: Path) -> Iterator[str]:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
