"""The guard of tool processes: a separate program, one per chain, run as ``guard.py CONTROL FOLDER PARENT NAME``.

::

    chain ── guard ─┬─ keeper ── command ── its descendants
                    └─ keeper ── first process of a PID namespace ── command ── its descendants

``CONTROL``, ``FOLDER`` and ``PARENT`` are descriptors. ``CONTROL`` is a socket on which the guard receives a packet for
each command. A packet contains descriptors: the control socket of the command, its output, and perhaps others. The
guard forks a keeper for the command (``keeper``).

The control socket of a command carries lines of JSON. Chain sends ``{"argv": [...], "env": {...}, "cwd": "/...",
"fence": {...}, "with": [...]}``, where ``with`` names the other descriptors. The keeper sends ``{"failed": "..."}`` or
``{"exit": 0, "left": 0}``: the exit code, negative for a signal, and the number of processes that the command left
running. When the command has ended, or chain has closed its end of the socket for whatever reason (timeout, cancel,
``kill -9`` of chain), the keeper kills all descendants and ends itself. Then chain sees the end of the socket.

A command may kill or stop its keeper. The guard is a subreaper too, so the processes that such a keeper leaves become
children of the guard, which kills them. The guard has a copy of each control socket, and closes the copy only when no
process of the command is left. So the end of the socket always means that all processes of the command have ended.

All this needs neither root nor namespaces. PR_SET_PDEATHSIG is not used, since it is bound to the *thread* that forked.
The guard has one thread and imports little, so that forking it is safe and fast.

``FOLDER`` is a directory for temporary files of the commands. ``PARENT`` is the directory that contains it, ``NAME``
its name. The guard removes it before it exits, also after a ``kill -9`` of chain.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys

if __name__ == "__main__":
    # An isolated program that is run by its path finds only the standard library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from chain.tools.processes import fence, keeper

MAX_DESCRIPTORS = 5
"""The most descriptors in a packet: a control socket, the output, and those that the request names in ``with``."""


class GuardProcess:
    """The guard, which starts a keeper for each packet and cleans up after keepers that were killed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._is_open = True
        self._keepers: dict[int, socket.socket] = {}
        """The control socket of each keeper, by pid."""
        self._orphaned: list[socket.socket] = []
        """The control sockets of keepers that were killed, until nothing is left of their commands."""
        self._spare: tuple[int, socket.socket] | None = None
        """The pid of a keeper for the next command, forked in advance to save time, and a socket to it."""
        self._children = keeper.ChildList()
        self._pause_s = keeper.KILL_ROUND_S

    def serve(self) -> None:
        """Serve until chain has closed the control socket, and no keeper and no process of a command is left."""
        keeper.watch(self._control)
        self._accept()
        while self._is_open or self._keepers or self._orphaned:
            keeper.wait(self._pause_s if self._orphaned else None)
            self._reap()
            self._accept()
            if self._orphaned:
                self._sweep()

    def _accept(self) -> None:
        """Start a keeper for each packet that has arrived. Then fork a spare keeper for the next packet."""
        with contextlib.suppress(BlockingIOError):
            while self._is_open:
                descriptors = _receive_descriptors(self._control)
                if descriptors:
                    self._start(descriptors)
                self._is_open = bool(descriptors)
        with contextlib.suppress(OSError):
            self._spare = self._spare or self._fork_spare()

    def _start(self, descriptors: list[int]) -> None:
        control = socket.socket(fileno=descriptors[0])
        try:
            try:
                pid = self._hand_over(descriptors)
            except OSError:
                pid = self._hand_over(descriptors)  # the spare keeper had been killed
        except OSError:
            keeper.send_message(control, failed="no process can be started for it")
            control.close()
        else:
            self._keepers[pid] = control
        for each in descriptors[1:]:
            os.close(each)

    def _hand_over(self, descriptors: list[int]) -> int:
        """Send the descriptors of a command to a keeper. Return the pid of the keeper.

        Raise ``OSError`` if the keeper has ended or cannot be forked.
        """
        pid, way = self._spare or self._fork_spare(*descriptors)
        self._spare = None
        with way:
            socket.send_fds(way, [b"run"], descriptors)
        return pid

    def _fork_spare(self, *descriptors: int) -> tuple[int, socket.socket]:
        """Fork a keeper that waits for the descriptors of a command. Return its pid, and a socket to it.

        The keeper closes its copies of ``descriptors``, as it receives them later. Raise ``OSError`` on failure.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                return keeper.fork(lambda: self._become_keeper(theirs, ours.fileno(), *descriptors)), ours
            except OSError:
                ours.close()
                raise

    def _become_keeper(self, channel: socket.socket, *descriptors: int) -> None:
        for each in descriptors:
            os.close(each)
        for control in (self._control, *self._keepers.values(), *self._orphaned):
            control.close()  # a control socket must end with its own command
        self._children.close()
        own = keeper.Keeper()
        if received := _receive_descriptors(channel):
            channel.close()
            own.serve(socket.socket(fileno=received[0]), received[1:])

    def _reap(self) -> None:
        for pid, status in keeper.reap(os.WUNTRACED):
            if os.WIFSTOPPED(status):
                # A command stopped the keeper, so that the keeper could kill nothing.
                os.kill(pid, signal.SIGKILL)
            elif self._spare is not None and pid == self._spare[0]:
                self._spare[1].close()
                self._spare = None
            elif control := self._keepers.pop(pid, None):
                if status == 0:
                    control.close()  # nothing is left
                else:
                    self._orphaned.append(control)
                    self._pause_s = keeper.KILL_ROUND_S

    def _sweep(self) -> None:
        """Kill the processes that killed keepers have left. If none is left, close the keepers' control sockets."""
        own = {*self._keepers, self._spare[0] if self._spare else 0}
        if strays := [pid for pid in self._children.read() if pid not in own]:
            keeper.kill_tree(strays)
            self._pause_s = min(self._pause_s * 2, keeper.MAX_SWEEP_S)
        else:
            for control in self._orphaned:
                control.close()
            self._orphaned.clear()


