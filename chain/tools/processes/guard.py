"""The guard of tool processes, a program of its own: ``python -I -S guard.py FD PARENT NAME``, one for a whole chain.

::

    chain ── guard ─┬─ keeper ── command ── whatever it starts
            │       └─ keeper ── first of a PID namespace ── command ── ...
            └ FD: one packet a command, with its leash, its output pipe, and what else it is to have

The leash is one end of a pair of stream sockets. A line of JSON comes over it, ``{"argv": [...], "env": {...}, "cwd":
"/...", "fence": {...}, "with": [...]}``, and ``{"exit": 0, "left": 0}``, negative for a signal and with the number of
processes that the command left at work, or ``{"failed": "..."}`` goes back. When its other end closes, for whatever
reason (end, timeout, cancel, or a ``kill -9`` of chain), and at once when the command itself has ended, the keeper
kills everything below it until nothing is left. It is a child subreaper, so nothing gets away from below it, by
``setsid`` or two forks or otherwise.

The guard is a subreaper too and holds a copy of each leash: what a keeper leaves behind that was killed, or stopped,
by its own command is killed by the guard, and only then does chain see the end of the leash. So the end of a leash
means that nothing is left, as does ``{"gone": true}``, which a keeper sends that has come to its own end.

All this needs neither root nor namespaces. PR_SET_PDEATHSIG is not used: it follows the *thread* that forked.
The process has one thread and imports little, so that forking it is safe and fast.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence

if __name__ == "__main__":
    # Run by its path and isolated, it finds the standard library alone; its own package comes after that.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from chain.tools.processes import fence, keeper

MOST = 5
"""Descriptors of a packet at most: what comes after the leash and the output, the request says."""


class GuardProcess:
    """The one process: starts a keeper for each packet, and cleans up after those that died early."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._is_open = True
        self._keepers: dict[int, socket.socket] = {}
        self._bereft: list[socket.socket] = []
        """The leashes of keepers that have ended, until nothing is left of their commands."""
        self._spare: tuple[int, socket.socket] | None = None
        """The keeper of the next command, forked while nobody waits for it, and how it gets the ends of its call."""
        self._bell = keeper.Bell()
        self._bell.watch(control)
        self._children = keeper.ChildList()
        self._pause_s = keeper.KILL_ROUND_S

    def serve(self) -> None:
        """Serve until chain is gone and nothing is left below."""
        self._fork_spare()
        while self._is_open or self._keepers or self._bereft:
            if self._bell.wait(self._pause_s if self._bereft else None):
                self._accept()
            self._reap()
            if self._bereft:
                self._sweep()

    def _accept(self) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._control, 16, MOST, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            self._is_open = False
            self._bell.ignore(self._control)
            return
        leash = socket.socket(fileno=descriptors[0])
        if pid := self._hand_over(descriptors):
            self._keepers[pid] = leash
        else:
            keeper.tell(leash, {"failed": "no process can be started for it"})
            leash.close()
        for each in descriptors[1:]:
            os.close(each)
        self._fork_spare()

    def _hand_over(self, descriptors: Sequence[int]) -> int:
        """Give the ends of a call to a keeper, and return its id; 0 if there can be none."""
        for _ in range(2):  # a spare one may have been killed meanwhile
            self._fork_spare()
            if self._spare is None:
                return 0
            pid, way = self._spare
            self._spare = None
            with way, contextlib.suppress(OSError):
                socket.send_fds(way, [b"run"], descriptors)
                return pid
        return 0

    def _fork_spare(self) -> None:
        """Have a spare keeper, if there is none and one can be forked."""
        if self._spare is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                return
            if pid == 0:
                ours.close()
                keeper.forever(lambda: self._become_keeper(theirs))
        self._spare = pid, ours

    def _become_keeper(self, way: socket.socket) -> None:
        for each in (self._control, *self._keepers.values(), *self._bereft):
            each.close()  # a leash is closed when nobody holds its end
        self._bell.close()
        self._children.close()
        own = keeper.Keeper()
        packet, descriptors, _, _ = socket.recv_fds(way, 16, MOST, socket.MSG_CMSG_CLOEXEC)
        way.close()
        if packet:  # else there is no more to do
            leash, *others = descriptors
            own.serve(socket.socket(fileno=leash), *others)

    def _reap(self) -> None:
        for pid, status in keeper.changed(os.WUNTRACED):
            if os.WIFSTOPPED(status):
                # Only a command can have done that; a keeper that stands still would not kill.
                os.kill(pid, signal.SIGKILL)
            elif self._spare is not None and pid == self._spare[0]:
                self._spare[1].close()
                self._spare = None
            elif leash := self._keepers.pop(pid, None):
                if status == 0:
                    leash.close()  # it left nothing
                else:
                    self._bereft.append(leash)
                    self._pause_s = keeper.KILL_ROUND_S

    def _sweep(self) -> None:
        """Kill what came here from keepers that are no more."""
        ours = {*self._keepers, self._spare[0] if self._spare else 0}
        if strays := [pid for pid in self._children.read() if pid not in ours]:
            keeper.kill_tree(strays)
            self._pause_s = min(self._pause_s * 2, keeper.MAX_SWEEP_S)
        else:
            for leash in self._bereft:
                leash.close()
            self._bereft.clear()


