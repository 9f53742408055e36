"""Starts the program as people do, or mostly as a fork of a process that has imported it.

Importing takes most of the time of most programs that tests start. So a process of each worker imports what the program
does, and each program is a fork of that, with arguments, descriptors, environment, folder, session and terminal of its
own, up to the end of the interpreter. In CI a test that is marked ``started`` starts each for itself: of each way to
start the program there is one at least. What depends on how and when it is started (signals meanwhile, its locale, an
``os`` changed before) does so in the short run as well.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forks import LONGEST

from .examples import IS_SHORT
from .house import ROOT

PROGRAMS = ("terminal_program.py", "demo_program.py", "driver.py")
"""The scripts that may be forked: they do nothing before they call the program."""

_is_started = False

_ON_ITS_OWN_TERMINAL = ': <>"$0"; exec "$@"'
"""The first terminal that the leader of a session opens becomes the one that controls it."""


class Popen(subprocess.Popen[Any]):
    """A program, forked where it may be.

    ``terminal`` is the device of the terminal that is to control it, which makes it the leader of a session. ``parent``
    is the process that it is a fork of in any case, else it is one that has imported what the program imports.
    """

    _ended: int | None = None

    def __init__(
        self,
        argv: Sequence[str],
        *,
        terminal: str | None = None,
        is_forked: bool = True,
        parent: Parent | None = None,
        **more: Any,
    ) -> None:
        self._terminal = terminal
        self._parent = parent
        self._is_forked = parent is not None or (
            is_forked and not _is_started and _may_be_forked(argv, more.get("env"))
        )
        if terminal is not None:
            more["start_new_session"] = True
            if not self._is_forked:
                argv = ["/bin/sh", "-c", _ON_ITS_OWN_TERMINAL, terminal, *argv]
        super().__init__(argv, **more)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *rest: Any) -> None:
        if not self._is_forked:
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        _, cwd, env, _, _, _, *pipes = rest[:12]
        streams = [fd if fd >= 0 else number for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {"argv": args[1:], "cwd": os.fspath(cwd or os.getcwd()), "env": env}
        self._parent = self._parent or _parent()
        self.pid = self._parent.start({**request, "is_leader": bool(rest[17]), "terminal": self._terminal}, streams)
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if not select.select([self._ended], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        os.close(self._ended)
        self._ended = None
        assert self._parent is not None
        return self.pid, self._parent.reap(self.pid)

    def _internal_poll(self, _deadstate: Any = None, *more: Any) -> int | None:
        if self._ended is None:
            return super()._internal_poll(_deadstate, *more)  # type: ignore[misc, no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and (status := self._try_wait(os.WNOHANG))[0]:
                self._handle_exitstatus(status[1])  # type: ignore[attr-defined]
        return self.returncode


def run(argv: Sequence[str], *, timeout: float | None = None, **more: Any) -> subprocess.CompletedProcess[Any]:
    """As ``subprocess.run`` with all output captured."""
    data = more.pop("input", None)
    if data is not None:
        more["stdin"] = subprocess.PIPE
    with Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more) as process:
        try:
            out, err = process.communicate(data, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def begin_test(*, is_started: bool) -> None:
    """From here on programs are those of another test, which is marked ``started`` or not."""
    global _is_started
    _is_started = is_started and not IS_SHORT


def _may_be_forked(argv: Sequence[str], env: Mapping[str, str] | None) -> bool:
    """Whether a fork is the same: what the interpreter itself reads at its start is as it always is."""
    if env is None or env.get("LANG", "C.UTF-8") != "C.UTF-8" or any(name[:3] in ("LC_", "TZ") for name in env):
        return False
    python = {name: value for name, value in env.items() if name.startswith("PYTHON") and name != "PYTHONUTF8"}
    if python != {"PYTHONPATH": str(ROOT)} or sum(map(len, argv)) + sum(map(len, env.values())) > LONGEST:
        return False
    what = argv[1:3]
    return argv[0] == sys.executable and (what == ["-m", "cli"] or Path(what[0]).name in PROGRAMS)


# ---------------------------------------------------------------------------------- the process that programs come from


class Parent:
    """The other end of the process that programs are forks of, which runs a module. It ends with this one."""

    def __init__(self, module: str) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "LANG": "C.UTF-8"}
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, env=env, cwd="/", pass_fds=[theirs.fileno()])
        self._lock = threading.Lock()
        atexit.register(self._close)

    def start(self, request: dict[str, Any], streams: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            return self._answer()

    def reap(self, pid: int) -> int:
        with self._lock:
            self._socket.send(json.dumps({"reap": pid}).encode())
            return self._answer()

    def _answer(self) -> int:
        data = self._socket.recv(100)
        assert data, "the process that programs are forked from has ended"
        return int(data)

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


_the_parent: list[Parent] = []


def _parent() -> Parent:
    if not _the_parent:
        _the_parent.append(Parent("forks.parent"))
    return _the_parent[0]


def origins() -> list[str]:
    """The number of that process, once there is one: a child that no test has started."""
    return [str(parent._process.pid) for parent in _the_parent]
