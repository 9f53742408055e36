"""The real program, as a fork of this process.

Importing the program takes longer than most runs of it. So one process imports it once, and each program is a fork of
that, made before any thread or trio run exists in it. What then runs is ``console``, the entry point of the installed
command, with an environment, descriptors, folder and session of its own, up to the end of the interpreter. What differs
from ``python -m cli`` is when its modules were imported, the layer under its files, and that what the model is asked is
kept (``asked``).

This process is a subreaper: whatever a program leaves behind, in whatever session and however often it forked, becomes
a child of this process, and ``nothing_left`` sees it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import sys
import tempfile
import termios
import threading
import time
from atexit import _run_exitfuncs
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from . import layer
from .point import Kill

GONE_S = 10.0
"""For what a killed program started to be gone; usual are some milliseconds."""

_PR_SET_CHILD_SUBREAPER = 36
_ROUND_S = 0.002


@dataclass(frozen=True, slots=True)
class Start:
    """How a program is started. ``stdin``, ``stdout`` and ``stderr`` are descriptors of this process.

    ``counts`` is the file of the layer, ``requests`` that of what the model is asked.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    stdin: int
    stdout: int
    stderr: int
    counts: Path
    requests: Path
    kill: Kill | None = None
    has_terminal: bool = False


def become_parent() -> None:
    """Prepare this process for its children: to be called once, before the program is imported."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def start(how: Start) -> int:
    """Start a program and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _enter(how)
        _run(how)
    finally:
        os._exit(70)


def wait(pid: int, timeout_s: float) -> int | None:
    """The exit code of a program, negative for a signal; ``None`` if it still runs after so long."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], timeout_s)[0]:
            return None
    finally:
        os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Kill a program that was not waited for."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def nothing_left(timeout_s: float = GONE_S) -> list[str]:
    """What the programs have left behind that does not end within this time; it is killed."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return []
        if not pid:
            if time.monotonic() > end:
                break
            select.select([], [], [], _ROUND_S)
    found = []
    while left := _children():
        found += [_command(pid) for pid in left]
        for pid in left:
            kill(pid)
            os.waitpid(pid, 0)
    return found


def _children() -> list[int]:
    me = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{me}/task/{me}/children").read_text().split()]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "?"


# ------------------------------------------------------------------------------------------------------- in the child


def _enter(how: Start) -> None:
    """Take the descriptors, the folder, the environment and the session that a shell would give."""
    os.setsid()
    for fd, number in ((how.stdin, 0), (how.stdout, 1), (how.stderr, 2)):
        os.dup2(fd, number)
    os.closerange(3, 256)
    if how.has_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(how.folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(how: Start) -> NoReturn:
    os.environ.clear()
    os.environ.update(how.env)
    tempfile.tempdir = None
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        setattr(sys, name, open(fd, mode, encoding="utf-8", errors="surrogateescape", closefd=False))  # noqa: SIM115
    sys.argv = ["chain", *how.argv]
    from cli.main import run_command

    from . import asked

    asked.keep(how.requests)
    layer.arm(how.counts, how.kill if how.kill is not None and how.kill.call != "seen" else None)
    try:
        run_command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    # What the interpreter does at its end.
    threading._shutdown()  # type: ignore[attr-defined]
    _run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