def _receive_descriptors(source: socket.socket) -> list[int]:
    """Receive a packet and return its descriptors, which programs do not inherit.

    Return an empty list at the end of the socket.
    """
    _, descriptors, _, _ = socket.recv_fds(source, 16, MAX_DESCRIPTORS)
    for each in descriptors:
        os.set_inheritable(each, False)  # recv_fds ignores MSG_CMSG_CLOEXEC
    return descriptors


# --------------------------------------------------------------------------------------------------------- the program


def main(descriptors: list[int], name: str) -> None:
    """Run the guard, and remove its directory at the end.

    ``descriptors`` are the arguments ``CONTROL``, ``FOLDER`` and ``PARENT`` of the program.
    """
    control, folder, parent = descriptors
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    gc.disable()
    gc.freeze()
    for each in descriptors:
        os.set_inheritable(each, False)
    fence.adopt_orphans()
    with socket.socket(fileno=control) as opened:
        GuardProcess(opened).serve()
    remove(folder, name, parent)


def open_subfolder(name: str, parent: int) -> int:
    """Open the directory ``name`` in ``parent`` for reading. Raise ``OSError`` if it is a link."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def remove(folder: int, name: str, parent: int) -> None:
    """Remove a directory and its contents, even if their modes forbid it. Errors are ignored.

    ``folder`` and ``parent`` are descriptors of the directory and of its parent. No path is used, because a command may
    have moved the directory and put a link in its place.
    """
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
        while _remove_contents(folder, folder):
            pass
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def _remove_contents(folder: int, top: int) -> bool:
    """Remove the contents of ``folder``, which is ``top`` or a directory in ``top``. Return whether anything changed.

    Directories can be nested more deeply than calls or open descriptors can be. So only a directory directly in ``top``
    is removed. A directory further down is moved into ``top``, and the next call with ``top`` removes it.
    """
    has_changed = False
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # only another user's files cannot be removed
            try:
                os.unlink(name, dir_fd=folder)
            except IsADirectoryError:
                inner = _open_changeable(name, folder)
                try:
                    if folder == top:
                        has_changed |= _remove_contents(inner, top)
                        os.rmdir(name, dir_fd=top)
                    else:
                        os.rename(name, os.urandom(8).hex(), src_dir_fd=folder, dst_dir_fd=top)
                finally:
                    os.close(inner)
            has_changed = True
    return has_changed


def _open_changeable(name: str, parent: int) -> int:
    """Open the directory ``name`` in ``parent`` for reading. Set its mode so that its entries can be changed.

    Raise ``OSError`` if it cannot be opened.
    """
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):  # a directory may be removable even if its mode cannot be changed
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # the only call that does not follow a link
        return open_subfolder(".", place)
    finally:
        os.close(place)


if __name__ == "__main__":
    main([*map(int, sys.argv[1:4])], sys.argv[4])
