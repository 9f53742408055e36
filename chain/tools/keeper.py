"""The keeper of one command: a fork of the guard (``guard``) that starts it and kills all that is left of it.

It is a child subreaper: whatever the command's descendants do, they stay below it. What it forks becomes the command,
or the first process of a PID namespace, which forks the command and with which the kernel ends everything in there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from chain.tools import fence

SWEEP_S, MAX_SWEEP_S = 0.005, 1.0
"""Seconds between two rounds of killing: what was forked during one is found in the next.

Each takes twice as long as the one before, up to the second number: what hangs in the kernel, or runs as another user
by set-user-id, cannot be killed, and trying must not cost much.
"""

_CHUNK = 1 << 16

IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGXCPU,
    signal.SIGXFSZ,
)
"""What the guard and its keepers ignore; all other signals do what they do by default, from the guard's start."""


class Keeper:
    """The parent of one command, until nothing is left of it."""

    def __init__(self) -> None:
        os.setsid()
        fence.adopt_orphans()
        self._bell = Bell()
        self._has_namespace = False

    def serve(self, leash: socket.socket, output: int) -> None:
        """Start the command that the leash asks for and stay until it, and all below, has ended."""
        self._leash, self._output = leash, output
        request = _read_request(leash)
        if request is None:
            return
        try:
            first = self._start(request)
        except OSError as error:
            tell(self._leash, {"failed": str(error)})
            return
        os.close(self._output)
        while not self._has_ended(first):
            if self._bell.wait([self._leash], None) and not self._leash.recv(_CHUNK):
                break
        pause_s = SWEEP_S
        while not _is_alone():
            kill_all(below([os.getpid()]))
            self._bell.wait([], pause_s)
            for _ in changed():
                pass
            pause_s = min(pause_s * 2, MAX_SWEEP_S)
        tell(leash, {"gone": True})  # this process need not have ended as well for chain to go on

    def _has_ended(self, first: int) -> bool:
        """Reap all that have ended; whether this one is among them, and if so, chain is told."""
        has_ended = False
        for pid, status in changed():
            if pid == first:
                has_ended = True
                if not self._has_namespace:
                    tell(self._leash, {"exit": os.waitstatus_to_exitcode(status)})
        return has_ended

    def _start(self, request: dict[str, Any]) -> int:
        """The process to wait for: the command, or the first of its namespace, which tells of the command itself."""
        box = None if request["fence"] is None else fence.Fence(**request["fence"])
        self._has_namespace = box is not None and box.namespace and _enter_namespace()
        pid = os.fork()
        if pid == 0:
            if self._has_namespace:
                forever(lambda: _be_first(request, box, self._leash, self._output))
            forever(lambda: _become(request, box, self._leash, self._output))
        return pid


class Bell:
    """Waits for sockets and for the end of a child at the same time."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without one no signal would be written
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def wait(self, sources: Iterable[socket.socket], seconds: float | None) -> bool:
        """Wait until one of these can be read (true), a child has changed, or so many seconds are over."""
        waited: list[socket.socket | int] = [*sources, self._reader]
        found, _, _ = select.select(waited, [], [], seconds)
        if self._reader in found:
            found.remove(self._reader)
            os.read(self._reader, _CHUNK)
        return bool(found)

    def close(self) -> None:
        """Forget it, in a fork."""
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)


# ------------------------------------------------------------------------------------------------- becoming a command


def _be_first(request: dict[str, Any], box: fence.Fence | None, leash: socket.socket, output: int) -> None:
    """Be the first process of a PID namespace: start the command, reap all, and end with it, and all others with us."""
    signal.set_wakeup_fd(-1)
    try:
        fence.mount_own_proc()
    except OSError as error:
        tell(leash, {"failed": str(error)})
        return
    command = os.fork()
    if command == 0:
        forever(lambda: _become(request, box, leash, output))
    os.close(output)
    while True:
        pid, status = os.wait()
        if pid == command:
            tell(leash, {"exit": os.waitstatus_to_exitcode(status)})
            return


def _become(request: dict[str, Any], box: fence.Fence | None, leash: socket.socket, output: int) -> None:
    """Become the command. If that cannot be, the leash, which the command does not get, is told why."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((nothing, output, output)):
            os.dup2(source, target)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                _close_at_exec(int(name))
        os.chdir(request["cwd"])
        if box is not None:
            fence.enter(box)
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except (OSError, ValueError) as error:
        tell(leash, {"failed": error.strerror if isinstance(error, OSError) and error.strerror else str(error)})


def _close_at_exec(descriptor: int) -> None:
    try:
        os.set_inheritable(descriptor, False)
    except OSError:
        return  # the one by which the list was read


def _enter_namespace() -> bool:
    """Whether what is forked next is in a PID namespace. Without one the keeper does all the killing."""
    try:
        fence.enter_pid_namespace()
    except OSError:
        return False
    return True


def forever(work: Callable[[], None]) -> NoReturn:
    """The life of a forked process: it never goes back into the code of its parent."""
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


# ---------------------------------------------------------------------------------------------- processes and the leash


def _read_request(leash: socket.socket) -> dict[str, Any] | None:
    """The request, a line of JSON; ``None`` if chain has gone meanwhile."""
    read = bytearray()
    while not read.endswith(b"\n"):
        chunk = leash.recv(_CHUNK)
        if not chunk:
            return None
        read += chunk
    request: dict[str, Any] = json.loads(read)
    return request


def tell(leash: socket.socket, what: dict[str, Any]) -> None:
    """Send chain a line of JSON."""
    try:
        leash.sendall(json.dumps(what).encode() + b"\n")
    except OSError:
        return  # chain has gone, and the leash with it


def changed(options: int = 0) -> Iterable[tuple[int, int]]:
    """The children that have ended since, reaped, and their status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | options)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _is_alone() -> bool:
    """Whether there is no child, alive or not, and so nothing below."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def children(pid: int) -> list[int]:
    """The processes whose parent this one is, zombies among them. One may be missing while others end."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        me = os.getpid()
        if not os.path.exists(f"/proc/{me}/task/{me}/children"):  # a kernel built without such lists
            return [child for child, parent in parents().items() if parent == pid]
    return found


def parents() -> dict[int, int]:
    """The parent of each process."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
    return found


def below(pids: Iterable[int]) -> list[int]:
    """All processes below these."""
    found: list[int] = []
    left = list(pids)
    while left:
        new = children(left.pop())
        found += new
        left += new
    return found


def kill_all(pids: Iterable[int]) -> None:
    """Kill these, as far as they are there and may be killed."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue  # it has ended meanwhile
