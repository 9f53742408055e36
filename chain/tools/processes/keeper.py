"""The keeper of one command: a fork of the guard (``guard``) that starts the command and kills the processes it leaves.

::

    guard ── keeper ── command ── its descendants
    guard ── keeper ── first process of a PID namespace ── command ── its descendants

A keeper is a child subreaper: a descendant that loses its parent becomes the keeper's child, so no process can escape.
With a PID namespace the kernel also kills everything in it together with its first process.

The guard and its keepers block all signals and wait for two of them: SIGCHLD, and SIGIO, which the kernel sends for a
socket (``watch``). Waiting for signals needs no descriptor, so it works even after a command has lowered the
limit of open files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from chain.tools.processes import fence

KILL_ROUND_S, MAX_SWEEP_S = 0.001, 1.0
"""The first and the longest pause between two rounds of killing, in seconds.

A round finds the processes that were forked during the previous round. The pause is doubled after each round, so that
trying costs little if a process cannot be killed, because it hangs in the kernel or runs as another user (set-user-id).
"""

MAX_REAPED = 1_000
"""The maximum number of children that one call reaps: in a fork storm, new children end as fast as they are reaped."""

MAX_COUNTED_PROCESSES = 20
"""The maximum number of processes that are counted before they are killed: a fork storm continues during the count."""

_CHUNK, _FEW = 1 << 16, 1 << 8
"""Bytes of one read: of a message or a whole list of children (``_CHUNK``), and of a list's start (``_FEW``)."""

_WAKING = (signal.SIGCHLD, signal.SIGIO)


class _Command(NamedTuple):
    """A command to start. ``streams`` maps ``output``, and perhaps ``input`` and ``errors``, to descriptors."""

    argv: list[str]
    cwd: str
    env: Mapping[str, str]
    fence: fence.Fence | None
    control: socket.socket
    streams: Mapping[str, int]

    def execute(self) -> None:
        """Replace this process by the command. If that fails, report the reason on the control socket."""
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            output = self.streams["output"]
            input = self.streams["input"] if "input" in self.streams else os.open(os.devnull, os.O_RDONLY)
            for target, source in enumerate((input, output, self.streams.get("errors", output))):
                os.dup2(source, target)
            os.chdir(self.cwd)
            if self.fence is not None:
                fence.enter(self.fence)
            os.execvpe(self.argv[0], self.argv, self.env)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            send_message(self.control, failed=why)

    def execute_in_namespace(self) -> None:
        """Run as the first process of a PID namespace: start the command, reap orphans, and report its end.

        Return when the command has ended, or cannot be started.
        """
        try:
            fence.mount_own_proc()
            command = fork(self.execute)
        except OSError as error:
            send_message(self.control, failed=str(error))
            return
        self.close_streams()
        while True:
            pid, status = os.wait()
            if pid == command:
                _report_end(self.control, status, None)
                return

    def close_streams(self) -> None:
        """Close this process's copies of the streams: the output ends only when no process has it open."""
        for each in self.streams.values():
            os.close(each)


class Keeper:
    """The keeper of one command. It runs until no process of the command is left."""

    def __init__(self) -> None:
        os.setsid()
        fence.adopt_orphans()

    def serve(self, control: socket.socket, descriptors: Sequence[int]) -> None:
        """Run the command that is requested on ``control``. Return when all its processes have ended.

        ``descriptors`` are the command's output, and then the descriptors that the request names in ``with``:
        ``input``, ``errors``, and ``rules``, the Landlock ruleset of the command's writes (``fence.rules``).
        """
        request = _read_request(control)
        if request is None:
            return
        streams = dict(zip(("output", *request.pop("with")), descriptors, strict=True))
        box = request.pop("fence")
        if box is not None:
            # The request cannot contain the ruleset: its descriptor has another number in this process.
            box |= {"writable": streams.pop("rules")} if "rules" in streams else {}
            box = fence.Fence(**box | {"namespace": box["namespace"] and _enter_namespace()})
        command = _Command(**request, fence=box, control=control, streams=streams)
        has_namespace = box is not None and box.namespace
        children = None if has_namespace else ChildList()
        try:
            first = fork(command.execute_in_namespace if has_namespace else command.execute)
        except OSError as error:
            send_message(control, failed=str(error))
            return
        command.close_streams()
        watch(control)
        while (status := dict(reap()).get(first)) is None and not _is_closed(control):
            wait(None)
        # From here on the kernel reaps, because a fork storm leaves more dead processes than can be listed meanwhile.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if status is not None and not has_namespace:
            _report_end(control, status, children)
        pause_s = KILL_ROUND_S
        while not _is_childless():
            kill_tree([first] if children is None else children.read())
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_SWEEP_S)
        send_message(control, gone=True)  # chain does not wait for the exit, during which the kernel removes namespaces


def fork(work: Callable[[], None]) -> int:
    """Fork a process that runs ``work`` and exits. Return its pid."""
    pid = os.fork()
    if pid == 0:
        _run_and_exit(work)
    return pid


