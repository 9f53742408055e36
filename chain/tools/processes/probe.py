"""Finds out which parts of the fence (``fence``) this machine supports, by trying each of them.

``probe`` runs this file as a program. The program tries each protection in a fork, because a process cannot undo it. To
add a protection, add a field to ``Protections`` and an entry to ``_attempts``.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import NamedTuple

if __name__ == "__main__":
    # An isolated program that is run by its path finds only the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from chain.tools.processes.environment import bare_environment
from chain.tools.processes.fence import Fence, enter, enter_pid_namespace, mount_own_proc

PROBE_S = 20.0
"""The time limit of the probe, in seconds. It usually takes 50 ms."""


class Protections(NamedTuple):
    """The restrictions of a ``fence.Fence`` that this machine can enforce, such as refusing writes.

    ``namespace`` says whether a command can have its own PID namespace. A namespace is used where it is available, but
    no protection depends on it.
    """

    writes: bool = False
    network: bool = False
    unix_sockets: bool = False
    signals: bool = False
    namespace: bool = False
    devices: bool = False


@functools.cache
def probe() -> Protections:
    """Return the protections that this machine supports. The first call tries them, which blocks for 50 ms."""
    if sys.platform != "linux":
        return Protections()
    import subprocess

    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_S,
            check=True,
            start_new_session=True,
            env=bare_environment(),
        )
        return Protections(**json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return Protections()  # a restriction that could not be tried is not used


def _succeeds(attempt: Callable[[], bool]) -> bool:
    """Run an attempt in a forked process. Return whether it returned true."""
    child = os.fork()
    if child == 0:
        is_successful = False
        try:
            is_successful = attempt()
        finally:
            os._exit(0 if is_successful else 1)  # also after an exception
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _refuses(fence: Fence, *refused: Callable[[], object]) -> bool:
    """Enter a fence. Return whether it refuses all of the calls ``refused``.

    Raise ``OSError`` if the fence cannot be entered, or if it refuses a call that every command needs.
    """
    enter(fence)
    os.close(os.open(__file__, os.O_RDONLY))
    os.close(os.open(os.devnull, os.O_RDONLY))
    for each in socket.socketpair():
        each.close()
    return all(map(_is_refused, refused))


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except PermissionError:
        return True
    return False


def _has_namespace() -> bool:
    enter_pid_namespace()

    def is_first() -> bool:
        mount_own_proc()
        return os.getpid() == 1 and os.readlink("/proc/self") == "1"

    return _succeeds(is_first)


def _attempts(parent: int) -> dict[str, Callable[[], bool]]:
    def inet() -> object:
        return socket.socket(socket.AF_INET)

    unix = (lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), lambda: socket.socket(socket.AF_UNIX))
    others = (
        lambda: os.kill(parent, 0),
        lambda: os.setpriority(os.PRIO_PROCESS, parent, os.getpriority(os.PRIO_PROCESS, parent)),
    )
    return {
        "writes": lambda: _refuses(Fence(writable=()), lambda: os.open(os.devnull, os.O_WRONLY)),
        "network": lambda: _refuses(Fence(network=True), inet, *unix),
        "unix_sockets": lambda: _refuses(Fence(unix_sockets=True), *unix) and not _is_refused(inet),
        "signals": lambda: _refuses(Fence(signals=True), *others),
        "namespace": _has_namespace,
        "devices": lambda: _refuses(Fence(devices=(os.devnull,)), lambda: os.open("/dev/zero", os.O_RDONLY)),
    }


if __name__ == "__main__":
    json.dump({name: _succeeds(attempt) for name, attempt in _attempts(os.getpid()).items()}, sys.stdout)