# --------------------------------------------------------------------------------------------------------- the program


def main(descriptor: int, parent: int, name: str) -> None:
    """Serve the commands of a chain. The folder of this name is made for their temporary files, and removed in the end.

    ``parent`` is a descriptor of the folder that it is in.
    """
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started it may have blocked some
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in keeper.IGNORED else signal.SIG_DFL)
    gc.disable()
    gc.freeze()
    with socket.socket(fileno=descriptor) as control:
        control.set_inheritable(False)
        os.set_inheritable(parent, False)
        fence.adopt_orphans()
        try:
            with contextlib.suppress(FileExistsError):  # it is the second guard, and the first was killed
                os.mkdir(name, 0o700, dir_fd=parent)
            folder = open_subfolder(name, parent)
        except OSError as error:
            keeper.tell(control, {"failed": f"no folder for temporary files can be made: {error.strerror}"})
            return
        keeper.tell(control, {"ready": True})
        GuardProcess(control).serve()
    remove(folder, name, parent)


def open_subfolder(name: str, parent: int) -> int:
    """A descriptor of a folder in another, to read it; raises ``OSError``, also for a link."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def remove(folder: int, name: str, parent: int) -> None:
    """Remove a folder with all that is in it, also what its makers have locked themselves out of.

    ``folder`` and ``parent`` are descriptors. A command may have moved the folder away and put a link in its place, so
    nothing is reached by a path.
    """
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
        while sum(_remove_one(each, folder) for each in os.listdir(folder)):
            pass
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def _remove_one(name: str, top: int) -> bool:
    """Remove a file or folder; whether there is less to remove now.

    The folders in a folder are moved up, into ``top``, where they are found in the next round: folders may be nested
    deeper than a stack, of calls or of descriptors, can be.
    """
    has_less = False
    with contextlib.suppress(OSError):
        if (folder := _unlink(name, top)) is None:
            return True
        try:
            for each in os.listdir(folder):
                with contextlib.suppress(OSError):  # what is another user's stays, and nothing else
                    if (inner := _unlink(each, folder)) is not None:
                        os.close(inner)
                        os.rename(each, os.urandom(8).hex(), src_dir_fd=folder, dst_dir_fd=top)
                    has_less = True
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
        has_less = True
    return has_less


def _unlink(name: str, parent: int) -> int | None:
    """Remove a file; of a folder a descriptor, to read it and change what is in it, is returned. Raises ``OSError``."""
    try:
        os.unlink(name, dir_fd=parent)
    except IsADirectoryError:
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            with contextlib.suppress(OSError):  # what is not ours to change may still be ours to remove
                os.chmod(f"/proc/self/fd/{place}", 0o700)  # there is no other way that follows no link
            return open_subfolder(".", place)
        finally:
            os.close(place)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
