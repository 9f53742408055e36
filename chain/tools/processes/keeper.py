"""The keeper of one command: a fork of the guard (``guard``) that starts it and kills all that is left of it.

It is a child subreaper: whatever the command's descendants do, they stay below it. What it forks becomes the command,
or the first process of a PID namespace, which forks the command and with which the kernel ends everything in there.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from chain.tools.processes import fence

KILL_ROUND_S, MAX_SWEEP_S = 0.001, 1.0
"""Seconds between two rounds of killing: what was forked during one is found in the next.

Each takes twice as long as the one before, up to the second number: what hangs in the kernel, or runs as another user
by set-user-id, cannot be killed, and trying must not cost much.
"""

MAX_REAPED = 1_000
"""Children that are reaped in one go: in a storm of forks new ones end as fast as they are."""

MAX_COUNTED_PROCESSES = 20
"""Processes that are counted before they are killed: a storm of forks must not go on meanwhile."""

_CHUNK, _CHUNK_OF_SOME = 1 << 16, 1 << 8

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


class Ends:
    """What a command reads from and writes to: without an ``input`` nothing, without ``errors`` all to ``output``."""

    def __init__(self, output: int, input: int | None = None, errors: int | None = None) -> None:
        self._given = [each for each in (input, output, errors) if each is not None]
        self._input, self._output, self._errors = input, output, output if errors is None else errors

    def become_standard(self) -> None:
        """Make them the standard streams of this process."""
        input = os.open(os.devnull, os.O_RDONLY) if self._input is None else self._input
        for target, source in enumerate((input, self._output, self._errors)):
            os.dup2(source, target)

    def close(self) -> None:
        """Leave them to the command alone, which is not over while anybody holds them."""
        for each in self._given:
            os.close(each)


class Keeper:
    """The parent of one command, until nothing is left of it."""

    def __init__(self) -> None:
        os.setsid()
        fence.adopt_orphans()
        self._bell = Bell()
        self._children = ChildList()
        self._has_namespace = False

    def serve(self, leash: socket.socket, output: int, *others: int) -> None:
        """Start the command that the leash asks for and stay until it, and all below, has ended.

        ``others`` are what its request names in ``with``: the ``rules`` for what it may write (``fence.rules``), or an
        ``input`` and a place for its ``errors`` of its own.
        """
        self._leash = leash
        request = _read_request(leash)
        if request is None:
            return
        named = dict(zip(request["with"], others, strict=True))
        self._rules = named.pop("rules", None)
        self._ends = Ends(output, **named)
        try:
            first = self._start(request)
        except OSError as error:
            tell(self._leash, {"failed": str(error)})
            return
        self._ends.close()
        self._bell.watch(leash)
        while (status := _reaped(first)) is None:
            if self._bell.wait(None) and not self._leash.recv(_CHUNK):
                break
        # From here on the kernel reaps. A storm of forks has more dead than can be listed while it goes on.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if status is not None and not self._has_namespace:
            _tell_end(leash, status, self._children)
        self._bell.ignore(leash)
        self._end_all()
        tell(leash, {"gone": True})  # this process need not have ended as well for chain to go on

    def _end_all(self) -> None:
        """Kill all below, until nothing is left."""
        pause_s = KILL_ROUND_S
        while not _is_alone():
            kill_tree(self._children.read())
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_SWEEP_S)

    def _start(self, request: dict[str, Any]) -> int:
        """The process to wait for: the command, or the first of its namespace, which tells of the command itself."""
        box = None if request["fence"] is None else fence.Fence(**request["fence"])
        if box is not None:
            self._has_namespace = box.namespace and _enter_namespace()
            box = box._replace(namespace=self._has_namespace)
            if self._rules is not None:
                box = box._replace(writable=self._rules)  # in the request it is chain's own number
        pid = os.fork()
        if pid == 0:
            if self._has_namespace:
                forever(lambda: _be_first(request, box, self._leash, self._ends))
            forever(lambda: _become(request, box, self._leash, self._ends))
        return pid


class Bell:
    """Waits for a socket and for the end of a child at the same time.

    By epoll, which takes a descriptor of any number, and is of use also to a process that may open none any more.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._epoll = select.epoll()
        self._epoll.register(self._reader, select.EPOLLIN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without one no signal would be written
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def watch(self, source: socket.socket) -> None:
        """Wait for this one as well."""
        self._epoll.register(source, select.EPOLLIN)

    def ignore(self, source: socket.socket) -> None:
        """Wait for it no longer."""
        self._epoll.unregister(source)

    def wait(self, seconds: float | None) -> bool:
        """Wait until what is watched can be read (true), a child has changed, or so many seconds are over."""
        found = {descriptor for descriptor, _ in self._epoll.poll(seconds)}
        if self._reader in found:
            found.remove(self._reader)
            os.read(self._reader, _CHUNK)
        return bool(found)

    def close(self) -> None:
        """Forget it, in a fork."""
        signal.set_wakeup_fd(-1)
        self._epoll.close()
        os.close(self._reader)
        os.close(self._writer)


# ------------------------------------------------------------------------------------------------- becoming a command


def _be_first(request: dict[str, Any], box: fence.Fence | None, leash: socket.socket, ends: Ends) -> None:
    """Be the first process of a PID namespace: start the command, reap all, and end with it, and all others with us."""
    signal.set_wakeup_fd(-1)
    try:
        fence.mount_own_proc()
    except OSError as error:
        tell(leash, {"failed": str(error)})
        return
    command = os.fork()
    if command == 0:
        forever(lambda: _become(request, box, leash, ends))
    ends.close()
    while True:
        pid, status = os.wait()
        if pid == command:
            _tell_end(leash, status, ChildList())
            return


def _become(request: dict[str, Any], box: fence.Fence | None, leash: socket.socket, ends: Ends) -> None:
    """Become the command. If that cannot be, the leash, which the command does not get, is told why."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        ends.become_standard()
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                with contextlib.suppress(OSError):  # the one by which the list was read
                    os.set_inheritable(int(name), False)
        os.chdir(request["cwd"])
        if box is not None:
            fence.enter(box)
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except (OSError, ValueError) as error:
        tell(leash, {"failed": error.strerror if isinstance(error, OSError) and error.strerror else str(error)})


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
    with contextlib.suppress(OSError):  # chain has gone, and the leash with it
        leash.sendall(json.dumps(what).encode() + b"\n")


def _tell_end(leash: socket.socket, status: int, left: ChildList) -> None:
    """Tell chain how the command ended, and how many processes it left at work."""
    tell(leash, {"exit": os.waitstatus_to_exitcode(status), "left": count_at_work(left.some())})


def _reaped(first: int) -> int | None:
    """Reap all that have ended; the status of this one, if it is among them."""
    return dict(changed()).get(first)


def changed(options: int = 0) -> Iterable[tuple[int, int]]:
    """The children that have ended since, reaped, and their status."""
    for _ in range(MAX_REAPED):
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | options)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
    signal.raise_signal(signal.SIGCHLD)  # the bell rings again: there may be more


def _is_alone() -> bool:
    """Whether there is no child, alive or not, and so nothing below."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


class ChildList:
    """The children of this process, zombies among them. One may be missing while others end.

    The list is opened once: it can be read also by a process that can open nothing any more.
    """

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/proc/thread-self/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._file = None  # a kernel built without such lists

    def read(self) -> list[int]:
        """Their ids."""
        if self._file is None:
            me = os.getpid()
            return [child for child, parent in parents().items() if parent == me]
        os.lseek(self._file, 0, os.SEEK_SET)
        read = bytearray()
        while chunk := os.read(self._file, _CHUNK):
            read += chunk
        return [*map(int, read.split())]

    def some(self) -> list[int]:
        """The ids of a few, soon: in a storm of forks the list grows while it is read."""
        if self._file is None:
            return []
        os.lseek(self._file, 0, os.SEEK_SET)
        return [*map(int, os.read(self._file, _CHUNK_OF_SOME).rpartition(b" ")[0].split())]

    def close(self) -> None:
        """Forget it, in a fork."""
        if self._file is not None:
            os.close(self._file)


def children(pid: int) -> list[int]:
    """The children of another process, as far as they can be known."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def count_at_work(pids: Iterable[int]) -> int:
    """How many of these processes, and of those below them, have not ended; no more than are counted in a moment."""
    count, seen, level = 0, 0, list(pids)
    while level and seen < MAX_COUNTED_PROCESSES:
        looked_at = level[: MAX_COUNTED_PROCESSES - seen]
        seen += len(looked_at)
        count += sum(map(_is_at_work, looked_at))
        level = [child for pid in looked_at for child in children(pid)]
    return count


def _is_at_work(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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


def kill_tree(pids: Iterable[int]) -> None:
    """Kill these children of this process and all below them, as far as they are there and may be killed.

    Who was killed forks no more, so each is killed before its children are looked for. What is not found below it, as
    they cannot be listed or it has ended by then, comes to the subreaper above, for the next time. Those that have
    ended are reaped: a storm of forks leaves more of them than there are living, and to look below each takes long.
    """
    left = list(pids)
    _kill(left)
    left = [pid for pid in left if not _is_reaped(pid)]
    while left:
        left = [child for pid in left for child in children(pid)]
        _kill(left)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