def _run_and_exit(work: Callable[[], None]) -> NoReturn:
    # A forked process must never return into the code of its parent.
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def _enter_namespace() -> bool:
    """Create a PID namespace for the processes that this process forks from now on. Return whether that worked.

    Without a namespace, only the keeper kills the processes of the command.
    """
    try:
        fence.enter_pid_namespace()
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------------------------ signals and messages


def watch(source: socket.socket) -> None:
    """Make ``source`` non-blocking. The kernel sends this process SIGIO when ``source`` can be read or was closed."""
    fcntl.fcntl(source, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(source, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def wait(timeout_s: float | None) -> None:
    """Wait for the end or stop of a child, for data of a watched socket, or for the timeout (``None``: no timeout)."""
    if timeout_s is None:
        signal.sigwait(_WAKING)
    else:
        signal.sigtimedwait(_WAKING, timeout_s)


def _is_closed(control: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        return not control.recv(_CHUNK)
    return False


def _read_request(control: socket.socket) -> dict[str, Any] | None:
    """Return the request, a line of JSON; ``None`` if chain has closed the socket."""
    with control.makefile("rb") as file:
        line = file.readline()
    request: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
    return request


def send_message(control: socket.socket, **message: object) -> None:
    """Send chain a line of JSON."""
    with contextlib.suppress(OSError):  # chain has ended
        control.sendall(json.dumps(message).encode() + b"\n")


def _report_end(control: socket.socket, status: int, children: ChildList | None) -> None:
    """Send chain the exit code of a command, and the number of processes that it left running.

    ``status`` is the wait status of the command.
    """
    left = 0 if _is_childless() else count_running((children or ChildList()).first_children())
    send_message(control, exit=os.waitstatus_to_exitcode(status), left=left)


# ---------------------------------------------------------------------------------------------------------- processes


_CHILDREN = "/proc/thread-self/children"


class ChildList:
    """The list of this process's children, including zombies. It may miss a child if another exits during the read.

    ``/proc/thread-self/children`` is opened once, so that it stays readable after the limit of open files is lowered to
    zero. If the kernel does not have it (``CONFIG_PROC_CHILDREN``), all of ``/proc`` is searched.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(FileNotFoundError):
            self._file = os.open(_CHILDREN, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> list[int]:
        """Return the pids of the children."""
        if self._file is None:
            return [
                pid for name in os.listdir("/proc") if name.isdecimal() and _stat(pid := int(name))[1] == os.getpid()
            ]
        os.lseek(self._file, 0, os.SEEK_SET)
        read = bytearray()
        while chunk := os.read(self._file, _CHUNK):
            read += chunk
        return [*map(int, read.split())]

    def first_children(self) -> list[int]:
        """Return the pids of a few children. The whole list can grow faster than it is read, in a fork storm."""
        if self._file is None:
            return self.read()
        os.lseek(self._file, 0, os.SEEK_SET)
        return [*map(int, os.read(self._file, _FEW).rpartition(b" ")[0].split())]

    def close(self) -> None:
        """Close the list."""
        if self._file is not None:
            os.close(self._file)


def reap(options: int = 0) -> Iterator[tuple[int, int]]:
    """Reap children that have ended, and yield the pid and status of each."""
    for _ in range(MAX_REAPED):
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | options)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
    signal.raise_signal(signal.SIGCHLD)  # there may be more


def _is_childless() -> bool:
    """Return whether this process has no children, not even zombies. Then it has no descendants either."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _generations(pids: Iterable[int]) -> Iterator[list[int]]:
    """Yield these pids, then those of their children, then those of the children's children, and so on.

    Each generation is read only after the caller has processed the previous one.
    """
    here = [*pids]
    while here:
        yield here
        here = [child for pid in here for child in _children(pid)]


def _children(pid: int) -> list[int]:
    """Return the pids of a process's children, as far as they can be listed."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def count_running(pids: Iterable[int]) -> int:
    """Return how many of these processes and their descendants are running. Zombies do not count.

    At most ``MAX_COUNTED_PROCESSES`` processes are examined.
    """
    count, counted = 0, 0
    for generation in _generations(pids):
        first = generation[: MAX_COUNTED_PROCESSES - counted]
        count += sum(map(_is_running, first))
        counted += len(first)
        if counted == MAX_COUNTED_PROCESSES:
            break
    return count


def _is_running(pid: int) -> bool:
    return _stat(pid)[0] not in "ZX"


def _stat(pid: int) -> tuple[str, int]:
    """Return the state of a process and the pid of its parent. If the process has ended, return ``X`` and 0."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *_ = file.read().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return state, int(parent)


def kill_tree(pids: Sequence[int]) -> None:
    """Kill these children of this process, and their descendants. Ignore processes that may not be killed.

    A killed process cannot fork, so each process is killed before its children are read. A descendant whose parent ends
    meanwhile is missed: it becomes a child of the nearest subreaper, where the next round finds it. Dead processes
    among ``pids`` are reaped and skipped: a fork storm leaves many, and reading the children of each takes long.
    """
    _kill(pids)
    for generation in _generations(pid for pid in pids if not _is_reaped(pid)):
        _kill(generation)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
