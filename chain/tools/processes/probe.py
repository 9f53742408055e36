"""What of a fence (``fence``) this machine can put up: tried, never derived from a version.

``probe`` runs this file as a program, and that tries each protection in a process of its own, since they hold for good.
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
    # Run by its path and isolated, it finds the standard library alone; its own package comes after that.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from chain.tools.processes.environment import bare_environment
from chain.tools.processes.fence import Fence, enter, enter_pid_namespace, mount_own_proc

PROBE_S = 20.0
"""Seconds for the probe, which takes a twentieth of one: a machine that needs longer is in trouble of its own."""


class Protections(NamedTuple):
    """What this machine can refuse to a command, as far as it was tried.

    ``namespace``: whether a command can have a PID namespace of its own, which is used where it can be had, and is no
    protection that anybody relies on.
    """

    writes: bool = False
    network: bool = False
    unix_sockets: bool = False
    signals: bool = False
    namespace: bool = False
    devices: bool = False


@functools.cache
def probe() -> Protections:
    """Which protections hold on this machine; asked once a process. It blocks for about 50 ms: call it in a thread."""
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
        return Protections()  # what could not be tried does not hold


def _holds(attempt: Callable[[], bool]) -> bool:
    """Whether an attempt succeeds, in a process of its own."""
    child = os.fork()
    if child == 0:
        held = False
        try:
            held = attempt()
        finally:
            os._exit(0 if held else 1)  # also past a traceback: nobody reads it
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except PermissionError:
        return True
    return False


def _try_writes() -> bool:
    enter(Fence(writable=()))
    return _is_refused(lambda: os.open("/dev/null", os.O_WRONLY))


def _try_network() -> bool:
    enter(Fence(network=True))
    return _unix_is_refused() and _is_refused(lambda: socket.socket(socket.AF_INET))


def _try_unix_sockets() -> bool:
    enter(Fence(unix_sockets=True))
    socket.socket(socket.AF_INET).close()
    return _unix_is_refused()


def _unix_is_refused() -> bool:
    for each in socket.socketpair():
        each.close()
    pair_is_refused = _is_refused(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    return pair_is_refused and _is_refused(lambda: socket.socket(socket.AF_UNIX))


def _try_signals() -> bool:
    parent = os.getppid()
    enter(Fence(signals=True))
    priority = os.getpriority(os.PRIO_PROCESS, parent)
    is_kept = _is_refused(lambda: os.setpriority(os.PRIO_PROCESS, parent, priority))
    return is_kept and _is_refused(lambda: os.kill(parent, 0))


def _try_devices() -> bool:
    enter(Fence(devices=("/dev/null",)))
    for path in ("/dev/null", __file__):
        os.close(os.open(path, os.O_RDONLY))
    return _is_refused(lambda: os.open("/dev/zero", os.O_RDONLY))


def _try_namespace() -> bool:
    enter_pid_namespace()

    def is_first() -> bool:
        mount_own_proc()
        return os.getpid() == 1 and os.readlink("/proc/self") == "1"

    return _holds(is_first)


if __name__ == "__main__":
    attempts = (_try_writes, _try_network, _try_unix_sockets, _try_signals, _try_namespace, _try_devices)
    json.dump(Protections(*map(_holds, attempts))._asdict(), sys.stdout)
