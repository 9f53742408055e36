"""Starts the program as people do, or mostly as a fork of a process that has imported it.

Importing takes most of the time of most programs that tests start. So a process of each worker imports what the program
does, and each program is a fork of that, with arguments, descriptors, environment, folder, session and terminal of its
own, up to the end of the interpreter. In CI a test that is marked ``started`` starts each for itself: of each way to
start the program there is one at least. What depends on how and when it is started (signals meanwhile, its locale, an
``os`` changed before) does so in the short run as well.

Where a test asks for it (``forking_guards``), so are the guards of tool processes, of another process.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forks import LONGEST

from chain.tools.processes import guard

from .examples import IS_SHORT
from .house import ROOT

PROGRAMS = ("terminal_program.py", "demo_program.py", "driver.py")
"""The scripts that may be forked: they do nothing before they call the program."""

_is_started = False

_PROGRAMS = ("-m", "forks.parent")
_GUARDS = ("-I", "-S", str(ROOT / "tests/forks/guards.py"))
"""What the process runs that programs are forks of, and what that of guards does."""

_ON_ITS_OWN_TERMINAL = ': <>"$0"; exec "$@"'
"""The first terminal that the leader of a session opens becomes the one that controls it."""


_Popen = subprocess.Popen


class Popen(_Popen[Any]):
    """A program, forked where it may be.

    ``terminal`` is the device of the terminal that is to control it, which makes it the leader of a session. It is a
    fork of what the words of ``origin`` run, in any case, else of a process that has imported what the program imports.
    """

    _ended: int | None = None

    def __init__(
        self,
        argv: Sequence[str],
        *,
        terminal: str | None = None,
        is_forked: bool = True,
        origin: Sequence[str] = (),
        **more: Any,
    ) -> None:
        self._terminal = terminal
        self._origin = tuple(origin) or (_origin_of(argv, more.get("env")) if is_forked else None)
        if terminal is not None:
            more["start_new_session"] = True
            if self._origin is None:
                argv = ["/bin/sh", "-c", _ON_ITS_OWN_TERMINAL, terminal, *argv]
        super().__init__(argv, **more)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *rest: Any) -> None:
        if self._origin is None:
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        pass_fds, cwd, env, _, _, _, *pipes = rest[:12]
        streams = [fd if fd >= 0 else number for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        request = {"argv": args[1:], "cwd": os.fspath(cwd or os.getcwd()), "env": env}
        request |= {"is_leader": bool(rest[17]), "terminal": self._terminal}
        self.pid = _parent(self._origin).start(request, [*streams, *pass_fds])
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended is None or self._origin is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if not select.select([self._ended], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        os.close(self._ended)
        self._ended = None
        return self.pid, _parent(self._origin).reap(self.pid)

    def _internal_poll(self, _deadstate: Any = None, *more: Any) -> int | None:
        if self._ended is None:
            return super()._internal_poll(_deadstate, *more)  # type: ignore[misc, no-any-return]
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None and (status := self._try_wait(os.WNOHANG))[0]:
                self._handle_exitstatus(status[1])  # type: ignore[attr-defined]
        return self.returncode


@contextmanager
def forking_guards() -> Iterator[None]:
    """What starts a guard gets a fork meanwhile (``forks.guards``)."""
    subprocess.Popen = Popen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = _Popen  # type: ignore[misc]


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


def _origin_of(argv: Sequence[str], env: Mapping[str, str] | None) -> tuple[str, ...] | None:
    """What it may be a fork of."""
    if [*argv[1:4]] == ["-I", "-S", guard.__file__]:
        return _GUARDS
    return _PROGRAMS if not _is_started and _may_be_forked(argv, env) else None


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


class _Parent:
    """The other end of the process that programs are forks of. It ends with this one."""

    def __init__(self, program: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "LANG": "C.UTF-8"}
        command = [sys.executable, *program, str(theirs.fileno())]
        with theirs:
            self._process = _Popen(command, env=env, cwd="/", pass_fds=[theirs.fileno()])
        self._lock = threading.Lock()
        atexit.register(self._close)

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
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


_parents: dict[tuple[str, ...], _Parent] = {}
_starting = threading.Lock()


def _parent(program: tuple[str, ...]) -> _Parent:
    with _starting:
        if program not in _parents:
            _parents[program] = _Parent(program)
        return _parents[program]


def origins() -> list[str]:
    """The numbers of these processes, once there are any: children that no test has started."""
    return [str(parent._process.pid) for parent in _parents.values()]
